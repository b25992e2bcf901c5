"""Comparisons use the shown metric and name its test set."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from comparison_folder import BERT, SMALL, WIDE, change, make_comparison, without_tasks, write_trial

from homespun.report import comparison_summary as summary
from homespun.report import comparison_tables as tables
from homespun.report.comparison import Report
from homespun.report.comparison_quality import compare_seeds, evaluate
from homespun.report.comparison_records import Comparison, comparable_variants, read_comparison
from homespun.report.records import scores

Line = dict[str, Any]
Training = tuple[float, Sequence[Line]]  # the measure of a training, and the lines of its predictions
NB = "\u00a0"


def write_run(folder: Path, result: Mapping[str, Any], predictions: Mapping[str, Sequence[Line]]) -> None:
    (folder / "predictions").mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    for name, lines in predictions.items():
        rows = [json.dumps({"row": row, "truth": 1, "predicted": 0} | line) + "\n" for row, line in enumerate(lines)]
        (folder / "predictions" / f"{name}.jsonl").write_text("".join(rows))


def compared(
    folder: Path,
    measure: str,
    models: Mapping[str, Sequence[Training]],
    baselines: Mapping[str, Training] | None = None,
    *,
    tasks: Sequence[str] = ("sts",),
    measured_on: str = "test",
    **recipe: Any,
) -> Comparison:
    """The tasks of a comparison without pretraining, all alike: of each model a training a seed."""
    folder.mkdir()
    asked = {"kind": "compare", "finetune": {task: {} for task in tasks}, "variations": {name: {} for name in models}}
    (folder / "comparison.yaml").write_text(yaml.safe_dump(asked | recipe, sort_keys=False))
    for name, trainings in models.items():
        for seed, (value, lines) in enumerate(trainings):
            trial = folder / "trials" / name / f"seed-{seed}"
            stages = {task: {"kind": "finetune", "path": task, "seconds": 1.0} for task in tasks}
            write_trial(trial, name=name, seed=seed, status="done", stages=stages)
            test = {measure: value, "rows": 700}
            for task in tasks:
                result = {"measures": [measure], "measured_on": measured_on, "test": test}
                write_run(trial / task, result, {"model": lines})
    for task in tasks if baselines else ():
        metrics = {name: {measure: value} for name, (value, _) in (baselines or {}).items()}
        result = {"kind": "baselines", "measured_on": measured_on, "baselines": metrics}
        write_run(folder / "baselines" / task, result, {name: lines for name, (_, lines) in (baselines or {}).items()})
    return read_comparison(folder)


def summary_text(comparison: Comparison) -> str:
    tasks = evaluate(comparison)
    paragraphs = [*summary.advice(comparison, tasks, {}), summary.certainty(comparison, tasks)]
    return " ".join([*paragraphs, summary.limits(comparison, tasks)]).replace(NB, " ")


def test_gaps_are_of_the_measure_that_is_shown(tmp_path: Path) -> None:
    """Errors say the contrary of a correlation: no row has a correlation, and none is compared."""
    far, near = [{"score": -3.0 - row % 7} for row in range(29)], [{"score": -0.1} for _ in range(29)]
    models = {"neural": [(0.70, far), (0.71, far), (0.72, far)], "other": [(0.60, near), (0.61, near), (0.62, near)]}
    comparison = compared(tmp_path / "sts", "spearman", models, {"tfidf": (0.45, near)})
    (task,) = evaluate(comparison)
    assert [c.name for c in task.candidates] == ["neural", "other", "TF-IDF + linear"]
    assert task.against_best["TF-IDF + linear"].gap == pytest.approx(-0.26)
    assert task.against_best["other"].gap == pytest.approx(-0.10)
    assert all(expected.texts is None and expected.interval is None for expected in task.against_best.values())
    assert not task.against_best["other"].not_worse  # by the trainings
    quality = tables.quality(task)
    titles = [column.title for column in quality.columns]
    assert "95 % interval" not in titles
    assert [row[titles.index("difference to best")] for row in quality.rows][1:] == pytest.approx([-0.10, -0.26])
    text = summary_text(comparison)
    assert "It beats TF-IDF + linear (45.0 %) by 26.0 points (means only)." in text
    assert "sts: single examples have no Spearman correlation" in text
    assert "over test examples" not in text


def test_other_metric_with_another_best_is_reported(tmp_path: Path) -> None:
    """Of few spoilers accuracy says little: who orders texts best is shown, and said where it is none of the best."""
    right, wrong = [{"predicted": 1}] * 90 + [{}] * 10, [{"predicted": 1}] * 20 + [{}] * 80
    folder = tmp_path / "spoilers"
    compared(folder, "accuracy", {"neural": [(0.90, right)] * 3, "other": [(0.2, wrong)] * 3}, {"tfidf": (0.2, wrong)})

    def give(name: str, area: float) -> None:
        file = folder / name / "sts/result.json"
        result = json.loads(file.read_text())
        (result["test"] if "test" in result else result["baselines"]["tfidf"])["roc_auc"] = area
        file.write_text(json.dumps(result))

    for seed, area in enumerate((0.80, 0.81, 0.82)):
        give(f"trials/neural/seed-{seed}", area)
        give(f"trials/other/seed-{seed}", 0.70)
    give("baselines", 0.88)
    comparison = read_comparison(folder)
    (task,) = evaluate(comparison)
    assert task.title == "accuracy"
    assert re.search(r"By ROC AUC .* TF-IDF .* 0\.880, neural has 0\.810 ± 0\.010\.", summary_text(comparison))
    quality = tables.quality(task)
    column = [column.title for column in quality.columns].index("ROC AUC")
    assert [row[column] and row[column][0] for row in quality.rows] == pytest.approx([0.81, 0.70, 0.88])
    give("baselines", 0.5)
    assert "By ROC AUC" not in summary_text(read_comparison(folder))


def test_a_row_is_compared_by_the_measure_and_not_by_its_score(tmp_path: Path) -> None:
    def lines(exact: Sequence[int], f1: float) -> list[Line]:
        return [{"score": f1, "exact_match": float(one), "f1": f1} for one in exact]

    first, second = [1, 1, 1, 0] * 101, [1, 0, 0, 0] * 101
    models = {"a": [(0.75, lines(first, 0.8))], "b": [(0.25, lines(second, 0.9))]}
    (task,) = evaluate(compared(tmp_path / "squad", "exact_match", models))
    assert task.against_best["b"].gap == pytest.approx(-0.5)
    assert task.against_best["b"].texts == pytest.approx(2 * 0.5**202, abs=1e-12)  # McNemar's exact test
    assert task.candidates[0].rows.unit == 1


@pytest.mark.parametrize(("lead", "expected"), [(0.1, "train any of same and varied"), (0.9, "no model beats")])
def test_model_with_constant_output_is_reported(lead: float, expected: str, tmp_path: Path) -> None:
    models = {name: [(0.5, [{"rouge1": 0.5}] * 3)] for name in ("same", "varied")}
    comparison = compared(tmp_path / "a", "rouge1", models, {"lead-3": (lead, [{"rouge1": lead}] * 3)})
    for name, share in {"same": 0.75, "varied": 0.25}.items():
        test = {"rouge1": 0.5, "rows": 700, "commonest": share, "commonest_target": 0.125}
        change(tmp_path / "a/trials" / name / "seed-0/sts/result.json", test=test)
    summary = summary_text(read_comparison(comparison.path))
    assert expected in summary
    assert re.search(r"same .* 75\.0 % of the sources", summary)
    assert "varied writes" not in summary


@pytest.mark.parametrize(
    ("measure", "lines", "expected"),
    [
        ("accuracy", [{"truth": "a", "predicted": "a"}, {"truth": "a", "predicted": "b"}], [1.0, 0.0]),
        ("accuracy", [{"truth": ["x"], "predicted": ["x"], "score": 1.0}, {"truth": [], "predicted": []}], [None] * 2),
        ("f1", [{"truth": ["B-A"], "predicted": ["B-A"], "score": 1.0}], [None]),
        ("rouge1", [{"score": 0.25, "rouge1": 0.5}, {"truth": [""], "predicted": ""}], [0.5, None]),
        ("spearman", [{"truth": 1.0, "predicted": 1.5, "score": -0.5}], [None]),
        ("macro_f1", [{"truth": "a", "predicted": "a"}], [None]),
    ],
)
def test_the_score_of_a_line(measure: str, lines: list[Line], expected: list[float | None]) -> None:
    assert scores(lines, measure) == expected


def test_folds_of_unequal_size_are_compared_by_row(tmp_path: Path) -> None:
    """The mean over folds is not the mean over rows, and rows are the measure's all the same."""

    folds = {"good": ([1, 1, 1, 0], [1, 1, 1]), "bad": ([1, 0, 0, 0], [0, 0, 1])}
    models: dict[str, list[Training]] = {}
    for name, parts in folds.items():
        lines = [{"predicted": one} for part in parts for one in part]
        models[name] = [(fmean(map(fmean, parts)), lines)]
    (task,) = evaluate(compared(tmp_path / "folds", "accuracy", models, measured_on="folds"))
    assert task.against_best["bad"].gap == pytest.approx(-4 / 7)
    assert task.against_best["bad"].texts is not None


