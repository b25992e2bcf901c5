"""BART (Lewis et al. 2020): an encoder with a decoder over the same words, normalised after the sublayers.

Its position table has two rows that nothing reads before position 0. ``activation_dropout``, ``encoder_layerdrop`` and
``decoder_layerdrop`` leave out something in training alone: ours has none of them, so they are not read, and written
as 0. ``final_logits_bias`` is a number a word, not learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from homespun.config import Tree
from homespun.hf.engine import Copy, DefaultTensor, Rule, Table, in_stack
from homespun.hf.families.bert import learned_positions, question_answering
from homespun.hf.family import Architecture, Family, headless
from homespun.hf.labels import classification
from homespun.models.encoder_decoder import EncoderDecoderConfig

_ROWS_BEFORE = 2
_ENDS = (
    "transformers classifies by the last eos_token_id of a text and this model by its last token: every text must end "
    "with that token, and hold as many of it as the others of its batch"
)

# what the configs of BART and its relatives assume, where it is the same
DEFAULTS: Mapping[str, Any] = {
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
DROPOUTS = ("activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
FIXED: Mapping[str, tuple[Any, ...]] = {"is_encoder_decoder": (None, True), "tie_word_embeddings": (None, True)}


def names(stack: str) -> dict[str, str]:
    """What the fields of a stack are called in config.json."""
    return {
        "hidden_size": "d_model",
        "num_hidden_layers": f"{stack}_layers",
        "num_attention_heads": f"{stack}_attention_heads",
        "intermediate_size": f"{stack}_ffn_dim",
        "hidden_act": "activation_function",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "initializer_range": "init_std",
    }


def attention_rules(theirs: str, ours: str) -> tuple[Rule, ...]:
    """One attention of BART's, and the norm beside it."""
    own = f"backbone.layers.{{i}}.{ours}"
    parts = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    return (
        *(Rule(f"{theirs}.{part}.{{p}}", f"{own}.sublayer.{name}.{{p}}") for part, name in parts.items()),
        Rule(f"{theirs}_layer_norm.{{p}}", f"{own}.norm.{{p}}"),
    )


def feedforward_rules(layer: str) -> tuple[Rule, ...]:
    """The feed-forward of a layer, and its norm."""
    own = "backbone.layers.{i}.feedforward"
    return (
        Rule(f"{layer}.fc1.{{p}}", f"{own}.sublayer.inner.{{p}}"),
        Rule(f"{layer}.fc2.{{p}}", f"{own}.sublayer.outer.{{p}}"),
        Rule(f"{layer}.final_layer_norm.{{p}}", f"{own}.norm.{{p}}"),
    )


def encoder_rules(name: str) -> tuple[Rule, ...]:
    """The layers of BART's encoder, where the family calls its model ``name``."""
    layer = f"{name}.encoder.layers.{{i}}"
    return in_stack("encoder", *attention_rules(f"{layer}.self_attn", "attention"), *feedforward_rules(layer))


def decoder_rules(name: str) -> tuple[Rule, ...]:
    """The layers of BART's decoder, which its relatives have too."""
    layer = f"{name}.decoder.layers.{{i}}"
    return in_stack(
        "decoder",
        *attention_rules(f"{layer}.self_attn", "attention"),
        *attention_rules(f"{layer}.encoder_attn", "cross_attention"),
        *feedforward_rules(layer),
    )


def position_rules(name: str, *, rows_before: int = 0) -> tuple[Rule, ...]:
    """Learned positions of both stacks, the first of them after so many rows."""
    return tuple(
        rule
        for stack in ("encoder", "decoder")
        for rule in in_stack(
            stack, learned_positions(f"{name}.{stack}.embed_positions.weight", offset=lambda pad: rows_before)
        )
    )


def norm_rules(name: str, theirs: str, ours: str) -> tuple[Rule, ...]:
    """A norm that each stack has once."""
    return tuple(
        rule
        for stack in ("encoder", "decoder")
        for rule in in_stack(stack, Rule(f"{name}.{stack}.{theirs}.{{p}}", f"backbone.{ours}.{{p}}"))
    )


def shared_words(name: str) -> Table:
    """The words of both stacks, which are one tensor."""
    shared = f"{name}.shared.weight"
    return Table(
        rules=(Rule(shared, "backbone.encoder.embeddings.words.weight"),),
        copies=tuple(Copy(f"{name}.{stack}.embed_tokens.weight", of=shared) for stack in ("encoder", "decoder")),
    )


def conditional_lm(
    architecture: str,
    name: str,
    *,
    unsupported_fields: frozenset[str] = frozenset(),
    notes: Callable[[Any], tuple[str, ...]] = lambda backbone: (),
) -> Architecture:
    """The class that writes: a tied head, and a number that is added to each logit."""
    return Architecture(
        architecture,
        kind="causal_lm",
        table=Table(
            rules=(
                Rule(
                    "final_logits_bias",
                    "head.bias",
                    lambda tensor, backbone: tensor.flatten(),  # a row there
                    lambda tensor, backbone: tensor[None],
                ),
            ),
            copies=(Copy("lm_head.weight", of=f"{name}.shared.weight"),),
            default_tensors=(DefaultTensor("final_logits_bias", _no_bias),),
        ),
        head=lambda settings: {"kind": "causal_lm", "final_logits_bias": True},
        pipeline="text2text-generation",
        # a model without it has zeros there
        unsupported_fields=unsupported_fields | {"head.final_logits_bias"},
        notes=notes,
    )


def classifier(
    architecture: str,
    *,
    unsupported_fields: frozenset[str] = frozenset(),
    notes: Callable[[Any], tuple[str, ...]] = lambda backbone: (),
) -> Architecture:
    """The class that classifies a text, by what the decoder makes of its last token when it reads the same text.

    Theirs looks for the last ``eos_token_id``, which is the last token of a text.
    """

    def head(settings: Tree) -> Tree:
        pooled = classification("pooled")(settings)
        return pooled | {"input_dropout": pooled["dropout"], "token": "last"}

    return Architecture(
        architecture,
        kind="pooled",
        table=Table(
            rules=(
                Rule("classification_head.dense.{p}", "head.dense.{p}"),
                Rule("classification_head.out_proj.{p}", "head.classifier.{p}"),
            )
        ),
        head=head,
        pipeline="text-classification",
        unsupported_fields=unsupported_fields,
        notes=lambda backbone: (_ENDS, *notes(backbone)),
    )


def _no_bias(backbone: EncoderDecoderConfig) -> Tensor:
    return torch.zeros(1, backbone.vocab_size)


def _read(settings: Tree, kind: str | None) -> Tree:
    stack = {
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-5,
        "positions": {"kind": "learned", "offset": _ROWS_BEFORE},
    }
    return {"encoder": stack, "decoder": stack}


BART = Family(
    model_type="bart",
    prefix="model.",
    table=shared_words("model")
    + Table(
        rules=(
            *position_rules("model", rows_before=_ROWS_BEFORE),
            *norm_rules("model", "layernorm_embedding", "embeddings.norm"),
            *encoder_rules("model"),
            *decoder_rules("model"),
        )
    ),
    architectures=(
        headless("BartModel", "model."),
        conditional_lm("BartForConditionalGeneration", "model"),
        classifier("BartForSequenceClassification"),
        question_answering("BartForQuestionAnswering"),
    ),
    defaults={**DEFAULTS, "forced_eos_token_id": 2, "classifier_dropout": 0.0},
    names=names("encoder"),
    decoder_names=names("decoder"),
    read=_read,
    fixed=FIXED,
    dropouts=lambda settings: DROPOUTS,
)
