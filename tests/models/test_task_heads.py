"""Invariants of the heads of tasks over texts and over tokens, for every member of both unions."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.heads import (
    FeedForwardAnsweringHeadConfig,
    PoolerHeadConfig,
    QuestionAnsweringHeadConfig,
    TokenClassificationHeadConfig,
    TokenTaskHeadConfig,
)
from homespun.models.sequence_heads import (
    BiLSTMHeadConfig,
    ConvolutionalHeadConfig,
    LastTokenHeadConfig,
    PooledHeadConfig,
    SequenceHeadConfig,
)

HIDDEN, LABELS, LENGTHS, SEQ = 13, 3, [11, 7, 2, 1], 11
BACKBONE: Any = SimpleNamespace(hidden_size=HIDDEN, layer_norm_eps=1e-3)
OVER_TEXTS = get_args(get_args(SequenceHeadConfig)[0])
SHAPES: dict[type[Any], tuple[int, ...]] = dict.fromkeys(OVER_TEXTS, (4, LABELS)) | {
    TokenClassificationHeadConfig: (4, SEQ, LABELS),
    QuestionAnsweringHeadConfig: (4, SEQ, 2),
    FeedForwardAnsweringHeadConfig: (4, SEQ, 2),
    PoolerHeadConfig: (4, HIDDEN),
}
adapter: TypeAdapter[Any] = TypeAdapter(SequenceHeadConfig | TokenTaskHeadConfig)


def name_of(kind: type[Any]) -> str:
    return kind.model_fields["kind"].default


every_kind = pytest.mark.parametrize("kind", SHAPES, ids=name_of)
every_kind_over_texts = pytest.mark.parametrize("kind", OVER_TEXTS, ids=name_of)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    hidden = torch.randn(len(LENGTHS), SEQ, HIDDEN, generator=torch.Generator().manual_seed(5))
    return hidden, torch.arange(SEQ)[None] < torch.tensor(LENGTHS)[:, None]


def config_of(kind: type[Any], **fields: Any) -> Any:
    labels = {"num_labels": LABELS} if "num_labels" in kind.model_fields else {}
    return kind(**labels, **fields)


def head(kind: type[Any], **fields: Any) -> torch.nn.Module:
    torch.manual_seed(2)
    return config_of(kind, **fields).build(BACKBONE)


def test_every_kind_has_a_shape() -> None:
    assert {*OVER_TEXTS, *get_args(get_args(TokenTaskHeadConfig)[0])} == set(SHAPES)


@every_kind
def test_shape_and_round_trip(kind: type[Any]) -> None:
    assert adapter.validate_python(config_of(kind).model_dump(mode="json")) == config_of(kind)
    assert head(kind)(*batch()).shape == SHAPES[kind]


@every_kind
def test_padding_does_not_leak(kind: type[Any]) -> None:
    module = head(kind).eval()
    hidden, mask = batch()
    expected = module(hidden, mask)
    real = mask if expected.dim() == 3 else slice(None)
    for garbage in (1e4, float("nan")):
        dirty = module(hidden.masked_fill(~mask[..., None], garbage), mask)
        torch.testing.assert_close(dirty[real], expected[real], atol=0, rtol=0)


@every_kind
def test_a_batch_equals_single_texts(kind: type[Any]) -> None:
    module = head(kind).eval()
    hidden, mask = batch()
    together = module(hidden, mask)
    for row, length in enumerate(LENGTHS):
        alone = module(hidden[row : row + 1, :length], None)[0]
        expected = together[row, :length] if together.dim() == 3 else together[row]
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=1e-5)


@every_kind_over_texts
def test_a_fully_masked_row_gives_no_nan(kind: type[Any]) -> None:
    hidden, mask = batch()
    hidden.requires_grad_()
    mask[1] = False
    logits = head(kind)(hidden, mask)
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert hidden.grad.isfinite().all()


@pytest.mark.parametrize("kind", [kind for kind in SHAPES if "dropout" in kind.model_fields], ids=name_of)
def test_dropout_acts_in_training_only(kind: type[Any]) -> None:
    module = head(kind, dropout=0.5)
    assert not torch.equal(module(*batch()), module(*batch()))
    module.eval()
    assert torch.equal(module(*batch()), module(*batch()))


@every_kind
def test_every_parameter_learns(kind: type[Any]) -> None:
    module = head(kind)
    module(*batch()).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@every_kind
def test_a_model_gives_its_head_the_hidden_states_that_it_reads(kind: type[Any]) -> None:
    backbone = EncoderConfig(vocab_size=31, hidden_size=12, num_attention_heads=2, intermediate_size=17)
    model = ModelConfig(backbone=backbone, head=config_of(kind)).build().eval()
    ids, mask = torch.arange(22).view(2, 11) + 5, torch.arange(11) < torch.tensor([[11], [4]])
    expected = model.head(model.backbone(ids, attention_mask=mask), mask)
    torch.testing.assert_close(model(ids, attention_mask=mask), expected)
    assert torch.equal(model(ids, attention_mask=mask.long()), model(ids, attention_mask=mask))


@pytest.mark.parametrize(
    "kind", [kind for kind in OVER_TEXTS if name_of(kind) in {"mean", "last", "cnn", "bilstm"}], ids=name_of
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


def test_the_pooled_vector_may_have_another_width() -> None:
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


def test_the_feed_forward_of_bigbird_is_a_normalised_sublayer() -> None:
    module = head(FeedForwardAnsweringHeadConfig, intermediate_size=17, hidden_act="relu").eval()
    hidden, _ = batch()
    inner = module.feedforward.sublayer[1]
    made = hidden + inner.outer(inner.inner(hidden).relu())
    normed = torch.nn.functional.layer_norm(made, (HIDDEN,), eps=1e-3)
    torch.testing.assert_close(module(hidden), module.classifier(normed))


@pytest.mark.parametrize("norm", ["none", "layer_norm"])
def test_the_pooled_head_of_modernbert(norm: str) -> None:
    hidden, mask = batch()
    module = head(
        PooledHeadConfig, token="mean", bias=False, norm=norm, norm_bias=False, hidden_act="gelu", dropout=0.0
    )
    assert module.dense.bias is None
    assert (norm == "layer_norm") == ("norm.weight" in module.state_dict())
    mean = torch.stack([row[keep].mean(0) for row, keep in zip(hidden, mask, strict=True)])
    expected = torch.nn.functional.gelu(mean @ module.dense.weight.T)
    if norm == "layer_norm":
        expected = torch.nn.functional.layer_norm(expected, (HIDDEN,), eps=1e-3)
    torch.testing.assert_close(module.features(hidden.masked_fill(~mask[..., None], torch.nan), mask), expected)


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "linear", "num_labels": 0},
        {"kind": "linear", "dropout": 1.0},
        {"kind": "cnn", "filter_sizes": []},
        {"kind": "cnn", "filter_sizes": [0]},
        {"kind": "bilstm", "filters": 3},
        {"kind": "token_classification", "num_labels": 0},
        {"kind": "question_answering", "num_labels": 2},
        {"kind": "question_answering_ffn", "intermediate_size": 0},
        {"kind": "pooler", "dropout": 0.1},
        {"kind": "attention"},
    ],
)
def test_wrong_configs_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        adapter.validate_python(given)
