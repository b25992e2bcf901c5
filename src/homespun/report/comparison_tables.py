"""Tables of comparisons: quality, trials, cost by length, crossovers, Pareto fronts, ablations."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from homespun.comparison_results import Crossover, SignificanceTest
from homespun.config import flatten
from homespun.report import formats
from homespun.report.comparison_quality import Candidate, TaskComparison, compare_seeds
from homespun.report.comparison_records import Comparison, TrialRecord, Variant
from homespun.report.document import Getter, Row, Table, numbers, slug, text, texts, value
from homespun.report.formats import FURTHER_METRICS, Writer, metric_title, number
from homespun.report.records import Tree, architecture, final_losses
from homespun.report.tables import difference_table, different_rows, resource_table
from homespun.results import mean_and_deviation

_PATH_KEYS = {"out", "path", "start_from", "name"}  # the folder of a trial is no setting


def quality(task: TaskComparison) -> Table:
    """Build a table with metric, verdict and p-values of each model and baseline of a task."""
    note = (
        f"Marked: the best mean and every model not significantly worse (p > 0.05, Holm). ±: standard deviation over "
        f"trainings. Differences in percentage points, with the interval of a paired bootstrap on the same rows. "
        f"p ({task.part} set): paired permutation test. p (seeds): Student's t, pooled variance. p (Holm): the larger, "
        f"corrected for {task.pairs} pairs. Detectable: a true difference that is found in 80 % of "
        f"such comparisons."
    )

    def of_others(metric: str) -> Getter[Candidate]:
        return value(metric_title(metric), lambda c: mean_and_deviation(c.others.get(metric, ())), formats.share_spread)

    table = Table.of(
        f"quality-{slug(task.name)}",
        task.name,
        task.candidates,
        text("model", lambda c: c.name),
        value(task.title, lambda c: c.spread, formats.spread),
        text("verdict", lambda c: _verdict(task, c)),
        value("difference to best", lambda c: task.test(c).gap, formats.points),
        value("95 % interval", lambda c: task.test(c).interval, formats.points_interval),
        value(f"p ({task.part} set)", lambda c: task.test(c).texts, formats.probability),
        value("p (seeds)", lambda c: task.test(c).trainings, formats.probability),
        value("p (Holm)", lambda c: task.test(c).adjusted, formats.probability),
        value("detectable", lambda c: task.test(c).detectable, formats.points),
        text("own baselines", lambda c: _to_own_baseline(task, c)[0]),
        value("difference to own baseline", lambda c: _to_own_baseline(task, c)[1], formats.points),
        *map(of_others, FURTHER_METRICS),
        value("log loss", lambda c: fmean(c.log_loss) if c.log_loss else None, formats.loss),
        value("trainings", lambda c: len(c.values) if c.kind == "model" and c.values else None, formats.integer),
        value(f"{task.part} examples", lambda c: c.examples, formats.integer),
        text("trials", lambda c: c.state),
        note=note,
        sparse=True,
    )
    marked = frozenset(i for i, candidate in enumerate(task.candidates) if task.test(candidate).not_worse)
    return replace(table, marked=marked)


def _verdict(task: TaskComparison, candidate: Candidate) -> str:
    if candidate.values:
        return "among the best" if task.test(candidate).not_worse else "below"
    return f"no result: {candidate.why}" if candidate.why else "no result yet"


def _to_own_baseline(task: TaskComparison, candidate: Candidate) -> tuple[str | None, float | None]:
    """Return verdict and difference to the best of a candidate's baselines, if variants have different ones."""
    own = task.own.get(candidate.name, {})
    highest = next((c.name for c in task.candidates if c.name in own), None)
    if highest is None:
        return None, None
    test = own[highest].swapped()
    assert test.gap is not None
    return "not significant" if test.not_worse else "below" if test.gap < 0 else "above", test.gap


