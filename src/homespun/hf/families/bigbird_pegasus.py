"""BigBird-Pegasus (Zaheer et al. 2020, section 4): PEGASUS with learned positions and BigBird's blocks in its encoder.

In what the blocks of transformers differ is said in `homespun.hf.families.big_bird`.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.hf.engine import Rule, Table, in_stack
from homespun.hf.families import bart
from homespun.hf.families.bert import question_answering
from homespun.hf.families.big_bird import block_notes, read_blocks, write_blocks
from homespun.hf.families.pegasus import STACK
from homespun.hf.family import Family, headless
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig

_LAYER, _OWN = "model.encoder.layers.{i}", "backbone.layers.{i}.attention"


def _read(settings: Tree, kind: str | None) -> Tree:
    return {"encoder": STACK | {"attention": read_blocks(settings)}, "decoder": STACK}


def _graph(backbone: EncoderDecoderConfig) -> tuple[str, ...]:
    stack = backbone.encoder
    return block_notes(stack.attention) if isinstance(stack, EncoderConfig) else ()


BIGBIRD_PEGASUS = Family(
    model_type="bigbird_pegasus",
    prefix="model.",
    table=bart.shared_words("model")
    + Table(
        rules=(
            *bart.position_rules("model"),
            *bart.norm_rules("model", "layernorm_embedding", "final_norm"),
            *in_stack(
                "encoder",
                *(
                    Rule(f"{_LAYER}.self_attn.self.{part}.{{p}}", f"{_OWN}.sublayer.{part}.{{p}}")
                    for part in ("query", "key", "value")
                ),
                Rule(f"{_LAYER}.self_attn.output.{{p}}", f"{_OWN}.sublayer.output.{{p}}"),
                Rule(f"{_LAYER}.self_attn_layer_norm.{{p}}", f"{_OWN}.norm.{{p}}"),
                *bart.feedforward_rules(_LAYER),
            ),
            *bart.decoder_rules("model"),
        )
    ),
    architectures=(
        headless("BigBirdPegasusModel", "model.", notes=_graph),
        bart.conditional_lm("BigBirdPegasusForConditionalGeneration", "model", notes=_graph),
        bart.classifier("BigBirdPegasusForSequenceClassification", notes=_graph),
        question_answering("BigBirdPegasusForQuestionAnswering", notes=_graph),
    ),
    defaults={
        **bart.DEFAULTS,
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
    names=bart.names("encoder") | {"attention_bias": "use_bias"},
    decoder_names=bart.names("decoder") | {"attention_bias": "use_bias"},
    read=_read,
    write=lambda backbone: write_blocks(backbone.encoder.attention),
    fixed=bart.FIXED,
    dropouts=lambda settings: bart.DROPOUTS,
)
