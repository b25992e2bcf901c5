"""Transfer of weights to a modified model: longer positions, another attention, other layers, new tokens, a student.

`TransferReport` lists the tensors that are copied, changed or newly initialised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from homespun.attention import AttentionConfig
from homespun.config import Config, validate
from homespun.errors import UserError, nearest, quantity
from homespun.models.bundle import ModelBundle, weights_of
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import StackConfig
from homespun.models.model import Model
from homespun.models.recurrent import RecurrentConfig
from homespun.text.vocabulary_extension import AddedTokens

CHANGEABLE = (
    "max_position_embeddings",
    "attention",
    "num_hidden_layers",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "feed_forward_chunk",
    "seed",
)
"""Fields of a checkpoint's backbone that can change."""

# Global projections are copied from local ones (Beltagy et al. 2020, section 5), shared queries and keys from queries
# and vice versa.
_SUBSTITUTES = {
    "query_global": "query",
    "key_global": "key",
    "value_global": "value",
    "query_key": "query",
    "query": "query_key",
    "key": "query_key",
}
_WORDS = re.compile(
    r"backbone\.((en|de)coder\.)?embeddings\.words\.weight|head\.(softmax\.)?words\.weight|head\.(softmax\.)?bias"
)
_TAIL = re.compile(r"head\.softmax\.network\.tail\.\d+\.1\.weight")  # adaptive softmax
_RELATIVE = re.compile(r".+\.attention\.sublayer\.(kernel\.bias\.embedding|relative(\.embedding)?)\.weight")
_CHARACTER_TABLE = "backbone.embeddings.characters"
_LEARNED_POSITIONS = ("embeddings.positions.embedding.weight", "embeddings.late.embedding.weight")
_LAYER = re.compile(r"^(backbone\.(?:(?:en|de)coder\.)?layers\.)(\d+)(\..+)$")


@dataclass(frozen=True)
class TransferReport:
    """Origin of each tensor of a model, by name.

    Attributes:
        copied: copied from the tensor of the same name.
        changed: derived from the checkpoint, with a description.
        initialized: newly initialised.
        unused: tensors of the checkpoint without use in the new model.
        layers: source layer of each layer, those of the encoder first.
    """

    copied: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)
    initialized: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()


def extend_context(
    stored: ModelBundle, *, max_position_embeddings: int | None = None, attention: AttentionConfig | None = None
) -> ModelBundle:
    """Extend a model to longer texts, as in Longformer and LED (Beltagy et al. 2020, section 5).

    Learned positions are repeated, and the projections of another attention are kept. The result needs further
    training. A smaller length truncates the positions.

    Args:
        stored: from `homespun.hf.open.open_model`.
        max_position_embeddings: maximum sequence length; None: unchanged.
        attention: config of the new attention; None: unchanged.

    Raises:
        UserError: see `change_backbone` and `transfer_weights`.
    """
    changes = {"max_position_embeddings": max_position_embeddings, "attention": attention}
    return transfer(stored, {name: value for name, value in changes.items() if value is not None})[0]


def transfer(stored: ModelBundle, changes: Mapping[str, object]) -> tuple[ModelBundle, TransferReport]:
    """Change the backbone config and transfer the weights.

    Raises:
        UserError: see `change_backbone` and `transfer_weights`.
    """
    backbone = change_backbone(stored.config.one_text("extending a checkpoint"), changes)
    config = stored.config.model_copy(update={"backbone": backbone})
    model = _build_seeded(config, backbone.seed)
    report = transfer_weights(stored, model, config)
    task = dict(stored.task)
    if isinstance(task.get("max_length"), int):
        task["max_length"] = min(task["max_length"], backbone.max_position_embeddings)
    return replace(stored, model=model, config=config, task=task), report


def _build_seeded(config: ModelConfig, seed: int) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return config.build().eval()


def change_stacks(backbone: BackboneConfig, changes: Mapping[str, object]) -> BackboneConfig:
    """Apply `change_backbone` to one stack, or to both with ``{"encoder": {...}, "decoder": {...}}``.

    Raises:
        UserError: see `change_backbone`; or ``changes`` does not name a stack.
    """
    if not backbone.has_decoder:
        return change_backbone(backbone, changes)
    stacks: dict[str, StackConfig] = {"encoder": backbone.encoder, "decoder": backbone.decoder}
    for name, stack_changes in changes.items():
        if name not in stacks or not isinstance(stack_changes, Mapping):
            raise UserError(
                f"model.{name}={stack_changes} does not name a stack of the encoder-decoder; set "
                f"model.encoder.KEY=VALUE or model.decoder.KEY=VALUE"
            )
        stacks[name] = change_backbone(stacks[name], stack_changes)
    return backbone.model_copy(update=stacks | {"copy_heads": False})  # the weights come from the checkpoint