def pairs(task: TaskComparison) -> Table | None:
    """Compare every model with every other candidate, the largest difference first; None for fewer than three pairs."""
    baselines = {candidate.name for candidate in task.candidates if candidate.kind == "baseline"}
    found = [(*names, test) for names, test in task.between.items() if not baselines.issuperset(names)]
    if len(found) < 3:
        return None
    return Table.of(
        f"pairs-{slug(task.name)}",
        task.name,
        sorted(found, key=lambda pair: pair[2].gap or 0.0),
        text("higher", lambda pair: pair[0]),
        text("lower", lambda pair: pair[1]),
        value("difference", lambda pair: pair[2].gap, formats.points),
        value(f"p ({task.part} set)", lambda pair: pair[2].texts, formats.probability),
        value("p (seeds)", lambda pair: pair[2].trainings, formats.probability),
        value("p (Holm)", lambda pair: pair[2].adjusted, formats.probability),
        value("detectable", lambda pair: pair[2].detectable, formats.points),
        text("the lower is", lambda pair: "not significant" if pair[2].not_worse else "below"),
        note="Differences in percentage points; p-values as in the table above.",
        sparse=True,
    )


def held_out_losses(group: Sequence[Variant], name: str) -> Table | None:
    """Build a table of comparable held-out losses of pretraining, tested over seeds; None without losses."""
    losses = {variant.name: found for variant in group if (found := variant.validation_losses())}
    order = sorted(losses, key=lambda name: fmean(losses[name]))
    tests = {b: test for (a, b), test in compare_seeds(losses).items() if a == order[0]}
    table = Table.of(
        name,
        "Held-out loss of pretraining",
        [(variant, tests.get(variant, SignificanceTest())) for variant in order],
        text("variation", lambda row: row[0]),
        value("loss", lambda row: mean_and_deviation(losses[row[0]]), formats.loss_spread),
        value("difference to best", lambda row: row[1].gap, formats.loss),
        value("p (Holm)", lambda row: row[1].adjusted, formats.probability),
        value("detectable", lambda row: row[1].detectable, formats.loss),
        value("trainings", lambda row: len(losses[row[0]]), formats.integer),
        note="p: Student's t over seeds, pooled variance, corrected for all pairs. Detectable: a true difference that "
        "is found in 80 % of such comparisons.",
        sparse=True,
    )
    return table if losses else None


def resources(comparison: Comparison, stage: str) -> Table | None:
    """Build a table of resources of each variant in a stage, means over trials."""
    rows: list[tuple[str, str | None, Mapping[str, float | None], str]] = []
    for variant in comparison.variants:
        mean = variant.mean(stage)
        if mean is None:
            state = variant.state if variant.why is None else f"{variant.state}: {variant.why}"
            rows.append((variant.name, None, {}, state))
            continue
        memory = max((value for row in inference(variant, "peak_bytes").values() for value in row), default=None)
        # a model fine-tuned in this comparison started from one of its folders, which is no architecture
        kind = architecture(mean) if stage == "pretrain" or not comparison.pretrains else None
        rows.append((variant.name, kind, {**mean.summary, "inference_bytes": memory}, variant.state))
    note = (
        "Means over the trials that are done. FLOPs forward and backward; memory in training with gradients and "
        "optimizer, in inference at the largest measured length; padding is not counted as tokens."
    )
    headings = {"run": "variation", "state": "trials", "peak_bytes": "peak memory, training"}
    title = "In pretraining" if stage == "pretrain" else f"In fine-tuning: {stage}"
    table = resource_table(f"resources-{slug(stage)}", title, rows, note, headings)
    return table if len(table.columns) > 2 else None


def trials(comparison: Comparison) -> Table:
    """Build a table of all trials with their state."""
    return Table.of(
        "trials",
        "All trials",
        comparison.trials,
        text("variation", lambda trial: trial.name),
        value("seed", lambda trial: trial.seed, formats.integer),
        text("state", lambda trial: trial.status),
        text("where", lambda trial: trial.stage or None),
        text("why", lambda trial: trial.why or None),
        value("time", lambda trial: trial.result.seconds, formats.duration),
        text("notes", lambda trial: "; ".join(trial.result.notes) or None),
        sparse=True,
    )


def flat_trials(comparison: Comparison) -> Table:
    """Build the table of ``comparison.csv``, one row for each trial with all its numbers."""
    found = [_flat_trial(trial) for trial in comparison.trials]
    titles = dict.fromkeys(key for row in found for key in row)
    return Table("comparison", "", texts(*titles), tuple(tuple(row.get(title) for title in titles) for row in found))


