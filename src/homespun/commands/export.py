"""Export of models for other programs."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import numpy as np

from homespun.choices import ExportTarget, Quantization
from homespun.commands.convert import compare, refuse_own_folder
from homespun.commands.provenance import restore_settings
from homespun.commands.recipe import finetune_recipe
from homespun.commands.trials import plan_trials
from homespun.config import Tree
from homespun.data.labels import Labels
from homespun.data.long_inputs import TRUNCATE
from homespun.errors import UserError
from homespun.hf.export import CARD, CONFIG, check_replaceable
from homespun.hf.family import STORED
from homespun.hf.gguf import export_gguf
from homespun.hf.open import open_any
from homespun.hf.sentence_transformers import LENGTH, MODULES, POOLING, export_sentence_transformers
from homespun.hf.upload import check_repository, upload
from homespun.inference.onnx_bundle import LABELS, LINEAR, MODEL, RUNNER, quantize_int8, write_network, write_runner
from homespun.inference.onnx_export import Comparison, OnnxReport, export_onnx
from homespun.io.atomic import atomic_path
from homespun.linear import LinearModel
from homespun.tasks.config import stored_task
from homespun.tasks.network_text_model import NetworkTextModel, TextTask
from homespun.tasks.protocol import AnyTask
from homespun.tasks.text_models import (
    AverageTextModel,
    LinearTextModel,
    TextModel,
    find_text_model,
    open_text_model,
    predict_examples,
)
from homespun.tasks.texts import LabelledText

_MOST_LOST = 0.01  # accuracy that quantization may lose
_TOLERANCE = 1e-5  # difference of probabilities; a graph computes in float32
_CHECKED = 8  # classes
_FILE = "give --out FILE.onnx for the outputs of a network alone"
_BATCH = 32


def export(
    source: str | Path,
    out: str | Path,
    *,
    to: ExportTarget = "onnx",
    head: str | None = STORED,
    quantize: Quantization | None = None,
    push: str | None = None,
) -> Tree:
    """Export the model in ``source`` to ONNX, sentence-transformers or GGUF, and compare the outputs.

    Args:
        source: a model for `homespun.hf.open.open_any`; for a folder also a linear model or an average with a network.
        out: an ``.onnx`` file for the graph of any model; or a folder for a text classifier with tokenizer, labels and
            decision rule, see `write_network` and `write_runner`. An existing export is replaced.
        to: ``onnx``; ``sentence-transformers``, the folder of an encoder: see `export_sentence_transformers`; ``gguf``,
            the file of a decoder: see `export_gguf`.
        head: as in `open_any`.
        quantize: quantize the weights of a classifier. The result then has ``quantization``: ``type``, and ``bytes``
            and ``accuracy`` before and after, on the validation examples of the run in ``source``, whose number is
            ``examples``. Without them the accuracy is None, and a note gives the reason.
        push: repository OWNER/NAME of the Hugging Face hub to upload to; the result then has ``pushed``, the URL of
            the commit.

    Example:
        ``export("runs/sentiment", "sentiment", quantize="int8")``

    Returns:
        The fields of `OnnxReport`, `ExportReport` or `GgufReport`; for an encoder also ``max_length``, ``pooling`` and
        ``check``, see `homespun.commands.convert.compare`.

    Raises:
        UserError: there is no such model, or it cannot be written or uploaded; see `export_onnx`. For a folder, the
            model does not classify single texts, does not truncate long texts, or loses more than 0.01 of its accuracy
            by quantization.
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
        check_replaceable(out, LABELS, MODEL, weights=RUNNER, folders=[LINEAR])
        result = _export_classifier(_open_classifier(source, head), out, source, quantize is not None)
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


def _open_classifier(source: str | Path, head: str | None) -> TextModel:
    """Open a model; ``head`` of a network is as in `open_any`."""
    if find_text_model(source) is not None:
        return open_text_model(source)
    stored = open_any(source, head=head).stored
    task = stored_task(stored, source=str(source))
    if not isinstance(task, TextTask):
        raise UserError(f"{source} does not classify single texts, which an ONNX folder is for; {_FILE}")
    return NetworkTextModel(stored, task)