def test_validation_scores_are_labelled(tmp_path: Path) -> None:
    right, wrong = [{"predicted": 1}] * 31, [{"predicted": 0}] * 31
    models = {"a": [(1.0, right), (1.0, right)], "b": [(0.0, wrong), (0.1, wrong)]}
    search = {"space": {"finetune.train.learning_rate": {"low": 0.1, "high": 1.0}}, "task": ""}
    settings: dict[str, Any] = {"measured_on": "validation", "tasks": ("one", "two"), "search": search}
    kept = compared(tmp_path / "kept", "accuracy", models, **settings)
    text = summary_text(kept)
    assert "Score: accuracy 100.0 ± 0.0 % (2 trainings, 700 validation examples)." in text
    limitation = "on an independent test set: its scores are on the validation set, which also selected the checkpoints"
    assert f"one {limitation} and, in the search, the settings;" in text
    assert f"two {limitation};" in text
    assert "test examples" not in text
    (first, _) = evaluate(kept)
    quality = tables.quality(first)
    assert "validation examples" in [column.title for column in quality.columns]
    assert "test" not in f"{quality.note}".replace("permutation test", "")
    tested = summary_text(compared(tmp_path / "tested", "accuracy", models))
    assert "700 test examples" in tested
    assert "validation" not in tested


