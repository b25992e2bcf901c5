"""ProphetNet (Qi et al. 2020): an encoder-decoder whose decoder has streams that predict several tokens ahead.

Position 0 is the row after that of the padding id. In the embedding of the streams, the first one is last there.
``disable_ngram_loss``, ``eps`` and ``activation_dropout`` matter in training alone: they are not read, and written as
values without effect.

In a pass over many tokens, ``transformers`` 5.23 adds relative position biases of the predicting streams to the wrong
tokens, heads and streams, later ones among them. In a pass over one token, as in generation, and in the code that was
released with the paper, they are right, as here.
"""

from __future__ import annotations

from homespun.attention.ngram import NgramAttentionConfig
from homespun.config import Tree
from homespun.hf import builders
from homespun.hf.builders import LAYER, after_padding, attention_rules, feedforward_rules, module
from homespun.hf.engine import Copy, Rule, Table, in_stack
from homespun.hf.family import Architecture, Family
from homespun.models.encoder_decoder import EncoderDecoderConfig

_WORDS = "prophetnet.word_embeddings.weight"
_DECODER = "prophetnet.decoder.layers.{i}"


def _attention(theirs: str, ours: str) -> tuple[Rule, ...]:
    parts = ("query_proj", "key_proj", "value_proj", "out_proj")
    return attention_rules(theirs, *parts, ours=ours, norm=f"{theirs}_layer_norm")


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


def _names(stack: str) -> dict[str, str]:
    return {
        "num_hidden_layers": f"num_{stack}_layers",
        "num_attention_heads": f"num_{stack}_attention_heads",
        "intermediate_size": f"{stack}_ffn_dim",
        "hidden_act": "activation_function",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "initializer_range": "init_std",
    }


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
        "transformers mixes up the biases of distance of the predicting streams in a pass over many tokens, so its "
        "logits are then not this model's; those of generate, token by token, are"
    )
    encoder, decoder = backbone.encoder.num_hidden_layers, backbone.decoder.num_hidden_layers
    cache = (
        f"the cache that transformers makes for it has the {encoder} layers of the encoder and the decoder has "
        f"{decoder}; call generate with past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache())"
    )
    return (order, *[cache] * (decoder > encoder))


def _main_stream(backbone: EncoderDecoderConfig) -> tuple[str, ...]:
    first = "last_hidden_state is there the main stream; this model's vectors are the first of last_hidden_state_ngram"
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
    names=_names("encoder"),
    decoder_names=_names("decoder"),
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
