"""Folding of settings that a family lacks into the weights; the outputs of the folded model are the same.

- Factorised embeddings are multiplied by their projection, (vocab, embedding) x (embedding, hidden), for families whose
  embeddings are as wide as the layers. The model has more parameters.
- Scales of an encoder-decoder with relative biases, which T5 lacks: queries are divided by ``sqrt(head_size)``, word
  embeddings multiplied by ``sqrt(hidden_size)``, and hidden states before a tied head divided by it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from homespun.attention.multi_head import inner_size
from homespun.hf.engine import Weights
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.heads import CausalLMHeadConfig, MaskedLMHeadConfig

_PROJECTION, _TRANSFORM = "backbone.projection", "head.transform"
_WORDS = "backbone.embeddings.words.weight"
_TABLES = ("backbone.embeddings.positions.embedding.weight", "backbone.embeddings.segments.weight")
_LAST_BIAS = "backbone.final_norm.bias"
_SHARED_WORDS = "backbone.encoder.embeddings.words.weight"
_QUERY = ".query.weight"


def fold_config(config: ModelConfig) -> ModelConfig | None:
    """Config of the folded model: embeddings as wide as the layers, or an encoder-decoder without scales.

    A tied causal head becomes untied, and the bias of its projection is added to the last norm, or to
    ``final_logits_bias`` if the norm has no bias. The head of a masked language model is dropped.

    Returns:
        None if nothing can be folded: the embeddings are as wide as the layers, normalised, scaled, or added to
        positions that cannot be projected; an encoder-decoder has no scales or is not like T5.
    """
    backbone = config.backbone
    if backbone.has_decoder:
        return _without_scales(config, backbone)
    if backbone.is_recurrent or backbone.embedding_size in (0, backbone.hidden_size):
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
    """Weights of the folded model of a ``config`` for which `fold_config` is not None."""
    backbone, head = config.backbone, config.head
    if backbone.has_decoder:
        return _scaled_weights(weights, backbone)
    assert not backbone.is_recurrent
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
                # the minimum-norm vector that the projection maps to its bias
                shift = torch.linalg.pinv(transform.double()) @ bias.double()
                folded[_LAST_BIAS] = (weights[_LAST_BIAS].double() + shift).to(bias.dtype)
            else:
                folded["head.bias"] = weights.get("head.bias", 0) + _product(words, bias[:, None])[:, 0]
    return folded


def fold_notes(config: ModelConfig, *, head: bool) -> tuple[str, ...]:
    """Notes on a folded model, exported with or without its ``head``; ``config``: of the original model."""
    backbone, head_config = config.backbone, config.head
    if backbone.has_decoder:
        return ()
    assert not backbone.is_recurrent
    sizes = f"from embedding_size={backbone.embedding_size} to {backbone.hidden_size}"
    notes = [f"embeddings were multiplied by their projection, {sizes}; the model has more parameters in hf/"]
    if isinstance(head_config, MaskedLMHeadConfig):
        notes.append(f"head {head_config.kind!r} needs embeddings of size {backbone.embedding_size}; it was left out")
    tied = (
        isinstance(head_config, CausalLMHeadConfig) and head_config.tie_word_embeddings and head_config.transform_bias
    )
    if head and tied and _has_last_bias(backbone):
        notes.append(
            "the bias of the head's projection was added to the bias of the last norm, which shifts last_hidden_state"
        )
    return tuple(notes)


def _stacks(backbone: EncoderDecoderConfig) -> dict[str, EncoderConfig]:
    stacks = {"encoder": backbone.encoder, "decoder": backbone.decoder}
    return {name: stack for name, stack in stacks.items() if not stack.is_recurrent}


def _without_scales(config: ModelConfig, backbone: EncoderDecoderConfig) -> ModelConfig | None:
    stacks, head = _stacks(backbone), config.head
    if [stack.attention.kind for stack in stacks.values()] != ["relative_bias"] * 2:
        return None
    if not any(stack.scale_attn_weights or stack.scale_embedding for stack in stacks.values()):
        return None
    if len({stack.scale_embedding for stack in stacks.values()}) > 1:  # the stacks share word embeddings
        return None
    if stacks["decoder"].scale_embedding and isinstance(head, CausalLMHeadConfig) and head.tie_word_embeddings:
        if head.scaled or backbone.embedding_size not in (0, backbone.hidden_size):
            return None
        head = head.model_copy(update={"scaled": True})
    plain = {"scale_attn_weights": False, "scale_embedding": False}
    folded = backbone.model_copy(update={name: stack.model_copy(update=plain) for name, stack in stacks.items()})
    return config.model_copy(update={"backbone": folded, "head": head})


def _scaled_weights(weights: Weights, backbone: EncoderDecoderConfig) -> Weights:
    folded, stacks = dict(weights), _stacks(backbone)
    for name, stack in stacks.items():
        if not stack.scale_attn_weights:
            continue
        heads = stack.num_attention_heads
        scale = (inner_size(stack.hidden_size, heads, stack.head_size) // heads) ** -0.5
        for query in folded:
            if query.startswith(f"backbone.{name}.layers.") and query.endswith(_QUERY):
                folded[query] = folded[query] * scale
    if stacks["encoder"].scale_embedding:
        words = folded[_SHARED_WORDS]
        folded[_SHARED_WORDS] = words * words.shape[1] ** 0.5
    return folded


def _has_last_bias(backbone: EncoderConfig) -> bool:
    """True if the stack ends with a norm that has a bias."""
    plain = backbone.residual.kind == "pre" and not backbone.residual.final_dropout
    return plain and backbone.norm == "layer_norm" and backbone.norm_has_bias


def _product(left: Tensor, right: Tensor) -> Tensor:
    return (left.double() @ right.double()).to(left.dtype)
