"""`homespun convert`: round trips, checks, refusals; no half-written or overwritten folder."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands_world import run
from safetensors.torch import load_file, save_file

from homespun.text.tokenizer import Tokenizer

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
from homespun.models.bundle import ModelBundle, save_model, weights_of
from homespun.models.config import ModelConfig

TOKENIZER = bert_tokenizer()
SEQ2SEQ = {
    "backbone": {
        "kind": "encoder_decoder",
        "encoder": {**SIZES, "num_hidden_layers": 2, "type_vocab_size": 0},
        "decoder": {"num_hidden_layers": 1, "intermediate_size": 53},
    },
    "head": {"kind": "causal_lm"},
}


def bert(folder: Path, head: Any = None, *, half: bool = False) -> Path:
    """A Hugging Face folder of a checkpoint as they are: with a pooler that nobody asked for, and a tied copy."""
    config = ModelConfig.model_validate({"backbone": SIZES, "head": head or {"kind": "masked_lm"}})
    torch.manual_seed(13)
    export_huggingface(folder, ModelBundle(config.build(), config, TOKENIZER))
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.pooler.dense.weight"] = torch.randn(33, 33)
    tensors["bert.pooler.dense.bias"] = torch.randn(33)
    dtype = torch.float16 if half else torch.float32
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def saved(folder: Path, backbone: dict[str, Any], head: dict[str, Any] | None, **options: Any) -> Path:
    config = ModelConfig.model_validate({"backbone": backbone, "head": head})
    torch.manual_seed(17)
    save_model(folder, config.build(), config, TOKENIZER, **options)
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
    model = saved(tmp_path / "model", SIZES | {"attention": attention}, {"kind": "masked_lm"})
    output = convert(model, tmp_path / "hf", to="hf")
    assert output["new"].keys() == {"bert.pooler.weight", "bert.pooler.bias"}
    assert output["dropped"] == {}
    assert any("random blocks" in note for note in output["notes"])


def test_a_head_that_transformers_lacks_is_kept_for_a_class_of_homespun(tmp_path: Path) -> None:
    head, labels = {"kind": "cnn", "num_labels": 3}, Labels(("a", "b", "c"))
    output = convert(saved(tmp_path / "model", SIZES, head, labels=labels), tmp_path / "hf", to="hf")
    assert output["architecture"]["to"] == "HomespunForSequenceClassification"
    assert (output["dropped"], output["new"]) == ({}, {})
    assert output["check"]["compared"] == "logits"
    assert open_model(tmp_path / "hf").labels == labels
    assert any("head 'cnn'" in note for note in output["notes"])
    assert "head 'cnn'" in (tmp_path / "hf" / "README.md").read_text()


def test_labels_and_task_travel(tmp_path: Path) -> None:
    labels, task = Labels(("a", "b", "c")), {"max_length": 19, "text": "story", "label": "topic"}
    saved(tmp_path / "run" / "model", SIZES, {"kind": "pooled", "num_labels": 3}, labels=labels, task=task)
    convert(tmp_path / "run", tmp_path / "copy")
    stored = open_model(tmp_path / "copy")
    assert (stored.labels, stored.task) == (labels, task)
    convert(tmp_path / "run", tmp_path / "hf", to="hf")
    assert open_model(tmp_path / "hf").labels == labels


def test_an_encoder_with_a_decoder(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", **SEQ2SEQ)
    assert convert(model, tmp_path / "copy")["check"]["largest_difference"] == 0.0
    assert convert(model, tmp_path / "bare", head=None)["check"]["compared"] == "hidden states"


def test_a_head_is_opened_by_its_kind(tmp_path: Path) -> None:
    source = bert(tmp_path / "hf")
    output = run("convert", source, "--out", tmp_path / "bare", "--head", "none")
    assert output["architecture"]["from"] == "BertModel"
    assert open_model(tmp_path / "bare").config.head is None


def test_a_head_of_another_purpose_is_left_out(tmp_path: Path) -> None:
    backbone = {"kind": "recurrent", "vocab_size": TOKENIZER.vocab_size, "hidden_size": 8, "num_hidden_layers": 1}
    config = ModelConfig.model_validate({"backbone": backbone, "head": {"kind": "discriminator"}})
    report = export_run(tmp_path, ModelBundle(config.build(), config, TOKENIZER))
    assert report["architecture"] == "HomespunModel"
    assert any("'discriminator'" in note for note in report["notes"])
    assert open_model(tmp_path / "hf").config.head is None


def test_a_model_of_no_family_is_written_for_a_class_of_homespun(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", SIZES | {"attention": {"kind": "performer", "num_features": 7}}, None)
    assert convert(model, tmp_path / "hf", to="hf")["architecture"]["to"] == "HomespunModel"
    stored = open_model(model)
    report = export_run(tmp_path / "run", stored)
    assert "performer" in report["notes"][0]
    assert "register_auto_classes" in report["notes"][1]
    assert "--to onnx" in report["notes"][-1]


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    source, other = bert(tmp_path / "hf"), bert(tmp_path / "other")
    before = (source / "model.safetensors").read_bytes()
    (tmp_path / "file").write_text("dear")
    for out, to, message in (
        (source, "hf", "model itself"),
        (tmp_path, "homespun", "model itself"),
        (tmp_path / "." / "hf", "homespun", "model itself"),
        (other, "homespun", "holds other things"),
        (tmp_path / "file", "homespun", "file is a file"),
        (tmp_path / "x", "onnx", "--to .*'onnx'"),
    ):
        with pytest.raises(UserError, match=message):
            convert(source, out, to=to)
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


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("head", [None, "masked_lm", "pooled", "token_classification", "question_answering", "led"])
def test_global_tokens_are_given_to_both(first: int, head: Any, tmp_path: Path) -> None:
    window, everywhere = {"kind": "window", "radius": 3}, {"first": first, "projections": True}
    backbone = SIZES | {"attention": {"kind": "sparse", "patterns": [window], "global_tokens": everywhere}}
    tree: dict[str, Any] = {"backbone": backbone, "head": None if head is None else {"kind": head}}
    if head == "led":
        encoder = backbone | {"type_vocab_size": 0, "layer_norm_eps": 1e-5}
        tree = SEQ2SEQ | {"backbone": SEQ2SEQ["backbone"] | {"encoder": encoder}}
    output = convert(saved(tmp_path / "model", **tree), tmp_path / "hf", to="hf")
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
    source = bert(tmp_path / "hf", half=True)
    for out, to in (("ours", "homespun"), ("theirs", "hf")):
        output = convert(source, tmp_path / out, to=to)
        assert any("float16" in note and "float32" in note for note in output["notes"])


def test_half_precision_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = bert(tmp_path / "hf", half=True)
    open_start(str(source), TOKENIZER, corpus="none")
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{source}: weights are float16")


def test_the_printed_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = bert(tmp_path / "hf")
    app(["convert", str(source), "--out", str(tmp_path / "ours")], standalone_mode=False)
    printed = capsys.readouterr().out
    for words in ("{0-2}", "Dropped", "pooler", "checked", "parameters"):
        assert words in printed


TEXTS = [f"the {word} fox number {number} jumps over a dog" for number, word in enumerate(["quick", "lazy", "red"] * 7)]


def vocabulary(**settings: Any) -> bytes:
    sentencepiece = pytest.importorskip("sentencepiece")
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=stream, vocab_size=41, minloglevel=3, num_threads=1, **settings
    )
    return stream.getvalue()


def deberta(folder: Path) -> None:
    """As microsoft/deberta-v3-small: spm.model, its [MASK] nowhere but in the program."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 47, "hidden_size": 22, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 13, "max_position_embeddings": 37, "type_vocab_size": 0}
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
    config = transformers.DebertaV2Config(**sizes, **relative)
    transformers.DebertaV2Model(config).save_pretrained(folder)
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    (folder / "spm.model").write_bytes(vocabulary(pad_id=0, bos_id=1, eos_id=2, unk_id=3, **names))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "vocab_type": "spm"}))


