"""Lead of the report of a comparison: the best model of each task, significance, limits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean

from homespun.comparison_results import SignificanceTest
from homespun.report.comparison_quality import Candidate, TaskComparison, compare_seeds
from homespun.report.comparison_records import STATUSES, Comparison, Variant, comparable_variants
from homespun.report.document import fill
from homespun.report.formats import FURTHER_METRICS, metric_title, number
from homespun.report.records import RunRecord, as_tree
from homespun.report.summary import compare_with_unigram_baseline, describe_budget
from homespun.results import mean_and_deviation

_UNEQUAL = 1.25  # ratio of tokens over seeds, from which a budget of time is called unequal
_FEW = 500  # test examples, below which only large differences are significant


def advice(comparison: Comparison, tasks: Sequence[TaskComparison], seconds: Mapping[str, float]) -> list[str]:
    """Recommend a variant: a sentence over all tasks if there are several, then a paragraph for each task.

    ``seconds`` is the duration of a training by variant.
    """
    judged = [task for task in tasks if task.best is not None]
    paragraphs = [_task(task, seconds) for task in judged]
    tried = [task for task in judged if task.trained]
    if len(tried) > 1:
        models = [[c.name for c in task.among_best if c.kind == "model"] for task in tried]
        everywhere = [name for name in models[0] if all(name in names for names in models)]
        values = {"names": everywhere, "models": any(models), "count": len(tried)}
        paragraphs.insert(0, _sentence("over_all", complete=len(tried) == len(tasks), **values))
    if not judged:
        groups = comparable_variants(comparison, "pretrain")
        paragraphs = [text for group in groups if (text := _losses(group, alone=len(groups) == 1))]
    paragraphs += compare_with_unigram_baseline({v.name: v.records("pretrain") for v in comparison.variants})
    return paragraphs or ["No trial is done yet."]


def _sentence(macro: str, **values: object) -> str:
    return fill("comparison_summary", macro, **values)


def _task(task: TaskComparison, seconds: Mapping[str, float]) -> str:
    models = [c for c in task.among_best if c.kind == "model"]
    times = sorted(((seconds[c.name], c.name) for c in models if c.name in seconds), key=lambda pair: pair[0])
    return _sentence(
        "task",
        task=task,
        best=task.best,
        models=[(c.name, c.spread) for c in models],
        times=times if len(times) == len(models) > 1 else [],
        worse=[(c.name, task.against_best[c.name].gap) for c in task.trained if c not in models],
        against=_against_baselines(task),
        others=_by_other_metrics(task),
        constant=[(c.name, c.repeated) for c in task.trained if c.repeated],
    )


def _against_baselines(task: TaskComparison) -> list[tuple[str, Candidate, SignificanceTest]]:
    """Return the test of the best model against its baselines, by group of models with common baselines."""
    highest: dict[str, Candidate] = {}
    for candidate in [task.best, *task.trained]:
        if candidate is not None:
            highest.setdefault(candidate.baseline_set, candidate)
    found = []
    for model in (candidate for candidate in highest.values() if candidate.kind == "model"):
        tests = task.against_best if model is task.best else task.own.get(model.name, {})
        baselines = [c for c in task.candidates if c.kind == "baseline" and c.baseline_set == model.baseline_set]
        found += [(model.name, c, tests[c.name]) for c in baselines if c.values and c.name in tests]
    return found


def _by_other_metrics(task: TaskComparison) -> list[tuple[str, tuple[str, object], tuple[str, object]]]:
    """Find further metrics by which a candidate outside the best group is best.

    Returns:
        The title, that candidate, and the best of the group.
    """
    found: list[tuple[str, tuple[str, object], tuple[str, object]]] = []
    names = {c.name for c in task.among_best}
    for metric in FURTHER_METRICS:
        measured = [c for c in task.candidates if c.others.get(metric)]
        ranked = sorted(measured, key=lambda c: fmean(c.others[metric]), reverse=True)
        ours = next((c for c in ranked if c.name in names), None)
        if ours is not None and ranked[0].name not in names:
            pair = [(c.name, mean_and_deviation(c.others[metric])) for c in (ranked[0], ours)]
            found.append((metric_title(metric), pair[0], pair[1]))
    return found


def _losses(group: Sequence[Variant], *, alone: bool) -> str:
    """Describe comparable validation losses, tested over seeds; ``alone``: no other group has losses."""
    found = {v.name: values for v in group if (values := v.validation_losses())}
    if not found:
        return ""
    tests = compare_seeds(found)
    scores = [(name, mean_and_deviation(found[name])) for name in sorted(found, key=lambda name: fmean(found[name]))]
    similar, worse = (
        [(b, score) for b, score in scores[1:] if tests and tests[scores[0][0], b].not_worse is side]
        for side in (True, False)
    )
    return _sentence("losses", scores=scores, alone=alone, tested=bool(tests), similar=similar, worse=worse)


def certainty(comparison: Comparison, tasks: Sequence[TaskComparison]) -> str:
    """Describe the significance tests; empty if no trial is done."""
    judged = [task for task in tasks if task.best is not None]
    counts = sorted({len(v.done) for v in comparison.variants if v.done})
    if not counts:
        return ""
    tested = [task for task in judged if any(test.texts is not None for test in task.against_best.values())]
    return _sentence(
        "certainty",
        trainings=[counts[0]] if len(counts) == 1 else [counts[0], counts[-1]],
        tested=tested,
        seeds=all(task.seed_variance for task in tested),
        by_means=[t for t in judged if len(t.against_best) > 1 and all(c.rows is None for c in t.candidates)],
        few=[task.name for task in judged if task.best and task.best.examples and task.best.examples < _FEW],
    )


def limits(comparison: Comparison, tasks: Sequence[TaskComparison]) -> str:
    """Describe the limits of the comparison."""
    recipe = comparison.recipe
    search = as_tree(recipe.get("search"))
    return _sentence(
        "limits",
        variants=comparison.variants,
        tasks=tasks,
        seeds=number(recipe.get("seeds")) or 0,
        searched=search.get("task") or next(iter(comparison.tasks), "") if search else None,
        without_baseline=[found for task in tasks if (found := _without_baselines(task))],
        inference=any(row.length for trial in comparison.trials for row in trial.inference),
        budget=describe_budget(as_tree(recipe.get("budget"))),
    )


def _without_baselines(task: TaskComparison) -> tuple[str, list[str]] | None:
    """Return a task without baselines, or with the variants that have none."""
    known = {c.baseline_set for c in task.candidates if c.kind == "baseline"}
    bare = [c.name for c in task.trained if c.baseline_set not in known]
    return (task.name, bare if known else []) if bare else None


def shared(comparison: Comparison) -> str:
    """Describe variants with a common pretraining; empty if each has its own."""
    return _sentence("shared", groups=comparison.sharing())


def fronts(found: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Describe the Pareto front of each kind of cost, as a note on the figures of quality against cost."""
    return _sentence("fronts", fronts=found)


