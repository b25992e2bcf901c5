"""Tasks of a fit that the files show: tags, text to text, texts without labels."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homespun.commands.trials import copy_model
from homespun.data.source_target import SourceTargetPair
from homespun.errors import UserError
from homespun.fitting.results import FitSettings
from homespun.fitting.run_tasks import RunTask, divide, find_run_task
from homespun.fitting.runs import _RunFit, fit_runs
from homespun.report.console import Display


def rows(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("record", "name", "texts", "target"),
    [
        ({"words": ["a", "b"], "tags": ["X", "Y"]}, "token-classification", ("words",), "tags"),
        ({"id": 1, "tokens": ["a", "b"], "ner_tags": [0, 1]}, "token-classification", ("tokens",), "ner_tags"),
        ({"source": "a b", "target": "a"}, "text-to-text", ("source",), "target"),
        ({"Document": "a b", "Summary": ["a", "b"]}, "text-to-text", ("Document",), "Summary"),
        ({"text": "a b"}, "language-model", ("text",), ""),
    ],
)
def test_tasks_by_columns(tmp_path: Path, record: Any, name: str, texts: tuple[str, ...], target: str) -> None:
    task = find_run_task(FitSettings(train=[rows(tmp_path / "t.jsonl", record)]))
    assert task is not None
    assert (task.name, task.texts, task.target) == (name, texts, target)


def test_the_column_of_a_language_model_in_any_case(tmp_path: Path) -> None:
    train = [rows(tmp_path / "t.jsonl", {"id": 1, "Text": "a b"})]
    task = find_run_task(FitSettings(train=train, task="language-model"))
    assert task is not None
    assert task.texts == ("Text",)


def test_a_label_that_the_first_record_lacks_is_seen(tmp_path: Path) -> None:
    records = [{"text": "a b"}, {"text": "c d", "label": "x"}]
    assert find_run_task(FitSettings(train=[rows(tmp_path / "t.jsonl", *records)])) is None


def test_pairs_with_an_empty_side_are_counted(tmp_path: Path) -> None:
    records = [{"source": f"source {n}", "target": "t" * (n % 3 > 0)} for n in range(30)]
    fit = FitSettings(train=[rows(tmp_path / "t.jsonl", *records)])
    task, decisions = find_run_task(fit), list[str]()
    assert task is not None
    assert sum(map(len, divide(task, fit, decisions).values())) == 20
    assert "10 of 30 rows" in decisions[0]


@pytest.mark.parametrize(
    ("name", "text", "task"),
    [
        ("t.conll", "a X\nb Y\n\nc X\n", "token-classification"),
        ("t.txt", "a NN B-X\nb NN O\n\nc NN I-X\n", "token-classification"),
        ("t.txt", "a\u2028b NN B-X\nb NN O\n\nc NN I-X\n", "token-classification"),
        ("t.txt", "a b\nc\n", "language-model"),
        ("t.txt", "a O\nb c\n", "language-model"),
    ],
)
def test_a_conll_file_and_a_text_file(name: str, text: str, task: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    settings = FitSettings(train=[str(tmp_path / name)])
    found = find_run_task(settings)
    assert found is not None
    assert found.name == task
    if task == "token-classification":
        assert len(found.read(settings.train, settings, [])) == 2


@pytest.mark.parametrize(
    ("record", "settings"),
    [
        ({"text": "a b", "label": "x"}, {}),
        ({"text": "a b", "summary": "c d", "label": "x"}, {}),
        ({"text": "a b", "summary": "c d"}, {"label": "summary"}),
        ({"text": "a b", "labels": ["x", "y"]}, {}),
        ({"text": "a b"}, {"task": "classification"}),
    ],
)
def test_classification_is_left_to_the_inspection(tmp_path: Path, record: Any, settings: Any) -> None:
    assert find_run_task(FitSettings(train=[rows(tmp_path / "t.jsonl", record)], **settings)) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "language-model"}, "--task language-model name --text-field$"),
        ({"task": "token-classification"}, "--task token-classification name --text-field and --label-field"),
        ({"task": "text-to-text", "text": ["a"]}, "--task text-to-text name --text-field and --label-field"),
    ],
)
def test_columns_that_are_missing_for_a_named_task(tmp_path: Path, settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_run_task(FitSettings(train=[rows(tmp_path / "t.jsonl", {"a": "x y", "b": "z"})], **settings))


@pytest.mark.parametrize(
    ("records", "settings", "message"),
    [
        ([{"text": "a b"}], {"seconds": 5.0}, "a network needs .* at least; give more --time"),
        ([{"text": "a b"}], {}, "the texts have 3 characters.*--texts, or a checkpoint with --from"),
        ([{"source": "a", "target": ""}], {}, "no row with both a source and a target"),
        ([{"source": name, "target": "b"} for name in "acde"], {}, "4 examples are too few to hold some out"),
        ([{"words": ["a"], "tags": ["X"]}, {"words": ["a"], "tags": ["X", "Y"]}], {}, "1 word .* and 2 tags"),
    ],
)
def test_inputs_that_cannot_be_fitted(tmp_path: Path, records: Any, settings: Any, message: str) -> None:
    fit = FitSettings(train=[rows(tmp_path / "t.jsonl", *records)], **settings)
    task = find_run_task(fit)
    assert task is not None
    with pytest.raises(UserError, match=message):
        fit_runs(task, tmp_path / "run", fit, resume=False, display=Display(json=True), start=0.0)


def test_one_text_is_too_few_for_a_language_model(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("a word or two\n" * 2_000)
    fit = FitSettings(train=[str(tmp_path / "book.txt")])
    task = find_run_task(fit)
    assert task is not None
    with pytest.raises(UserError, match=r"hold one text.*\.tsv"):
        fit_runs(task, tmp_path / "run", fit, resume=False, display=Display(json=True), start=0.0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("changed", ["train", "texts"])
def test_a_language_model_of_changed_files_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    def stop(*_: object) -> None:
        raise InterruptedError

    monkeypatch.setattr(_RunFit, "language_model", stop)
    texts = [{"text": " ".join(f"{letter}{number}" for number in range(5_000))} for letter in "abc"]
    files = {name: rows(tmp_path / f"{name}.jsonl", *texts) for name in ("train", "texts")}
    fit = FitSettings(train=[files["train"]], texts=[files["texts"]])
    task = find_run_task(fit)
    assert task is not None
    continued = partial(fit_runs, task, tmp_path / "run", fit, display=Display(json=True), start=0.0)
    for resume in (False, True):
        with pytest.raises(InterruptedError):
            continued(resume=resume)
    rows(Path(files[changed]), *texts[:2])
    with pytest.raises(UserError, match="other examples or texts"):
        continued(resume=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__label__pos a film\n\n__label__neg a bore\n", "fastText"),
        ("ham\tsee you\nspam\twin now\n", "2 columns .* to .tsv"),
        ("same\tid\tfirst\tsecond\n1\t8\ta b\tb a\n", "4 columns .* label,text,column3,column4"),
    ],
)
def test_labelled_lines_are_not_taken_for_plain_text(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        find_run_task(FitSettings(train=[str(path)]))
    found = find_run_task(FitSettings(train=[str(path)], task="language-model"))
    assert found is not None
    assert found.name == "language-model"


def test_a_decoder_of_few_positions_reads_source_and_target(tmp_path: Path) -> None:
    pairs = [SourceTargetPair(" ".join(["word"] * 90), (" ".join(["word"] * 90),))] * 8
    backbone = SimpleNamespace(causal=True, has_decoder=False, max_position_embeddings=128)
    tokenizer = SimpleNamespace(encode_batch=lambda texts: [text.split() for text in texts])
    stored: Any = SimpleNamespace(config=SimpleNamespace(backbone=backbone), tokenizer=tokenizer)
    task = RunTask("text-to-text", ("source",), "target", "")
    fit = _RunFit(task, tmp_path, FitSettings(train=["t.jsonl"]), Display(json=True), 0.0)
    settings = dict(one.split("=", 1) for one in fit._finetuning(stored, {"train": pairs}, {}, 60.0, own=False))
    assert (settings["data.max_source_length"], settings["data.max_target_length"]) == ("64", "64")


def test_a_model_that_replaces_another_has_no_folder_of_it(tmp_path: Path) -> None:
    for name in ("out/model", "out/hf", "run/model"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "run" / "model" / "new").touch()
    copy_model(tmp_path / "out", tmp_path / "run")
    assert (tmp_path / "out" / "model" / "new").is_file()
    assert not (tmp_path / "out" / "hf").exists()
