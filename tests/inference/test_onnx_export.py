"""ONNX files: run by onnxruntime at lengths that they were not made with, with padding; what cannot be written."""

from pathlib import Path
from typing import Any

import pytest
import torch

from homespun.errors import UserError
from homespun.inference import onnx_export as exporting
from homespun.inference.onnx_export import export_onnx
from homespun.models.config import ModelConfig
from homespun.models.model import Model

SIZES: dict[str, Any] = {"hidden_size": 33, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 47}
SIZES |= {"vocab_size": 53, "max_position_embeddings": 41, "initializer_range": 0.3}
WINDOW = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 3}]}
GLOBAL = WINDOW | {"global_tokens": {"first": 2, "projections": True}}
REVERSIBLE = {
    "hidden_size": 66,
    "residual": {"kind": "reversible", "streams": "split"},
    "attention": {"kind": "sparse", "patterns": [{"kind": "window", "radius": 2, "dilation": 2}]},
    "positions": {"kind": "sinusoidal"},
}
BIASED: dict[str, Any] = {
    "attention": {"kind": "relative_bias", "num_buckets": 6, "max_distance": 11},
    "positions": {"kind": "none"},
    "residual": {"kind": "pre", "final_dropout": True},
    "norm": "rms_norm",
    "type_vocab_size": 0,
}
SEQ2SEQ = {"kind": "encoder_decoder", "encoder": SIZES | {"type_vocab_size": 0}, "decoder": {"num_hidden_layers": 1}}
T5 = SEQ2SEQ | {"encoder": SIZES | BIASED, "decoder": {"attention": BIASED["attention"]}}
DECODER = ["decoder_input_ids", "decoder_attention_mask"]


def build(backbone: dict[str, Any], head: dict[str, Any] | None) -> tuple[Model, ModelConfig]:
    tree = backbone if "encoder" in backbone else SIZES | backbone
    config = ModelConfig.model_validate({"backbone": tree, "head": head})
    torch.manual_seed(7)
    return config.build().eval(), config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "head", "inputs"),
    [
        ({}, {"kind": "pooled", "num_labels": 5}, ["token_type_ids"]),
        ({"causal": True, "residual": {"kind": "pre"}, "type_vocab_size": 0}, {"kind": "causal_lm"}, []),
        ({"attention": GLOBAL, "type_vocab_size": 0}, None, []),
        (REVERSIBLE | {"type_vocab_size": 0}, {"kind": "masked_lm"}, []),
        ({"attention": {"kind": "linformer", "k": 7}, "type_vocab_size": 0}, None, []),
        ({"num_hidden_layers": 1, "type_vocab_size": 0}, {"kind": "chunk_pool"}, []),
        (SEQ2SEQ, {"kind": "causal_lm"}, DECODER),
        (T5, {"kind": "causal_lm"}, DECODER),
    ],
    ids=["bert", "gpt", "global", "reversible", "linformer", "chunks", "seq2seq", "t5"],
)
def test_any_batch_of_any_length(backbone: Any, head: Any, inputs: list[str], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, config = build(backbone, head)
    before = str(model)
    report = export_onnx(tmp_path / "model.onnx", model, config)
    assert str(model) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert list(report.inputs) == ["input_ids", "attention_mask", *inputs]
    assert report.output == ("last_hidden_state" if head is None else "logits")
    assert report.length is None
    assert [check["shape"] for check in report.checked] == [[2, 23], [2, 11], [1, 41]]
    # by hand, at a size of none of these
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    keep = torch.arange(29)[None] < torch.tensor([29, 13, 3])[:, None]
    given = {"input_ids": torch.randint(53, keep.shape), "attention_mask": keep.long()}
    if "token_type_ids" in inputs:
        given["token_type_ids"] = torch.randint(2, keep.shape)
    if "decoder_input_ids" in inputs:
        keep = torch.arange(17)[None] < torch.tensor([5, 17, 11])[:, None]
        given |= {"decoder_input_ids": torch.randint(53, keep.shape), "decoder_attention_mask": keep.long()}
    found = torch.from_numpy(session.run([report.output], {name: tensor.numpy() for name, tensor in given.items()})[0])
    with torch.no_grad():
        expected = model(**given)
    real = keep if expected.shape[:2] == keep.shape else slice(None)
    torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_performer_has_one_length(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model, config = build({"attention": {"kind": "performer", "num_features": 7}, "num_hidden_layers": 1}, None)
    report = export_onnx(tmp_path / "model.onnx", model, config)
    assert report.length == 41
    assert [check["shape"] for check in report.checked] == [[2, 41], [2, 41], [1, 41]]
    assert "padded to 41 tokens: performer attention" in report.notes[0]


RECURRENT = {"kind": "recurrent", "vocab_size": 37, "hidden_size": 10, "num_hidden_layers": 1, "bidirectional": True}


@pytest.mark.parametrize("kind", ["lsh attention", "local attention", "recurrent network"])
def test_what_cannot_be_written_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    backbone = SIZES | {"attention": {"kind": kind.split()[0], "chunk_length": 4}}
    config = ModelConfig.model_validate({"backbone": RECURRENT if kind == "recurrent network" else backbone})
    with pytest.raises(UserError, match=f"{kind} .*ONNX"):
        export_onnx(tmp_path / "model.onnx", config.build().eval(), config)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_file_that_gives_other_results_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    model, config = build({"num_hidden_layers": 1}, None)
    other, _ = build({"num_hidden_layers": 1}, None)
    with torch.no_grad():
        other.backbone.embeddings.norm.bias.add_(0.01)
    monkeypatch.setattr(exporting, "_exportable_copy", lambda model: other)
    with pytest.raises(RuntimeError, match="differ by"):
        export_onnx(tmp_path / "model.onnx", model, config)
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_and_another_suffix_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = build({}, None)
    with pytest.raises(UserError, match=r"\.onnx, .*'model\.bin'"):
        export_onnx(tmp_path / "model.bin", model, config)
    monkeypatch.setattr(exporting, "_EXTRA", ("onnx_of_tomorrow",))
    with pytest.raises(UserError, match=r"onnx_of_tomorrow.*'homespun\[export\]'"):
        export_onnx(tmp_path / "model.onnx", model, config)
