"""BART (Lewis et al. 2020) and models like it: PEGASUS, LED and BigBird-Pegasus.

BART is an encoder-decoder with shared word embeddings, post-norm, and two unused rows before position 0.
``activation_dropout``, ``encoder_layerdrop`` and ``decoder_layerdrop`` are not supported, and written as 0.
``final_logits_bias``, one number per token, is not trained.

PEGASUS (Zhang et al. 2020) is pre-norm with sinusoidal positions. LED (Beltagy et al. 2020) has the attention of
Longformer in the encoder, and no unused positions; the caller sets ``global_attention_mask``. BigBird-Pegasus (Zaheer
et al. 2020, section 4) has learned positions and the attention of BigBird, see `homespun.hf.families.big_bird`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from homespun.config import Tree
from homespun.hf import builders
from homespun.hf.builders import LAYER, annotated, attention_rules, feedforward_rules, module
from homespun.hf.engine import AnyBackbone, Copy, DefaultTensor, Drop, Rule, Table, in_stack
from homespun.hf.families.big_bird import block_notes, read_blocks, write_blocks
from homespun.hf.families.longformer import global_token_notes, read_windows, write_windows
from homespun.hf.family import Architecture, Defaults, Family
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.nn.positions import SinusoidalPositions

STACKS = ("encoder", "decoder")
_ROWS_BEFORE = 2
_ENDS = (
    "transformers classifies by the last eos_token_id of a text, this model by the last token: every text must end "
    "with this token, and all texts of a batch must have the same number of it"
)
_DEFAULTS: Defaults = {
    "vocab_size": 50265,
    "max_position_embeddings": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "is_encoder_decoder": True,
    "activation_function": "gelu",
    "d_model": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "init_std": 0.02,
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}


def stack_names(stack: str, names: dict[str, str]) -> dict[str, str]:
    """Settings of the fields of a stack; ``names`` replaces or adds some, with ``{stack}``."""
    return {
        "hidden_size": "d_model",
        "num_hidden_layers": f"{stack}_layers",
        "num_attention_heads": f"{stack}_attention_heads",
        "intermediate_size": f"{stack}_ffn_dim",
        "hidden_act": "activation_function",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "initializer_range": "init_std",
    } | {name: setting.format(stack=stack) for name, setting in names.items()}


def family(
    model_type: str,
    name: str,
    rules: tuple[Rule, ...],
    *architectures: Architecture,
    defaults: Defaults,
    stack: Tree,
    table: Table | None = None,
    encoder: Callable[[Tree], Tree] = lambda settings: {},
    write: Callable[[AnyBackbone], Tree] = lambda backbone: {},
    names: dict[str, str] | None = None,
    without: tuple[str, ...] = (),
) -> Family:
    """A family with the decoder of BART and one word embedding for both stacks.

    Args:
        model_type, architectures, write: as in `Family`.
        name: prefix of tensors.
        rules: all tensors except word embeddings and layers of the decoder.
        defaults: settings that differ from BART or are added.
        stack: fields of both stacks that are not copied from config.json.
        table: further copies, drops and default tensors.
        encoder: maps config.json to further fields of the encoder.
        names: further names of fields in config.json, with ``{stack}``.
        without: settings of BART that the family lacks.
    """
    shared = f"{name}.shared.weight"
    words = Table(
        rules=(Rule(shared, "backbone.encoder.embeddings.words.weight"), *rules, *_decoder_rules(name)),
        copies=tuple(Copy(f"{name}.{part}.embed_tokens.weight", of=shared) for part in STACKS),
    )
    fields = {"type_vocab_size": 0, "layer_norm_eps": 1e-5} | stack
    return Family(
        model_type=model_type,
        prefix=f"{name}.",
        table=words + (table or Table()),
        architectures=architectures,
        defaults={key: value for key, value in _DEFAULTS.items() if key not in without} | defaults,
        names=stack_names("encoder", names or {}),
        decoder_names=stack_names("decoder", names or {}),
        read=lambda settings, kind: {"encoder": fields | encoder(settings), "decoder": fields},
        write=write,
        fixed={"is_encoder_decoder": (None, True), "tie_word_embeddings": (None, True)},
        dropouts=lambda settings: ("activation_dropout", "encoder_layerdrop", "decoder_layerdrop"),
    )


def _attention(prefix: str, sublayer: str) -> tuple[Rule, ...]:
    parts = ("q_proj", "k_proj", "v_proj", "out_proj")
    return attention_rules(prefix, *parts, sublayer=sublayer, norm=f"{prefix}_layer_norm")


def _feedforward(layer: str) -> tuple[Rule, ...]:
    norm = module(f"{layer}.final_layer_norm", f"{LAYER}.feedforward.norm")
    return (*feedforward_rules(layer, "fc1", "fc2"), norm)


def encoder_rules(name: str, *attention: Rule) -> tuple[Rule, ...]:
    """Layers of the encoder; ``attention`` replaces the rules of BART's attention."""
    layer = f"{name}.encoder.layers.{{i}}"
    if attention:
        attention = (*attention, module(f"{layer}.self_attn_layer_norm", f"{LAYER}.attention.norm"))
    return in_stack("encoder", *(attention or _attention(f"{layer}.self_attn", "attention")), *_feedforward(layer))


