"""`homespun convert`: round trips, checks, refusals; no half-written or overwritten folder."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands_world import run
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "hf"))

from hf_peers import SIZES, bert_tokenizer, inputs

from homespun.cli import app
from homespun.commands import convert as job
from homespun.commands.adaptation import open_start
from homespun.commands.convert import compare, convert
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf.export import export_huggingface, export_run
from homespun.hf.open import open_any, open_model
from homespun.models.bundle import save_model, weights_of
from homespun.models.config import ModelConfig
from homespun.report.transfer import by_layers

TOKENIZER = bert_tokenizer()
SEQ2SEQ = {
    "backbone": {
        "kind": "encoder_decoder",
        "encoder": {**SIZES, "num_hidden_layers": 2, "type_vocab_size": 0},
        "decoder": {"num_hidden_layers": 1, "intermediate_size": 53},
    },
    "head": {"kind": "causal_lm"},
}


def bert(folder: Path, head: Any = None) -> Path:
    """A Hugging Face folder of a checkpoint as they are: with a pooler that nobody asked for, and a tied copy."""
    config = ModelConfig.model_validate({"backbone": SIZES, "head": head or {"kind": "masked_lm"}})
    torch.manual_seed(13)
    export_huggingface(folder, config.build(), config, TOKENIZER)
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.pooler.dense.weight"] = torch.randn(33, 33)
    tensors["bert.pooler.dense.bias"] = torch.randn(33)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_round_trip_reports_every_tensor(tmp_path: Path) -> None:
    source = bert(tmp_path / "hf")
    output = run("convert", source, "--out", tmp_path / "ours")
    assert output == json.loads((tmp_path / "ours" / "conversion.json").read_text())
    names = load_file(source / "model.safetensors").keys()
    assert output["mapped"].keys() | output["dropped"].keys() == names
    assert not output["mapped"].keys() & output["dropped"].keys()
    assert output["dropped"].keys() == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert output["new"] == {}
    model = open_model(tmp_path / "ours").model
    assert sorted(ours for many in output["mapped"].values() for ours in many) == sorted(weights_of(model))
    assert output["check"] == {"compared": "logits", "lengths": [23, 17], "largest_difference": 0.0}
    assert output["parameters"] == sum(p.numel() for p in model.parameters())

    back = run("convert", tmp_path / "ours", "--to", "hf", "--out", tmp_path / "again")
    assert back["architecture"] == {"from": None, "to": "BertForMaskedLM"}
    first, second = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "again"))
    assert second.keys() == names - output["dropped"].keys()
    for name, tensor in second.items():
        torch.testing.assert_close(tensor, first[name], atol=0, rtol=0)
    for folder in (tmp_path / "ours", tmp_path / "again"):
        with torch.no_grad():
            found, expected = (open_model(path).model(**inputs(pad_id=0)) for path in (folder, source))
        torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_what_transformers_must_have_is_new(tmp_path: Path) -> None:
    patterns = [{"kind": "blocks", "size": 5}, {"kind": "random_blocks", "size": 5, "count": 2}]
    attention = {"kind": "sparse", "patterns": patterns, "global_tokens": {"first": 0, "block": 5}}
    config = ModelConfig.model_validate({"backbone": SIZES | {"attention": attention}, "head": {"kind": "masked_lm"}})
    save_model(tmp_path / "model", config.build(), config, TOKENIZER)
    output = convert(tmp_path / "model", tmp_path / "hf", to="hf")
    assert output["new"].keys() == {"bert.pooler.weight", "bert.pooler.bias"}
    assert all("constant" in why for why in output["new"].values())
    assert output["dropped"] == {}
    assert any("random blocks" in note for note in output["notes"])


def test_a_head_that_no_class_has_is_left_out(tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"backbone": SIZES, "head": {"kind": "cnn", "num_labels": 3}})
    save_model(tmp_path / "model", config.build(), config, TOKENIZER, labels=Labels(("a", "b", "c")))
    output = convert(tmp_path / "model", tmp_path / "hf", to="hf")
    assert output["architecture"]["to"] == "BertModel"
    assert all(name.startswith("head.") for name in output["dropped"])
    assert output["dropped"]
    assert output["new"] == {}
    assert output["check"]["compared"] == "hidden states"
    assert any("head 'cnn'" in note for note in output["notes"])
    assert "head 'cnn'" in (tmp_path / "hf" / "README.md").read_text()


def test_labels_and_task_travel(tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"backbone": SIZES, "head": {"kind": "pooled", "num_labels": 3}})
    labels, task = Labels(("a", "b", "c")), {"max_length": 19, "text": "story", "label": "topic"}
    save_model(tmp_path / "run" / "model", config.build(), config, TOKENIZER, labels=labels, task=task)
    convert(tmp_path / "run", tmp_path / "copy")
    stored = open_model(tmp_path / "copy")
    assert (stored.labels, stored.task) == (labels, task)
    convert(tmp_path / "run", tmp_path / "hf", to="hf")
    assert open_model(tmp_path / "hf").labels == labels


def test_an_encoder_with_a_decoder(tmp_path: Path) -> None:
    config = ModelConfig.model_validate(SEQ2SEQ)
    save_model(tmp_path / "model", config.build(), config, TOKENIZER)
    output = convert(tmp_path / "model", tmp_path / "copy")
    assert output["check"]["largest_difference"] == 0.0
    bare = convert(tmp_path / "model", tmp_path / "bare", head=None)
    assert bare["check"]["compared"] == "hidden states"


def test_a_head_is_opened_by_its_kind(tmp_path: Path) -> None:
    source = bert(tmp_path / "hf")
    output = run("convert", source, "--out", tmp_path / "bare", "--head", "none")
    assert output["architecture"]["from"] == "BertModel"
    assert open_model(tmp_path / "bare").config.head is None


def test_what_no_program_can_hold_is_offered_nothing(tmp_path: Path) -> None:
    backbone = {"kind": "recurrent", "vocab_size": TOKENIZER.vocab_size, "hidden_size": 8, "num_hidden_layers": 1}
    config = ModelConfig.model_validate({"backbone": backbone, "head": {"kind": "mean", "num_labels": 2}})
    report = export_run(tmp_path, config.build(), config, TOKENIZER)
    assert report["folder"] is None
    assert len(report["notes"]) == 1
    config = ModelConfig.model_validate({"backbone": SIZES | {"attention": {"kind": "performer", "num_features": 7}}})
    assert "--to onnx" in export_run(tmp_path, config.build(), config, TOKENIZER)["notes"][-1]
    assert not list(tmp_path.iterdir())


def test_what_no_family_has_is_one_line_that_offers_onnx(tmp_path: Path) -> None:
    sizes = SIZES | {"attention": {"kind": "performer", "num_features": 7}}
    config = ModelConfig.model_validate({"backbone": sizes, "head": {"kind": "masked_lm"}})
    save_model(tmp_path / "model", config.build(), config, TOKENIZER)
    with pytest.raises(UserError, match="--to onnx"):
        convert(tmp_path / "model", tmp_path / "hf", to="hf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    source = bert(tmp_path / "hf")
    before = (source / "model.safetensors").read_bytes()
    for out, to in ((source, "hf"), (tmp_path, "homespun"), (source.parent / "." / "hf", "homespun")):
        with pytest.raises(UserError, match="model itself"):
            convert(source, out, to=to)
    other = bert(tmp_path / "other")
    with pytest.raises(UserError, match="holds other things"):
        convert(source, other)
    (tmp_path / "file").write_text("dear")
    with pytest.raises(UserError, match="file is a file"):
        convert(source, tmp_path / "file")
    with pytest.raises(UserError, match=r"--to .*'onnx'"):
        app(["convert", str(source), "--out", str(tmp_path / "x"), "--to", "onnx"], standalone_mode=False)
    assert (source / "model.safetensors").read_bytes() == before
    (tmp_path / "empty").mkdir()
    for _ in range(2):  # into an empty folder, and over its own work
        convert(source, tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "hf", "other"]


@pytest.mark.parametrize(("to", "mark"), [("hf", "config.json"), ("homespun", "homespun.json")])
def test_a_folder_with_something_of_ours_in_it_keeps_what_is_not(to: Any, mark: str, tmp_path: Path) -> None:
    source = bert(tmp_path / "hf")
    convert(source, tmp_path / "model", to=to)
    convert(source, tmp_path / "model", to=to)
    (tmp_path / "model" / "notes").mkdir()
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "project" / mark).write_text("{}")
    (tmp_path / "project" / "src" / "main.py").write_text("dear")
    for name, foreign in (("model", "notes"), ("project", "src")):
        with pytest.raises(UserError, match=f"{name} .*{foreign}"):
            convert(source, tmp_path / name, to=to)
    assert (tmp_path / "project" / "src" / "main.py").read_text() == "dear"


def windows(first: int) -> dict[str, Any]:
    everywhere = {"first": first, "projections": True}
    return {"attention": {"kind": "sparse", "patterns": [{"kind": "window", "radius": 3}], "global_tokens": everywhere}}


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("head", [None, "masked_lm", "pooled", "token_classification", "question_answering", "led"])
def test_global_tokens_are_given_to_both(first: int, head: Any, tmp_path: Path) -> None:
    tree: dict[str, Any] = {"backbone": SIZES | windows(first), "head": None if head is None else {"kind": head}}
    if head == "led":
        encoder = tree["backbone"] | {"type_vocab_size": 0, "layer_norm_eps": 1e-5}
        tree = SEQ2SEQ | {"backbone": SEQ2SEQ["backbone"] | {"encoder": encoder}}
    config = ModelConfig.model_validate(tree)
    torch.manual_seed(17)
    save_model(tmp_path / "model", config.build(), config, TOKENIZER)
    output = convert(tmp_path / "model", tmp_path / "hf", to="hf")
    assert output["architecture"]["to"].startswith("LED" if head == "led" else "Longformer")
    assert output["check"]["largest_difference"] == 0.0
    notes = [note for note in output["notes"] if "makes none" in note or "makes the first" in note]
    assert len(notes) == (head != "question_answering" and first != (head == "pooled"))


def test_a_model_that_comes_back_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = bert(tmp_path / "hf")

    def spoil(folder: Path, **given: Any) -> Any:
        opened = open_any(folder, **given)
        if folder != source:
            with torch.no_grad():
                opened.stored.model.backbone.embeddings.words.weight.add_(0.01 * torch.randn(97, 33))
        return opened

    monkeypatch.setattr(job, "open_any", spoil)
    with pytest.raises(RuntimeError, match="differ by"):
        convert(source, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_nan_is_not_the_same_model(tmp_path: Path) -> None:
    source = bert(tmp_path / "hf")
    stored = open_model(source)
    with torch.no_grad():
        stored.model.backbone.layers[1].feedforward.sublayer.inner.bias[7] = float("nan")
    with pytest.raises(UserError, match=r"^backbone\.layers\.1\.feedforward\.sublayer\.inner\.bias "):
        compare(stored, stored)
    tensors = load_file(source / "model.safetensors")
    tensors["bert.encoder.layer.1.intermediate.dense.bias"][7] = float("inf")
    save_file(tensors, source / "model.safetensors")
    with pytest.raises(UserError, match=r"^bert\.encoder\.layer\.1\.intermediate\.dense\.bias "):
        convert(source, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_weights_too_large_to_be_compared(tmp_path: Path) -> None:
    stored = open_model(bert(tmp_path / "hf"))
    with torch.no_grad():
        stored.model.backbone.layers[2].feedforward.norm.weight.fill_(3e38)
    with pytest.raises(UserError, match=r"logits .*NaN"):
        compare(stored, stored)


@pytest.mark.parametrize("path", ["file/ours", "file/deeper/ours", "/proc/ours", "/proc/deeper/ours"])
def test_folder_that_cannot_be_made(path: str, tmp_path: Path) -> None:
    source = bert(tmp_path / "hf")
    (tmp_path / "file").write_text("dear")
    with pytest.raises(UserError, match=r"ours .+folder$") as caught:
        convert(source, tmp_path / path)
    assert "\n" not in str(caught.value)


def test_half_precision_is_noted_in_the_report(tmp_path: Path) -> None:
    source = bert(tmp_path / "hf")
    half = {name: tensor.half() for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(half, source / "model.safetensors")
    for out, to in (("ours", "homespun"), ("theirs", "hf")):
        output = convert(source, tmp_path / out, to=to)
        assert any("float16" in note and "float32" in note for note in output["notes"])


def test_half_precision_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = bert(tmp_path / "hf")
    half = {name: tensor.half() for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(half, source / "model.safetensors")
    open_start(str(source), TOKENIZER, corpus="none")
    assert [record.getMessage().partition(" in the")[0] for record in caplog.records] == [
        f"{source}: weights are float16"
    ]


def test_the_printed_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = bert(tmp_path / "hf")
    app(["convert", str(source), "--out", str(tmp_path / "ours")], standalone_mode=False)
    printed = capsys.readouterr().out
    for words in ("{0-2}", "Dropped", "pooler", "checked", "parameters"):
        assert words in printed


def test_rows_of_names_by_layers() -> None:
    rows = [("h.0.x", "layers.0.x", "layers.0.y"), ("h.1.x", "layers.2.x", "layers.2.y"), ("a2.w", "b")]
    assert by_layers(rows) == [(("h.{0-1}.x", "layers.{0-2}.x", "layers.{0-2}.y"), 2), (("a2.w", "b"), 1)]
