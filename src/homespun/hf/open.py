"""Opening a model, whatever it lies in: a run, a ``model/`` folder, a Hugging Face folder, a name on the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.convert import Leftover, Table, Weights, their_name, to_ours
from homespun.hf.families import FAMILIES
from homespun.hf.family import Family
from homespun.hf.labels import read_labels
from homespun.hf.weights import TORCH, has_weights, read_json, read_weights
from homespun.models.backbone import Model
from homespun.models.config import ModelConfig
from homespun.models.store import Stored, load_model, load_weights, weights_of
from homespun.text.tokenizer import Tokenizer

_NATIVE, _FOREIGN = "homespun.json", "config.json"


@dataclass(frozen=True)
class Opened:
    """A Hugging Face model, and the tensors of its files that were not taken along."""

    stored: Stored
    architecture: str
    leftovers: tuple[Leftover, ...]


def open_model(source: str | Path) -> Stored:
    """The model in ``source``, in evaluation mode, on the CPU.

    Args:
        source: a run directory, a ``model/`` folder, a folder that ``save_pretrained`` or `export_huggingface` wrote,
            or a name on the Hugging Face hub, which is downloaded once. A folder of that name comes first.

    Raises:
        UserError: there is no model, or it cannot be opened; says which, and the way out.
    """
    folder = Path(source).expanduser()
    if not folder.exists():
        return open_huggingface(_download(str(source))).stored
    if not folder.is_dir():
        raise UserError(f"{folder} is a file; give the folder of the model or of the run")
    for place in (folder, folder / "model"):
        if (place / _NATIVE).is_file():
            return load_model(place)
    if (folder / _FOREIGN).is_file():
        return open_huggingface(folder).stored
    if (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is a run that has no model/ yet; finish it with --resume")
    if (folder / "state.json").is_file():
        run = folder.absolute().parent.parent
        raise UserError(f"{folder} is a checkpoint, which only --resume reads; give the run, {run}, once it has ended")
    if has_weights(folder):
        raise UserError(f"{folder} has weights but no {_FOREIGN}, which says what model they are of")
    raise UserError(f"{folder} holds no model: neither model/, nor {_NATIVE}, nor {_FOREIGN} of Hugging Face")


def open_huggingface(folder: str | Path) -> Opened:
    """The model in a Hugging Face folder: ``config.json``, weights, ``tokenizer.json``. No code of it is ever run.

    Raises:
        UserError: a file is missing, cut short or refused; the model is of no family of ours; a tensor is missing, left
            over or of another shape; the tokenizer has more tokens than the model.
    """
    folder = Path(folder)
    path = folder / _FOREIGN
    tree = read_json(path)
    family = _family_of(tree, source=str(path))
    architecture, config = family.read_config(tree, source=str(path))
    table = family.table + architecture.table
    weights = read_weights(folder)
    if not any(name.startswith(family.prefix) for name in weights):
        weights = {family.prefix + name: tensor for name, tensor in weights.items()}
    converted, leftovers = to_ours(table, weights, config.backbone, source=str(folder))
    _check(table, converted, config, source=str(folder))
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size > config.backbone.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model embeds "
            f"{config.backbone.vocab_size}; this is the tokenizer of another model"
        )
    model = config.build()
    load_weights(model, converted, source=str(folder))
    labels = read_labels(tree) if architecture.classifies else None
    # where texts and labels stand is not written there: the plain names of the columns, unless others are given
    task = {"length": config.backbone.max_position_embeddings, "text": "text", "label": "label"}
    stored = Stored(model.eval(), config, tokenizer, labels, task)
    return Opened(stored, architecture.name, leftovers)


def _family_of(tree: Tree, *, source: str) -> Family:
    if "auto_map" in tree:
        raise UserError(f"{source} wants Python code of its own to be run (auto_map), which is always refused")
    families = {family.model_type: family for family in FAMILIES}
    kind = tree.get("model_type")
    if not isinstance(kind, str) or kind not in families:
        raise UserError(f"{source}: unknown model_type {kind!r}; ours are {', '.join(families)}")
    return families[kind]


def _check(table: Table, weights: Weights, config: ModelConfig, *, source: str) -> None:
    """That the tensors are those of the config, before memory is taken for it; errors have the names of the file."""
    layers = config.backbone.own_layers
    if layers > len(weights):  # before a model of that depth is built
        raise UserError(f"{source} has weights of at most {len(weights)} layers; config.json describes {layers}")
    if config.backbone.pad_token_id >= config.backbone.vocab_size:
        raise UserError(
            f"{source}: pad_token_id={config.backbone.pad_token_id} is beyond the vocabulary of "
            f"{config.backbone.vocab_size}"
        )
    with torch.device("meta"):
        wanted = weights_of(config.build())
    if missing := [their_name(table, name, config.backbone) for name in sorted(wanted.keys() - weights.keys())]:
        raise UserError(f"{source}: {len(missing)} tensors are missing, the first {missing[0]!r}")
    if extra := [their_name(table, name, config.backbone) for name in sorted(weights.keys() - wanted.keys())]:
        raise UserError(f"{source}: {len(extra)} tensors are more than config.json describes, the first {extra[0]!r}")
    for name, tensor in wanted.items():
        if weights[name].shape != tensor.shape:
            given, own = tuple(weights[name].shape), tuple(tensor.shape)
            raise UserError(
                f"{source}: {their_name(table, name, config.backbone)} has shape {given}; config.json describes {own}"
            )


def _download(name: str) -> Path:
    """The folder of a model of the hub, fetched or found in the cache."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith(".") or ".." in name:
        raise UserError(f"there is no folder {name}, and it is not a name on the Hugging Face hub either")
    try:
        # none but the files that are read, and the torch file only where there is nothing better
        top = ["config.json", "*token*.json", "model*.safetensors", "model.safetensors.index.json"]
        folder = Path(snapshot_download(name, allow_patterns=top, ignore_patterns=["*/*"]))
        if not has_weights(folder):
            folder = Path(snapshot_download(name, allow_patterns=[TORCH], ignore_patterns=["*/*"]))
    except Exception as error:  # the errors of the network have other classes in each version of the client
        reason = str(error).strip().splitlines()
        raise UserError(
            f"there is no folder {name}, and it could not be had from the Hugging Face hub: "
            f"{reason[0] if reason else type(error).__name__}"
        ) from error
    if not (folder / _FOREIGN).is_file():
        raise UserError(f"{name} on the Hugging Face hub has no {_FOREIGN}: it is not a model of transformers")
    return folder


def load(source: str | Path) -> Model:
    """The model of `open_model` alone: ``model(input_ids=..., attention_mask=...)`` gives the logits of its head, or
    the hidden states where it has none.
    """
    return open_model(source).model