def test_variation_named_as_a_baseline_keeps_its_result(tmp_path: Path) -> None:
    models = {"mean": [(0.8, ()), (0.81, ())], "cls": [(0.5, ()), (0.52, ())]}
    (task,) = evaluate(compared(tmp_path / "pooling", "pearson", models, {"mean": (0.1, ()), "tfidf": (0.3, ())}))
    assert [one.name for one in task.among_best] == ["mean"]
    assert task.among_best[0].kind == "model"
    assert len({one.name for one in task.candidates}) == len(task.candidates) == 4


def test_trainings_without_the_metric_are_reported(tmp_path: Path) -> None:
    models: dict[str, Sequence[Any]] = {"a": [(0.8, ()), (None, ()), (0.7, ())], "b": [(0.6, ())] * 3}
    (task,) = evaluate(compared(tmp_path / "constant", "spearman", models))
    (warning,) = task.warnings
    assert "Spearman correlation of a in sts leaves out 1 of 3 trainings" in warning


def test_objectives_are_compared_by_a_metric_that_both_have(tmp_path: Path) -> None:
    models: dict[str, Sequence[Training]] = {"ratings": [(0.6, ()), (0.62, ())], "numbers": [(0.7, ()), (0.71, ())]}
    comparison = compared(tmp_path / "objectives", "spearman", models)
    for result in (tmp_path / "objectives").glob("trials/ratings/*/sts/result.json"):
        spearman = json.loads(result.read_text())["test"]
        change(result, measures=["quadratic_kappa", "spearman"], test=spearman | {"quadratic_kappa": 0.9})
    (task,) = evaluate(read_comparison(comparison.path))
    assert task.measure == "spearman"
    assert [(one.name, one.mean) for one in task.candidates] == [("numbers", 0.705), ("ratings", 0.61)]


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"time": 5400.0, "clock": "wall", "memory": 8e9}, "(1 h 30 m)"),
        ({"time": 90.0, "clock": "processor", "steps": 1}, "(1 m 30 s of processor time and 1 step)"),
    ],
)
def test_limits_name_the_budget(tmp_path: Path, budget: dict[str, Any], words: str) -> None:
    models = {"a": [(1.0, [{"predicted": 1}])]}
    text = summary_text(compared(tmp_path / "limited", "accuracy", models, budget=budget))
    assert f"other budgets than the one used {words};" in text


