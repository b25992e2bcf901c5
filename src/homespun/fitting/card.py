"""The model card of a fit: metadata of the Hugging Face hub, results, limits and use, without training texts."""

from __future__ import annotations

from pathlib import Path

from homespun.config import Tree
from homespun.fitting.page import candidates_table
from homespun.fitting.verdict import headline, metric_text, problems
from homespun.hf import is_hub_name
from homespun.io.atomic import write_text
from homespun.io.json import read_optional
from homespun.metrics.calibration import DecisionRule
from homespun.report import formats, tables
from homespun.report.document import Document, code, markdown, paragraphs, tabular
from homespun.report.significance import macro_f1_interval
from homespun.results import Metrics
from homespun.tasks.text_models import TextModel

CARD = "README.md"
_METRICS = {  # of `result.json`: name on the hub and settings
    "accuracy": ("accuracy", None),
    "macro_f1": ("f1", {"average": "macro"}),
    "micro_f1": ("f1", {"average": "micro"}),
    "spearman": ("spearmanr", None),
    "absolute_error": ("mae", None),
}
_HOMESPUN = """\
import homespun

homespun.open("path/to/this/folder").predict([{example}])
"""
_TRANSFORMERS = """\
from transformers import pipeline

pipeline("text-classification", "path/to/this/folder"{options})({example})
"""


def write_card(result: Tree, folder: Path, model: TextModel) -> Path:
    """Write the card into ``hf/`` if this folder has the classifier, and next to ``model/`` if not.

    Args:
        result: the content of ``result.json``.
        folder: of the fit, with ``model/``.
        model: the selected one.

    Returns:
        The path of the card.
    """
    architectures = read_optional(folder / "hf" / "config.json").get("architectures")
    network = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    opens = network.endswith("ForSequenceClassification")
    path = folder / "hf" / CARD if opens else folder / CARD
    write_text(path, f"---\n{_metadata(result, folder, opens)}\n---\n\n{_body(result, network * opens, model)}")
    return path


def _metadata(result: Tree, folder: Path, opens: bool) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    part = "validation" if result["test_from"] == "none" else "test"
    data = ModelCardData(
        model_name=folder.resolve().name,
        library_name="transformers" if opens else "homespun",
        pipeline_tag="text-classification",
        base_model=_base_models(result) or None,
        tags=["homespun"],
        eval_results=[
            EvalResult(
                task_type="text-classification",
                dataset_type="custom",
                dataset_name=f"{result['test']['rows']:,} {part} examples",
                dataset_split=part,
                metric_type=kind,
                metric_name=formats.metric_title(name),
                metric_value=result["test"][name],
                metric_args=settings,
            )
            for name, (kind, settings) in _METRICS.items()
            if result["test"].get(name) is not None
        ],
    )
    return str(data.to_yaml())


def _base_models(result: Tree) -> list[str]:
    """Names on the hub of the checkpoints in the selected model; a local folder is no model for other readers."""
    sources: list[str] = result["settings"]["start_from"]
    used = [one["name"].rpartition("-") for one in result["candidates"] if one["title"] in result["title"]]
    names = {sources[int(number) - 1] for kind, _, number in used if kind in ("frozen", "finetuned")}
    return sorted(filter(is_hub_name, names))


def _body(result: Tree, network: str, model: TextModel) -> str:
    test, several = Metrics.model_validate(result["test"]), result["task"] == "multi-label"
    pairs = model.data.kind == "sentence_pairs"
    example = '("A text.", "Its second text.")' if pairs else '"A text."'
    theirs = '{"text": "A text.", "text_pair": "Its second text."}' if pairs else example
    chapters = {
        "Labels": paragraphs(_labels(result)),
        "Data": paragraphs(_data(result)),
        "Results": [
            *paragraphs(_macro_f1(result)),
            *tabular(candidates_table(result), tables.per_class(test, "classes") if test.per_class else None),
        ],
        "Calibration": paragraphs(_calibration(result, model.decision, network)),
        "Limits": paragraphs(
            "Measured on examples like the training examples; texts of other sources may give other results.",
            *problems(result | {"skipped": []}),
        ),
        "Use": [
            *code(_HOMESPUN.format(example=example)),
            *(code(_TRANSFORMERS.format(example=theirs, options=", top_k=None" * several)) if network else []),
        ],
    }
    opens = f"A {network}." if network else None
    title = "Text regression" if result["task"] == "regression" else "Text classification"
    return markdown(Document(title, paragraphs(" ".join(headline(result)), opens), chapters))


def _labels(result: Tree) -> str:
    if result["labels"] is None:
        return "Predicts a number."
    some = "Any" if result["task"] == "multi-label" else "One"
    return f"{some} of {len(result['labels']):,} labels: {', '.join(result['labels'])}."


def _data(result: Tree) -> str:
    examples = result["examples"]
    origin = {"files": "from files of their own", "split": "held out of the training files"}.get(result["test_from"])
    tested = f" {examples['test']:,} test examples, {origin}, were used once, for the results." if origin else ""
    return (
        f"Trained on {examples['train']:,} examples; {examples['validation']:,} validation examples selected the model."
        f"{tested} This card holds none of them."
    )


def _macro_f1(result: Tree) -> str | None:
    matrix = result["test"].get("confusion")
    if matrix is None:
        return None
    low, high = macro_f1_interval(matrix["counts"])
    value, *ends = (metric_text(one, result["task"]) for one in (result["test"]["macro_f1"], low, high))
    return f"Macro F1 {value}, 95 % interval {ends[0]} to {ends[1]} (bootstrap over examples)."


def _calibration(result: Tree, decision: DecisionRule, network: str) -> str | None:
    found = result["test"].get("calibration")
    if found is None:
        return None
    errors = {name: metric_text(found[name]["ece"], result["task"]) for name in ("before", "after")}
    measured = f"Expected calibration error {errors['after']}, log loss {found['after']['log_loss']:.3f}"
    rule = absent = ""
    if decision.temperature != 1:
        rule = f"; logits are divided by {decision.temperature:.3g}, and without it the error is {errors['before']}"
        absent = " This folder does not hold the temperature." if network else ""
    limits = "" if decision.thresholds is None else f" Thresholds: {_thresholds(result, decision)}."
    return f"{measured}{rule}.{absent}{limits}"


def _thresholds(result: Tree, decision: DecisionRule) -> str:
    assert decision.thresholds is not None
    return ", ".join(f"{name} {one:.3g}" for name, one in zip(result["labels"], decision.thresholds, strict=True))