def t5(folder: Path) -> None:
    """As google-t5/t5-small: spiece.model, and 100 sentinels that only the program knows of."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(vocab_size=149, d_model=22, d_kv=5, d_ff=13, num_layers=2, num_heads=2)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    (folder / "spiece.model").write_bytes(vocabulary(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))


@pytest.mark.parametrize(
    ("make", "template", "size"), [(deberta, ([1], [2]), 42), (t5, ([], [1]), 141)], ids=["deberta-v3", "t5"]
)
def test_a_folder_with_pieces_is_converted_and_has_a_tokenizer_json(
    make: Any, template: Any, size: int, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    make(tmp_path / "released")
    output = run("convert", tmp_path / "released", "--out", tmp_path / "ours")
    assert output["check"]["largest_difference"] == 0.0
    (made,) = (tmp_path / "ours").rglob("tokenizer.json")
    ours = open_model(tmp_path / "ours").tokenizer
    copies = [Tokenizer.load(folder).fingerprint for folder in (made.parent, tmp_path / "released")]
    assert copies == [ours.fingerprint] * 2
    assert (ours.template, ours.vocab_size) == (template, size)

    run("convert", tmp_path / "ours", "--to", "hf", "--out", tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for text in ["the lazy fox", "Ａ red\tfox\n"]:
        ids = [int(i) for i in ours.encode_batch([text])[0]]
        assert again(text)["input_ids"] == [*template[0], *ids, *template[1]]
        assert again.decode(ids, skip_special_tokens=True) == ours.decode(ids)
