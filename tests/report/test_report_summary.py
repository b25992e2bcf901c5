import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homespun.report import tables
from homespun.report.document import fill
from homespun.report.records import read_run, read_runs
from homespun.report.summary import baseline_difference, compare_with_unigram_baseline, summary, warnings
from homespun.results import Metrics

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("first", "second", "rows", "expected"),
    [
        ([0.912], 0.90, 50_000, r"^beat TF-IDF \(90\.0 %\) by 1\.2 points \(95 % interval"),
        ([0.912], 0.90, 500, r"^is 1\.2 points above TF-IDF .* not significant on 500 examples.*−2\.4 to \+4\.9"),
        ([0.85], 0.90, 50_000, r"^did not beat TF-IDF \(90\.0 %\): .* 5\.0 points below"),
        ([0.895], 0.90, 500, "not significant"),
        ([0.90], 0.90, 500, r"^equals TF-IDF \(90\.0 %\)$"),
        ([0.90001], 0.90, 500, r"less than 0\.1 points"),
        ([0.93, 0.93, 0.89], 0.90, 50_000, r"by 1\.7 points.*1 of 3 trainings"),
        ([0.93], 0.90, None, "significance unknown"),
    ],
)
def test_a_difference_has_its_size_and_its_certainty(
    first: list[float], second: float, rows: float | None, expected: str
) -> None:
    tests = [Metrics(accuracy=accuracy) for accuracy in first]
    found = baseline_difference(tests, Metrics(accuracy=second), "TF-IDF", rows)
    assert re.search(expected, fill("summary", "baseline_difference", **found).replace("\u00a0", " "))


def test_pretraining_names_text_budget_and_the_lowest_loss(tmp_path: Path, pretraining: Make) -> None:
    paths = [pretraining(tmp_path / "a", steps=53, level=1.2), pretraining(tmp_path / "b", steps=53)]
    (words,) = summary(read_runs(paths))
    words = words.replace("\u00a0", " ")
    assert words.startswith("Lowest validation loss: b")
    assert "on runs/quickstart/corpus, each with a budget of 1 m 30 s: a and b." in words


def test_runs_not_better_than_unigram_baseline_are_named(tmp_path: Path, pretraining: Make) -> None:
    baseline = {"unigram_baseline": {"generator": 6.26}, "steps": 53}
    records = read_runs([pretraining(tmp_path / "a", **baseline), pretraining(tmp_path / "b", level=0.8, **baseline)])
    (words,) = summary(records)
    better, worse = words.partition(" Trained on")[0].partition("6.260 nats")[2].split("Not better")
    assert "b (5.007)" in better
    assert "a (6.259)" in worse
    # the mean of several trainings
    assert "Better: both (5.633)" in compare_with_unigram_baseline({"both": records})[0]
    assert compare_with_unigram_baseline({"none": []}) == []


@pytest.mark.parametrize(
    ("loss", "right", "found", "blind"),
    [
        (0.3774, 0.8747, 0.0, True),  # an ELECTRA that knew the share alone
        (0.3774, 0.8747, 0.2, False),
        (0.33, 0.8747, 0.0, False),  # it tells them apart, if none is sure enough
        (0.0, 1.0, 0.0, False),
    ],
)
def test_a_discriminator_that_finds_nothing_is_named(
    tmp_path: Path, loss: float, right: float, found: float, blind: bool
) -> None:
    losses = {"generator": 5.1, "discriminator": loss, "discriminator_accuracy": right, "replaced_recall": found}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"validation": {"loss": 24.0, "losses": losses}}))
    records = read_runs([tmp_path / "a", tmp_path / "b"])
    words = compare_with_unigram_baseline({"one": records[:1], "two": records, "none": []})
    named = ["The discriminator of one and two"] if blind else []
    assert [text.split(" finds under 1 %")[0] for text in words] == named


def test_losses_of_different_terms_are_not_ranked(tmp_path: Path, pretraining: Make) -> None:
    paths = [pretraining(tmp_path / "a", steps=53), tmp_path / "b"]
    paths[1].mkdir()
    (paths[1] / "result.json").write_text('{"validation": {"loss": 3.1, "losses": {"mlm": 3.1}}}')
    (words,) = summary(read_runs(paths))
    assert "Lowest" not in words
    assert "3.100 (b)" in words


@pytest.mark.parametrize("change", [{"data": {"max_length": 64}}, {"objective": {"masked": 0.4}}])
def test_losses_on_other_rows_or_of_another_masking_are_not_ranked(
    tmp_path: Path, pretraining: Make, change: dict[str, dict[str, Any]]
) -> None:
    paths = [pretraining(tmp_path / "a", steps=53), pretraining(tmp_path / "b", steps=53, settings=change)]
    (words,) = summary(read_runs(paths))
    assert "Lowest" not in words
    assert words.startswith("Validation loss: ")


