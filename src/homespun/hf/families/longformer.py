"""Longformer (Beltagy et al. 2020): RoBERTa with sliding windows and global tokens with separate projections.

By default transformers makes the first token global in classifiers of texts, the tokens of the question in question
answering, and none in other classes. homespun makes the first token global in classifiers of texts; the caller sets
others by ``global_attention_mask``.
"""

from __future__ import annotations

from homespun.attention import AttentionConfig
from homespun.attention.sparse import GlobalConfig, SparseAttentionConfig, WindowConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import builders
from homespun.hf.builders import BERT_DEFAULTS, LAYER, annotated, gelu_masked_lm, module
from homespun.hf.engine import Table
from homespun.hf.families.bert import roberta_masked_lm_table, roberta_table
from homespun.hf.family import Family, Notes
from homespun.models.encoder import EncoderConfig

_FIRST = frozenset({"backbone.attention.global_tokens.first"})


def read_windows(settings: Tree, *, first: int) -> Tree:
    """Sparse attention of ``attention_window``, with ``first`` global tokens.

    Raises:
        UserError: a window is not a positive even number.
    """
    value = settings["attention_window"]
    windows = value if isinstance(value, list) else [value]
    if not windows or not all(isinstance(window, int) and window > 0 and window % 2 == 0 for window in windows):
        raise UserError(f"attention_window={value!r} must be an even positive number, or one for each layer")
    radius = [window // 2 for window in windows] if isinstance(value, list) else value // 2
    return {
        "kind": "sparse",
        "patterns": [{"kind": "window", "radius": radius}],
        "global_tokens": {"first": first, "projections": True},
    }


def write_windows(attention: AttentionConfig) -> Tree:
    """``attention_window`` of a sparse attention of windows."""
    match attention:
        case SparseAttentionConfig(patterns=[WindowConfig(radius=list(radius))]):
            return {"attention_window": [2 * each for each in radius]}
        case SparseAttentionConfig(patterns=[WindowConfig(radius=int(radius))]):
            return {"attention_window": 2 * radius}
    return {}


def _read(settings: Tree, kind: str | None) -> Tree:
    return {"attention": read_windows(settings, first=1 if kind == "pooled" else 0)}


def global_token_notes(attention: AttentionConfig, expected: int) -> tuple[str, ...]:
    """Note on a model whose number of global tokens is not that of its class."""
    match attention:
        case SparseAttentionConfig(global_tokens=GlobalConfig(first=first)) if first != expected:
            mask = f"with 1 at the first {first} and 0 at the others" if first else "that is all 0"
            return (
                f"transformers makes the first {expected} tokens of a text global, this model the first {first}; pass "
                f"a global_attention_mask {mask}",
            )
    return ()


def _notes(expected: int) -> Notes:
    return lambda backbone: global_token_notes(backbone.attention, expected)


def _question_notes(backbone: EncoderConfig) -> tuple[str, ...]:
    return (
        "without a global_attention_mask transformers makes the tokens of a question global, up to the first of three "
        "separators, and this model does not; pass one to both",
    )


LONGFORMER = Family(
    model_type="longformer",
    prefix="longformer.",
    table=roberta_table("longformer")
    + Table(
        rules=tuple(
            module(f"longformer.encoder.layer.{{i}}.attention.self.{name}", f"{LAYER}.attention.sublayer.{name}")
            for name in ("query_global", "key_global", "value_global")
        )
    ),
    architectures=annotated(
        *annotated(
            *builders.models_with_pooler("LongformerModel", "longformer.pooler.dense"),
            builders.language_model("LongformerForMaskedLM", roberta_masked_lm_table("longformer"), gelu_masked_lm),
            builders.token_classification("LongformerForTokenClassification"),
            notes=_notes(0),
        ),
        *annotated(
            builders.text_classification(
                "LongformerForSequenceClassification", head=builders.input_dropout_classification
            ),
            notes=_notes(1),
        ),
        *annotated(builders.question_answering("LongformerForQuestionAnswering"), notes=_question_notes),
        unsupported_fields=_FIRST,
    ),
    defaults=BERT_DEFAULTS | {"attention_window": 512, "pad_token_id": 1},
    read=_read,
    write=lambda backbone: write_windows(backbone.attention),
    offset=builders.after_padding,
)
