"""Formats of numbers with digits, separators and units; titles of metrics, baselines and loss terms."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Sequence

Writer = Callable[[object], str]
DASH = "–"
NB = "\u00a0"
"""No-break space between a number and its unit."""


def number(value: object) -> float | None:
    """Return ``value`` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def text(value: object) -> str:
    """Format a plain value in one line."""
    if value is None or value == "":
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else DASH
    if isinstance(value, (list, tuple)):
        return ", ".join(text(item) for item in value) or DASH
    return " ".join(str(value).split()) or DASH


def integer(value: object) -> str:
    """Format as ``12,345``."""
    n = number(value)
    return DASH if n is None else f"{n:,.0f}"


def amount(value: object) -> str:
    """Format an integer as ``12,345``, other numbers with one decimal."""
    n = number(value)
    return DASH if n is None else f"{n:,.0f}" if isinstance(value, int) else f"{n:,.1f}"


def count(value: object) -> str:
    """Format with three digits: ``512``, ``12.3k``, ``4.56M``, ``1.20B``."""
    n = number(value)
    if n is None:
        return DASH
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(n) >= 0.9995 * size:
            return f"{_three(n / size)}{unit}"
    return f"{n:,.0f}" if n == int(n) else _three(n)


def tick(value: float) -> str:
    """Format a number at an axis: ``4,000``, ``20k``, ``1.5M``."""
    for unit, size, least in (("B", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if abs(value) >= least:
            return f"{value / size:,.6g}{unit}"
    return f"{value:,.6g}"


def rate(value: object) -> str:
    """Format a count a second without its unit: ``12.3k``, ``8.51``."""
    n = number(value)
    return DASH if n is None else _three(n) if abs(n) < 999.5 else count(n)


def memory(value: object) -> str:
    """Format bytes as ``512 MB`` or ``1.93 GB``, in powers of ten."""
    n = number(value)
    if n is None:
        return DASH
    if n >= 0.9995e9:
        return f"{_three(n / 1e9)}{NB}GB"
    return f"{n / 1e6:,.0f}{NB}MB" if n >= 1e6 else f"{n / 1e3:,.0f}{NB}kB"


def duration(value: object) -> str:
    """Format seconds as ``0.042 s``, ``12.3 s``, ``1 m 23 s``, ``2 h 05 m``, ``3 d 04 h``."""
    n = number(value)
    if n is None or n < 0:
        return DASH
    if n < 59.95:
        return f"{n:.1f}{NB}s" if n >= 9.995 else f"{n:.2f}{NB}s" if n >= 0.9995 else f"{n:.2g}{NB}s"
    seconds = round(n)
    if seconds < 3600:
        return f"{seconds // 60}{NB}m{NB}{seconds % 60:02d}{NB}s"
    minutes = round(n / 60)
    if minutes < 1440:
        return f"{minutes // 60}{NB}h{NB}{minutes % 60:02d}{NB}m"
    hours = round(n / 3600)
    return f"{hours // 24}{NB}d{NB}{hours % 24:02d}{NB}h"


def step_seconds(value: object) -> str:
    """Format the seconds of a step with three digits: ``0.142``."""
    n = number(value)
    return DASH if n is None else _three(n)


def loss(value: object) -> str:
    """Format as ``3.142``, ``0.0421``, ``123.4``."""
    n = number(value)
    if n is None:
        return DASH
    return f"{n:.3f}" if 0.1 <= abs(n) < 100 else f"{n:,.1f}" if abs(n) >= 100 else f"{n:.3g}"


def percent(value: object) -> str:
    """Format a share (0 to 1) as ``91.5 %``."""
    n = number(value)
    return DASH if n is None else f"{100 * n:.1f}{NB}%"


def share(value: object) -> str:
    """Format a share (0 to 1) with three decimals: ``0.912``."""
    n = number(value)
    return DASH if n is None else f"{n:.3f}"


def points(value: object) -> str:
    """Format a difference of two shares in percentage points, signed: ``+1.2``, ``−0.4``."""
    n = number(value)
    return DASH if n is None else f"{100 * n:+.1f}".replace("-", "−")


def signed(value: object) -> str:
    """Format a difference of two shares: ``+0.012``, ``−0.004``."""
    n = number(value)
    return DASH if n is None else f"{n:+.3f}".replace("-", "−")


def probability(value: object) -> str:
    """Format as ``0.043``, ``< 0.001``."""
    n = number(value)
    return DASH if n is None else f"<{NB}0.001" if n < 0.001 else f"{n:.3f}"


def points_interval(value: object) -> str:
    """Format a pair of differences of shares in percentage points: ``+0.4 to +2.1``."""
    low, high = _pair(value)
    return DASH if low is None or high is None else f"{points(low)} to {points(high)}".replace(" ", NB)


def spread(value: object) -> str:
    """Format mean and standard deviation of shares: ``91.5 ± 0.3 %``, or ``91.5 %`` without a deviation."""
    mean, deviation = _pair(value)
    if mean is None or deviation is None:
        return percent(mean)
    return f"{100 * mean:.1f}{NB}±{NB}{100 * deviation:.1f}{NB}%"


def share_spread(value: object) -> str:
    """Format mean and standard deviation of shares: ``0.912 ± 0.003``."""
    mean, deviation = _pair(value)
    return share(mean) if mean is None or deviation is None else f"{mean:.3f}{NB}±{NB}{deviation:.3f}"


def loss_spread(value: object) -> str:
    """Format mean and standard deviation of losses: ``3.142 ± 0.021``."""
    mean, deviation = _pair(value)
    return loss(mean) if mean is None or deviation is None else f"{loss(mean)}{NB}±{NB}{deviation:.2g}"


def interval(value: object) -> str:
    """Format a pair of shares: ``90.9 – 92.1 %``."""
    low, high = _pair(value)
    return DASH if low is None or high is None else f"{100 * low:.1f}{NB}–{NB}{100 * high:.1f}{NB}%"


def _pair(value: object) -> tuple[float | None, float | None]:
    return (number(value[0]), number(value[1])) if isinstance(value, (tuple, list)) else (None, None)


def quoted(value: object) -> str:
    """Quote a word of a shell command if needed."""
    return shlex.quote(str(value))


def capitalized(sentence: str) -> str:
    """Return a sentence with a capital letter at its start; the others stay."""
    return sentence[:1].upper() + sentence[1:]


def listed(names: Sequence[str]) -> str:
    """Join at least one name: ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def named(pairs: Iterable[tuple[str, object]], write: str) -> str:
    """Join names with values: ``a (1.200), b (1.300) and c (1.400)``; ``write`` names a format of this module."""
    return listed([f"{name} ({globals()[write](value)})" for name, value in pairs])


def _three(n: float) -> str:
    if n == 0:
        return "0"
    if abs(n) < 1:
        return f"{n:#.3g}"
    return f"{n:,.0f}" if abs(n) >= 99.95 else f"{n:.1f}" if abs(n) >= 9.995 else f"{n:.2f}"


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
    "micro_f1": "micro F1",
    "pr_auc": "PR AUC",
    "absolute_error": "mean absolute error",
}
MAIN_METRICS = [metric for metric in METRICS if metric not in {"micro_f1", "pr_auc", "absolute_error"}]
"""Metrics that may rank models, the preferred ones first, where a result does not name its own ``measures``."""
FURTHER_METRICS = ("macro_f1", "roc_auc")
"""Metrics shown in a comparison besides the one that ranks: of rare classes, and of the order of examples."""
BASELINES = {"majority": "majority class", "tfidf": "TF-IDF + linear"}
_TERMS = {"mlm": "masked LM", "causal": "causal LM"}


def metric_title(metric: str) -> str:
    """Return the title of a metric, by default its name without underscores."""
    return METRICS.get(metric, metric.replace("_", " "))


def metric_text(value: float | None, task: str = "") -> str:
    """Format a metric of a fit in percent, or with three digits for regression and language models."""
    if value is None:
        return DASH
    return f"{value:.3f}" if task in ("regression", "language-model") else f"{100 * value:.1f} %"


def baseline_title(baseline: str) -> str:
    """Return the title of a baseline, by default its name."""
    return BASELINES.get(baseline, baseline)


def term_title(term: str) -> str:
    """Return the title of a loss term."""
    return _TERMS.get(term, term.replace("_", " "))
