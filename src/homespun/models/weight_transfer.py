"""A checkpoint in another shape: longer positions, another attention, other layers, new words, or a student.

Each tensor of the new model is copied, derived or fresh; `TransferReport` lists which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from homespun.attention import AttentionConfig
from homespun.attention.disentangled import DisentangledAttentionConfig
from homespun.config import Config, validate
from homespun.errors import UserError, nearest
from homespun.models.bundle import ModelBundle, weights_of
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import StackConfig
from homespun.models.heads import MaskedLMHeadConfig
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
"""What of a checkpoint's backbone may be changed; its widths are what its weights are."""

# Longformer's global projections begin as the local ones (Beltagy et al. 2020, section 5), shared queries and keys as
# the queries, and the other way round
_INSTEAD = {
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
_RAREST = re.compile(r"head\.softmax\.network\.tail\.\d+\.1\.weight")  # of an adaptive softmax
_RELATIVE = re.compile(r".+\.attention\.sublayer\.(kernel\.bias\.embedding|relative(\.embedding)?)\.weight")
_CHARACTER_TABLE = "backbone.embeddings.characters"
_LEARNED = ("embeddings.positions.embedding.weight", "embeddings.late.embedding.weight")  # late: DeBERTa's
_LAYER = re.compile(r"^(backbone\.(?:(?:en|de)coder\.)?layers\.)(\d+)(\..+)$")


@dataclass(frozen=True)
class TransferReport:
    """Origin of each tensor of a model, by name.

    Attributes:
        copied: from the checkpoint, under the same name.
        changed: derived from the checkpoint, and how.
        initialized: newly drawn or zero.
        unused: tensors of the checkpoint that the new model does not use.
        layers: source layer of each layer; of two stacks the encoder's, then the decoder's.
    """

    copied: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)
    initialized: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()


def extend_context(
    stored: ModelBundle, *, max_position_embeddings: int | None = None, attention: AttentionConfig | None = None
) -> ModelBundle:
    """The model for longer texts, as Longformer and LED were made: learned positions are copied over and over, and
    another attention starts with the old projections (Beltagy et al. 2020, section 5).

    Train it afterwards. With the same length and attention it is the same model; a smaller length cuts the positions.

    Args:
        stored: from `homespun.hf.open.open_model`.
        max_position_embeddings: longest text in tokens; by default unchanged.
        attention: by default unchanged.

    Raises:
        UserError: see `change_backbone` and `transfer_weights`.
    """
    given = {"max_position_embeddings": max_position_embeddings, "attention": attention}
    return transfer(stored, {name: value for name, value in given.items() if value is not None})[0]


def transfer(stored: ModelBundle, changes: Mapping[str, object]) -> tuple[ModelBundle, TransferReport]:
    """The model with ``changes`` to its backbone's config, and the origin of its tensors.

    Raises:
        UserError: see `change_backbone` and `transfer_weights`.
    """
    backbone = change_backbone(stored.config.one_text("stretching a checkpoint"), changes)
    config = stored.config.model_copy(update={"backbone": backbone})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(backbone.seed)
        model = config.build().eval()
    origins = transfer_weights(stored, model, config)
    task = dict(stored.task)
    if isinstance(task.get("max_length"), int):
        task["max_length"] = min(task["max_length"], backbone.max_position_embeddings)
    return replace(stored, model=model, config=config, task=task), origins


def change_stacks(backbone: BackboneConfig, changes: Mapping[str, object]) -> BackboneConfig:
    """`change_backbone` of one stack, or of each: ``{"encoder": {...}, "decoder": {...}}``.

    Raises:
        UserError: see `change_backbone`; or one stack of two is not named.
    """
    if not backbone.has_decoder:
        return change_backbone(backbone, changes)
    stacks: dict[str, StackConfig] = {"encoder": backbone.encoder, "decoder": backbone.decoder}
    for name, of_stack in changes.items():
        if name not in stacks or not isinstance(of_stack, Mapping):
            raise UserError(
                f"model.{name}={of_stack} says nothing of which stack, and this checkpoint has two; set "
                f"model.encoder.KEY=VALUE or model.decoder.KEY=VALUE"
            )
        stacks[name] = change_backbone(stacks[name], of_stack)
    return backbone.model_copy(update=stacks)


