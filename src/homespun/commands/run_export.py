"""What a run leaves for other programs: a Hugging Face model in ``hf/``, or what to do where no family has it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from homespun.data.labels import Labels
from homespun.hf.export import export_huggingface
from homespun.inference.onnx_export import onnx_unsupported_reason
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer


def export_run(
    run: str | Path,
    model: Model,
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    labels: Labels | None = None,
    base_model: str | Path | None = None,
) -> dict[str, Any]:
    """`export_huggingface` into ``hf/`` of a run directory; the report as plain values, for ``result.json``.

    Where no family has the model, the notes offer another way out, if there is one.
    """
    report = asdict(
        export_huggingface(Path(run) / "hf", model, config, tokenizer, labels=labels, base_model=base_model)
    )
    return report if report["folder"] is not None else report | {"notes": (*report["notes"], *suggest_onnx(model))}


def suggest_onnx(model: Model) -> tuple[str, ...]:
    """What is offered for a model that no family of Hugging Face has: an ONNX file, where one can be written."""
    if onnx_unsupported_reason(model):
        return ()
    return ("`homespun export MODEL --to onnx --out model.onnx` writes it for programs that have neither library",)
