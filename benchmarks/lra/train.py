"""Training of the models of a Long Range Arena task, one after the other, and comparison with published scores."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.lra.examples import Parts
from benchmarks.lra.retrieval import Retrieval
from benchmarks.lra.settings import MODELS, PUBLISHED, SETTINGS, TASKS
from benchmarks.lra.tasks import LRARows, LRATask
from homespun.commands.result import summarise, watch
from homespun.config import Config, override, read_yaml, validate
from homespun.data.labels import Labels
from homespun.data.loader import Collate, Loader
from homespun.errors import NotFinite, UserError, nearest
from homespun.inference.predict import forward_logits
from homespun.metrics.calibration import probabilities
from homespun.metrics.classification import Metrics, classification_metrics, classify
from homespun.models.bundle import load_weights, save_model
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.model import Model
from homespun.models.sequence_heads import FeedForwardHeadConfig, SequenceHeadConfig
from homespun.report import formats
from homespun.report.console import Display
from homespun.report.document import Column, Table
from homespun.report.significance import wilson_interval
from homespun.tasks.classification import Classification
from homespun.text.tokenizer import Tokenizer
from homespun.training.config import TrainConfig
from homespun.training.devices import DistributedContext, loader_workers
from homespun.training.processes import is_launched
from homespun.training.run import Run
from homespun.training.trainer import Interrupted, Trainer
from homespun.training.validation import EvalResult

logger = logging.getLogger(__name__)
_COSTS = ("parameters", "seconds_per_step", "peak_bytes", "steps", "seconds", "end")  # keys of a run's result


class LRARecipe(Config):
    """Settings of one model on one task."""

    kind: Literal["lra"] = "lra"
    task: LRATask
    model: EncoderConfig
    head: SequenceHeadConfig = FeedForwardHeadConfig()
    train: TrainConfig

    @property
    def objective(self) -> Classification | Retrieval:
        """Two-tower retrieval for pairs of documents, else classification."""
        if self.task.kind == "retrieval":
            return Retrieval(hidden_size=self.model.intermediate_size)
        return Classification(head=self.head)


@dataclass(frozen=True)
class _Data:
    """Data shared by all models of a task."""

    tokenizer: Tokenizer
    labels: Labels
    train: LRARows
    validation: LRARows
    test: LRARows
    majority: float  # accuracy on the test rows of the most frequent training class

    @classmethod
    def of(cls, task: LRATask, parts: Parts) -> _Data:
        tokenizer, train, test = task.tokenizer(), parts["train"], parts["test"]
        labels = Labels.collect(train.labels)
        (most_frequent, _), *_ = Counter(train.labels).most_common(1)
        return cls(
            tokenizer,
            labels,
            train=task.rows(train, tokenizer, labels),
            validation=task.rows(parts["validation"].by_length(), tokenizer, labels),
            test=task.rows(test.by_length(), tokenizer, labels),
            majority=test.labels.count(most_frequent) / len(test),
        )


def lra_recipe(
    task: str, overrides: Sequence[str] = (), *, model: str = "full", data: str | Path | None = None
) -> LRARecipe:
    """Build the settings of ``task`` for one of `MODELS`.

    ``KEY=VALUE`` overrides apply to all models, ``MODEL.KEY=VALUE`` to one: ``linformer.model.attention.k=64``. The
    task sets ``max_position_embeddings``, its tokenizer ``vocab_size``.

    Raises:
        UserError: unknown task, model, key or value.
    """
    for what, name, known in (("task", task, TASKS), ("model", model, MODELS)):
        if name not in known:
            raise UserError(f"unknown {what} {name!r}{nearest(name, known)}")
    tree = override(SETTINGS[task], ())
    tree["model"] |= MODELS[model]
    if data is not None:
        tree["task"]["path"] = str(data)
    own = [setting for name, setting in map(_split_model, overrides) if name in (None, model)]
    recipe = validate(LRARecipe, override(tree, own), source=f"lra {task}")
    tokenizer = recipe.task.tokenizer()
    sizes = {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "max_position_embeddings": recipe.task.length,
    }
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=sizes)})


def _split_model(assignment: str) -> tuple[str | None, str]:
    """Split ``MODEL.KEY=VALUE`` into the model and the rest; the model is ``None`` without a name."""
    name, _, rest = assignment.partition(".")
    return (name, rest) if name in MODELS else (None, assignment)


def lra(
    task: str,
    out: str | Path,
    *,
    models: Sequence[str] = tuple(MODELS),
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    display: Display | None = None,
) -> dict[str, Any]:
    """Train ``models`` on ``task`` one after the other, under the same budget; the same call resumes.

    Models that earlier calls finished in ``out`` are listed after ``models`` if they differ in the attention alone.

    Args:
        task: one of `TASKS`.
        out: a folder that is new or holds the same task.
        models: names in `MODELS`.
        data: folder of the task's files; ListOps needs none.
        overrides: ``KEY=VALUE`` changes to the settings, see `lra_recipe`.
        display: shows progress.

    Returns:
        ``result.json``: ``task``, ``labels``, ``rows`` {part: count}, ``truncated``, ``majority`` (accuracy of the
        most frequent training class), ``models`` (a list: name, accuracy, rows, parameters, seconds_per_step,
        peak_bytes, steps, seconds, end), ``published`` {model: accuracy in percent}.

    Raises:
        UserError: unknown task or model, a model that cannot be built, overrides for a model not among ``models``,
            unusable data, a folder of another task, an interrupted run, several processes.
    """
    display = display or Display(json=True)
    shared = []
    for assignment in overrides:
        name, setting = _split_model(assignment)
        if name is None:
            shared.append(setting)
        elif name not in models:
            raise UserError(f"{assignment} is for {name}, which is not among --models {','.join(models)}; add it there")
    recipe = lra_recipe(task, shared, data=data)
    recipes = {name: lra_recipe(task, overrides, model=name, data=data) for name in models}
    for name, trial in recipes.items():  # before the first of them trains
        if is_launched() or trial.train.processes not in (1, "auto"):
            raise UserError("lra trains in one process; set train.processes=1 and start it without torchrun")
        try:
            trial.model.build()
        except UserError as error:
            raise UserError(
                f"{name}: {error}; set {name}.model.attention.KEY=VALUE or leave it out of --models"
            ) from error
    generated, progress = Path(out) / "data", display.task(f"data of {task}", total=None, unit="rows")
    # user files are read before the run folder exists, so that an error in them leaves none; generated ones lie in it
    parts = None if recipe.task.generated else recipe.task.read(generated, progress.update)
    run = Run.create(out, recipe, resume=True)
    shared_data = _Data.of(recipe.task, parts or recipe.task.read(generated, progress.update))
    found = {name: _train_or_read(trial, name, shared_data, run, display) for name, trial in recipes.items()}
    found |= _finished_before((name for name in MODELS if name not in recipes), recipe, run)
    rows = {part: getattr(shared_data, part) for part in ("train", "validation", "test")}
    result: dict[str, Any] = {
        "kind": "lra",
        "name": run.path.name,
        "task": task,
        "labels": list(shared_data.labels.names),
        "rows": {part: len(examples) for part, examples in rows.items()},
        "truncated": sum(examples.truncated for examples in rows.values()),
        "majority": shared_data.majority,
        "models": [
            {"name": name, "accuracy": one["test"].get("accuracy"), "rows": len(shared_data.test)}
            | {key: one[key] for key in _COSTS}
            for name, one in found.items()
        ],
        "published": {name: scores[task] for name, scores in PUBLISHED.items()},
    }
    run.write_result(result)
    return result


def scoreboard(result: Mapping[str, Any]) -> tuple[Table, Table, Table]:
    """Build the tables of a result: accuracy, cost, all published scores."""
    name, accuracy = Column("model", numeric=False), Column("accuracy", formats.percent)
    published = {model: score / 100 for model, score in result["published"].items()}
    scores: list[tuple[Any, ...]] = []
    for model in result["models"]:
        score = model["accuracy"]
        interval = None if score is None else wilson_interval(score, model["rows"])
        scores.append((model["name"], score, interval, published[model["name"]]))
    scores.append(("majority class", result["majority"], None, None))
    interval_column = Column("95 % interval", formats.interval)
    columns: tuple[Column, ...] = (name, accuracy, interval_column, Column("published", formats.percent))
    title = f"Long Range Arena, {result['task']}: accuracy on {result['rows']['test']:,} test rows"
    accuracies = Table("lra", title, columns, tuple(scores))

    lines = []
    for model in result["models"]:
        end = None if model["end"] == "budget" else model["end"].replace("_", " ")
        lines.append((model["name"], *(model[key] for key in _COSTS[:-1]), end))
    columns = (
        name,
        Column("parameters", formats.count),
        Column("seconds per step", formats.step_seconds),
        Column("peak memory", formats.memory),
        Column("steps", formats.integer),
        Column("time", formats.duration),
        Column("state", numeric=False),
    )
    note = "On a CPU, memory is that of the whole process, data included."
    costs = Table("lra-costs", "Training", columns, tuple(lines), note).without_empty_columns()

    ranked = tuple(sorted(published.items(), key=lambda pair: -pair[1]))
    note = "Tay et al. 2021, table 1: their settings, budget and code."
    return accuracies, costs, Table("published", f"Published on {result['task']}", (name, accuracy), ranked, note)


def _train_or_read(recipe: LRARecipe, name: str, data: _Data, out: Run, display: Display) -> dict[str, Any]:
    """Train one model, or read its result if an earlier call finished it."""
    run = Run.create(out.path / "trials" / name, recipe, resume=True)
    if (run.path / "result.json").is_file():
        return _read_result(run.path)
    try:
        result = _train(recipe, data, run, display)
    except Interrupted as error:
        raise Interrupted(f"{name} was stopped; give the same command again to resume {out.path}") from error
    except NotFinite as error:  # the other models still train; the next call tries this one again
        logger.warning("%s has no score: %s", name, error)
        return summarise(run.path, kind="finetune", parameters=0) | {"test": {}, "end": "not_finite"}
    run.write_result(result)
    return result


def _finished_before(names: Iterable[str], recipe: LRARecipe, out: Run) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield results of models that earlier calls finished, if only their attention differs from ``recipe``."""
    for name in names:
        folder = out.path / "trials" / name
        if not (folder / "result.json").is_file():
            continue
        before = validate(LRARecipe, read_yaml(folder / "config.yaml"), source=str(folder))
        attention = {"attention": recipe.model.attention}
        if before.model_copy(update={"model": before.model.model_copy(update=attention)}) == recipe:
            yield name, _read_result(folder)
        else:
            logger.warning("%s was finished under other settings and is not listed; name it in --models", folder)


