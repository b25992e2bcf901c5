"""Llama (Touvron et al. 2023), EuroBERT (Boizard et al. 2025), nanochat (Karpathy 2025), Qwen3 (Yang et al. 2025).

EuroBERT is bidirectional and predicts masked tokens by the head ``causal_lm``. nanochat has norms without weights, also
of queries and keys, and squared ReLU. It rotates in the opposite direction, which equals exchanged halves of each head,
and before the norms, which commute with rotations. Qwen3 has norms of queries and keys.

transformers has no dropout of hidden states in these models: it ignores the ``hidden_dropout_prob`` of config.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import builders
from homespun.hf.builders import LAYER, annotated, module
from homespun.hf.engine import Change, Drop, Rule, Table, unchanged
from homespun.hf.family import Architecture, Defaults, Family, Fixed
from homespun.models.encoder import EncoderConfig
from homespun.models.layer_parts import RotaryPositionsConfig

LAYERS = "model.layers.{i}"
WORDS = "model.embed_tokens"
# LlamaConfig
_DEFAULTS: Defaults = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "pad_token_id": None,
    "rope_parameters": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
}


def backbone_rules(rotated: Change = unchanged) -> tuple[Rule, ...]:
    """Embeddings and attention; ``rotated`` as in `builders.attention_rules`."""
    return (
        Rule(f"{WORDS}.weight", "backbone.embeddings.words.weight"),
        *builders.attention_rules(f"{LAYERS}.self_attn", "q_proj", "k_proj", "v_proj", "o_proj", rotated=rotated),
    )


GATED = Table(
    rules=(
        *backbone_rules(),
        *builders.norm_rules(LAYERS, "input_layernorm", "post_attention_layernorm"),
        module("model.norm", "backbone.final_norm"),
        *builders.feedforward_rules(f"{LAYERS}.mlp", "gate_proj", "down_proj", gate="up_proj"),
    ),
    drops=(
        Drop(
            r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", "frequencies of the rotary positions, not a weight"
        ),
    ),
)


def family(
    model_type: str,
    table: Table,
    *architectures: Architecture,
    defaults: Defaults,
    fields: Tree,
    check: Callable[[Tree], None],
    fixed: Fixed | None = None,
) -> Family:
    """A family with the settings of Llama.

    Args:
        model_type, table, architectures, fixed: as in `Family`.
        defaults: settings that differ from Llama or are added.
        fields: fields of the backbone that differ from `_read`.
        check: raises `UserError` for settings that are not supported.
    """

    def read(settings: Tree, kind: str | None) -> Tree:
        check(settings)
        return _read(settings) | fields

    return Family(
        model_type=model_type,
        prefix="model.",
        table=table,
        architectures=annotated(*architectures, notes=_dropout_note),
        defaults=_DEFAULTS | defaults,
        names={
            "attention_probs_dropout_prob": "attention_dropout",
            "layer_norm_eps": "rms_norm_eps",
            "head_size": "head_dim",
        },
        read=read,
        write=_write,
        fixed=fixed or {},
    )


def _read(settings: Tree) -> Tree:
    """Fields of a pre-norm stack with RMS norms and rotary positions.

    Raises:
        UserError: scaled rotary positions.
    """
    heads, groups, size = settings["num_attention_heads"], settings["num_key_value_heads"], settings["head_dim"]
    return {
        "type_vocab_size": 0,
        "norm": "rms_norm",
        "embedding_norm": False,
        "residual": {"kind": "pre"},
        "positions": {"kind": "rotary", "theta": rope_theta(settings)},
        "num_key_value_heads": 0 if groups in (None, heads) else groups,
        "head_size": 0 if size is None or settings["hidden_size"] == _product(size, heads) else size,
        "pad_token_id": builders.pad_or_eos(settings),
    }


def _write(backbone: EncoderConfig) -> Tree:
    settings: Tree = {"head_dim": backbone.head_size or backbone.hidden_size // backbone.num_attention_heads}
    if isinstance(backbone.positions, RotaryPositionsConfig):
        settings["rope_parameters"] = {"rope_type": "default", "rope_theta": backbone.positions.theta}
    return settings


def _product(*factors: object) -> int | None:
    """Product of integers; None for other values, which pydantic reports."""
    numbers = [factor for factor in factors if isinstance(factor, int)]
    return math.prod(numbers) if len(numbers) == len(factors) else None


def rope_theta(settings: Tree, default: object = 10_000.0) -> object:
    """Base of the wavelengths: of ``rope_parameters`` (transformers 5) or the older ``rope_theta``.

    Raises:
        UserError: scaled positions, or rotation of a part of each head.
    """
    # the older name has priority, as in transformers
    parameters = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise UserError(f"rope_parameters={parameters!r} is not supported, only a mapping with rope_theta")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UserError(f"rope_parameters.rope_type={kind!r} is not supported, only 'default'")
    part = parameters.get("partial_rotary_factor", settings.get("partial_rotary_factor"))
    if part not in (None, 1):
        raise UserError(f"partial_rotary_factor={part!r} is not supported, only 1.0")
    theta = parameters.get("rope_theta", settings.get("rope_theta"))
    return default if theta is None else theta


def check_heads(settings: Tree) -> None:
    """Raise `UserError` for heads that transformers does not support."""
    hidden, heads = settings["hidden_size"], settings["num_attention_heads"]
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads:
        raise UserError(f"hidden_size={hidden} must be a multiple of num_attention_heads={heads}")


def _dropout_note(backbone: EncoderConfig) -> tuple[str, ...]:
    if not backbone.hidden_dropout_prob:
        return ()
    return (f"hidden_dropout_prob={backbone.hidden_dropout_prob} is not applied by transformers in training",)


def decoder_classes(name: str) -> tuple[Architecture, ...]:
    """Classes of a decoder: without a head, language model, and classifier of texts."""
    return (
        builders.headless(f"{name}Model", "model."),
        *builders.causal_lm(f"{name}ForCausalLM", WORDS, tied_by_default=False),
        builders.last_token_classification(f"{name}ForSequenceClassification"),
    )


LLAMA = family(
    "llama",
    GATED,
    *decoder_classes("Llama"),
    defaults={"mlp_bias": False},
    fields={"gated_feed_forward": True, "causal": True},
    check=check_heads,
)


_POOLING = builders.Pooling({"bos": "first", "mean": "mean"})


def _check_bias(settings: Tree) -> None:
    if settings["mlp_bias"] is not False:
        raise UserError(
            "mlp_bias=True is not supported, because the head of masked tokens would have a bias; only False"
        )


EUROBERT = family(
    "eurobert",
    GATED,
    builders.headless("EuroBertModel", "model."),
    *builders.causal_lm("EuroBertForMaskedLM", WORDS, tied_by_default=False, check=_check_bias, pipeline="fill-mask"),
    builders.text_classification(
        "EuroBertForSequenceClassification",
        dense="dense",
        classifier="classifier",
        head=lambda settings: _POOLING.read(settings) | {"hidden_act": "gelu"},
        write=_POOLING.write,
    ),
    builders.token_classification("EuroBertForTokenClassification"),
    defaults={
        "vocab_size": 128256,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 128001,
        "mlp_bias": False,
        "classifier_pooling": "late",
    },
    fields={"gated_feed_forward": True},
    check=check_heads,
)


def exchange_halves(tensor: Tensor, backbone: EncoderConfig) -> Tensor:
    """Exchange the halves of each head in a projection."""
    size = backbone.head_size or backbone.hidden_size // backbone.num_attention_heads
    if not tensor.dim() or tensor.shape[0] % size or size % 2:
        return tensor  # shapes are checked later
    return tensor.reshape(-1, 2, size // 2, *tensor.shape[1:]).flip(1).reshape(tensor.shape)


def _check_cap(settings: Tree) -> None:
    cap = settings.get("final_logit_softcapping", 15.0)  # null means no cap
    if cap is not None:
        raise UserError(
            f"final_logit_softcapping={cap} is not supported by the head, only null; open the model without its head "
            f"by `homespun convert --head none`"
        )


NANOCHAT = family(
    "nanochat",
    Table(rules=(*backbone_rules(exchange_halves), *builders.feedforward_rules(f"{LAYERS}.mlp", "fc1", "fc2"))),
    builders.headless("NanoChatModel", "model."),
    *builders.causal_lm(
        "NanoChatForCausalLM",
        WORDS,
        tied_by_default=False,
        check=_check_cap,
        settings={"final_logit_softcapping": None},
    ),
    defaults={
        "vocab_size": 50304,
        "hidden_size": 768,
        "intermediate_size": 8192,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "hidden_act": "relu2",
        "pad_token_id": 1,
    },
    fields={"mlp_bias": False, "embedding_norm": True, "norm_weight": False, "qk_norm": True, "causal": True},
    check=lambda settings: None,
)


_QK_NORMS = Table(
    rules=tuple(
        module(f"{LAYERS}.self_attn.{name[0]}_norm", f"{LAYER}.attention.sublayer.{name}_norm")
        for name in ("query", "key")
    )
)


def _check_layer_types(settings: Tree) -> None:
    types = settings.get("layer_types")
    if types is not None and (not isinstance(types, list) or {*map(str, types)} - {"full_attention"}):
        raise UserError(f"layer_types={types!r} is not supported, only 'full_attention' for each layer")


QWEN3 = family(
    "qwen3",
    GATED + _QK_NORMS,
    *decoder_classes("Qwen3"),
    defaults={"vocab_size": 151936, "intermediate_size": 22016, "head_dim": 128, "max_position_embeddings": 32768},
    fields={"gated_feed_forward": True, "mlp_bias": False, "qk_norm": True, "causal": True},
    check=_check_layer_types,
    fixed={"use_sliding_window": (None, False)},
)
