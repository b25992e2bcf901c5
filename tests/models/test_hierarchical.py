"""The hierarchical transformer: paragraphs affect each other only through their pooled vectors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import SIZES, VOCAB
from torch import Tensor

from homespun.attention.multi_head import AttentionSpec
from homespun.attention.paragraphs import ParagraphsAttentionConfig
from homespun.data.rows import Row, pad
from homespun.errors import UserError
from homespun.models.backbone import Encoder
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.model import Model
from homespun.nn.masks import Mask

LENGTHS = (3, 7, 2)
STACK = SIZES | {"num_hidden_layers": 3, "hidden_dropout_prob": 0.0}
HIERARCHY = {"kind": "alternating", "cycle": [{"kind": "full"}, {"kind": "full"}, {"kind": "paragraphs"}]}


def encoder(**fields: Any) -> Encoder:
    torch.manual_seed(1)
    tree = STACK | {"attention": HIERARCHY} | fields
    return EncoderConfig.model_validate(tree).build().eval().double()


def row(lengths: tuple[int, ...] = LENGTHS, *, seed: int = 1) -> Row:
    draw = np.random.Generator(np.random.PCG64(seed))
    return Row(draw.integers(5, VOCAB, sum(lengths)), documents=np.repeat(np.arange(len(lengths)), lengths))


def read(model: Encoder, *rows: Row) -> Tensor:
    batch = pad(rows, 0)
    return model(batch.input_ids, **{name: t for name, t in batch.context.items() if t is not None})


def test_below_the_last_layer_a_paragraph_is_read_as_if_alone() -> None:
    alone = encoder(num_hidden_layers=2)
    complete = read(alone, row())
    start = 0
    for length in LENGTHS:
        own = torch.from_numpy(row().input_ids[start : start + length])[None]
        torch.testing.assert_close(complete[:, start : start + length], alone(own))
        start += length


def test_every_token_hears_of_every_paragraph() -> None:
    model, plain = encoder(), row()
    before = read(model, plain)
    for place in range(sum(LENGTHS)):
        ids = plain.input_ids.copy()
        ids[place] = (ids[place] - 5 + 17) % (VOCAB - 5) + 5
        assert ((read(model, replace(plain, input_ids=ids)) - before).abs().amax(-1) > 1e-9).all()


def test_the_order_of_paragraphs_matters_through_their_numbers_alone() -> None:
    model, plain = encoder(), row()
    batch = pad([plain], 0)
    before = model(batch.input_ids, documents=batch.documents, position_ids=batch.position_ids)
    order = torch.tensor([10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9])  # the last paragraph stands first
    context = {"documents": batch.documents[:, order], "position_ids": batch.position_ids[:, order]}
    torch.testing.assert_close(model(batch.input_ids[:, order], **context), before[:, order])
    numbers = torch.tensor([1, 2, 0])[context["documents"]]  # now it is the first
    other = model(batch.input_ids[:, order], documents=numbers, position_ids=context["position_ids"])
    assert (other - before[:, order]).abs().max() > 1e-3


def test_alone_is_as_in_a_batch_and_padding_does_not_leak() -> None:
    model = encoder()
    rows = [row(), row((5,), seed=2), row((1, 1, 11, 2, 2), seed=3)]
    together = read(model, *rows)
    for number, one in enumerate(rows):
        torch.testing.assert_close(together[number : number + 1, : len(one.input_ids)], read(model, one))
    batch = pad(rows, 0)
    keep = batch.attention_mask
    garbage = batch.input_ids.where(keep, 7)
    context = {name: t for name, t in batch.context.items() if t is not None}
    assert torch.equal(model(garbage, **context)[keep], together[keep])


def test_pooling_and_attention_are_those_of_the_formulas() -> None:
    shape = AttentionSpec(14, 2, 31, layer=0, causal=False, dropout=0.0, seed=0)
    torch.manual_seed(3)
    part: Any = ParagraphsAttentionConfig().build(shape).double()
    hidden = torch.randn(1, 5, 14, dtype=torch.double)
    documents = torch.tensor([[0, 0, 0, 1, 1]])
    pooled = []
    for start, end in ((0, 3), (3, 5)):
        own = hidden[0, start:end]
        weights = part.weight(own).softmax(0)  # (tokens, heads)
        values = part.value(own).view(-1, 2, 7)
        pooled.append(part.pooled((weights[:, :, None] * values).sum(0).flatten()))
    angles = torch.arange(2.0)[:, None] * 10_000.0 ** (-2 * torch.arange(7) / 14)
    places = torch.stack([angles.sin(), angles.cos()], -1).flatten(1).double()
    between = part.between(part.norm(torch.stack(pooled) + places)[None], Mask())[0]
    expected = between[torch.tensor([0, 0, 0, 1, 1])]
    torch.testing.assert_close(part(hidden, Mask(documents=documents))[0], expected, rtol=1e-5, atol=1e-6)


def test_a_decoder_cannot_have_it() -> None:
    with pytest.raises(UserError, match="encoder"):
        encoder(causal=True)


def small_model() -> Model:
    torch.manual_seed(2)
    stack = STACK | {"attention": HIERARCHY}
    backbone: dict[str, Any] = {"kind": "encoder_decoder", "encoder": stack, "decoder": {"num_hidden_layers": 1}}
    backbone |= {"decoder_start_token_id": 2, "eos_token_id": 3}
    return ModelConfig.model_validate({"backbone": backbone, "head": {"kind": "causal_lm"}}).build().eval()


def test_it_writes_of_a_batch_what_it_writes_of_each_and_beams_are_no_worse() -> None:
    model = small_model()
    rows = [row(), row((5, 4), seed=2)]

    def written(*chosen: Row, beams: int) -> Tensor:
        batch = pad(chosen, 0)
        return model.generate(
            batch.input_ids,
            batch.attention_mask,
            documents=batch.documents,
            position_ids=batch.position_ids,
            max_new_tokens=7,
            min_new_tokens=7,
            num_beams=beams,
        )

    for beams in (1, 5):
        both = written(*rows, beams=beams)
        for number, one in enumerate(rows):
            assert torch.equal(both[number : number + 1], written(one, beams=beams))
    assert not torch.equal(written(replace(rows[0], documents=None), beams=1), written(rows[0], beams=1))
