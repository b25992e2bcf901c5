"""Export to a Hugging Face folder, which ``transformers`` opens with ``from_pretrained``."""

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
from homespun.hf.family import Architecture
from homespun.hf.folding import fold_weights
from homespun.hf.match import ArchitectureMatch, match_architecture
from homespun.inference.onnx_export import onnx_unsupported_reason
from homespun.io.atomic import atomic_path, entries
from homespun.models.bundle import weights_of
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer

CONFIG, CARD = "config.json", "README.md"
REPORT = "conversion.json"  # report of `homespun convert`, in any format
WEIGHTS = "model.safetensors"
_CARD = Path(__file__).with_name("model_card.md.txt")
_REPLACEABLE = frozenset({WEIGHTS, REPORT, "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"})


@dataclass(frozen=True)
class ExportReport:
    """Result of an export."""

    folder: str | None  # the folder; None if nothing was written, for the reason in ``notes``
    architecture: str | None  # the class of transformers
    notes: tuple[str, ...]  # differences from the model


def export_huggingface(
    folder: str | Path,
    model: Model,
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    labels: Labels | None = None,
    base_model: str | Path | None = None,
) -> ExportReport:
    """Write weights, config.json, tokenizer and model card to ``folder``, atomically, replacing an existing export.

    A model without a family, such as one with Linformer attention, is not written. A head without a class is left out.
    Factorised embeddings that no family has are folded (`homespun.hf.folding`). The report has notes on all of these.

    Args:
        folder: a new or empty folder, or an export.
        model, config, tokenizer: parts of the model.
        labels: classes of its head.
        base_model: the model that it was trained from, for the card.

    Raises:
        UserError: ``folder`` has other contents, or the tokenizer or the labels are of another model.
    """
    folder = Path(folder)
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
    tree = _settings(match, tokenizer, labels)
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
        card = _card(match.architecture, match.config, parameters, notes, base_model)
        (made / CARD).write_text(card, encoding="utf-8")
    return ExportReport(str(folder), match.architecture.name, notes)


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
    model: Model,
    config: ModelConfig,
    tokenizer: Tokenizer,
    *,
    labels: Labels | None = None,
    base_model: str | Path | None = None,
) -> Tree:
    """Apply `export_huggingface` to ``hf/`` of a run directory.

    Returns:
        The report for ``result.json``, with a note on ONNX for a model without a family.
    """
    folder = Path(run) / "hf"
    report = asdict(export_huggingface(folder, model, config, tokenizer, labels=labels, base_model=base_model))
    return report if report["folder"] is not None else report | {"notes": (*report["notes"], *suggest_onnx(model))}


def suggest_onnx(model: Model) -> tuple[str, ...]:
    """Return a note on ONNX for a model without a family, if it can be exported."""
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
    architecture: Architecture,
    config: ModelConfig,
    parameters: int,
    notes: tuple[str, ...],
    base_model: str | Path | None,
) -> str:
    import jinja2

    base = None if base_model is None else str(base_model)
    template = jinja2.Template(_CARD.read_text(encoding="utf-8"), trim_blocks=True, keep_trailing_newline=True)
    return template.render(
        architecture=architecture,
        backbone=config.backbone,
        parameters=parameters,
        notes=notes,
        # local paths say nothing to readers elsewhere
        hub_name=base if base is not None and is_hub_name(base) else None,
        base=Path(base).name if base is not None and Path(base).is_absolute() else base,
    )


def _json(tree: Tree) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
