"""T5 (Raffel et al. 2020), 1.0 and 1.1: relative position biases, RMS norms before the sublayers, no other biases.

Version 1.0 has ReLU and tied output embeddings, with hidden states times ``d_model^-0.5``; 1.1 has gated GELU and
untied output embeddings. Older config.json files distinguish them by ``tie_word_embeddings``, newer ones by
``scale_decoder_outputs``, where only the tensors show if the embeddings are tied.

There are three families: `T5` with two stacks, `T5_CLASSIFIER` with another prefix, and `T5_ENCODER` with one stack.
``n_positions`` is the length in training; T5 has no maximum length. In transformers ``dropout_rate`` also applies
inside the feed-forward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from homespun.attention.relative_bias import RelativeBiasAttentionConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import builders
from homespun.hf.builders import LAYER, annotated, attention_rules, module
from homespun.hf.engine import AnyBackbone, Copy, Drop, Rule, Table, in_stack
from homespun.hf.families.bart import classifier
from homespun.hf.family import Architecture, Defaults, Family, Infer, activation
from homespun.models.encoder import EncoderConfig

_WORDS, _OUTPUT = "shared.weight", "lm_head.weight"
# not in config.json; reported by `_notes`
_UNSUPPORTED = ("attention_probs_dropout_prob", "initializer_range")

_DEFAULTS: Defaults = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "n_positions": 512,
    "pad_token_id": 0,
    "is_encoder_decoder": False,
}
_NAMES = {
    "hidden_size": "d_model",
    "head_size": "d_kv",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_dropout_prob": "dropout_rate",
    "layer_norm_eps": "layer_norm_epsilon",
    "max_position_embeddings": "n_positions",
}


def _attention(layer: str, name: str, sublayer: str) -> tuple[Rule, ...]:
    return attention_rules(f"{layer}.{name}", "q", "k", "v", "o", sublayer=sublayer, norm=f"{layer}.layer_norm")


def _stack(name: str, prefix: str = "") -> tuple[Rule, ...]:
    """Layers of a stack; the feed-forward is the last part of a layer."""
    layer = f"{prefix}{name}.block.{{i}}.layer"
    cross = _attention(f"{layer}.1", "EncDecAttention", "cross_attention") if name == "decoder" else ()
    last, feedforward = f"{layer}.{2 if cross else 1}", f"{LAYER}.feedforward"
    dense, sublayer = f"{last}.DenseReluDense", f"{feedforward}.sublayer"
    return (
        *_attention(f"{layer}.0", "SelfAttention", "attention"),
        # in the first layer, for all layers
        Rule(
            f"{layer}.0.SelfAttention.relative_attention_bias.weight",
            f"{LAYER}.attention.sublayer.kernel.bias.embedding.weight",
        ),
        *cross,
        replace(module(f"{dense}.wi", f"{sublayer}.inner"), when=lambda backbone: not backbone.gated_feed_forward),
        *(
            replace(rule, when=lambda backbone: backbone.gated_feed_forward)
            for rule in (module(f"{dense}.wi_0", f"{sublayer}.inner"), module(f"{dense}.wi_1", f"{sublayer}.gate"))
        ),
        module(f"{dense}.wo", f"{sublayer}.outer"),
        module(f"{last}.layer_norm", f"{feedforward}.norm"),
        Rule(f"{prefix}{name}.final_layer_norm.weight", "backbone.final_norm.0.weight"),
    )


def _read_stack(settings: Tree) -> Tree:
    name = settings["feed_forward_proj"]
    gate, _, act = name.rpartition("-") if isinstance(name, str) else ("?", "", "")
    if gate not in ("", "gated"):
        raise UserError(f"feed_forward_proj={name!r} must be ACTIVATION or gated-ACTIVATION")
    default = "gelu_new" if name == "gated-gelu" else act  # an exception in transformers too
    return {
        "embedding_norm": False,
        "type_vocab_size": 0,
        "norm": "rms_norm",
        "attention_bias": False,
        "mlp_bias": False,
        "scale_attn_weights": False,
        "positions": {"kind": "none"},
        "residual": {"kind": "pre", "final_dropout": True},
        "attention_probs_dropout_prob": settings["dropout_rate"],
        "gated_feed_forward": bool(gate),
        "hidden_act": activation(settings.get("dense_act_fn") or default),
        "attention": {
            "kind": "relative_bias",
            "num_buckets": settings["relative_attention_num_buckets"],
            "max_distance": settings["relative_attention_max_distance"],
        },
    }


def _read(settings: Tree, kind: str | None) -> Tree:
    stack, layers, start = _read_stack(settings), settings["num_decoder_layers"], settings["decoder_start_token_id"]
    return {
        "encoder": stack,
        "decoder": stack | {"num_hidden_layers": settings["num_layers"] if layers is None else layers},
        "decoder_start_token_id": settings["pad_token_id"] if start is None else start,
        "learned_padding": True,
    }


def _write_stack(stack: EncoderConfig) -> Tree:
    act = stack.hidden_act
    gated = {"gelu_new": "gated-gelu", "gelu": "gated-gelu_python"}.get(act, f"gated-{act}")
    settings: Tree = {
        "feed_forward_proj": gated if stack.gated_feed_forward else act,
        "d_kv": stack.head_size or stack.hidden_size // stack.num_attention_heads,
    }
    match stack.attention:
        case RelativeBiasAttentionConfig(num_buckets=buckets, max_distance=distance):
            settings |= {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    return settings


def _notes(backbone: AnyBackbone) -> tuple[str, ...]:
    first, last = backbone.stacks[0], backbone.stacks[-1]
    notes = []
    if first.attention_probs_dropout_prob != first.hidden_dropout_prob:
        notes.append("in training transformers applies dropout_rate to the attention probabilities too")
    if first.max_position_embeddings != last.max_position_embeddings:
        notes.append(
            f"max_position_embeddings={last.max_position_embeddings} of the decoder is not in config.json, because T5 "
            f"has no limit"
        )
    return tuple(notes)


def _tied(tree: Tree) -> bool:
    return tree.get("tie_word_embeddings") is not False


def _scaled(tree: Tree) -> bool:
    scale = tree.get("scale_decoder_outputs")
    return _tied(tree) if scale is None else bool(scale)


def _infer_tying(tree: Tree, weights: Mapping[str, Tensor]) -> Tree:
    """Compare the embeddings: transformers 5 writes ``tie_word_embeddings=true`` for every T5."""
    words, output = weights.get(_WORDS), weights.get(_OUTPUT)
    if not _tied(tree) or words is None or output is None:
        return {}
    if words.shape == output.shape and torch.equal(words, output):
        return {}
    return {"tie_word_embeddings": False, "scale_decoder_outputs": _scaled(tree)}


def _conditional_lm(*, tied: bool, scaled: bool) -> Architecture:
    table = Table(copies=(Copy(_OUTPUT, of=_WORDS),)) if tied else Table((Rule(_OUTPUT, "head.words.weight"),))
    return Architecture(
        "T5ForConditionalGeneration",
        kind="causal_lm",
        table=table,
        head=lambda settings: {"kind": "causal_lm", "tie_word_embeddings": tied, "scaled": scaled},
        pipeline="text2text-generation",
        write=lambda head: {"tie_word_embeddings": tied, "scale_decoder_outputs": scaled},
        fits=lambda tree: (_tied(tree), _scaled(tree)) == (tied, scaled),
    )


_UNSUPPORTED_OF_ONE = frozenset(f"backbone.{name}" for name in _UNSUPPORTED)
_UNSUPPORTED_OF_TWO = frozenset(
    {
        "backbone.learned_padding",
        "backbone.decoder.max_position_embeddings",
        *(f"backbone.{stack}.{name}" for stack in ("encoder", "decoder") for name in _UNSUPPORTED),
    }
)


def _both_stacks(prefix: str) -> Table:
    words = f"{prefix}{_WORDS}"
    unused = rf"{prefix}decoder\..*\.EncDecAttention\.relative_attention_bias\.weight"
    return Table(
        rules=(
            Rule(words, "backbone.encoder.embeddings.words.weight"),
            *in_stack("encoder", *_stack("encoder", prefix)),
            *in_stack("decoder", *_stack("decoder", prefix)),
        ),
        copies=tuple(Copy(f"{prefix}{stack}.embed_tokens.weight", of=words) for stack in ("decoder", "encoder")),
        drops=(Drop(unused, "transformers does not add it"),),
    )


def _of_two(
    prefix: str, *architectures: Architecture, defaults: Defaults, infer: Infer = lambda tree, weights: {}
) -> Family:
    return Family(
        model_type="t5",
        prefix=prefix,
        table=_both_stacks(prefix),
        architectures=annotated(*architectures, notes=_notes, unsupported_fields=_UNSUPPORTED_OF_TWO),
        defaults=_DEFAULTS
        | {
            "num_decoder_layers": None,
            "bos_token_id": None,
            "eos_token_id": 1,
            "decoder_start_token_id": None,
            "forced_bos_token_id": None,
            "forced_eos_token_id": None,
            "is_encoder_decoder": True,
        }
        | defaults,
        names=_NAMES,
        decoder_names=_NAMES | {"num_hidden_layers": "num_decoder_layers"},
        read=_read,
        write=lambda backbone: _write_stack(backbone.encoder),
        infer_from_tensors=infer,
    )


T5 = _of_two(
    "",
    builders.headless("T5Model", "", Drop(r"lm_head\.weight", builders.DROPPED_HEAD)),
    _conditional_lm(tied=True, scaled=True),
    _conditional_lm(tied=False, scaled=False),
    _conditional_lm(tied=True, scaled=False),
    _conditional_lm(tied=False, scaled=True),
    builders.question_answering("T5ForQuestionAnswering"),
    defaults={},
    infer=_infer_tying,
)

_INSIDE = "transformer."  # prefix of the stacks in classes with a head

T5_CLASSIFIER = _of_two(
    _INSIDE,
    builders.headless("T5Model", _INSIDE),
    classifier("T5ForSequenceClassification"),
    defaults={"classifier_dropout": 0.0},
)

T5_ENCODER = Family(
    model_type="t5",
    prefix=_INSIDE,
    table=Table(
        rules=(Rule(f"{_INSIDE}{_WORDS}", "backbone.embeddings.words.weight"), *_stack("encoder", _INSIDE)),
        copies=(Copy(f"{_INSIDE}encoder.embed_tokens.weight", of=f"{_INSIDE}{_WORDS}"),),
    ),
    architectures=annotated(
        builders.headless(
            "T5EncoderModel",
            _INSIDE,
            Drop(r"transformer\.decoder\..*", "the decoder, and the model is opened without it"),
            Drop(r"transformer\.lm_head\.weight", builders.DROPPED_HEAD),
        ),
        builders.token_classification("T5ForTokenClassification"),
        notes=_notes,
        unsupported_fields=_UNSUPPORTED_OF_ONE,
    ),
    defaults=_DEFAULTS | {"classifier_dropout": 0.0},
    names=_NAMES,
    read=lambda settings, kind: _read_stack(settings),
    write=_write_stack,
)
