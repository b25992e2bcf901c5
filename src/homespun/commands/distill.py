"""Distillation: pretraining or fine-tuning of a student with a teacher, and a comparison of both."""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from pydantic_core import to_jsonable_python

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
from homespun.models.bundle import ModelBundle, save_model
from homespun.models.weight_transfer import build_student
from homespun.objectives.mlm import MaskedLMObjective
from homespun.objectives.teacher import teacher_folder
from homespun.report.console import Display
from homespun.report.page import write_report
from homespun.tasks.config import task_from_metadata
from homespun.training.devices import DistributedContext
from homespun.training.run import Run, holds_run
from homespun.training.validation import evaluate_loss

logger = logging.getLogger(__name__)

_LEAST, _MOST, _SECONDS = 5, 60, 2.0  # turns of both models, and for how long they go on
_BATCH = 32
_ROWS = 32  # of held-out text at a time


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
    display: Display | None = None,
) -> Tree:
    """Train a student with a teacher into the run directory ``out``; returns its ``result.json``.

    ``distillation`` of the result has sizes, speed and quality of both, or the reason for missing quality
    (``quality_why``). A student built from its teacher is saved in ``OUT-student``, a converted teacher in
    ``OUT-teacher``; a resumed run keeps them.

    Args:
        recipe: of masked language modelling, or of classification.
        out: as in `homespun.commands.pretrain.pretrain` and `homespun.commands.finetune.finetune`.
        teacher: a run, a ``model/`` folder, a Hugging Face folder or name.
        start_from: the student, where there is one already.
        layers: of the teacher, which the student begins as; by default every second.
        changes: to that student, of what `homespun.models.weight_transfer.CHANGEABLE` names.
        from_scratch: draw the recipe's model, in place of the teacher's layers; in pretraining.
        resume: go on with the run in ``out``.
        display: where progress is shown; nowhere by default.

    Raises:
        UserError: an objective that no teacher stands around, a teacher or layers that do not fit, other layers or
            changes than those of the student of a run that goes on, something else in one of these folders, and what
            the jobs raise.
    """
    _check(recipe, start_from, layers, changes, from_scratch=from_scratch)
    if unmeasured := _unmeasured(recipe):
        logger.warning("the qualities of teacher and student will not be compared: %s", unmeasured)
    path, stored = Path(out), open_model(teacher)
    context = DistributedContext.join()
    given = identify_model(teacher, stored)
    initial_models: dict[Path, tuple[ModelBundle, RunInputs]] = {}
    try:
        source = teacher_folder(teacher)
    except UserError:  # in the form of another library
        source = _sibling_folder(path, "teacher")
        initial_models[source] = stored, {"--teacher": given}
    recipe = with_teacher(recipe, str(source))
    student, chosen = start_from, None
    if student is None and not from_scratch:
        made, origins = build_student(stored, layers=layers, changes=changes)
        folder, chosen = _sibling_folder(path, "student"), list(origins.layers)
        if folder.resolve() == source.resolve():
            raise UserError(f"the teacher {teacher} is where the student of {path} would be kept; give another --out")
        changed = json.dumps(to_jsonable_python(changes), sort_keys=True) if changes else None
        numbers = ",".join(map(str, chosen))
        initial_models[folder] = made, {"--teacher": given, "--layers": _plain(numbers), "changes": _plain(changed)}
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
    learned = open_model(path)
    summary: Tree = {"teacher": teacher, "layers": chosen} | _sizes(stored, learned)
    result: Tree = json.loads((path / "result.json").read_text(encoding="utf-8"))
    summary["quality"] = _quality(recipe, stored, learned, result, context.device)
    summary |= {"quality_why": unmeasured} if unmeasured else {}
    summary["speed"] = compare_speed(stored, learned, length=int(learned.task["max_length"]), device=context.device)
    result["distillation"] = summary
    Run(path).write_result(result)
    write_report([path], path / "report", title=f"Distillation: {path.name}")
    return result


