"""Inputs of ``predict`` and ``evaluate``: rows without a label, empty texts, texts from standard input, refusals."""

import json
import reprlib
from pathlib import Path

import numpy as np
import pytest
from commands_world import assert_refused, read_lines, run, write_csv, write_lines
from typer.testing import CliRunner

import homespun
from homespun.cli import app, main
from homespun.crf import fit_crf
from homespun.data.labels import Labels
from homespun.errors import UserError, escape
from homespun.linear import PLAIN, fit_linear
from homespun.ngrams import Texts
from homespun.tasks.taggers import LinearTagger, TaggedData
from homespun.tasks.text_models import LinearTextModel, save_text_model
from homespun.tasks.texts import LabelledData, PairsData, TextsData

TOPICS = ("food", "sport", "weather")


def save_model(folder: Path, data: TextsData, second: bool = False) -> str:
    texts = [f"{topic} number {i}" for i in range(8) for topic in TOPICS]
    labels = Labels(TOPICS, data.multi_label)
    names = [(text.split()[0],) if data.multi_label else text.split()[0] for text in texts]
    fitted = fit_linear(Texts(texts, texts if second else None), labels.encode(names), labels, settings=PLAIN).model
    save_text_model(folder / "model", LinearTextModel(fitted, data))
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("linear"), LabelledData())


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("pairs"), PairsData(first="one", second="two"), second=True)


ROWS = [["food number 3", "food"], ["sport number 5", ""], ["weather", "weather"], ["", "sport"], ["  ", "food"]]