def test_finetuning_summary_has_result_baselines_and_truncation(tmp_path: Path, finetuning: Make) -> None:
    (words,) = summary([read_run(finetuning(tmp_path / "packages"))])
    words = words.replace("\u00a0", " ")
    assert words.startswith("packages: 12-class classification, accuracy ")
    assert "on 1,800 test examples" in words
    assert "mean of 3 trainings" in words
    assert words.index("It beat TF-IDF + linear") < words.index("It beat the majority class (8.3 %)")
    assert words.endswith(": 37. Fine-tuned on passages.csv, with a budget of 1 m 00 s.")


def test_what_was_written_may_hold_what_ends_a_line_elsewhere(tmp_path: Path, finetuning: Make) -> None:
    scores = {"model": [1.0, 0.5, 0.75], "lead-3": [0.25, 0.25, 0.25]}
    values = {name: {"rouge1": sum(values) / 3, "rows": 3} for name, values in scores.items()}
    metrics = {"measures": ["rouge1"], "test": values.pop("model"), "baselines": values}
    path = finetuning(tmp_path / "a", seeds=1, **metrics)
    (path / "predictions").mkdir()
    written = {"truth": "a", "predicted": "a\u2028b\x85c"}
    for name, measured in scores.items():
        lines = [written | {"row": row, "rouge1": score} for row, score in enumerate(measured)]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (path / "predictions" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    assert "95 % interval of the difference" in summary([read_run(path)])[0]


@pytest.mark.parametrize(
    ("measure", "words"),
    [
        ("commonest", "a generates the same text for 75.0\u00a0% of the sources"),
        ("unsupported_numbers", "75.0\u00a0% of the numbers in its texts are not in their sources."),
    ],
)
@pytest.mark.parametrize(
    ("written", "targets", "is_reported"), [(0.75, 0.25, True), (0.5, 0.25, False), (0.05, 0.01, False)]
)
def test_constant_output_and_invented_numbers_are_reported(
    measure: str,
    words: str,
    written: float,
    targets: float,
    is_reported: bool,
    tmp_path: Path,
    finetuning: Make,
) -> None:
    test = {"rouge1": 0.5, "rows": 300, measure: written, f"{measure}_target": targets}
    path = finetuning(tmp_path / "a", seeds=1, measures=["rouge1"], test=test, baselines={})
    (found,) = summary([read_run(path)])
    assert (words in found) == is_reported


def test_folds_count_every_text_once(tmp_path: Path, finetuning: Make, metrics: Make) -> None:
    def folded(mean: float) -> dict[str, Any]:
        means = {name: {"mean": mean, "std": 0.01, "values": []} for name in ("accuracy", "macro_f1")}
        return {"rows": 1800} | means

    tests = [metrics(["yes", "no"], 0.91, rows=1800, seed=fold) for fold in range(5)]
    values = {"measured_on": "folds", "baselines": {"tfidf": folded(0.8)}, "test": folded(0.91)}
    run = read_run(finetuning(tmp_path / "b", seeds=1, trainings=tests, **values))
    assert run.test_rows() == 9000
    (table,) = tables.results([run])
    assert [row[0] for row in table.cells()] == ["b", "TF-IDF + linear"]
    assert table.rows[1][1] == (0.8, 0.01)
    assert [row[-1] for row in table.rows] == [9000, 9000]
    assert "beat TF-IDF + linear" in summary([run])[0]


@pytest.mark.parametrize(
    ("end", "words"),
    [("interrupted", "was interrupted at step 53"), ("not_finite", "was not finite"), (None, "did not fin")],
)
def test_warnings(tmp_path: Path, pretraining: Make, end: str | None, words: str) -> None:
    run = read_run(pretraining(tmp_path / "a", steps=53, end=end, result=False))
    assert words in warnings([run])[0]
    assert warnings([read_run(pretraining(tmp_path / "b", steps=53))]) == []


def test_equal_baselines_of_several_runs_are_shown_once(tmp_path: Path, finetuning: Make) -> None:
    runs = read_runs([finetuning(tmp_path / "a"), finetuning(tmp_path / "b"), finetuning(tmp_path / "c", tfidf=0.5)])
    (table,) = tables.results(runs)
    names = [row[0] for row in table.rows]
    assert names == ["a", "b", "c", "majority class", "TF-IDF + linear", "TF-IDF + linear (c)"]


@pytest.mark.parametrize(
    ("accuracy", "budget", "words"),
    [(0.88, 60.0, "full is significant"), (0.912, 60.0, "not significant"), (0.88, 30.0, "")],
)
def test_models_are_ranked_only_with_equal_budgets(
    tmp_path: Path, finetuning: Make, accuracy: float, budget: float, words: str
) -> None:
    settings = {"train": {"budget": {"time": budget}}}
    paths = [finetuning(tmp_path / "window"), finetuning(tmp_path / "full", accuracy=accuracy, settings=settings)]
    first = summary(read_runs(paths))[0]
    assert first.startswith("Best of 2 models" if words else "window: 12-class")
    assert words in first


def test_a_ranking_on_validation_examples_is_labelled(tmp_path: Path, finetuning: Make) -> None:
    paths = [finetuning(tmp_path / name, measured_on="validation") for name in "ab"]
    first = summary(read_runs(paths))[0]
    assert "on 1,800 validation examples" in first
    assert "test" not in first


def test_budgets_of_another_clock_are_not_ranked(tmp_path: Path, finetuning: Make) -> None:
    settings = {"train": {"budget": {"time": 60.0, "clock": "processor"}}}
    paths = [finetuning(tmp_path / "wall"), finetuning(tmp_path / "processor", settings=settings)]
    assert not summary(read_runs(paths))[0].startswith("Best of")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "homespun predict"),
        ({"seeds": 1}, "seeds=3"),
        ({"measured_on": "validation"}, "data.test"),
        ({"tfidf": 0.95}, "use TF-IDF"),
        (
            {"baselines": {"lead-3": {"accuracy": 0.94, "rows": 1800}, "tfidf": {"accuracy": 0.95, "rows": 1800}}},
            "TF-IDF",
        ),
        ({"tfidf": 0.905}, "more examples"),
    ],
)
def test_next_step(tmp_path: Path, finetuning: Make, values: dict[str, Any], words: str) -> None:
    folder = tmp_path / "my run"
    (text,) = summary([read_run(finetuning(folder, **values))])
    assert words in text.partition("Next: ")[2]
    if words == "homespun predict":
        assert str(folder) in shlex.split(text.split("`")[1])