def _flat_trial(trial: TrialRecord) -> dict[str, object]:
    row: dict[str, object] = {"variation": trial.name, "seed": trial.seed, "status": trial.status}
    row |= {"stage": trial.stage or None, "why": trial.why or None, "seconds": trial.result.seconds}
    for name, stage in trial.stages.items():
        row[f"{name}.process_seconds"] = stage.result.seconds
        if stage.record is not None:
            train, validation = final_losses(stage.record)
            test = stage.record.result.test.numbers()
            row |= {f"{name}.{key}": number for key, number in stage.record.summary.items()}
            for part, found in (("train", train), ("validation", validation), ("test", test)):
                row |= {f"{name}.{part}.{key}": number for key, number in found.items()}
    for measured in trial.inference:
        at = formats.text(measured.length)
        row |= {f"inference.{at}.{key}": measured.number(key) for key in ("seconds_per_text", "peak_bytes")}
    settings = {f"{stage}: {key}": value for stage, given in trial.settings.items() for key, value in given.items()}
    return row | {key: formats.text(value) for key, value in settings.items()}


ByLength = Mapping[float, Sequence[float]]
"""Measurements (of several trials) of a cost by length."""


def inference(variant: Variant, what: str) -> dict[float, list[float]]:
    """Return a cost of inference by length, one value for each trial."""
    found: dict[float, list[float]] = {}
    for row in (row for trial in variant.done for row in trial.inference):
        if row.length and (value := row.number(what)):
            found.setdefault(row.length, []).append(value)
    return found


def in_inference(costs: Mapping[str, ByLength], title: str, name: str, write: Writer) -> Table:
    """Build a table of a cost by variant and length, mean over trials."""
    lengths = sorted({length for measured in costs.values() for length in measured})
    columns = (*texts("variation"), *numbers(write, *(f"{length:,.0f} tokens" for length in lengths)))
    rows = tuple(
        (variant, *(fmean(measured[at]) if at in measured else None for at in lengths))
        for variant, measured in costs.items()
    )
    return Table(name, title, columns, rows)


def crossovers(costs: Mapping[str, ByLength]) -> list[Crossover]:
    """Find changes of order between two models along the measured lengths, the shortest first.

    Lengths at which the ranges of both models overlap are skipped, so that noise causes no crossover. A crossover is
    interpolated linearly in the logarithms of length and cost.
    """
    found: list[Crossover] = []
    for first, second in itertools.combinations(costs, 2):
        before: tuple[float, float] | None = None  # last length without overlap, log cost ratio
        for length in sorted(costs[first].keys() & costs[second].keys()):
            a, b = costs[first][length], costs[second][length]
            if min(a) <= max(b) and min(b) <= max(a):
                continue
            ratio = math.log(fmean(a) / fmean(b))
            if before is not None and (before[1] > 0) != (ratio > 0):
                share = before[1] / (before[1] - ratio)
                at = math.exp(math.log(before[0]) + share * math.log(length / before[0]))
                cheaper, dearer = (first, second) if ratio < 0 else (second, first)
                found.append(Crossover(cheaper=cheaper, dearer=dearer, length=at, after=before[0], until=length))
            before = length, ratio
    return sorted(found, key=lambda crossing: crossing.length)


def crossings(found: Sequence[Crossover], what: str, name: str) -> Table:
    """Build a table of lengths from which one variant costs less than another."""
    return Table.of(
        name,
        f"Crossovers: {what}",
        found,
        value("from about, tokens", lambda crossing: round(crossing.length), formats.integer),
        text("costs less", lambda crossing: crossing.cheaper),
        text("than", lambda crossing: crossing.dearer),
        text("measured between", lambda crossing: f"{crossing.after:,.0f} and {crossing.until:,.0f}"),
        note="Only where all trials agree on the order before and after; the length is estimated between the two.",
    )


@dataclass(frozen=True)
class Cost:
    """Cost of each variant in the unit of the title, and the variants on the Pareto front."""

    kind: str
    title: str
    values: Mapping[str, float]
    front: Sequence[str]


