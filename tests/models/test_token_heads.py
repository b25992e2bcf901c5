"""Invariants of the token heads, for every member of the union."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file, save_file

from homespun.models.config import ModelConfig
from homespun.models.heads import (
    FeedForwardAnsweringHeadConfig,
    PoolerHeadConfig,
    QuestionAnsweringHeadConfig,
    TokenClassificationHeadConfig,
    TokenTaskHeadConfig,
)

HIDDEN, LABELS, BATCH, SEQ = 13, 3, 5, 11
BACKBONE: Any = SimpleNamespace(hidden_size=HIDDEN, layer_norm_eps=1e-5)
KINDS = get_args(get_args(TokenTaskHeadConfig)[0])
SHAPES = {
    TokenClassificationHeadConfig: (BATCH, SEQ, LABELS),
    QuestionAnsweringHeadConfig: (BATCH, SEQ, 2),
    FeedForwardAnsweringHeadConfig: (BATCH, SEQ, 2),
    PoolerHeadConfig: (BATCH, HIDDEN),
}
adapter: TypeAdapter[Any] = TypeAdapter(TokenTaskHeadConfig)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.model_fields["kind"].default)


def config(kind: type[Any], **fields: Any) -> Any:
    counted = {"num_labels": LABELS} if "num_labels" in kind.model_fields else {}
    return kind(**counted, **fields)


def head(kind: type[Any], **fields: Any) -> torch.nn.Module:
    torch.manual_seed(2)
    return config(kind, **fields).build(BACKBONE)


def hidden() -> torch.Tensor:
    return torch.randn(BATCH, SEQ, HIDDEN, generator=torch.Generator().manual_seed(5))


def test_every_kind_has_a_shape() -> None:
    assert set(SHAPES) == set(KINDS)


@every_kind
def test_shape_and_round_trip(kind: type[Any]) -> None:
    assert adapter.validate_python(config(kind).model_dump(mode="json")) == config(kind)
    assert head(kind)(hidden(), None).shape == SHAPES[kind]


@every_kind
def test_other_tokens_do_not_matter(kind: type[Any]) -> None:
    module, keep = head(kind).eval(), torch.arange(SEQ) < torch.tensor([SEQ, 7, 3, 2, 1])[:, None]
    found = module(hidden(), keep)
    dirty = module(hidden().masked_fill(~keep[..., None], float("nan")), keep)
    real = keep if found.dim() == 3 else slice(None)
    torch.testing.assert_close(dirty[real], found[real], rtol=0, atol=0)


@every_kind
def test_every_parameter_learns(kind: type[Any]) -> None:
    module = head(kind)
    module(hidden()).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "dropout" in kind.model_fields])
def test_dropout_acts_in_training_only(kind: type[Any]) -> None:
    module = head(kind, dropout=0.5)
    assert not torch.equal(module(hidden()), module(hidden()))
    module.eval()
    assert torch.equal(module(hidden()), module(hidden()))


@every_kind
def test_save_and_load_restore_the_bits(kind: type[Any], tmp_path: Path) -> None:
    backbone = {"vocab_size": 53, "hidden_size": 14, "num_attention_heads": 7, "num_hidden_layers": 1}
    complete = ModelConfig.model_validate({"backbone": backbone, "head": config(kind).model_dump()})
    saved, loaded = complete.build().eval(), complete.build().eval()
    ids = torch.randint(5, 53, (2, SEQ), generator=torch.Generator().manual_seed(3))
    assert not torch.equal(saved(ids), loaded(ids))
    save_file(saved.state_dict(), tmp_path / "model.safetensors")
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(saved(ids), loaded(ids))


def test_the_feed_forward_of_bigbird_is_a_normalised_sublayer() -> None:
    module = head(FeedForwardAnsweringHeadConfig, intermediate_size=17, hidden_act="relu").eval()
    inner = module.feedforward.sublayer[1]
    made = hidden() + inner.outer(inner.inner(hidden()).relu())
    normed = torch.nn.functional.layer_norm(made, (HIDDEN,), eps=1e-5)
    torch.testing.assert_close(module(hidden()), module.classifier(normed))


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "token_classification", "num_labels": 0},
        {"kind": "question_answering", "num_labels": 2},
        {"kind": "question_answering_ffn", "intermediate_size": 0},
        {"kind": "pooler", "dropout": 0.1},
        {"kind": "poolers"},
    ],
)
def test_wrong_configs_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        adapter.validate_python(given)
