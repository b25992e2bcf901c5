"""Tables of comparisons alone: verdicts, trials, cost by length, crossovers, ablations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from homespun.comparison_results import Crossover
from homespun.report import formats
from homespun.report.comparison_plots import Ablation, ByLength
from homespun.report.comparison_quality import Candidate, TaskComparison
from homespun.report.comparison_records import Comparison, TrialRecord, Variant
from homespun.report.formats import FURTHER_METRICS, metric_title, number
from homespun.report.records import RunRecord, Tree, architecture, final_losses, flatten
from homespun.report.table import Column, Row, Table, Writer, numbers, slug, spreads, texts
from homespun.report.tables import difference_table, different_rows, resource_table
from homespun.results import mean_and_deviation

_PATH_KEYS = {"out", "path", "start_from", "name"}  # where a trial is stored is no setting


def quality(task: TaskComparison) -> Table:
    """Metric, verdict and p-values of each model and baseline of a task."""
    rows: list[Row] = []
    marked = set()
    for index, candidate in enumerate(task.candidates):
        test = task.against_best.get(candidate.name)
        if test is None:
            outcome = f"no result: {candidate.why}" if candidate.why else "no result yet"
        else:
            outcome = "among the best" if test.not_worse else "below"
            marked |= {index} if test.not_worse else set()
        log_loss = mean_and_deviation(candidate.log_loss)
        tested = (test.gap, test.interval, test.texts, test.trainings, test.adjusted) if test else (None,) * 5
        rows.append(
            (
                *(candidate.name, candidate.spread, outcome, *tested, *_to_own_baseline(task, candidate)),
                *(mean_and_deviation(candidate.others.get(other, ())) for other in FURTHER_METRICS),
                log_loss and log_loss[0],
                len(candidate.values) if candidate.kind == "model" and candidate.values else None,
                candidate.texts,
                candidate.state,
            )
        )
    columns = (
        *texts("model"),
        *spreads(formats.spread, task.title),
        *texts("verdict"),
        *numbers(formats.points, "difference to best"),
        Column("95 % interval", formats.points_interval, parts=("low", "high")),
        *numbers(formats.probability, f"p ({task.part} set)", "p (seeds)", "p (Holm)"),
        *texts("own baselines"),
        *numbers(formats.points, "difference to own baseline"),
        *spreads(formats.share_spread, *map(metric_title, FURTHER_METRICS)),
        *numbers(formats.loss, "log loss"),
        *numbers(formats.integer, "trainings", f"{task.part} examples"),
        *texts("trials"),
    )
    note = (
        f"Marked: the best mean and every model not significantly worse (p > 0.05, Holm). ±: standard deviation over "
        f"trainings. Differences in percentage points, with the interval of a paired bootstrap on the same rows. "
        f"p ({task.part} set): paired permutation test. p (seeds): Student's t, pooled variance. p (Holm): the larger, "
        f"corrected for {task.pairs} pairs."
    )
    table = Table(f"quality-{slug(task.name)}", task.name, columns, tuple(rows), note, frozenset(marked))
    return table.without_empty_columns()


def pairs(task: TaskComparison) -> Table | None:
    """Every model against every other candidate, the largest difference first; None for fewer than three pairs."""
    baselines = {candidate.name for candidate in task.candidates if candidate.kind == "baseline"}
    found = {names: test for names, test in task.between.items() if not baselines.issuperset(names)}
    if len(found) < 3:
        return None
    rows = [
        (*names, v.gap, v.texts, v.trainings, v.adjusted, "not significant" if v.not_worse else "below")
        for names, v in sorted(found.items(), key=lambda item: item[1].gap or 0.0)
    ]
    columns = (
        *texts("higher", "lower"),
        *numbers(formats.points, "difference"),
        *numbers(formats.probability, f"p ({task.part} set)", "p (seeds)", "p (Holm)"),
        *texts("the lower is"),
    )
    note = "Differences in percentage points; p-values as in the table above."
    return Table(f"pairs-{slug(task.name)}", task.name, columns, tuple(rows), note).without_empty_columns()


def _to_own_baseline(task: TaskComparison, candidate: Candidate) -> tuple[str | None, float | None]:
    """Verdict and difference to the best of its own baselines, where variants have different ones."""
    own = task.own.get(candidate.name, {})
    highest = next((c.name for c in task.candidates if c.name in own), None)
    if highest is None:
        return None, None
    test = own[highest].swapped()
    assert test.gap is not None
    return "not significant" if test.not_worse else "below" if test.gap < 0 else "above", test.gap


def resources(comparison: Comparison, stage: str) -> Table | None:
    """Resources of each variant in a stage, means over trials."""
    rows: list[tuple[str, str | None, Mapping[str, float | None], str]] = []
    for variant in comparison.variants:
        mean = variant.mean(stage)
        if mean is None:
            rows.append(
                (variant.name, None, {}, variant.state if variant.why is None else f"{variant.state}: {variant.why}")
            )
            continue
        # of inference the table by length has all; this is the largest measured length
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
    """Every trial with its state."""
    columns = (
        *texts("variation"),
        *numbers(formats.integer, "seed"),
        *texts("state", "where", "why"),
        *numbers(formats.duration, "time"),
        *texts("notes"),
    )
    rows = tuple(
        (t.name, t.seed, t.status, t.stage or None, t.why or None, t.result.seconds, "; ".join(t.result.notes) or None)
        for t in comparison.trials
    )
    return Table("trials", "All trials", columns, rows).without_empty_columns()


def flat_trials(comparison: Comparison) -> Table:
    """One row for each trial with all its numbers: ``comparison.csv``."""
    found = [_flat_trial(trial) for trial in comparison.trials]
    titles = dict.fromkeys(key for row in found for key in row)
    return Table("comparison", "", texts(*titles), tuple(tuple(row.get(title) for title in titles) for row in found))


def _flat_trial(trial: TrialRecord) -> dict[str, object]:
    row: dict[str, object] = {"variation": trial.name, "seed": trial.seed, "status": trial.status}
    row |= {"stage": trial.stage or None, "why": trial.why or None, "seconds": trial.result.seconds}
    for name, stage in trial.stages.items():
        row[f"{name}.process_seconds"] = stage.result.seconds
        if stage.record is None:
            continue
        train, validation = final_losses(stage.record)
        row |= {f"{name}.{key}": value for key, value in stage.record.summary.items()}
        row |= {f"{name}.train.{key}": value for key, value in train.items()}
        row |= {f"{name}.validation.{key}": value for key, value in validation.items()}
        row |= {f"{name}.test.{key}": value for key, value in stage.record.result.test.numbers().items()}
    for measured in trial.inference:
        at = formats.text(measured.length)
        row |= {f"inference.{at}.{key}": measured.number(key) for key in ("seconds_per_text", "peak_bytes")}
    return row | {
        f"{stage}: {key}": formats.text(value)
        for stage, given in trial.settings.items()
        for key, value in given.items()
    }


def inference(variant: Variant, what: str) -> dict[float, list[float]]:
    """A cost of inference by length, one value for each trial."""
    found: dict[float, list[float]] = {}
    for trial in variant.done:
        for row in trial.inference:
            length, value = row.length, row.number(what)
            if length and value:
                found.setdefault(length, []).append(value)
    return found


def in_inference(costs: Mapping[str, ByLength], title: str, name: str, write: Writer) -> Table | None:
    """A cost by variant and length, mean over trials."""
    lengths = sorted({length for measured in costs.values() for length in measured})
    if not lengths:
        return None
    columns = (*texts("variation"), *numbers(write, *(f"{length:,.0f} tokens" for length in lengths)))
    rows = tuple(
        (variant, *(fmean(measured[at]) if at in measured else None for at in lengths))
        for variant, measured in costs.items()
    )
    return Table(name, title, columns, rows)


def crossings(found: Sequence[Crossover], what: str, name: str) -> Table | None:
    """Lengths from which one variant costs less than another."""
    columns = (*numbers(formats.integer, "from about, tokens"), *texts("costs less", "than", "measured between"))
    rows = tuple((round(c.length), c.cheaper, c.dearer, f"{c.after:,.0f} and {c.until:,.0f}") for c in found)
    note = "Only where all trials agree on the order before and after; the length is estimated between the two."
    return Table(name, f"Crossovers: {what}", columns, rows, note) if rows else None


def differences(comparison: Comparison, stages: Sequence[str]) -> Table | None:
    """Settings of the configs that differ between variants, by stage."""
    rows: list[Row] = []
    names = [variant.name for variant in comparison.variants]
    for stage in stages:
        firsts = {v.name: records[0].config for v in comparison.variants if (records := _with_config(v, stage))}
        for key, *values in different_rows(list(firsts.values())):
            if str(key).rpartition(".")[2] not in _PATH_KEYS:
                by_name = dict(zip(firsts, values, strict=True))
                rows.append((f"{stage}: {key}", *map(by_name.get, names)))
    return difference_table("differences", names, rows)


def _with_config(variant: Variant, stage: str) -> list[RunRecord]:
    """Runs of a stage with a config, of unfinished and failed trials too."""
    found = [trial.stages[stage].record for trial in variant.trials if stage in trial.stages]
    return [record for record in found if record is not None and record.config]


def machines(comparison: Comparison) -> list[tuple[Tree, list[str]]]:
    """Distinct environments, each with its trials, the most used first."""
    found: dict[str, tuple[Tree, list[str]]] = {}
    for trial in comparison.trials:
        for stage in trial.stages.values():
            if stage.record is not None and stage.record.environment:
                tree = stage.record.environment
                who = found.setdefault(repr(sorted(flatten(tree).items())), (tree, []))[1]
                if (name := f"{trial.name}, seed {trial.seed}") not in who:
                    who.append(name)
    return sorted(found.values(), key=lambda pair: -len(pair[1]))


def ablations(comparison: Comparison, values: Mapping[str, Sequence[float]], stages: Sequence[str]) -> list[Ablation]:
    """Settings that several variants give with different values, all else equal, with their quality.

    All else includes what a stage starts from (recipe, model, word vectors), which is never the varied setting.

    Args:
        values: metric of each training by variant.
        stages: stages whose settings are compared.
    """
    done = {v.name: v.done[0] for v in comparison.variants if values.get(v.name) and v.done}
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
                point = mean_and_deviation(values[name])
                assert point is not None
                lines.setdefault(rest, []).append((tree[key], *point))
        kept = {rest: _in_order(line) for rest, line in lines.items() if len({repr(v) for v, *_ in line}) > 1}
        if kept:
            found.append(Ablation(key, kept))
    return found


def _settings(trial: TrialRecord, stages: Sequence[str]) -> dict[str, object]:
    """Settings of the stages without the seed, in which the trials of a variant differ."""
    given = flatten({stage: _by_index(trial.settings[stage]) for stage in stages if stage in trial.settings})
    return {key: value for key, value in given.items() if not key.endswith(".train.seed")}


def _by_index(value: object) -> object:
    """Lists of mappings as mappings by index, which `flatten` enters: the radius of the first of two patterns."""
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
    """The points of an ablation."""
    columns = (*texts("all else", found.setting), *spreads(write, title))
    rows = tuple((rest or None, value, (mean, dev)) for rest, line in found.lines.items() for value, mean, dev in line)
    return Table(name, f"Along {found.setting}", columns, rows).without_empty_columns()