def _decoder_rules(name: str) -> tuple[Rule, ...]:
    layer = f"{name}.decoder.layers.{{i}}"
    attentions = _attention(f"{layer}.self_attn", "attention") + _attention(f"{layer}.encoder_attn", "cross_attention")
    return in_stack("decoder", *attentions, *_feedforward(layer))


def position_rules(name: str, *, rows_before: int = 0) -> tuple[Rule, ...]:
    """Position tables of both stacks, with ``rows_before`` position 0."""
    return tuple(
        rule
        for stack in STACKS
        for rule in in_stack(
            stack, builders.learned_positions(f"{name}.{stack}.embed_positions.weight", offset=lambda pad: rows_before)
        )
    )


def norm_rules(name: str, hf_norm: str, norm: str) -> tuple[Rule, ...]:
    """One norm of each stack."""
    return tuple(
        rule for stack in STACKS for rule in in_stack(stack, module(f"{name}.{stack}.{hf_norm}", f"backbone.{norm}"))
    )


def conditional_lm(architecture: str, name: str) -> Architecture:
    """Language model with a tied head and a bias of the logits, which is zero in a model without one."""
    bias = Rule("final_logits_bias", "head.bias", lambda tensor, _: tensor.flatten(), lambda tensor, _: tensor[None])
    return Architecture(
        architecture,
        kind="causal_lm",
        table=Table(
            rules=(bias,),
            copies=(Copy("lm_head.weight", of=f"{name}.shared.weight"),),
            default_tensors=(DefaultTensor("final_logits_bias", lambda backbone: torch.zeros(1, backbone.vocab_size)),),
        ),
        head=lambda settings: {"kind": "causal_lm", "final_logits_bias": True},
        pipeline="text2text-generation",
        unsupported_fields=frozenset({"head.final_logits_bias"}),
    )


def classifier(architecture: str) -> Architecture:
    """Classifier of the last token of the decoder; in transformers, of the last ``eos_token_id``."""
    return replace(
        builders.text_classification(
            architecture,
            dense="classification_head.dense",
            classifier="classification_head.out_proj",
            head=lambda settings: builders.input_dropout_classification(settings) | {"token": "last"},
        ),
        notes=lambda backbone: (_ENDS,),
    )


BART = family(
    "bart",
    "model",
    (
        *position_rules("model", rows_before=_ROWS_BEFORE),
        *norm_rules("model", "layernorm_embedding", "embeddings.norm"),
        *encoder_rules("model"),
    ),
    builders.headless("BartModel", "model."),
    conditional_lm("BartForConditionalGeneration", "model"),
    classifier("BartForSequenceClassification"),
    builders.question_answering("BartForQuestionAnswering"),
    defaults={"forced_eos_token_id": 2, "classifier_dropout": 0.0},
    stack={"positions": {"kind": "learned", "offset": _ROWS_BEFORE}},
)


