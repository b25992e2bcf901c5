"""Presets: named architectures with their sizes, as dictionaries of config fields. A config can override any field."""

from __future__ import annotations

from homespun.config import Tree
from homespun.errors import UserError, nearest
from homespun.models.presets.encoder_decoders import ENCODER_DECODERS
from homespun.models.presets.encoders import DECODERS, ENCODERS, SIZES, SMALL, dimensions

# lstm-medium and lstm-large are the language models of Zaremba et al. 2014, section 4.1, rnn-seq2seq-base the
# translation model of Bahdanau et al. 2015, section 4.2. Sizes tiny and mini are ours.


def _stack(cell: str, width: int, layers: int = 2, **fields: object) -> Tree:
    return {"kind": "recurrent", "cell": cell, "hidden_size": width, "num_hidden_layers": layers} | fields


def _two(width: int, embedding: int, *, attention: str = "additive") -> Tree:
    """Fields of a GRU encoder-decoder; each direction of the encoder is as wide as the decoder."""
    encoder = _stack("gru", 2 * width, 1, embedding_size=embedding, bidirectional=True)
    return {
        "kind": "encoder_decoder",
        "encoder": encoder,
        "decoder": {"hidden_size": width, "attention": {"kind": attention}},
    }


_SMALL = {"tiny": 128, "mini": 256}

RECURRENT: dict[str, Tree] = {
    **{f"{cell}-{size}": _stack(cell, width) for cell in ("rnn", "lstm", "gru") for size, width in _SMALL.items()},
    "lstm-medium": _stack("lstm", 650, hidden_dropout_prob=0.5),
    "lstm-large": _stack("lstm", 1500, hidden_dropout_prob=0.65),
    # each direction has the width of the unidirectional model
    **{
        f"bi{cell}-{size}": _stack(cell, 2 * width, embedding_size=width, bidirectional=True)
        for cell in ("lstm", "gru")
        for size, width in _SMALL.items()
    },
    **{f"rnn-seq2seq-{size}": _two(width, width) for size, width in _SMALL.items()},
    "rnn-seq2seq-base": _two(1000, 620),
    "rnn-seq2seq-plain-mini": _two(256, 256, attention="none"),
}


def _elmo(width: int, cell: int, characters: Tree) -> Tree:
    """Fields of ELMo; ``width`` is that of a direction and of word vectors."""
    return {
        "kind": "recurrent",
        "cell": "lstm",
        "hidden_size": 2 * width,
        "cell_size": cell,
        "num_hidden_layers": 2,
        "bidirectional": True,
        "independent_directions": True,
        "characters": characters,
    }


ELMO: dict[str, Tree] = {
    "elmo-tiny": _elmo(32, 64, {"max_word_length": 20, "filters": ((1, 8), (2, 16), (3, 24), (4, 16))}),
    "elmo-mini": _elmo(128, 512, {"max_word_length": 30, "filters": ((1, 16), (2, 32), (3, 64), (4, 64), (5, 80))}),
    "elmo-original": _elmo(512, 4096, {}),
}


# Our own models, the blocks with the lowest loss for equal training time (results/efficiency.md): pre-norm, no dropout,
# weights initialised by width, output projections by zero. The decoder is the block of NanoChat (rotary positions,
# norms without weights, qk_norm, squared ReLU), the encoder that of ModernBERT with attention biases and
# neighbour_heads, the encoder-decoder that of T5 1.1 with neighbour_heads, copy_heads, one table of embeddings, and
# scaled scores and embeddings, which `homespun.hf.folding` converts on export.
_BLOCK: Tree = {
    "max_position_embeddings": 2048,
    "type_vocab_size": 0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "mlp_bias": False,
    "initialization": "fan_in",
    "initializer_range": 0.03,
    "positions": {"kind": "rotary"},
    "residual": {"kind": "pre"},
}
_DECODER: Tree = _BLOCK | {
    "causal": True,
    "hidden_act": "relu2",
    "norm": "rms_norm",
    "norm_weight": False,
    "layer_norm_eps": 1e-6,
    "qk_norm": True,
    "attention_bias": False,
}
_ENCODER: Tree = _BLOCK | {
    "gated_feed_forward": True,
    "norm_bias": False,
    "layer_norm_eps": 1e-5,
    "residual": {"kind": "pre", "first_norm": False},
    "neighbour_heads": 1,
}
_RELATIVE_BIAS: Tree = {"kind": "relative_bias"}
_ENCODER_DECODER: Tree = _BLOCK | {
    "gated_feed_forward": True,
    "hidden_act": "gelu_new",
    "norm": "rms_norm",
    "layer_norm_eps": 1e-6,
    "embedding_norm": False,
    "attention_bias": False,
    "scale_embedding": True,
    "positions": {"kind": "none"},
    "attention": _RELATIVE_BIAS,
    "residual": {"kind": "pre", "final_dropout": True},
    "neighbour_heads": 1,
}


