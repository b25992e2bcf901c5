"""The laws of a backbone, for every member of the unions: a new variant is tested by being added there."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from homespun.data.padding import pad
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.backbone import Encoder
from homespun.models.config import (
    AttentionConfig,
    EncoderConfig,
    ModelConfig,
    PositionsConfig,
    ResidualConfig,
    TokenHeadConfig,
)
from homespun.models.presets import PRESETS
from homespun.nn.masks import Full

VOCAB, SEQ, MAXIMUM = 53, 13, 31
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 22,
    "num_attention_heads": 2,
    "intermediate_size": 23,
    "num_hidden_layers": 2,
    "max_position_embeddings": MAXIMUM,
    "initializer_range": 0.3,  # attention far from uniform, so that what a token sees shows in its vector
}
# what a variant needs to be worth testing on a short sequence, by its kind; others stand at their defaults
SHORT: dict[str, dict[str, Any]] = {"window": {"radius": 2}}


def members(union: Any) -> list[dict[str, Any]]:
    """Every member of a tagged union of configs, as a tree."""
    kinds = [member.model_fields["kind"].default for member in get_args(get_args(union)[0])]
    return [{"kind": kind, **SHORT.get(kind, {})} for kind in kinds]


def variants() -> dict[str, EncoderConfig]:
    """Every combination of parts, causal or not, and every preset at a small size."""
    configs = {}
    for attention, positions, residual, causal in itertools.product(
        members(AttentionConfig), members(PositionsConfig), members(ResidualConfig), (False, True)
    ):
        name = "-".join([attention["kind"], positions["kind"], residual["kind"], *["causal"] * causal])
        parts = {"attention": attention, "positions": positions, "residual": residual, "causal": causal}
        configs[name] = EncoderConfig.model_validate(SIZES | parts)
    for preset, fields in PRESETS.items():
        narrow = {"embedding_size": 14} if fields.get("embedding_size", 0) else {}
        configs[preset] = EncoderConfig.model_validate({"preset": preset} | SIZES | narrow)
    return configs


VARIANTS = variants()
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)


def build(config: EncoderConfig, seed: int = 1, **fields: Any) -> Encoder:
    torch.manual_seed(seed)
    return config.model_copy(update=fields).build().eval()


def some_ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(5, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def modes(config: EncoderConfig) -> list[Encoder]:
    """In evaluation, and in training with nothing dropped: both take the same way."""
    return [build(config), build(config, hidden_dropout_prob=0.0).train()]


def reach(config: EncoderConfig, length: int) -> Tensor:
    """(length, length) bool: whether token j can be seen in the vector of token i after all the layers."""
    pattern = getattr(config.attention.kernel(0.0), "pattern", Full())
    place = torch.arange(length)
    table = pattern.allowed(place[:, None], place[None, :])
    step = torch.ones(length, length) if table is None else table.float()
    if config.causal:
        step = step.tril()
    return torch.linalg.matrix_power(step, config.num_hidden_layers) > 0


@every_variant
def test_padding_does_not_leak_and_alone_is_as_in_a_batch(config: EncoderConfig) -> None:
    lengths = (SEQ, 7, 1)
    keep = torch.arange(SEQ) < torch.tensor(lengths)[:, None]
    ids, garbage = some_ids(3, SEQ), some_ids(3, SEQ, seed=2)
    for encoder in modes(config):
        padded = encoder(ids.where(keep, 0), attention_mask=keep)
        other = encoder(ids.where(keep, garbage), attention_mask=keep.long())
        torch.testing.assert_close(padded[keep], other[keep], rtol=0, atol=0)
        for row, length in enumerate(lengths):
            alone = encoder(ids[row : row + 1, :length])
            torch.testing.assert_close(padded[row : row + 1, :length], alone, rtol=1e-5, atol=1e-5)


@every_variant
def test_tokens_mix_exactly_as_far_as_the_pattern_reaches(config: EncoderConfig) -> None:
    encoder = build(config).double()
    ids = some_ids(1, SEQ)
    reachable = reach(config, SEQ)
    assert bool(reachable.diagonal().all())
    assert not config.causal or not bool(reachable.triu(1).any())  # the future does not leak
    plain = encoder(ids)
    for place in range(SEQ):
        changed = ids.clone()
        changed[0, place] = (ids[0, place] - 5 + 17) % (VOCAB - 5) + 5
        difference = (encoder(changed) - plain).abs().amax(-1)[0]  # (seq,)
        assert torch.equal(difference > 1e-9, reachable[:, place]), f"token {place} is seen by {difference}"


@every_variant
def test_packed_documents_do_not_see_each_other(config: EncoderConfig) -> None:
    pieces = [some_ids(length, seed=length).numpy() for length in (3, 7, 2, 5)]
    rows = [Row(np.concatenate(pieces[:3]), documents=np.repeat([0, 1, 2], [3, 7, 2])), Row(pieces[3])]
    batch = pad(rows, 0)
    for encoder in modes(config):
        hidden = encoder(
            batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            documents=batch.documents,
        )
        for piece, (row, start) in zip(pieces, [(0, 0), (0, 3), (0, 10), (1, 0)], strict=True):
            alone = encoder(torch.from_numpy(piece)[None])
            torch.testing.assert_close(hidden[row, start : start + len(piece)], alone[0], rtol=1e-5, atol=1e-5)


@every_variant
def test_a_fully_masked_row_gives_no_nan(config: EncoderConfig) -> None:
    keep = torch.tensor([[True], [False]]).expand(2, SEQ)
    for encoder in modes(config):
        hidden = encoder(some_ids(2, SEQ), attention_mask=keep)
        assert hidden.isfinite().all()
        hidden.square().sum().backward()
        for name, parameter in encoder.named_parameters():
            assert parameter.grad is None or parameter.grad.isfinite().all(), name


@every_variant
def test_training_drops_out_and_evaluation_is_deterministic(config: EncoderConfig) -> None:
    encoder, ids = build(config), some_ids(2, SEQ)
    assert torch.equal(encoder(ids), encoder(ids))
    encoder.train()
    assert not torch.equal(encoder(ids), encoder(ids))
    torch.manual_seed(3)
    first = encoder(ids)
    torch.manual_seed(3)
    assert torch.equal(first, encoder(ids))
    first.square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, f"{name} learns nothing"
        assert parameter.grad.isfinite().all()


@every_variant
def test_any_length_up_to_the_maximum(config: EncoderConfig) -> None:
    encoder = build(config)
    for length in (1, 2, 3, 5, 17, MAXIMUM - 1, MAXIMUM):
        ids = some_ids(2, length)
        assert encoder(ids).shape == (2, length, config.hidden_size)
        counted = torch.arange(length).expand(2, -1)
        torch.testing.assert_close(encoder(ids, position_ids=counted), encoder(ids))
    with pytest.raises(UserError, match=f"sequence of {MAXIMUM + 1} tokens exceeds max_position_embeddings={MAXIMUM}"):
        encoder(some_ids(1, MAXIMUM + 1))


@every_variant
def test_gradient_checkpointing_changes_nothing(config: EncoderConfig) -> None:
    encoder, ids = build(config).train(), some_ids(2, SEQ)
    keep = torch.arange(SEQ) < torch.tensor([[SEQ], [7]])
    calls = []
    encoder.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    found = []
    for encoder.gradient_checkpointing in (False, True):
        encoder.zero_grad()
        torch.manual_seed(3)
        hidden = encoder(ids, attention_mask=keep)
        hidden.square().sum().backward()
        found.append([hidden.detach(), *(p.grad for p in encoder.parameters() if p.grad is not None)])
    assert len(calls) == 3  # once, and once more when computed again
    for plain, checkpointed in zip(*found, strict=True):
        torch.testing.assert_close(plain, checkpointed, rtol=1e-6, atol=1e-6)


@every_variant
@pytest.mark.parametrize("head", [None, *get_args(TokenHeadConfig)])
def test_save_and_load_restore_the_bits(config: EncoderConfig, head: Any, tmp_path: Path) -> None:
    whole = ModelConfig(backbone=config, head=None if head is None else head())
    torch.manual_seed(1)
    saved = whole.build().eval()
    save_file(dict(saved.named_parameters()), tmp_path / "model.safetensors")
    torch.manual_seed(2)
    loaded = whole.build().eval()
    ids = some_ids(2, SEQ)
    assert not torch.equal(saved(ids), loaded(ids))
    stored = load_file(tmp_path / "model.safetensors")
    with torch.no_grad():
        for name, parameter in loaded.named_parameters():
            parameter.copy_(stored.pop(name))
    assert not stored
    assert torch.equal(saved(ids), loaded(ids))


def test_segments_are_zero_where_none_are_given() -> None:
    encoder, ids = build(VARIANTS["bert-tiny"]), some_ids(2, SEQ)
    torch.testing.assert_close(encoder(ids, token_type_ids=torch.zeros_like(ids)), encoder(ids))
    assert not torch.equal(encoder(ids, token_type_ids=torch.ones_like(ids)), encoder(ids))


def test_hidden_states_are_those_after_every_layer() -> None:
    encoder, ids = build(VARIANTS["full-learned-pre"]), some_ids(2, SEQ)
    states = list(encoder.hidden_states(ids))
    assert len(states) == 1 + len(encoder.layers)
    torch.testing.assert_close(encoder.final_norm(states[-1]), encoder(ids))


@pytest.mark.parametrize("narrow", [{}, {"embedding_size": 14}], ids=["as wide", "narrow"])
@pytest.mark.parametrize("head", get_args(TokenHeadConfig))
def test_token_heads(head: Any, narrow: dict[str, int]) -> None:
    """The whole table of logits, a token at a time, and `predict` without the table, are one thing."""
    torch.manual_seed(1)
    model = ModelConfig(backbone=EncoderConfig.model_validate(SIZES | narrow), head=head()).build().eval()
    assert model.head is not None
    hidden = model.backbone(some_ids(2, SEQ))
    logits = model(some_ids(2, SEQ))
    torch.testing.assert_close(model.head(hidden.flatten(0, 1)[[3, 19]]), logits.flatten(0, 1)[[3, 19]])
    if head.model_fields["kind"].default == "discriminator":
        assert logits.shape == (2, SEQ)
        return
    assert logits.shape == (2, SEQ, VOCAB)
    assert model.head.weight is model.backbone.embeddings.words.weight
    labels = some_ids(2 * SEQ, seed=2)
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum")
    torch.testing.assert_close(model.head.predict(hidden.flatten(0, 1), labels).loss, expected)
