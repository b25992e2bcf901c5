"""DeBERTa (He et al. 2021), and what its second and third versions have of it.

Of the two heads for masked words that transformers has, ``legacy`` and not, both are read, whichever config.json names:
they compute the same from tensors of other names. The legacy one is written, which every version of transformers opens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from homespun.attention.disentangled import DisentangledAttentionConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import Copy, Drop, Rule, Table
from homespun.hf.families.bert import learned_positions, masked_lm, question_answering, token_classification
from homespun.hf.family import Architecture, Family, activation, headless
from homespun.hf.labels import classification
from homespun.models.encoder import EncoderConfig
from homespun.models.positions import LearnedPositionsConfig

_LAYER, _OWN = "deberta.encoder.layer.{i}", "backbone.layers.{i}"
SELF, ATTENTION = f"{_LAYER}.attention.self", f"{_OWN}.attention.sublayer"
RELATIVE = "backbone.layers.0.attention.sublayer.relative"  # all layers have the first one's
_TERMS = ("c2p", "p2c")
# transformers has no enhanced mask decoder, which nothing but telling masked tokens needs
_LATE = frozenset({"backbone.enhanced_mask_decoder"})


def _has_positions(backbone: EncoderConfig) -> bool:
    return isinstance(backbone.positions, LearnedPositionsConfig)


TABLE = Table(
    rules=(
        Rule("deberta.embeddings.word_embeddings.weight", "backbone.embeddings.words.weight"),
        replace(learned_positions("deberta.embeddings.position_embeddings.weight"), when=_has_positions),
        Rule(
            "deberta.embeddings.position_embeddings.weight",
            "backbone.embeddings.late.embedding.weight",
            when=lambda backbone: backbone.enhanced_mask_decoder,
        ),
        Rule("deberta.embeddings.token_type_embeddings.weight", "backbone.embeddings.segments.weight"),
        Rule("deberta.embeddings.LayerNorm.{p}", "backbone.embeddings.norm.{p}"),
        Rule("deberta.encoder.rel_embeddings.weight", f"{RELATIVE}.embedding.weight"),
        Rule(f"{_LAYER}.attention.output.dense.{{p}}", f"{ATTENTION}.output.{{p}}"),
        Rule(f"{_LAYER}.attention.output.LayerNorm.{{p}}", f"{_OWN}.attention.norm.{{p}}"),
        Rule(f"{_LAYER}.intermediate.dense.{{p}}", f"{_OWN}.feedforward.sublayer.inner.{{p}}"),
        Rule(f"{_LAYER}.output.dense.{{p}}", f"{_OWN}.feedforward.sublayer.outer.{{p}}"),
        Rule(f"{_LAYER}.output.LayerNorm.{{p}}", f"{_OWN}.feedforward.norm.{{p}}"),
    ),
    drops=(
        Drop(r"deberta\.embeddings\.position_ids", "a constant, not a weight"),
        Drop(
            r"deberta\.embeddings\.position_embeddings\.weight",
            "positions that are not in the input, and were only there in pretraining",
        ),
    ),
)
_MASKED_LM = Table(
    rules=(
        Rule("cls.predictions.transform.dense.{p}", "head.transform.{p}"),
        Rule("cls.predictions.transform.LayerNorm.{p}", "head.norm.{p}"),
        Rule("cls.predictions.bias", "head.bias"),
    ),
    copies=(
        Copy("cls.predictions.decoder.weight", of="deberta.embeddings.word_embeddings.weight"),
        Copy("cls.predictions.decoder.bias", of="cls.predictions.bias"),
        # the same tensors by the names of the released checkpoints
        Copy("lm_predictions.lm_head.bias", of="cls.predictions.bias"),
        *(
            Copy(f"lm_predictions.lm_head.{name}.{p}", of=f"cls.predictions.transform.{name}.{p}")
            for name in ("dense", "LayerNorm")
            for p in ("weight", "bias")
        ),
    ),
    drops=(Drop(r"mask_predictions\..*", "the head that tells replaced tokens, which is for pretraining"),),
)


def _notes(backbone: EncoderConfig) -> tuple[str, ...]:
    if not backbone.enhanced_mask_decoder:
        return ()
    return ("transformers does not read position_embeddings, with which this model was trained to tell masked tokens",)


def _pooled(settings: Tree) -> Tree:
    if settings.get("pooler_hidden_size", settings["hidden_size"]) != settings["hidden_size"]:
        raise UserError(f"pooler_hidden_size={settings['pooler_hidden_size']!r} is not supported, only hidden_size")
    head = classification("pooled")(settings | {"classifier_dropout": settings["cls_dropout"]})
    return head | {
        "input_dropout": settings["pooler_dropout"],
        "hidden_act": activation(settings["pooler_hidden_act"]),
    }


def _labels(settings: Tree) -> Tree:
    dropout = settings["hidden_dropout_prob"]  # cls_dropout is of whole texts there
    return classification("token_classification")(settings | {"classifier_dropout": dropout})


def _write_pooled(head: Tree) -> Tree:
    return {"pooler_hidden_act": head["hidden_act"], "pooler_dropout": head["input_dropout"]}


def architectures(name: str) -> tuple[Architecture, ...]:
    """The classes of a version of this ``name``."""
    return (
        headless(f"{name}Model", "deberta.", unsupported_fields=_LATE, notes=_notes),
        Architecture(f"{name}ForMaskedLM", kind="masked_lm", table=_MASKED_LM, head=masked_lm, pipeline="fill-mask"),
        Architecture(
            f"{name}ForSequenceClassification",
            kind="pooled",
            table=Table(
                rules=(
                    Rule("pooler.dense.{p}", "head.dense.{p}"),
                    Rule("classifier.{p}", "head.classifier.{p}"),
                )
            ),
            head=_pooled,
            write=_write_pooled,
            unsupported_fields=_LATE,
            notes=_notes,
            pipeline="text-classification",
        ),
        token_classification(f"{name}ForTokenClassification", head=_labels, unsupported_fields=_LATE, notes=_notes),
        question_answering(f"{name}ForQuestionAnswering", unsupported_fields=_LATE, notes=_notes),
    )


# what the configs of all versions assume, where it is the same
DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-7,
    "pad_token_id": 0,
    "relative_attention": False,
    "max_relative_positions": -1,
    "position_biased_input": True,
    "pos_att_type": None,
    "pooler_dropout": 0.0,
    "pooler_hidden_act": "gelu",
    "cls_dropout": None,
}
NAMES = {"classifier_dropout": "cls_dropout"}


def count(value: object) -> object:
    """A number that may be left open there, by any below 1, and here by 0."""
    return max(value, 0) if isinstance(value, int) else value


def read(settings: Tree, **attention: object) -> Tree:
    """What all versions are, beside plain values and what makes the ``attention`` of this one its own.

    Raises:
        UserError: a setting that ours does not have.
    """
    if settings["relative_attention"] is not True:
        raise UserError(f"relative_attention={settings['relative_attention']!r} is not supported, only True")
    width, heads = settings["hidden_size"], settings["num_attention_heads"]
    if settings.get("embedding_size", width) != width:
        raise UserError(f"embedding_size={settings['embedding_size']!r} is not supported, only hidden_size")
    size = settings.get("attention_head_size")
    if isinstance(size, int) and isinstance(heads, int) and size * heads != width:
        raise UserError(f"attention_head_size={size} is not supported, only hidden_size / num_attention_heads")
    terms = settings["pos_att_type"] or []
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    terms = [str(term).strip() for term in (terms if isinstance(terms, list) else ())]
    if not terms or not set(terms) <= set(_TERMS):
        raise UserError(f"pos_att_type={settings['pos_att_type']!r} is not supported, only 'c2p', 'p2c' or both")
    own = {"pos_att_type": terms, "max_relative_positions": count(settings["max_relative_positions"])}
    fields: Tree = {"attention": {"kind": "disentangled"} | own | attention}
    return fields if settings["position_biased_input"] else fields | {"positions": {"kind": "none"}}


def write(backbone: EncoderConfig) -> Tree:
    """The same, the other way; of another attention, that of the papers."""
    given = backbone.attention
    attention = given if isinstance(given, DisentangledAttentionConfig) else DisentangledAttentionConfig()
    return {
        "relative_attention": True,
        "type_vocab_size": backbone.type_vocab_size,  # theirs can be without
        "position_biased_input": backbone.positions.kind != "none",
        "pos_att_type": [*attention.pos_att_type],
        "max_relative_positions": attention.max_relative_positions or -1,
    }


def _by_head(parts: tuple[int, int]) -> Callable[[Tensor, EncoderConfig], Tensor]:
    """Rows that stand by head and then by what they make, or the other way, turned about; ``parts`` places them."""

    def change(tensor: Tensor, backbone: EncoderConfig) -> Tensor:
        counts = [backbone.num_attention_heads, 3]
        shape = [counts[part] for part in parts]
        return tensor.reshape(*shape, -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)

    return change


DEBERTA = Family(
    model_type="deberta",
    prefix="deberta.",
    table=TABLE
    + Table(
        rules=(
            Rule(
                f"{SELF}.in_proj.weight",
                tuple(f"{ATTENTION}.{part}.weight" for part in ("query", "key", "value")),
                _by_head((0, 1)),
                _by_head((1, 0)),
            ),
            Rule(f"{SELF}.q_bias", f"{ATTENTION}.query.bias"),
            Rule(f"{SELF}.v_bias", f"{ATTENTION}.value.bias"),
            Rule(f"{SELF}.pos_proj.weight", f"{ATTENTION}.position_key.weight"),
            Rule(f"{SELF}.pos_q_proj.{{p}}", f"{ATTENTION}.position_query.{{p}}"),
        )
    ),
    architectures=architectures("Deberta"),
    defaults={
        **DEFAULTS,
        "vocab_size": 50265,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
    names=NAMES,
    read=lambda settings, kind: read(settings, key_bias=False),
    write=write,
    fixed={"talking_head": (None, False)},
)
