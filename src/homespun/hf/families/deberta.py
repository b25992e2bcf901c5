"""DeBERTa (He et al. 2021), and its versions 2 and 3 (He et al. 2023).

transformers has two heads of masked language modelling with different names of tensors. Both are read; the ``legacy``
head is written, which every version of transformers opens.

V2 has bucketed distances, projected as the content. V3 is V2 trained as ELECTRA, with ``conv_kernel_size=0``, the only
supported value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from homespun.attention.disentangled import DisentangledAttentionConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import builders
from homespun.hf.builders import (
    BERT_DEFAULTS,
    LAYER,
    annotated,
    feedforward_rules,
    learned_positions,
    module,
    norm_rules,
)
from homespun.hf.engine import Copy, Drop, Rule, Table
from homespun.hf.families import bert
from homespun.hf.family import Architecture, Family, activation, classification
from homespun.models.encoder import EncoderConfig
from homespun.models.layer_parts import LearnedPositionsConfig

_EMBEDDINGS, _LAYER = "deberta.embeddings", "deberta.encoder.layer.{i}"
SELF, ATTENTION = f"{_LAYER}.attention.self", f"{LAYER}.attention.sublayer"
RELATIVE = "backbone.layers.0.attention.sublayer.relative"  # one table for all layers
_TERMS = ("c2p", "p2c")
# only masked language modelling needs the enhanced mask decoder, which transformers lacks
_LATE = frozenset({"backbone.enhanced_mask_decoder"})


def _has_positions(backbone: EncoderConfig) -> bool:
    return isinstance(backbone.positions, LearnedPositionsConfig)


_POSITIONS = f"{_EMBEDDINGS}.position_embeddings.weight"
TABLE = Table(
    rules=(
        Rule(f"{_EMBEDDINGS}.word_embeddings.weight", "backbone.embeddings.words.weight"),
        replace(learned_positions(_POSITIONS), when=_has_positions),
        Rule(
            _POSITIONS,
            "backbone.embeddings.late.embedding.weight",
            when=lambda backbone: backbone.enhanced_mask_decoder,
        ),
        Rule(f"{_EMBEDDINGS}.token_type_embeddings.weight", "backbone.embeddings.segments.weight"),
        module(f"{_EMBEDDINGS}.LayerNorm", "backbone.embeddings.norm"),
        Rule("deberta.encoder.rel_embeddings.weight", f"{RELATIVE}.embedding.weight"),
        module(f"{_LAYER}.attention.output.dense", f"{ATTENTION}.output"),
        *feedforward_rules(_LAYER, "intermediate.dense", "output.dense"),
        *norm_rules(_LAYER, "attention.output.LayerNorm", "output.LayerNorm"),
    ),
    drops=(
        Drop(r"deberta\.embeddings\.position_ids", "a constant, not a weight"),
        Drop(r"deberta\.embeddings\.position_embeddings\.weight", "positions of the mask decoder, for pretraining"),
    ),
)
_MASKED_LM = bert.masked_lm_table(f"{_EMBEDDINGS}.word_embeddings") + Table(
    copies=(
        # other names in released checkpoints
        Copy("lm_predictions.lm_head.bias", of="cls.predictions.bias"),
        *(
            Copy(f"lm_predictions.lm_head.{name}.{p}", of=f"cls.predictions.transform.{name}.{p}")
            for name in ("dense", "LayerNorm")
            for p in ("weight", "bias")
        ),
    ),
    drops=(Drop(r"mask_predictions\..*", "the head of replaced token detection, for pretraining"),),
)


def _notes(backbone: EncoderConfig) -> tuple[str, ...]:
    if not backbone.enhanced_mask_decoder:
        return ()
    return ("transformers ignores position_embeddings, which this model used in pretraining",)


def _pooled(settings: Tree) -> Tree:
    if settings.get("pooler_hidden_size", settings["hidden_size"]) != settings["hidden_size"]:
        raise UserError(f"pooler_hidden_size={settings['pooler_hidden_size']!r} is not supported, only hidden_size")
    head = classification("pooled", dropout="cls_dropout")(settings)
    return head | {"input_dropout": settings["pooler_dropout"], "hidden_act": activation(settings["pooler_hidden_act"])}


def _write_pooled(head: Tree) -> Tree:
    return {"pooler_hidden_act": head["hidden_act"], "pooler_dropout": head["input_dropout"]}


def architectures(name: str) -> tuple[Architecture, ...]:
    """Classes of the version ``name``."""
    return (
        *annotated(
            builders.headless(f"{name}Model", "deberta."),
            builders.text_classification(
                f"{name}ForSequenceClassification",
                dense="pooler.dense",
                classifier="classifier",
                head=_pooled,
                write=_write_pooled,
            ),
            # cls_dropout is for texts only
            builders.token_classification(f"{name}ForTokenClassification", dropout="hidden_dropout_prob"),
            builders.question_answering(f"{name}ForQuestionAnswering"),
            notes=_notes,
            unsupported_fields=_LATE,
        ),
        builders.language_model(f"{name}ForMaskedLM", _MASKED_LM),
    )


# of all versions
DEFAULTS = BERT_DEFAULTS | {
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
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
    """Values below 1 mean not set, 0 in homespun."""
    return max(value, 0) if isinstance(value, int) else value


def read(settings: Tree, **attention: object) -> Tree:
    """Fields that are not copied from config.json; ``attention``: fields of a version.

    Raises:
        UserError: an unsupported setting.
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
    distances = count(settings["max_relative_positions"])
    kind = {"kind": "disentangled", "pos_att_type": terms, "max_relative_positions": distances}
    fields: Tree = {"attention": kind | attention}
    return fields if settings["position_biased_input"] else fields | {"positions": {"kind": "none"}}


