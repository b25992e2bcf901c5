"""Export to a Hugging Face folder, which ``transformers`` opens with ``from_pretrained``.

A model that no class of transformers has is written for the classes of `homespun.hf.auto_classes`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors.torch import save_file

from homespun.config import Tree
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.hf import is_hub_name
from homespun.hf.engine import Weights, to_hf
from homespun.hf.family import default_labels, write_labels
from homespun.hf.folding import fold_weights
from homespun.hf.match import WITHOUT_HEAD, ArchitectureMatch, match_architecture
from homespun.inference.onnx_export import onnx_unsupported_reason
from homespun.io.atomic import atomic_path, entries
from homespun.models.bundle import ModelBundle, save_model, weights_of
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer

CONFIG, CARD = "config.json", "README.md"
REPORT = "conversion.json"  # report of `homespun convert`, in any format
WEIGHTS = "model.safetensors"
_CARD = Path(__file__).with_name("model_card.md.txt")
_NATIVE = "homespun.json"
_REPLACEABLE = frozenset(
    {WEIGHTS, REPORT, _NATIVE, "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}
)

MODEL_TYPE = "homespun"
CLASSES = {
    "feature-extraction": "HomespunModel",
    "fill-mask": "HomespunForMaskedLM",
    "text-generation": "HomespunForCausalLM",
    "text2text-generation": "HomespunForConditionalGeneration",
    "text-classification": "HomespunForSequenceClassification",
    "token-classification": "HomespunForTokenClassification",
    "question-answering": "HomespunForQuestionAnswering",
}
"""Classes of `homespun.hf.auto_classes` by the name of the task on the hub."""

_REGISTERED = "{name} is a class of homespun: call `homespun.register_auto_classes()` before `from_pretrained`"


@dataclass(frozen=True)
class ExportReport:
    """Result of an export."""

    folder: str | None  # the folder; None if nothing was written, for the reason in ``notes``
    architecture: str | None  # the class of transformers
    notes: tuple[str, ...]  # differences from the model


def export_huggingface(
    folder: str | Path, stored: ModelBundle, *, base_model: str | Path | None = None
) -> ExportReport:
    """Write weights, config.json, tokenizer and model card to ``folder``, atomically, replacing an existing export.

    A model without a family, such as one with Linformer attention, is not written. A head without a class is left out.
    Factorised embeddings that no family has are folded (`homespun.hf.folding`). The report has notes on all of these.

    Args:
        folder: a new or empty folder, or an export.
        stored: model with its config, tokenizer and labels.
        base_model: the model that it was trained from, for the card.

    Raises:
        UserError: ``folder`` has other contents, or the tokenizer or the labels are of another model.
    """
    folder, model, config, tokenizer = Path(folder), stored.model, stored.config, stored.tokenizer
    if tokenizer.vocab_size > config.backbone.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} tokens and the model embeds {config.backbone.vocab_size}; "
            f"export a model with its own tokenizer"
        )
    check_replaceable(folder, CONFIG, CARD)
    # transformers finds padding by its id, which must be the tokenizer's
    config = config.model_copy(
        update={"backbone": config.backbone.with_tokens(config.backbone.vocab_size, tokenizer.pad_id)}
    )
    match, notes = match_architecture(config)
    if match is None:
        return ExportReport(None, None, notes)
    tree = _settings(match, tokenizer, stored.labels)
    tree["dtype"] = str(model.backbone.embeddings.words.weight.dtype).removeprefix("torch.")
    weights = _hf_weights(match, config, weights_of(model))
    with atomic_path(folder) as made:
        made.mkdir()
        # transformers requires "format"
        tensors = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
        save_file(tensors, made / WEIGHTS, metadata={"format": "pt"})
        tokenizer.for_transformers().save(made)
        _complete_tokenizer(made / "tokenizer_config.json", config)
        (made / CONFIG).write_text(_json(tree), encoding="utf-8")
        parameters = sum(tensor.numel() for tensor in weights.values())
        architecture = match.architecture
        card = _card(architecture.name, architecture.pipeline, match.config, parameters, notes, base_model)
        (made / CARD).write_text(card, encoding="utf-8")
    return ExportReport(str(folder), match.architecture.name, notes)


def export_complete(folder: str | Path, stored: ModelBundle, *, base_model: str | Path | None = None) -> ExportReport:
    """Export a model with its head: for a class of transformers, or else for one of homespun.

    Arguments and errors as in `export_huggingface`. Only a head for another purpose than the tasks of `CLASSES`, such
    as ELECTRA's discriminator, is left out where transformers has no class of it.
    """
    config = stored.config
    match, notes = match_architecture(config)
    other_purpose = registered_pipeline(config) is None
    if match is not None and (match.architecture.kind or config.head is None or other_purpose):
        return export_huggingface(folder, stored, base_model=base_model)
    notes = tuple(note.removesuffix(WITHOUT_HEAD) for note in notes if match is None or note.endswith(WITHOUT_HEAD))
    if other_purpose and config.head is not None:
        notes = (*notes, f"the backbone was exported without the head {config.head.kind!r}")
        bare = config.model_copy(update={"head": None})
        stored = ModelBundle(Model(stored.model.backbone), bare, stored.tokenizer)
    return export_registered(folder, stored, base_model=base_model, notes=notes)


def registered_pipeline(config: ModelConfig) -> str | None:
    """Return the key of `CLASSES` for a model; None for a head of another purpose."""
    if config.head is None:
        return "feature-extraction"
    pipeline = config.head.pipeline
    if pipeline == "text-generation" and not config.backbone.causal:
        return "text2text-generation" if config.backbone.has_decoder else None
    return pipeline


def export_registered(
    folder: str | Path,
    stored: ModelBundle,
    *,
    base_model: str | Path | None = None,
    notes: tuple[str, ...] = (),
) -> ExportReport:
    """Write a model for a class of `homespun.hf.auto_classes`: a ``model/`` folder with config.json and model card.

    Arguments and errors as in `export_huggingface`; ``notes`` say why transformers has no class.
    """
    folder, pipeline = Path(folder), registered_pipeline(stored.config)
    assert pipeline is not None
    check_replaceable(folder, CONFIG, CARD)
    model, config, tokenizer, labels = stored.model, stored.config, stored.tokenizer.for_transformers(), stored.labels
    backbone = config.backbone
    tree: Tree = {
        "architectures": [CLASSES[pipeline]],
        "model_type": MODEL_TYPE,
        "vocab_size": backbone.vocab_size,
        "hidden_size": backbone.hidden_size,
        "num_hidden_layers": backbone.num_hidden_layers,
        "max_position_embeddings": backbone.max_position_embeddings,
        "pad_token_id": tokenizer.pad_id,
        "is_encoder_decoder": backbone.has_decoder and not backbone.causal,
    }
    if pipeline in ("text-classification", "token-classification"):
        tree |= write_labels(labels or default_labels(_num_labels(config)))
    # default columns, which the files do not name
    task = {"max_length": backbone.max_position_embeddings, "text": "text", "label": "label"}
    notes = (*notes, _REGISTERED.format(name=CLASSES[pipeline]))
    with atomic_path(folder) as made:
        save_model(made, model, config, tokenizer, labels=labels, task=task)
        _complete_tokenizer(made / "tokenizer_config.json", config)
        (made / CONFIG).write_text(_json(tree), encoding="utf-8")
        parameters = sum(tensor.numel() for tensor in weights_of(model).values())
        card = _card(CLASSES[pipeline], pipeline, config, parameters, notes, base_model)
        (made / CARD).write_text(card, encoding="utf-8")
    return ExportReport(str(folder), CLASSES[pipeline], notes)


def _num_labels(config: ModelConfig) -> int:
    head: Tree = {} if config.head is None else config.head.model_dump()
    while "num_labels" not in head:  # a head on a mix of layers, or on chunks
        head = head["head"]
    return int(head["num_labels"])


def _hf_weights(match: ArchitectureMatch, config: ModelConfig, weights: Weights) -> Weights:
    """Convert the weights of a model of ``config``, folded and without a head if the class has neither."""
    family, architecture = match.family, match.architecture
    if architecture.kind is None:
        config = config.model_copy(update={"head": None})
    if match.config.backbone != config.backbone:
        weights = fold_weights(weights, config)
    if architecture.kind is None:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    weights = to_hf(family.table + architecture.table, weights, match.config.backbone)
    return {name.removeprefix(family.prefix): t for name, t in weights.items()} if architecture.bare else weights


def _settings(match: ArchitectureMatch, tokenizer: Tokenizer, labels: Labels | None) -> Tree:
    """Settings of config.json with the labels of a classifier and the special tokens of the tokenizer."""
    architecture, head, roles = match.architecture, match.config.head, tokenizer.roles
    num_labels = head.model_dump()["num_labels"] if head is not None and architecture.classifies else 0
    if labels is not None and num_labels not in (0, len(labels)):
        raise UserError(f"{len(labels)} labels were given for a head of {num_labels} classes")
    tree = match.family.write_config(architecture, match.config, labels=labels)
    if "sep" in roles:  # question answering searches the text for it
        tree["sep_token_id"] = tokenizer.sep_id
    if architecture.pipeline == "text-generation":  # the defaults suit the published checkpoints
        tree["bos_token_id"] = tokenizer.cls_id if "cls" in roles or "bos" in roles else None
        tree["eos_token_id"] = tokenizer.sep_id if "sep" in roles or "eos" in roles else None
    return tree


def export_run(
    run: str | Path,
    stored: ModelBundle,
    *,
    base_model: str | Path | None = None,
) -> Tree:
    """Apply `export_complete` to ``hf/`` of a run directory.

    Returns:
        The report for ``result.json``, with a note on ONNX for a model without a class in transformers.
    """
    folder = Path(run) / "hf"
    report = asdict(export_complete(folder, stored, base_model=base_model))
    if report["architecture"] is not None and report["architecture"] not in CLASSES.values():
        return report
    return report | {"notes": (*report["notes"], *suggest_onnx(stored.model))}


def suggest_onnx(model: Model) -> tuple[str, ...]:
    """Return a note on ONNX for a model that can be exported."""
    if onnx_unsupported_reason(model):
        return ()
    return ("`homespun export MODEL --to onnx --out model.onnx` writes it for programs that have neither library",)


def check_replaceable(
    folder: Path, description: str, *others: str, weights: str = WEIGHTS, folders: Sequence[str] = ()
) -> None:
    """Raise `UserError` unless ``folder`` is new, empty, or has only a model.

    Args:
        folder: folder to write the model to.
        description: the file that describes the model.
        others: further allowed files, besides the weights and the files of the tokenizer.
        weights: the file of the weights.
        folders: allowed folders.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; give a new or empty folder")
    found = entries(folder)
    known = {description, weights, *others, *_REPLACEABLE}
    foreign = [path for path in found if path.name not in (known if path.is_file() else folders)]
    if not {description, weights} <= {path.name for path in found}:  # no complete model
        foreign = foreign or found
    if foreign:
        raise UserError(f"{folder} holds other things, such as {foreign[0].name}; give a new or empty folder")


def _complete_tokenizer(path: Path, config: ModelConfig) -> None:
    """Add the maximum length and the names of inputs, which depend on the model."""
    tree = json.loads(path.read_text(encoding="utf-8"))
    tree["model_max_length"] = config.backbone.max_position_embeddings
    # the default differs between versions
    segments = ["token_type_ids"] if config.has_segments else []
    tree["model_input_names"] = ["input_ids", *segments, "attention_mask"]
    path.write_text(_json(tree), encoding="utf-8")


def _card(
    name: str,
    pipeline: str | None,
    config: ModelConfig,
    parameters: int,
    notes: tuple[str, ...],
    base_model: str | Path | None,
) -> str:
    import jinja2

    base = None if base_model is None else str(base_model)
    template = jinja2.Template(_CARD.read_text(encoding="utf-8"), trim_blocks=True, keep_trailing_newline=True)
    return template.render(
        name=name,
        pipeline=pipeline,
        registered=name in CLASSES.values(),
        backbone=config.backbone,
        parameters=parameters,
        notes=notes,
        # local paths say nothing to readers elsewhere
        hub_name=base if base is not None and is_hub_name(base) else None,
        base=Path(base).name if base is not None and Path(base).is_absolute() else base,
    )


def _json(tree: Tree) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
