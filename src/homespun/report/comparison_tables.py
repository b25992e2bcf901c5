"""The tables of a comparison."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from homespun.report import formats
from homespun.report.comparison_plots import Ablation
from homespun.report.comparison_quality import FURTHER_MEASURES, MEASURES, Candidate, TaskComparison
from homespun.report.comparison_records import Comparison, TrialRecord, Variant
from homespun.report.crossovers import ByLength, Crossover
from homespun.report.formats import number
from homespun.report.records import RunRecord, Tree, architecture, final_losses, flatten
from homespun.report.table import Column, Table
from homespun.report.tables import side_by_side
from homespun.results import mean_and_deviation

_PAIR = ("mean", "deviation")
_PATH_KEYS = {"out", "path", "start_from", "name"}  # where a trial stands is no setting of it


def quality(task: TaskComparison) -> Table:
    """Every contender of a task: its measure, what it is against the best, and what failed."""
    rows: list[tuple[Any, ...]] = []
    marked = set()
    for index, candidate in enumerate(task.candidates):
        test = task.against_best.get(candidate.name)
        if test is None:
            outcome = f"no result: {candidate.why}" if candidate.why else "no result yet"
        elif test.alike:
            marked.add(index)
            outcome = "among the best"
        else:
            outcome = "below"
        log_loss = mean_and_deviation(candidate.log_loss)
        rows.append(
            (
                candidate.name,
                candidate.spread,
                outcome,
                test and test.gap,
                test and test.interval,
                test and test.texts,
                test and test.trainings,
                test and test.adjusted,
                *_to_own_baseline(task, candidate),
                *(mean_and_deviation(candidate.others.get(other, ())) for other in FURTHER_MEASURES),
                log_loss and log_loss[0],
                len(candidate.values) if candidate.kind == "model" and candidate.values else None,
                candidate.texts,
                candidate.state,
            )
        )
    columns = (
        Column("model", numeric=False),
        Column(task.title, formats.spread, parts=_PAIR),
        Column("verdict", numeric=False),
        Column("difference to best", formats.points),
        Column("95 % interval", formats.points_interval, parts=("low", "high")),
        Column(f"p ({task.part} set)", formats.probability),
        Column("p (seeds)", formats.probability),
        Column("p (Holm)", formats.probability),
        Column("own baselines", numeric=False),
        Column("difference to own baseline", formats.points),
        *(Column(MEASURES[other], formats.share_spread, parts=_PAIR) for other in FURTHER_MEASURES),
        Column("log loss", formats.loss),
        Column("trainings", formats.integer),
        Column(f"{task.part} texts", formats.integer),
        Column("trials", numeric=False),
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
    """Every model against every other contender, those furthest apart first; ``None`` where `quality` has said it."""
    baselines = {candidate.name for candidate in task.candidates if candidate.kind == "baseline"}
    found = {names: test for names, test in task.between.items() if not baselines.issuperset(names)}
    if len(found) < 3:
        return None
    rows = [
        (*names, v.gap, v.texts, v.trainings, v.adjusted, "not significant" if v.alike else "below")
        for names, v in sorted(found.items(), key=lambda item: item[1].gap or 0.0)
    ]
    columns = (
        Column("higher", numeric=False),
        Column("lower", numeric=False),
        Column("difference", formats.points),
        Column(f"p ({task.part} set)", formats.probability),
        Column("p (seeds)", formats.probability),
        Column("p (Holm)", formats.probability),
        Column("the lower is", numeric=False),
    )
    note = "Differences in percentage points; p-values as in the table above."
    return Table(f"pairs-{slug(task.name)}", task.name, columns, tuple(rows), note).without_empty_columns()


def _to_own_baseline(task: TaskComparison, candidate: Candidate) -> tuple[str | None, float | None]:
    """Where not all have the same baselines: whether it is above the highest of them, and by how much."""
    own = task.own.get(candidate.name, {})
    highest = next((c.name for c in task.candidates if c.name in own), None)
    if highest is None:
        return None, None
    test = own[highest].swapped()
    assert test.gap is not None
    return "not significant" if test.alike else "below" if test.gap < 0 else "above", test.gap


def resources(comparison: Comparison, stage: str) -> Table | None:
    """What each variation took in a stage: the mean over its trials."""
    rows: list[tuple[Any, ...]] = []
    for variant in comparison.variants:
        mean = variant.mean(stage)
        if mean is None:
            state = variant.state if variant.why is None else f"{variant.state}: {variant.why}"
            rows.append((variant.name, *[None] * 10, state))
            continue
        # of inference the table by length says all; here is what the largest measured length takes
        memory = [value for row in inference(variant, "peak_bytes").values() for value in row]
        keys = ("seconds_per_step", "tokens_per_second", "tokens", "steps", "seconds")
        rows.append(
            (
                variant.name,
                # what a model fine-tuned here went on from is a folder in this comparison, and no architecture
                architecture(mean) if stage == "pretrain" or not comparison.pretrains else None,
                mean.summary.get("parameters"),
                mean.summary.get("flops_per_token"),
                mean.summary.get("peak_bytes"),
                max(memory, default=None),
                *(mean.summary.get(key) for key in keys),
                variant.state,
            )
        )
    if not any(value is not None for row in rows for value in row[1:-1]):
        return None
    columns = (
        Column("variation", numeric=False),
        Column("architecture", numeric=False),
        Column("parameters", formats.count),
        Column("FLOPs per token", formats.count),
        Column("peak memory, training", formats.memory),
        Column("peak memory, inference", formats.memory),
        Column("seconds per iteration", formats.step_seconds),
        Column("tokens/s", formats.rate),
        Column("tokens seen", formats.count),
        Column("iterations", formats.integer),
        Column("time", formats.duration),
        Column("trials", numeric=False),
    )
    title = "In pretraining" if stage == "pretrain" else f"In fine-tuning: {stage}"
    note = (
        "Means over the trials that are done. FLOPs forward and backward; memory in training with gradients and "
        "optimizer, in inference at the largest measured length; padding is not counted as tokens."
    )
    return Table(f"resources-{slug(stage)}", title, columns, tuple(rows), note).without_empty_columns()


def trials(comparison: Comparison) -> Table:
    """Every trial and what became of it."""
    columns = (
        Column("variation", numeric=False),
        Column("seed", formats.integer),
        Column("state", numeric=False),
        Column("where", numeric=False),
        Column("why", numeric=False),
        Column("time", formats.duration),
        Column("notes", numeric=False),
    )
    rows = tuple(
        (t.name, t.seed, t.status, t.stage or None, t.why or None, t.seconds, "; ".join(t.notes) or None)
        for t in comparison.trials
    )
    return Table("trials", "All trials", columns, rows).without_empty_columns()


def flat_trials(comparison: Comparison) -> Table:
    """One row a trial with all its numbers, for other programs: ``comparison.csv``."""
    found = [_flat_trial(trial) for trial in comparison.trials]
    titles = dict.fromkeys(key for row in found for key in row)
    columns = tuple(Column(title, numeric=False) for title in titles)
    return Table("comparison", "", columns, tuple(tuple(row.get(title) for title in titles) for row in found))


def _flat_trial(trial: TrialRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"variation": trial.name, "seed": trial.seed, "status": trial.status}
    row |= {"stage": trial.stage or None, "why": trial.why or None, "seconds": trial.seconds}
    for name, stage in trial.stages.items():
        row[f"{name}.process_seconds"] = stage.seconds
        if stage.record is None:
            continue
        train, validation = final_losses(stage.record)
        row |= {f"{name}.{key}": value for key, value in stage.record.summary.items()}
        row |= {f"{name}.train.{key}": value for key, value in train.items()}
        row |= {f"{name}.validation.{key}": value for key, value in validation.items()}
        row |= {f"{name}.test.{key}": value for key, value in stage.record.result.test.numbers().items()}
    for measured in trial.inference:
        at = formats.text(measured.get("length"))
        row |= {f"inference.{at}.{key}": measured.get(key) for key in ("seconds_per_text", "peak_bytes")}
    return row | {
        f"{stage}: {key}": formats.text(value)
        for stage, given in trial.settings.items()
        for key, value in given.items()
    }


def inference(variant: Variant, what: str) -> dict[float, list[float]]:
    """A measurement of inference by length, one value a trial."""
    found: dict[float, list[float]] = {}
    for trial in variant.done:
        for row in trial.inference:
            length, value = number(row.get("length")), number(row.get(what))
            if length and value:
                found.setdefault(length, []).append(value)
    return found


def in_inference(costs: Mapping[str, ByLength], title: str, name: str, write: Any) -> Table | None:
    """A cost by variation and length: the mean over trials."""
    lengths = sorted({length for measured in costs.values() for length in measured})
    if not lengths:
        return None
    columns = (Column("variation", numeric=False), *(Column(f"{length:,.0f} tokens", write) for length in lengths))
    rows = tuple(
        (variant, *(fmean(measured[at]) if at in measured else None for at in lengths))
        for variant, measured in costs.items()
    )
    return Table(name, title, columns, rows)


def crossings(found: Sequence[Crossover], what: str, name: str) -> Table | None:
    """Where one begins to cost less than another."""
    columns = (
        Column("from about, tokens", formats.integer),
        Column("costs less", numeric=False),
        Column("than", numeric=False),
        Column("measured between", numeric=False),
    )
    rows = tuple((round(c.length), c.cheaper, c.dearer, f"{c.after:,.0f} and {c.until:,.0f}") for c in found)
    note = "Only where all trials agree on the order before and after; the length is estimated between the two."
    return Table(name, f"Crossovers: {what}", columns, rows, note) if rows else None


def differences(comparison: Comparison, stages: Sequence[str]) -> Table | None:
    """The settings of the configs as run that are not the same in all variations, under their stage."""
    rows: list[tuple[Any, ...]] = []
    names = [variant.name for variant in comparison.variants]
    for stage in stages:
        firsts = {v.name: records[0].config for v in comparison.variants if (records := _with_config(v, stage))}
        if len(firsts) < 2:
            continue
        for key, *values in side_by_side(list(firsts.values())):
            if len(set(map(repr, values))) > 1 and key.rpartition(".")[2] not in _PATH_KEYS:
                by_name = dict(zip(firsts, values, strict=True))
                rows.append((f"{stage}: {key}", *(by_name.get(name) for name in names)))
    columns = (Column("setting", numeric=False), *(Column(name, numeric=False) for name in names))
    return Table("differences", "Settings that differ", columns, tuple(rows)) if rows else None


def _with_config(variant: Variant, stage: str) -> list[RunRecord]:
    """The runs of a stage, of trials that failed or go on too: what they were to do is known."""
    found = [trial.stages[stage].record for trial in variant.trials if stage in trial.stages]
    return [record for record in found if record is not None and record.config]


def machines(comparison: Comparison) -> list[tuple[Tree, list[str]]]:
    """The distinct machines and versions, each with the trials that ran there, the most used first.

    A commit with changes is another one; the rest is told as it was found.
    """
    found: dict[str, tuple[Tree, list[str]]] = {}
    for trial in comparison.trials:
        for stage in trial.stages.values():
            if stage.record is not None and stage.record.environment:
                tree = stage.record.environment
                who = found.setdefault(repr(sorted(flatten(tree).items())), (tree, []))[1]
                if (name := f"{trial.name}, seed {trial.seed}") not in who:
                    who.append(name)
    return sorted(found.values(), key=lambda pair: -len(pair[1]))


def environments(found: Sequence[tuple[Tree, Sequence[str]]]) -> Table | None:
    """Machines and versions side by side; where there are several, only what differs is marked."""
    if not found:
        return None
    rows = [
        (key, *(formats.memory(v) if key.endswith("_bytes") else v for v in values))
        for key, *values in side_by_side([tree for tree, _ in found])
    ]
    if len(found) == 1:
        columns = [Column("what", numeric=False), Column("value", numeric=False)]
    else:
        heads = [f"machine {i} ({formats.integer(len(who))} trials)" for i, (_, who) in enumerate(found, start=1)]
        columns = [Column("what", numeric=False), *(Column(head, numeric=False) for head in heads)]
    marked = frozenset(i for i, row in enumerate(rows) if len(set(map(repr, row[1:]))) > 1)
    return Table("environment", "Machine and versions", tuple(columns), tuple(rows), marked=marked)


def ablations(comparison: Comparison, values: Mapping[str, Sequence[float]], stages: Sequence[str]) -> list[Ablation]:
    """Settings that several variations give, with different values and all else alike, with what came of each.

    All else is also what a stage begins with (its recipe, a model, word vectors), along which nothing is drawn.

    Args:
        values: by variation, the measure of each training.
        stages: whose settings are looked at.
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
        lines: dict[str, list[tuple[Any, float, float | None]]] = {}
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