def _export_classifier(model: TextModel, out: Path, source: str | Path, quantize: bool) -> Tree:
    labels = model.labels
    if labels is None or model.data.kind != "texts":
        does = "predicts numbers" if labels is None else "classifies pairs of texts"
        raise UserError(f"{source} {does}, and an ONNX folder is for classifiers of single texts; {_instead(model)}")
    average = cast(AverageTextModel, model) if model.kind == "average" else None
    members = [model] if average is None else list(average.members.values())
    by_kind = {one.kind: one for one in members}
    network = cast(NetworkTextModel | None, by_kind.get("network"))
    linear = cast(LinearTextModel | None, by_kind.get("linear"))
    if len(members) != (network is not None) + (linear is not None):
        raise UserError(f"{source} is an average of other models than one network and one linear model; {_FILE}")
    long_inputs = TRUNCATE if network is None else network.data.truncation
    if long_inputs.chunks > 1:
        raise UserError(
            f"{source} reads long texts by data.truncation.kind={long_inputs.kind}, and the script of a folder reads "
            f"one sequence of a text; fine-tune with kind=truncate or head_tail, or {_FILE}"
        )
    if quantize and network is None:
        raise UserError(f"--quantize int8 is for networks, and {source} is a linear model; leave it out")
    with atomic_path(out) as made:
        made.mkdir()
        settings: dict[str, object] = {}
        report = OnnxReport(str(out), (), "probabilities", None, None, (), ())
        if network is not None:
            length = network.data.max_length
            report, settings = write_network(
                made, network.stored, labels, network.decision, max_length=length, long_inputs=long_inputs
            )
            report = replace(report, file=str(out / MODEL if linear is None else out), max_length=length)
        if linear is not None:
            (made / LINEAR).mkdir()
            linear.save(made / LINEAR)
        if average is not None:
            weights = {one.kind: weight for one, weight in zip(members, average.weights, strict=True)}
            settings |= {"weights": weights, "temperature": average.decision.temperature}
        write_runner(made, labels, model.decision, settings)
        if linear is not None:
            report = replace(report, checked=(*report.checked, _compare_runner(made, model, linear.model)))
        result = asdict(report)
        return _quantize(result, made, Path(source), cast(AnyTask, network.task)) if quantize and network else result


def _instead(model: TextModel) -> str:
    """Other ways to use a model that a folder is not for."""
    use = "use homespun predict, homespun serve or homespun.open"
    if model.kind == "linear":
        return f"a linear model has no other export: {use}"
    if model.kind == "average":
        return f"an average has no other export: {use}, or export the folder of its network alone with --out FILE.onnx"
    return _FILE


def _compare_runner(folder: Path, model: TextModel, linear: LinearModel) -> Comparison:
    """Compare the probabilities of the runner with those of the model, on texts of n-grams with large weights."""
    texts = ["", *(" ".join(linear.top_ngrams(output)) for output in range(min(_CHECKED, len(linear.biases))))]
    expected = predict_examples(model, [LabelledText(text, "") for text in texts])
    tables = [
        np.array([list(cast(dict[str, float], one["probabilities"]).values()) for one in found])
        for found in (_runner(folder)(texts), expected)
    ]
    difference = float(np.abs(tables[0] - tables[1]).max())
    if not difference <= _TOLERANCE:
        raise RuntimeError(f"probabilities of {folder / RUNNER} differ by {difference:g} from the model's")
    return {"shape": list(tables[0].shape), "largest_difference": difference}


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
    labels = task.labels
    assert labels is not None
    large, before = (folder / MODEL).stat().st_size, _accuracy(folder, examples, labels)
    quantize_int8(folder / MODEL)
    small, after = (folder / MODEL).stat().st_size, _accuracy(folder, examples, labels)
    if before is not None and after is not None and before - after > _MOST_LOST:
        raise UserError(
            f"int8 weights have accuracy {after:.3f} on {len(examples)} validation examples, and float32 {before:.3f}; "
            f"more than {_MOST_LOST} is lost: leave --quantize out"
        )
    measured = {"bytes": {"before": large, "after": small}, "accuracy": {"before": before, "after": after}}
    return result | {"quantization": {"type": "int8", **measured, "examples": len(examples)}}


def _validation_examples(run: Path, task: AnyTask) -> Sequence[LabelledText]:
    """The examples that chose the checkpoint of a run, or the model of a fit.

    Raises:
        UserError: there is no run, its files are gone, or each fold has others.
    """
    if not (run / "config.yaml").is_file():
        if (held_out := run / "data" / "validation.jsonl").is_file():  # validation examples of a fit
            return cast(Sequence[LabelledText], task.data.read_files([str(held_out)]))
        raise UserError(f"{run} is not a run with validation examples")
    recipe = restore_settings(finetune_recipe(str(run / "config.yaml")), run, main=False)
    if recipe.folds is not None:
        raise UserError(f"each fold of {run} has its own validation examples")
    everything = recipe.data.read("train")
    assert everything is not None
    trials = plan_trials(recipe, task, everything, recipe.data.read("validation"), None)
    return cast(Sequence[LabelledText], trials[0].validation)  # seeds share them


def _accuracy(folder: Path, examples: Sequence[LabelledText], labels: Labels) -> float | None:
    """Share of examples whose label, or whose set of labels, the network in ``folder`` predicts; None without any."""
    # a fit trains the linear part of an average on its validation examples too
    predict, right = _runner(folder, network_alone=True), 0
    for start in range(0, len(examples), _BATCH):
        part = examples[start : start + _BATCH]
        for example, found in zip(part, predict([example.text for example in part]), strict=True):
            label = cast(Sequence[str], found["label"])
            truth = example.label
            right += set(label) == set(truth) if isinstance(truth, tuple) else label == labels.name_of(truth)
    return right / len(examples) if examples else None


def _runner(folder: Path, *, network_alone: bool = False) -> Callable[[Sequence[str]], Iterator[dict[str, object]]]:
    """Function ``predict`` of the script in ``folder``."""
    script = runpy.run_path(str(folder / RUNNER))
    if network_alone and "weights" in script["config"]:
        script["config"]["weights"] = {"network": 1.0, "linear": 0.0}
    return script["predict"]
