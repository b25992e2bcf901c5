"""Opening of models: a run, a ``model/`` folder, a Hugging Face folder, or a hub name."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from homespun.config import Tree
from homespun.errors import UserError, first_line
from homespun.hf import check_source
from homespun.hf.builders import DROPPED_HEAD, NO_POOLER
from homespun.hf.engine import Table, UnusedTensor, Weights, from_hf, hf_name
from homespun.hf.families import FAMILIES
from homespun.hf.family import STORED, Family, read_labels
from homespun.hf.weights import SAFETENSORS_FILES, TORCH_FILES, has_weights, modernize_name, read_weights
from homespun.io.json import read_object, read_optional
from homespun.models.bundle import (
    ModelBundle,
    assign_weights,
    build_on_meta,
    build_uninitialized,
    check_fit,
    load_model,
    weights_of,
)
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.nn.devices import best_device
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabularies import VOCABULARIES

logger = logging.getLogger(__name__)

_FIT = "fit.json"  # settings of `homespun fit`
_NATIVE, _HUGGING_FACE = "homespun.json", "config.json"
_GENERATION = "generation_config.json"
_GENERATION_TOKENS = ("decoder_start_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id")
_WITHOUT_NETWORK = {  # `homespun.tasks.text_models`
    "linear.json": "a linear model, not a network",
    "crf.json": "a linear tagger, not a network",
    "extractive.json": "an extractive summarizer, not a network",
    "average.json": "an average of a network and a linear model, not a network alone",
}
_CLASSIFIERS = ("linear.json", "average.json")
_CLASSIFIER_USES = (
    "use it with predict, evaluate, serve or export --to onnx --out FOLDER (no file .onnx), or fit with "
    "--from CHECKPOINT for a network"
)


@dataclass(frozen=True)
class OpenedModel:
    """A model and a report on its files."""

    stored: ModelBundle  # model
    architecture: str | None  # class of transformers; None for a ``model/`` folder
    mapped: dict[str, tuple[str, ...]]  # names of tensors in the model, by the name in the files
    unused_tensors: tuple[UnusedTensor, ...]  # tensors of the files that are not in the model
    notes: tuple[str, ...]  # differences from the model in the files


def open_model(source: str | Path, *, head: str | None = STORED) -> ModelBundle:
    """Open the model in ``source`` with its tokenizer, labels and task, on the CPU, in evaluation mode.

    Args:
        source: as for `load`.
        head: kind of the head, which must be in the files; None: no head; default: the head of the config.

    Raises:
        UserError: there is no model, or it is not supported.
    """
    return _with_eos_token(open_any(source, head=head).stored)


def open_for_inference(source: str | Path, *, head: str | None = STORED) -> ModelBundle:
    """Open a model as `open_model` on the device of `best_device`."""
    stored = open_model(source, head=head)
    return replace(stored, model=stored.model.to(best_device()))


def open_for_training(source: str | Path) -> ModelBundle:
    """Open a model as `open_model` for further training; warns of differences from the model in the files."""
    opened = open_any(source)
    for note in opened.notes:
        logger.warning("%s: %s", source, note)
    return _with_eos_token(opened.stored)


def _with_eos_token(stored: ModelBundle) -> ModelBundle:
    """Set the end token to that of the tokenizer, if the config has none."""
    tokens, roles = stored.model.special_tokens, stored.tokenizer.roles
    if tokens.eos_token_id is None and ("sep" in roles or "eos" in roles):
        stored.model.special_tokens = replace(tokens, eos_token_id=stored.tokenizer.sep_id)
    return stored


def open_any(source: str | Path, *, head: str | None = STORED) -> OpenedModel:
    """Open the model in ``source`` on the CPU, in evaluation mode, with a report.

    Args:
        source: a run directory, a ``model/`` folder, a Hugging Face folder, or a name on the hub, which is downloaded
            once, if there is no folder of that name.
        head: ``kind`` of the head, which must be in the files; None for no head; default: that of the config.

    Raises:
        UserError: there is no model, or it is not supported.
    """
    folder = Path(source).expanduser()
    check_source(source)
    if not folder.exists():
        folder = download(str(source))
    for candidate in (folder, folder / "model"):
        if (candidate / _NATIVE).is_file():
            return _open_native(candidate, head)
    if (folder / _HUGGING_FACE).is_file():
        return open_huggingface(folder, head=head)
    for candidate, (name, title) in itertools.product((folder, folder / "model"), _WITHOUT_NETWORK.items()):
        if (candidate / name).is_file():
            use = _CLASSIFIER_USES if name in _CLASSIFIERS else "use it with predict, evaluate or serve"
            raise UserError(f"{folder} holds {title}; {_suggest_networks(folder, candidate) or use}")
    if (folder / _FIT).is_file():
        finished = [f", or give {path.parent}" for path in sorted(folder.glob("candidates/*/model"))]
        raise UserError(f"{folder} is a stopped fit; finish it with --resume{''.join(finished)}")
    if (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is a run without model/; finish it with --resume")
    if (folder / "state.json").is_file():
        run = folder.absolute().parent.parent
        raise UserError(f"{folder} is a checkpoint, which only --resume reads; give the finished run {run}")
    if has_weights(folder):
        raise UserError(f"{folder} has weights but no {_HUGGING_FACE}; add the config of the model")
    if (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder} holds a tokenizer and no model; give the folder of a model or a run")
    raise UserError(f"{folder} holds no model: neither model/, nor {_NATIVE}, nor {_HUGGING_FACE} of Hugging Face")


def _suggest_networks(run: Path, model: Path) -> str:
    """Name the networks among the candidates of a fit, or in its average; empty if it has none."""
    found = (run.glob(f"candidates/*/{folder}model/{_NATIVE}") for folder in ("", "run/"))
    candidates = [path.parents[1] for path in sorted(itertools.chain.from_iterable(found))]
    networks = candidates or [path.parent for path in sorted(model.glob(f"*/{_NATIVE}"))]
    return f"give {' or '.join(map(str, networks))}" if networks else ""


def _open_native(folder: Path, head: str | None) -> OpenedModel:
    stored = load_model(folder)
    names = list(weights_of(stored.model))
    kind = None if stored.config.head is None else stored.config.head.kind
    unused: tuple[UnusedTensor, ...] = ()
    if head is None and kind is not None:
        bare = Model(stored.model.backbone).eval()
        stored = ModelBundle(bare, stored.config.model_copy(update={"head": None}), stored.tokenizer, None, stored.task)
        backbone = weights_of(bare).keys()
        unused = tuple(UnusedTensor(name, DROPPED_HEAD) for name in names if name not in backbone)
        names = [name for name in names if name in backbone]
    elif head not in (STORED, kind):
        raise UserError(f"{folder} has {f'the head {kind!r}' if kind else 'no head'}, not {head!r}")
    classes = read_optional(folder / _HUGGING_FACE).get("architectures")  # of `homespun.hf.auto_classes`
    architecture = str(classes[0]) if isinstance(classes, list) and classes else None
    return OpenedModel(stored, architecture, {name: (name,) for name in names}, unused, ())


def open_huggingface(folder: str | Path, *, head: str | None = STORED) -> OpenedModel:
    """Open the model of a Hugging Face folder: ``config.json``, weights, tokenizer. Code in it is never run.

    Weights are memory-mapped: replace the files of a model in use, do not overwrite them.

    Raises:
        UserError: a file is missing, truncated or unsafe; no family has the model; a tensor is missing, unknown or of
            another shape; the tokenizer has more tokens than the model.
    """
    folder = Path(folder)
    path = folder / _HUGGING_FACE
    tree = read_object(path)
    family = _family_of(tree, source=str(path))
    tree, end_tokens = _with_generation_tokens(folder, tree)
    architecture, config = family.read_config(tree, source=str(path), head=head)
    stored = read_weights(folder)
    if inferred := family.infer_from_tensors(tree, stored):
        architecture, config = family.read_config(tree | inferred, source=str(path), head=head)
    table = family.table + architecture.table
    original_names = _modern_names(stored, family, source=str(folder))
    hf_weights = {name: stored[original] for name, original in original_names.items()}
    converted, unused_tensors = from_hf(table, hf_weights, config.backbone, source=str(folder))
    _check(table, converted, config, source=str(folder))
    # of several end tokens, the tokenizer names that of a document
    tokenizer = _load_tokenizer(folder, tree | ({"eos_token_id": None} if end_tokens else {}), config)
    model = build_uninitialized(config)
    assign_weights(model, converted, source=str(folder))
    if end_tokens:
        model.special_tokens = replace(model.special_tokens, eos_token_id=end_tokens)
    labels = read_labels(tree) if architecture.classifies else None
    # default columns, which the files do not name
    task = {"max_length": config.backbone.max_position_embeddings, "text": "text", "label": "label"}
    return OpenedModel(
        ModelBundle(model.eval(), config, tokenizer, labels, task),
        architecture.name,
        _map_names(table, converted, original_names, config),
        tuple(UnusedTensor(original_names[unused.name], unused.reason) for unused in unused_tensors),
        (
            # a pooler that transformers adds is not in the files
            *(note for note in architecture.notes(config.backbone) if note != NO_POOLER),
            *family.dropout_notes(architecture, config, tree),
            *_dtype_notes(converted),
            *_end_token_notes(end_tokens),
        ),
    )


def _with_generation_tokens(folder: Path, tree: Tree) -> tuple[Tree, tuple[int, ...]]:
    """Replace tokens by those of generation_config.json, which have priority in transformers too.

    Returns:
        Settings of config.json, and the end tokens if there are several.

    Raises:
        UserError: ``eos_token_id`` is an empty list, or not of token ids.
    """
    given = read_optional(folder / _GENERATION)
    tree = tree | {name: given[name] for name in _GENERATION_TOKENS if given.get(name) is not None}
    ends = tree.get("eos_token_id")
    if not isinstance(ends, list):
        return tree, ()
    if not ends or not all(type(token) is int and token >= 0 for token in ends):
        raise UserError(f"{folder}: eos_token_id={ends!r} must be a token id or a list of token ids")
    return tree | {"eos_token_id": ends[0]}, tuple(ends)


def _end_token_notes(tokens: tuple[int, ...]) -> tuple[str, ...]:
    if not tokens:
        return ()
    return (f"each of eos_token_id={[*tokens]} ends a text of this model, but only one of a saved or exported model",)


def _modern_names(stored: Weights, family: Family, *, source: str) -> dict[str, str]:
    """Names in the files by names of the family: those of files of the class without a head lack the prefix."""
    prefix = "" if any(modernize_name(name).startswith(family.prefix) for name in stored) else family.prefix
    original_names: dict[str, str] = {}
    for name in stored:
        modern = prefix + modernize_name(name)
        if modern in original_names:
            raise UserError(f"{source}: {original_names[modern]!r} and {name!r} are the same tensor; remove one")
        original_names[modern] = name
    return original_names


def _load_tokenizer(folder: Path, tree: Tree, config: ModelConfig) -> Tokenizer:
    """Load the tokenizer; that of a causal model has the tokens of config.json around a text."""
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size > config.backbone.vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model {config.backbone.vocab_size}; "
            f"add the tokenizer of this model"
        )
    return _with_config_end_tokens(tokenizer, tree) if config.backbone.causal else tokenizer


def _dtype_notes(weights: Weights) -> tuple[str, ...]:
    types = {str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()} - {"float32"}
    if not types:
        return ()
    return (f"weights are {' and '.join(sorted(types))} in the files, and become float32, also on export",)


def _with_config_end_tokens(tokenizer: Tokenizer, tree: Tree) -> Tokenizer:
    """Set the tokens for the start and the end of a text to those of config.json."""
    roles = tokenizer.roles
    for role, stand_in in (("cls", "bos"), ("sep", "eos")):
        token = tree.get(f"{stand_in}_token_id")
        if not isinstance(token, int) or not 0 <= token < tokenizer.vocab_size:
            continue
        # many configs have 50256 of GPT-2, which may be an ordinary token
        name = tokenizer.tokens[token] if tokenizer.special_mask[token] else ""
        if name and name != roles.get(role, roles.get(stand_in)):
            roles.pop(role, None)
            roles[stand_in] = name
    return tokenizer if roles == tokenizer.roles else Tokenizer(tokenizer.content, roles)


def _map_names(
    table: Table, converted: Weights, original_names: dict[str, str], config: ModelConfig
) -> dict[str, tuple[str, ...]]:
    """Names in the model by names in the files; ``original_names``: names in the files by modern names."""
    mapped: dict[str, tuple[str, ...]] = {}
    for target in converted:
        name = hf_name(table, target, config.backbone)
        # the files may have only a copy of a tied tensor
        names = [name, *(copy.name for copy in table.copies if copy.of == name)]
        original = next(original_names[name] for name in names if name in original_names)
        mapped[original] = (*mapped.get(original, ()), target)
    return mapped


def _family_of(tree: Tree, *, source: str) -> Family:
    if "auto_map" in tree:
        raise UserError(f"{source}: auto_map needs Python code of the model, which is never run; use another model")
    kind, classes = tree.get("model_type"), tree.get("architectures")
    families = [family for family in FAMILIES if family.model_type == kind]
    if not families:
        types = dict.fromkeys(family.model_type for family in FAMILIES)
        raise UserError(f"{source}: model_type={kind!r} is not supported, only {', '.join(types)}")
    # several families have one type: with a decoder, and without
    names = classes if isinstance(classes, list) else []
    return next((f for f in families if any(a.name in names for a in f.architectures)), families[0])


def _check(table: Table, weights: Weights, config: ModelConfig, *, source: str) -> None:
    """Raise `UserError` for tensors that do not fit the config, before memory is allocated."""
    if config.backbone.pad_token_id >= config.backbone.vocab_size:
        raise UserError(
            f"{source}: pad_token_id={config.backbone.pad_token_id} must be below vocab_size="
            f"{config.backbone.vocab_size}"
        )
    expected = weights_of(build_on_meta(config, weights, source=f"{source}: config.json"))
    check_fit(expected, weights, source=source, name_in_file=lambda name: hf_name(table, name, config.backbone))


def download(name: str) -> Path:
    """Download a model from the hub, or find it in the cache."""
    import huggingface_hub

    try:
        # only files that are read; torch files only if there are no others
        texts = [_NATIVE, _HUGGING_FACE, _GENERATION, "*token*.json", *VOCABULARIES, "spm.model", "spiece.model"]
        for files in ([*texts, *SAFETENSORS_FILES], [*TORCH_FILES]):
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=files, ignore_patterns=["*/*"]))
            if has_weights(folder):
                break
    except Exception as error:  # the classes of network errors depend on the version of the client
        raise UserError(
            f"there is no folder {name}, and it could not be downloaded from the Hugging Face hub "
            f"({first_line(error)}); check the name and the network, or give a folder"
        ) from error
    if not (folder / _HUGGING_FACE).is_file():
        raise UserError(f"{name} on the Hugging Face hub has no {_HUGGING_FACE}: it is not a model of transformers")
    return folder


def load(source: str | Path) -> Model:
    """Open the model in ``source`` as a torch module on the CPU, in evaluation mode, without its tokenizer.

    Args:
        source: a run, a ``model/`` folder, a Hugging Face folder, or a name on the hub.

    Returns:
        A model; ``model(input_ids=..., attention_mask=...)`` returns logits, or hidden states without a head.

    Example:
        ``hidden_states = load("runs/base").backbone(input_ids, attention_mask=attention_mask)``

    Raises:
        UserError: there is no model, or it is not supported.
    """
    return open_model(source).model
