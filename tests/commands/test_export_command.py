"""`homespun export` into a folder: the files are used as their readers use them, without homespun."""

import base64
import http.server
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from commands_world import WORDS as WORDS_BY_TOPIC
from commands_world import assert_refused, run, write_csv

import homespun
from homespun.commands import export as exporting
from homespun.commands.predict import predict_texts
from homespun.commands.recipe import finetune_recipe
from homespun.config import dump
from homespun.data.labels import Labels
from homespun.hf import upload as uploading
from homespun.linear import PLAIN, Candidate, fit_linear
from homespun.metrics.calibration import DecisionRule
from homespun.models.bundle import save_model
from homespun.models.config import ModelConfig
from homespun.ngrams import CHARACTERS, Ngrams, Texts
from homespun.ngrams import WORDS as WORDS_ONLY
from homespun.tasks.network_text_model import open_network
from homespun.tasks.text_models import AverageTextModel, LinearTextModel, save_text_model
from homespun.tasks.texts import LabelledData, PairsData, TextsData
from homespun.text.tokenizer import Tokenizer

SIZES: dict[str, Any] = {"hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 47, "num_hidden_layers": 1}
SIZES |= {"max_position_embeddings": 41, "initializer_range": 0.3}
LENGTH = 13
WORDS = [word for words in WORDS_BY_TOPIC.values() for word in words]
TEXTS = [
    "goal",
    "",
    "  bank share ",
    "soup [MASK] bread [SEP] salt",
    "match goal team coach",
    " ".join(WORDS * 3),
    "unknown \u00e9\u4e2d words",
]
RULE = {"temperature": 1.7}
SEVERAL = {"temperature": 0.6, "thresholds": [0.2, 0.5, 0.8]}
GPT = {"causal": True, "residual": {"kind": "pre"}, "type_vocab_size": 0}


def classifier(
    folder: Path,
    backbone: Any = None,
    head: str = "pooled",
    multi_label: bool = False,
    kind: Any = "wordpiece",
    **task: Any,
) -> Path:
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 5, kind=kind, vocab_size=67 if kind == "wordpiece" else 290)
    if kind == "bpe":  # as GPT-2: nothing around a text
        tokenizer = Tokenizer(tokenizer.content, {"pad": "[PAD]"})
    vocabulary = {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    tree = {"backbone": SIZES | vocabulary | (backbone or {}), "head": {"kind": head, "num_labels": 3}}
    config = ModelConfig.model_validate(tree)
    torch.manual_seed(5)
    labels = Labels(("food", "money", "sport"), multi_label)
    stored = {"kind": "classification", "data": "texts", "text": "text", "label": "label", "max_length": LENGTH} | task
    save_model(folder / "model", config.build(), config, tokenizer, labels=labels, task=stored)
    return folder


def labelled_run(folder: Path, **settings: Any) -> Path:
    """A classifier with the config of its run, whose validation examples it labels rightly and surely."""
    made = classifier(folder, **settings)
    draw = random.Random(1)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 20))) for _ in range(200)]
    predicted = zip(texts, predict_texts(str(made), texts), strict=True)
    rows = [(text, one["label"]) for text, one in predicted if one["probability"] > 0.7]  # type: ignore[operator]
    files = {name: write_csv(folder / f"{name}.csv", ["text", "label"], rows) for name in ("train", "validation")}
    recipe = finetune_recipe("classify", [f"data.{name}={path}" for name, path in files.items()])
    (folder / "config.yaml").write_text(dump(recipe), encoding="utf-8")
    return made


def count_lines(folder: Path) -> int:
    """Lines of the runner that are not empty."""
    return sum(bool(line) for line in (folder / "predict.py").read_text().splitlines())