def change_backbone(backbone: StackConfig, changes: Mapping[str, object]) -> StackConfig:
    """The config with ``changes``. Settings of an attention of the same kind are changed singly.

    Raises:
        UserError: a setting that the weights decide, an invalid value, or an attention that would remove all positions.
    """
    if wrong := [name for name in changes if name not in CHANGEABLE]:
        known = nearest(wrong[0], CHANGEABLE) if wrong[0] not in EncoderConfig.model_fields else ""
        raise UserError(
            f"model.{wrong[0]} cannot be set beside a checkpoint, whose weights decide it{known}; "
            f"these can: {', '.join(CHANGEABLE)}"
        )
    if backbone.is_recurrent:
        if wrong := [name for name in changes if name not in RecurrentConfig.model_fields or name == "attention"]:
            raise UserError(
                f"model.{wrong[0]} is of layers of attention, and this checkpoint is recurrent; leave it out"
            )
        return validate(RecurrentConfig, backbone.model_dump() | dict(changes), source="model")
    tree = backbone.model_dump()
    given = {name: value.model_dump() if isinstance(value, Config) else value for name, value in changes.items()}
    attention = given.get("attention")
    if isinstance(attention, dict) and attention.get("kind", tree["attention"]["kind"]) == tree["attention"]["kind"]:
        given["attention"] = tree["attention"] | attention
    if attention is not None:
        given["neighbour_heads"] = 0  # queries and keys come from the checkpoint, and another attention may have none
    if backbone.positions.kind == "axial" and isinstance(longest := given.get("max_position_embeddings"), int):
        rows, columns = backbone.positions.shape
        tree["positions"] = tree["positions"] | {"shape": (max(rows, -(-longest // columns)), columns)}
    changed = validate(EncoderConfig, tree | given, source="model")
    if changed.max_position_embeddings > backbone.max_position_embeddings and not _has_positions(changed):
        raise UserError(
            f"model.max_position_embeddings={changed.max_position_embeddings}: a model without positions of any kind "
            f"(positions none, attention {changed.attention.kind}) has nothing to stretch; keep "
            f"max_position_embeddings={backbone.max_position_embeddings}, or set model.attention to one of relative "
            f"positions, such as {{kind: relative_bias}}"
        )
    if _has_positions(backbone) and not _has_positions(changed):
        raise UserError(
            f"model.attention={changed.attention.kind} takes from the model what tells it where a token stands "
            f"(positions none, attention {backbone.attention.kind}); keep that attention, or set model.attention to "
            f"another of relative positions, such as {{kind: relative_bias}}"
        )
    return changed


def _has_positions(backbone: EncoderConfig) -> bool:
    """True if the model has any position information."""
    return backbone.positions.is_positional or backbone.attention.is_positional


def layers_of(layers: int, count: int) -> tuple[int, ...]:
    """Source layer of each of ``count`` layers: evenly spaced if fewer (Shleifer and Rush 2020, section 3.1), repeated
    if more.
    """
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
    """Fill ``model``, just built from ``config``, from ``stored``; the head too, if it is of the same kind.

    Args:
        words: new words; each starts as the mean of its pieces, or of all old words.
        layers: source layer of each layer; by default `layers_of`.

    Raises:
        UserError: one stack and two; another length that a tensor cannot follow.
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
    copied, changed, fresh = [], {}, []
    used: set[int] = set()  # by identity: one tensor can have several names
    with torch.no_grad():
        for name, tensor in weights_of(model).items():
            prefix = next((prefix for prefix in stacks if name.startswith(prefix)), next(iter(stacks)))
            before, after = stacks[prefix]
            origin = _origin(name, source, chosen[prefix])
            if origin is not None and ".kernel." in name and before.attention.kind != after.attention.kind:
                origin = None  # of another kernel, whatever its name
            if origin is None:
                fresh.append(name)
                continue
            used.add(id(source[origin]))
            if name == _CHARACTER_TABLE and len(source[origin]) < len(tensor):
                tensor[: len(source[origin])].copy_(source[origin])
                changed[name] = f"{len(tensor) - len(source[origin])} new rows, as the new words are spelled"
                continue
            made, how = _fitted(name, source[origin], tensor.shape, before, words)
            if made.shape != tensor.shape:
                if before.attention == after.attention:
                    raise UserError(
                        f"{name} has shape {tuple(made.shape)} and would need {tuple(tensor.shape)}: nothing is known "
                        f"to make it of; keep max_position_embeddings={before.max_position_embeddings}, or set "
                        f"{_staying(before)}"
                    )
                fresh.append(name)
                continue
            tensor.copy_(made)
            if _RELATIVE.fullmatch(name) and after.max_position_embeddings > before.max_position_embeddings:
                how = f"as it was: relative positions simply go on to {after.max_position_embeddings} tokens"
            notes = [*([] if origin == name else [f"from {origin}"]), *([how] if how else [])]
            if notes:
                changed[name] = ", ".join(notes)
            else:
                copied.append(name)
    unused = [name for name in weights_of(stored.model) if name not in source or id(source[name]) not in used]
    return TransferReport(tuple(copied), changed, tuple(fresh), tuple(unused), tuple(chain(*chosen.values())))


def _pairs_of_stacks(before: ModelConfig, after: ModelConfig) -> dict[str, tuple[StackConfig, StackConfig]]:
    """The stacks of both models, by the prefix of the names of their tensors."""
    if before.backbone.has_decoder and after.backbone.has_decoder:
        stacks = zip(before.backbone.stacks, after.backbone.stacks, strict=True)
        return dict(zip(("backbone.encoder.", "backbone.decoder."), stacks, strict=True))
    use = "going on from a checkpoint of one stack"
    return {"backbone.": (before.one_text(use), after.one_text(use))}


def _origin(name: str, source: Mapping[str, Tensor], layers: tuple[int, ...]) -> str | None:
    """Source name of a tensor, or None."""
    if match := _LAYER.match(name):
        name = f"{match[1]}{layers[int(match[2])]}{match[3]}"
    if name in source:
        return name
    *path, part, kind = name.split(".")
    other = ".".join([*path, _INSTEAD.get(part, part), kind])
    return other if other in source else None


def _fitted(
    name: str,
    tensor: Tensor,
    shape: torch.Size,
    before: StackConfig,
    words: AddedTokens | None,
) -> tuple[Tensor, str]:
    """The tensor in its new shape if possible, and how; otherwise unchanged."""
    if _WORDS.fullmatch(name) and words is not None and words.pieces and len(tensor) == before.vocab_size:
        return _with_words(tensor, shape[0], words), _describe_new_rows(words)
    if tensor.shape == shape:
        return tensor, ""
    if _RAREST.fullmatch(name) and words is not None and tensor.shape[1:] == shape[1:] and len(tensor) < shape[0]:
        rows = tensor.double().mean(0).to(tensor.dtype).expand(shape[0] - len(tensor), -1)
        return torch.cat([tensor, rows]), f"{len(rows)} new rows, each the mean of the rarest words"
    if name.endswith(_LEARNED):
        offset = before.positions.rows_before
        made = torch.cat([tensor[:offset], _repeated(tensor[offset:], shape[0] - offset)])
        return made, _describe_resize(len(tensor) - offset, shape[0] - offset, "positions")
    if name.endswith("embeddings.positions.row.weight"):
        return _repeated(tensor, shape[0]), _describe_resize(len(tensor), shape[0], "rows")
    if name.endswith("_projection.weight") and ".kernel." in name and tensor.shape[:-1] == shape[:-1]:
        made = _repeated(tensor.transpose(0, -1), shape[-1]).transpose(0, -1)
        return made, _describe_resize(tensor.shape[-1], shape[-1], "places")
    return tensor, ""


def _staying(before: StackConfig) -> str:
    """Attention setting that must stay for a tensor to keep its shape."""
    if not isinstance(before.attention, DisentangledAttentionConfig):
        return "model.attention so that it stays"
    furthest = before.attention.max_relative_positions or before.max_position_embeddings
    return f"model.attention.max_relative_positions={furthest}, so that relative positions beyond are as the furthest"


def _repeated(rows: Tensor, count: int) -> Tensor:
    """The rows over and over, until there are ``count``."""
    return rows[torch.arange(count, device=rows.device) % len(rows)]


def _describe_resize(before: int, after: int, what: str) -> str:
    return f"{before} {what} copied over and over to {after}" if after > before else f"cut to {after} {what}"


def _with_words(rows: Tensor, count: int, words: AddedTokens) -> Tensor:
    made = rows.new_zeros((count, *rows.shape[1:]))
    made[: len(rows)] = rows
    for number, pieces in enumerate(words.pieces, start=words.first):
        begins = rows[list(pieces)] if pieces else rows[: words.first]
        made[number] = begins.double().mean(0).to(rows.dtype)
    return made


def _describe_new_rows(words: AddedTokens) -> str:
    alone = sum(1 for pieces in words.pieces if not pieces)
    notes = f"{len(words.pieces)} new rows, each the mean of its pieces"
    return f"{notes}; {alone} without any, each the mean of all rows" if alone else notes


def build_student(
    teacher: ModelBundle, *, layers: Sequence[int] | None = None, changes: Mapping[str, object] | None = None
) -> tuple[ModelBundle, TransferReport]:
    """A student of a teacher, and the origin of its tensors (Sanh et al. 2019, section 2): no segments, no pooler.

    It keeps a masked language model's head and no other. The vector of the first segment is added to learned positions.

    Args:
        teacher: of one stack.
        layers: of the teacher, which become the student's; by default `alternate_layers`.
        changes: to the backbone, see `CHANGEABLE`.

    Raises:
        UserError: two stacks, an unknown layer, changes that cannot be made.
    """
    before = teacher.config.one_stack("a student")
    chosen = alternate_layers(before.num_hidden_layers) if layers is None else tuple(layers)
    if not chosen or any(not 0 <= number < before.num_hidden_layers for number in chosen):
        raise UserError(
            f"--layers {','.join(map(str, chosen))}: the teacher's {before.num_hidden_layers} layers are 0 to "
            f"{before.num_hidden_layers - 1}; name some of them"
        )
    given = dict(changes or {}) | {"num_hidden_layers": len(chosen)}
    backbone = change_backbone(before, given).model_copy(update={"type_vocab_size": 0})
    head = teacher.config.head if isinstance(teacher.config.head, MaskedLMHeadConfig) else None
    config = teacher.config.model_copy(update={"backbone": backbone, "head": head})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(backbone.seed)
        model = config.build().eval()
    origins = transfer_weights(teacher, model, config, layers=chosen)
    _take_first_segment(teacher.model, model)
    return ModelBundle(model, config, teacher.tokenizer), origins


def alternate_layers(layers: int) -> tuple[int, ...]:
    """Half of the layers, first and last among them: of twelve 0, 2, 4, 7, 9 and 11, as in the released code."""
    return layers_of(layers, max(1, layers // 2))


@torch.no_grad()
def _take_first_segment(teacher: Model, student: Model) -> None:
    segments = teacher.backbone.embeddings.segments
    positions = dict(student.backbone.embeddings.positions.named_parameters()).get("embedding.weight")
    if segments is not None and student.backbone.embeddings.segments is None and positions is not None:
        positions.add_(segments.weight[0])