_SIZES = {**SMALL, "small": dimensions(6, 384), "medium": dimensions(8, 512), "base": SIZES["base"]}


def _gated(values: Tree) -> Tree:
    """Set two thirds of the intermediate size, in steps of 64, so that the gate adds no parameters."""
    return values | {"intermediate_size": round(values["intermediate_size"] / 96) * 64}


SPUN: dict[str, Tree] = {
    **{f"spun-decoder-{size}": values | _DECODER for size, values in _SIZES.items()},
    **{f"spun-encoder-{size}": _gated(values) | _ENCODER for size, values in _SIZES.items()},
    **{
        f"spun-encoder-decoder-{size}": {
            "kind": "encoder_decoder",
            "encoder": _gated(values) | _ENCODER_DECODER,
            "decoder": {"attention": _RELATIVE_BIAS},
            "learned_padding": True,
            "copy_heads": True,
        }
        for size, values in _SIZES.items()
    },
}


PRESETS: dict[str, Tree] = {**ENCODERS, **DECODERS, **ENCODER_DECODERS, **RECURRENT, **ELMO, **SPUN}
AUTO_SIZE_FAMILIES = tuple(dict.fromkeys(name.rpartition("-")[0] for name in SPUN))
"""Families with ``size: auto``, their default size."""


def sizes_of(family: str) -> dict[str, str]:
    """Return the presets of a family by size: ``{"tiny": "spun-decoder-tiny", ...}``; empty for unknown families."""
    split = {name: name.rpartition("-") for name in PRESETS}
    return {size: name for name, (found, _, size) in split.items() if found == family}


def family_of(preset: str) -> str:
    """Return the family of a preset such as ``spun-decoder-mini``; other names are unchanged."""
    return preset.rpartition("-")[0] if preset in PRESETS else preset


def preset_name(preset: object, size: object = None) -> str:
    """Return the name of a preset; ``size`` overrides the size in ``preset``.

    Args:
        preset: ``spun-decoder-mini``, or the family ``spun-decoder`` with a size.
        size: for example ``mini``; None: the size in ``preset``.

    Raises:
        UserError: the preset, family or size is unknown.
    """
    name = str(preset)
    sizes = sizes_of(family_of(name))
    if size is None and name in PRESETS:
        return name
    if not sizes:
        raise UserError(f"unknown preset {preset!r}{nearest(name, PRESETS)}")
    if size is None:
        raise UserError(f"preset={name} is a family; set size to one of {', '.join(sizes)}")
    if size not in sizes:
        automatic = ["auto"] if family_of(name) in AUTO_SIZE_FAMILIES else []
        raise UserError(f"size={size} must be one of {', '.join([*sizes, *automatic])} for preset={name}")
    return sizes[str(size)]


def expand_preset(tree: Tree) -> Tree:
    """Replace ``preset`` and ``size`` of a mapping by the fields of the preset; other fields override them.

    Raises:
        UserError: the preset or size is unknown.
    """
    if "preset" not in tree:
        return tree
    fields = {key: value for key, value in tree.items() if key not in ("preset", "size")}
    return completed(fields, PRESETS[preset_name(tree["preset"], tree.get("size"))])


def completed(given: Tree, base: Tree) -> Tree:
    """Merge ``given`` into ``base`` recursively; a mapping of another ``kind`` or with a ``preset`` replaces it."""
    return base | {
        key: completed(value, base[key]) if _can_merge(value, base.get(key)) else value for key, value in given.items()
    }


def _can_merge(given: object, base: object) -> bool:
    if not isinstance(given, dict) or not isinstance(base, dict) or "preset" in given:
        return False
    return "kind" not in given or "kind" not in base or given["kind"] == base["kind"]


def default_kind(tree: object) -> object:
    """Expand the preset of a mapping and default to kind ``encoder``."""
    return {"kind": "encoder"} | expand_preset(tree) if isinstance(tree, dict) else tree


def kind_of_model(tree: object) -> object:
    """Expand as `default_kind`; a family without a size has kind ``auto_size``."""
    if isinstance(tree, dict):
        size = tree.get("size")
        if size == "auto" or (size is None and tree.get("preset") in AUTO_SIZE_FAMILIES):
            return {"kind": "auto_size"} | tree
    return default_kind(tree)