def run_alone(folder: Path, texts: list[str], without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Predictions of the runner in a process where homespun, torch, transformers and others cannot be imported."""
    code = (
        "import json, runpy, sys\n"
        f"sys.modules.update(dict.fromkeys({['homespun', 'torch', 'transformers', *without]}))\n"
        "predict = runpy.run_path(sys.argv[1])['predict']\n"
        "print(json.dumps(list(predict(json.loads(sys.argv[2])))))\n"
    )
    words = [sys.executable, "-c", code, str(folder / "predict.py"), json.dumps(texts)]
    found: list[dict[str, Any]] = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    return found


def compare_probabilities(found: list[dict[str, Any]], run: Path, texts: list[str], tolerance: float) -> None:
    for one, expected in zip(found, predict_texts(str(run), texts), strict=True):
        assert one["probabilities"] == pytest.approx(expected["probabilities"], abs=tolerance)


def compare(found: list[dict[str, Any]], run: Path, texts: list[str]) -> None:
    labels = [one["label"] for one in predict_texts(str(run), texts)]
    assert [one["label"] for one in found] == [label if isinstance(label, str) else list(label) for label in labels]
    compare_probabilities(found, run, texts, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"decision": RULE},
        {"multi_label": True, "decision": SEVERAL},
        {"backbone": GPT, "head": "last", "kind": "bpe"},
        {"backbone": {"attention": {"kind": "performer", "num_features": 7}}},
        {"truncation": {"kind": "head_tail", "head": 0.4}},
    ],
    ids=["one-label", "several-labels", "no-special-tokens", "one-length", "head-and-tail"],
)
def test_the_runner_predicts_as_homespun_does(settings: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    made, out = classifier(tmp_path / "run", **settings), tmp_path / "bundle"
    result = run("export", made, "--out", out)
    assert result["output"] == "probabilities"
    assert {path.name for path in out.iterdir()} == {"model.onnx", "tokenizer.json", "labels.json", "predict.py"}
    assert count_lines(out) <= 20
    compare(run_alone(out, TEXTS), made, TEXTS)
    assert run_alone(out, []) == []
    for text in TEXTS[:2]:  # alone: the shortest batches
        compare(run_alone(out, [text]), made, [text])
    lines = subprocess.run([sys.executable, out / "predict.py", "goal"], check=True, capture_output=True).stdout
    assert json.loads(lines)["probabilities"].keys() == {"food", "money", "sport"}


NGRAM_TEXTS = [
    *TEXTS,
    "Goal, goal GOAL; a I x-ray's \u0130stanbul stra\u00dfe \u2003 naive\u0301 42_b",
    "bank\x1cshare\u00a0price\n\tsoup ?!",
]


def linear_model(ngrams: Any, several: bool = False, classes: int = 3) -> LinearTextModel:
    """A linear model of texts of two topics each."""
    draw, names = random.Random(3), sorted(WORDS_BY_TOPIC)[:classes]
    pairs = [tuple(sorted(draw.sample(names, draw.randint(0, 2) if several else 1))) for _ in range(60)]
    texts = [" ".join(draw.choices([w for n in pair for w in WORDS_BY_TOPIC[n]] or ["none"], k=6)) for pair in pairs]
    labels = Labels(tuple(names), several)
    targets = labels.encode(pairs) if several else labels.encode([pair[0] for pair in pairs])
    settings = Candidate(ngrams, 1.0, 0.0)
    found = fit_linear(Texts([f"{text}. X-{text.title()}" for text in texts]), targets, labels, settings=settings)
    rule = DecisionRule(temperature=0.3, thresholds=(0.2, 0.5, 0.8) if several else None)
    return LinearTextModel(found.model, LabelledData(multi_label=several), rule)


@pytest.mark.parametrize(
    "settings",
    [
        {"ngrams": WORDS_ONLY},
        {"ngrams": CHARACTERS},
        {"ngrams": (Ngrams(analyzer="char_wb", shortest=4, longest=6),), "classes": 2},
        {"ngrams": CHARACTERS, "several": True},
    ],
    ids=["words", "characters", "two-classes", "several-labels"],
)
def test_the_runner_of_a_linear_model_predicts_as_homespun_does(settings: Any, tmp_path: Path) -> None:
    made, out = tmp_path / "run", tmp_path / "bundle"
    save_text_model(made / "model", linear_model(**settings))
    for _ in range(2):  # the second replaces the first
        result = run("export", made, "--out", out)
    assert {path.name for path in out.iterdir()} == {"linear", "labels.json", "predict.py"}
    assert count_lines(out) <= 51
    assert result["inputs"] == []
    assert result["checked"][-1]["largest_difference"] < 1e-12
    found = run_alone(out, NGRAM_TEXTS, without=("onnxruntime", "tokenizers", "sklearn", "scipy", "safetensors"))
    compare(found, made, NGRAM_TEXTS)
    assert run_alone(out, []) == []
    assert_refused("--quantize .*linear model", "export", made, "--out", out, "--quantize", "int8")


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
def test_the_runner_of_an_average_predicts_as_homespun_does(several: bool, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    decision = SEVERAL if several else RULE
    network = open_network(classifier(tmp_path / "network", multi_label=several, decision=decision))
    linear = linear_model(CHARACTERS, several)
    rule = DecisionRule.model_validate({"temperature": 0.7} | ({"thresholds": [0.3, 0.4, 0.6]} if several else {}))
    made, out = tmp_path / "run", tmp_path / "bundle"
    save_text_model(made / "model", AverageTextModel({"a": network, "b": linear}, (0.3, 0.7), rule))
    result = run("export", made, "--out", out)
    assert {path.name for path in out.iterdir()} == {
        *("model.onnx", "tokenizer.json", "linear", "labels.json", "predict.py")
    }
    assert count_lines(out) <= 62
    assert len(result["checked"]) == 4
    compare(run_alone(out, NGRAM_TEXTS), made, NGRAM_TEXTS)
    assert run_alone(out, []) == []

    labelled = zip(NGRAM_TEXTS[1:], predict_texts(str(tmp_path / "network"), NGRAM_TEXTS[1:]), strict=True)
    rows = [{"text": text, "label": one["label"]} for text, one in labelled if text.strip()]
    (made / "data").mkdir()
    (made / "data" / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = run("export", made, "--out", out, "--quantize", "int8")["quantization"]
    assert found["accuracy"]["before"] == 1.0 or several  # with the thresholds of the average
    assert found["accuracy"]["after"] >= found["accuracy"]["before"]
    assert found["examples"] == len(rows)
    assert found["bytes"]["after"] == (out / "model.onnx").stat().st_size < found["bytes"]["before"]
    compare_probabilities(run_alone(out, TEXTS), made, TEXTS, tolerance=0.1)


def test_a_network_is_suggested_where_a_linear_model_is_none(tmp_path: Path) -> None:
    made, out = tmp_path / "run", tmp_path / "out"
    linear = linear_model(WORDS_ONLY)
    save_text_model(made / "model", linear)
    requests: tuple[tuple[str | Path, ...], ...] = (
        ("export", made, "--to", "sentence-transformers", "--out", out),
        ("export", made, "--out", f"{out}.onnx"),
        ("convert", made, "--to", "hf", "--out", out),
    )
    for words in requests:
        assert_refused("linear model, .*--from CHECKPOINT", *words)
    network = open_network(classifier(made / "candidates" / "own"))
    save_text_model(made / "model", AverageTextModel({"network": network, "linear": linear}, (0.5, 0.5)))
    for words in requests:
        assert_refused("average .*give .*/run/candidates/own$", *words)
    model = ("export", made / "model", "--to", "gguf", "--out", f"{out}.gguf")
    assert_refused("average .*give .*/run/model/network$", *model)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("data", [LabelledData(), PairsData(first="a", second="b")], ids=["regression", "pairs"])
def test_models_that_a_folder_is_not_for_have_another_use(data: TextsData, tmp_path: Path) -> None:
    numbers = data.kind == "texts"
    texts = Texts(WORDS, None if numbers else WORDS)
    labels = None if numbers else Labels(("x", "y"))
    targets = np.arange(len(WORDS)) % 2
    linear = LinearTextModel(fit_linear(texts, targets, labels, settings=PLAIN).model, data)
    save_text_model(tmp_path / "linear" / "model", linear)
    assert_refused("linear model.*homespun predict", "export", tmp_path / "linear", "--out", tmp_path / "out")
    average = AverageTextModel({"linear": linear, "network": linear}, (0.5, 0.5))
    save_text_model(tmp_path / "average" / "model", average)
    assert_refused(r"average.*homespun predict.*\.onnx", "export", tmp_path / "average", "--out", tmp_path / "out")


def test_what_a_folder_is_not_for_is_one_line(tmp_path: Path) -> None:
    chunks = classifier(tmp_path / "chunks", truncation={"kind": "chunk_mean"})
    pairs = classifier(tmp_path / "pairs", data="sentence_pairs", text=None, first="a", second="b")
    decoder = classifier(tmp_path / "decoder", GPT, "last")
    assert_refused(r"truncation\.kind=chunk_mean.*\.onnx", "export", chunks, "--out", tmp_path / "out")
    assert_refused(r"single texts.*\.onnx", "export", pairs, "--out", tmp_path / "out")
    assert_refused("needs an encoder", "export", decoder, "--to", "sentence-transformers", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "predict.py").touch()
    assert_refused(r"mine holds other things.*predict\.py", "export", chunks, "--out", tmp_path / "mine")
    assert_refused("--quantize .*--out FOLDER", "export", "x", "--out", tmp_path / "x.onnx", "--quantize", "int8")


@pytest.mark.slow
def test_int8_weights_are_measured_on_the_validation_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    made, out = labelled_run(tmp_path / "run", decision={"temperature": 0.3}), tmp_path / "out"
    result = run("export", made, "--out", out, "--quantize", "int8")
    found = result["quantization"]
    assert found["type"] == "int8"
    assert found["examples"] > 50
    assert found["accuracy"]["before"] == 1.0
    assert 0.99 <= found["accuracy"]["after"] <= 1.0
    assert found["bytes"]["after"] == (out / "model.onnx").stat().st_size < found["bytes"]["before"]
    compare_probabilities(run_alone(out, TEXTS), made, TEXTS, tolerance=0.1)

    def spoil(path: Path) -> None:
        text = (path.parent / "labels.json").read_text()
        (path.parent / "labels.json").write_text(text.replace('"food"', '"other"'))

    monkeypatch.setattr(exporting, "quantize_int8", spoil)
    words = ("export", made, "--out", tmp_path / "none", "--quantize", "int8")
    assert_refused(r"accuracy 0\..* float32 1\.000; .*--quantize", *words)
    assert not (tmp_path / "none").exists()
    (tmp_path / "run" / "validation.csv").unlink()
    result = run("export", made, "--out", out, "--quantize", "int8")
    assert result["quantization"]["accuracy"] == {"before": None, "after": None}
    assert "validation.csv" in result["notes"][-1]


@pytest.mark.slow
def test_sentence_transformers_has_our_vectors(tmp_path: Path) -> None:
    theirs = pytest.importorskip("sentence_transformers")
    made, out = classifier(tmp_path / "run", {"embedding_size": 17, "hidden_size": 36}), tmp_path / "out"
    for _ in range(2):  # the second replaces the first
        result = run("export", made, "--to", "sentence-transformers", "--out", out)
    assert (result["architecture"], result["max_length"], result["pooling"]) == ("ElectraModel", LENGTH, "mean")
    assert result["check"]["largest_difference"] < 1e-6
    model = theirs.SentenceTransformer(str(out), device="cpu")
    assert model.max_seq_length == LENGTH
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling"]
    texts = [text.strip() for text in TEXTS]
    np.testing.assert_allclose(model.encode(texts), homespun.open(made).embed(texts, max_length=LENGTH), atol=1e-5)


class Hub(http.server.BaseHTTPRequestHandler):
    """What of the hub an upload asks for; ``files`` is filled by the commit."""

    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[tuple[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert self.headers["Authorization"] == "Bearer hf_secret"
        name, result = self.path.rpartition("/api/")[2], {}
        self.asked.append((name, body))
        if name == "repos/create":
            result = {"url": f"http://{self.headers['Host']}/me/mine"}
        elif name == "models/me/mine/preupload/main":
            paths = [file["path"] for file in json.loads(body)["files"]]
            result = {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}
        elif name == "models/me/mine/commit/main":
            lines = [json.loads(line)["value"] for line in body.splitlines()]
            self.files.update({one["path"]: base64.b64decode(one["content"]) for one in lines if "path" in one})
            address = f"http://{self.headers['Host']}/me/mine/commit/c0ffee"
            result = {"success": True, "commitOid": "c0ffee", "commitUrl": address}
        content = json.dumps(result).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


def export_and_push(source: Path, out: Path, name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = ["export", str(source), "--to", "sentence-transformers", "--out", str(out), "--push", name, "--json"]
    inherited = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    environment = inherited | environment | {"HF_HOME": str(source / "home")}
    command = [sys.executable, "-m", "homespun", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_an_export_is_pushed_in_one_commit(tmp_path: Path) -> None:
    made, out = classifier(tmp_path / "run"), tmp_path / "out"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_port}"
        done = export_and_push(made, out, "me/mine", HF_ENDPOINT=address, HF_TOKEN="hf_secret")
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pushed"] == f"{address}/me/mine/commit/c0ffee"
    asked = json.loads(dict(Hub.asked)["repos/create"])
    assert asked.get("private") or asked["visibility"] == "private"  # by version of the client
    written = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert Hub.files == written
    assert "1_Pooling/config.json" in written

    done = export_and_push(made, out, "me/mine", HF_ENDPOINT=address, HF_TOKEN="hf_secret")  # no server any more
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .*out was written, but not uploaded to me/mine: .*\n", done.stderr)


def test_a_push_without_a_token_or_a_name_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "get_token", lambda: None)
    for name, match in (("mine", "OWNER/NAME, not 'mine'"), ("me/mine", "HF_TOKEN")):
        assert_refused(f"--push .*{match}", "export", "nowhere", "--out", tmp_path / "out", "--push", name)