def write(backbone: EncoderConfig) -> Tree:
    """Settings that are not copied; for another attention, those of the paper."""
    attention = backbone.attention
    if not isinstance(attention, DisentangledAttentionConfig):
        attention = DisentangledAttentionConfig()
    return {
        "relative_attention": True,
        "type_vocab_size": backbone.type_vocab_size,  # may be 0
        "position_biased_input": backbone.positions.kind != "none",
        "pos_att_type": [*attention.pos_att_type],
        "max_relative_positions": attention.max_relative_positions or -1,
    }


def _by_head(parts: tuple[int, int]) -> Callable[[Tensor, EncoderConfig], Tensor]:
    """Transpose the first two axes of rows, heads (0) and projections (1) in the order ``parts``."""

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
            module(f"{SELF}.pos_q_proj", f"{ATTENTION}.position_query"),
        )
    ),
    architectures=architectures("Deberta"),
    defaults=DEFAULTS | {"vocab_size": 50265},
    names=NAMES,
    read=lambda settings, kind: read(settings, key_bias=False),
    write=write,
    fixed={"talking_head": (None, False)},
)


def _read_v2(settings: Tree, kind: str | None) -> Tree:
    return read(
        settings,
        position_buckets=count(settings["position_buckets"]),
        share_att_key=settings["share_att_key"],
        norm_rel_ebd="layer_norm" if "layer_norm" in str(settings["norm_rel_ebd"]).lower().split("|") else "none",
    )


def _write_v2(backbone: EncoderConfig) -> Tree:
    attention = backbone.attention
    settings = write(backbone)
    if not isinstance(attention, DisentangledAttentionConfig):
        return settings
    return settings | {
        "position_buckets": attention.position_buckets or -1,
        "share_att_key": attention.share_att_key,
        "norm_rel_ebd": attention.norm_rel_ebd,
    }


DEBERTA_V2 = Family(
    model_type="deberta-v2",
    prefix="deberta.",
    table=TABLE
    + Table(
        rules=(
            *(module(f"{SELF}.{part}_proj", f"{ATTENTION}.{part}") for part in ("query", "key", "value")),
            *(module(f"{SELF}.pos_{part}_proj", f"{ATTENTION}.position_{part}") for part in ("query", "key")),
            module("deberta.encoder.LayerNorm", f"{RELATIVE}.norm"),
        )
    ),
    architectures=architectures("DebertaV2"),
    defaults={
        **DEFAULTS,
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "position_buckets": -1,
        "share_att_key": False,
        "norm_rel_ebd": "none",
    },
    names=NAMES,
    read=_read_v2,
    write=_write_v2,
    fixed={"conv_kernel_size": (None, 0)},
)
