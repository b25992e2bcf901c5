"""How good a classifier is: metrics of true labels against predictions, as plain values for JSON and the report.

`classification_metrics` gives these keys for one label a text:

| key | what |
|---|---|
| `rows` | texts |
| `accuracy` | share of texts whose class is right |
| `macro_f1`, `weighted_f1` | mean F1 over the classes that occur or are predicted, each alike / by its rows |
| `log_loss` | mean negative log probability of the right class, in nats; where there are probabilities |
| `roc_auc`, `pr_auc`, `positive` | two classes only: areas under the ROC curve and precision-recall curve (average precision) of the class `positive`, the second; `None` where one class does not occur |
| `f1` | two classes only: F1 of the second |
| `per_class` | `{name: {precision, recall, f1, support}}` |
| `confusion` | `{labels, counts, percent}`: rows are the truth, columns the prediction, percent of each row |

and for several labels a text `rows`, `accuracy` (the whole set of labels is right), `micro_f1`, `macro_f1`,
`weighted_f1`, `log_loss` (mean binary one over all texts and classes) and `per_class`.
"""  # noqa: E501  a table

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    confusion_matrix,
    f1_score,
    precision_recall_fscore_support,
    roc_auc_score,
)

from homespun.data.labels import Labels

Metrics = dict[str, Any]


def classify(
    probabilities: NDArray[Any], labels: Labels, thresholds: Sequence[float] | None = None
) -> NDArray[np.int64]:
    """The predictions of (rows, classes) probabilities: (rows,) likeliest classes, or (rows, classes) zeros and ones
    where a text may have several, one for a probability above the class's threshold, which is one half if not given."""
    if labels.multi_label:
        return (probabilities > (0.5 if thresholds is None else np.array(thresholds))).astype(np.int64)
    likeliest: NDArray[np.int64] = probabilities.argmax(axis=1)
    return likeliest


def classification_metrics(
    labels: Labels,
    truth: NDArray[np.int64],
    predicted: NDArray[np.int64],
    *,
    probabilities: NDArray[Any] | None = None,
    scores: NDArray[Any] | None = None,
) -> Metrics:
    """The metrics listed above.

    Args:
        labels: the classes.
        truth: (rows,) class numbers, or (rows, classes) zeros and ones.
        predicted: like ``truth``; `classify` makes it of probabilities.
        probabilities: (rows, classes), where the classifier gives any.
        scores: (rows, classes), higher for likelier, of a classifier without probabilities, for the areas under curves.
    """
    if len(truth) == 0 or truth.shape != predicted.shape:
        raise ValueError(f"truth {truth.shape} and predictions {predicted.shape} must be alike and not empty")
    numbers = list(range(len(labels)))
    # without `labels` scikit-learn takes the classes that occur: absent ones do not pull the mean down
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
    metrics["per_class"] = {
        name: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
        for name, precision, recall, f1, support in zip(labels.names, *columns, strict=True)
    }
    if not labels.multi_label:
        counts = confusion_matrix(truth, predicted, labels=numbers)
        percent = 100 * counts / counts.sum(axis=1, keepdims=True).clip(min=1)
        metrics["confusion"] = {
            "labels": list(labels.names),
            "counts": counts.tolist(),
            "percent": percent.round(2).tolist(),
        }
    return metrics


def log_loss(truth: NDArray[np.int64], probabilities: NDArray[Any]) -> float:
    """Mean negative log probability of the truth, in nats; probabilities are clipped at the epsilon of float32.

    Args:
        truth: (rows,) classes, or (rows, classes) zeros and ones, of which the mean over the classes is taken.
        probabilities: (rows, classes).
    """
    likely = np.clip(probabilities.astype(np.float64), np.finfo(np.float32).eps, None)
    if truth.ndim == 1:
        return float(-np.log(likely[np.arange(len(truth)), truth]).mean())
    unlikely = np.clip(1.0 - probabilities.astype(np.float64), np.finfo(np.float32).eps, None)
    return float(-np.where(truth == 1, np.log(likely), np.log(unlikely)).mean())


def summarise(runs: Sequence[Metrics]) -> dict[str, dict[str, Any]]:
    """Mean and deviation over seeds or folds: ``{metric: {mean, std, values}}`` of each single-valued metric.

    ``std`` is the sample deviation (divided by n - 1), and ``None`` for a single run. Metrics that some run lacks are
    left out.
    """
    names = [name for name, value in runs[0].items() if isinstance(value, float)] if runs else []
    return {
        name: {
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else None,
            "values": values,
        }
        for name in names
        if all(isinstance(run.get(name), float) for run in runs)
        for values in [[run[name] for run in runs]]
    }
