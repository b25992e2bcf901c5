"""Inputs of ``predict`` and ``evaluate``: rows without a label, empty texts, texts from standard input, refusals."""

from pathlib import Path

import pytest
from commands_world import assert_refused, read_lines, run, write_csv, write_lines

import homespun
from homespun.data.labels import Labels
from homespun.linear import PLAIN, fit_linear
from homespun.ngrams import Texts
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
