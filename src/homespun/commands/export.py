"""Export of models for other programs."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal, cast

from homespun.commands.convert import compare, refuse_own_folder
from homespun.commands.provenance import restore_settings
from homespun.commands.recipe import finetune_recipe
from homespun.commands.trials import plan_trials
from homespun.config import Tree
from homespun.data.long_inputs import TRUNCATE
from homespun.errors import UserError
from homespun.hf.export import CARD, CONFIG, check_replaceable
from homespun.hf.family import STORED
from homespun.hf.gguf import export_gguf
from homespun.hf.open import open_any
from homespun.hf.sentence_transformers import LENGTH, MODULES, POOLING, export_sentence_transformers
from homespun.hf.upload import check_repository, upload
from homespun.inference.onnx_bundle import LABELS, MODEL, RUNNER, export_onnx_bundle, quantize_int8
from homespun.inference.onnx_export import export_onnx
from homespun.io.atomic import atomic_path
from homespun.models.bundle import ModelBundle
from homespun.tasks.config import stored_task
from homespun.tasks.network_text_model import TextTask
from homespun.tasks.protocol import AnyTask
from homespun.tasks.texts import LabelledText

Target = Literal["onnx", "sentence-transformers", "gguf"]
TARGETS: tuple[Target, ...] = ("onnx", "sentence-transformers", "gguf")
Quantization = Literal["int8"]
QUANTIZATIONS: tuple[Quantization, ...] = ("int8",)
_MOST_LOST = 0.01  # of the accuracy, by quantization
_BATCH = 32


def export(
    source: str | Path,
    out: str | Path,
    *,
    to: Target = "onnx",
    head: str | None = STORED,
    quantize: Quantization | None = None,
    push: str | None = None,
) -> Tree:
    """Write the model in ``source`` for other programs, and compare their outputs with its own.

    Args:
        source: what `homespun.hf.open.open_any` opens.
        out: a file that ends in ``.onnx``, for the outputs of the model; or a folder, for a classifier of texts with
            its tokenizer, labels and decision rule: see `export_onnx_bundle`. An older one is replaced.
        to: ``onnx``; ``sentence-transformers``, the folder of an encoder: see `export_sentence_transformers`; ``gguf``,
            the file of a decoder: see `export_gguf`.
        head: as in `open_any`.
        quantize: quantize the weights of a classifier. The result then has ``quantization``: ``type``, and ``bytes``
            and ``accuracy`` before and after, on so many ``examples``, those of the validation of the run in
            ``source``. Without them the accuracy is None, and a note says why.
        push: repository of the Hugging Face hub, OWNER/NAME, to upload to; the result then has ``pushed``, the
            address of the commit.

    Returns:
        What `OnnxReport`, `ExportReport` or `GgufReport` says, as plain values; of an encoder also ``max_length``,
        ``pooling`` and ``check``: see `homespun.commands.convert.compare`.

    Raises:
        UserError: there is no such model, or it cannot be written or uploaded; see `export_onnx`. For a folder, the
            model does not classify single texts, or reads more of a text than its first tokens, or loses more than 1 %
            of accuracy.
    """
    out = Path(out)
    if quantize and (to != "onnx" or out.suffix == ".onnx"):
        raise UserError(f"--quantize {quantize} is for a classifier in a folder; give --to onnx --out FOLDER")
    if push is not None:
        check_repository(push)
    if to == "sentence-transformers":
        result = _export_encoder(source, out)
    elif to == "gguf":
        result = asdict(export_gguf(out, open_any(source, head=head).stored))
    elif out.suffix == ".onnx":
        stored = open_any(source, head=head).stored
        result = asdict(export_onnx(out, stored.model, stored.config))
    else:
        refuse_own_folder(out, Path(source))
        check_replaceable(out, LABELS, RUNNER, weights=MODEL)
        stored = open_any(source, head=head).stored
        result = _export_classifier(stored, out, source, quantize is not None)
    pushed = {} if push is None else {"pushed": upload(out, push)}
    return {"source": str(source), "to": to, **result, **pushed}


def _export_encoder(source: str | Path, out: Path) -> Tree:
    refuse_own_folder(out, Path(source))
    check_replaceable(out, CONFIG, CARD, MODULES, LENGTH, folders=[POOLING])
    stored = open_any(source, head=None).stored
    max_length = stored.task.get("max_length", stored.config.backbone.max_position_embeddings)
    with atomic_path(out) as made:
        report = export_sentence_transformers(made, stored, max_length=max_length)
        check = compare(stored, open_any(made, head=None).stored)
    result = asdict(replace(report, folder=str(out)))
    return result | {"max_length": max_length, "pooling": "mean", "check": check}


def _export_classifier(stored: ModelBundle, out: Path, source: str | Path, quantize: bool) -> Tree:
    file = "give --out FILE.onnx for the outputs of the model alone"
    task = stored_task(stored, source=str(source))
    if not isinstance(task, TextTask) or task.labels is None or task.data.kind != "texts":
        raise UserError(f"{source} does not classify single texts, which a folder is for; {file}")
    if task.data.truncation != TRUNCATE:
        raise UserError(
            f"{source} reads long texts by data.truncation.kind={task.data.truncation.kind}, and the runner of a "
            f"folder reads their first tokens alone; fine-tune with kind=truncate, or {file}"
        )
    with atomic_path(out) as made:
        report = export_onnx_bundle(made, stored, task.labels, task.decision, max_length=task.data.max_length)
        result = asdict(replace(report, file=str(out / MODEL)))
        return _quantize(result, made, Path(source), task) if quantize else result


def _quantize(result: Tree, folder: Path, source: Path, task: AnyTask) -> Tree:
    """Quantize the graph in ``folder``, and add ``quantization`` to the result.

    Raises:
        UserError: the accuracy falls by more than `_MOST_LOST`.
    """
    examples: Sequence[LabelledText] = ()
    try:
        examples = _validation_examples(source, task)
    except UserError as error:
        result["notes"] += (f"accuracy was not measured: {error}",)
    large, before = (folder / MODEL).stat().st_size, _accuracy(folder, examples)
    quantize_int8(folder / MODEL)
    small, after = (folder / MODEL).stat().st_size, _accuracy(folder, examples)
    if before is not None and after is not None and before - after > _MOST_LOST:
        raise UserError(
            f"int8 weights have accuracy {after:.3f} on {len(examples)} validation examples, and float32 {before:.3f}; "
            f"more than {_MOST_LOST} is lost: leave --quantize out"
        )
    measured = {"bytes": {"before": large, "after": small}, "accuracy": {"before": before, "after": after}}
    return result | {"quantization": {"type": "int8", **measured, "examples": len(examples)}}


def _validation_examples(run: Path, task: AnyTask) -> Sequence[LabelledText]:
    """The examples that chose the checkpoint of a run.

    Raises:
        UserError: there is no run, its files are gone, or each fold has others.
    """
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run} is not a run with validation examples")
    recipe = restore_settings(finetune_recipe(str(run / "config.yaml")), run, main=False)
    if recipe.folds is not None:
        raise UserError(f"each fold of {run} has its own validation examples")
    everything = recipe.data.read("train")
    assert everything is not None
    trials = plan_trials(recipe, task, everything, recipe.data.read("validation"), None)
    return cast(Sequence[LabelledText], trials[0].validation)  # seeds share them


def _accuracy(folder: Path, examples: Sequence[LabelledText]) -> float | None:
    """Share of examples whose label, or whose set of labels, the runner in ``folder`` predicts; None without any."""
    predict = runpy.run_path(str(folder / RUNNER))["predict"]
    right = 0
    for start in range(0, len(examples), _BATCH):
        part = examples[start : start + _BATCH]
        for example, found in zip(part, predict([example.text for example in part]), strict=True):
            several = isinstance(example.label, tuple)
            right += found["label"] == example.label if not several else set(found["label"]) == set(example.label)
    return right / len(examples) if examples else None