def machines(count: int) -> str:
    """Return a warning about several machines; empty for one."""
    return _sentence("machines", count=count) if count > 1 else ""


def unequal_text(comparison: Comparison, stages: Sequence[str]) -> str:
    """Return a warning if seeds of a variant saw different amounts of text under a budget of time; else empty."""
    found = []
    for variant, stage in itertools.product(comparison.variants, stages):
        timed = [record for record in variant.records(stage) if _has_time_limit(record)]
        seen = [tokens for record in timed if (tokens := record.summary.get("tokens"))]
        if seen and max(seen) >= _UNEQUAL * min(seen):
            found.append((max(seen) / min(seen), variant.name, stage, min(seen), max(seen)))
    if not found:
        return ""
    _, name, stage, least, most = max(found)
    return _sentence("unequal_text", name=name, stage=stage, least=least, most=most, others=len(found) - 1)


def _has_time_limit(record: RunRecord) -> bool:
    budget = as_tree(as_tree(record.config.get("train")).get("budget"))
    return number(budget.get("time")) is not None


def progress(comparison: Comparison) -> str:
    """Count trials by state; empty if all are done."""
    statuses = [trial.status for trial in comparison.trials]
    if statuses and set(statuses) == {"done"}:
        return ""
    counts = [(count, status) for status in STATUSES if (count := statuses.count(status))]
    return _sentence("progress", total=len(statuses), counts=counts)