def test_runs_with_the_same_metrics_share_a_table_in_any_order(tmp_path: Path, finetuning: Make) -> None:
    measures = {"a": "f1", "b": "rougeL", "c": "f1"}
    paths = [
        finetuning(tmp_path / name, seeds=1, task="other", measures=[one], test={one: 0.8, "rows": 50}, baselines={})
        for name, one in measures.items()
    ]
    assert [[row[0] for row in table.rows] for table in tables.results(read_runs(paths))] == [["a", "c"], ["b"]]


def test_results_of_a_data_set_are_means_over_trainings(tmp_path: Path, finetuning: Make) -> None:
    trainings = [
        {"rows": 50, "rougeL": 0.1, "by_set": {"short": {"rows": 31, "rougeL": value}}} for value in (0.3, 0.4, 0.8)
    ]
    path = finetuning(tmp_path / "a", task="seq2seq", measures=["rougeL"], trainings=trainings, baselines={})
    (table,) = tables.results([read_run(path)])
    assert table.rows[1] == ("a: short", pytest.approx((0.5, 0.2646), abs=1e-4), 3, 31)


def test_training_with_equal_predictions_is_counted(tmp_path: Path, finetuning: Make) -> None:
    """Their correlation is undefined, and a mean without them would be too high."""
    good = {"rows": 50, "spearman": 0.8, "absolute_error": 0.2}
    constant = {"rows": 50, "spearman": None, "absolute_error": 0.8}
    measures = {"task": "regression", "measures": ["spearman", "absolute_error"], "baselines": {}}
    run = read_run(finetuning(tmp_path / "a", trainings=[good, good, constant], **measures))
    (table,) = tables.results([run])
    assert table.rows[0][1:3] == ((0.8, 0.0), (pytest.approx(0.4), pytest.approx(0.3464, abs=1e-4)))
    assert table.rows[0][-2:] == (3, 50)
    (warning,) = warnings([run])
    assert "Spearman correlation of a leaves out 1 of 3 trainings" in warning
    curve = [{"examples": 1000, "seeds": [good, good]}, {"examples": 2000, "seeds": [good, constant]}]
    (warning,) = warnings([read_run(finetuning(tmp_path / "c", trainings=[good, constant], curve=curve, **measures))])
    assert "of c with 2,000 training examples leaves out 1 of 2" in warning
    alone = read_run(finetuning(tmp_path / "b", seeds=1, trainings=[constant], **measures))
    assert "b: classification, Spearman correlation undefined." in summary([alone])[0]