def test_evaluate_leaves_out_rows_without_a_label(model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = write_csv(tmp_path / "t.csv", ["text", "label"], ROWS)
    labelled = write_csv(tmp_path / "labelled.csv", ["text", "label"], [row for row in ROWS if row[1]])
    metrics = run("evaluate", model, "--data", table)
    assert (metrics["rows"], metrics) == (4, run("evaluate", model, "--data", labelled))
    left_out, empty, again = caplog.messages
    assert "1 of 5 rows" in left_out
    assert "2 of 4 examples" in empty
    assert "2 of 4 examples" in again


def test_evaluate_leaves_out_records_that_lack_the_label_column(model: str, tmp_path: Path) -> None:
    labelled = [{"id": i, "text": topic, "label": topic} for i, topic in enumerate(TOPICS)]
    rows = write_lines(tmp_path / "t.jsonl", [{"id": 7, "text": "food"}, *labelled])
    assert homespun.evaluate(model, [str(rows)])["rows"] == 3
    other = write_lines(tmp_path / "other.jsonl", [*labelled, {"id": 7, "text": "food", "topic": "food"}])
    assert_refused("row 4 .* has no column 'label'", "evaluate", model, "--data", other)
    unlabelled = write_csv(tmp_path / "u.csv", ["text", "label"], [["food", ""]])
    assert_refused("no row of .* has a label in column 'label'", "evaluate", model, "--data", unlabelled)


def test_missing_columns_are_refused_with_the_option_that_names_them(model: str, pairs: str, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", ["body", "topic"], [["food", "food"]])
    assert_refused("no column 'text'; .* body, topic; .* --text-field", "evaluate", model, "--data", table)
    label = ("evaluate", model, "--data", table, "--text-field", "body")
    assert_refused("no column 'label'; .* --label-field", *label)
    assert_refused("no column 'one'; .* --text-field, given 2 times", "evaluate", pairs, "--data", table)
    out = ("--out", tmp_path / "p.csv")
    assert_refused("no column 'text'; .* --text-field", "predict", model, "--input", table, *out)
    # a file of rows without a label, besides files with one
    labelled = write_csv(tmp_path / "labelled.csv", ["text", "label"], [["food", "food"], ["sport", "sport"]])
    unlabelled = write_csv(tmp_path / "unlabelled.csv", ["text"], [["food"]])
    assert run("evaluate", model, "--data", unlabelled, "--data", labelled)["rows"] == 2


def test_text_fields_of_a_file_with_a_header(tmp_path: Path) -> None:
    """The names of the columns of training are those of a file without a header."""
    model = save_model(tmp_path, LabelledData(columns=["text", "label"]))
    table = write_csv(tmp_path / "t.csv", ["topic", "body"], [["food", "food number 3"]])
    run("predict", model, "--input", table, "--text-field", "body", "--out", tmp_path / "p.jsonl")
    assert [row["label"] for row in read_lines(tmp_path / "p.jsonl")] == ["food"]


@pytest.fixture
def class_folders(tmp_path: Path) -> str:
    """Texts in a folder for each topic, and a text without a topic."""
    for topic in (*TOPICS, "unsup"):
        (tmp_path / "texts" / topic).mkdir(parents=True)
        (tmp_path / "texts" / topic / "1.txt").write_text(f"{topic} number 3")
    return str(tmp_path / "texts")


def test_class_folders_are_evaluated_and_predicted(model: str, class_folders: str, tmp_path: Path) -> None:
    metrics = run("evaluate", model, "--data", class_folders)
    assert (metrics["rows"], metrics["accuracy"]) == (3, 1.0)
    run("predict", model, "--input", class_folders, "--out", tmp_path / "out.jsonl")
    found = [(row["label"], row["predicted_label"]) for row in read_lines(tmp_path / "out.jsonl")]
    assert len(found) == 4
    assert set(zip(TOPICS, TOPICS, strict=True)) <= set(found)


def test_training_examples_are_the_rows_with_a_label(class_folders: str, caplog: pytest.LogCaptureFixture) -> None:
    examples = LabelledData(train=class_folders).read("train")
    assert examples is not None
    assert [example.label for example in examples] == list(TOPICS)
    assert "1 of 4 rows" in caplog.text


def test_a_text_without_any_of_several_labels_is_evaluated(tmp_path: Path) -> None:
    several = save_model(tmp_path, LabelledData(multi_label=True))
    table = write_csv(tmp_path / "t.csv", ["text", "label"], ROWS)
    assert homespun.evaluate(several, [str(table)])["rows"] == len(ROWS)


def test_evaluate_leaves_out_pairs_without_a_label(pairs: str, tmp_path: Path) -> None:
    rows = [["food", "food", "food"], ["a", "b", None], ["sport", "sport", "sport"]]
    table = write_csv(tmp_path / "t.csv", ["one", "two", "label"], rows)
    assert homespun.evaluate(pairs, [str(table)])["rows"] == 2


def test_predict_counts_empty_texts_and_keeps_their_rows(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = write_csv(tmp_path / "t.csv", ["text", "label"], ROWS)
    out = tmp_path / "p.jsonl"
    run("predict", model, "--input", table, "--out", out, "--processes", "1")
    assert len(read_lines(out)) == len(ROWS)
    (message,) = caplog.messages
    assert "2 of 5 rows" in message
    caplog.clear()
    run("predict", model, " ")
    (message,) = caplog.messages
    assert "1 of 1 inputs" in message
    caplog.clear()
    run("predict", model, "food")
    assert not caplog.messages


NO_TEXTS = (None, float("nan"), b"food", {"text": "food"}, 3, ["food", "sport"])


@pytest.mark.parametrize("method", ["predict", "predict_proba"])
@pytest.mark.parametrize("given", NO_TEXTS, ids=repr)
def test_what_is_no_text_is_refused_with_its_row(model: str, method: str, given: object) -> None:
    with pytest.raises(UserError, match=r"texts\[1\].*single texts") as error:
        getattr(homespun.open(model), method)(["food", given])
    assert escape(reprlib.repr(given)) in str(error.value)


@pytest.mark.parametrize("given", ["food", ["food"], ["a", "b", "c"], ["food", None], {"a": 1, "b": 2}], ids=repr)
def test_what_is_no_pair_is_refused_with_its_row(pairs: str, given: object) -> None:
    opened = homespun.open(pairs)
    for wanted in (("food", "sport"), ["food", "sport"], np.array(["food", "sport"])):
        assert opened.predict([wanted])
    with pytest.raises(UserError, match=r"texts\[1\].*pairs of texts"):
        opened.predict([["food", "sport"], given])


@pytest.mark.parametrize("given", [None, ["The", 3], {"a": "b"}], ids=repr)
def test_a_tagger_reads_texts_and_lists_of_words(tmp_path: Path, given: object) -> None:
    labels = Labels(("B-x", "O"))
    (crf,) = fit_crf([["the", "goal"], ["the", "soup"]], [["O", "B-x"], ["O", "B-x"]], labels, epochs=1)
    LinearTagger(crf, TaggedData()).save(tmp_path / "model")
    opened = homespun.open(tmp_path)
    assert len(opened.predict(["The goal", ["The", "goal"], np.array(["The", "goal"])])) == 3
    with pytest.raises(UserError, match=r"texts\[1\]"):
        opened.predict(["The goal", given])


@pytest.mark.parametrize("kind", [str, Path])
def test_a_single_file_may_be_given_without_a_list(model: str, tmp_path: Path, kind: type) -> None:
    table = write_csv(tmp_path / "t.csv", ["text", "label"], ROWS)
    assert homespun.evaluate(kind(model), kind(table)) == homespun.evaluate(model, [str(table)])
    assert homespun.predict(kind(model), kind(table), tmp_path / "p.csv")["rows"] == len(ROWS)


@pytest.mark.parametrize(
    "option",
    [("--text-field", "foo"), ("--encoding", "utf-8"), ("--columns", "a"), ("--raw",), ("--processes", "2")],
    ids=" ".join,
)
def test_options_of_files_are_refused_for_texts(model: str, option: tuple[str, ...]) -> None:
    assert_refused(f"{option[0]} is for files", "predict", model, "food", *option)
    assert_refused(f"{option[0]} is for files", "predict", model, "--input", "-", *option)


def test_lines_of_standard_input_are_predicted(model: str, pairs: str, tmp_path: Path) -> None:
    def lines(source: str, given: bytes) -> list[str]:
        found = CliRunner().invoke(app, ["predict", source, "--input", "-", "--json"], input=given)
        if found.exception:
            raise found.exception
        return [json.loads(line)["label"] for line in found.stdout.splitlines()]

    assert lines(model, "food\r\nsport of \u2028 day\n\nweather\n\n".encode())[::3] == ["food", "weather"]
    assert len(lines(pairs, b"food\nsport\n")) == 1
    for source, given in ((model, b""), (model, b"\n"), (model, b"\xff\xfe"), (pairs, b"food\n")):
        with pytest.raises(UserError):
            lines(source, given)
    assert_refused("standard input", "predict", model, "--input", "-", "--input", "x.csv", "--out", tmp_path / "p.csv")


@pytest.mark.parametrize("command", ["predict", "serve"])
def test_an_unknown_choice_is_refused_without_words_of_pydantic(
    command: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["homespun", command, model, "--quantize", "int4"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "'int4' is not one of 'bf16', 'int8'" in message
    assert "Value error" not in message
