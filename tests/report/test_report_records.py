import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homespun.errors import UserError
from homespun.report import tables
from homespun.report.records import architecture, comparable, final_losses, loss_terms, read_run, read_runs
from homespun.results import Metrics, RunResult

Make = Callable[..., Path]


def test_complete_run(tmp_path: Path, pretraining: Make) -> None:
    run = read_run(pretraining(tmp_path / "a", steps=113))
    assert len(run.train["generator"]) == 113
    assert len(run.validation["loss"]) == 11
    assert loss_terms(run) == ["generator", "discriminator"]
    assert run.summary["tokens"] == 113 * 4003
    assert run.warning is None
    assert architecture(run) == "3 layers × 128, 2 heads"


def test_a_killed_run_is_read_from_its_metrics_and_its_half_line_is_ignored(tmp_path: Path, pretraining: Make) -> None:
    path = pretraining(tmp_path / "a", steps=113, end=None, result=False)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "step": 114, "lo')
    run = read_run(path)
    assert run.warning is not None
    assert "did not finish at step 113" in run.warning
    assert run.summary["seconds_per_step"] == pytest.approx(0.21)
    assert run.summary["tokens_per_second"] == pytest.approx(4003 / 0.21)
    assert run.summary["peak_bytes"] == 412_345_678
    train, _ = final_losses(run)
    assert train["generator"] == pytest.approx(sum(point.value for point in run.train["generator"][-11:]) / 11)


def test_run_that_was_killed_after_its_first_training_is_unfinished(tmp_path: Path, finetuning: Make) -> None:
    path = finetuning(tmp_path / "a")
    finetuning(path / "trials" / "seed-0")
    for name in ("metrics.jsonl", "result.json"):
        (path / name).unlink()
    run = read_run(path)
    assert run.end == "early_stopping"
    assert "did not finish" in str(run.warning)
    assert "unfinished" in tables.resources([run]).rows[0]


def test_steps_done_again_after_a_resume_replace_the_first_ones(tmp_path: Path) -> None:
    def step(n: int, loss: float) -> dict[str, object]:
        return {"event": "step", "step": n, "time": n * 2.0, "loss": loss, "losses": {"mlm": loss}}

    def validation(n: int) -> dict[str, object]:
        return {"event": "validation", "step": n, "time": n * 2.0, "loss": 1.0}

    first = [{"event": "start", "step": 0, "time": 0}, step(1, 5.0), step(2, 4.0), step(3, 3.0), validation(3)]
    again = [{"event": "resume", "step": 1, "time": 2.0}, step(2, 4.5), validation(2)]
    again += [{"event": "end", "step": 2, "reason": "interrupted"}]
    # a resumed run writes behind the line that the kill cut short
    lines = [*map(json.dumps, first), '{"event": "st{"event": "resume"', *map(json.dumps, again)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    run = read_run(tmp_path)
    assert [(point.step, point.value) for point in run.train["loss"]] == [(1.0, 5.0), (2.0, 4.5)]
    assert [point.step for point in run.validation["loss"]] == [2.0]
    assert run.warning == "was interrupted at step 2; results up to there"


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "\n\n",
        "null\n3\n[]\n",
        '{"event": "step"}\n',
        '{"event": "step", "step": "x", "loss": "y", "losses": [1], "time": null}\n{"event": "end"}',
        '{"event": "step", "step": 1, "time": 1, "loss": NaN, "losses": {"a": Infinity, "b": null}}\n',
        '{"event": "memory", "peak_bytes": null}\n\x00\xff\n',
        "[" * 100_000,
    ],
)
def test_odd_metrics_are_no_crash(tmp_path: Path, lines: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(lines, encoding="latin-1")
    run = read_run(tmp_path)
    assert all(series.values == [] for series in run.train.values())
    assert run.summary["peak_bytes"] is None
    assert "–" in tables.resources([run]).cells()[0] or len(tables.resources([run]).columns) < 9


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("parameters", "many"),
        ("train", [1, {}]),
        ("test", 3),
        ("baselines", {"tfidf": "high"}),
        ("lengths", {"train": {"mean": 3}}),
        ("overlap", {"pairs": 7}),
    ],
)
def test_a_result_with_a_wrong_value_is_one_line(tmp_path: Path, key: str, value: object) -> None:
    (tmp_path / "result.json").write_text(json.dumps({key: value}))
    with pytest.raises(UserError, match=rf"result\.json: {key}") as error:
        read_run(tmp_path)
    assert "\n" not in str(error.value)


def test_a_result_keeps_the_keys_that_it_was_made_with() -> None:
    tree = {"version": 1, "truncated": 3, "parameters": 7, "test": {"accuracy": 0.5, "rows": 2, "std": {"f1": None}}}
    assert RunResult.model_validate(tree).to_json() == tree
    assert RunResult.model_validate(tree).numbers() == {"parameters": 7, "truncated": 3}
    assert Metrics(f1={"mean": 0.5, "std": 0.1}).spread("f1") == (0.5, 0.1)  # as earlier versions wrote folds


def test_missing_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none was given"):
        read_runs([])
    for folder, message in ((tmp_path / "nowhere", "not a folder"), (tmp_path, "run's files")):
        with pytest.raises(UserError, match=message):
            read_run(folder)


