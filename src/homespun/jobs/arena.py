"""The Long Range Arena: several attentions on one task, each trained from nothing under one budget, and their table."""

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

from homespun.config import Config, override, read_yaml, validate
from homespun.data.arena import ArenaRows, ArenaTask
from homespun.data.examples import Parts
from homespun.data.labelled import Labels
from homespun.data.loader import Collate, Loader
from homespun.errors import NotFinite, UserError, nearest
from homespun.inference.passes import logits_of
from homespun.inference.predict import probabilities
from homespun.jobs.arena_settings import MODELS, PUBLISHED, SETTINGS, TASKS
from homespun.jobs.processes import check_one_process
from homespun.jobs.result import summarise, watch
from homespun.metrics.classification import Metrics, classification_metrics, classify
from homespun.models.bundle import load_weights, save_model
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.model import Model
from homespun.models.sequence_heads import FeedForwardHeadConfig, SequenceHeadConfig
from homespun.objectives.retrieval import Retrieval
from homespun.objectives.supervised import Classification
from homespun.report import formats
from homespun.report.console import Display
from homespun.report.document import Section
from homespun.report.page import write_report
from homespun.report.significance import wilson_interval
from homespun.report.table import Column, Table
from homespun.text.tokenizer import Tokenizer
from homespun.training.config import TrainConfig
from homespun.training.devices import Place
from homespun.training.run import Run
from homespun.training.trainer import Interrupted, Trainer
from homespun.training.validation import Evaluation

logger = logging.getLogger(__name__)


class ArenaRecipe(Config):
    """One model on one task."""

    kind: Literal["arena"] = "arena"
    task: ArenaTask
    model: EncoderConfig
    head: SequenceHeadConfig = FeedForwardHeadConfig()
    train: TrainConfig

    @property
    def objective(self) -> Classification | Retrieval:
        """Pairs have a head of their own."""
        if self.task.kind == "retrieval":
            return Retrieval(hidden_size=self.model.intermediate_size)
        return Classification(head=self.head)


@dataclass(frozen=True)
class Contest:
    """What all models of a task share."""

    tokenizer: Tokenizer
    labels: Labels
    train: ArenaRows
    validation: ArenaRows
    test: ArenaRows
    majority: float  # share of the test rows that have the class most frequent in training


def arena_recipe(
    task: str, overrides: Sequence[str] = (), *, model: str = "full", data: str | Path | None = None
) -> ArenaRecipe:
    """The arena's settings of ``task`` for one of `MODELS`, with ``KEY=VALUE`` overrides applied, validated.

    An override may begin with the name of a model, ``linformer.model.attention.k=64``: it is for that one alone. The
    longest input is that of the task, the vocabulary that of its tokenizer.

    Raises:
        UserError: unknown task, model, key or value, each with what is near or allowed.
    """
    for what, name, known in (("task", task, TASKS), ("model", model, MODELS)):
        if name not in known:
            raise UserError(f"unknown {what} {name!r}{nearest(name, known)}")
    tree = override(SETTINGS[task], ())
    tree["model"] |= MODELS[model]
    if data is not None:
        tree["task"]["path"] = str(data)
    own = [setting for name, setting in map(_addressed, overrides) if name in (None, model)]
    recipe = validate(ArenaRecipe, override(tree, own), source=f"arena {task}")
    tokenizer = recipe.task.tokenizer()
    facts = {
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "max_position_embeddings": recipe.task.length,
    }
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=facts)})


def _addressed(assignment: str) -> tuple[str | None, str]:
    """The model that an override is for, ``None``: all, and what it sets."""
    name, _, rest = assignment.partition(".")
    return (name, rest) if name in MODELS else (None, assignment)


def _shared(overrides: Sequence[str], models: Sequence[str]) -> list[str]:
    """The overrides that are for all models.

    Raises:
        UserError: one is for a model that is not among ``models``.
    """
    for assignment in overrides:
        name, _ = _addressed(assignment)
        if name is not None and name not in models:
            raise UserError(
                f"{assignment} is for {name}, which is not among --models {','.join(models)}; name it there"
            )
    return [assignment for assignment in overrides if _addressed(assignment)[0] is None]


def _check_built(model: str, recipe: ArenaRecipe) -> None:
    try:
        recipe.model.build()
    except UserError as error:
        raise UserError(
            f"{model}: {error}; set {model}.model.attention.KEY=VALUE, or name the other models in --models"
        ) from error


