"""Metrics that may choose a checkpoint, their direction, refusals before training."""

import math
from typing import Any, get_args

import numpy as np
import pytest

from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.metrics.calibration import measure_calibration
from homespun.metrics.classification import classification_metrics
from homespun.metrics.registry import METRICS, check_best_metric, lower_is_better
from homespun.metrics.regression import ordinal_regression_metrics, regression_metrics
from homespun.metrics.sequence_labels import word_metrics
from homespun.metrics.text import mean_answers
from homespun.tasks.config import FinetuneObjective
from homespun.training.validation import EvalResult

TWO, FOUR = Labels(("a", "b")), Labels(("a", "b", "c", "d"))
SEVERAL = Labels(("a", "b", "c"), multi_label=True)
NOT_METRICS = {"rows", "documents", "positive"}
OBJECTIVES = get_args(get_args(FinetuneObjective)[0])
OBJECTIVE_METRICS = {one.model_fields["kind"].default: one.metrics for one in OBJECTIVES}


def of_classes(labels: Labels) -> dict[str, Any]:
    truth = np.eye(len(labels), dtype=np.int64) if labels.multi_label else np.arange(len(labels))
    table = np.full((len(labels), len(labels)), 0.3)
    found = classification_metrics(labels, truth, truth, probabilities=table)
    return found | {"documents": 3, "ece": measure_calibration(np.log(table), truth, 1.0)["after"]["ece"]}


def validation_metrics() -> dict[str, dict[str, Any]]:
    """What the validations of all objectives say."""
    numbers, ranks = np.array([1.0, 4.0, 2.0]), np.array([0, 2, 1])
    answers = [{"exact_match": 0.0, "f1": 0.5}, {"exact_match": 1.0, "f1": 1.0}]
    return {
        "classification": of_classes(TWO) | of_classes(SEVERAL),
        "sentence_classification": of_classes(FOUR) | of_classes(TWO),
        "regression": regression_metrics(numbers, numbers),
        "ordinal_regression": ordinal_regression_metrics((1, 2, 4), ranks, ranks, probabilities=np.full((3, 3), 1 / 3)),
        "token_classification": word_metrics([["B-a"], ["O"]], [["B-a"], ["O"]])
        | dict.fromkeys(("f1", "precision", "recall"), 1.0),
        "question_answering": mean_answers(answers, [True, False]),
    }


@pytest.mark.parametrize("objective", sorted(set(OBJECTIVE_METRICS) - {"seq2seq"}))
def test_every_scalar_is_a_metric_or_a_count(objective: str) -> None:
    scalars = {name for name, value in validation_metrics()[objective].items() if not isinstance(value, dict)}
    unsuited = {"ece", "micro_f1"} if objective == "sentence_classification" else set()
    assert scalars - NOT_METRICS - unsuited == set(OBJECTIVE_METRICS[objective])


def test_the_metrics_of_all_objectives_are_registered() -> None:
    assert {"loss"}.union(*OBJECTIVE_METRICS.values()) == METRICS


def test_of_losses_and_errors_the_least_is_best_and_of_others_the_greatest() -> None:
    least = {"loss", "log_loss", "ece", "absolute_error", "squared_error"}
    assert least < METRICS
    for metric in METRICS:
        assert lower_is_better(metric) == (metric in least)
        low, high = (EvalResult(value, {}, {metric: value}).score(metric) for value in (0.1, 0.4))
        assert (low > high) == (metric in least)


@pytest.mark.parametrize("name", ["rows", "documents", "confusion", "acuracy"])
def test_unknown_metrics_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"best_metric='{name}' is not a metric"):
        EvalResult(0.5, {}, {"rows": 7, "documents": 3, "confusion": {}, "accuracy": 0.5}).score(name)
    with pytest.raises(UserError, match=f"'{name}'"):
        lower_is_better(name)


def test_undefined_metrics_score_worst() -> None:
    for value in (None, math.nan):
        assert EvalResult(0.0, {}, {"spearman": value}).score("spearman") == -math.inf


def check(metric: str, objective: str, labels: Labels | None, truth: Any) -> None:
    measured = OBJECTIVE_METRICS.get(objective, ())
    check_best_metric(metric, objective, measured, labels, None if truth is None else np.array(truth))


CHECKED: dict[str, tuple[str, str, Labels | None, Any, str]] = {
    "four classes": ("roc_auc", "sentence_classification", FOUR, None, "there are 4 classes"),
    "f1 of four": ("f1", "classification", FOUR, None, "there are 4 classes"),
    "several labels": ("pr_auc", "classification", SEVERAL, None, "several labels"),
    "one class": ("roc_auc", "classification", TWO, [1, 1, 1], "validation has one class"),
    "one number": ("spearman", "regression", None, [3.0, np.nan, 3.0], "validation has one number"),
    "a count": ("documents", "sentence_classification", TWO, None, "sentence_classification"),
    "of one label": ("micro_f1", "classification", FOUR, None, "classification"),
    "ratings without probabilities": ("log_loss", "ordinal_regression", None, None, "probabilities.*quadratic_kappa"),
    "of another": ("spearman", "classification", TWO, None, "classification"),
    "pretraining": ("accuracy", "mlm", None, None, "objective mlm; there are: loss"),
    "writing": ("rouge1", "seq2seq", None, None, "seq2seq"),
}


@pytest.mark.parametrize("name", CHECKED)
def test_what_the_validation_will_not_have(name: str) -> None:
    *given, message = CHECKED[name]
    with pytest.raises(UserError, match=f"train.best_metric={given[0]} .*{message}"):
        check(*given)


@pytest.mark.parametrize(
    ("metric", "objective", "labels", "truth"),
    [
        ("roc_auc", "classification", TWO, [0, 1, 1]),
        ("macro_f1", "sentence_classification", FOUR, [2, 2]),
        ("micro_f1", "classification", SEVERAL, None),
        ("log_loss", "classification", TWO, [1, 1]),
        ("pearson", "ordinal_regression", None, [0.0, np.nan, 2.0]),
        ("spearman", "regression", None, [np.nan]),
        ("loss", "seq2seq", None, None),
    ],
)
def test_what_it_will_have(metric: str, objective: str, labels: Labels | None, truth: Any) -> None:
    check(metric, objective, labels, truth)