def _settings(trial: TrialRecord, stages: Sequence[str]) -> dict[str, Any]:
    """The settings of these stages but for the seed, in which the trials of a variation differ."""
    given = flatten(_by_index({stage: trial.settings[stage] for stage in stages if stage in trial.settings}))
    return {key: value for key, value in given.items() if not key.endswith(".train.seed")}


def _by_index(value: Any) -> Any:
    """Lists of mappings as mappings, so that `flatten` reaches into them: the radius of the first pattern of two."""
    if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        value = {str(index): item for index, item in enumerate(value)}
    return {key: _by_index(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _start_settings(trial: TrialRecord, stages: Sequence[str]) -> dict[str, Any]:
    present = [trial.stages[stage] for stage in stages if stage in trial.stages]
    return {f"{stage.name}.{key}": value for stage in present for key, value in stage.start_settings.items()}


def _in_order(line: Sequence[tuple[Any, float, float | None]]) -> list[tuple[Any, float, float | None]]:
    return sorted(line, key=lambda point: point[0]) if all(number(v) is not None for v, *_ in line) else list(line)


def ablation_table(found: Ablation, title: str, name: str, write: Any) -> Table:
    """The points of an ablation."""
    columns = (
        Column("all else", numeric=False),
        Column(found.setting, numeric=False),
        Column(title, write, parts=_PAIR),
    )
    rows = tuple((rest or None, value, (mean, dev)) for rest, line in found.lines.items() for value, mean, dev in line)
    return Table(name, f"Along {found.setting}", columns, rows).without_empty_columns()


def slug(name: str) -> str:
    """``name`` as part of the name of a file; two names never become one."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "_.+=-") else "-" for c in name)[:48] or "all"
    return plain if plain == name else f"{plain}-{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}"
