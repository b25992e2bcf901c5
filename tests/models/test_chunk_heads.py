"""Heads over texts read in chunks: invariants, and a signal at the end of long texts."""

import dataclasses
from typing import Any, get_args

import numpy as np
import pytest
import torch

from homespun.batch import Batch
from homespun.data.labels import LabelledRows, Labels
from homespun.data.long_inputs import ChunkMean, ChunkPool, HeadTail, Truncate, pad_chunks
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.composite_heads import ChunkPoolHeadConfig
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.sequence_heads import SequenceHeadConfig
from homespun.tasks.classification import Classification, ClassificationLoss

KINDS = get_args(get_args(SequenceHeadConfig)[0])
HEADS = [kind(num_labels=3) for kind in KINDS]
POOLS = [ChunkPoolHeadConfig(head=head, chunks=5, layers=1 + number % 2) for number, head in enumerate(HEADS)]
every_head = pytest.mark.parametrize("head", [*HEADS, *POOLS], ids=lambda h: f"{h.kind}-{getattr(h, 'head', h).kind}")
LABELS = Labels(("a", "b", "c"))
ROOM = 7  # tokens of a chunk without the special ones


def model_config(head: Any = None, **fields: Any) -> ModelConfig:
    sizes = {"hidden_size": 14, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 17}
    sizes |= {"vocab_size": 53, "max_position_embeddings": 31, "initializer_range": 0.3}
    return ModelConfig(backbone=EncoderConfig(**{**sizes, **fields}), head=head)


def model_with(head: Any) -> Any:
    torch.manual_seed(4)
    return model_config(head).build().eval()


def texts(*counts: int) -> list[Row]:
    """A row a text, of so many chunks each; the last chunk is shorter."""
    generator = np.random.default_rng(7)
    made = []
    for number, count in enumerate(counts):
        sizes = [ROOM] * (count - 1) + [3]
        ids = [np.concatenate([[2], generator.integers(5, 53, size), [3]]) for size in sizes]
        numbers = np.repeat(np.arange(count), [size + 2 for size in sizes])
        made.append(Row(np.concatenate(ids), documents=numbers if count > 1 else None, label=number % 3))
    return made


def logits_of(model: Any, batch: Batch) -> torch.Tensor:
    return model(batch.input_ids, **batch.context, chunks=batch.chunks)


@every_head
def test_alone_is_in_a_batch(head: Any) -> None:
    model, rows = model_with(head), texts(3, 1, 5, 2)
    together = logits_of(model, pad_chunks(rows, 0))
    assert together.shape == (4, 3)
    for number, row in enumerate(rows):
        torch.testing.assert_close(logits_of(model, pad_chunks([row], 0))[0], together[number], atol=1e-5, rtol=1e-5)


@every_head
def test_texts_do_not_mix(head: Any) -> None:
    module = model_with(head).head
    batch = pad_chunks(texts(3, 1, 5, 2), 0)
    hidden = torch.randn(*batch.input_ids.shape, 14, generator=torch.Generator().manual_seed(1))
    expected = module(hidden, batch.attention_mask, batch.chunks)
    broken = hidden.clone()
    broken[:3] = float("nan")  # the first text, which stands where the missing chunks of the others are looked up
    found = module(broken, batch.attention_mask, batch.chunks)
    assert found[0].isnan().all()
    assert torch.equal(found[1:], expected[1:])


@every_head
def test_every_chunk_is_read(head: Any) -> None:
    model, (row,) = model_with(head), texts(3)
    batch = pad_chunks([row], 0)
    before = logits_of(model, batch)
    for chunk in range(3):
        ids = batch.input_ids.clone()
        ids[chunk, 1] = 4
        assert not torch.allclose(logits_of(model, dataclasses.replace(batch, input_ids=ids)), before, atol=1e-6)


@every_head
def test_every_parameter_learns_in_half_precision_too(head: Any) -> None:
    model, batch = model_with(head).train(), pad_chunks(texts(3, 1, 2), 0)
    with torch.autocast("cpu", torch.bfloat16):
        logits = logits_of(model, batch)
    logits.float().square().sum().backward()
    for name, parameter in model.head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("head", HEADS, ids=lambda h: h.kind)
def test_the_logits_of_a_text_are_the_mean_of_its_chunks(head: Any) -> None:
    model, batch = model_with(head), pad_chunks(texts(3, 1, 2), 0)
    each = logits_of(model, dataclasses.replace(batch, chunks=None))
    expected = torch.stack([each[:3].mean(0), each[3], each[4:].mean(0)])
    torch.testing.assert_close(logits_of(model, batch), expected)
    turned = dataclasses.replace(batch, chunks=batch.chunks.flip(1))
    torch.testing.assert_close(logits_of(model, turned), logits_of(model, batch))


@every_head
def test_one_chunk_a_text_is_no_chunks(head: Any) -> None:
    model, batch = model_with(head), pad_chunks(texts(1, 1, 1), 0)
    single = dataclasses.replace(batch, chunks=torch.arange(3)[:, None])
    assert torch.equal(logits_of(model, single), logits_of(model, batch))


