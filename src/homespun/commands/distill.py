"""Distillation: pretraining or fine-tuning of a student with a teacher, and a comparison of both."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from pydantic_core import to_jsonable_python

from homespun.commands.benchmark import Passes, inference_module, median_seconds
from homespun.commands.finetune import finetune
from homespun.commands.pretrain import pretrain
from homespun.commands.provenance import FILE, InitialWeights, RunInputs, check_inputs, identify_model, write_inputs
from homespun.commands.recipe import FinetuneRecipe, PretrainRecipe
from homespun.commands.workload import pretraining_rows
from homespun.config import Tree
from homespun.data.corpus import Corpus
from homespun.data.loader import Loader
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.io.atomic import atomic_path
from homespun.io.json import read_object
from homespun.io.lock import locked
from homespun.models.bundle import ModelBundle, save_model
from homespun.models.weight_transfer import build_student
from homespun.objectives.mlm import MaskedLMObjective
from homespun.objectives.teacher import teacher_folder
from homespun.report.console import SILENT, Display
from homespun.report.page import write_report
from homespun.tasks.config import task_from_metadata
from homespun.training.devices import DistributedContext
from homespun.training.run import Run, holds_run
from homespun.training.validation import evaluate_loss

logger = logging.getLogger(__name__)

_PASSES = Passes(least=5, most=60, seconds=2.0)  # of each model
_BATCH_SIZE = 32  # texts or held-out rows


def distill(
    recipe: PretrainRecipe | FinetuneRecipe,
    out: str | Path,
    *,
    teacher: str,
    start_from: str | None = None,
    layers: Sequence[int] | None = None,
    changes: Mapping[str, object] | None = None,
    from_scratch: bool = False,
    resume: bool = False,
    display: Display = SILENT,
) -> Tree:
    """Train a student with a teacher into the run directory ``out``.

    The initial student is saved in ``OUT-student`` if it is built from the teacher, and a converted teacher in
    ``OUT-teacher``. A resumed run uses these folders.

    Args:
        recipe: recipe of masked language modelling or classification.
        out: a new folder; with ``resume`` a run that was stopped.
        teacher: a run, a ``model/`` folder, or a Hugging Face folder or name.
        start_from: an existing student.
        layers: layers of the teacher to initialise the student with; every second by default.
        changes: changes to the student, of `homespun.models.weight_transfer.CHANGEABLE`.
        from_scratch: initialise the model of the recipe randomly, not with layers of the teacher; pretraining only.
        resume: continue the run in ``out``.
        display: where progress is shown; nowhere by default.

    Returns:
        The content of ``result.json``; empty in all processes but the first. ``distillation`` has sizes, speed and
        quality of both models, or the reason for missing quality (``quality_why``).

    Raises:
        UserError: the objective does not support a teacher, the teacher or the layers do not fit, a resumed run has
            another student, or a folder has other files; see also `homespun.commands.pretrain.pretrain` and
            `homespun.commands.finetune.finetune`.
    """
    _check_options(recipe, start_from, layers, changes, from_scratch=from_scratch)
    if unmeasured := _unmeasured(recipe):
        logger.warning("metrics of teacher and student are not compared: %s", unmeasured)
    path, stored = Path(out), open_model(teacher)
    context = DistributedContext.join()
    teacher_weights = identify_model(teacher, stored)
    initial_models: dict[Path, tuple[ModelBundle, RunInputs]] = {}
    try:
        source = teacher_folder(teacher)
    except UserError:  # a model in another form, which is converted
        source = _sibling_folder(path, "teacher")
        initial_models[source] = stored, {"--teacher": teacher_weights}
    recipe = with_teacher(recipe, str(source))
    student, chosen = start_from, None
    if student is None and not from_scratch:
        initial_student, origins = build_student(stored, layers=layers, changes=changes)
        folder, chosen = _sibling_folder(path, "student"), list(origins.layers)
        if folder.resolve() == source.resolve():
            raise UserError(f"the student of {path} would replace the teacher {teacher}; give another --out")
        changed = json.dumps(to_jsonable_python(changes), sort_keys=True) if changes else None
        initial_models[folder] = (
            initial_student,
            {
                "--teacher": teacher_weights,
                "--layers": _as_input(",".join(map(str, chosen))),
                "changes": _as_input(changed),
            },
        )
        student = str(folder)
    if context.is_main:
        _save_initial_models(path, initial_models, resume=resume)
    context.wait()
    if isinstance(recipe, PretrainRecipe):
        pretrain(recipe, path, start_from=student, resume=resume, display=display)
    else:
        assert student is not None
        finetune(recipe, path, start_from=student, resume=resume, display=display)
    if not context.is_main:
        return {}
    trained = open_model(path)
    summary: Tree = {"teacher": teacher, "layers": chosen} | _sizes(stored, trained)
    result = read_object(path / "result.json")
    summary["quality"] = _quality(recipe, stored, trained, result, context.device)
    summary |= {"quality_why": unmeasured} if unmeasured else {}
    summary["speed"] = compare_speed(stored, trained, length=int(trained.task["max_length"]), device=context.device)
    result["distillation"] = summary
    Run(path).write_result(result)
    write_report([path], path / "report", title=f"Distillation: {path.name}")
    return result


def with_teacher(recipe: PretrainRecipe | FinetuneRecipe, source: str) -> PretrainRecipe | FinetuneRecipe:
    """Return a copy of the recipe with the teacher in ``source``.

    Raises:
        UserError: the objective takes no teacher.
    """
    objective = recipe.objective
    if "teacher" not in type(objective).model_fields:
        raise UserError(
            f"objective.kind={objective.kind} takes no teacher; use objective.kind=mlm in pretraining, or "
            f"classification in fine-tuning"
        )
    tree = objective.model_dump(exclude_unset=True)
    tree["teacher"] = (tree.get("teacher") or {}) | {"source": source}
    return recipe.model_copy(update={"objective": type(objective).model_validate(tree)})


def _check_options(
    recipe: PretrainRecipe | FinetuneRecipe,
    start_from: str | None,
    layers: Sequence[int] | None,
    changes: Mapping[str, object] | None,
    *,
    from_scratch: bool,
) -> None:
    if from_scratch and (layers is not None or start_from is not None or changes):
        raise UserError(
            "--from-scratch initialises the recipe's model at random; leave out --from, --layers and model.KEY=VALUE"
        )
    if from_scratch and isinstance(recipe, FinetuneRecipe):
        raise UserError(
            "--from-scratch is for pretraining; run `homespun distill pretrain ... --from-scratch`, then give that run "
            "as --from"
        )
    if start_from is not None and (layers is not None or changes):
        raise UserError("--from is a complete student; leave out --layers and model.KEY=VALUE")


def _sibling_folder(out: Path, suffix: str) -> Path:
    return out.with_name(f"{out.name}-{suffix}")


def _as_input(value: str | None) -> InitialWeights | None:
    """Setting that a resumed run must keep, recorded as the initial weights are."""
    return None if value is None else InitialWeights(name=value, fingerprint=value)


def _save_initial_models(run: Path, models: Mapping[Path, tuple[ModelBundle, RunInputs]], *, resume: bool) -> None:
    """Save each model in its folder. A resumed run keeps its own, because parts of a student are random.

    Raises:
        UserError: ``run`` can be neither created nor resumed, or a folder holds other files or a model with
            other inputs.
    """
    resumed = holds_run(run, resume=resume)
    for folder, (_, inputs) in models.items():
        # folders of earlier versions have no FILE
        is_saved = (folder / "homespun.json").is_file() and (resumed or (folder / FILE).is_file())
        if folder.exists() and not is_saved:
            raise UserError(
                f"{folder} is needed for a model of {run}, but holds other files; give another --out, or move it away"
            )
        if resumed:
            check_inputs(folder, inputs)
    for folder, (stored, inputs) in models.items():
        if not (resumed and folder.exists()):
            labels, task = stored.labels, stored.task
            with locked(folder, as_one=True), atomic_path(folder) as made:
                save_model(made, stored.model, stored.config, stored.tokenizer, labels=labels, task=task)
                write_inputs(made, inputs)


def _sizes(teacher: ModelBundle, student: ModelBundle) -> dict[str, dict[str, int]]:
    """Number of parameters and bytes of both models."""
    models = {"teacher": teacher.model, "student": student.model}
    return {
        "parameters": {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()},
        "bytes": {name: sum(p.nbytes for p in model.parameters()) for name, model in models.items()},
    }


def _unmeasured(recipe: PretrainRecipe | FinetuneRecipe) -> str:
    """Reason why there is no common test data for teacher and student; empty if there is."""
    if isinstance(recipe, PretrainRecipe) or recipe.data.test:
        return ""
    if recipe.folds is not None:
        return (
            "a teacher fine-tuned on data.train has seen the test labels of every fold, so that both metrics would be "
            "too good; give data.test=FILE instead of folds"
        )
    return (
        "data.test is missing, and the validation examples chose the student's checkpoint; give data.test=FILE "
        "(homespun fit measures both on its test examples)"
    )


def _quality(
    recipe: PretrainRecipe | FinetuneRecipe,
    teacher: ModelBundle,
    student: ModelBundle,
    result: Tree,
    device: torch.device,
) -> dict[str, dict[str, float]]:
    """Metrics of teacher and student on test examples or held-out rows; empty without test examples.

    With several seeds, the student has the mean of its trials and ``std``.
    """
    for stored in (teacher, student):
        stored.model.to(device).eval()
    if isinstance(recipe, PretrainRecipe):
        before, after = (_evaluate_mlm(recipe, stored, student, device) for stored in (teacher, student))
        return {key: {"teacher": before[key], "student": after[key]} for key in after}
    examples = recipe.data.read("test")
    if examples is None:
        return {}
    task = task_from_metadata(recipe.data, teacher, source="the teacher")
    measured = task.measure(teacher.model, task.rows(examples), batch_size=_BATCH_SIZE).metrics
    mean, deviations = result["test"], result["test"].get("std", {})
    return {
        key: {"teacher": measured[key], "student": mean[key]} | ({"std": deviations[key]} if key in deviations else {})
        for key in task.reported_metrics
        if key in measured and key in mean
    }


def _evaluate_mlm(
    recipe: PretrainRecipe, stored: ModelBundle, student: ModelBundle, device: torch.device
) -> dict[str, float]:
    """Loss and accuracy of ``stored`` on held-out rows, with the same masks for teacher and student."""
    corpus = Corpus.open(recipe.data.corpus)
    # the student's backbone decides the length of rows and whether packed documents are masked
    _, rows = pretraining_rows(recipe.model_copy(update={"model": student.config.backbone}), corpus)
    collate = recipe.objective.model_copy(update={"teacher": None}).collate(corpus.tokenizer)
    objective = MaskedLMObjective(stored.model, stored.config, None)
    loader = Loader(rows, collate, batch_size=_BATCH_SIZE, seed=recipe.data.split_seed)
    losses = evaluate_loss(objective, loader.once(), device).losses
    return {"mlm_accuracy": losses["mlm_accuracy"], "mlm_loss": losses["mlm"]}


def compare_speed(
    teacher: ModelBundle,
    student: ModelBundle,
    *,
    length: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, float]]:
    """Measure the median seconds per text of both models, in turns so that other load slows both.

    The head of a fine-tuned model is included; other models are measured without a head. Texts have ``length`` random
    tokens; a batch of one measures latency. On a busy machine, the clock `time.process_time` excludes other processes.

    Returns:
        For batches of 1 and 32 texts ``length``, ``batch_size``, and seconds per text of ``teacher`` and ``student``.
    """
    pair = [inference_module(stored, device) for stored in (teacher, student)]
    limit = min(stored.config.backbone.max_position_embeddings for stored in (teacher, student))
    generator = torch.Generator().manual_seed(0)
    rows = []
    for size in (1, _BATCH_SIZE):
        tokens = torch.randint(student.tokenizer.vocab_size, (size, min(length, limit)), generator=generator).to(device)
        before, after = median_seconds([partial(model, tokens) for model in pair], device, _PASSES, clock)
        rows.append({"length": tokens.shape[1], "batch_size": size, "teacher": before / size, "student": after / size})
    return rows
