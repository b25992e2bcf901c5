"""Conversion between Hugging Face models and ``model/`` folders, with a comparison of outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from homespun.errors import UserError
from homespun.hf.export import CARD, CONFIG, REPORT, check_replaceable, export_huggingface, suggest_onnx
from homespun.hf.family import STORED
from homespun.hf.open import OpenedModel, open_any
from homespun.inference.onnx_export import make_small_batch, select_real_tokens
from homespun.io.atomic import atomic_path
from homespun.models.bundle import ModelBundle, save_model, weights_of
from homespun.models.model import Model

Form = Literal["homespun", "hf"]
FORMS: tuple[Form, ...] = ("homespun", "hf")
# files of a folder of each form, other than weights and tokenizer; the first describes the model
_FILES = {"homespun": ("homespun.json",), "hf": (CONFIG, CARD)}
_TOLERANCE = 1e-5  # of the largest value: maps that multiply a tensor and divide it again may round


def convert(source: str | Path, out: str | Path, *, to: Form = "homespun", head: str | None = STORED) -> dict[str, Any]:
    """Write the model in ``source`` in another form, load it again, and compare the two on a small batch.

    Args:
        source: what `homespun.hf.open.open_any` opens.
        out: a new or empty folder, or one of this form, which is replaced.
        to: ``homespun``, a ``model/`` folder, or ``hf``, a folder that transformers opens.
        head: as in `open_any`.

    Returns:
        What ``conversion.json`` holds, in the folder: ``source``, ``out``, ``to``, ``architecture`` there and here,
        ``parameters``, ``mapped`` {their name: [ours]}, ``dropped`` {name: reason}, ``new`` {name: reason},
        ``notes``, ``check`` {what was compared, the largest difference}.

    Raises:
        UserError: there is no such model, or no form of it; its weights are not all numbers; ``out`` holds something
            else, or cannot be made.
    """
    out = Path(out)
    _refuse_other_things(out, Path(source), to)
    opened = open_any(source, head=head)
    try:
        with atomic_path(out) as made:
            notes = _write(made, opened.stored, to)
            back = open_any(made)
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
            (made / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out} cannot be made: {error.strerror}; give another folder") from error
    return report


def compare(
    one: ModelBundle, other: ModelBundle, *, names: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, Any]:
    """The largest difference of two models on two texts of random tokens, the second one padded.

    Where only one has a head, the hidden states are compared. Where they make other tokens global by themselves, which
    Longformer's files do not say, both are given the same. ``names`` are those of the first one's files, and ours of
    what each holds.

    Raises:
        UserError: what the first one gives are not all numbers.
        RuntimeError: they are not the same model.
    """
    given = make_small_batch(one.model, one.config)
    own = [stored.config.backbone.stacks[0].attention.num_global_tokens for stored in (one, other)]
    if own[0] != own[1]:
        positions = torch.arange(given["input_ids"].shape[1])
        given["global_attention_mask"] = (positions < max(own)).long().expand_as(given["input_ids"])
    headless = one.config.head is None or other.config.head is None
    with torch.no_grad():
        results = [_hidden(m, given) if headless else m(**given) for m in (one.model, other.model)]
    mine, back = (select_real_tokens(result, given) for result in results)
    difference = float((mine - back).abs().max())
    what = "hidden states" if headless else "logits"
    if not bool(mine.isfinite().all()):
        raise UserError(_not_finite(one, names or {}, what))
    if not difference <= _TOLERANCE * max(1.0, float(mine.abs().max())):
        raise RuntimeError(
            f"the {what} of the model that was written differ by {difference:g} from those of its source"
        )
    lengths = given["attention_mask"].sum(1).tolist()
    return {"compared": what, "lengths": lengths, "largest_difference": difference}


def _not_finite(stored: ModelBundle, names: Mapping[str, tuple[str, ...]], what: str) -> str:
    """Error for outputs ``what`` that are not all finite."""
    theirs = {ours: name for name, many in names.items() for ours in many}
    for name, tensor in weights_of(stored.model).items():
        if not bool(tensor.isfinite().all()):
            return f"{theirs.get(name, name)} holds NaN or infinity, and so do the {what} of the model; train it again"
    return f"the {what} of the model hold NaN or infinity, though its weights do not; they are too large to be used"


def _hidden(model: Model, given: Mapping[str, Tensor]) -> Tensor:
    return Model(model.backbone).eval()(**given)  # type: ignore[no-any-return]


def _write(folder: Path, stored: ModelBundle, to: Form) -> tuple[str, ...]:
    if to == "homespun":
        save_model(folder, stored.model, stored.config, stored.tokenizer, labels=stored.labels, task=stored.task)
        return ()
    report = export_huggingface(folder, stored.model, stored.config, stored.tokenizer, labels=stored.labels)
    if report.folder is None:
        raise UserError("; ".join((report.notes[0], *suggest_onnx(stored.model))))
    return report.notes


def _refuse_other_things(out: Path, source: Path, to: Form) -> None:
    if to not in FORMS:
        raise UserError(f"--to must be one of {', '.join(FORMS)}, not {to!r}")
    refuse_own_folder(out, source)
    check_replaceable(out, *_FILES[to])


def refuse_own_folder(out: Path, source: Path) -> None:
    """Raise `UserError` if ``out`` is the folder of the model or holds it."""
    if out.exists() and source.exists() and (out.samefile(source) or out.resolve() in source.resolve().parents):
        raise UserError(f"{out} holds the model itself; give another folder")


def _tensors(opened: OpenedModel, back: OpenedModel) -> dict[str, object]:
    """Mapping of the source's tensors, and tensors of the result that are new."""
    dropped = {left.name: left.reason for left in opened.unused_tensors}
    kept = {name for names in back.mapped.values() for name in names}
    here = {name: names for name, names in opened.mapped.items() if kept.issuperset(names)}
    lost = dict.fromkeys(opened.mapped.keys() - here.keys(), "of a head that the result has no place for")
    # in a folder for transformers stands what its classes must have, and what reading it again leaves out
    new = {left.name: f"{left.reason}; constant, for transformers" for left in back.unused_tensors}
    written = {ours: name for name, names in back.mapped.items() for ours in names}
    mapped = {
        name: list(names) if back.architecture is None else sorted({written[ours] for ours in names})
        for name, names in here.items()
    }
    return {"mapped": mapped, "dropped": dropped | lost, "new": new}