def with_teacher(recipe: PretrainRecipe | FinetuneRecipe, source: str) -> PretrainRecipe | FinetuneRecipe:
    """Copy of the recipe with this teacher in its objective.

    Raises:
        UserError: its objective has none.
    """
    objective = recipe.objective
    if "teacher" not in type(objective).model_fields:
        raise UserError(
            f"objective.kind={objective.kind} takes no teacher; distil with mlm in pretraining, or with classification "
            f"in fine-tuning"
        )
    tree = objective.model_dump(exclude_unset=True)
    tree["teacher"] = (tree.get("teacher") or {}) | {"source": source}
    return recipe.model_copy(update={"objective": type(objective).model_validate(tree)})


def _check(
    recipe: PretrainRecipe | FinetuneRecipe,
    start_from: str | None,
    layers: Sequence[int] | None,
    changes: Mapping[str, object] | None,
    *,
    from_scratch: bool,
) -> None:
    if from_scratch and (layers is not None or start_from is not None or changes):
        raise UserError(
            "--from-scratch draws the recipe's model; leave out --from, --layers and changes to a teacher's layers"
        )
    if from_scratch and isinstance(recipe, FinetuneRecipe):
        raise UserError(
            "a fresh model is pretrained first: homespun distill pretrain ... --from-scratch, then give --from it"
        )
    if start_from is not None and (layers is not None or changes):
        raise UserError("--from gives the student as it is; leave out --layers and model.KEY=VALUE")


def _sibling_folder(out: Path, what: str) -> Path:
    return out.with_name(f"{out.name}-{what}")


def _plain(value: str | None) -> InitialWeights | None:
    return None if value is None else InitialWeights(name=value, fingerprint=value)


def _save_initial_models(run: Path, models: Mapping[Path, tuple[ModelBundle, RunInputs]], *, resume: bool) -> None:
    """Save the models in their folders, but those that the run goes on with: parts of a student are drawn.

    Raises:
        UserError: nothing can begin or go on in ``run``, a folder holds something else, or its model is another one.
    """
    goes_on = holds_run(run, resume=resume)
    for folder, (_, inputs) in models.items():
        # folders of earlier versions have no such file
        ours = (folder / "homespun.json").is_file() and (goes_on or (folder / FILE).is_file())
        if folder.exists() and not ours:
            raise UserError(
                f"{folder}, where a model for {run} would be kept, holds something else; give another --out, or move "
                f"it away"
            )
        if goes_on:
            check_inputs(folder, inputs)
    for folder, (stored, inputs) in models.items():
        if not (goes_on and folder.exists()):
            save_model(folder, stored.model, stored.config, stored.tokenizer, labels=stored.labels, task=stored.task)
            write_inputs(folder, inputs)


def _pair(teacher: ModelBundle, student: ModelBundle) -> dict[str, ModelBundle]:
    return {"teacher": teacher, "student": student}


def _sizes(teacher: ModelBundle, student: ModelBundle) -> dict[str, dict[str, int]]:
    """Parameters and bytes of the weights of both models."""
    pair = _pair(teacher, student)
    counts = {name: [p.numel() for p in stored.model.parameters()] for name, stored in pair.items()}
    sizes = {name: [p.nbytes for p in stored.model.parameters()] for name, stored in pair.items()}
    return {
        "parameters": {name: sum(found) for name, found in counts.items()},
        "bytes": {name: sum(found) for name, found in sizes.items()},
    }


def _unmeasured(recipe: PretrainRecipe | FinetuneRecipe) -> str:
    """Reason why teacher and student have no common test data; empty if they have."""
    if isinstance(recipe, PretrainRecipe) or recipe.data.test:
        return ""
    if recipe.folds is not None:
        return (
            "a teacher that was tuned on data.train has seen the labels of every fold, and the student's figures are "
            "flattered too; give data.test=FILE in place of folds"
        )
    return "there is no test, and the validation chose the student; give data.test=FILE"


