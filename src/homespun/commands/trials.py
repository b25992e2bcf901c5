"""Trials of a fine-tuning by fold, number of examples and seed; averages of metrics; baselines."""

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
from homespun.hf.open import open_for_inference
from homespun.io.atomic import atomic_path, write_text
from homespun.metrics.classification import Metrics, summarise
from homespun.results import VERSION
from homespun.tasks.protocol import Measured, Task, TaskRows, prefix_errors
from homespun.training.run import Run

PREDICTIONS = "predictions"
_TRUTH_FIELDS = {"kind", "range", "out_of_range", "levels"}  # settings of an objective that change the labels
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Trial:
    """One training: seed, training examples, validation examples that choose the checkpoint, test examples.

    Trials with one ``fold`` and one ``size`` differ only in their seed. The size of ``all`` in ``train_sizes`` is the
    number of examples of the smallest fold, so that it is equal in all folds.
    """

    name: str
    seed: int
    fold: int
    size: int  # number of training examples, by train_sizes; 0 without train_sizes
    training: Sequence[object]
    validation: Sequence[object]
    test: Sequence[object] | None
    measured_rows: Rows  # row numbers of `measured` in its files, from 0
    # training examples; with a test set also the held-out share if all are used, because baselines need no validation
    baseline_examples: Sequence[object]

    @property
    def measured(self) -> Sequence[object]:
        """Test examples, or validation examples if there are no test examples."""
        return self.validation if self.test is None else self.test


def plan_trials(
    recipe: FinetuneRecipe,
    task: Task[object, TaskRows],
    everything: Sequence[object],
    validation: Sequence[object] | None,
    test: Sequence[object] | None,
) -> list[Trial]:
    """Plan the trials of a recipe: for each fold, each number of examples, each seed.

    The task checks the examples, and splits keep its classes in proportion. ``everything`` are the training examples; a
    share of them is held out if there are no ``validation`` examples to choose the checkpoint.

    Raises:
        UserError: there are folds and test examples, the task refuses examples, or there are too few for the splits.
    """
    if recipe.folds is not None and test is not None:
        raise UserError("give either folds or data.test, not both: with folds each example is tested once")
    with prefix_errors(recipe.data.train):
        strata = task.stratify_by(everything)
    for given, files in ((validation, recipe.data.validation), (test, recipe.data.test)):
        if given is not None:
            with prefix_errors(files):
                task.stratify_by(given)  # labels unseen in training are an error before the training
    return list(_trials(recipe, strata, everything, validation, test))


def _trials(
    recipe: FinetuneRecipe,
    strata: Rows,
    everything: Sequence[object],
    validation: Sequence[object] | None,
    test: Sequence[object] | None,
) -> Iterator[Trial]:
    first, share, split_seed = recipe.train.seed, recipe.data.share, recipe.data.split_seed
    # folds and validation examples are equal for all seeds, so that seeds do not measure the split
    all_rows = np.arange(len(everything))
    folds = [(all_rows, None)] if recipe.folds is None else list(stratified_folds(strata, recipe.folds, split_seed))
    given = np.arange(len(validation or ()))
    splits = [(rows, given) if share is None else _split(rows, strata, share, split_seed) for rows, _ in folds]
    sizes = _sizes(recipe, min(len(training) for training, _ in splits))
    for fold, ((_, fold_rows), (training, chosen)) in enumerate(zip(folds, splits, strict=True)):
        validation_examples = list(validation or ()) if share is None else _take(everything, chosen)
        test_examples, indices = test, chosen if test is None else np.arange(len(test))
        if fold_rows is not None:
            test_examples, indices = _take(everything, fold_rows), fold_rows
        measured_rows = _rows_in_files(validation_examples if test_examples is None else test_examples, indices)
        for size, count in sizes.items():
            for seed in range(first, first + recipe.seeds):
                rows = _subset(training, strata, count, seed)
                names = [f"fold-{fold}"] if recipe.folds is not None else []
                names += [f"examples-{size}"] if size else []
                complete = len(rows) == len(training) and test_examples is not None and share is not None
                yield Trial(
                    name="-".join([*names, f"seed-{seed}"]),
                    seed=seed,
                    fold=fold,
                    size=size,
                    training=_take(everything, rows),
                    validation=validation_examples,
                    test=test_examples,
                    measured_rows=measured_rows,
                    baseline_examples=[*_take(everything, rows), *(validation_examples if complete else ())],
                )


