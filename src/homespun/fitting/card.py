"""The model card of a fit: metadata of the Hugging Face hub, results, limits and use, without training texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from homespun.config import Tree
from homespun.fitting.verdict import candidates_table, commands, headline, problems
from homespun.hf import is_hub_name
from homespun.io.atomic import write_text
from homespun.io.json import read_optional
from homespun.metrics.calibration import DecisionRule
from homespun.report import formats, tables
from homespun.report.document import Block, Document, code, fill, markdown, paragraphs, tabular
from homespun.report.significance import macro_f1_interval
from homespun.results import Metrics
from homespun.tasks.text_models import TextModel

CARD = "README.md"
_FOLDER = "path/to/this/folder"


@dataclass(frozen=True)
class _Task:
    """Title of a card, task of the hub, and suffixes of transformers classes that represent the complete model."""

    title: str
    pipeline: str
    classes: tuple[str, ...]


_TEXTS = _Task("Text classification", "text-classification", ("ForSequenceClassification",))
_DECODERS = ("ForCausalLM", "LMHeadModel")
_TASKS = {
    "classification": _TEXTS,
    "multi-label": _TEXTS,
    "regression": replace(_TEXTS, title="Text regression"),
    "token-classification": _Task("Token classification", "token-classification", ("ForTokenClassification",)),
    "text-to-text": _Task("Text to text", "text2text-generation", ("ForConditionalGeneration", *_DECODERS)),
    "language-model": _Task("Language model", "text-generation", _DECODERS),
}
_MASKED = _Task("Language model", "fill-mask", ("ForMaskedLM",))
_METRICS = {  # metric of `result.json`: name on the hub and settings
    "accuracy": ("accuracy", None),
    "macro_f1": ("f1", {"average": "macro"}),
    "micro_f1": ("f1", {"average": "micro"}),
    "spearman": ("spearmanr", None),
    "absolute_error": ("mae", None),
    "f1": ("f1", None),
    "precision": ("precision", None),
    "recall": ("recall", None),
    "rouge1": ("rouge", {"rouge_type": "rouge1"}),
    "rouge2": ("rouge", {"rouge_type": "rouge2"}),
    "rougeL": ("rouge", {"rouge_type": "rougeL"}),
    "loss": ("loss", None),
    "perplexity": ("perplexity", None),
}
_HOMESPUN = """\
import homespun

homespun.open("{folder}").predict([{example}])
"""
_PIPELINE = """\
{first}from transformers import pipeline

{register}pipeline("{pipeline}", "{folder}"{options})({example})
"""
_SEQ2SEQ = """\
{first}from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

{register}tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = AutoModelForSeq2SeqLM.from_pretrained("{folder}")
written = model.generate(**tokenizer("A text.", return_tensors="pt"))
tokenizer.decode(written[0], skip_special_tokens=True)
"""


def write_card(result: Tree, folder: Path, model: TextModel | None = None) -> Path:
    """Write the card into ``hf/`` if this folder has the complete model, otherwise next to ``model/``; return its path.

    ``model`` is the selected classifier or regressor of texts; None for other tasks.
    """
    task = _MASKED if result.get("masked") else _TASKS[result["task"]]
    architectures = read_optional(folder / "hf" / "config.json").get("architectures")
    network = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    opens = network.endswith(task.classes)
    path = folder / "hf" / CARD if opens else folder / CARD
    body = _body(result, task, network * opens, model)
    write_text(path, f"---\n{_metadata(result, task, folder, opens)}\n---\n\n{body}")
    if opens:
        (folder / CARD).unlink(missing_ok=True)  # left by a fit that is continued
    return path


def _metadata(result: Tree, task: _Task, folder: Path, opens: bool) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    part, counted = _measured_on(result)
    data = ModelCardData(
        model_name=folder.resolve().name,
        library_name="transformers" if opens else "homespun",
        pipeline_tag=task.pipeline,
        base_model=_base_models(result) or None,
        tags=["homespun"],
        eval_results=[
            EvalResult(
                task_type=task.pipeline,
                dataset_type="custom",
                dataset_name=counted,
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


def _measured_on(result: Tree) -> tuple[str, str]:
    """Name of the split that the model was evaluated on, and the name with the number of examples."""
    if result["task"] == "language-model":
        return "validation", "held-out documents"
    part = "validation" if result["test_from"] == "none" else "test"
    return part, f"{result['test']['rows']:,} {part} examples"


def _base_models(result: Tree) -> list[str]:
    """Hub names of the checkpoints in the selected model; local folders are left out."""
    sources: list[str] = result["settings"]["start_from"]
    title = result["title"].removeprefix("student of ").removeprefix("average of ")
    members = [one for one in result["candidates"] if one["title"] == title or title.startswith(f"{one['title']} (")]
    used = [one["name"].rpartition("-") for one in members]
    names = {sources[int(number) - 1] for kind, _, number in used if kind in ("frozen", "finetuned")}
    if result["task"] == "language-model":
        names = set(sources)
    return sorted(filter(is_hub_name, names))


def _body(result: Tree, task: _Task, network: str, model: TextModel | None) -> str:
    test = Metrics.model_validate(result["test"])
    chapters = {
        "Labels": paragraphs(fill("fit", "labels", result=result)),
        "Data": paragraphs(fill("fit", "data", result=result)),
        "Results": [
            *paragraphs(_macro_f1(result)),
            *tabular(candidates_table(result), tables.per_class(test, "classes") if test.per_class else None),
        ],
        "Calibration": paragraphs(None if model is None else _calibration(result, model.decision, network)),
        "Limits": paragraphs(
            "Evaluate the model before you use it on texts from another source: metrics may differ.",
            *problems(result | {"skipped": []}),
        ),
        "Use": _use(result, task, network, pairs=result.get("pairs", False)),
    }
    opens = f"A {network}." if network else None
    return markdown(Document(task.title, paragraphs(" ".join(headline(result)), opens), chapters))


def _use(result: Tree, task: _Task, network: str, *, pairs: bool) -> list[Block]:
    example, theirs = '"A text."', '"A text."'
    if pairs:
        example, theirs = '("A text.", "Its second text.")', '{"text": "A text.", "text_pair": "Its second text."}'
    if task.title in (_MASKED.title, _TASKS["text-to-text"].title):
        found = code("\n".join(commands(result, Path(_FOLDER))))
    else:
        found = code(_HOMESPUN.format(folder=_FOLDER, example=example))
    own = network.startswith("Homespun")  # a class of homespun.hf.auto_classes
    registering = {"first": "import homespun\n" * own, "register": "homespun.register_auto_classes()\n" * own}
    if network.endswith("ForConditionalGeneration"):
        return found + code(_SEQ2SEQ.format(folder=_FOLDER, **registering))
    if not network or task.pipeline in ("fill-mask", "text2text-generation"):  # prompts with a form of their own
        return found
    options = ", top_k=None" * (result["task"] == "multi-label")
    settings = {"pipeline": task.pipeline, "options": options, "example": theirs}
    return found + code(_PIPELINE.format(folder=_FOLDER, **settings, **registering))


def _macro_f1(result: Tree) -> str | None:
    matrix = result["test"].get("confusion")
    return fill("fit", "macro_f1", result=result, interval=macro_f1_interval(matrix["counts"])) if matrix else None


def _calibration(result: Tree, decision: DecisionRule, network: str) -> str | None:
    found = result["test"].get("calibration")
    if found is None:
        return None
    thresholds = list(zip(result["labels"], decision.thresholds or (), strict=False))
    values = {"temperature": decision.temperature, "thresholds": thresholds, "network": network}
    return fill("fit", "calibration", found=found, **values)