def _quality(
    recipe: PretrainRecipe | FinetuneRecipe,
    teacher: ModelBundle,
    student: ModelBundle,
    result: Tree,
    device: torch.device,
) -> dict[str, dict[str, float]]:
    """Both on what neither was trained on: the test texts, or the held-out rows. Empty without test texts.

    A student of several trainings has the mean of them, and ``std``.
    """
    for stored in (teacher, student):
        stored.model.to(device).eval()
    if isinstance(recipe, PretrainRecipe):
        summary = {name: _masked(recipe, stored, student, device) for name, stored in _pair(teacher, student).items()}
        return {key: {name: values[key] for name, values in summary.items()} for key in summary["student"]}
    examples = recipe.data.read("test")
    if examples is None:
        return {}
    task = task_from_metadata(recipe.data, teacher, source="the teacher")
    best = task.measure(teacher.model, task.rows(examples), batch_size=_BATCH).metrics
    mean, deviations = result["test"], result["test"].get("std", {})
    return {
        key: {"teacher": best[key], "student": mean[key]} | ({"std": deviations[key]} if key in deviations else {})
        for key in task.reported_metrics
        if key in best and key in mean
    }


def _masked(
    recipe: PretrainRecipe, stored: ModelBundle, student: ModelBundle, device: torch.device
) -> dict[str, float]:
    """Loss and accuracy on the same masked tokens for both models."""
    corpus = Corpus.open(recipe.data.corpus)
    # the student's backbone decides which rows there are, and whether packed documents are masked
    _, rows = pretraining_rows(recipe.model_copy(update={"model": student.config.backbone}), corpus)
    collate = recipe.objective.model_copy(update={"teacher": None}).collate(corpus.tokenizer)
    objective = MaskedLMObjective(stored.model, stored.config, None)
    found = evaluate_loss(
        objective, Loader(rows, collate, batch_size=_ROWS, seed=recipe.data.split_seed).once(), device
    )
    return {"mlm_accuracy": found.losses["mlm_accuracy"], "mlm_loss": found.losses["mlm"]}


def compare_speed(
    teacher: ModelBundle,
    student: ModelBundle,
    *,
    length: int,
    device: torch.device,
    batch_sizes: Sequence[int] = (1, _BATCH),
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, float]]:
    """Median seconds per text of both models, measured in turns so that other load slows both.

    A fine-tuned model is measured with its head, another without.

    Args:
        length: tokens a text, drawn at random.
        batch_sizes: texts at a time; of one text this is the latency.
        clock: seconds; `time.process_time` where others use the machine too.
    """
    pair = [_use(stored, device) for stored in (teacher, student)]
    limit = min(stored.config.backbone.max_position_embeddings for stored in (teacher, student))
    draw = torch.Generator().manual_seed(0)
    rows = []
    for size in batch_sizes:
        tokens = torch.randint(student.tokenizer.vocab_size, (size, min(length, limit)), generator=draw).to(device)
        seconds: tuple[list[float], list[float]] = ([], [])
        with torch.inference_mode():
            for use in pair:
                use(tokens)
            while len(seconds[0]) < _LEAST or (len(seconds[0]) < _MOST and sum(map(sum, seconds)) < _SECONDS):
                for use, found in zip(pair, seconds, strict=True):
                    started = clock()
                    use(tokens)
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)
                    found.append(clock() - started)
        medians = [statistics.median(found) / size for found in seconds]
        rows.append(
            {"length": tokens.shape[1], "batch_size": size} | dict(zip(("teacher", "student"), medians, strict=True))
        )
    return rows


def _use(stored: ModelBundle, device: torch.device) -> Callable[[torch.Tensor], object]:
    model = stored.model.to(device).eval()
    return model if stored.labels is not None else model.backbone