@pytest.mark.parametrize("head", POOLS, ids=lambda h: h.head.kind)
def test_layers_above_see_the_order_of_the_chunks(head: Any) -> None:
    model, batch = model_with(head), pad_chunks(texts(3, 3), 0)
    turned = dataclasses.replace(batch, chunks=batch.chunks.flip(1))
    assert not torch.allclose(logits_of(model, turned), logits_of(model, batch), atol=1e-5)


def test_more_chunks_than_positions_are_refused() -> None:
    with pytest.raises(UserError, match=r" 6 chunks.* 5"):
        logits_of(model_with(POOLS[0]), pad_chunks(texts(6, 1), 0))


def objective(long_inputs: Any, labels: Labels = LABELS, **fields: Any) -> ClassificationLoss:
    torch.manual_seed(4)
    config = model_config()
    return Classification(**fields).build(config.build(), config, labels, long_inputs=long_inputs)


def test_the_layers_are_part_of_the_head_and_of_its_config() -> None:
    module = objective(ChunkPool(chunks=4, layers=2), head={"kind": "mean"})
    product, config = module.export_model()
    assert config.head == ChunkPoolHeadConfig(head={"kind": "mean", "num_labels": 3}, chunks=4, layers=2)
    again = config.build()
    again.load_state_dict(product.state_dict())
    batch = pad_chunks(texts(3, 1, 4), 0)
    assert torch.equal(logits_of(again.eval(), batch), logits_of(product.eval(), batch))
    for plain in (Truncate(), HeadTail(), ChunkMean()):
        assert objective(plain).export_model()[1].head == Classification().head.model_copy(update={"num_labels": 3})


@pytest.mark.parametrize("long_inputs", [ChunkMean(), ChunkPool()])
@pytest.mark.parametrize("weights", [None, (0.5, 1.0, 3.0)])
@pytest.mark.parametrize("several", [False, True])
def test_micro_batches_of_texts_add_up(long_inputs: Any, weights: Any, several: bool) -> None:
    labels = Labels(LABELS.names, multi_label=several)
    module = objective(long_inputs, labels).eval()
    collate = Classification().collate(0, labels, weights=weights)
    rows = texts(3, 1, 2, 4, 1)
    if several:
        rows = [dataclasses.replace(row, label=np.arange(3) == row.label) for row in rows]
    complete, *parts = (collate(part, []) for part in (rows, rows[:2], rows[2:3], rows[3:]))
    expected = module(complete).total(complete.targets)
    found = sum(module(part).total(complete.targets) for part in parts)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("long_inputs", [ChunkMean(), ChunkPool()])
def test_a_frozen_encoder_stays(long_inputs: Any) -> None:
    module = objective(long_inputs, frozen=True).train()
    module(Classification().collate(0, LABELS)(texts(3, 1), [])).total().backward()
    learned = {id(parameter) for parameter in module.parameters() if parameter.grad is not None}
    assert learned == {id(parameter) for parameter in module.model.head.parameters()}
    assert not module.model.backbone.training


@pytest.mark.parametrize("long_inputs", [ChunkMean(), ChunkPool()])
def test_compiles_without_a_break(long_inputs: Any) -> None:
    module = objective(long_inputs).eval()
    batch = Classification().collate(0, LABELS)(texts(3, 1), [])
    torch.compiler.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch).total(), module(batch).total())


class Numbers:
    """A tokenizer in miniature: a text is its ids, in decimal."""

    vocab_size, pad_id, dtype = 53, 0, np.dtype(np.int64)
    template, pair_template = ([2], [3]), ([2], [3], [3])

    def encode_batch(self, given: list[str]) -> list[np.ndarray]:
        return [np.array(text.split(), dtype=np.int64) for text in given]


@pytest.mark.parametrize(
    ("long_inputs", "learned"),
    [
        (Truncate(), False),
        pytest.param(HeadTail(), True, marks=pytest.mark.slow),
        pytest.param(ChunkMean(), True, marks=pytest.mark.slow),
        (ChunkPool(), True),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_signal_at_the_end_of_the_text(long_inputs: Any, learned: bool) -> None:
    """The class is the last token but one of texts three to five times as long as the model reads."""
    generator = np.random.default_rng(11)
    made, names = [], []
    for number in range(16 * 200 + 64):
        ids = generator.integers(10, 53, generator.integers(40, 65))
        ids[-2] = 5 + number % 3
        made.append(" ".join(map(str, ids)))
        names.append(LABELS.names[number % 3])
    tokenizer: Any = Numbers()
    rows = LabelledRows(made, names, tokenizer, length=15, long_inputs=long_inputs, names=LABELS)
    torch.manual_seed(2)
    config = model_config(hidden_size=32, intermediate_size=32, hidden_dropout_prob=0.0, initializer_range=0.1)
    classification = Classification(head={"kind": "mean", "dropout": 0.0})
    module = classification.build(config.build(), config, LABELS, long_inputs=long_inputs)
    collate = classification.collate(0, LABELS)
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    for step in range(200):  # each on texts of its own, so that nothing is learned by heart
        chosen = [rows[64 + 16 * step + place] for place in range(16)]
        optimizer.zero_grad()
        module(collate(chosen, [])).total().backward()
        optimizer.step()
    with torch.no_grad():
        right = float(module.eval()(collate([rows[index] for index in range(64)], [])).terms["accuracy"].sum)
    assert (right / 64 > 0.95) if learned else (right / 64 < 0.5)
