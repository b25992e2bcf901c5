"""Lead of a comparison: the best model of each task, significance, and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from homespun.report import formats, significance
from homespun.report.comparison_quality import Candidate, TaskComparison
from homespun.report.comparison_records import STATES, Comparison, Variant, comparable_variants
from homespun.report.formats import number
from homespun.report.records import as_tree
from homespun.report.tasks import constant_output_warning
from homespun.report.titles import FURTHER_METRICS, metric_title
from homespun.report.unigram_baseline import compare_with_unigram_baseline
from homespun.results import SignificanceTest, mean_and_deviation


def advice(comparison: Comparison, tasks: Sequence[TaskComparison], seconds: Mapping[str, float]) -> list[str]:
    """What to train here: a sentence over all tasks where there are several, then a paragraph for each.

    Args:
        seconds: what one training of a variation takes.
    """
    judged = [task for task in tasks if task.best is not None]
    paragraphs = [_task(task, seconds) for task in judged]
    tried = [task for task in judged if task.trained]
    if len(tried) > 1:
        which = "all" if len(tried) == len(tasks) else "the"
        paragraphs.insert(0, _over_all(tried, f"{which} {len(tried)} tasks"))
    if not judged:
        loss_groups = comparable_variants(comparison, "pretrain")
        by_loss = [_by_loss(group, alone=len(loss_groups) == 1) for group in loss_groups]
        paragraphs = [text for text in by_loss if text]
    paragraphs += compare_with_unigram_baseline({v.name: v.records("pretrain") for v in comparison.variants})
    return paragraphs or ["No trial is done yet."]


def _over_all(tasks: Sequence[TaskComparison], which: str) -> str:
    first, *others = [[c.name for c in task.among_best if c.kind == "model"] for task in tasks]
    everywhere = [name for name in first if all(name in names for names in others)]
    if everywhere:
        be = "is" if len(everywhere) == 1 else "are"
        return f"Over {which} {formats.listed(everywhere)} {be} best or not significantly worse in each."
    if not any([first, *others]):
        return "No variation is among the best in any task."
    return f"No variation is among the best in {which}: choose by task."


def _task(task: TaskComparison, seconds: Mapping[str, float]) -> str:
    best = task.best
    assert best is not None
    score = formats.spread(best.spread)
    about = [f"{len(best.values)} trainings"] if len(best.values) > 1 else ["one training"] * (best.kind == "model")
    about += [f"{formats.integer(best.texts)} {task.part} texts"] if best.texts else []
    figures = f"{task.title} {score}" + (f" ({', '.join(about)})" if about else "")
    models = [c for c in task.among_best if c.kind == "model"]
    same = constant_output_warning({c.name: c.repeated for c in task.trained})
    if not task.trained:
        return f"{task.name}: no model has a result. Best baseline: {best.name}, {figures}."
    if best.kind == "baseline":
        what = _not_significantly_worse(task, models) if models else "all models are below it"
        shown = f"{task.name}: no model beats {best.name} ({figures}); {what}."
        return " ".join(
            [shown, *_against_other_baselines(task, best), *_by_other_measures(task), *([same] if same else [])]
        )
    sentences = [f"{task.name}: train {_choice(models, seconds)}."]
    others = [c for c in models if c is not best]
    if others:
        listed = formats.listed([f"{c.name} ({formats.spread(c.spread)})" for c in others])
        sentences.append(f"Best: {best.name}, {figures}; not significantly worse: {listed}.")
        if (cheapest := _cheapest(models, seconds)) is not None:
            least, most = (formats.duration(pick(seconds[c.name] for c in models)) for pick in (min, max))
            sentences.append(f"Of these, {cheapest} trains fastest: {least} a training, up to {most} for the others.")
    else:
        sentences.append(f"Score: {figures}.")
    below = [c for c in task.trained if c not in models]
    if below:
        listed = formats.listed([f"{c.name} ({formats.points(task.against_best[c.name].gap)} points)" for c in below])
        sentences.append(f"Significantly worse: {listed}.")
    baselines = [
        c for c in task.candidates if c.kind == "baseline" and c.values and c.baseline_set == best.baseline_set
    ]
    sentences += [_against("It", baseline, task.against_best[baseline.name]) for baseline in baselines]
    sentences += _against_other_baselines(task, best)
    sentences += _by_other_measures(task)
    sentences += [same] if same else []
    return " ".join(sentences)


def _choice(models: Sequence[Candidate], seconds: Mapping[str, float]) -> str:
    if len(models) == 1:
        return models[0].name
    if (cheapest := _cheapest(models, seconds)) is not None:
        return f"{cheapest}, or any of {formats.listed([c.name for c in models if c.name != cheapest])}"
    return f"any of {formats.listed([c.name for c in models])}"


def _cheapest(models: Sequence[Candidate], seconds: Mapping[str, float]) -> str | None:
    names = [c.name for c in models]
    if len(names) < 2 or not all(name in seconds for name in names):
        return None
    return min(names, key=lambda name: seconds[name])


def _not_significantly_worse(task: TaskComparison, models: Sequence[Candidate]) -> str:
    return f"not significantly worse: {formats.listed([f'{c.name} ({formats.spread(c.spread)})' for c in models])}"


def _against_other_baselines(task: TaskComparison, best: Candidate) -> list[str]:
    """Of models that have other baselines than the best has, the highest against these."""
    highest: dict[str, Candidate] = {}
    for model in task.trained:
        highest.setdefault(model.baseline_set, model)
    return [
        _against(model.name, baseline, task.own[model.name][baseline.name])
        for model in highest.values()
        if model.baseline_set != best.baseline_set
        for baseline in task.candidates
        if baseline.name in task.own.get(model.name, {})
    ]


def _by_other_measures(task: TaskComparison) -> list[str]:
    """Where another measure has somebody highest who is not among the best: that is not tested, and told."""
    sentences = []
    for other in FURTHER_METRICS:
        levels = [(fmean(values), c) for c in task.candidates if (values := c.others.get(other))]
        names = {c.name for c in task.among_best}
        among = [level for level in levels if level[1].name in names]
        if not among:
            continue
        (_, highest), (_, ours) = (max(candidates, key=lambda level: level[0]) for candidates in (levels, among))
        if highest.name not in names:
            scores = [formats.share_spread(mean_and_deviation(c.others[other])) for c in (highest, ours)]
            sentences.append(
                f"By {metric_title(other)} (significance not tested) {highest.name} is best: "
                f"{scores[0]}, {ours.name} has {scores[1]}."
            )
    return sentences


def _against(who: str, baseline: Candidate, test: SignificanceTest) -> str:
    level = f"{baseline.name} ({formats.spread(baseline.spread)})"
    assert test.gap is not None
    if test.not_worse:
        return f"{who} does not beat {level}: the difference is not significant."
    if test.gap > 0:
        return f"{who} is below {level}."
    interval = " (means only)"
    if test.interval is not None:
        low, high = test.interval
        interval = f" (95 % interval: {100 * -high:.1f} to {100 * -low:.1f})"
    return f"{who} beats {level} by {100 * -test.gap:.1f} points{interval}."


def _by_loss(group: Sequence[Variant], *, alone: bool) -> str:
    """Where there is no task: the validation losses, told apart over trainings alone.

    Args:
        alone: no other group has losses, of another quantity.
    """
    found = {v.name: values for v in group if (values := v.validation_losses())}
    if not found:
        return ""
    order = sorted(found, key=lambda name: fmean(found[name]))
    best = order[0]
    pooled = significance.pooled_variance(list(found.values()))
    if len(order) == 1:
        other = "" if alone else " (not comparable with the others)"
        return f"Validation loss of {best}: {_loss(found[best])}{other}."
    among = "Lowest" if alone else f"Among {formats.listed(list(found))} (same data and objective), lowest"
    text = f"{among} validation loss: {best}, {_loss(found[best])}."
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    p_values = [significance.seed_test(found[a], found[b], pooled) for a, b in pairs]
    if any(p is None for p in p_values):
        rest = formats.listed([f"{name} ({_loss(found[name])})" for name in order[1:]])
        return f"{text} Others: {rest}. One seed each: significance unknown."
    adjusted = dict(zip(pairs, significance.holm([p for p in p_values if p is not None]), strict=True))
    not_worse = [name for name in order[1:] if adjusted[best, name] > significance.LEVEL]
    above = [name for name in order[1:] if name not in not_worse]
    for names, words in ((not_worse, "Not significantly worse over seeds"), (above, "Significantly worse")):
        if names:
            text += f" {words}: {formats.listed([f'{name} ({_loss(found[name])})' for name in names])}."
    return text


def _loss(values: Sequence[float]) -> str:
    return formats.loss_spread(mean_and_deviation(values))


def certainty(comparison: Comparison, tasks: Sequence[TaskComparison]) -> str:
    """How significance was tested."""
    judged = [task for task in tasks if task.best is not None]
    counts = sorted({len(v.done) for v in comparison.variants if v.done})
    if not counts:
        return ""
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    sentences = [f"Each variation was trained {many} {'time' if counts == [1] else 'times'}."]
    tested = [task for task in judged if any(v.texts is not None for v in task.against_best.values())]
    if tested:
        seeds = " and over seeds" if all(task.seed_variance for task in tested) else " (seeds partly unknown)"
        sentences.append(
            f"Significant: p < 0.05 over test examples{seeds}, Holm-corrected for all pairs. Not significant does not "
            f"mean equal."
        )
    alone = [task for task in judged if len(task.against_best) > 1 and all(c.rows is None for c in task.candidates)]
    sentences += [_by_means(task) for task in alone]
    few = [task.name for task in judged if task.best and task.best.texts and task.best.texts < 500]
    if few:
        be = "is" if len(few) == 1 else "are"
        sentences.append(
            f"{formats.listed(few)} {be} measured on under 500 examples: only large differences can be significant."
        )
    return " ".join(sentences)


def _by_means(task: TaskComparison) -> str:
    """How sure it is of a task of whose measure single rows have none."""
    test = "tested over seeds only (p < 0.05, Holm)" if task.seed_variance else "not tested for significance"
    return f"{task.name}: single rows have no {task.title}, so differences are of means and {test}."


def limits(comparison: Comparison, tasks: Sequence[TaskComparison]) -> str:
    """Limits of the comparison."""
    missing: list[str] = []
    lost = {v.name: v for v in comparison.variants if len(v.done) < len(v.trials)}
    if lost:
        missing.append(f"what is missing of {formats.listed([f'{name} ({v.state})' for name, v in lost.items()])}")
    asked = number(comparison.recipe.get("seeds"))
    if asked is not None and any(len(v.trials) < asked for v in comparison.variants):
        missing.append(f"all {asked:.0f} seeds of every variation")
    empty = [task.name for task in tasks if task.best is None]
    missing += [f"the task {name}, of which there are no results" for name in empty]
    searched = _searched(comparison)
    missing += [
        f"{task.name} on an independent test set: its scores are on the validation set, which also chose the "
        f"checkpoints" + (" and, in the search, the settings" if task.name == searched else "")
        for task in tasks
        if task.best and task.part == "validation"
    ]
    missing += [f"{bare} against a baseline" for task in tasks for bare in _without_baselines(task)]
    if comparison.variants and all(len(v.done) <= 1 for v in comparison.variants):
        missing.append("other seeds")
    measured = any(row.length for trial in comparison.trials for row in trial.inference)
    missing += ["latency and memory in inference"] if not measured else []
    budget = as_tree(comparison.recipe.get("budget"))
    words = " and ".join(f"{key} {formats.text(value)}" for key, value in budget.items() if value is not None)
    missing.append(f"other budgets than this one{f' ({words})' if words else ''}")
    missing.append("other data and other settings than those listed below")
    return f"Not tested: {'; '.join(missing)}."


def _without_baselines(task: TaskComparison) -> list[str]:
    """What of a task stands beside no baseline: all of it, or some variations."""
    baseline_sets = {c.baseline_set for c in task.candidates if c.kind == "baseline"}
    bare = [c.name for c in task.trained if c.baseline_set not in baseline_sets]
    if not bare:
        return []
    return [f"{task.name} of {formats.listed(bare)}" if baseline_sets else task.name]


def _searched(comparison: Comparison) -> str | None:
    """The task whose validation chose settings."""
    search = as_tree(comparison.recipe.get("search"))
    return str(search.get("task") or next(iter(comparison.tasks), "")) if search else None


def shared(comparison: Comparison) -> str:
    """Which variations have one pretraining; nothing where each has its own."""
    return " ".join(
        f"{formats.listed(names)} share one pretraining: what it took stands in the row of each."
        for names in comparison.sharing("pretrain")
    )


def progress(comparison: Comparison) -> str | None:
    """How far a comparison is that is not over; ``None`` where all trials are done."""
    counts = {status: sum(t.status == status for t in comparison.trials) for status in (*STATES, "unreadable")}
    total = len(comparison.trials)
    if counts["done"] == total and total:
        return None
    labels = {**STATES, "unreadable": "cannot be read"}
    parts = [f"{count} {labels[status]}" for status, count in counts.items() if count]
    return f"Of {total} trials {', '.join(parts) or 'none is there yet'}."