def pareto(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Compute the Pareto front of ``{name: (cost, quality)}``, the cheapest first."""
    front: list[str] = []
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if not front or points[name] == points[front[-1]] or points[name][1] > points[front[-1]][1]:
            front.append(name)
    return front


def differences(comparison: Comparison, stages: Sequence[str]) -> Table:
    """Build a table of settings that differ between variants, by stage."""
    rows: list[Row] = []
    names = [variant.name for variant in comparison.variants]
    for stage in stages:
        runs = {v.name: [r.config for r in v.records(stage, finished=False) if r.config] for v in comparison.variants}
        firsts = {name: configs[0] for name, configs in runs.items() if configs}
        for key, *values in different_rows(list(firsts.values())):
            if str(key).rpartition(".")[2] not in _PATH_KEYS:
                by_name = dict(zip(firsts, values, strict=True))
                rows.append((f"{stage}: {key}", *map(by_name.get, names)))
    return difference_table("differences", names, rows)


def machines(comparison: Comparison) -> list[tuple[Tree, list[str]]]:
    """Return distinct environments, each with its trials, the most used first."""
    found: dict[str, tuple[Tree, dict[str, None]]] = {}
    for trial in comparison.trials:
        for stage in trial.stages.values():
            if stage.record is not None and (tree := stage.record.environment):
                _, users = found.setdefault(repr(sorted(flatten(tree).items())), (tree, {}))
                users[f"{trial.name}, seed {trial.seed}"] = None
    return sorted(((tree, list(users)) for tree, users in found.values()), key=lambda pair: -len(pair[1]))


@dataclass(frozen=True)
class Ablation:
    """Quality by one setting: points ``(value, mean, deviation)`` of lines with equal other settings."""

    setting: str
    lines: Mapping[str, Sequence[tuple[object, float, float | None]]]


def ablations(comparison: Comparison, values: Mapping[str, Sequence[float]], stages: Sequence[str]) -> list[Ablation]:
    """Find settings that vary between variants with all else equal, with the quality.

    All else includes what a stage starts from (recipe, model, word vectors), which is never the varied setting.
    ``values`` are the metric of each training by variant; the settings are those of ``stages``.
    """
    points = {v.name: p for v in comparison.variants if v.done and (p := mean_and_deviation(values.get(v.name, ())))}
    done = {v.name: v.done[0] for v in comparison.variants if v.name in points}
    settings = {name: _settings(trial, stages) for name, trial in done.items()}
    written = {
        name: {key: formats.text(value) for key, value in (_start_settings(trial, stages) | settings[name]).items()}
        for name, trial in done.items()
    }
    keys = sorted({key for tree in written.values() for key in tree})
    varied = [key for key in keys if len({tree.get(key) for tree in written.values()}) > 1]
    short = Counter(key.rpartition(".")[2] for key in varied)
    words = {key: last if short[last := key.rpartition(".")[2]] == 1 else key for key in varied}
    found = []
    for key in varied:
        lines: dict[str, list[tuple[object, float, float | None]]] = {}
        for name, tree in settings.items():
            if key in tree:
                shared = written[name]
                rest = ", ".join(f"{words[k]} {shared[k]}" for k in varied if k != key and k in shared)
                lines.setdefault(rest, []).append((tree[key], *points[name]))
        kept = {rest: _in_order(line) for rest, line in lines.items() if len({repr(v) for v, *_ in line}) > 1}
        if kept:
            found.append(Ablation(key, kept))
    return found


def _settings(trial: TrialRecord, stages: Sequence[str]) -> dict[str, object]:
    """Return settings of the stages without the seed, in which the trials of a variant differ."""
    given = flatten({stage: _by_index(trial.settings[stage]) for stage in stages if stage in trial.settings})
    return {key: value for key, value in given.items() if not key.endswith(".train.seed")}


def _by_index(value: object) -> object:
    """Convert lists of mappings to mappings by index, which `flatten` enters."""
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        value = {str(index): item for index, item in enumerate(value)}
    return {key: _by_index(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _start_settings(trial: TrialRecord, stages: Sequence[str]) -> dict[str, object]:
    present = [trial.stages[stage] for stage in stages if stage in trial.stages]
    return {f"{stage.name}.{key}": value for stage in present for key, value in stage.start_settings.items()}


def _in_order(line: Sequence[tuple[object, float, float | None]]) -> list[tuple[object, float, float | None]]:
    numeric = all(number(value) is not None for value, *_ in line)
    return sorted(line, key=lambda point: number(point[0]) or 0.0) if numeric else list(line)


def ablation_table(found: Ablation, title: str, name: str, write: Writer) -> Table:
    """Build a table of the points of an ablation."""
    columns = (*texts("all else", found.setting), *numbers(write, title))
    rows = tuple((rest or None, value, (mean, dev)) for rest, line in found.lines.items() for value, mean, dev in line)
    return Table(name, f"Along {found.setting}", columns, rows).without_empty_columns()
