"""ModernBERT (Warner et al. 2024): rotary positions, gated feed-forwards, and windows in all layers but every third.

Global and local layers have different bases of the rotary positions. ``embedding_dropout`` becomes the dropout of all
hidden states; ``mlp_dropout``, inside the feed-forward, is not supported.
"""

from __future__ import annotations

from dataclasses import replace

from homespun.attention.full import FullAttentionConfig
from homespun.attention.sparse import SparseAttentionConfig, WindowConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import builders
from homespun.hf.builders import LAYER, module
from homespun.hf.engine import Rule, Table
from homespun.hf.families.llama import rope_theta
from homespun.hf.family import Family, activation
from homespun.models.encoder import EncoderConfig
from homespun.models.layer_parts import RotaryPositionsConfig

_LAYER, _WORDS = "model.layers.{i}", "model.embeddings.tok_embeddings"
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_THETA = {_GLOBAL: 160_000.0, _LOCAL: 10_000.0}
_POOLING = builders.Pooling({"cls": "first", "mean": "mean"})


def _layer_types(settings: Tree) -> list[str]:
    layers, every = settings["num_hidden_layers"], settings["global_attn_every_n_layers"]
    types = settings["layer_types"]
    if types is None and isinstance(layers, int) and isinstance(every, int) and every > 0:
        return [_LOCAL if layer % every else _GLOBAL for layer in range(layers)]
    if not isinstance(types, list) or len(types) != layers or any(kind not in list(_THETA) for kind in types):
        raise UserError(f"layer_types={types!r} is not supported, only one of {', '.join(_THETA)} for each layer")
    return types


def _theta(settings: Tree, kind: str) -> object:
    """Base of one type of layers: of ``rope_parameters`` or the older ``global_`` and ``local_rope_theta``."""
    nested = settings.get("rope_parameters")
    if isinstance(nested, dict):
        nested = nested.get(kind)
    shared = {key: settings.get(key) for key in ("rope_scaling", "partial_rotary_factor")}
    older = "global_rope_theta" if kind == _GLOBAL else "local_rope_theta"
    theta = settings.get(older, _THETA[kind])
    if theta is None and kind == _LOCAL:  # null means the base of the global layers
        theta = settings.get("global_rope_theta")
    return rope_theta(shared | {"rope_parameters": nested}, theta)