def arena(
    task: str,
    out: str | Path,
    *,
    models: Sequence[str] = tuple(MODELS),
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    display: Display | None = None,
) -> dict[str, Any]:
    """Train ``models`` on ``task`` one after the other, under the same budget, and set them beside the published ones.

    Every model is a run of its own, ``out/trials/MODEL``. The same call goes on where it was stopped: finished models
    are not trained again, and with a larger ``train.budget`` all go on under it. Others that are finished there, under
    settings that differ in the attention alone, stand in the result after ``models``.

    Args:
        task: one of `TASKS`.
        out: a folder that is new or holds the same task.
        models: names in `MODELS`.
        data: folder of the task's files; ListOps needs none.
        overrides: ``KEY=VALUE`` changes to the arena's settings, as `arena_recipe` reads them.
        display: where progress is shown.

    Returns:
        ``result.json``: ``task``, ``labels``, ``rows`` {part: count}, ``truncated``, ``majority`` (accuracy of the
        class most frequent in training), ``models`` (a list: name, accuracy, rows, parameters, seconds_per_step,
        peak_bytes, steps, seconds, end), ``published`` {model: accuracy in percent}, ``page``.

    Raises:
        UserError: unknown task or model, a model that cannot be built, overrides for one that is not among ``models``,
            data that cannot be used, a folder of another task, an interrupted run.
    """
    display = display or Display(json=True)
    if not models:
        raise UserError(f"which models? there are: {', '.join(MODELS)}")
    recipe = arena_recipe(task, _shared(overrides, models), data=data)
    recipes = {name: arena_recipe(task, overrides, model=name, data=data) for name in models}
    for name, trial in recipes.items():  # what cannot be built is said now, not after the training of others
        _check_built(name, trial)
        check_one_process(trial.train, "homespun arena")
    place = Place.here()
    made, progress = Path(out) / "data", display.task(f"data of {task}", total=None, unit="rows")
    if not recipe.task.generated:  # before there is a run: a mistake in the files is not to leave one behind
        parts = recipe.task.read(made, progress.update)
    run = Run.create(out, recipe, resume=True, main=place.is_main)
    if recipe.task.generated:
        if place.is_main:
            parts = recipe.task.read(made, progress.update)
        place.wait()  # the main process writes what the others read now
        if not place.is_main:
            parts = recipe.task.read(made, progress.update)
    contest = _contest(recipe, parts)
    results = [_compete(trial, name, contest, run, place, display) for name, trial in recipes.items()]
    if not place.is_main:
        return {}
    others = (name for name in MODELS if name not in recipes)
    results += [_line(name, result, contest) for name, result in _finished_before(others, recipe, run)]
    final: dict[str, Any] = {
        "kind": "arena",
        "name": run.path.name,
        "task": task,
        "labels": list(contest.labels.names),
        "rows": {part: len(getattr(contest, part)) for part in ("train", "validation", "test")},
        "truncated": sum(rows.truncated for rows in (contest.train, contest.validation, contest.test)),
        "majority": contest.majority,
        "models": results,
        "published": {name: scores[task] for name, scores in PUBLISHED.items()},
    }
    finished = [run.path / "trials" / result["name"] for result in results]
    story = [Section("Beside the published scores", _STORY, tables=scoreboard(final))]
    page = write_report(finished, run.path / "report", title=f"Long Range Arena: {task}", story=story)
    final["page"] = str(page)
    run.write_result(final)
    return final


_STORY = (
    "Every model was trained from nothing on the same rows in the same order, under the same budget; only its "
    "attention differs. The published scores are those of Tay et al. 2021, under the budget of its authors."
)


def scoreboard(result: Mapping[str, Any]) -> tuple[Table, Table, Table]:
    """The tables of a result: how right the models are, what they cost, and all published scores."""
    name = Column("model", numeric=False)
    published = {model: score / 100 for model, score in result["published"].items()}
    scores: list[tuple[Any, ...]] = []
    for model in result["models"]:
        accuracy = model["accuracy"]
        interval = None if accuracy is None else wilson_interval(accuracy, model["rows"])
        scores.append((model["name"], accuracy, interval, published[model["name"]]))
    scores.append(("majority class", result["majority"], None, None))
    columns: tuple[Column, ...] = (
        name,
        Column("accuracy", formats.percent),
        Column("95 % interval", formats.interval, parts=("low", "high")),
        Column("published", formats.percent),
    )
    title = f"Long Range Arena, {result['task']}: accuracy on {result['rows']['test']:,} test rows"
    accuracies = Table("arena", title, columns, tuple(scores))

    keys = ("name", "parameters", "seconds_per_step", "peak_bytes", "steps", "seconds")
    lines = [(*(model[key] for key in keys), _state(model["end"])) for model in result["models"]]
    columns = (
        name,
        Column("parameters", formats.count),
        Column("seconds per step", formats.step_seconds),
        Column("peak memory", formats.memory),
        Column("steps", formats.whole),
        Column("time", formats.duration),
        Column("state", numeric=False),
    )
    note = "On a CPU the memory is that of the whole process, the data included."
    costs = Table("arena-costs", "In training", columns, tuple(lines), note).without_empty_columns()

    ranked = sorted(published.items(), key=lambda pair: -pair[1])
    note = "Tay et al. 2021, table 1: the arena's own settings, budget and code."
    title = f"Published on {result['task']}"
    return (
        accuracies,
        costs,
        Table("published", title, (name, Column("accuracy", formats.percent)), tuple(ranked), note),
    )


def _state(end: str) -> str | None:
    return None if end == "budget" else end.replace("_", " ")


