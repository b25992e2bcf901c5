"""Export of a classifier to a folder that works without torch: graph or linear model, tokenizer, labels, script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer as Engine

from homespun.data.labels import Labels
from homespun.data.long_inputs import TRUNCATE, LongInputs
from homespun.inference.onnx_export import OnnxReport, Probabilities, export_onnx, quietly
from homespun.metrics.calibration import DecisionRule
from homespun.models.bundle import ModelBundle

MODEL, LINEAR, LABELS, RUNNER = "model.onnx", "linear", "labels.json", "predict.py"
_TEMPLATE = Path(__file__).with_name("onnx_predict.py.txt")
_MIN_LENGTH = 2  # tokens of a padded batch; the minimum of the graph


def write_network(
    folder: Path,
    stored: ModelBundle,
    labels: Labels,
    decision: DecisionRule,
    *,
    max_length: int,
    long_inputs: LongInputs = TRUNCATE,
) -> tuple[OnnxReport, dict[str, object]]:
    """Write ``model.onnx`` (outputs ``probabilities`` and ``logits``) and ``tokenizer.json`` of a text classifier.

    The tokenizer adds special tokens.

    Args:
        folder: an existing folder.
        stored: model and tokenizer.
        labels: classes of the logits.
        decision: decision rule, whose temperature becomes a part of the graph.
        max_length: maximum number of tokens, special tokens included.
        long_inputs: tokens of a longer text that are read, in one sequence.

    Returns:
        The report, and the settings of `write_runner`.

    Raises:
        UserError: as in `export_onnx`.
    """
    wrap = partial(Probabilities, temperature=decision.temperature, multi_label=labels.multi_label)
    report = export_onnx(folder / MODEL, stored.model, stored.config, probabilities=wrap)
    Engine.from_str(stored.tokenizer.for_transformers().content).save(str(folder / "tokenizer.json"))
    begin, end = map(len, stored.tokenizer.template)
    first, last = long_inputs.kept(max_length - begin - end)
    settings: dict[str, object] = {
        "max_length": max_length,
        "first_tokens": begin + first,
        "last_tokens": last + end,
        "min_length": report.length or _MIN_LENGTH,
        "pad_id": stored.tokenizer.pad_id,
    }
    return report, settings


def write_runner(folder: Path, labels: Labels, decision: DecisionRule, settings: Mapping[str, object]) -> None:
    """Write ``labels.json`` and ``predict.py``, which averages the graph and the linear model in the folder.

    Args:
        folder: with the files of `write_network`, or the folder ``linear`` of a linear model, or both.
        labels: the classes.
        decision: thresholds.
        settings: result of `write_network`; for an average also ``weights`` of ``network`` and ``linear``, and
            ``temperature``.
    """
    import jinja2

    thresholds = (decision.thresholds or (0.5,) * len(labels)) if labels.multi_label else None
    description = {"labels": labels.names, "thresholds": thresholds, **settings}
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    (folder / LABELS).write_text(text, encoding="utf-8")
    source = _TEMPLATE.read_text(encoding="utf-8")
    template = jinja2.Template(source, trim_blocks=True, keep_trailing_newline=True)
    parts = {"network": (folder / MODEL).is_file(), "linear": (folder / LINEAR).is_dir()}
    (folder / RUNNER).write_text(template.render(parts), encoding="utf-8", newline="\n")


def quantize_int8(path: Path) -> None:
    """Quantize the matrices of an ONNX file to 8-bit integers; activations are quantized at run time."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(path)
    graph.graph.ClearField("value_info")  # shapes before the exporter transposed weights
    with quietly():
        quantize_dynamic(graph, path, weight_type=QuantType.QInt8)
