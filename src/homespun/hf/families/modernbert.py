"""ModernBERT (Warner et al. 2024): rotary positions, gated feed-forwards, and windows in all layers but every third.

Global and local layers rotate with different bases. Dropout of embeddings and inside the feed-forward are two numbers
there; here the first is that of all vectors, and there is none inside.
"""

from __future__ import annotations

from homespun.attention import AlternatingAttentionConfig
from homespun.attention.full import FullAttentionConfig
from homespun.attention.sparse import SparseAttentionConfig, WindowConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import Copy, Rule, Table
from homespun.hf.families.llama import rope_theta
from homespun.hf.family import Architecture, Family, activation, headless
from homespun.hf.labels import classification
from homespun.models.encoder import EncoderConfig
from homespun.models.positions import RotaryPositionsConfig

_LAYER, _OWN = "model.layers.{i}", "backbone.layers.{i}"
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_THETA = {_GLOBAL: 160_000.0, _LOCAL: 10_000.0}
_POOLING = {"cls": "first", "mean": "mean"}


def _layer_types(settings: Tree) -> list[str]:
    """Whether each layer is global or local.

    Raises:
        UserError: not one type for each layer.
    """
    layers, every = settings["num_hidden_layers"], settings["global_attn_every_n_layers"]
    types = settings["layer_types"]
    if types is None and isinstance(layers, int) and isinstance(every, int) and every > 0:
        return [_LOCAL if layer % every else _GLOBAL for layer in range(layers)]
    if not isinstance(types, list) or len(types) != layers or not {*types} <= _THETA.keys():
        raise UserError(f"layer_types={types!r} is not supported, only one of {', '.join(_THETA)} for each layer")
    return types


def _theta(settings: Tree, kind: str) -> object:
    """The base of one type of layers: of ``rope_parameters``, or of the older ``global_`` and ``local_rope_theta``."""
    nested = settings.get("rope_parameters")
    if isinstance(nested, dict):
        nested = nested.get(kind)
    given = {key: settings.get(key) for key in ("rope_scaling", "partial_rotary_factor")} | {"rope_parameters": nested}
    older = "global_rope_theta" if kind == _GLOBAL else "local_rope_theta"
    theta = settings.get(older, _THETA[kind])
    # a null is the base of the global layers
    return rope_theta(given, theta if theta is not None or kind == _GLOBAL else settings.get("global_rope_theta"))


def _period(types: list[str]) -> list[str]:
    """The shortest cycle that the layers repeat."""
    return next(
        types[:size]
        for size in range(1, len(types) + 1)
        if all(kind == types[layer % size] for layer, kind in enumerate(types))
    )