def change_backbone(
    backbone: StackConfig, changes: Mapping[str, object], layers: Sequence[int] | None = None
) -> StackConfig:
    """Return the config with ``changes``, which are merged into an attention of the same kind.

    Attention and positions of a layer are those of its source layer in ``layers``; None: `layers_of`.

    Raises:
        UserError: a field that the weights determine, an invalid value, or no positions of any kind.
    """
    if wrong := [name for name in changes if name not in CHANGEABLE]:
        changeable = f"; these can change: {', '.join(CHANGEABLE)}"
        hint = changeable if wrong[0] in EncoderConfig.model_fields else nearest(wrong[0], CHANGEABLE)
        raise UserError(f"model.{wrong[0]} cannot change, since the weights of the checkpoint determine it{hint}")
    if backbone.is_recurrent:
        if wrong := [name for name in changes if name not in RecurrentConfig.model_fields or name == "attention"]:
            raise UserError(f"model.{wrong[0]} is for attention layers, but this checkpoint is recurrent; remove it")
        return validate(RecurrentConfig, backbone.model_dump() | dict(changes), source="model")
    tree = _of_layers(backbone, changes.get("num_hidden_layers"), layers).model_dump()
    fields = {name: value.model_dump() if isinstance(value, Config) else value for name, value in changes.items()}
    attention = fields.get("attention")
    if isinstance(attention, dict) and attention.get("kind", tree["attention"]["kind"]) == tree["attention"]["kind"]:
        fields["attention"] = tree["attention"] | attention
    if attention is not None:
        fields["neighbour_heads"] = 0  # queries and keys come from the checkpoint
    if backbone.positions.kind == "axial" and isinstance(longest := fields.get("max_position_embeddings"), int):
        rows, columns = backbone.positions.shape
        tree["positions"] = tree["positions"] | {"shape": (max(rows, -(-longest // columns)), columns)}
    changed = validate(EncoderConfig, tree | fields, source="model")
    if changed.max_position_embeddings > backbone.max_position_embeddings and not _has_positions(changed):
        raise UserError(
            f"model.max_position_embeddings={changed.max_position_embeddings}: a model without positions "
            f"(positions none, attention {changed.attention.kind}) has nothing to extend; keep "
            f"max_position_embeddings={backbone.max_position_embeddings}, or set model.attention to one with relative "
            f"positions, such as {{kind: relative_bias}}"
        )
    if _has_positions(backbone) and not _has_positions(changed):
        raise UserError(
            f"model.attention={changed.attention.kind} removes the only positions of the model (positions none, "
            f"attention {backbone.attention.kind}); keep that attention, or set model.attention to another one with "
            f"relative positions, such as {{kind: relative_bias}}"
        )
    return changed


def _of_layers(backbone: EncoderConfig, count: object, layers: Sequence[int] | None) -> EncoderConfig:
    before = backbone.num_hidden_layers
    if layers is None:  # an invalid count is refused by validation
        layers = layers_of(before, count) if isinstance(count, int) and count > 0 else range(before)
    if backbone.num_hidden_groups or list(layers) == list(range(before)):
        return backbone
    changed = {"attention": backbone.attention.of_layers(layers), "positions": backbone.positions.of_layers(layers)}
    return backbone.model_copy(update=changed)


def _has_positions(backbone: EncoderConfig) -> bool:
    return backbone.positions.is_positional or backbone.attention.is_positional


def layers_of(layers: int, count: int) -> tuple[int, ...]:
    """Choose source layers for ``count`` layers, evenly spaced (Shleifer and Rush 2020, 3.1) or repeated."""
    if count >= layers:
        return tuple(number * layers // count for number in range(count))
    return tuple(round(number * (layers - 1) / max(1, count - 1)) for number in range(count))


def transfer_weights(
    stored: ModelBundle,
    model: Model,
    config: ModelConfig,
    *,
    words: AddedTokens | None = None,
    layers: Sequence[int] | None = None,
) -> TransferReport:
    """Transfer the weights of ``stored`` to a new ``model``, with the head if it is of the same kind.

    Args:
        stored: checkpoint.
        model: new model of ``config``, changed in place.
        config: config of ``model``.
        words: added tokens, initialised by the mean of their pieces or of all tokens.
        layers: source layer of each layer; None: `layers_of`.

    Raises:
        UserError: different numbers of stacks, or a tensor that cannot be extended.
    """
    stacks = _pairs_of_stacks(stored.config, config)
    kinds = [None if c.head is None else c.head.kind for c in (stored.config, config)]
    source = {
        name: tensor
        for name, tensor in stored.model.state_dict(keep_vars=True).items()
        if kinds[0] == kinds[1] or not name.startswith("head.")
    }
    chosen = {
        prefix: tuple(layers or layers_of(before.num_hidden_layers, after.num_hidden_layers))
        for prefix, (before, after) in stacks.items()
    }
    copied, changed, initialized = [], {}, []
    used: set[int] = set()  # ids of tensors, which may have several names
    for name, tensor in weights_of(model).items():
        prefix = next((prefix for prefix in stacks if name.startswith(prefix)), next(iter(stacks)))
        origin = _origin(name, source, chosen[prefix], *stacks[prefix])
        if origin is not None:
            used.add(id(source[origin]))
        description = None if origin is None else _copy(name, source[origin], tensor, *stacks[prefix], words)
        if description is None:
            initialized.append(name)
        elif notes := [note for note in ("" if origin == name else f"from {origin}", description) if note]:
            changed[name] = ", ".join(notes)
        else:
            copied.append(name)
    unused = [name for name in weights_of(stored.model) if name not in source or id(source[name]) not in used]
    return TransferReport(tuple(copied), changed, tuple(initialized), tuple(unused), tuple(chain(*chosen.values())))


def _pairs_of_stacks(before: ModelConfig, after: ModelConfig) -> dict[str, tuple[StackConfig, StackConfig]]:
    """Return the configs of the stacks of both models, by the prefix of their tensors."""
    if before.backbone.has_decoder and after.backbone.has_decoder:
        stacks = zip(before.backbone.stacks, after.backbone.stacks, strict=True)
        return dict(zip(("backbone.encoder.", "backbone.decoder."), stacks, strict=True))
    use = "training from a checkpoint of one stack"
    return {"backbone.": (before.one_text(use), after.one_text(use))}


def _origin(
    name: str, source: Mapping[str, Tensor], layers: tuple[int, ...], before: StackConfig, after: StackConfig
) -> str | None:
    """Return the tensor of the checkpoint from which a tensor is derived, or None."""
    if ".kernel." in name and before.attention.kind != after.attention.kind:
        return None  # a parameter of another kernel
    if match := _LAYER.match(name):
        name = f"{match[1]}{layers[int(match[2])]}{match[3]}"
    if name in source:
        return name
    *path, part, kind = name.split(".")
    other = ".".join([*path, _SUBSTITUTES.get(part, part), kind])
    return other if other in source else None


@torch.no_grad()
def _copy(
    name: str, old: Tensor, tensor: Tensor, before: StackConfig, after: StackConfig, words: AddedTokens | None
) -> str | None:
    """Copy ``old`` into ``tensor``; return a description of changes, or None if its shape does not fit."""
    if name == _CHARACTER_TABLE and len(old) < len(tensor):
        tensor[: len(old)].copy_(old)
        return f"{quantity(len(tensor) - len(old), 'new row')}, from the characters of the new words"
    new, description = _resized(name, old, tensor.shape, before, words)
    if new.shape != tensor.shape:
        if before.attention != after.attention:
            return None
        setting = before.attention.fixed_length_setting(before.max_position_embeddings)
        raise UserError(
            f"{name} has shape {tuple(new.shape)} and cannot be extended to {tuple(tensor.shape)}; keep "
            f"max_position_embeddings={before.max_position_embeddings}" + (f" or set {setting}" if setting else "")
        )
    tensor.copy_(new)
    if _RELATIVE.fullmatch(name) and after.max_position_embeddings > before.max_position_embeddings:
        return f"as it was: relative positions extend to {after.max_position_embeddings} tokens"
    return description


def _resized(
    name: str, tensor: Tensor, shape: torch.Size, before: StackConfig, words: AddedTokens | None
) -> tuple[Tensor, str]:
    """Return the tensor in its new shape and a description, or the unchanged tensor if it cannot be resized."""
    if _WORDS.fullmatch(name) and words is not None and words.pieces and len(tensor) == before.vocab_size:
        return _with_words(tensor, shape[0], words), _describe_new_rows(words)
    if tensor.shape == shape:
        return tensor, ""
    if _TAIL.fullmatch(name) and words is not None and tensor.shape[1:] == shape[1:] and len(tensor) < shape[0]:
        rows = tensor.double().mean(0).to(tensor.dtype).expand(shape[0] - len(tensor), -1)
        return torch.cat([tensor, rows]), f"{quantity(len(rows), 'new row')}, each the mean of the rarest words"
    if name.endswith(_LEARNED_POSITIONS):
        offset = before.positions.rows_before
        new = torch.cat([tensor[:offset], _repeated(tensor[offset:], shape[0] - offset)])
        return new, _describe_resize(len(tensor) - offset, shape[0] - offset, "positions")
    if name.endswith("embeddings.positions.row.weight"):
        return _repeated(tensor, shape[0]), _describe_resize(len(tensor), shape[0], "rows")
    if name.endswith("_projection.weight") and ".kernel." in name and tensor.shape[:-1] == shape[:-1]:
        new = _repeated(tensor.transpose(0, -1), shape[-1]).transpose(0, -1)
        return new, _describe_resize(tensor.shape[-1], shape[-1], "positions")
    return tensor, ""


def _repeated(rows: Tensor, count: int) -> Tensor:
    """Return ``count`` rows that repeat ``rows``."""
    return rows[torch.arange(count, device=rows.device) % len(rows)]


def _describe_resize(before: int, after: int, what: str) -> str:
    return f"{before} {what} repeated to {after}" if after > before else f"truncated to {after} {what}"


def _with_words(rows: Tensor, count: int, words: AddedTokens) -> Tensor:
    extended = rows.new_zeros((count, *rows.shape[1:]))
    extended[: len(rows)] = rows
    for number, pieces in enumerate(words.pieces, start=words.first):
        sources = rows[list(pieces)] if pieces else rows[: words.first]
        extended[number] = sources.double().mean(0).to(rows.dtype)
    return extended


def _describe_new_rows(words: AddedTokens) -> str:
    alone = sum(1 for pieces in words.pieces if not pieces)
    notes = f"{quantity(len(words.pieces), 'new row')}, each the mean of its pieces"
    return f"{notes}; {alone} without pieces, each the mean of all rows" if alone else notes


def build_student(
    teacher: ModelBundle, *, layers: Sequence[int] | None = None, changes: Mapping[str, object] | None = None
) -> tuple[ModelBundle, TransferReport]:
    """Build a student from layers of a teacher, without segments and pooler (DistilBERT, Sanh et al. 2019, section 2).

    The student keeps only a masked LM head. The embedding of the first segment is added to learned positions.

    Args:
        teacher: model of one stack.
        layers: layers of the teacher; None: `alternate_layers`.
        changes: changes to the backbone, see `CHANGEABLE`.

    Raises:
        UserError: an encoder-decoder, an unknown layer, or an invalid change.
    """
    before = teacher.config.one_stack("a student")
    chosen = alternate_layers(before.num_hidden_layers) if layers is None else tuple(layers)
    if not chosen or any(not 0 <= number < before.num_hidden_layers for number in chosen):
        raise UserError(
            f"--layers {','.join(map(str, chosen))} must be layers of the teacher, 0 to {before.num_hidden_layers - 1}"
        )
    changes = dict(changes or {}) | {"num_hidden_layers": len(chosen)}
    backbone = change_backbone(before, changes, chosen).model_copy(update={"type_vocab_size": 0})
    head = teacher.config.head
    head = head if head is not None and head.kept_by_student else None
    config = teacher.config.model_copy(update={"backbone": backbone, "head": head})
    model = _build_seeded(config, backbone.seed)
    report = transfer_weights(teacher, model, config, layers=chosen)
    _add_first_segment(teacher.model, model)
    return ModelBundle(model, config, teacher.tokenizer), report


def alternate_layers(layers: int) -> tuple[int, ...]:
    """Choose half of the layers, with first and last: 0, 2, 4, 7, 9, 11 of twelve, as in DistilBERT."""
    return layers_of(layers, max(1, layers // 2))


@torch.no_grad()
def _add_first_segment(teacher: Model, student: Model) -> None:
    segments = teacher.backbone.embeddings.segments
    positions = dict(student.backbone.embeddings.positions.named_parameters()).get("embedding.weight")
    if segments is not None and student.backbone.embeddings.segments is None and positions is not None:
        positions.add_(segments.weight[0])
