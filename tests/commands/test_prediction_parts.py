"""Predictions of many records: parts, processes, and a kill in the middle; the columns of each row."""

import csv
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow
import pytest
from commands_world import World, read_lines, write_lines
from pyarrow import parquet
from torch import nn

from homespun.commands import prediction_parts
from homespun.commands.predict import predict
from homespun.commands.prediction_parts import divide, max_part_records
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.linear import PLAIN, fit_linear
from homespun.ngrams import Texts
from homespun.tasks.text_models import LinearTextModel, save_text_model
from homespun.tasks.texts import LabelledData
from homespun.text.sources import ReadProgress

TOPICS = ("food", "sport", "weather")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("linear")
    texts = [f"{topic} number {i}" for i in range(8) for topic in TOPICS]
    labels, data = Labels(TOPICS), LabelledData(text="text", label="label")
    targets = labels.encode([text.split()[0] for text in texts])
    fitted = fit_linear(Texts(texts), targets, labels, settings=PLAIN).model
    save_text_model(folder / "model", LinearTextModel(fitted, data))
    return str(folder)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_parts, "_MAX_RECORDS", 7)


def write_records(path: Path, count: int = 40, **changed: str) -> Path:
    """Records, of which some have one more column; ``changed`` has texts by number."""
    texts = [changed.get(f"row{i}", f"{TOPICS[i % 3]} of day {i}") for i in range(count)]
    return write_lines(path, [{"text": text} | ({"label": "mine"} if i > 30 else {}) for i, text in enumerate(texts)])


class Stopped(Exception):
    """In place of a kill."""


def stop_after(rows: int) -> Any:
    def progress(done_bytes: int, done_documents: int) -> None:
        if done_documents >= rows:
            raise Stopped

    return progress


def test_parts_end_at_a_number_of_records_or_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    def lengths(count: int) -> list[tuple[int, int]]:
        parts = divide([{"t": "x" * 40}] * count, "", lambda: 0, max_records=7)
        return [(part.first, len(part.records)) for part in parts]

    assert lengths(0) == []
    assert lengths(15) == [(1, 7), (8, 7), (15, 1)]
    assert lengths(14) == [(1, 7), (8, 7)]
    monkeypatch.setattr(prediction_parts, "_MAX_CHARACTERS", 101)  # of records of 49
    assert lengths(7) == [(1, 3), (4, 3), (7, 1)]
    monkeypatch.setattr(prediction_parts, "_MAX_RECORDS", 4096)  # fewer where there are many classes
    assert [max_part_records(classes) for classes in (0, 2, 1024, 2048, 10**6, 10**8)] == [4096, 4096, 4096, 2048, 4, 1]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_stopped_prediction_continues_to_the_same_bytes(model: str, tmp_path: Path, suffix: str) -> None:
    given, out, whole = write_records(tmp_path / "in.jsonl"), tmp_path / f"out{suffix}", tmp_path / f"whole{suffix}"
    expected = predict(model, [str(given)], whole)
    with pytest.raises(Stopped):
        predict(model, [str(given)], out, processes=1, progress=stop_after(14))
    assert {path.name for path in (tmp_path / f"out{suffix}.parts").iterdir()} == {"000000.part", "000001.part"}
    assert not out.exists()
    reported: list[int] = []
    reading = ReadProgress([str(given)])
    result = predict(
        *(model, [str(given)], out),
        processes=2,
        read_progress=reading,
        progress=lambda _, rows: reported.append(rows),
    )
    assert out.read_bytes() == whole.read_bytes()
    assert result == expected | {"out": str(out), "resumed_rows": 14}
    assert reported == [14, 21, 28, 35, 40]  # not those of finished parts
    assert reading.share == 1.0
    assert {path.name for path in tmp_path.iterdir()} == {given.name, out.name, whole.name}