def _read(settings: Tree, kind: str | None) -> Tree:
    types = _layer_types(settings)
    width = settings["local_attention"]
    if not isinstance(width, int) or width < 2:
        raise UserError(f"local_attention={width!r} must be a whole number of 2 or more")
    one = {
        _GLOBAL: {"kind": "full"},
        _LOCAL: {"kind": "sparse", "patterns": [{"kind": "window", "radius": width // 2}]},
    }
    cycle = [one[kind] for kind in _period(types)]
    thetas = [_theta(settings, kind) for kind in types]
    return {
        "type_vocab_size": 0,
        "gated_feed_forward": True,
        "residual": {"kind": "pre", "first_norm": False},
        "positions": {"kind": "rotary", "theta": thetas[0] if len(set(map(str, thetas))) == 1 else thetas},
        "attention": {"kind": "alternating", "cycle": cycle} if cycle[1:] else cycle[0],
    }


def _write(backbone: EncoderConfig) -> Tree:
    attentions: list[object] = [backbone.attention]
    if isinstance(backbone.attention, AlternatingAttentionConfig):
        attentions = [*backbone.attention.cycle]
    radii = {_radius(attention) for attention in attentions} - {0}
    if None in radii or len(radii) > 1:
        return {}  # what is assumed differs, and is named
    layers = range(backbone.num_hidden_layers)
    types = [_LOCAL if _radius(attentions[layer % len(attentions)]) else _GLOBAL for layer in layers]
    own: Tree = {"layer_types": types, "mlp_dropout": backbone.hidden_dropout_prob}
    own |= dict.fromkeys(
        ("bos_token_id", "eos_token_id", "cls_token_id")
    )  # else ids of the released tokenizer are assumed
    for radius in radii:
        own["local_attention"] = 2 * (radius or 0)
    if isinstance(backbone.positions, RotaryPositionsConfig):
        theta = backbone.positions.theta
        given = dict(zip(types, theta, strict=False)) if isinstance(theta, list) else dict.fromkeys(_THETA, theta)
        own["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": given.get(kind, assumed)} for kind, assumed in _THETA.items()
        }
    return own


def _radius(attention: object) -> int | None:
    """How far a layer sees; 0: everything, None: it is no plain window."""
    if isinstance(attention, FullAttentionConfig):
        return 0
    if not isinstance(attention, SparseAttentionConfig) or attention.everywhere is not None:
        return None
    pattern, *others = attention.patterns
    if others or not isinstance(pattern, WindowConfig) or pattern.dilation != 1 or isinstance(pattern.radius, list):
        return None
    return pattern.radius


def _masked_lm(settings: Tree) -> Tree:
    if settings["decoder_bias"] is not True:
        raise UserError("decoder_bias=False is not supported by the head, only True")
    return {
        "kind": "masked_lm",
        "hidden_act": activation(settings["classifier_activation"]),
        "transform_bias": settings["classifier_bias"],
        "norm_bias": settings["norm_bias"],
    }


def _pooled(settings: Tree) -> Tree:
    pooling = settings["classifier_pooling"]
    if pooling not in _POOLING:
        raise UserError(f"classifier_pooling={pooling!r} is not supported, only {' and '.join(map(repr, _POOLING))}")
    return classification("pooled")(settings) | {
        "token": _POOLING[pooling],
        "hidden_act": activation(settings["classifier_activation"]),
        "bias": settings["classifier_bias"],
        "norm": "layer_norm",
        "norm_bias": settings["norm_bias"],
    }


def _write_pooled(head: Tree) -> Tree:
    pooling = {ours: theirs for theirs, ours in _POOLING.items()}
    return {
        "classifier_pooling": pooling.get(head["token"], "cls"),
        "classifier_activation": head["hidden_act"],
        "classifier_bias": head["bias"],
    }


MODERNBERT = Family(
    model_type="modernbert",
    prefix="model.",
    table=Table(
        rules=(
            Rule("model.embeddings.tok_embeddings.weight", "backbone.embeddings.words.weight"),
            Rule("model.embeddings.norm.{p}", "backbone.embeddings.norm.{p}"),
            Rule(
                f"{_LAYER}.attn.Wqkv.{{p}}",
                tuple(f"{_OWN}.attention.sublayer.{part}.{{p}}" for part in ("query", "key", "value")),
            ),
            Rule(f"{_LAYER}.attn.Wo.{{p}}", f"{_OWN}.attention.sublayer.output.{{p}}"),
            Rule(f"{_LAYER}.attn_norm.{{p}}", f"{_OWN}.attention.norm.{{p}}"),
            Rule(
                f"{_LAYER}.mlp.Wi.{{p}}",
                (f"{_OWN}.feedforward.sublayer.inner.{{p}}", f"{_OWN}.feedforward.sublayer.gate.{{p}}"),
            ),
            Rule(f"{_LAYER}.mlp.Wo.{{p}}", f"{_OWN}.feedforward.sublayer.outer.{{p}}"),
            Rule(f"{_LAYER}.mlp_norm.{{p}}", f"{_OWN}.feedforward.norm.{{p}}"),
            Rule("model.final_norm.{p}", "backbone.final_norm.{p}"),
        )
    ),
    architectures=(
        headless("ModernBertModel", "model."),
        Architecture(
            "ModernBertForMaskedLM",
            kind="masked_lm",
            table=Table(
                rules=(
                    Rule("head.dense.{p}", "head.transform.{p}"),
                    Rule("head.norm.{p}", "head.norm.{p}"),
                    Rule("decoder.bias", "head.bias"),
                ),
                copies=(Copy("decoder.weight", of="model.embeddings.tok_embeddings.weight"),),
            ),
            head=_masked_lm,
            pipeline="fill-mask",
            write=lambda head: {
                "classifier_activation": head["hidden_act"],
                "classifier_bias": head["transform_bias"],
            },
        ),
        Architecture(
            "ModernBertForSequenceClassification",
            kind="pooled",
            table=Table(
                rules=(
                    Rule("head.dense.{p}", "head.dense.{p}"),
                    Rule("head.norm.{p}", "head.norm.{p}"),
                    Rule("classifier.{p}", "head.classifier.{p}"),
                )
            ),
            head=_pooled,
            pipeline="text-classification",
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