def _split(rows: Rows, strata: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    training, chosen = stratified_split(strata[rows], share, seed)
    return rows[training], rows[chosen]


def _take(examples: Sequence[object], rows: Rows) -> list[object]:
    return [examples[row] for row in rows.tolist()]


def _rows_in_files(examples: Sequence[object], indices: Rows) -> Rows:
    """Return the row numbers of examples in their files, from 0; the index of an example that is not numbered."""
    rows = [getattr(example, "row", 0) for example in examples]
    return np.array([row - 1 if row else index for row, index in zip(rows, indices.tolist(), strict=True)])


def _sizes(recipe: FinetuneRecipe, available: int) -> dict[int, int | None]:
    """Number of examples to draw from a fold, by size; None: all."""
    if recipe.train_sizes is None:
        return {0: None}
    numbers = sorted({size for size in recipe.train_sizes if isinstance(size, int)})
    if numbers and numbers[-1] > available:
        raise UserError(f"train_sizes={numbers[-1]} exceeds the {available} training examples; lower it, or use all")
    sizes: dict[int, int | None] = {size: size for size in numbers}
    if "all" in recipe.train_sizes:
        sizes[available] = None
    return sizes


def _subset(rows: Rows, strata: Rows, size: int | None, seed: int) -> Rows:
    if size is None or size == len(rows):
        return rows
    return np.sort(rows[stratified_order(strata[rows], seed)[:size]])


def largest_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with the most training examples."""
    most = max(trial.size for trial in trials)
    return [trial for trial in trials if trial.size == most]


def average_metrics(measured: Sequence[Metrics]) -> Metrics:
    """Return the metrics of a single trial, or the means over several with standard deviations in ``std``."""
    if len(measured) == 1:
        return measured[0]
    statistics = summarise(measured)
    means: Metrics = {name: values["mean"] for name, values in statistics.items()}
    return means | {"rows": measured[0]["rows"], "std": {name: values["std"] for name, values in statistics.items()}}


def write_run_predictions(run: Path, name: str, rows: Rows, predictions: Sequence[Mapping[str, object]]) -> None:
    """Write ``predictions/NAME.jsonl``: one line per example, with its row number in its files, from 0."""
    folder = run / PREDICTIONS
    folder.mkdir(exist_ok=True)
    lines = (
        json.dumps({"row": row, **prediction}, ensure_ascii=False, allow_nan=False)
        for row, prediction in zip(rows.tolist(), predictions, strict=True)
    )
    write_text(folder / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))


def copy_model(out: Path, trial: Path) -> None:
    """Copy ``model/`` and ``hf/`` of a trial into the run directory ``out``."""
    for name in ("model", "hf"):
        copy_folder(trial / name, out / name)


def copy_folder(source: Path, target: Path) -> None:
    """Replace ``target`` by a copy of ``source``, or remove it if there is no ``source``."""
    if not source.is_dir():
        shutil.rmtree(target, ignore_errors=True)
        return
    with atomic_path(target) as temporary:
        shutil.copytree(source, temporary)


def measure_baselines(recipe: FinetuneRecipe, out: str | Path, *, start_from: str, resume: bool = False) -> Tree:
    """Train the baselines of a fine-tuning recipe, and evaluate them on the test examples.

    Args:
        recipe: fine-tuning recipe.
        out: folder for ``result.json`` and ``predictions/BASELINE.jsonl``, one line per test example; with folds, each
            example once.
        start_from: pretrained model; tasks may need its tokenizer.
        resume: measure again in the folder of a stopped measurement.

    Returns:
        The content of ``result.json``, in which the file also has ``version`` and ``of``, the `baseline_settings`.

    Raises:
        UserError: the data or the model cannot be used.
    """
    data = recipe.data
    everything, test = data.read("train"), data.read("test")
    assert everything is not None
    task = data.task(recipe.objective, open_for_inference(start_from), everything)
    trials = plan_trials(recipe, task, everything, data.read("validation"), test)
    run = Run.create(out, recipe, resume=resume)
    groups, reports = zip(*group_baselines(task, largest_trials(trials)), strict=True)
    rows = [group[0].measured_rows for group in groups]
    for name in reports[0]:
        predictions = [line for report in reports for line in report[name].predictions]
        write_run_predictions(run.path, name, np.concatenate(rows), predictions)
    result = {
        "kind": "baselines",
        "name": run.path.name,
        "task": recipe.objective.kind,
        "task_description": recipe.objective.description,
        "measures": list(task.reported_metrics),
        "measured_on": "folds" if recipe.folds else "test" if test is not None else "validation",
        "rows": int(sum(map(len, rows))),
        "baselines": average_baselines(reports),
    }
    run.write_result({"version": VERSION, "of": baseline_settings(recipe)} | result)
    return result


def group_baselines(
    task: Task[object, TaskRows], trials: Sequence[Trial]
) -> Iterator[tuple[list[Trial], Mapping[str, Measured]]]:
    """Yield groups of trials that differ only in their seed, with the baselines of each group."""
    for _, found in groupby(trials, key=lambda trial: (trial.fold, trial.size)):
        group = list(found)
        yield group, task.baselines(group[0].baseline_examples, group[0].measured)


def average_baselines(reports: Sequence[Mapping[str, Measured]]) -> dict[str, Metrics]:
    """Average the metrics of each baseline over folds."""
    return {name: average_metrics([report[name].metrics for report in reports]) for name in reports[0]}


def baseline_settings(recipe: FinetuneRecipe) -> dict[str, object]:
    """Return the settings that baselines depend on; recipes with equal settings have equal baselines."""
    data, objective = recipe.data, recipe.objective
    return {
        "data": data.model_dump(mode="json", exclude={*data.not_for_baselines}),
        "objective": objective.model_dump(mode="json", include=_TRUTH_FIELDS),
        "folds": recipe.folds,
        "train_sizes": recipe.train_sizes,
    }