@pytest.mark.parametrize(("content", "message"), [('{"name": "a"', "cut short"), ("[1]", "object, not list")])
def test_damaged_results_are_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_run(tmp_path)


@pytest.mark.parametrize("version", [99, 0, "1", None])
def test_a_result_of_another_version_is_one_line(tmp_path: Path, pretraining: Make, version: object) -> None:
    expected = read_run(pretraining(tmp_path / "a", name="run")).summary
    assert read_run(pretraining(tmp_path / "b", name="run", version=1)).summary == expected
    with pytest.raises(UserError, match=rf"run/result\.json .*version {version!r}.* 1"):
        read_run(pretraining(tmp_path / "run", version=version))


def test_runs_with_equal_names_get_distinct_names(tmp_path: Path, pretraining: Make) -> None:
    paths = [pretraining(tmp_path / folder / "base", steps=11) for folder in ("one", "two")]
    assert [run.name for run in read_runs(paths)] == ["one/base", "two/base"]
    assert len({run.name for run in read_runs([paths[0], paths[0]])}) == 2


def test_only_runs_with_the_same_terms_are_compared(tmp_path: Path, pretraining: Make, finetuning: Make) -> None:
    paths = [pretraining(tmp_path / "a", steps=11), finetuning(tmp_path / "b"), pretraining(tmp_path / "c", steps=13)]
    groups = comparable(read_runs(paths))
    assert [[run.name for run in group] for group in groups] == [["a", "c"], ["b"]]


def test_settings_that_differ(tmp_path: Path, pretraining: Make) -> None:
    window = {"attention": {"kind": "window", "radius": 31}}
    runs = read_runs([pretraining(tmp_path / "a", steps=11), pretraining(tmp_path / "b", steps=11, backbone=window)])
    (table,) = tables.differences(runs)
    assert table.rows == (
        ("model.backbone.attention.kind", "full", "window"),
        ("model.backbone.attention.radius", None, 31),
    )
    assert architecture(runs[1]) == "3 layers × 128, 2 heads, window attention (radius 31)"
    assert tables.differences(runs[:1]) == []


def test_lengths_by_split(tmp_path: Path, finetuning: Make) -> None:
    numbers = {"mean": 83.25, "median": 71.0, "minimum": 9, "maximum": 512}
    rows = read_run(finetuning(tmp_path / "a", lengths=[{"split": "train", **numbers, "histogram": [1, 2]}]))
    table = tables.lengths(rows, "lengths")
    assert table.cells() == [["train", "83.2", "71.0", "9", "512"]]


@pytest.mark.parametrize(
    ("changes", "description"),
    [
        ({}, "2 LSTM layers × 256"),
        ({"cell": "gru", "bidirectional": True}, "2 GRU layers × 256, bidirectional"),
        (
            {"bidirectional": True, "independent_directions": True, "characters": {"vectors": 8}},
            "bidirectional, independent directions, characters",
        ),
    ],
)
def test_recurrent_architecture_names_its_cell(
    tmp_path: Path, pretraining: Make, changes: dict[str, Any], description: str
) -> None:
    record = read_run(pretraining(tmp_path / "lstm", steps=13))
    backbone = {"kind": "recurrent", "cell": "lstm", "num_hidden_layers": 2, "hidden_size": 256}
    backbone |= {"attention": {"kind": "additive"}} | changes
    text = architecture(dataclasses.replace(record, config={"model": backbone}, result=RunResult()))
    assert text.endswith(description)
    assert "additive" not in text


def test_nested_parts_of_an_architecture_are_words(tmp_path: Path, pretraining: Make) -> None:
    record = read_run(pretraining(tmp_path / "sparse", steps=13))
    attention = {
        "kind": "sparse",
        "patterns": [{"kind": "window", "radius": 16, "dilation": 2}, {"kind": "random_blocks", "size": 8, "count": 1}],
        "global_tokens": {"first": 1, "block": 0, "projections": False},
    }
    backbone = {"num_hidden_layers": 1, "hidden_size": 128, "attention": attention}
    description = architecture(dataclasses.replace(record, config={"model": backbone}, result=RunResult()))
    assert description == (
        "1 layer × 128, sparse attention (window (radius 16, dilation 2) + random blocks (size 8, count 1), "
        "global_tokens (first 1))"
    )


@pytest.mark.parametrize(("epoch", "state"), [(2.5, "budget used after 2.5 of 5 epochs"), (5.0, "budget used")])
def test_the_state_names_epochs_that_were_not_done(tmp_path: Path, epoch: float, state: str) -> None:
    events = [
        {"event": "step", "step": 9, "time": 1.0, "epoch": epoch, "loss/total": 1.0},
        {"event": "end", "step": 9, "reason": "budget"},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, events)))
    (tmp_path / "config.yaml").write_text("train: {budget: {time: 60.0, epochs: 5}}")
    table = tables.resources([read_run(tmp_path)])
    assert table.rows[0][-1] == state


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), True, "3"])
def test_what_is_no_finite_number_is_left_out_of_a_result(value: object) -> None:
    assert Metrics.model_construct(accuracy=value).number("accuracy") is None
