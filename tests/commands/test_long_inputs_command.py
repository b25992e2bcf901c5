"""Long inputs through the commands: set once in fine-tuning, used by every command."""

import csv
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from commands_world import World, assert_refused, read_lines, write_lines

import homespun
from homespun.data.labels import LabelledRows
from homespun.data.long_inputs import pad_chunks
from homespun.hf.open import open_model
from homespun.tasks.config import stored_task

KINDS = {
    "truncate": (),
    "head_tail": ("data.truncation.head=0.5",),
    "chunk_mean": ("data.truncation.chunks=3", "data.truncation.overlap=0.25"),
    "chunk_pool": ("data.truncation.chunks=2",),
}


def words(world: World, kind: str, *others: str) -> tuple[Any, ...]:
    arguments = ("finetune", "classify", f"data.train={world.train}", "data.text=sentence", "data.max_length=16")
    arguments += (f"data.truncation.kind={kind}", *KINDS[kind], "train.budget.steps=4", "baselines=false", *others)
    return (*arguments, "--from", world.base)


def sentences(path: Path) -> list[str]:
    with path.open() as stream:
        return [row["sentence"] for row in csv.DictReader(stream)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_setting_everywhere(world: World, tmp_path: Path, kind: str) -> None:
    run = tmp_path / "run"
    result = world.run(*words(world, kind, f"data.test={world.test}"), "--out", run)
    assert result["long_inputs"] == kind
    assert result["longer"] > 100
    in_chunks = kind.startswith("chunk")
    assert (result["chunked"] == result["longer"]) if in_chunks else (result["chunked"] == 0)
    assert (result["truncated"] < result["longer"]) if in_chunks else (result["truncated"] == result["longer"])
    assert ("Texts read in chunks: " in (run / "report" / "index.html").read_text(encoding="utf-8")) == in_chunks

    metrics = world.run("evaluate", run, "--data", world.test)
    assert metrics["confusion"] == result["test"]["confusion"]
    assert metrics["log_loss"] == pytest.approx(result["test"]["log_loss"], abs=1e-6)
    assert metrics["long_inputs"] == kind

    given = sentences(world.test)
    source = write_lines(tmp_path / "new.jsonl", [{"sentence": text} for text in given])
    out = tmp_path / "predictions.jsonl"
    output = world.run("predict", run, "--input", source, "--out", out)
    assert (output["rows"], output["long_inputs"]) == (61, kind)
    assert output["truncated"] == metrics["truncated"]

    stored = open_model(run)
    long_inputs = stored_task(stored, source="run").data.truncation  # type: ignore[attr-defined]
    assert (long_inputs.kind, stored.task["max_length"]) == (kind, 16)
    rows = LabelledRows(given, None, stored.tokenizer, length=16, long_inputs=long_inputs)
    with torch.no_grad():
        for index in range(0, 61, 7):  # what is written is what the loaded model says of the text alone
            batch = pad_chunks([rows[index]], stored.tokenizer.pad_id)
            logits = homespun.load(run)(batch.input_ids, **batch.context, chunks=batch.chunks)
            expected = dict(zip(stored.labels.names, logits[0].softmax(0).tolist(), strict=True))
            assert read_lines(out)[index]["probabilities"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_a_prediction_alone_is_that_in_a_batch(world: World, tmp_path: Path) -> None:
    world.run(*words(world, "chunk_pool"), "--out", tmp_path / "run")
    stored = open_model(tmp_path / "run")
    task = stored_task(stored, source="run")
    given = [{"sentence": text} for text in sentences(world.test)[:11]]
    together: list[dict[str, Any]] = list(task.predict(stored.model, given, source="test"))
    for record, found in zip(given, together, strict=True):
        alone: dict[str, Any] = next(task.predict(stored.model, [record], source="test"))
        assert alone["probabilities"] == pytest.approx(found["probabilities"], abs=1e-6)


@pytest.mark.slow
def test_a_plain_call_reads_one_chunk_a_text(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = world.run(*words(world, "chunk_pool"), "--out", tmp_path / "run")
    assert "has the head 'chunk_pool'" in caplog.text  # before the first step
    ids = torch.tensor([[2, 17, 23, 3], [2, 19, 29, 3]])
    assert homespun.load(tmp_path / "run")(ids).shape == (2, 3)
    assert "chunk_pool" in result["export"]["notes"][0]
    assert result["export"]["architecture"] == "HomespunForSequenceClassification"


@pytest.mark.slow
def test_with_all_else_that_fine_tuning_can(world: World, tmp_path: Path) -> None:
    result = world.run(
        *words(world, "chunk_pool", "folds=2", "seeds=2", "objective.class_weights=balanced", "objective.frozen=true"),
        *("objective.head.kind=cnn", "objective.head.filters=11", "train.micro_batch_size=5", "train.batch_size=13"),
        *("--out", tmp_path / "run"),
    )
    assert len(result["seeds"]) == 4
    before, after = (homespun.load(run).backbone.state_dict() for run in (world.base, tmp_path / "run"))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_with_several_labels_a_text(world: World, tmp_path: Path) -> None:
    labels = [["a", "b"], ["a"], []]
    rows = [{"sentence": text, "label": labels[row % 3]} for row, text in enumerate(sentences(world.test))]
    table, run = write_lines(tmp_path / "several.jsonl", rows), tmp_path / "run"
    settings = words(world, "chunk_mean", "data.multi_label=true", f"data.train={table}")
    assert world.run(*settings, "--out", run)["labels"] == ["a", "b"]
    assert world.run("predict", run, "--input", table, "--out", tmp_path / "out.csv")["rows"] == 61


def test_too_long_names_the_setting(world: World, tmp_path: Path) -> None:
    message = r"data\.max_length=600 .*=512.*data\.truncation\.kind=chunk_mean"
    assert_refused(message, *words(world, "truncate", "data.max_length=600"), "--out", tmp_path / "run")
