"""Llama (Touvron et al. 2023), and what nanochat, Qwen3 and EuroBERT have of it.

Our dropout of vectors (``hidden_dropout_prob``) has no equivalent in these classes. It is written to config.json under
our name, where transformers ignores it.
"""

from __future__ import annotations

import math

from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf.engine import Change, Drop, Rule, Table, unchanged
from homespun.hf.families.gpt2 import causal_lm, last_token, padding
from homespun.hf.family import Architecture, Family, headless
from homespun.models.encoder import EncoderConfig
from homespun.models.positions import RotaryPositionsConfig

LAYER, OWN = "model.layers.{i}", "backbone.layers.{i}"
EMBEDDINGS = Rule("model.embed_tokens.weight", "backbone.embeddings.words.weight")

# settings under our names that these configs spell otherwise
NAMES = {
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "rms_norm_eps",
    "head_size": "head_dim",
}
# what all of these configs have, with the values of LlamaConfig
DEFAULTS = {
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
ROTATIONS = Drop(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", "frequencies of the rotations, not a weight")
NORMS = (
    Rule(f"{LAYER}.input_layernorm.{{p}}", f"{OWN}.attention.norm.{{p}}"),
    Rule(f"{LAYER}.post_attention_layernorm.{{p}}", f"{OWN}.feedforward.norm.{{p}}"),
    Rule("model.norm.{p}", "backbone.final_norm.{p}"),
)
GATED = (
    Rule(f"{LAYER}.mlp.gate_proj.{{p}}", f"{OWN}.feedforward.sublayer.inner.{{p}}"),
    Rule(f"{LAYER}.mlp.up_proj.{{p}}", f"{OWN}.feedforward.sublayer.gate.{{p}}"),
    Rule(f"{LAYER}.mlp.down_proj.{{p}}", f"{OWN}.feedforward.sublayer.outer.{{p}}"),
)


def attention_rules(rotated: Change = unchanged) -> tuple[Rule, ...]:
    """Projections of the attention; ``rotated`` changes those of queries and keys, and undoes its own change."""
    theirs, ours = f"{LAYER}.self_attn", f"{OWN}.attention.sublayer"
    return (
        Rule(f"{theirs}.q_proj.{{p}}", f"{ours}.query.{{p}}", rotated, rotated),
        Rule(f"{theirs}.k_proj.{{p}}", f"{ours}.key.{{p}}", rotated, rotated),
        Rule(f"{theirs}.v_proj.{{p}}", f"{ours}.value.{{p}}"),
        Rule(f"{theirs}.o_proj.{{p}}", f"{ours}.output.{{p}}"),
    )


def read(settings: Tree) -> Tree:
    """Fields of a stack with RMS norms before its sublayers, and rotary positions.

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
        "pad_token_id": padding(settings),
    }


def write(backbone: EncoderConfig) -> Tree:
    """Settings of a config.json that are not plain values here."""
    positions = backbone.positions
    heads = backbone.num_attention_heads
    own: Tree = {"head_dim": backbone.head_size or backbone.hidden_size // heads}
    if isinstance(positions, RotaryPositionsConfig):
        own["rope_parameters"] = {"rope_type": "default", "rope_theta": positions.theta}
    return own


def _product(*factors: object) -> int | None:
    """None where config.json has something else than whole numbers, which is reported with the field."""
    numbers = [factor for factor in factors if isinstance(factor, int)]
    return math.prod(numbers) if len(numbers) == len(factors) else None


def rope_theta(settings: Tree, default: object = 10_000.0) -> object:
    """The base of the wavelengths: of ``rope_parameters`` (transformers 5), or of the older ``rope_theta``.

    Raises:
        UserError: positions that are scaled, or rotate a part of each head.
    """
    # transformers prefers the older name where a file has both
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
    """That the class takes the sizes.

    Raises:
        UserError: it refuses them.
    """
    hidden, heads = settings["hidden_size"], settings["num_attention_heads"]
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads:
        raise UserError(f"hidden_size={hidden} must be a multiple of num_attention_heads={heads}")


def dropout_note(backbone: EncoderConfig) -> tuple[str, ...]:
    """A note on dropout that transformers does not apply."""
    if not backbone.hidden_dropout_prob:
        return ()
    return (f"hidden_dropout_prob={backbone.hidden_dropout_prob} is not applied by transformers in training",)


def decoder_classes(name: str) -> tuple[Architecture, ...]:
    """The model, and the heads that predict the next token and classify texts by the last one."""
    words = "model.embed_tokens"
    return (
        headless(f"{name}Model", "model.", notes=dropout_note),
        *(
            causal_lm(f"{name}ForCausalLM", words, tied=tied, default=False, notes=dropout_note)
            for tied in (True, False)
        ),
        last_token(f"{name}ForSequenceClassification", notes=dropout_note),
    )


def _read(settings: Tree, kind: str | None) -> Tree:
    check_heads(settings)
    return read(settings) | {"gated_feed_forward": True, "causal": True}


LLAMA = Family(
    model_type="llama",
    prefix="model.",
    table=Table(rules=(EMBEDDINGS, *attention_rules(), *NORMS, *GATED), drops=(ROTATIONS,)),
    architectures=decoder_classes("Llama"),
    defaults=DEFAULTS | {"mlp_bias": False},
    names=NAMES,
    read=_read,
    write=write,
)
