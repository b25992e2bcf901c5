"""Longformer (Beltagy et al. 2020): RoBERTa under windows, with tokens that see all through projections of their own.

Their classes differ in which tokens those are by themselves: the first one where a text is classified, those of the
question where one is answered, none elsewhere. Here the first one is, and all others are named by the caller, in
``global_attention_mask``, as they can be there.
"""

from __future__ import annotations

from collections.abc import Callable

from homespun.attention import AttentionConfig
from homespun.attention.sparse import GlobalConfig, SparseAttentionConfig, WindowConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import Rule, Table
from homespun.hf.families.bert import (
    DEFAULTS,
    drop_pooler,
    encoder_table,
    gelu_masked_lm,
    pooler,
    pooler_notes,
    question_answering,
    token_classification,
)
from homespun.hf.families.roberta import (
    classification_table,
    count_from_padding,
    masked_lm_table,
    pooled_classification,
)
from homespun.hf.family import Architecture, Family, headless
from homespun.models.encoder import EncoderConfig

_LAYER, _OWN = "longformer.encoder.layer.{i}.attention.self", "backbone.layers.{i}.attention.sublayer"
_FIRST = frozenset({"backbone.attention.everywhere.first"})


def read_windows(settings: Tree, *, first: int) -> Tree:
    """The attention that ``attention_window`` describes, with so many ``first`` tokens that see all by themselves.

    Raises:
        UserError: windows that are no even numbers.
    """
    given = settings["attention_window"]
    windows = given if isinstance(given, list) else [given]
    if not windows or not all(isinstance(window, int) and window > 0 and window % 2 == 0 for window in windows):
        raise UserError(f"attention_window={given!r} must be even numbers above zero, one or one a layer")
    radius = [window // 2 for window in windows] if isinstance(given, list) else given // 2
    return {
        "kind": "sparse",
        "patterns": [{"kind": "window", "radius": radius}],
        "everywhere": {"first": first, "projections": True},
    }


def write_windows(attention: AttentionConfig) -> Tree:
    """``attention_window`` of an attention that has one."""
    match attention:
        case SparseAttentionConfig(patterns=[WindowConfig(radius=list(radius))]):
            return {"attention_window": [2 * each for each in radius]}
        case SparseAttentionConfig(patterns=[WindowConfig(radius=int(radius))]):
            return {"attention_window": 2 * radius}
    return {}


def _read(settings: Tree, kind: str | None) -> Tree:
    return {"attention": read_windows(settings, first=1 if kind == "pooled" else 0)}


def global_token_notes(attention: AttentionConfig, own: int) -> tuple[str, ...]:
    """What is to be said where a model makes other tokens global by itself than the ``own`` first ones of its class."""
    match attention:
        case SparseAttentionConfig(everywhere=GlobalConfig(first=first)) if first != own:
            mask = f"with 1 at the first {first} and 0 at the others" if first else "that is all 0"
            return (
                f"of the tokens of a text transformers makes {_describe_count(own)} global by itself and this model "
                f"{_describe_count(first)}: give it a global_attention_mask {mask}",
            )
    return ()


def _describe_count(first: int) -> str:
    return f"the first {first}" if first else "none"


def _note_global_tokens(own: int) -> Callable[[EncoderConfig], tuple[str, ...]]:
    return lambda backbone: global_token_notes(backbone.attention, own)


def _question_notes(backbone: EncoderConfig) -> tuple[str, ...]:
    return (
        "transformers makes the tokens of a question global by itself, up to the first of three separators, where no "
        "global_attention_mask is given, and this model does not: give both of them the same",
    )


LONGFORMER = Family(
    model_type="longformer",
    prefix="longformer.",
    table=encoder_table("longformer", offset=count_from_padding)
    + Table(
        rules=tuple(
            Rule(f"{_LAYER}.{part}_global.{{p}}", f"{_OWN}.{part}_global.{{p}}") for part in ("query", "key", "value")
        )
    ),
    architectures=(
        headless(
            "LongformerModel",
            "longformer.",
            drop_pooler("longformer"),
            unsupported_fields=_FIRST,
            notes=lambda backbone: pooler_notes(backbone) + _note_global_tokens(0)(backbone),
        ),
        pooler("LongformerModel", "longformer.pooler.dense", unsupported_fields=_FIRST, notes=_note_global_tokens(0)),
        Architecture(
            "LongformerForMaskedLM",
            kind="masked_lm",
            table=masked_lm_table("longformer"),
            head=gelu_masked_lm,
            pipeline="fill-mask",
            unsupported_fields=_FIRST,
            notes=_note_global_tokens(0),
        ),
        Architecture(
            "LongformerForSequenceClassification",
            kind="pooled",
            table=classification_table("longformer"),
            head=pooled_classification,
            pipeline="text-classification",
            unsupported_fields=_FIRST,
            notes=_note_global_tokens(1),
        ),
        token_classification(
            "LongformerForTokenClassification",
            Table(drops=(drop_pooler("longformer"),)),
            unsupported_fields=_FIRST,
            notes=_note_global_tokens(0),
        ),
        question_answering(
            "LongformerForQuestionAnswering",
            Table(drops=(drop_pooler("longformer"),)),
            unsupported_fields=_FIRST,
            notes=_question_notes,
        ),
    ),
    defaults=DEFAULTS | {"attention_window": 512, "pad_token_id": 1},
    read=_read,
    write=lambda backbone: write_windows(backbone.attention),
    offset=count_from_padding,
)
