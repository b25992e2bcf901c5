"""Open a model: a run, a ``model/`` folder, a Hugging Face folder, or a name on the hub."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import check_source
from homespun.hf.builders import NO_POOLER
from homespun.hf.engine import Table, UnusedTensor, Weights, their_name, to_ours
from homespun.hf.families import FAMILIES
from homespun.hf.family import STORED, Family
from homespun.hf.labels import read_labels
from homespun.hf.weights import FILES, has_weights, modernize_name, read_weights
from homespun.io.json import read_object
from homespun.models.bundle import (
    ModelBundle,
    assign_weights,
    build_on_meta,
    build_uninitialized,
    load_model,
    weights_of,
)
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabularies import VOCABULARIES

logger = logging.getLogger(__name__)

_NATIVE, _FOREIGN = "homespun.json", "config.json"
_WITHOUT_NETWORK = ("linear.json", "average.json")  # `homespun.tasks.text_models`
_DROPPED_HEAD = "of a head, and the model is opened without"


@dataclass(frozen=True)
class OpenedModel:
    """A model and a report on its files.

    Args:
        stored: the model.
        architecture: its class in transformers; None for a ``model/`` folder.
        mapped: our names of each tensor, by the name in the files.
        unused_tensors: tensors of the files that are not in the model.
        notes: differences from the model in the files.
    """

    stored: ModelBundle
    architecture: str | None
    mapped: dict[str, tuple[str, ...]]
    unused_tensors: tuple[UnusedTensor, ...]
    notes: tuple[str, ...]


def open_model(source: str | Path, *, head: str | None = STORED) -> ModelBundle:
    """Open the model in ``source`` on the CPU, in evaluation mode; see `open_any`."""
    return _with_eos_token(open_any(source, head=head).stored)


def open_for_training(source: str | Path) -> ModelBundle:
    """`open_model` for further training: each difference from the model in the files is a warning."""
    opened = open_any(source)
    for note in opened.notes:
        logger.warning("%s: %s", source, note)
    return _with_eos_token(opened.stored)


def _with_eos_token(stored: ModelBundle) -> ModelBundle:
    tokens, roles = stored.model.special_tokens, stored.tokenizer.roles
    if tokens.eos_token_id is None and ("sep" in roles or "eos" in roles):  # given by the tokenizer alone
        stored.model.special_tokens = replace(tokens, eos_token_id=stored.tokenizer.sep_id)
    return stored


def open_any(source: str | Path, *, head: str | None = STORED) -> OpenedModel:
    """Open the model in ``source`` on the CPU, in evaluation mode, with a report.

    Args:
        source: a run directory, a ``model/`` folder, a Hugging Face folder, or a name on the hub, which is downloaded
            once. A folder of that name has precedence.
        head: the ``kind`` of the head, which must be in the files; None for no head; by default that of the config.

    Raises:
        UserError: there is no model, or it cannot be opened.
    """
    folder = Path(source).expanduser()
    check_source(source)
    if not folder.exists():
        return open_huggingface(_download(str(source)), head=head)
    for candidate in (folder, folder / "model"):
        if (candidate / _NATIVE).is_file():
            return _open_native(candidate, head)
    if (folder / _FOREIGN).is_file():
        return open_huggingface(folder, head=head)
    if any((candidate / name).is_file() for candidate in (folder, folder / "model") for name in _WITHOUT_NETWORK):
        raise UserError(f"{folder} holds a linear model, or one of several parts; predict and evaluate open it")
    if (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is a run that has no model/ yet; finish it with --resume")
    if (folder / "state.json").is_file():
        run = folder.absolute().parent.parent
        raise UserError(f"{folder} is a checkpoint, which only --resume reads; give the run, {run}, once it has ended")
    if has_weights(folder):
        raise UserError(f"{folder} has weights but no {_FOREIGN}, which says what model they are of")
    if (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder} holds a tokenizer and no model; give the folder of a model or of a run")
    raise UserError(f"{folder} holds no model: neither model/, nor {_NATIVE}, nor {_FOREIGN} of Hugging Face")


def _open_native(folder: Path, head: str | None) -> OpenedModel:
    stored = load_model(folder)
    names = list(weights_of(stored.model))
    kind = None if stored.config.head is None else stored.config.head.kind
    left: tuple[UnusedTensor, ...] = ()
    if head is None and kind is not None:
        bare = Model(stored.model.backbone).eval()
        stored = ModelBundle(bare, stored.config.model_copy(update={"head": None}), stored.tokenizer, None, stored.task)
        kept = weights_of(bare).keys()
        left = tuple(UnusedTensor(name, _DROPPED_HEAD) for name in names if name not in kept)
        names = [name for name in names if name in kept]
    elif head not in (STORED, kind):
        raise UserError(f"{folder} has {f'a head {kind!r}' if kind else 'no head'}, and not the head {head!r}")
    return OpenedModel(stored, None, {name: (name,) for name in names}, left, ())


def open_huggingface(folder: str | Path, *, head: str | None = STORED) -> OpenedModel:
    """Open the model of a Hugging Face folder: ``config.json``, weights, tokenizer. Code in it is never run.

    Weights are mapped from the disk: do not write into the files of a model in use, replace them.

    Raises:
        UserError: a file is missing, truncated or refused; no family has the model; a tensor is missing, unknown or of
            another shape; the tokenizer has more tokens than the model.
    """
    folder = Path(folder)
    path = folder / _FOREIGN
    tree = read_object(path)
    family = _family_of(tree, source=str(path))
    architecture, config = family.read_config(tree, source=str(path), head=head)
    written = read_weights(folder)
    if inferred := family.infer_from_tensors(tree, written):
        architecture, config = family.read_config(tree | inferred, source=str(path), head=head)
    table = family.table + architecture.table
    # files of the class without a head lack the prefix
    prefix = "" if any(modernize_name(name).startswith(family.prefix) for name in written) else family.prefix
    original_names: dict[str, str] = {}
    for name in written:
        today = prefix + modernize_name(name)
        if today in original_names:
            raise UserError(f"{folder}: {original_names[today]!r} and {name!r} are the same tensor; leave one out")
        original_names[today] = name
    theirs = {name: written[original] for name, original in original_names.items()}
    converted, unused_tensors = to_ours(table, theirs, config.backbone, source=str(folder))
    _check(table, converted, config, source=str(folder))
    tokenizer = Tokenizer.load(folder)
    if config.backbone.causal:
        tokenizer = _with_config_end_tokens(tokenizer, tree)
    if tokenizer.vocab_size > config.backbone.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model embeds "
            f"{config.backbone.vocab_size}; this is the tokenizer of another model"
        )
    model = build_uninitialized(config)
    assign_weights(model, converted, source=str(folder))
    labels = read_labels(tree) if architecture.classifies else None
    # default names of the columns, which are not in the files
    task = {"max_length": config.backbone.max_position_embeddings, "text": "text", "label": "label"}
    return OpenedModel(
        ModelBundle(model.eval(), config, tokenizer, labels, task),
        architecture.name,
        _map_names(table, converted, original_names, config),
        tuple(UnusedTensor(original_names[left.name], left.reason) for left in unused_tensors),
        (
            # transformers adds a pooler, its files have none
            *(note for note in architecture.notes(config.backbone) if note != NO_POOLER),
            *family.dropout_notes(architecture, config, tree),
            *_dtype_notes(converted),
        ),
    )


def _dtype_notes(weights: Weights) -> tuple[str, ...]:
    """Note on weights of another type than ours."""
    types = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()} - {"float32"}
    if not types:
        return ()
    return (f"weights are {' and '.join(sorted(types))} in the files, and float32 here and in what is written",)


def _with_config_end_tokens(tokenizer: Tokenizer, tree: Tree) -> Tokenizer:
    """Tokenizer with the special tokens that config.json names for the start and the end of a text."""
    roles = tokenizer.roles
    for role, stand_in in (("cls", "bos"), ("sep", "eos")):
        token = tree.get(f"{stand_in}_token_id")
        if not isinstance(token, int) or not 0 <= token < tokenizer.vocab_size:
            continue
        # many configs have GPT-2's 50256, which may be a word of their vocabulary
        name = tokenizer.tokens[token] if tokenizer.special_mask[token] else ""
        if name and name != roles.get(role, roles.get(stand_in)):
            roles.pop(role, None)
            roles[stand_in] = name
    return tokenizer if roles == tokenizer.roles else Tokenizer(tokenizer.content, roles)


def _map_names(
    table: Table, converted: Weights, original_names: dict[str, str], config: ModelConfig
) -> dict[str, tuple[str, ...]]:
    """Our names of each tensor in the files; ``original_names``: names in the files by their modern names."""
    mapped: dict[str, tuple[str, ...]] = {}
    for ours in converted:
        name = their_name(table, ours, config.backbone)
        # the files may have a copy of a tied tensor alone
        names = [name, *(copy.name for copy in table.copies if copy.of == name)]
        original = next(original_names[name] for name in names if name in original_names)
        mapped[original] = (*mapped.get(original, ()), ours)
    return mapped


def _family_of(tree: Tree, *, source: str) -> Family:
    if "auto_map" in tree:
        raise UserError(f"{source}: auto_map asks to run Python code of the model, which is always refused")
    kind, classes = tree.get("model_type"), tree.get("architectures")
    families = [family for family in FAMILIES if family.model_type == kind]
    if not families:
        ours = dict.fromkeys(family.model_type for family in FAMILIES)
        raise UserError(f"{source}: unknown model_type {kind!r}; ours are {', '.join(ours)}")
    # several families have one type: with a decoder, and without
    names = classes if isinstance(classes, list) else []
    named = [family for family in families if any(own.name in names for own in family.architectures)]
    return (named or families)[0]


def _check(table: Table, weights: Weights, config: ModelConfig, *, source: str) -> None:
    """Raise `UserError` for tensors that do not fit the config, before memory is taken."""
    if config.backbone.pad_token_id >= config.backbone.vocab_size:
        raise UserError(
            f"{source}: pad_token_id={config.backbone.pad_token_id} is beyond the vocabulary of "
            f"{config.backbone.vocab_size}"
        )
    wanted = weights_of(build_on_meta(config, weights, source=f"{source}: config.json"))
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
    """Folder of a model of the hub, downloaded or from the cache."""
    import huggingface_hub

    try:
        # only the files that are read, and the torch file only without a better one
        best, *others = FILES
        top = [_FOREIGN, "*token*.json", *VOCABULARIES, "spm.model", "spiece.model", *best]
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=top, ignore_patterns=["*/*"]))
        for files in others:
            if not has_weights(folder):
                kept = list(files)
                folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=kept, ignore_patterns=["*/*"]))
    except Exception as error:  # network errors have other classes in each version of the client
        reason = str(error).strip().splitlines()
        raise UserError(
            f"there is no folder {name}, and it could not be downloaded from the Hugging Face hub: "
            f"{reason[0] if reason else type(error).__name__}"
        ) from error
    if not (folder / _FOREIGN).is_file():
        raise UserError(f"{name} on the Hugging Face hub has no {_FOREIGN}: it is not a model of transformers")
    return folder


def load(source: str | Path) -> Model:
    """`open_model`, the model alone.

    Returns:
        ``model(input_ids=..., attention_mask=...)`` returns the logits of its head, or the hidden states without one.
    """
    return open_model(source).model
