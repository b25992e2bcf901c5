"""The first paragraphs of a comparison, in plain words: what to train here, how sure that is, what was not tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from homespun.report import formats, statistics
from homespun.report.comparison_plots import groups
from homespun.report.comparison_quality import Contender, Task, spread
from homespun.report.comparison_read import STATES, Comparison, Variation
from homespun.report.formats import number
from homespun.report.read import as_tree, final_losses


def advice(comparison: Comparison, tasks: Sequence[Task], seconds: Mapping[str, float]) -> list[str]:
    """What to train here: a sentence over all tasks where there are several, then a paragraph for each.

    Args:
        seconds: what one training of a variation takes.
    """
    judged = [task for task in tasks if task.best is not None]
    paragraphs = [_task(task, seconds) for task in judged]
    if len(judged) > 1:
        paragraphs.insert(0, _over_all(judged))
    if not judged:
        by_loss = [_by_loss(group) for group in groups(comparison, "pretrain")]
        paragraphs = [text for text in by_loss if text]
    return paragraphs or ["No trial has run to its end yet: there is nothing to tell."]


def _over_all(tasks: Sequence[Task]) -> str:
    names = [c.name for c in tasks[0].alike if c.kind == "model"]
    everywhere = [name for name in names if all(name in [c.name for c in task.alike] for task in tasks[1:])]
    if everywhere:
        be = "is" if len(everywhere) == 1 else "are"
        return f"Over all {len(tasks)} tasks {_listed(everywhere)} {be} the best or not told from it in each."
    return f"No variation is among the best in all {len(tasks)} tasks: what to train depends on the task."


def _task(task: Task, seconds: Mapping[str, float]) -> str:
    best = task.best
    assert best is not None
    told = formats.spread(best.spread)
    about = [f"{len(best.values)} trainings"] if len(best.values) > 1 else ["one training"] * (best.kind == "model")
    about += [f"{formats.whole(best.texts)} test texts"] if best.texts else []
    figures = f"{task.title} {told}" + (f" ({', '.join(about)})" if about else "")
    models = [c for c in task.alike if c.kind == "model"]
    baselines = [c for c in task.contenders if c.kind == "baseline" and c.values]
    if best.kind == "baseline":
        what = _alike_words(task, models) if models else "every model that was trained here is below it"
        return f"{task.name}: no model is shown to be better than {best.name}, {figures}; {what}."
    sentences = [f"{task.name}: train {_choice(models, seconds)}."]
    others = [c for c in models if c is not best]
    if others:
        listed = _listed([f"{c.name} ({formats.spread(c.spread)})" for c in others])
        sentences.append(f"The highest is {best.name}, {figures}; not told from it: {listed}.")
        if (cheapest := _cheapest(models, seconds)) is not None:
            least, most = (formats.duration(pick(seconds[c.name] for c in models)) for pick in (min, max))
            sentences.append(f"Of these, {cheapest} takes the least time: {least} a training, against up to {most}.")
    else:
        sentences.append(f"It reaches {figures}.")
    below = [c for c in task.contenders if c.kind == "model" and c.values and c not in models]
    if below:
        listed = _listed([f"{c.name} ({_gap(task, c, best)} points)" for c in below])
        sentences.append(f"Below it: {listed}.")
    sentences += [_against(task, baseline, best) for baseline in baselines]
    return " ".join(sentences)


def _choice(models: Sequence[Contender], seconds: Mapping[str, float]) -> str:
    if len(models) == 1:
        return models[0].name
    if (cheapest := _cheapest(models, seconds)) is not None:
        return f"{cheapest}, or any of {_listed([c.name for c in models if c.name != cheapest])}"
    return f"any of {_listed([c.name for c in models])}"


def _cheapest(models: Sequence[Contender], seconds: Mapping[str, float]) -> str | None:
    names = [c.name for c in models]
    if len(names) < 2 or not all(name in seconds for name in names):
        return None
    return min(names, key=lambda name: seconds[name])


def _alike_words(task: Task, models: Sequence[Contender]) -> str:
    return f"not told from it: {_listed([f'{c.name} ({formats.spread(c.spread)})' for c in models])}"


def _gap(task: Task, contender: Contender, best: Contender) -> str:
    """On the same rows where there are any, else of the means."""
    gap = task.verdicts[contender.name].gap
    if gap is None:
        assert contender.mean is not None
        assert best.mean is not None
        gap = contender.mean - best.mean
    return formats.points(gap)


def _against(task: Task, baseline: Contender, best: Contender) -> str:
    verdict = task.verdicts[baseline.name]
    level = f"{baseline.name} ({formats.spread(baseline.spread)})"
    if verdict.alike:
        return f"It is not shown to be better than {level}."
    assert baseline.mean is not None
    assert best.mean is not None
    gap = best.mean - baseline.mean if verdict.gap is None else -verdict.gap
    interval = ""
    if verdict.interval is not None:
        low, high = verdict.interval
        interval = f" (95 % interval: {100 * -high:.1f} to {100 * -low:.1f})"
    return f"It beats {level} by {100 * gap:.1f} points{interval}."


def _by_loss(group: Sequence[Variation]) -> str:
    """Where there is no task: the validation losses, told apart over trainings alone."""
    found = {
        v.name: [x for r in v.records("pretrain") if (x := final_losses(r)[1].get("loss")) is not None] for v in group
    }
    found = {name: values for name, values in found.items() if values}
    if not found:
        return ""
    order = sorted(found, key=lambda name: fmean(found[name]))
    best = order[0]
    pooled = statistics.pooled(list(found.values()))
    said = f"The lowest validation loss is that of {best}: {_loss(found[best])}."
    if len(order) == 1:
        return said
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    luck = [statistics.trainings(found[a], found[b], pooled) for a, b in pairs]
    if any(p is None for p in luck):
        rest = _listed([f"{name} ({_loss(found[name])})" for name in order[1:]])
        return f"{said} The others: {rest}. Each was trained once: whether other seeds would change that is not known."
    adjusted = dict(zip(pairs, statistics.holm([p for p in luck if p is not None]), strict=True))
    alike = [name for name in order[1:] if adjusted[best, name] > statistics.LEVEL]
    above = [name for name in order[1:] if name not in alike]
    for names, words in ((alike, "Not told from it, over trainings"), (above, "Above it")):
        if names:
            said += f" {words}: {_listed([f'{name} ({_loss(found[name])})' for name in names])}."
    return said


def _loss(values: Sequence[float]) -> str:
    mean_and_deviation = spread(values)
    assert mean_and_deviation is not None
    mean, deviation = mean_and_deviation
    return formats.loss(mean) if deviation is None else f"{formats.loss(mean)}{formats.NB}±{formats.NB}{deviation:.2g}"


def certainty(comparison: Comparison, tasks: Sequence[Task]) -> str:
    """How sure that is."""
    judged = [task for task in tasks if task.best is not None]
    counts = sorted({len(v.done) for v in comparison.variations if v.done})
    if not counts:
        return ""
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    sentences = [f"How sure: each variation was trained {many} {'time' if counts == [1] else 'times'}."]
    tested = [v for task in judged for v in task.verdicts.values() if v.texts is not None]
    if tested:
        luck = (
            "and with other seeds"
            if all(task.luck for task in judged)
            else "; with other seeds is not known everywhere"
        )
        sentences.append(
            f"A difference counts only if it would be rarer than 5 % by chance with other test texts {luck}, "
            f"adjusted for all pairs; everything else is called not told apart, which does not mean equal."
        )
    elif judged:
        sentences.append(
            "There are no predictions of single rows to test on: what other texts would change is not known."
        )
    few = [task.name for task in judged if task.best and task.best.texts and task.best.texts < 500]
    if few:
        sentences.append(
            f"The tests of {_listed(few)} are small (under 500 texts): only large differences can be told."
        )
    return " ".join(sentences)


def untested(comparison: Comparison, tasks: Sequence[Task]) -> str:
    """What was not tested."""
    missing: list[str] = []
    lost = {v.name: v for v in comparison.variations if len(v.done) < len(v.trials)}
    if lost:
        missing.append(f"what is missing of {_listed([f'{name} ({v.state})' for name, v in lost.items()])}")
    asked = number(comparison.recipe.get("seeds"))
    if asked is not None and any(len(v.trials) < asked for v in comparison.variations):
        missing.append(f"all {asked:.0f} seeds of every variation")
    empty = [task.name for task in tasks if task.best is None]
    missing += [f"the task {name}, of which there are no results" for name in empty]
    missing += [
        f"{task.name} against a baseline"
        for task in tasks
        if task.best and all(c.kind == "model" for c in task.contenders)
    ]
    if comparison.variations and all(len(v.done) <= 1 for v in comparison.variations):
        missing.append("other seeds")
    measured = {number(row.get("length")) for trial in comparison.trials for row in trial.inference} - {None}
    missing += ["latency and memory in inference"] if not measured else []
    budget = as_tree(comparison.recipe.get("budget"))
    words = " and ".join(f"{key} {formats.text(value)}" for key, value in budget.items() if value is not None)
    missing.append(f"other budgets than this one{f' ({words})' if words else ''}")
    missing.append("other data and other settings than those listed below")
    return f"Not tested: {'; '.join(missing)}."


def progress(comparison: Comparison) -> str | None:
    """How far a comparison is that is not over; ``None`` where all trials are done."""
    counts = {status: sum(t.status == status for t in comparison.trials) for status in (*STATES, "unreadable")}
    total = len(comparison.trials)
    if counts["done"] == total and total:
        return None
    told = {**STATES, "unreadable": "cannot be read"}
    parts = [f"{count} {told[status]}" for status, count in counts.items() if count]
    return f"Of {total} trials {', '.join(parts) or 'none is there yet'}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
