"""LED (Beltagy et al. 2020, section 7): BART whose encoder has Longformer's attention, with projections of its own.

Which tokens of a text see all is the caller's choice, in ``global_attention_mask``, here as there. Its position tables
begin with position 0. What is dropped out in training alone is read as BART's is.
"""

from __future__ import annotations

from homespun.config import Tree
from homespun.hf.engine import Rule, Table, in_stack
from homespun.hf.families import bart
from homespun.hf.families.bert import question_answering
from homespun.hf.families.longformer import global_token_notes, read_windows, write_windows
from homespun.hf.family import Family, headless
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig

_LAYER, _OWN = "led.encoder.layers.{i}", "backbone.layers.{i}.attention"
_PARTS = tuple(f"{part}{which}" for part in ("query", "key", "value") for which in ("", "_global"))
_LENGTHS = {stack: {"max_position_embeddings": f"max_{stack}_position_embeddings"} for stack in ("encoder", "decoder")}
_FIRST = frozenset({"backbone.encoder.attention.everywhere.first"})


def _read(settings: Tree, kind: str | None) -> Tree:
    stack = {"type_vocab_size": 0, "layer_norm_eps": 1e-5, "scale_embedding": False}
    return {"encoder": stack | {"attention": read_windows(settings, first=0)}, "decoder": stack}


def _global_token_notes(backbone: EncoderDecoderConfig) -> tuple[str, ...]:
    return global_token_notes(backbone.encoder.attention, 0) if isinstance(backbone.encoder, EncoderConfig) else ()


LED = Family(
    model_type="led",
    prefix="led.",
    table=bart.shared_words("led")
    + Table(
        rules=(
            *bart.position_rules("led"),
            *bart.norm_rules("led", "layernorm_embedding", "embeddings.norm"),
            *in_stack(
                "encoder",
                *(
                    Rule(f"{_LAYER}.self_attn.longformer_self_attn.{part}.{{p}}", f"{_OWN}.sublayer.{part}.{{p}}")
                    for part in _PARTS
                ),
                Rule(f"{_LAYER}.self_attn.output.{{p}}", f"{_OWN}.sublayer.output.{{p}}"),
                Rule(f"{_LAYER}.self_attn_layer_norm.{{p}}", f"{_OWN}.norm.{{p}}"),
                *bart.feedforward_rules(_LAYER),
            ),
            *bart.decoder_rules("led"),
        )
    ),
    architectures=(
        headless("LEDModel", "led.", unsupported_fields=_FIRST, notes=_global_token_notes),
        bart.conditional_lm("LEDForConditionalGeneration", "led", unsupported_fields=_FIRST, notes=_global_token_notes),
        question_answering("LEDForQuestionAnswering", unsupported_fields=_FIRST, notes=_global_token_notes),
    ),
    defaults={
        **{
            key: value
            for key, value in bart.DEFAULTS.items()
            if key not in ("max_position_embeddings", "scale_embedding")
        },
        "max_encoder_position_embeddings": 16384,
        "max_decoder_position_embeddings": 1024,
        "attention_window": 512,
        "classifier_dropout": 0.0,
    },
    names=bart.names("encoder") | _LENGTHS["encoder"],
    decoder_names=bart.names("decoder") | _LENGTHS["decoder"],
    read=_read,
    write=lambda backbone: write_windows(backbone.encoder.attention),
    fixed=bart.FIXED,
    dropouts=lambda settings: bart.DROPOUTS,
)
