"""Trials of a fine-tuning by fold, number of examples and seed, averages of their metrics, and baselines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from homespun.commands.recipe import FinetuneRecipe
from homespun.config import Tree
from homespun.data.splits import stratified_folds, stratified_order, stratified_split
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.io.atomic import atomic_path, write_text
from homespun.metrics.classification import Metrics, summarise
from homespun.results import VERSION
from homespun.tasks.protocol import Measured, Task, TaskRows, prefix_errors
from homespun.training.run import Run

PREDICTIONS = "predictions"
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Trial:
    """One training: seed, training examples, validation examples that choose the checkpoint, test examples.

    Trials that differ in nothing but their seed are of one ``fold`` and one ``size``. A size is the same in every fold,
    or ``all`` would be another in each: it is the number of examples of the smallest fold.
    """

    name: str
    seed: int
    fold: int
    size: int | None  # the number of training examples, where the recipe asks for several; None: all there are
    training: Sequence[object]
    validation: Sequence[object]
    test: Sequence[object] | None
    measured_rows: Rows  # the numbers, in their file, of the examples that it is measured on
    baseline_examples: Sequence[object]  # with the validation examples where there is a test: baselines need none

    @property
    def measured(self) -> Sequence[object]:
        """Test examples, or the validation examples without any."""
        return self.validation if self.test is None else self.test


def plan_trials(
    recipe: FinetuneRecipe,
    task: Task[object, TaskRows],
    everything: Sequence[object],
    validation: Sequence[object] | None,
    test: Sequence[object] | None,
) -> list[Trial]:
    """Plan the trials of a recipe: for each fold, each number of examples, each seed.

    Args:
        recipe: the recipe.
        task: gives the classes that splits keep in proportion, and refuses examples that it cannot learn.
        everything: training examples, of which a share is held out without validation examples.
        validation: examples that choose the checkpoint.
        test: test examples.

    Raises:
        UserError: folds and a test, or splits that cannot be made.
    """
    if recipe.folds is not None and test is not None:
        raise UserError("give either folds or data.test: with folds every row is tested once")
    with prefix_errors(recipe.data.train):
        strata = task.stratify_by(everything)
    for given, files in ((validation, recipe.data.validation), (test, recipe.data.test)):
        if given is not None:
            with prefix_errors(files):
                task.stratify_by(given)  # a label unseen in training is an error now, not after the training
    return list(_trials(recipe, strata, everything, validation, test))


def _trials(
    recipe: FinetuneRecipe,
    strata: Rows,
    everything: Sequence[object],
    validation: Sequence[object] | None,
    test: Sequence[object] | None,
) -> Iterator[Trial]:
    first, share, split_seed = recipe.train.seed, recipe.data.share, recipe.data.split_seed
    everyone = np.arange(len(everything))
    # folds and validation are the same for every seed, or seeds would measure the split too
    folds = [(everyone, None)] if recipe.folds is None else list(stratified_folds(strata, recipe.folds, split_seed))
    own = np.arange(len(validation or ()))
    divided = [(rows, own) if share is None else _divided(rows, strata, share, split_seed) for rows, _ in folds]
    sizes = _sizes(recipe, min(len(training) for training, _ in divided))
    for fold, ((_, held_out), (training, chosen)) in enumerate(zip(folds, divided, strict=True)):
        choosing = list(validation or ()) if share is None else _take(everything, chosen)
        measured = chosen if held_out is None and test is None else np.arange(len(test or ()))
        tested = test if held_out is None else _take(everything, held_out)
        for size, taken in sizes.items():
            for seed in range(first, first + recipe.seeds):
                learned = _subset(training, strata, taken, seed)
                names = [f"fold-{fold}"] if recipe.folds is not None else []
                names += [f"examples-{size}"] if size is not None else []
                complete = len(learned) == len(training) and tested is not None and share is not None
                yield Trial(
                    name="-".join([*names, f"seed-{seed}"]),
                    seed=seed,
                    fold=fold,
                    size=size,
                    training=_take(everything, learned),
                    validation=choosing,
                    test=tested,
                    measured_rows=measured if held_out is None else held_out,
                    baseline_examples=[*_take(everything, learned), *(choosing if complete else ())],
                )


def _divided(rows: Rows, strata: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    training, chosen = stratified_split(strata[rows], share, seed)
    return rows[training], rows[chosen]


def _take(examples: Sequence[object], rows: Rows) -> list[object]:
    return [examples[row] for row in rows.tolist()]


def _sizes(recipe: FinetuneRecipe, available: int) -> dict[int | None, int | None]:
    """Sizes, with the number of examples of a fold that each takes; ``None``: all."""
    if recipe.train_sizes is None:
        return {None: None}
    given = sorted({size for size in recipe.train_sizes if isinstance(size, int)})
    if given and given[-1] > available:
        raise UserError(
            f"train_sizes={given[-1]}, but there are {available} to train with; give that many at most, or write all"
        )
    sizes: dict[int | None, int | None] = {size: size for size in given}
    if "all" in recipe.train_sizes:
        sizes[available] = None
    return sizes


def _subset(rows: Rows, strata: Rows, size: int | None, seed: int) -> Rows:
    if size is None or size == len(rows):
        return rows
    return np.sort(rows[stratified_order(strata[rows], seed)[:size]])


def average_metrics(measured: Sequence[Metrics]) -> Metrics:
    """Metrics of one trial; of several the means, with deviations in ``std``."""
    if len(measured) == 1:
        return measured[0]
    over = summarise(measured)
    means: Metrics = {name: values["mean"] for name, values in over.items()}
    return means | {"rows": measured[0]["rows"], "std": {name: values["std"] for name, values in over.items()}}


def write_run_predictions(run: Path, name: str, rows: Rows, predictions: Sequence[Mapping[str, object]]) -> None:
    """Write ``predictions/NAME.jsonl``: one line per example, with its number in its file."""
    folder = run / PREDICTIONS
    folder.mkdir(exist_ok=True)
    lines = (
        json.dumps({"row": row, **prediction}, ensure_ascii=False, allow_nan=False)
        for row, prediction in zip(rows.tolist(), predictions, strict=True)
    )
    write_text(folder / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))


def copy_model(out: Path, trial: Path) -> None:
    """Copy a trial's model to where a run has its model."""
    for name in ("model", "hf"):
        if (trial / name).is_dir():
            with atomic_path(out / name) as temporary:
                shutil.copytree(trial / name, temporary)


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


