"""Invariants of the classification heads, for every member of the union."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.sequence_heads import (
    BiLSTMHeadConfig,
    ConvolutionalHeadConfig,
    LastTokenHeadConfig,
    LinearHeadConfig,
    PooledHeadConfig,
    SequenceHeadConfig,
)

KINDS = get_args(get_args(SequenceHeadConfig)[0])
HIDDEN, LABELS, LENGTHS = 13, 3, [11, 7, 2, 1]
BACKBONE: Any = SimpleNamespace(hidden_size=HIDDEN)
adapter: TypeAdapter[Any] = TypeAdapter(SequenceHeadConfig)


def batch(seq: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = torch.randn(len(LENGTHS), seq, HIDDEN, generator=torch.Generator().manual_seed(5))
    return hidden, torch.arange(seq)[None] < torch.tensor(LENGTHS)[:, None]


def head(kind: type[Any], **fields: Any) -> torch.nn.Module:
    torch.manual_seed(2)
    return kind(num_labels=LABELS, **fields).build(BACKBONE)


@pytest.mark.parametrize("kind", KINDS)
def test_shape_and_round_trip(kind: type[Any]) -> None:
    config = kind(num_labels=LABELS)
    assert adapter.validate_python(config.model_dump(mode="json")) == config
    assert config.build(BACKBONE)(*batch()).shape == (len(LENGTHS), LABELS)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_does_not_leak(kind: type[Any]) -> None:
    module = head(kind).eval()
    hidden, mask = batch()
    expected = module(hidden, mask)
    for garbage in (1e4, float("nan")):
        dirty = hidden.masked_fill(~mask[..., None], garbage)
        torch.testing.assert_close(module(dirty, mask), expected, atol=0, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_alone_is_in_a_batch(kind: type[Any]) -> None:
    module = head(kind).eval()
    hidden, mask = batch()
    together = module(hidden, mask)
    for row, length in enumerate(LENGTHS):
        alone = module(hidden[row : row + 1, :length], None)
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fully_masked_row_gives_no_nan(kind: type[Any]) -> None:
    module = head(kind)
    hidden, mask = batch()
    hidden.requires_grad_()
    mask[1] = False
    logits = module(hidden, mask)
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert hidden.grad.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_may_be_of_numbers(kind: type[Any]) -> None:
    config = EncoderConfig(vocab_size=29, hidden_size=22, num_attention_heads=2, num_hidden_layers=1)
    model = ModelConfig(backbone=config, head=kind(num_labels=3)).build().eval()
    ids, keep = torch.arange(22).view(2, 11) + 5, torch.arange(11) < torch.tensor([[11], [7]])
    assert torch.equal(model(ids, attention_mask=keep.long()), model(ids, attention_mask=keep))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_acts_in_training_only(kind: type[Any]) -> None:
    module = head(kind, dropout=0.5)
    assert not torch.equal(module(*batch()), module(*batch()))
    module.eval()
    assert torch.equal(module(*batch()), module(*batch()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns(kind: type[Any]) -> None:
    module = head(kind)
    module(*batch()).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k.model_fields["kind"].default in {"mean", "last", "cnn", "bilstm"}]
)
def test_heads_over_all_tokens_see_the_last_one(kind: type[Any]) -> None:
    module = head(kind).eval()
    hidden, mask = batch()
    changed = hidden.clone()
    changed[0, LENGTHS[0] - 1] += 5
    assert not torch.allclose(module(changed, mask)[0], module(hidden, mask)[0])


def test_the_last_token_is_the_last_real_one() -> None:
    module = head(LastTokenHeadConfig, dropout=0.0)
    hidden, mask = batch()
    last = torch.stack([hidden[row, length - 1] for row, length in enumerate(LENGTHS)])
    torch.testing.assert_close(module(hidden, mask), last @ module.classifier.weight.T)


def test_the_pooled_vector_may_have_a_width_of_its_own() -> None:
    module = head(PooledHeadConfig, pooler_size=7, dropout=0.0)
    assert module.dense.weight.shape == (7, HIDDEN)
    assert module(*batch()).shape == (len(LENGTHS), LABELS)


def test_a_filter_reads_zeros_beyond_the_end() -> None:
    module = head(ConvolutionalHeadConfig, filter_sizes=(5,), dropout=0.0)
    hidden, _ = batch()
    by_hand = torch.nn.functional.pad(hidden[2:3, :2], (0, 0, 0, 8))
    found = module.convolutions[0](by_hand.transpose(1, 2)).relu()[..., :2].amax(dim=2)
    torch.testing.assert_close(module(hidden[2:3, :2], None), module.classifier(found))


def test_the_lstm_gives_the_ends_of_both_directions() -> None:
    module = head(BiLSTMHeadConfig, dropout=0.0)
    hidden, mask = batch()
    outputs, _ = module.lstm(hidden[1:2, : LENGTHS[1]])
    size = module.lstm.hidden_size
    ends = torch.cat([outputs[:, -1, :size], outputs[:, 0, size:]], dim=1)
    torch.testing.assert_close(module(hidden, mask)[1:2], module.classifier(ends))


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "linear", "num_labels": 0},
        {"kind": "linear", "dropout": 1.0},
        {"kind": "cnn", "filter_sizes": []},
        {"kind": "cnn", "filter_sizes": [0]},
        {"kind": "bilstm", "filters": 3},
        {"kind": "attention"},
    ],
)
def test_wrong_configs_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        adapter.validate_python(given)


def test_configs_are_frozen() -> None:
    with pytest.raises(ValidationError):
        LinearHeadConfig(num_labels=3).num_labels = 4


@pytest.mark.parametrize("norm", ["none", "layer_norm"])
def test_the_pooled_head_of_modernbert(norm: str) -> None:
    hidden, mask = batch()
    backbone: Any = SimpleNamespace(hidden_size=HIDDEN, layer_norm_eps=1e-3)
    config = PooledHeadConfig(token="mean", bias=False, norm=norm, norm_bias=False, hidden_act="gelu", dropout=0.0)
    module = config.build(backbone)
    assert module.dense.bias is None
    assert (norm == "layer_norm") == ("norm.weight" in module.state_dict())
    mean = torch.stack([row[keep].mean(0) for row, keep in zip(hidden, mask, strict=True)])
    expected = torch.nn.functional.gelu(mean @ module.dense.weight.T)
    if norm == "layer_norm":
        expected = torch.nn.functional.layer_norm(expected, (HIDDEN,), eps=1e-3)
    torch.testing.assert_close(module.features(hidden.masked_fill(~mask[..., None], torch.nan), mask), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_from_the_hidden_states_that_the_head_reads(kind: type[Any]) -> None:
    backbone = EncoderConfig(vocab_size=31, hidden_size=12, num_attention_heads=2, intermediate_size=17)
    model = ModelConfig(backbone=backbone, head=kind(num_labels=LABELS)).build().eval()
    ids, mask = torch.arange(22).view(2, 11) + 5, torch.arange(11) < torch.tensor([[11], [4]])
    expected = model.head(model.backbone(ids, attention_mask=mask), mask)
    torch.testing.assert_close(model(ids, attention_mask=mask), expected)
