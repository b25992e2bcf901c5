"""Titles of metrics, baselines and loss terms, the same in tables, figures and sentences."""

from __future__ import annotations

METRICS = {
    "accuracy": "accuracy",
    "exact_match": "exact match",
    "f1": "F1",
    "rouge1": "ROUGE-1",
    "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L",
    "spearman": "Spearman correlation",
    "quadratic_kappa": "quadratic weighted kappa",
    "pearson": "Pearson correlation",
    "roc_auc": "ROC AUC",
    "macro_f1": "macro F1",
    "pr_auc": "PR AUC",
    "absolute_error": "mean absolute error",
}
MAIN_METRICS = [metric for metric in METRICS if metric not in {"pr_auc", "absolute_error"}]
"""Metrics that may rank models, the preferred ones first, where a result does not name its own ``measures``."""
FURTHER_METRICS = ("macro_f1", "roc_auc")
"""Metrics shown in a comparison besides the one that ranks: of rare classes, and of the order of examples."""
BASELINES = {"majority": "majority class", "tfidf": "TF-IDF + linear"}
_TERMS = {"mlm": "masked LM", "causal": "causal LM"}


def metric_title(metric: str) -> str:
    """Title of a metric; its name without underscores if it has none."""
    return METRICS.get(metric, metric.replace("_", " "))


def baseline_title(baseline: str) -> str:
    """Title of a baseline; its name if it has none."""
    return BASELINES.get(baseline, baseline)


def term_title(term: str) -> str:
    """Title of a term of the loss."""
    return _TERMS.get(term, term.replace("_", " "))