def _contest(recipe: ArenaRecipe, parts: Parts) -> Contest:
    task, tokenizer = recipe.task, recipe.task.tokenizer()
    labels = Labels.collect(parts["train"].labels)
    blind = Counter(parts["train"].labels).most_common(1)[0][0]
    return Contest(
        tokenizer,
        labels,
        train=task.rows(parts["train"], tokenizer, labels),
        validation=task.rows(parts["validation"].by_length(), tokenizer, labels),
        test=task.rows(parts["test"].by_length(), tokenizer, labels),
        majority=parts["test"].labels.count(blind) / len(parts["test"]),
    )


def _compete(
    recipe: ArenaRecipe, name: str, contest: Contest, out: Run, place: Place, display: Display
) -> dict[str, Any]:
    """The line of one model, trained now unless it was already."""
    run = Run.create(out.path / "trials" / name, recipe, resume=True, main=place.is_main)
    finished = run.path / "result.json"
    if finished.is_file():
        result = json.loads(finished.read_text(encoding="utf-8"))
    else:
        try:
            result = _train(recipe, contest, run, place, display)
        except Interrupted as error:
            raise Interrupted(f"{name} was stopped; give the same command again to go on with {out.path}") from error
        except NotFinite as error:  # which must not cost the others their turn; the next call tries it again
            logger.warning("%s has no score: %s", name, error)
            result = summarise(run.path, kind="finetune", parameters=0) | {"test": {}, "end": "not_finite"}
        else:
            run.write_result(result)
    return _line(name, result, contest)


def _finished_before(models: Iterable[str], recipe: ArenaRecipe, out: Run) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The results of models that earlier calls finished, as far as only their attention differs from ``recipe``."""
    for name in models:
        folder = out.path / "trials" / name
        if not (folder / "result.json").is_file():
            continue
        before = validate(ArenaRecipe, read_yaml(folder / "config.yaml"), source=str(folder))
        attention = {"attention": recipe.model.attention}
        if before.model_copy(update={"model": before.model.model_copy(update=attention)}) == recipe:
            yield name, json.loads((folder / "result.json").read_text(encoding="utf-8"))
        else:
            logger.warning(
                "%s is finished under other settings and not listed; name it in --models, with what is set for it",
                folder,
            )


def _line(name: str, result: Mapping[str, Any], contest: Contest) -> dict[str, Any]:
    keys = ("parameters", "seconds_per_step", "peak_bytes", "steps", "seconds", "end")
    line = {"name": name, "accuracy": result["test"].get("accuracy"), "rows": len(contest.test)}
    return line | {key: result[key] for key in keys}


def _train(recipe: ArenaRecipe, contest: Contest, run: Run, place: Place, display: Display) -> dict[str, Any]:
    config, tokenizer, labels = recipe.train, contest.tokenizer, contest.labels
    torch.manual_seed(config.seed)
    model_config = ModelConfig(backbone=recipe.model)
    objective = recipe.objective.build(Model(recipe.model.build()), model_config, labels)
    collate = recipe.objective.collate(tokenizer.pad_id, labels)
    loader = Loader(
        contest.train,
        collate,
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        seed=config.seed,
        rank=place.rank,
        world_size=place.world_size,
        workers=config.workers,
        order="bucketed",
    )

    def measure(rows: ArenaRows) -> Metrics:
        size = config.micro_batch_size or config.batch_size
        return _measure(objective.model, rows, collate, labels, batch_size=size)

    def validate_() -> Evaluation:
        metrics = measure(contest.validation)
        numbers = {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}
        return Evaluation(metrics["log_loss"], {"loss": metrics["log_loss"]}, numbers)

    trainer = Trainer(objective, loader, config, run, validate=validate_)
    watch(trainer, display, run.path.name)
    place.wait()  # the main process writes the checkpoints that all read now
    best = run.best_checkpoint()
    if best is not None:
        load_weights(objective, best.tensors("model"), source=str(best.path))
    if not place.is_main:
        return {"test": {}} | dict.fromkeys(("parameters", "seconds_per_step", "peak_bytes", "steps", "seconds", "end"))
    product, product_config = objective.export_model()
    save_model(
        run.path / "model",
        product,
        product_config,
        tokenizer,
        labels=None if product_config.head is None else labels,
        task=recipe.task.reading(),
    )
    parameters = sum(parameter.numel() for parameter in objective.parameters())
    return summarise(run.path, kind="finetune", parameters=parameters, precision=trainer.precision) | {
        "labels": list(labels.names),
        "rows": {"train": len(contest.train), "validation": len(contest.validation), "test": len(contest.test)},
        "measured_on": "test",
        "test": measure(contest.test),
        "truncated": contest.train.truncated,
    }


def _measure(model: Model, rows: ArenaRows, collate: Collate, labels: Labels, *, batch_size: int) -> Metrics:
    """The metrics on all rows, without dropout; every part of the model is then in the mode it was in.

    Raises:
        NotFinite: as `homespun.inference.passes.logits_of`.
    """
    assert rows.targets is not None
    logits = np.empty((len(rows), len(labels)), dtype=np.float32)
    for chosen, part in logits_of(model, rows, lambda some: collate(some, ()), batch_size=batch_size):
        logits[chosen] = part
    table = probabilities(logits, labels)
    return classification_metrics(labels, rows.targets, classify(table, labels), probabilities=table)
