"""Export of models for other programs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from homespun.commands.convert import refuse_own_folder
from homespun.data.long_inputs import TRUNCATE
from homespun.errors import UserError
from homespun.hf.export import check_replaceable
from homespun.hf.family import STORED
from homespun.hf.open import open_any
from homespun.inference.onnx_bundle import LABELS, MODEL, RUNNER, export_onnx_bundle
from homespun.inference.onnx_export import OnnxReport, export_onnx
from homespun.models.bundle import ModelBundle
from homespun.tasks.config import stored_task
from homespun.tasks.text_models import TextTask


def export(source: str | Path, out: str | Path, *, head: str | None = STORED) -> dict[str, Any]:
    """Write the model in ``source`` for ONNX, run it, and compare; what `OnnxReport` says, as plain values.

    Args:
        source: what `homespun.hf.open.open_any` opens.
        out: a file that ends in ``.onnx``, for the outputs of the model; or a folder, for a classifier of texts with
            its tokenizer, labels and decision rule: see `export_onnx_bundle`. An older one is replaced.
        head: as in `open_any`.

    Raises:
        UserError: there is no such model, or it cannot be written; see `export_onnx`. For a folder, the model does not
            classify single texts, or reads more of a text than its first tokens.
    """
    out = Path(out)
    if out.suffix == ".onnx":
        stored = open_any(source, head=head).stored
        report = export_onnx(out, stored.model, stored.config)
    else:
        refuse_own_folder(out, Path(source))
        check_replaceable(out, LABELS, RUNNER, weights=MODEL)
        report = _export_bundle(open_any(source, head=head).stored, out, source)
    return {"source": str(source), "to": "onnx", **asdict(report)}


def _export_bundle(stored: ModelBundle, out: Path, source: str | Path) -> OnnxReport:
    file = "give --out FILE.onnx for the outputs of the model alone"
    task = stored_task(stored, source=str(source))
    if not isinstance(task, TextTask) or task.labels is None or task.data.kind != "texts":
        raise UserError(f"{source} does not classify single texts, which a folder is for; {file}")
    if task.data.truncation != TRUNCATE:
        raise UserError(
            f"{source} reads long texts by data.truncation.kind={task.data.truncation.kind}, and the runner of a "
            f"folder reads their first tokens alone; fine-tune with kind=truncate, or {file}"
        )
    return export_onnx_bundle(out, stored, task.labels, task.decision, max_length=task.data.max_length)