def _read(settings: Tree, kind: str | None) -> Tree:
    types = _layer_types(settings)
    width = settings["local_attention"]
    if not isinstance(width, int) or width < 2:
        raise UserError(f"local_attention={width!r} must be an integer of at least 2")
    attentions: dict[str, Tree] = {
        _GLOBAL: {"kind": "full"},
        _LOCAL: {"kind": "sparse", "patterns": [{"kind": "window", "radius": width // 2}]},
    }
    thetas = [_theta(settings, kind) for kind in types]
    return {
        "type_vocab_size": 0,
        "gated_feed_forward": True,
        "residual": {"kind": "pre", "first_norm": False},
        "positions": {"kind": "rotary", "theta": thetas[0] if len(set(map(str, thetas))) == 1 else thetas},
        "attention": builders.alternating_attention([attentions[kind] for kind in types]),
    }


def _write(backbone: EncoderConfig) -> Tree:
    by_layer = [_radius(attention) for attention in builders.layer_attentions(backbone)]
    radii = {*by_layer} - {0}
    if None in radii or len(radii) > 1:
        return {}  # `Family.differences` reports the defaults
    types = [_LOCAL if radius else _GLOBAL for radius in by_layer]
    settings: Tree = {"layer_types": types, "mlp_dropout": backbone.hidden_dropout_prob}
    # null: the defaults of transformers are ids of the released tokenizer
    settings |= dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id"))
    for radius in radii:
        settings["local_attention"] = 2 * (radius or 0)
    if isinstance(backbone.positions, RotaryPositionsConfig):
        theta = backbone.positions.theta
        thetas = dict(zip(types, theta, strict=False)) if isinstance(theta, list) else dict.fromkeys(_THETA, theta)
        settings["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": thetas.get(kind, default)} for kind, default in _THETA.items()
        }
    return settings


def _radius(attention: object) -> int | None:
    """Radius of a window; 0 for full attention, None for another attention."""
    if isinstance(attention, FullAttentionConfig):
        return 0
    if not isinstance(attention, SparseAttentionConfig) or attention.global_tokens is not None:
        return None
    pattern, *others = attention.patterns
    if others or not isinstance(pattern, WindowConfig) or pattern.dilation != 1 or isinstance(pattern.radius, list):
        return None
    return pattern.radius


def _masked_lm(settings: Tree) -> Tree:
    if settings["decoder_bias"] is not True:
        raise UserError("decoder_bias=False is not supported, only True")
    return {
        "kind": "masked_lm",
        "hidden_act": activation(settings["classifier_activation"]),
        "transform_bias": settings["classifier_bias"],
        "norm_bias": settings["norm_bias"],
    }


def _pooled(settings: Tree) -> Tree:
    return _POOLING.read(settings) | {
        "hidden_act": activation(settings["classifier_activation"]),
        "bias": settings["classifier_bias"],
        "norm": "layer_norm",
        "norm_bias": settings["norm_bias"],
    }


def _write_pooled(head: Tree) -> Tree:
    return _POOLING.write(head) | {"classifier_activation": head["hidden_act"], "classifier_bias": head["bias"]}


def _write_masked_lm(head: Tree) -> Tree:
    return {"classifier_activation": head["hidden_act"], "classifier_bias": head["transform_bias"]}


def _fused(hf_name: str, part: str, *names: str) -> Rule:
    """Rule of several linear layers that are one in Hugging Face."""
    return Rule(f"{_LAYER}.{hf_name}.{{p}}", tuple(f"{LAYER}.{part}.sublayer.{name}.{{p}}" for name in names))


_MASKED_LM = builders.masked_lm_table(_WORDS, "head.dense", "head.norm", "decoder")

MODERNBERT = Family(
    model_type="modernbert",
    prefix="model.",
    table=Table(
        rules=(
            Rule(f"{_WORDS}.weight", "backbone.embeddings.words.weight"),
            module("model.embeddings.norm", "backbone.embeddings.norm"),
            _fused("attn.Wqkv", "attention", "query", "key", "value"),
            module(f"{_LAYER}.attn.Wo", f"{LAYER}.attention.sublayer.output"),
            _fused("mlp.Wi", "feedforward", "inner", "gate"),
            module(f"{_LAYER}.mlp.Wo", f"{LAYER}.feedforward.sublayer.outer"),
            *builders.norm_rules(_LAYER, "attn_norm", "mlp_norm"),
            module("model.final_norm", "backbone.final_norm"),
        )
    ),
    architectures=(
        builders.headless("ModernBertModel", "model."),
        replace(builders.language_model("ModernBertForMaskedLM", _MASKED_LM, _masked_lm), write=_write_masked_lm),
        builders.text_classification(
            "ModernBertForSequenceClassification",
            Table(rules=(module("head.norm", "head.norm"),)),
            dense="head.dense",
            classifier="classifier",
            head=_pooled,
            write=_write_pooled,
        ),
    ),
    defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "initializer_range": 0.02,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "pad_token_id": 50283,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "layer_types": None,
        "global_attn_every_n_layers": 3,
        "rope_parameters": None,
        "local_attention": 128,
        "embedding_dropout": 0.0,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "decoder_bias": True,
        "classifier_pooling": "cls",
        "classifier_dropout": 0.0,
        "classifier_bias": False,
        "classifier_activation": "gelu",
    },
    names={
        "hidden_act": "hidden_activation",
        "hidden_dropout_prob": "embedding_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
    },
    read=_read,
    write=_write,
    dropouts=lambda settings: ("mlp_dropout",),
)
