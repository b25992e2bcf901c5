"""Export of a classifier to a folder that needs no torch: ONNX graph, tokenizer, labels and a script."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer as Engine

from homespun.data.labels import Labels
from homespun.inference.onnx_export import OnnxReport, Probabilities, export_onnx, quietly
from homespun.io.atomic import atomic_path
from homespun.metrics.calibration import DecisionRule
from homespun.models.bundle import ModelBundle

MODEL, LABELS, RUNNER = "model.onnx", "labels.json", "predict.py"
_TEMPLATE = Path(__file__).with_name("onnx_predict.py.txt")
_MIN_LENGTH = 2  # tokens of a padded batch; the minimum of the graph


def export_onnx_bundle(
    folder: str | Path, stored: ModelBundle, labels: Labels, decision: DecisionRule, *, max_length: int
) -> OnnxReport:
    """Write a classifier of single texts to ``folder`` atomically; an existing folder is replaced.

    Args:
        folder: for ``model.onnx`` (outputs ``probabilities`` and ``logits``), ``tokenizer.json`` (adds special tokens
            and truncates texts), ``labels.json`` and ``predict.py``, which reads the other files.
        stored: model and tokenizer.
        labels: classes of the logits.
        decision: temperature, a part of the graph, and thresholds, written to ``labels.json``.
        max_length: maximum number of tokens, special tokens included.

    Raises:
        UserError: as in `export_onnx`.
    """
    folder = Path(folder)
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        wrap = partial(Probabilities, temperature=decision.temperature, multi_label=labels.multi_label)
        report = export_onnx(temporary / MODEL, stored.model, stored.config, probabilities=wrap)
        engine = Engine.from_str(stored.tokenizer.for_transformers().content)
        engine.enable_truncation(max_length)
        engine.save(str(temporary / "tokenizer.json"))
        description = {
            "labels": labels.names,
            "thresholds": (decision.thresholds or (0.5,) * len(labels)) if labels.multi_label else None,
            "max_length": max_length,
            "min_length": report.length or _MIN_LENGTH,
            "pad_id": stored.tokenizer.pad_id,
        }
        text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
        (temporary / LABELS).write_text(text, encoding="utf-8")
        (temporary / RUNNER).write_bytes(_TEMPLATE.read_bytes())
    return dataclasses.replace(report, file=str(folder / MODEL), max_length=max_length)


def quantize_int8(path: Path) -> None:
    """Quantize the matrices of an ONNX file to 8-bit integers; activations are quantized at run time."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(path)
    graph.graph.ClearField("value_info")  # shapes before the exporter transposed weights
    with quietly():
        quantize_dynamic(graph, path, weight_type=QuantType.QInt8)
