"""Reformer (Kitaev et al. 2020): alternating local and LSH attention, reversible layers, axial positions.

transformers draws the hashes in each forward pass (from ``hash_seed``, the same for all layers), ours once a layer from
``seed``: a model sees other tokens on the two sides, which Reformers tolerate.

In a causal model that is trained here, a hashed token sees earlier tokens of its own bucket; in one of transformers,
or opened from there, those of neighbouring buckets too. Rows are circular: here at the last real token, there at the
end of the batch, the same if less than a chunk is padded. Dropout differs: there in the feed-forward, on words and on
positions, with one number for each kind of attention; here that of the local layers holds.
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
        raise UserError(f"attn_layers={kinds!r} must be local and lsh, one a layer")
    if len(kinds) > MOST_LAYERS:
        raise UserError(f"attn_layers has {len(kinds)} layers; a model here has at most {MOST_LAYERS}")
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
    for own in reversed(layers):
        match own:
            case LSHAttentionConfig() | LocalAttentionConfig():
                settings |= {
                    f"{own.kind}_attn_chunk_length": own.chunk_length,
                    f"{own.kind}_num_chunks_before": own.num_chunks_before,
                    f"{own.kind}_num_chunks_after": own.num_chunks_after,
                }
        match own:
            case LSHAttentionConfig(num_hashes=hashes, num_buckets=buckets):
                settings |= {"num_hashes": hashes, "num_buckets": buckets}
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
    # two streams, pooled to the width of one
    return builders.input_dropout_classification(settings) | {"pooler_size": settings["hidden_size"]}


def _notes(backbone: EncoderConfig) -> tuple[str, ...]:
    hashes = (
        "the hashes of attention are not those that this model was trained with: transformers draws its own, for every "
        "layer the same",
    )
    ring = (
        "in transformers the first chunk of a text looks back to the end of its batch, and here to its own end: they "
        "differ where a chunk or more is padded",
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