def measure_baselines(recipe: FinetuneRecipe, out: str | Path, *, start_from: str, resume: bool = False) -> Tree:
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
    groups, reports = zip(*group_baselines(task, [t for t in trials if (t.size or 0) == largest]), strict=True)
    rows = [group[0].measured_rows for group in groups]
    for name in reports[0]:
        predictions = [line for report in reports for line in report[name].predictions]
        write_run_predictions(run.path, name, np.concatenate(rows), predictions)
    result = {
        "kind": "baselines",
        "name": run.path.name,
        "measured_on": "folds" if recipe.folds else "test" if test is not None else "validation",
        "rows": int(sum(map(len, rows))),
        "baselines": average_baselines(reports),
    }
    run.write_result({"version": VERSION, "of": baseline_settings(recipe)} | result)
    return result


def group_baselines(
    task: Task[object, TaskRows], trials: Sequence[Trial]
) -> Iterator[tuple[list[Trial], Mapping[str, Measured]]]:
    """Trials that differ in their seed alone, and the baselines of each such group."""
    for _, found in groupby(trials, key=lambda trial: (trial.fold, trial.size)):
        group = list(found)
        yield group, task.baselines(group[0].baseline_examples, group[0].measured)


def average_baselines(reports: Sequence[Mapping[str, Measured]]) -> dict[str, Metrics]:
    """Metrics of each baseline, averaged over folds."""
    return {name: average_metrics([report[name].metrics for report in reports]) for name in reports[0]}


def baseline_settings(recipe: FinetuneRecipe) -> dict[str, object]:
    """Settings that the baselines depend on: equal for recipes with the same baselines."""
    data, objective = recipe.data, recipe.objective
    return {
        "data": data.model_dump(mode="json", exclude=_MODEL_FIELDS[data.kind]),
        "objective": objective.model_dump(mode="json", include=_TRUTH_FIELDS),
        "folds": recipe.folds,
        "train_sizes": recipe.train_sizes,
    }
