"""BigBird-Pegasus (Zaheer et al. 2020, section 4): PEGASUS with learned positions and BigBird's encoder attention.

`homespun.hf.families.big_bird` lists the differences of that attention in transformers.
"""

from __future__ import annotations

from homespun.hf import builders
from homespun.hf.builders import annotated, attention_rules
from homespun.hf.families import bart
from homespun.hf.families.big_bird import block_notes, read_blocks, write_blocks
from homespun.hf.families.pegasus import STACK
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig


def _notes(backbone: EncoderDecoderConfig) -> tuple[str, ...]:
    stack = backbone.encoder
    return block_notes(stack.attention) if isinstance(stack, EncoderConfig) else ()


BIGBIRD_PEGASUS = bart.family(
    "bigbird_pegasus",
    "model",
    (
        *bart.position_rules("model"),
        *bart.norm_rules("model", "layernorm_embedding", "final_norm"),
        *bart.encoder_rules(
            "model",
            *attention_rules("model.encoder.layers.{i}.self_attn", "self.query", "self.key", "self.value", "output"),
        ),
    ),
    *annotated(
        builders.headless("BigBirdPegasusModel", "model."),
        bart.conditional_lm("BigBirdPegasusForConditionalGeneration", "model"),
        bart.classifier("BigBirdPegasusForSequenceClassification"),
        builders.question_answering("BigBirdPegasusForQuestionAnswering"),
        notes=_notes,
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
        "seed": 0,  # as in BigBird
        "use_bias": False,
    },
    stack=STACK,
    encoder=lambda settings: {"attention": read_blocks(settings)},
    write=lambda backbone: write_blocks(backbone.encoder.attention),
    names={"attention_bias": "use_bias"},
)
