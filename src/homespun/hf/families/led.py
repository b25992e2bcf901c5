"""LED (Beltagy et al. 2020, section 7): BART whose encoder has Longformer's attention.

The caller chooses global tokens by ``global_attention_mask``, on both sides. Position 0 is the first row.
"""

from __future__ import annotations

from homespun.hf import builders
from homespun.hf.builders import LAYER, annotated, module
from homespun.hf.families import bart
from homespun.hf.families.longformer import global_token_notes, read_windows, write_windows
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig

_THEIRS, _OURS = "led.encoder.layers.{i}.self_attn", f"{LAYER}.attention.sublayer"
_PARTS = tuple(f"{part}{which}" for part in ("query", "key", "value") for which in ("", "_global"))


def _notes(backbone: EncoderDecoderConfig) -> tuple[str, ...]:
    return global_token_notes(backbone.encoder.attention, 0) if isinstance(backbone.encoder, EncoderConfig) else ()


LED = bart.family(
    "led",
    "led",
    (
        *bart.position_rules("led"),
        *bart.norm_rules("led", "layernorm_embedding", "embeddings.norm"),
        *bart.encoder_rules(
            "led",
            *(module(f"{_THEIRS}.longformer_self_attn.{part}", f"{_OURS}.{part}") for part in _PARTS),
            module(f"{_THEIRS}.output", f"{_OURS}.output"),
        ),
    ),
    *annotated(
        builders.headless("LEDModel", "led."),
        bart.conditional_lm("LEDForConditionalGeneration", "led"),
        builders.question_answering("LEDForQuestionAnswering"),
        notes=_notes,
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