def test_baselines_without_models_make_no_claim_about_models(tmp_path: Path) -> None:
    right, wrong = [{"predicted": 1}] * 97, [{"predicted": 0}] * 97
    lines = {"tfidf": (0.8, right), "majority": (0.3, wrong)}
    text = summary_text(compared(tmp_path / "begun", "accuracy", {}, lines, tasks=("one", "two")))
    for task in ("one", "two"):
        assert f"{task}: no model has a result. Best baseline: TF-IDF + linear, accuracy 80.0 %." in text
    assert "below it" not in text
    assert "variation" not in text.partition("Not tested")[0]
    models = {"a": [(0.10, wrong), (0.11, wrong)]}
    text = summary_text(compared(tmp_path / "weak", "accuracy", models, lines, tasks=("one", "two")))
    assert "No variation is among the best in any task." in text
    assert "all models are below it" in text


def test_task_without_model_has_no_overall_statement(tmp_path: Path) -> None:
    right, wrong = [{"predicted": 1}] * 11, [{"predicted": 0}] * 11
    models = {"a": [(1.0, right), (1.0, right)]}
    comparison = compared(tmp_path / "half", "accuracy", models, {"tfidf": (0.3, wrong)}, tasks=("one", "two", "three"))
    for seed in range(2):
        (tmp_path / "half" / "trials" / "a" / f"seed-{seed}" / "two" / "result.json").unlink()
    text = summary_text(read_comparison(comparison.path))
    assert "Over the 2 tasks a is best or not significantly worse in each." in text
    assert "two: no model has a result. Best baseline: TF-IDF + linear" in text


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"corpus": "other", "max_length": 128}},
        {"data": {"corpus": "text", "max_length": 512}},
        {"objective": {"kind": "electra", "probability": 0.3}},
    ],
)
def test_losses_of_other_rows_or_settings_are_other_quantities(tmp_path: Path, change: dict[str, Any]) -> None:
    everyone = (BERT, replace(WIDE, name="changed"), SMALL)
    path = without_tasks(make_comparison(tmp_path / "losses", everyone=everyone, failed=False, seeds=1, rows=7))
    for trial in path.glob("trials/*/*"):
        config = yaml.safe_load((trial / "pretrain" / "config.yaml").read_text())
        config |= {"data": {"corpus": "text", "max_length": 128}} | (change if trial.parent.name == "changed" else {})
        (trial / "pretrain" / "config.yaml").write_text(yaml.safe_dump(config))
    comparison = read_comparison(path)
    groups = comparable_variants(comparison, "pretrain")
    assert [[v.name for v in group] for group in groups] == [["bert", "window-16"], ["changed"]]
    first, second = summary.advice(comparison, [], {})
    assert first.startswith("Among bert and window-16 (same data and objective), lowest validation loss:")
    assert "changed" not in first
    assert second.startswith("Validation loss of changed: ")
    assert second.endswith("(not comparable with the others).")
    assert Report(comparison)._ablations() == []  # the radius is another under another quantity


def test_more_seeds_and_more_rows_make_smaller_differences_detectable(tmp_path: Path) -> None:
    def detectable(name: str, seeds: int, rows: int) -> float:
        lines = [[{"predicted": int((row * seed) % 7 != 3)} for row in range(rows)] for seed in range(2, 2 + 2 * seeds)]
        values = [fmean(line["predicted"] for line in found) for found in lines]
        trainings = list(zip(values, lines, strict=True))
        models = {"first": trainings[:seeds], "second": trainings[seeds:]}
        (task,) = evaluate(compared(tmp_path / name, "accuracy", models))
        (test,) = task.between.values()
        assert test.detectable is not None
        return test.detectable

    few = detectable("few", 2, 70)
    assert few > 0.02
    assert detectable("seeds", 5, 70) < few
    assert detectable("rows", 2, 700) < few


def test_a_number_of_each_training_is_tested_over_seeds() -> None:
    losses = {"far": [4.0, 4.1, 4.2], "near": [3.1, 3.2, 3.3], "nearer": [3.0, 3.1, 3.2], "none": []}
    tests = compare_seeds(losses)
    assert list(tests) == [("nearer", "near"), ("nearer", "far"), ("near", "far")]
    gaps = [test.gap for test in tests.values()]
    assert gaps == pytest.approx([0.1, 1.0, 0.9])
    assert [test.not_worse for test in tests.values()] == [True, False, False]
    assert 0.1 < (tests["nearer", "near"].detectable or 0.0) < 0.9
    assert compare_seeds({"a": [1.0], "b": [2.0]}) == {}