_PEGASUS_STACK: Tree = {"embedding_norm": False, "residual": {"kind": "pre"}}


def _sinusoids(stack: str) -> Callable[[EncoderDecoderConfig], Tensor]:
    def make(backbone: EncoderDecoderConfig) -> Tensor:
        config = getattr(backbone, stack)
        return SinusoidalPositions(config.max_position_embeddings, config.hidden_size, halves=True).table.clone()

    return make


PEGASUS = family(
    "pegasus",
    "model",
    (*encoder_rules("model"), *norm_rules("model", "layer_norm", "final_norm")),
    builders.headless("PegasusModel", "model."),
    conditional_lm("PegasusForConditionalGeneration", "model"),
    table=Table(
        drops=(Drop(r"model\.(en|de)coder\.embed_positions\.weight", "sines and cosines, which are computed"),),
        default_tensors=tuple(
            DefaultTensor(f"model.{stack}.embed_positions.weight", _sinusoids(stack)) for stack in STACKS
        ),
    ),
    defaults={
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": 1,
    },
    stack=_PEGASUS_STACK | {"positions": {"kind": "sinusoidal", "halves": True}},
)


_LED_ATTENTION = "led.encoder.layers.{i}.self_attn"
_PARTS = tuple(f"{part}{suffix}" for part in ("query", "key", "value") for suffix in ("", "_global"))


LED = family(
    "led",
    "led",
    (
        *position_rules("led"),
        *norm_rules("led", "layernorm_embedding", "embeddings.norm"),
        *encoder_rules(
            "led",
            *(
                module(f"{_LED_ATTENTION}.longformer_self_attn.{part}", f"{LAYER}.attention.sublayer.{part}")
                for part in _PARTS
            ),
            module(f"{_LED_ATTENTION}.output", f"{LAYER}.attention.sublayer.output"),
        ),
    ),
    *annotated(
        builders.headless("LEDModel", "led."),
        conditional_lm("LEDForConditionalGeneration", "led"),
        builders.question_answering("LEDForQuestionAnswering"),
        notes=lambda backbone: global_token_notes(backbone.encoder.attention, 0),
        unsupported_fields=frozenset({"backbone.encoder.attention.global_tokens.first"}),
    ),
    defaults={
        "max_encoder_position_embeddings": 16384,
        "max_decoder_position_embeddings": 1024,
        "attention_window": 512,
        "classifier_dropout": 0.0,
    },
    stack={"scale_embedding": False},
    encoder=lambda settings: {"attention": read_windows(settings, first=0)},
    write=lambda backbone: write_windows(backbone.encoder.attention),
    names={"max_position_embeddings": "max_{stack}_position_embeddings"},
    without=("max_position_embeddings", "scale_embedding"),
)


BIGBIRD_PEGASUS = family(
    "bigbird_pegasus",
    "model",
    (
        *position_rules("model"),
        *norm_rules("model", "layernorm_embedding", "final_norm"),
        *encoder_rules(
            "model",
            *attention_rules("model.encoder.layers.{i}.self_attn", "self.query", "self.key", "self.value", "output"),
        ),
    ),
    *annotated(
        builders.headless("BigBirdPegasusModel", "model."),
        conditional_lm("BigBirdPegasusForConditionalGeneration", "model"),
        classifier("BigBirdPegasusForSequenceClassification"),
        builders.question_answering("BigBirdPegasusForQuestionAnswering"),
        notes=lambda backbone: block_notes(backbone.encoder.attention),
    ),
    defaults={
        "vocab_size": 96103,
        "max_position_embeddings": 4096,
        "encoder_layers": 16,
        "decoder_layers": 16,
        "activation_function": "gelu_new",
        "scale_embedding": True,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "classifier_dropout": 0.0,
        "attention_type": "block_sparse",
        "block_size": 64,
        "num_random_blocks": 3,
        "seed": 0,  # see BigBird
        "use_bias": False,
    },
    stack=_PEGASUS_STACK,
    encoder=lambda settings: {"attention": read_blocks(settings)},
    write=lambda backbone: write_blocks(backbone.encoder.attention),
    names={"attention_bias": "use_bias"},
)
