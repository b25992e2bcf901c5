"""Initialisation of a head of an encoder-decoder to copy from the source.

After the token ``y`` a copying decoder attends to the source tokens that follow ``y``, an induction head (Olsson et al.
2022, "In-context learning and induction heads"), and predicts them. Small models need about a million tokens to learn
such heads (results/efficiency.md). Here a head of the first encoder layer adds the previous token to each token, and a
head of the first cross-attention finds it and adds the token itself to the decoder.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from homespun.attention.full import DotProduct
from homespun.attention.multi_head import CrossAttention, MultiHeadAttention
from homespun.errors import UserError
from homespun.models.backbone import EncoderDecoder
from homespun.nn.eval_mode import eval_mode

_PREVIOUS = 1.4  # size of the previous token in the encoder, relative to the token
_COPY = 0.5  # size of the copied token in the decoder, relative to its input
_PEAK = 10.0  # logit of a token that follows the last one, relative to other tokens
_SAMPLES, _LENGTH = 8, 64  # random rows on which sizes are measured
_SHORTEST = 4  # tokens, for a token and the next one in half a row


def initialise_copy_heads(model: EncoderDecoder) -> None:
    """Initialise head 0 of the first encoder layer and of the first cross-attention; other heads are unchanged.

    Args:
        model: a new model whose encoder has `initialise_neighbour_heads`, so that head 0 sees the previous token.

    Raises:
        UserError: reversible layers, embeddings of another width than the layers, heads of two widths, or an attention
            other than `MultiHeadAttention` in the encoder.
    """
    sizes = {stack.hidden_size for stack in model.stacks} | {stack.embeddings.embedding_size for stack in model.stacks}
    if len(sizes) > 1:
        raise UserError(
            "copy_heads needs embeddings and layers of one width; set model.copy_heads=false, or remove "
            "model.encoder.embedding_size"
        )
    (_, attention), (_, cross) = _sublayers(model)
    if (
        not isinstance(attention, MultiHeadAttention)
        or attention.query.in_features != model.hidden_size
        or not isinstance(cross, CrossAttention)
    ):
        raise UserError(
            "copy_heads needs multi-head attention in layers that are not reversible; set model.copy_heads=false"
        )
    heads = {module.query.out_features // module.num_attention_heads for module in (attention, cross)}
    if len(heads) > 1:
        raise UserError(
            f"copy_heads needs heads of one width in both stacks, not {min(heads)} and {max(heads)}; set "
            f"model.copy_heads=false, or remove model.decoder.num_attention_heads"
        )
    fit_copy_heads(model.encoder.embeddings.words.weight, model)


def _sublayers(model: EncoderDecoder) -> list[tuple[nn.Module, nn.Module | None]]:
    """Return the first attention of the encoder and the first cross-attention, each after its residual connection."""
    residuals = (
        model.encoder.layers[0].get_submodule("attention"),
        model.decoder.layers[0].get_submodule("cross_attention"),
    )
    return [(residual, getattr(residual, "sublayer", None)) for residual in residuals]


@torch.no_grad()
def fit_copy_heads(tensor: Tensor, model: EncoderDecoder) -> None:
    """Set the weights of both heads to random projections, scaled for random words.

    Args:
        tensor: word embeddings, for modes that skip the functions of `torch.nn.init`.
        model: initialised model.
    """
    if has_torch_function_unary(tensor):
        handle_torch_function(fit_copy_heads, (tensor,), tensor=tensor, model=model)
        return
    length = min(_LENGTH, *(stack.embeddings.max_position_embeddings for stack in model.stacks))
    if tensor.is_meta or length < _SHORTEST:
        return
    (attention_residual, attention), (cross_residual, cross) = _sublayers(model)
    assert isinstance(attention, MultiHeadAttention)
    assert isinstance(cross, CrossAttention)
    assert isinstance(cross.kernel, DotProduct)
    size = cross.query.out_features // cross.num_attention_heads
    generator = torch.Generator().manual_seed(0)
    # projections (head_dim, hidden): of the previous token, to its place in the stream, of the token that is copied
    previous, place, copied = (
        nn.init.orthogonal_(torch.empty(size, model.hidden_size), generator=generator) for _ in range(3)
    )
    words = torch.randint(model.embeddings.vocab_size, (_SAMPLES, length), generator=generator)

    shift = length // 2  # between source and target, so that equal positions do not have equal tokens
    targets = words.roll(-shift, 1)

    residual, entered = _inputs(model, words, targets, attention_residual, attention)
    attention.value.weight[:size] = previous
    attention.output.weight[:, :size] = place.T * (_PREVIOUS * _rms(residual) / _rms(entered))

    residual, entered = _inputs(model, words, targets, cross_residual, cross)
    with eval_mode(model):
        source = model.encode(words).hidden
    scale = 1 / math.sqrt(size) if cross.kernel.scale is None else cross.kernel.scale
    found = (entered[:, : length - shift - 1] @ previous.T) * (source[:, shift + 1 :] @ place.T)  # (rows, n, head_dim)
    cross.query.weight[:size] = previous * (_PEAK / (scale * found.sum(-1).mean()))
    cross.key.weight[:size] = place
    cross.value.weight[:size] = copied
    cross.output.weight[:, :size] = copied.T * (_COPY * _rms(residual) / _rms(source))


def _inputs(model: EncoderDecoder, words: Tensor, targets: Tensor, *modules: nn.Module) -> list[Tensor]:
    """Compute the inputs of modules, (rows, length, hidden), for (rows, length) tokens of source and target."""
    found: dict[nn.Module, Tensor] = {}
    hooks = [m.register_forward_pre_hook(lambda m, inputs: found.update({m: inputs[0]})) for m in modules]
    with eval_mode(model):
        model(words, decoder_input_ids=targets)
    for hook in hooks:
        hook.remove()
    return [found[module] for module in modules]


def _rms(values: Tensor) -> Tensor:
    return values.square().mean().sqrt()
