"""Factorised embeddings as one matrix: for families whose embeddings are as wide as their layers.

A table of (vocab, embedding) and its projection to the layers are one table of (vocab, hidden), where nothing but sums
stands between the two. The product has more parameters and computes the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from homespun.hf.convert import Weights
from homespun.models.config import CausalLMHeadConfig, MaskedLMHeadConfig, ModelConfig
from homespun.models.encoder import EncoderConfig

_PROJECTION, _TRANSFORM = "backbone.projection", "head.transform"
_WORDS = "backbone.embeddings.words.weight"
_TABLES = ("backbone.embeddings.positions.embedding.weight", "backbone.embeddings.segments.weight")
_LAST_BIAS = "backbone.final_norm.bias"


def fold_config(config: ModelConfig) -> ModelConfig | None:
    """The config of the same model with embeddings as wide as its layers.

    A tied causal head becomes an untied one. The bias of its projection goes to the last norm, or,
    where that has none, to ``final_logits_bias``. A head for masked tokens has no such equivalent, and is left out.

    Returns:
        None where the embeddings are as wide as the layers, or normalised, scaled or positions that cannot be projected
        are added to them.
    """
    backbone = config.backbone
    if not isinstance(backbone, EncoderConfig) or backbone.embedding_size in (0, backbone.hidden_size):
        return None
    if backbone.embedding_norm or backbone.scale_embedding or backbone.enhanced_mask_decoder:
        return None
    if not backbone.positions.projectable:
        return None
    head = config.head
    if isinstance(head, MaskedLMHeadConfig):
        head = None
    elif isinstance(head, CausalLMHeadConfig) and head.tie_word_embeddings:
        biased = head.transform_bias and not _has_last_bias(backbone)
        wide = {"tie_word_embeddings": False, "transform_bias": True}
        head = head.model_copy(update=wide | {"final_logits_bias": head.final_logits_bias or biased})
    wider = backbone.model_copy(update={"embedding_size": 0})
    return config.model_copy(update={"backbone": wider, "head": head})


def fold_weights(weights: Weights, config: ModelConfig) -> Weights:
    """The tensors of the model that `fold_config` describes.

    Args:
        weights: those of the model, by name.
        config: of the model, for which `fold_config` is not None.
    """
    backbone, head = config.backbone, config.head
    assert isinstance(backbone, EncoderConfig)
    parts = (_PROJECTION, _TRANSFORM) if isinstance(head, CausalLMHeadConfig) else (_PROJECTION,)
    folded = {name: tensor for name, tensor in weights.items() if name.rpartition(".")[0] not in parts}
    matrix, words = weights[f"{_PROJECTION}.weight"], weights[_WORDS]  # (hidden, embedding), (vocab, embedding)
    folded[_WORDS] = _product(words, matrix.T) + weights[f"{_PROJECTION}.bias"]
    for name in _TABLES:
        if name in weights:
            folded[name] = _product(weights[name], matrix.T)
    if isinstance(head, MaskedLMHeadConfig):
        return {name: tensor for name, tensor in folded.items() if not name.startswith("head.")}
    if isinstance(head, CausalLMHeadConfig) and head.tie_word_embeddings:
        transform = weights[f"{_TRANSFORM}.weight"]  # (embedding, hidden)
        folded["head.words.weight"] = _product(words, transform)
        if head.transform_bias:
            bias = weights[f"{_TRANSFORM}.bias"]
            if _has_last_bias(backbone):
                # the shortest vector that the projection maps to its bias
                shift = torch.linalg.pinv(transform.double()) @ bias.double()
                folded[_LAST_BIAS] = (weights[_LAST_BIAS].double() + shift).to(bias.dtype)
            else:
                folded["head.bias"] = weights.get("head.bias", 0) + _product(words, bias[:, None])[:, 0]
    return folded


def fold_notes(config: ModelConfig, *, head: bool) -> tuple[str, ...]:
    """Notes for users of a folded model, written with its ``head`` or without; ``config`` is the model's."""
    backbone, given = config.backbone, config.head
    assert isinstance(backbone, EncoderConfig)
    sizes = f"from embedding_size={backbone.embedding_size} to {backbone.hidden_size}"
    notes = [f"embeddings were multiplied by their projection, {sizes}; the model has more parameters in hf/"]
    if isinstance(given, MaskedLMHeadConfig):
        notes.append(f"head {given.kind!r} needs embeddings of size {backbone.embedding_size}; it was left out")
    tied = head and isinstance(given, CausalLMHeadConfig) and given.tie_word_embeddings and given.transform_bias
    if tied and _has_last_bias(backbone):
        notes.append(
            "the bias of the head's projection was added to the bias of the last norm, which shifts last_hidden_state"
        )
    return tuple(notes)


def _has_last_bias(backbone: EncoderConfig) -> bool:
    """Whether the stack ends with a norm that has a bias."""
    plain = backbone.residual.kind == "pre" and not backbone.residual.final_dropout
    return plain and backbone.norm == "layer_norm" and backbone.norm_weight and backbone.norm_bias


def _product(left: Tensor, right: Tensor) -> Tensor:
    return (left.double() @ right.double()).to(left.dtype)
