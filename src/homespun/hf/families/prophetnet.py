"""ProphetNet (Qi et al. 2020): an encoder-decoder with streams that predict several tokens ahead.

Position 0 is the row after the padding id. The first stream is the last row of the embedding of streams.
``disable_ngram_loss``, ``eps`` and ``activation_dropout`` apply in training only: they are ignored, and written as
values without effect.

In a pass over many tokens, ``transformers`` 5.23 adds relative position biases of the predicting streams to the wrong
tokens, heads and streams. A pass over one token, as in generation, and the code of the paper are correct.
"""

from __future__ import annotations

from homespun.attention.ngram import NgramAttentionConfig
from homespun.config import Tree
from homespun.hf import builders
from homespun.hf.builders import LAYER, after_padding, attention_rules, feedforward_rules, module
from homespun.hf.engine import Copy, Rule, Table, in_stack
from homespun.hf.families.bart import stack_names
from homespun.hf.family import Architecture, Family
from homespun.models.encoder_decoder import EncoderDecoderConfig

_WORDS = "prophetnet.word_embeddings.weight"
_DECODER = "prophetnet.decoder.layers.{i}"
_NAMES = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_{stack}_layers",
    "num_attention_heads": "num_{stack}_attention_heads",
}


def _attention(prefix: str, sublayer: str) -> tuple[Rule, ...]:
    parts = ("query_proj", "key_proj", "value_proj", "out_proj")
    return attention_rules(prefix, *parts, sublayer=sublayer, norm=f"{prefix}_layer_norm")


def _stack(name: str, *others: Rule) -> tuple[Rule, ...]:
    layer = f"prophetnet.{name}.layers.{{i}}"
    return in_stack(
        name,
        builders.learned_positions(f"prophetnet.{name}.position_embeddings.weight", offset=after_padding),
        module(f"prophetnet.{name}.embeddings_layer_norm", "backbone.embeddings.norm"),
        *_attention(f"{layer}.self_attn", "attention"),
        *feedforward_rules(f"{layer}.feed_forward", "intermediate", "output"),
        module(f"{layer}.feed_forward_layer_norm", f"{LAYER}.feedforward.norm"),
        *others,
    )


def _read(settings: Tree, kind: str | None) -> Tree:
    stack = {"type_vocab_size": 0, "layer_norm_eps": 1e-5}
    attention = {"kind": "ngram"} | {name: settings[name] for name in ("num_buckets", "relative_max_distance")}
    return {"ngram": settings["ngram"], "encoder": stack, "decoder": stack | {"attention": attention}}


def _write(backbone: EncoderDecoderConfig) -> Tree:
    settings: Tree = {"ngram": backbone.ngram}
    match backbone.decoder.attention:
        case NgramAttentionConfig(num_buckets=buckets, relative_max_distance=distance):
            settings |= {"num_buckets": buckets, "relative_max_distance": distance}
    return settings


def _notes(backbone: EncoderDecoderConfig) -> tuple[str, ...]:
    order = (
        "in a pass over many tokens transformers misplaces the relative biases of the predicting streams, and its "
        "logits differ from those of this model; those of generate are equal"
    )
    encoder, decoder = backbone.encoder.num_hidden_layers, backbone.decoder.num_hidden_layers
    cache = (
        f"transformers makes a cache for the {encoder} layers of the encoder, but the decoder has {decoder}; call "
        f"generate with past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache())"
    )
    return (order, *[cache] * (decoder > encoder))


def _main_stream(backbone: EncoderDecoderConfig) -> tuple[str, ...]:
    first = "last_hidden_state is the main stream; the vectors of this model are the first of last_hidden_state_ngram"
    return (first, *_notes(backbone))


PROPHETNET = Family(
    model_type="prophetnet",
    prefix="prophetnet.",
    table=Table(
        rules=(
            Rule(_WORDS, "backbone.encoder.embeddings.words.weight"),
            Rule(
                "prophetnet.decoder.ngram_embeddings.weight",
                "backbone.predicting.embedding.weight",
                lambda tensor, _: tensor.roll(1, 0),
                lambda tensor, _: tensor.roll(-1, 0),
            ),
            *_stack("encoder"),
            *_stack(
                "decoder",
                *_attention(f"{_DECODER}.cross_attn", "cross_attention"),
                module(f"{_DECODER}.self_attn.relative_pos_embeddings", f"{LAYER}.attention.sublayer.relative"),
            ),
        ),
        copies=tuple(Copy(f"prophetnet.{stack}.word_embeddings.weight", of=_WORDS) for stack in ("encoder", "decoder")),
    ),
    architectures=(
        builders.headless("ProphetNetModel", "prophetnet.", notes=_main_stream),
        Architecture(
            "ProphetNetForConditionalGeneration",
            kind="causal_lm",
            table=Table(copies=(Copy("lm_head.weight", of=_WORDS),)),
            head=lambda settings: {"kind": "causal_lm"},
            pipeline="text2text-generation",
            notes=_notes,
        ),
    ),
    defaults={
        "vocab_size": 30522,
        "hidden_size": 1024,
        "encoder_ffn_dim": 4096,
        "num_encoder_layers": 12,
        "num_encoder_attention_heads": 16,
        "decoder_ffn_dim": 4096,
        "num_decoder_layers": 12,
        "num_decoder_attention_heads": 16,
        "activation_function": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation_dropout": 0.0,
        "init_std": 0.02,
        "max_position_embeddings": 512,
        "ngram": 2,
        "num_buckets": 32,
        "relative_max_distance": 128,
        "disable_ngram_loss": False,
        "eps": 0.0,
        "is_encoder_decoder": True,
        "add_cross_attention": True,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
    },
    names=stack_names("encoder", _NAMES),
    decoder_names=stack_names("decoder", _NAMES),
    read=_read,
    write=_write,
    fixed={
        "is_encoder_decoder": (None, True),
        "add_cross_attention": (None, True),
        "tie_word_embeddings": (None, True),
    },
    offset=after_padding,
    dropouts=lambda settings: ("activation_dropout",),
)