def test_only_parts_of_the_same_records_model_and_options_are_kept(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given, out = write_records(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    run = shutil.copytree(model, tmp_path / "run")

    def resumed(change: Callable[[], object] = lambda: None, **options: Any) -> tuple[object, int]:
        with pytest.raises(Stopped):
            predict(str(run), [str(given)], out, processes=1, progress=stop_after(28))
        change()
        caplog.clear()
        result = predict(str(run), [str(given)], out, processes=1, **options)
        return result.get("resumed_rows", 0), len(caplog.messages)

    settings = run / "model" / "linear.json"
    assert resumed() == (28, 0)
    assert resumed(encoding="latin-1") == (0, 1)
    assert resumed(lambda: settings.write_text(settings.read_text() + "\n")) == (0, 1)
    assert resumed(lambda: write_records(given, row10="sport")) == (21, 1)
    rows = read_lines(out)
    assert (rows[10]["text"], rows[10]["predicted_label"], len(rows)) == ("sport", "sport", 40)


def test_an_error_names_the_row_in_the_inputs(model: str, tmp_path: Path) -> None:
    given = write_records(tmp_path / "in.jsonl", 20)
    given.write_text(given.read_text() + '{"other": 1}\n')
    for processes in (None, 2):
        with pytest.raises(UserError, match=r"row 21 of .*in\.jsonl"):
            predict(model, [str(given)], tmp_path / "out.jsonl", processes=processes)
    assert len(list((tmp_path / "out.jsonl.parts").iterdir())) == 2
    empty = tmp_path / "empty.jsonl"
    with pytest.raises(UserError, match="other"):
        predict(model, [str(given)], empty, processes=1, text=["other"])
    assert not (tmp_path / "empty.jsonl.parts").exists()


def test_a_killed_process_is_one_line(model: str, tmp_path: Path) -> None:
    given = write_records(tmp_path / "in.jsonl")

    def kill_workers(done_bytes: int, rows: int) -> None:
        for worker in multiprocessing.active_children():
            worker.kill()

    with pytest.raises(UserError, match="--processes"):
        predict(model, [str(given)], tmp_path / "out.csv", processes=2, progress=kill_workers)


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "homespun", *map(str, words)]


@pytest.fixture
def news(world: World, tmp_path: Path) -> Path:
    """Records for several parts of full size."""
    return write_lines(tmp_path / "news.jsonl", [{"sentence": f"profits of day {i} rose"} for i in range(20_000)])


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_command_continues_in_other_processes(
    world: World, news: Path, tmp_path: Path, end: signal.Signals
) -> None:
    words = ["predict", world.classifier, "--input", news, "--json"]
    whole, out, parts = tmp_path / "whole.csv", tmp_path / "out.csv", tmp_path / "out.csv.parts"
    subprocess.run(command(*words, "--processes", "1", "--out", whole), check=True, capture_output=True)
    running = subprocess.Popen(command(*words, "--processes", "2", "--out", out), stderr=subprocess.PIPE)
    while not list(parts.glob("[0-9]*.part")):  # not a temporary file
        assert running.poll() is None
        time.sleep(0.05)
    children = psutil.Process(running.pid).children(recursive=True)
    assert len(children) >= 2
    os.kill(running.pid, end)
    _, errors = running.communicate()
    assert end == signal.SIGKILL or errors.count(b"\n") == 1  # multiprocessing warns of what it removes after a kill
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert not out.exists()
    done = subprocess.run(command(*words, "--processes", "1", "--out", out), check=True, capture_output=True)
    assert 0 < json.loads(done.stdout)["resumed_rows"] < 20_000
    assert out.read_bytes() == whole.read_bytes()
    assert not parts.exists()


PREDICTION = {"label": "food", "probability": 0.75, "probabilities": {"food": 0.75, "sport": 0.25}, "truncated": False}


class Food:
    """A task that takes everything for food."""

    data = LabelledData()

    def predict(self, model: Any, records: Iterable[Any], *, source: str, first: int) -> Iterator[dict[str, Any]]:
        return (dict(PREDICTION) for _ in records)

    def result_fields(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def food(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = SimpleNamespace(labels=Labels(("food", "sport")), model=nn.Linear(1, 1), task={})
    monkeypatch.setattr("homespun.hf.open.open_for_inference", lambda run: stored)
    monkeypatch.setattr("homespun.tasks.config.stored_task", lambda *arguments, **settings: Food())


def predicted(folder: Path, suffix: str, *records: dict[str, Any], **options: bool) -> list[dict[str, Any]]:
    """What is written of the records."""
    given, out = write_lines(folder / "given.jsonl", records), folder / f"out{suffix}"
    output = predict("run", [str(given)], out, **options)  # type: ignore[arg-type]
    assert (output["rows"], output["labels"]) == (len(records), {"food": len(records), "sport": 0})
    assert {given.name, out.name} <= {path.name for path in folder.iterdir()} <= {given.name, "out.csv", "out.jsonl"}
    with out.open(encoding="utf-8", newline="") as stream:
        return [json.loads(line) for line in stream] if suffix == ".jsonl" else list(csv.DictReader(stream))


@pytest.mark.usefixtures("food")
def test_colliding_columns_get_a_prefix(tmp_path: Path) -> None:
    first, second = {"text": "a\u2028b"}, {"text": "b", "label": "TRUTH", "probabilities": ["x", "y"]}
    expected = {"predicted_label": "food", "probability": 0.75, "truncated": False}
    expected |= {"predicted_probabilities": PREDICTION["probabilities"]}
    assert predicted(tmp_path, ".jsonl", first, second) == [first | expected, second | expected]


@pytest.mark.usefixtures("food")
def test_numbers_of_a_record_that_are_not_finite_are_null(tmp_path: Path) -> None:
    (written,) = predicted(tmp_path, ".jsonl", {"text": "a", "score": math.inf, "more": [math.nan, 2]})
    assert (written["score"], written["more"]) == (None, [None, 2])


@pytest.mark.usefixtures("food")
def test_a_table_has_the_columns_of_all_records(tmp_path: Path) -> None:
    records = [{"text": "a"}, {"text": "b", "label": "TRUTH", "probabilities": ["x", "y"], "probability_sport": 1}]
    first, second = predicted(tmp_path, ".csv", *records)
    expected = {"predicted_label": "food", "probability": "0.75", "truncated": "False", "probability_food": "0.75"}
    expected |= {"predicted_probability_sport": "0.25"}
    assert first == {"text": "a", "label": "", "probabilities": "", "probability_sport": ""} | expected
    assert second == {"text": "b", "label": "TRUTH", "probabilities": "x|y", "probability_sport": "1"} | expected


@pytest.mark.usefixtures("food")
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_dates_decimals_and_nested_columns_are_kept(tmp_path: Path, suffix: str) -> None:
    columns = {
        "text": ["a"],
        "day": [date(2026, 1, 2)],
        "price": [Decimal("1.10")],
        "meta": [{"id": 5}],
        "image": [b""],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "given.parquet")
    out = tmp_path / f"out{suffix}"
    predict("run", str(tmp_path / "given.parquet"), out)
    with out.open(encoding="utf-8", newline="") as stream:
        row = json.loads(stream.read()) if suffix == ".jsonl" else next(csv.DictReader(stream))
    meta = {"id": 5} if suffix == ".jsonl" else '{"id": 5}'
    kept = {"text": "a", "day": "2026-01-02", "price": "1.10", "meta": meta}
    assert {name: row.get(name) for name in columns} == kept | {"image": None}


@pytest.mark.usefixtures("food")
@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+A1", "-1-1", "@SUM(1)", "\t=1", "\r=1"])
def test_formulas_of_a_table_are_quoted(tmp_path: Path, text: str) -> None:
    record = {"text": text, "=column": [text, "b"], "number": -1.5, "text of a number": "-1.5"}
    (row,) = predicted(tmp_path, ".csv", record)
    assert (row["text"], row["'=column"], row["number"]) == (f"'{text}", f"'{text}|b", "-1.5")
    assert row["text of a number"] == "-1.5"
    (row,) = predicted(tmp_path, ".csv", record, raw=True)
    assert (row["text"], row["=column"], row["number"]) == (text, f"{text}|b", "-1.5")
    (row,) = predicted(tmp_path, ".jsonl", record)
    assert row["text"] == text


@pytest.mark.parametrize("entry", ["in.jsonl", "*.jsonl", "."])
def test_an_input_is_not_replaced(model: str, tmp_path: Path, entry: str) -> None:
    given = write_records(tmp_path / "in.jsonl")
    earlier = given.read_bytes()
    with pytest.raises(UserError, match=r"--out .*in\.jsonl is a file of the input"):
        predict(model, str(tmp_path / entry), given)
    assert given.read_bytes() == earlier


@pytest.mark.usefixtures("food")
def test_what_was_predicted_can_be_predicted_of_again(tmp_path: Path) -> None:
    given = {"text": "a", "label": "TRUTH", "predicted_label": "sport"}
    (row,) = predicted(tmp_path, ".jsonl", given)
    assert row == given | {"predicted_predicted_label": "food"} | {k: v for k, v in PREDICTION.items() if k != "label"}
