"""Conversion between Hugging Face models and ``model/`` folders, with a comparison of outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from homespun.choices import ModelFormat
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.export import CARD, CONFIG, REPORT, check_replaceable, export_complete
from homespun.hf.family import STORED
from homespun.hf.open import OpenedModel, open_any
from homespun.inference.onnx_export import make_small_batch, select_real_tokens
from homespun.io.atomic import atomic_path
from homespun.models.bundle import ModelBundle, save_model, weights_of
from homespun.models.model import Model

# files of each form besides weights and tokenizer; the first describes the model
_FILES = {"homespun": ("homespun.json",), "hf": (CONFIG, CARD)}
_TOLERANCE = 1e-5  # relative to the largest value: a tensor that is multiplied and divided again is rounded


def convert(source: str | Path, out: str | Path, *, to: ModelFormat = "homespun", head: str | None = STORED) -> Tree:
    """Write the model in ``source`` in another format, load the result, and compare both on a small batch.

    Args:
        source: a model in any format, see `homespun.hf.open.open_any`.
        out: a new or empty folder, or a folder of the same format, which is replaced.
        to: ``homespun`` (``model/`` folder) or ``hf`` (folder for transformers).
        head: head to load, as in `open_any`.

    Returns:
        The content of ``conversion.json`` in ``out``: ``source``, ``out``, ``to``, ``architecture`` (``from``, ``to``),
        ``parameters``, ``mapped`` {tensor of the source: [tensors of the result]}, ``dropped`` {tensor: reason},
        ``new`` {tensor: reason}, ``notes``, and ``check``, see `compare`.

    Raises:
        UserError: there is no such model, it cannot be written in the format, its weights are not finite, or ``out``
            has other files or cannot be written.
    """
    out = Path(out)
    if to not in _FILES:
        raise UserError(f"--to must be one of {', '.join(_FILES)}, not {to!r}")
    refuse_own_folder(out, Path(source))
    check_replaceable(out, *_FILES[to])
    opened = open_any(source, head=head)
    try:
        with atomic_path(out) as folder:
            notes = _write(folder, opened.stored, to)
            back = open_any(folder)
            check = compare(opened.stored, back.stored, names=opened.mapped)
            report = {
                "source": str(source),
                "out": str(out),
                "to": to,
                "architecture": {"from": opened.architecture, "to": back.architecture},
                "parameters": sum(tensor.numel() for tensor in weights_of(back.stored.model).values()),
                **_tensors(opened, back),
                "notes": [*opened.notes, *(note for note in notes if note not in opened.notes)],
                "check": check,
            }
            (folder / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}; give another folder") from error
    return report


def compare(one: ModelBundle, other: ModelBundle, *, names: Mapping[str, tuple[str, ...]] | None = None) -> Tree:
    """Compare the outputs of two models on two texts of random tokens, of which the second is padded.

    Compares logits if both models have a head, else hidden states. Longformer's files do not store the global tokens:
    if the defaults of the two models differ, both get the larger number. ``names`` gives errors the names of tensors:
    those of the files of ``one``, each with its names in ``one.model``.

    Returns:
        ``compared`` (``logits`` or ``hidden states``), ``lengths`` of the texts, ``largest_difference``.

    Raises:
        UserError: the outputs of ``one`` are not finite.
        RuntimeError: the outputs differ.
    """
    batch = make_small_batch(one.model, one.config)
    global_tokens = [stored.config.backbone.stacks[0].attention.num_global_tokens for stored in (one, other)]
    if global_tokens[0] != global_tokens[1]:
        positions = torch.arange(batch["input_ids"].shape[1])
        batch["global_attention_mask"] = (positions < max(global_tokens)).long().expand_as(batch["input_ids"])
    headless = one.config.head is None or other.config.head is None
    with torch.no_grad():
        results = [_hidden_states(m, batch) if headless else m(**batch) for m in (one.model, other.model)]
    expected, actual = (select_real_tokens(result, batch) for result in results)
    difference = float((expected - actual).abs().max())
    compared = "hidden states" if headless else "logits"
    if not bool(expected.isfinite().all()):
        raise UserError(_describe_not_finite(one, names or {}, compared))
    if not difference <= _TOLERANCE * max(1.0, float(expected.abs().max())):
        raise RuntimeError(f"the {compared} of the written model differ by {difference:g} from those of its source")
    lengths = batch["attention_mask"].sum(1).tolist()
    return {"compared": compared, "lengths": lengths, "largest_difference": difference}


def _describe_not_finite(stored: ModelBundle, names: Mapping[str, tuple[str, ...]], outputs: str) -> str:
    """Error for ``outputs`` that are not all finite, with the first tensor that is not."""
    source_names = {ours: name for name, many in names.items() for ours in many}
    for name, tensor in weights_of(stored.model).items():
        if not bool(tensor.isfinite().all()):
            source_name = source_names.get(name, name)
            return f"{source_name} holds NaN or infinity, and so do the {outputs} of the model; train it again"
    return f"the {outputs} of the model hold NaN or infinity, but its weights are finite: they are too large"


def _hidden_states(model: Model, batch: Mapping[str, Tensor]) -> Tensor:
    return Model(model.backbone).eval()(**batch)


def _write(folder: Path, stored: ModelBundle, to: ModelFormat) -> tuple[str, ...]:
    if to == "homespun":
        save_model(folder, stored.model, stored.config, stored.tokenizer, labels=stored.labels, task=stored.task)
        return ()
    return export_complete(folder, stored).notes


def refuse_own_folder(out: Path, source: Path) -> None:
    """Raise `UserError` if ``out`` is the folder of the model or contains it."""
    if out.exists() and source.exists() and (out.samefile(source) or out.resolve() in source.resolve().parents):
        raise UserError(f"--out {out} contains the model itself; give another folder")


def _tensors(opened: OpenedModel, back: OpenedModel) -> dict[str, object]:
    """Mapped and dropped tensors of the source, and new tensors of the result."""
    dropped = {left.name: left.reason for left in opened.unused_tensors}
    written = {ours: name for name, names in back.mapped.items() for ours in names}
    kept = {name: names for name, names in opened.mapped.items() if written.keys() >= set(names)}
    lost = dict.fromkeys(opened.mapped.keys() - kept.keys(), "part of a head that the output format does not have")
    # constants that the classes of transformers require; loading skips them
    new = {left.name: f"{left.reason}; constant, for transformers" for left in back.unused_tensors}
    mapped = {
        name: list(names) if back.architecture is None else sorted({written[ours] for ours in names})
        for name, names in kept.items()
    }
    return {"mapped": mapped, "dropped": dropped | lost, "new": new}
