"""Fine-tuning, whole: a pretrained model and labelled texts in, a measured classifier beside its baselines out."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from homespun.baselines import baseline_report
from homespun.data.labelled import LabelledRows, LabelNames, Labels, read_labelled
from homespun.data.loader import Loader
from homespun.data.splits import stratified_folds, stratified_split
from homespun.errors import UserError
from homespun.hf.export import export_beside
from homespun.hf.open import open_model
from homespun.inference.predict import predict_logits, probabilities
from homespun.jobs.recipe import FinetuneRecipe, LabelledData, paths
from homespun.jobs.result import summarise, watch
from homespun.models.store import Stored, load_weights, save_model
from homespun.report.console import Display
from homespun.report.page import write_report
from homespun.training.devices import Place
from homespun.training.evaluate import Metrics, classification_metrics, classify
from homespun.training.evaluate import summarise as over_trials
from homespun.training.run import Run
from homespun.training.trainer import Trainer
from homespun.training.validation import Evaluation


@dataclass(frozen=True)
class Texts:
    """Labelled texts, as read."""

    texts: list[str]
    labels: LabelNames

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: NDArray[Any]) -> Texts:
        """Some of them."""
        return Texts([self.texts[i] for i in indices], [self.labels[i] for i in indices])


@dataclass(frozen=True)
class Trial:
    """One training: its seed, what it learns from, what chooses its checkpoint, and what measures it."""

    name: str
    seed: int
    training: Texts
    validation: Texts
    test: Texts | None


def finetune(
    recipe: FinetuneRecipe,
    out: str | Path,
    *,
    start_from: str,
    resume: bool = False,
    display: Display | None = None,
) -> dict[str, Any]:
    """Fine-tune ``start_from`` as ``recipe`` says, into the run directory ``out``; returns its ``result.json``.

    With several seeds or folds each is a run of its own under ``out/trials``, and ``out/model`` is that of the trial
    whose validation was best. Without a test set the measures are those of the validation rows, which also chose the
    checkpoint: ``measured_on`` says so.

    Raises:
        UserError: labelled data that cannot be used, a model that cannot be opened, an interrupted run.
    """
    display = display or Display(json=True)
    data = recipe.data
    if not data.train:
        raise UserError("which labelled texts? give data.train=FILE, with data.text=COLUMN and data.label=COLUMN")
    stored = open_model(start_from)
    limit = stored.config.backbone.max_position_embeddings
    if data.length > limit:
        raise UserError(
            f"data.length={data.length} exceeds the model's max_position_embeddings={limit}; lower it, and read longer "
            f"texts with data.long_inputs.kind=chunk_mean"
        )
    everything = _read(data, paths(data.train))
    labels = Labels.collect(everything.labels, multi_label=data.multi_label)
    test = _read(data, paths(data.test)) if data.test else None
    if recipe.folds is not None and test is not None:
        raise UserError("give either folds or data.test: with folds every row is tested once")
    trials = list(_trials(recipe, everything, test, labels))

    place = Place.here()
    run = Run.create(out, recipe, resume=resume, main=place.is_main)
    results: list[dict[str, Any]] = []
    for trial in trials:
        alone = len(trials) == 1
        trial_recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": trial.seed})})
        folder = run.path / "trials" / trial.name
        trial_run = run if alone else Run.create(folder, trial_recipe, resume=resume, main=place.is_main)
        finished = trial_run.path / "result.json"
        if not alone and finished.is_file():
            results.append(json.loads(finished.read_text(encoding="utf-8")))
            continue
        results.append(_train(trial_recipe, trial, stored, labels, trial_run, place, display))
        if not alone:
            trial_run.write_result(results[-1])
    if not place.is_main:
        return {}

    best = max(results, key=lambda result: result["score"])
    measured = [result["test"] for result in results]
    final = dict(best["summary"]) | {
        "name": run.path.name,
        "start_from": str(start_from),
        "labels": list(labels.names),
        "rows": {"train": len(trials[0].training), "validation": len(trials[0].validation), "test": _rows(trials[0])},
        "long_inputs": data.long_inputs.kind,
        **{name: max(result[name] for result in results) for name in ("longer", "truncated", "chunked")},
        "measured_on": "folds" if recipe.folds else "test" if test is not None else "validation",
        "test": _mean(measured),
        "seeds": measured if len(measured) > 1 else [],
        "seconds_all": sum(result["summary"]["seconds"] or 0.0 for result in results),
    }
    if len(trials) > 1:
        _adopt(run.path, run.path / "trials" / str(best["trial"]))
    if recipe.baselines:
        task = display.task("baselines: majority, TF-IDF + linear", total=1.0)
        final["baselines"] = _baselines(trials if recipe.folds else trials[:1], labels, recipe)
        task.update(1.0)
    run.write_result(final)
    write_report([run.path], run.path / "report", title=f"Fine-tuning: {run.path.name}")
    return final


def _rows(trial: Trial) -> int:
    return 0 if trial.test is None else len(trial.test)


def _read(data: LabelledData, inputs: Sequence[str]) -> Texts:
    texts, labels = read_labelled(
        inputs,
        text=data.text,
        label=data.label,
        columns=data.columns,
        encoding=data.encoding,
        multi_label=data.multi_label,
        separator=data.separator,
    )
    return Texts(texts, labels)


def _trials(recipe: FinetuneRecipe, everything: Texts, test: Texts | None, labels: Labels) -> Iterator[Trial]:
    data, first = recipe.data, recipe.train.seed
    targets = labels.encode(everything.labels)
    if test is not None:
        labels.encode(test.labels)  # a label unseen in training is said now, not after the training
    given = None if isinstance(data.validation, float) else _read(data, paths(data.validation))
    if given is not None:
        labels.encode(given.labels)

    def divided(rows: NDArray[np.int64], seed: int) -> tuple[Texts, Texts]:
        if given is not None:
            return everything.take(rows), given
        assert isinstance(data.validation, float)
        training, validation = stratified_split(targets[rows], data.validation, seed)
        return everything.take(rows[training]), everything.take(rows[validation])

    everyone = np.arange(len(everything))
    # folds are the same for every seed; so is the validation split, or seeds would measure the split too
    folds = [(everyone, None)] if recipe.folds is None else list(stratified_folds(targets, recipe.folds, first))
    for number, (rows, held_out) in enumerate(folds):
        training, validation = divided(rows, first)
        fold_test = test if held_out is None else everything.take(held_out)
        for seed in range(first, first + recipe.seeds):
            name = f"seed-{seed}" if recipe.folds is None else f"fold-{number}-seed-{seed}"
            yield Trial(name, seed, training, validation, fold_test)


def _train(
    recipe: FinetuneRecipe, trial: Trial, stored: Stored, labels: Labels, run: Run, place: Place, display: Display
) -> dict[str, Any]:
    data, config, tokenizer = recipe.data, recipe.train, stored.tokenizer
    training, validation, *tests = [
        LabelledRows(part.texts, part.labels, tokenizer, length=data.length, long_inputs=data.long_inputs, names=labels)
        for part in (trial.training, trial.validation, trial.test)
        if part is not None
    ]
    assert training.targets is not None
    weights = recipe.objective.weights(labels, training.targets)
    torch.manual_seed(config.seed)
    objective = recipe.objective.build(
        copy.deepcopy(stored.model), stored.config, labels, weights=weights, long_inputs=data.long_inputs
    )
    loader = Loader(
        training,
        recipe.objective.collate(tokenizer.pad_id, labels, weights=weights),
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        seed=config.seed,
        rank=place.rank,
        world_size=place.world_size,
        workers=config.workers,
        order="bucketed",
    )

    def measure(rows: LabelledRows) -> Metrics:
        assert rows.targets is not None
        was_training = objective.training
        size = trainer.loader.micro_batch_size or config.batch_size  # texts that are known to fit into memory
        logits = predict_logits(objective.model, rows, pad_id=tokenizer.pad_id, batch_size=size)
        objective.train(was_training)
        table = probabilities(logits, labels)
        return classification_metrics(labels, rows.targets, classify(table, labels), probabilities=table)

    def validate() -> Evaluation:
        metrics = measure(validation)
        return Evaluation(metrics["log_loss"], {"loss": metrics["log_loss"]}, _scalars(metrics))

    trainer = Trainer(objective, loader, config, run, validate=validate)
    watch(trainer, display, f"fine-tuning {run.path.name}")
    place.wait()  # the main process writes the checkpoints that all read now
    best = run.best_checkpoint()
    if best is not None:
        load_weights(objective, best.tensors("model"), source=str(best.path))
    model, model_config = objective.product()
    if not place.is_main:
        return {"longer": 0, "truncated": 0, "chunked": 0, "score": 0.0}
    task_description = {
        "kind": "classification",
        "length": data.length,
        "long_inputs": data.long_inputs.model_dump(mode="json"),
        "text": data.text,
        "label": data.label,
        "columns": data.columns,
        "encoding": data.encoding,
        "separator": data.separator,
    }
    save_model(run.path / "model", model, model_config, tokenizer, labels=labels, task=task_description)
    exported = export_beside(run.path, model, model_config, tokenizer, labels=labels)
    chosen = measure(validation)
    summary = summarise(run.path, kind="finetune", parameters=sum(p.numel() for p in model.parameters()))
    return {
        "trial": trial.name,
        "score": -chosen["log_loss"] if config.best_metric == "loss" else chosen[config.best_metric],
        "summary": summary | {"export": exported, "validation_metrics": chosen},
        "test": measure(tests[0]) if tests else chosen,
        **{name: sum(rows.counts[name] for rows in (training, validation, *tests)) for name in training.counts},
    }


def _scalars(metrics: Metrics) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


def _baselines(trials: Sequence[Trial], labels: Labels, recipe: FinetuneRecipe) -> dict[str, Metrics]:
    """With a test set the baselines learn from every labelled row, the validation rows too: they need none."""
    reports = []
    for trial in trials:
        test = trial.test or trial.validation
        training = trial.training
        if trial.test is not None and isinstance(recipe.data.validation, float):
            training = Texts(
                [*training.texts, *trial.validation.texts],
                [*training.labels, *trial.validation.labels],
            )
        reports.append(baseline_report(training.texts, training.labels, test.texts, test.labels, labels))
    if len(reports) == 1:
        return reports[0]
    return {name: _mean([report[name] for report in reports]) for name in reports[0]}


def _mean(measured: Sequence[Metrics]) -> Metrics:
    """The metrics of one trial; of several the means, with the deviations beside them in ``std``."""
    if len(measured) == 1:
        return measured[0]
    over = over_trials(measured)
    means: Metrics = {name: values["mean"] for name, values in over.items()}
    return means | {"rows": measured[0]["rows"], "std": {name: values["std"] for name, values in over.items()}}


def _adopt(out: Path, trial: Path) -> None:
    """Copy the best trial's model to where a run has its model."""
    import shutil

    for name in ("model", "hf"):
        if (trial / name).is_dir():
            beside = out / f".tmp-{name}"
            shutil.rmtree(beside, ignore_errors=True)
            shutil.copytree(trial / name, beside)
            shutil.rmtree(out / name, ignore_errors=True)
            beside.rename(out / name)
