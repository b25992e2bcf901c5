"""Baselines of a fine-tuning recipe; a comparison measures them once for all its trials."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from homespun.commands.recipe import FinetuneRecipe
from homespun.commands.trials import average_metrics, plan_trials, write_run_predictions
from homespun.hf.open import open_model
from homespun.results import VERSION
from homespun.training.run import Run

# by kind of data, what says how much of it a model is given, and how it writes
_MODEL_FIELDS = {
    "texts": {"max_length", "truncation"},
    "sentence_pairs": {"max_length"},
    "sentences": {"max_length", "context"},
    "token_labels": {"max_length", "stride"},
    "questions": {"max_length", "stride", "max_question_length", "max_answer_length", "n_best", "null_threshold"},
    "source_target": {"max_source_length", "max_target_length", "prefix", "separator", "generation"},
}
_TRUTH_FIELDS = {"kind", "range", "out_of_range", "levels"}  # what of an objective says what the truth is


def measure_baselines(
    recipe: FinetuneRecipe, out: str | Path, *, start_from: str, resume: bool = False
) -> dict[str, Any]:
    """Measure the baselines of a recipe on the test examples of `finetune`.

    Args:
        recipe: the fine-tuning.
        out: folder for ``result.json`` (``kind``, ``of``: the `baseline_settings`, ``baselines``) and
            ``predictions/BASELINE.jsonl``, one line per test example; with folds, each example once.
        start_from: pretrained model, whose tokenizer the task may need.
        resume: measure again in the folder of a stopped measurement.

    Raises:
        UserError: data that cannot be used, or a model that cannot be opened.
    """
    data = recipe.data
    everything, test = data.read("train"), data.read("test")
    assert everything is not None
    task = data.task(recipe.objective, open_model(start_from), everything)
    trials = plan_trials(recipe, task, everything, data.read("validation"), test)
    run = Run.create(out, recipe, resume=resume)
    largest = max(trial.size or 0 for trial in trials)
    reports, rows, predictions = [], [], []
    for _, group in groupby((t for t in trials if (t.size or 0) == largest), key=lambda trial: trial.fold):
        first = next(group)
        report = task.baselines(first.baseline_examples, first.measured)
        reports.append(report)
        rows.append(first.measured_rows)
    for name in reports[0]:
        predictions = [line for report in reports for line in report[name].predictions]
        write_run_predictions(run.path, name, np.concatenate(rows), predictions)
    result = {
        "kind": "baselines",
        "name": run.path.name,
        "measured_on": "folds" if recipe.folds else "test" if test is not None else "validation",
        "rows": int(sum(map(len, rows))),
        "baselines": {name: average_metrics([report[name].metrics for report in reports]) for name in reports[0]},
    }
    run.write_result({"version": VERSION, "of": baseline_settings(recipe)} | result)
    return result


def baseline_settings(recipe: FinetuneRecipe) -> dict[str, Any]:
    """Settings that the baselines depend on: equal for recipes with the same baselines."""
    data, objective = recipe.data, recipe.objective
    return {
        "data": data.model_dump(mode="json", exclude=_MODEL_FIELDS[data.kind]),
        "objective": objective.model_dump(mode="json", include=_TRUTH_FIELDS),
        "folds": recipe.folds,
        "train_sizes": recipe.train_sizes,
    }
