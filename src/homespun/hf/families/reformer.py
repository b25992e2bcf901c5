"""Reformer (Kitaev et al. 2020): alternating local and LSH attention, reversible layers, axial positions.

Hashes: transformers draws them in each forward pass from ``hash_seed``, equal in all layers, homespun once per layer
from ``seed``. Both attend to different tokens, which Reformers tolerate.

Causal LSH attention: a token attends to its own bucket in models trained by homespun, and also to neighbouring buckets
in those of transformers. Rows are circular: in homespun at the last token of a text, in transformers at the end of the
batch. transformers has dropout in the feed-forward, on words and on positions, and one rate for each kind of attention;
homespun takes that of the local layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from homespun.attention.local import LocalAttentionConfig
from homespun.attention.lsh import LSHAttentionConfig
from homespun.config import Tree
from homespun.errors import UserError
from homespun.hf import builders
from homespun.hf.builders import CAUSAL_FIXED, LAYER, annotated, module
from homespun.hf.engine import DefaultTensor, Drop, Rule, Table
from homespun.hf.family import Architecture, Family
from homespun.models.bundle import MOST_LAYERS
from homespun.models.encoder import EncoderConfig
from homespun.models.layer_parts import AxialPositionsConfig

_LAYER = "reformer.encoder.layers.{i}"
_AXES = "reformer.embeddings.position_embeddings.weights"
_HASHED = "lsh"


def _flat(tensor: Tensor, backbone: EncoderConfig) -> Tensor:
    return tensor.flatten(0, 1) if tensor.dim() == 3 else tensor


def _read(settings: Tree, kind: str | None) -> Tree:
    kinds, causal = settings["attn_layers"], settings["is_decoder"]
    if not isinstance(kinds, list) or not kinds or not {*map(str, kinds)} <= {"local", _HASHED}:
        raise UserError(f"attn_layers={kinds!r} must be a list of local and lsh, one for each layer")
    if len(kinds) > MOST_LAYERS:
        raise UserError(f"attn_layers has {len(kinds)} layers; at most {MOST_LAYERS} are supported")
    fields = {
        "type_vocab_size": 0,
        "embedding_norm": False,
        "residual": {"kind": "reversible", "streams": "copy"},
        "causal": causal,
        "num_hidden_layers": len(kinds),
        "attention_probs_dropout_prob": settings[f"{min(kinds)}_attention_probs_dropout_prob"],
        "attention": builders.alternating_attention([_attention(settings, kind) for kind in kinds]),
        "seed": settings["hash_seed"] or 0,
    }
    if settings["axial_pos_embds"]:
        axes = {"shape": settings["axial_pos_shape"], "sizes": settings["axial_pos_embds_dim"]}
        fields["positions"] = {"kind": "axial"} | axes
    return fields


def _attention(settings: Tree, kind: str) -> Tree:
    hashing = {name: settings[name] for name in ("num_hashes", "num_buckets")}
    hashing["across_buckets"] = settings["is_decoder"]
    return {
        "kind": kind,
        "chunk_length": settings[f"{kind}_attn_chunk_length"],
        "num_chunks_before": settings[f"{kind}_num_chunks_before"],
        "num_chunks_after": settings[f"{kind}_num_chunks_after"],
    } | (hashing if kind == _HASHED else {})


def _write(backbone: EncoderConfig) -> Tree:
    layers = builders.layer_attentions(backbone)
    settings: Tree = {
        "attn_layers": [layer.kind if layer.kind == _HASHED else "local" for layer in layers],
        "attention_head_size": backbone.head_size or backbone.hidden_size // backbone.num_attention_heads,
        "lsh_attention_probs_dropout_prob": backbone.attention_probs_dropout_prob,
        "local_attention_probs_dropout_prob": backbone.attention_probs_dropout_prob,
        "is_decoder": backbone.causal,
        "hash_seed": backbone.seed,
        "axial_pos_embds": False,
    }
    for layer in reversed(layers):
        if isinstance(layer, LSHAttentionConfig | LocalAttentionConfig):
            settings |= {
                f"{layer.kind}_attn_chunk_length": layer.chunk_length,
                f"{layer.kind}_num_chunks_before": layer.num_chunks_before,
                f"{layer.kind}_num_chunks_after": layer.num_chunks_after,
            }
        if isinstance(layer, LSHAttentionConfig):
            settings |= {"num_hashes": layer.num_hashes, "num_buckets": layer.num_buckets}
    match backbone.positions:
        case AxialPositionsConfig(shape=shape, sizes=sizes):
            settings |= {"axial_pos_embds": True, "axial_pos_shape": [*shape], "axial_pos_embds_dim": [*sizes]}
    return settings


def _lm_head(name: str, pipeline: str, *, causal: bool) -> Architecture:
    return Architecture(
        name,
        kind="causal_lm",
        table=Table(
            rules=(Rule("lm_head.decoder.weight", "head.words.weight"),),
            drops=(Drop(r"lm_head\.(decoder\.)?bias", "transformers does not add it"),),
            default_tensors=(DefaultTensor("lm_head.bias", lambda backbone: torch.zeros(backbone.vocab_size)),),
        ),
        head=builders.require_is_decoder(
            name, lambda settings: {"kind": "causal_lm", "tie_word_embeddings": False}, causal=causal
        ),
        pipeline=pipeline,
    )


def _pooled(settings: Tree) -> Tree:
    # two streams are pooled to the width of one
    return builders.input_dropout_classification(settings) | {"pooler_size": settings["hidden_size"]}


def _notes(backbone: EncoderConfig) -> tuple[str, ...]:
    hashes = ("transformers does not use the hashes of this model: it draws others, equal in all layers",)
    ring = (
        "in transformers the first chunk of a text attends to the end of the batch, in this model to the end of the "
        "text; outputs differ if a chunk or more is padding",
    )
    hashed = _HASHED in _write(backbone)["attn_layers"]
    return hashes * hashed + ring * (hashed or not backbone.causal)


REFORMER = Family(
    model_type="reformer",
    prefix="reformer.",
    table=Table(
        rules=(
            Rule("reformer.embeddings.word_embeddings.weight", "backbone.embeddings.words.weight"),
            builders.learned_positions("reformer.embeddings.position_embeddings.embedding.weight"),
            Rule(f"{_AXES}.0", "backbone.embeddings.positions.row.weight", _flat, lambda tensor, _: tensor[:, None]),
            Rule(f"{_AXES}.1", "backbone.embeddings.positions.column.weight", _flat, lambda tensor, _: tensor[None]),
            *(
                module(f"{_LAYER}.attention.self_attention.{part}", f"{LAYER}.attention.sublayer.{part}")
                for part in ("query_key", "query", "key", "value")
            ),
            module(f"{_LAYER}.attention.output.dense", f"{LAYER}.attention.sublayer.output"),
            *builders.feedforward_rules(f"{_LAYER}.feed_forward", "dense.dense", "output.dense"),
            *builders.norm_rules(_LAYER, "attention.layer_norm", "feed_forward.layer_norm"),
            module("reformer.encoder.layer_norm", "backbone.final_norm.0"),
        ),
        drops=(Drop(r"reformer\..*\.(self_)?mask_value_float(16|32)", "a constant, not a weight"),),
    ),
    architectures=annotated(
        builders.headless("ReformerModel", "reformer."),
        _lm_head("ReformerForMaskedLM", "fill-mask", causal=False),
        _lm_head("ReformerModelWithLMHead", "text-generation", causal=True),
        builders.text_classification("ReformerForSequenceClassification", head=_pooled),
        builders.question_answering("ReformerForQuestionAnswering"),
        notes=_notes,
    ),
    defaults={
        "vocab_size": 320,
        "hidden_size": 256,
        "num_attention_heads": 12,
        "attention_head_size": 64,
        "attn_layers": ["local", "lsh"] * 3,
        "feed_forward_size": 512,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.05,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 4096,
        "pad_token_id": 0,
        "is_decoder": False,
        "axial_pos_embds": True,
        "axial_pos_shape": [64, 64],
        "axial_pos_embds_dim": [64, 192],
        "hash_seed": None,
        "num_hashes": 1,
        "num_buckets": None,
        "lsh_attn_chunk_length": 64,
        "lsh_num_chunks_before": 1,
        "lsh_num_chunks_after": 0,
        "lsh_attention_probs_dropout_prob": 0.0,
        "local_attn_chunk_length": 64,
        "local_num_chunks_before": 1,
        "local_num_chunks_after": 0,
        "local_attention_probs_dropout_prob": 0.05,
    },
    names={"intermediate_size": "feed_forward_size", "head_size": "attention_head_size"},
    read=_read,
    write=_write,
    fixed=CAUSAL_FIXED,
    dropouts=lambda settings: [f"{kind}_attention_probs_dropout_prob" for kind in sorted({*settings["attn_layers"]})],
)