def _read_result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def _train(recipe: LRARecipe, data: _Data, run: Run, display: Display) -> dict[str, Any]:
    config, labels = recipe.train, data.labels
    torch.manual_seed(config.seed)
    objective = recipe.objective.build(Model(recipe.model.build()), ModelConfig(backbone=recipe.model), labels)
    collate = recipe.objective.collate(data.tokenizer.pad_id, labels)
    loader = Loader(
        data.train,
        collate,
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        seed=config.seed,
        workers=loader_workers(config.workers, DistributedContext.join().device),
        order="bucketed",
    )

    def measure(rows: LRARows) -> Metrics:
        size = config.micro_batch_size or config.batch_size
        return _measure(objective.model, rows, collate, labels, batch_size=size)

    def validate_() -> EvalResult:
        metrics = measure(data.validation)
        numbers = {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
        return EvalResult(metrics["log_loss"], {"loss": metrics["log_loss"]}, numbers)

    trainer = Trainer(objective, loader, config, run, validate=validate_)
    watch(trainer, display, run.path.name)
    best = run.best_checkpoint()
    if best is not None:
        load_weights(objective, best.tensors("model"), source=str(best.path))
    model, model_config = objective.export_model()
    saved_labels = None if model_config.head is None else labels
    task = recipe.task.reading()
    save_model(run.path / "model", model, model_config, data.tokenizer, labels=saved_labels, task=task)
    parameters = sum(parameter.numel() for parameter in objective.parameters())
    return summarise(run.path, kind="finetune", parameters=parameters, precision=trainer.precision) | {
        "labels": list(labels.names),
        "rows": {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)},
        "measured_on": "test",
        "test": measure(data.test),
        "truncated": data.train.truncated,
    }


def _measure(model: Model, rows: LRARows, collate: Collate, labels: Labels, *, batch_size: int) -> Metrics:
    """Compute classification metrics on all rows, in evaluation mode.

    Raises:
        NotFinite: see `homespun.inference.predict.forward_logits`.
    """
    assert rows.targets is not None
    logits = np.empty((len(rows), len(labels)), dtype=np.float32)
    for indices, part in forward_logits(model, rows, lambda selected: collate(selected, ()), batch_size=batch_size):
        logits[indices] = part
    table = probabilities(logits, labels)
    return classification_metrics(labels, rows.targets, classify(table, labels), probabilities=table)
