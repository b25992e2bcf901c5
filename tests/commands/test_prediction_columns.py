"""The columns of predictions: the same in every row."""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from homespun.commands.predict import predict
from homespun.data.labels import Labels

PREDICTION = {"label": "food", "probability": 0.75, "probabilities": {"food": 0.75, "sport": 0.25}, "truncated": False}


class Food:
    """A task that takes everything for food."""

    data = SimpleNamespace(columns=None)

    def predict(self, model: Any, records: Iterable[Any], *, source: str, first: int) -> Iterator[dict[str, Any]]:
        return (dict(PREDICTION) for _ in records)

    def result_fields(self) -> dict[str, Any]:
        return {}


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = SimpleNamespace(labels=Labels(("food", "sport")), model=nn.Linear(1, 1), task={})
    monkeypatch.setattr("homespun.hf.open.open_for_inference", lambda run: stored)
    monkeypatch.setattr("homespun.tasks.config.stored_task", lambda *arguments, **settings: Food())


def predicted(folder: Path, suffix: str, *records: dict[str, Any], **options: bool) -> list[dict[str, Any]]:
    """What is written of the records."""
    given, out = folder / "given.jsonl", folder / f"out{suffix}"
    given.write_text("".join(json.dumps(record) + "\n" for record in records))
    output = predict("run", [str(given)], out, **options)  # type: ignore[arg-type]
    assert (output["rows"], output["labels"]) == (len(records), {"food": len(records), "sport": 0})
    assert {given.name, out.name} <= {path.name for path in folder.iterdir()} <= {given.name, "out.csv", "out.jsonl"}
    with out.open(encoding="utf-8", newline="") as stream:
        return [json.loads(line) for line in stream] if suffix == ".jsonl" else list(csv.DictReader(stream))


def test_colliding_columns_get_a_prefix(tmp_path: Path) -> None:
    first, second = {"text": "a\u2028b"}, {"text": "b", "label": "TRUTH", "probabilities": ["x", "y"]}
    expected = {"predicted_label": "food", "probability": 0.75, "truncated": False}
    expected |= {"predicted_probabilities": PREDICTION["probabilities"]}
    assert predicted(tmp_path, ".jsonl", first, second) == [first | expected, second | expected]


def test_a_table_has_the_columns_of_all_records(tmp_path: Path) -> None:
    records = [{"text": "a"}, {"text": "b", "label": "TRUTH", "probabilities": ["x", "y"], "probability_sport": 1}]
    first, second = predicted(tmp_path, ".csv", *records)
    expected = {"predicted_label": "food", "probability": "0.75", "truncated": "False", "probability_food": "0.75"}
    expected |= {"predicted_probability_sport": "0.25"}
    assert first == {"text": "a", "label": "", "probabilities": "", "probability_sport": ""} | expected
    assert second == {"text": "b", "label": "TRUTH", "probabilities": "x|y", "probability_sport": "1"} | expected


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


def test_what_was_predicted_can_be_predicted_of_again(tmp_path: Path) -> None:
    given = {"text": "a", "label": "TRUTH", "predicted_label": "sport"}
    (row,) = predicted(tmp_path, ".jsonl", given)
    assert row == given | {"predicted_predicted_label": "food"} | {k: v for k, v in PREDICTION.items() if k != "label"}
