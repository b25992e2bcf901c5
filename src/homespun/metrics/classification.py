"""Metrics of classifiers, as plain values for JSON and the report.

`classification_metrics` returns these keys for one label a text:

| key | value |
|---|---|
| `rows` | texts |
| `accuracy` | share of correct texts |
| `macro_f1`, `weighted_f1` | mean F1 over the classes that occur or are predicted, unweighted / weighted by rows |
| `log_loss` | mean negative log-likelihood in nats, if there are probabilities |
| `roc_auc`, `pr_auc`, `positive` | two classes only: areas under the ROC curve and precision-recall curve (average precision) of the second class, `positive`; `None` if one class does not occur |
| `f1` | two classes only: F1 of the second |
| `per_class` | `{name: {precision, recall, f1, support}}` |
| `confusion` | `{labels, counts, percent}`: rows are the truth, columns the prediction, percent of each row |

and multi-label `rows`, `accuracy` (all labels of a text are right), `micro_f1`, `macro_f1`, `weighted_f1`, `log_loss`
(mean binary cross-entropy over all texts and classes) and `per_class`.
"""  # noqa: E501  a table

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from homespun.data.labels import Labels
from homespun.errors import UserError

MAX_LABELS = 2**16  # labels of texts with several labels, whose metrics take 6 kB a label
_INDICATOR_BYTES = 16  # zeros and ones of the split and of the training
_PREDICTION_BYTES = 100  # truth, logits, probabilities and predictions, as arrays and as lists
_CONFUSION_BYTES = 64  # counts and percentages, as arrays and as lists

Metrics = dict[str, Any]
Floats = NDArray[np.floating[Any]]


def classify(probabilities: Floats, labels: Labels, thresholds: Sequence[float] | None = None) -> NDArray[np.int64]:
    """Predictions from (rows, classes) probabilities: (rows,) most probable classes; multi-label (rows, classes) zeros
    and ones, by (classes,) ``thresholds``, one half by default.
    """
    if labels.multi_label:
        return (probabilities > (0.5 if thresholds is None else np.array(thresholds))).astype(np.int64)
    return probabilities.argmax(axis=1)


def classification_metrics(
    labels: Labels,
    truth: NDArray[np.int64],
    predicted: NDArray[np.int64],
    *,
    probabilities: Floats | None = None,
    scores: Floats | None = None,
) -> Metrics:
    """Compute the metrics listed above.

    Args:
        labels: the classes.
        truth: (rows,) class numbers, or (rows, classes) zeros and ones.
        predicted: as ``truth``; see `classify`.
        probabilities: (rows, classes), if any.
        scores: (rows, classes) scores of a classifier without probabilities, for areas under curves.
    """
    from sklearn.metrics import (
        accuracy_score,
        average_precision_score,
        f1_score,
        precision_recall_fscore_support,
        roc_auc_score,
    )

    if len(truth) == 0 or truth.shape != predicted.shape:
        raise ValueError(f"truth {truth.shape} and predictions {predicted.shape} must have the same shape, not empty")
    numbers = list(range(len(labels)))
    # mean over the classes that occur, as scikit-learn computes it without `labels`
    occurring = None if labels.multi_label else sorted(set(truth.tolist()) | set(predicted.tolist()))
    averages = ("micro", "macro", "weighted") if labels.multi_label else ("macro", "weighted")
    metrics: Metrics = {"rows": len(truth), "accuracy": float(accuracy_score(truth, predicted))}
    for average in averages:
        f1 = f1_score(truth, predicted, labels=occurring, average=average, zero_division=0.0)
        metrics[f"{average}_f1"] = float(f1)
    if probabilities is not None:
        metrics["log_loss"] = log_loss(truth, probabilities)
    ranking = probabilities if scores is None else scores
    if len(labels) == 2 and not labels.multi_label and ranking is not None:
        both = 0 < truth.sum() < len(truth)
        metrics["positive"] = labels.names[1]
        metrics["roc_auc"] = float(roc_auc_score(truth, ranking[:, 1])) if both else None
        metrics["pr_auc"] = float(average_precision_score(truth, ranking[:, 1])) if both else None
    columns = precision_recall_fscore_support(truth, predicted, labels=numbers, average=None, zero_division=0.0)
    if len(labels) == 2 and not labels.multi_label:
        metrics["f1"] = float(columns[2][1])
    metrics["per_class"] = class_metrics(labels.names, *columns)
    if not labels.multi_label:
        metrics["confusion"] = confusion(labels.names, truth, predicted)
    return metrics


def check_memory(labels: Labels, rows: int, *, evaluated: bool = False) -> None:
    """Refuse labels whose confusion matrix, or multi-label the tables of ``rows`` texts, exceed the memory.

    ``evaluated``: the texts are predicted and measured, which takes more memory than training.

    Raises:
        UserError: they need more than the machine has, or there are over `MAX_LABELS` multi-label.
    """
    count = len(labels)
    if labels.multi_label and count > MAX_LABELS:
        raise UserError(f"{count:,} labels are more than {MAX_LABELS:,}; join or leave out rare labels")
    cell = _PREDICTION_BYTES if evaluated else _INDICATOR_BYTES
    needed = count * (cell * rows if labels.multi_label else _CONFUSION_BYTES * count)
    if needed > psutil.virtual_memory().total:
        table = f"labels of {rows:,} examples" if labels.multi_label else "confusion matrix"
        raise UserError(
            f"{count:,} classes need {needed / 1e9:,.0f} GB of memory for the {table}; join or leave out rare classes"
        )


def class_metrics(names: Iterable[str], *columns: Iterable[float]) -> dict[str, Metrics]:
    """Value of ``per_class`` from the columns of precision, recall, F1 and support."""
    return {
        name: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
        for name, precision, recall, f1, support in zip(names, *columns, strict=True)
    }


def confusion(names: Sequence[str], truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> Metrics:
    """Value of ``confusion`` for (rows,) classes."""
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(truth, predicted, labels=np.arange(len(names)))
    percent = 100 * counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    return {"labels": list(names), "counts": counts.tolist(), "percent": percent.round(2).tolist()}


def log_loss(truth: NDArray[np.int64], probabilities: Floats) -> float:
    """Mean negative log-likelihood in nats; probabilities are clipped at the epsilon of float32.

    Args:
        truth: (rows,) classes, or (rows, classes) zeros and ones, whose losses are averaged over the classes.
        probabilities: (rows, classes).
    """
    likely = np.clip(probabilities.astype(np.float64), np.finfo(np.float32).eps, None)
    if truth.ndim == 1:
        return float(-np.log(likely[np.arange(len(truth)), truth]).mean())
    unlikely = np.clip(1.0 - probabilities.astype(np.float64), np.finfo(np.float32).eps, None)
    return float(-np.where(truth == 1, np.log(likely), np.log(unlikely)).mean())


def scalars(metrics: Mapping[str, Any]) -> Metrics:
    """Select the metrics that are a number, or ``None`` if undefined, without tables such as ``confusion``."""
    return {name: value for name, value in metrics.items() if value is None or isinstance(value, int | float)}


def summarise(runs: Sequence[Metrics]) -> dict[str, Metrics]:
    """Mean and deviation of each metric over seeds or folds: ``{metric: {mean, std, values}}``.

    ``std`` is the sample deviation (n - 1), ``None`` for one run. Metrics that a run lacks are left out.
    """
    columns: dict[str, list[Any]] = {name: [run.get(name) for run in runs] for name in (runs[0] if runs else ())}
    return {
        name: {
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else None,
            "values": values,
        }
        for name, values in columns.items()
        if all(isinstance(value, float) for value in values)
    }
