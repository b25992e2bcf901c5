"""Initialisation of the heads of the first layer to attend to neighbouring tokens.

A masked language model stays at the unigram baseline until a head attends to neighbours. With relative positions this
takes hundreds of steps, with absolute positions in a small model millions of tokens (results/efficiency.md). Here the
queries and keys of the first layer are fitted to the positions.
"""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from homespun.attention.linformer import LinearProjection, LinformerAttention
from homespun.attention.multi_head import MultiHeadAttention
from homespun.attention.performer import Performer
from homespun.attention.relative_bias import RelativeBias
from homespun.attention.sparse import GlobalAttention
from homespun.errors import UserError
from homespun.models.backbone import Encoder
from homespun.nn.eval_mode import eval_mode
from homespun.nn.positions import LearnedPositions, SinusoidalPositions

OFFSETS = (-1, 1, -2, 2)
CAUSAL_OFFSETS = (-1, -2, -3, -4)
_PEAK = 12.0  # logit of the neighbour
_SHARED_PEAK = 6.0  # peak of relative biases, which all layers share
_SAMPLES = 8  # rows of random words for the fit
_PERFORMER_LENGTH = 2.9  # norm of queries and keys: attention 0.49 to a neighbour at length 128; 0.42 with 2.4 or 3.5
_RIDGE = 1e-4
_NUM_FREQUENCIES = 4  # the fastest frequencies of a rotary head
_Fitting = MultiHeadAttention | GlobalAttention | LinformerAttention
_MAX_POSITIONS = 512  # for the fit


@torch.no_grad()
def initialise_neighbour_heads(encoder: Encoder, *, deviation: float, step: int = 1) -> None:
    """Initialise head ``h`` of the first layer to attend to offset ``OFFSETS[h] * step``; other heads are unchanged.

    - Rotary positions: the biases of queries and keys agree at the offset.
    - Learned positions: initialised as sinusoids with frequencies up to pi, then as sinusoidal ones.
    - Sinusoidal positions: queries and keys are fitted by `fit_neighbour_heads`.
    - Relative biases: the bias of the offset is increased; a causal stack uses `CAUSAL_OFFSETS`.

    Args:
        encoder: a new stack.
        deviation: standard deviation of the word embeddings.
        step: distance between tokens that a head can see: 2 in windows of dilation 2.

    Raises:
        UserError: other positions, rotary positions without biases, grouped keys, or shared queries and keys (LSH).
    """
    modules = list(encoder.layers[0].modules())
    biases = [module for module in modules if isinstance(module, RelativeBias)]
    if biases:
        _raise_neighbours(biases[0], step, causal=encoder.causal)
        return
    attentions = [module for module in modules if isinstance(module, MultiHeadAttention)]
    if any(attention.num_key_value_heads != attention.num_attention_heads for attention in attentions):
        raise UserError(
            "neighbour_heads needs keys of each head; set model.num_key_value_heads=0, or model.neighbour_heads=0"
        )
    rotary = [attention for attention in attentions if attention.rotary is not None]
    if rotary:
        for attention in rotary:
            _set_biases(attention, step)
        return
    if not isinstance(encoder.embeddings.positions, (LearnedPositions, SinusoidalPositions)):
        raise UserError(
            "neighbour_heads needs learned, sinusoidal or rotary positions, or relative biases; set "
            "model.neighbour_heads=0"
        )
    if not any(isinstance(module, _Fitting) for module in modules):
        raise UserError(
            "neighbour_heads does not support attention with shared queries and keys (LSH) in the first layer; set "
            "model.neighbour_heads=0"
        )
    fit_neighbour_heads(encoder.embeddings.words.weight, encoder, deviation=deviation, step=step)


def fit_neighbour_heads(tensor: Tensor, encoder: Encoder, *, deviation: float, step: int) -> None:
    """Fit queries and keys of the first layer to absolute positions by least squares on rows of random words.

    Projections of narrow embeddings (ALBERT) are initialised orthogonally, and those of Linformer as sums of every
    ``k``-th position.

    Args:
        tensor: word embeddings, for modes that skip the functions of `torch.nn.init`.
        encoder: initialised stack.
        deviation: standard deviation of the word embeddings.
        step: factor of ``OFFSETS``.
    """
    if has_torch_function_unary(tensor):
        handle_torch_function(
            fit_neighbour_heads, (tensor,), tensor=tensor, encoder=encoder, deviation=deviation, step=step
        )
        return
    if tensor.is_meta:
        return
    positions, size = encoder.embeddings.positions, encoder.embeddings.embedding_size
    half = torch.arange(size // 2)
    if isinstance(positions, LearnedPositions):
        frequencies = math.pi * (half + 0.5) / len(half)
        table = _sinusoids(frequencies, torch.arange(positions.max_position_embeddings), size)
        positions.embedding.weight[positions.offset :] = table * (deviation * math.sqrt(2))
        frequencies = frequencies[torch.randperm(len(half), generator=_generator())]
    else:
        frequencies = torch.exp(half * (-2 * math.log(10_000.0) / size))
    if isinstance(encoder.projection, nn.Linear):  # narrow embeddings
        gain = math.sqrt(max(1.0, encoder.projection.out_features / size))
        nn.init.orthogonal_(encoder.projection.weight, gain=gain, generator=_generator())
    for attention in encoder.layers[0].modules():
        if isinstance(attention, _Fitting):
            length = min(_MAX_POSITIONS, encoder.embeddings.max_position_embeddings)
            if isinstance(attention.kernel, Performer):  # one direction and sinusoid a position
                length = min(length, attention.kernel.num_features // 2, size // 2)
            before = step * len(OFFSETS)
            width = attention.query.out_features // attention.num_attention_heads
            all_positions = torch.arange(-before, length + before)
            table = _targets(attention.kernel, frequencies, all_positions, width)
            _fit(attention, _attention_input(encoder, attention, length), table, step)
    for module in encoder.modules():
        if isinstance(module, LinearProjection):
            k, longest = module.weight.shape[1:]
            module.weight.copy_(torch.arange(longest) % k == torch.arange(k)[:, None])


def _set_biases(attention: MultiHeadAttention, step: int) -> None:
    """Set biases of queries and keys so that their product is ``sum_w a^2 cos(w (j - i - offset))`` after rotation."""
    query, key = attention.query.bias, attention.key.bias
    if query is None or key is None:
        raise UserError(
            "neighbour_heads with rotary positions needs biases; set model.attention_bias=true, or "
            "model.neighbour_heads=0"
        )
    if query.is_meta:
        return
    assert attention.rotary is not None
    size = len(query) // attention.num_attention_heads
    frequencies = attention.rotary.frequencies[:_NUM_FREQUENCIES]
    scale = math.sqrt(_PEAK * math.sqrt(size) / len(frequencies))
    for head, offset in zip(range(attention.num_attention_heads), OFFSETS, strict=False):
        first = head * size + torch.arange(len(frequencies))
        angles = frequencies * offset * step
        query[first] = scale
        key[first], key[first + size // 2] = scale * angles.cos(), -scale * angles.sin()


def _raise_neighbours(bias: RelativeBias, step: int, *, causal: bool) -> None:
    """Increase the bias of each head's offset, which is alone in its bucket."""
    weight = bias.embedding.weight  # (buckets, heads)
    for head, offset in zip(range(weight.shape[1]), CAUSAL_OFFSETS if causal else OFFSETS, strict=False):
        position = bias.longest - 1 + offset * step
        bucket = bias.buckets[position : position + 1]  # a tensor: it may be on meta
        weight[:, head].index_fill_(0, bucket, _SHARED_PEAK)


class _FirstAttention(Exception):
    """Exception that stops a forward pass at the first attention, since cross-attention needs a source."""


def _attention_input(encoder: Encoder, attention: nn.Module, length: int) -> Tensor:
    """Compute the input of the first attention for rows of random tokens, (rows, length, hidden)."""
    found: list[Tensor] = []

    def stop(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0])
        raise _FirstAttention

    hook = attention.register_forward_pre_hook(stop)
    words = torch.randint(encoder.embeddings.vocab_size, (_SAMPLES, length), generator=_generator())
    with contextlib.suppress(_FirstAttention), eval_mode(encoder):
        list(encoder.hidden_states(words))
    hook.remove()
    return found[0]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _targets(kernel: nn.Module, frequencies: Tensor, positions: Tensor, size: int) -> Tensor:
    """Return (n, size) queries and keys of (n,) positions, with a logit of `_PEAK` for equal positions."""
    if isinstance(kernel, Performer):  # one random direction a position
        directions = nn.functional.normalize(kernel.projection, dim=-1)
        return directions[positions % len(directions)] * _PERFORMER_LENGTH
    frequencies = frequencies[: size // 2]
    return _sinusoids(frequencies, positions, size) * math.sqrt(_PEAK * math.sqrt(size) / len(frequencies))


def _sinusoids(frequencies: Tensor, positions: Tensor, width: int) -> Tensor:
    """Return (n, width) sines, cosines and zeros of (n,) positions."""
    angles = positions[:, None] * frequencies
    table = torch.zeros(len(positions), width)
    table[:, : 2 * len(frequencies)] = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return table


def _fit(attention: _Fitting, hidden: Tensor, table: Tensor, step: int) -> None:
    """Fit queries and keys by least squares, so that query ``i`` and key ``i + offset`` have the greatest product.

    Args:
        hidden: (rows, length, hidden) input of the attention for random words.
        table: (4 * step + length + 4 * step, head_dim) targets of positions.
        step: factor of ``OFFSETS``.
    """
    length, size = hidden.shape[1], table.shape[1]
    # ridge regression, since the rank of narrow embeddings is too small
    gram = (hidden.mT @ hidden).mean(0)
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    mean = hidden.mean(0)
    for head, offset in zip(range(attention.num_attention_heads), OFFSETS, strict=False):
        rows = slice(head * size, (head + 1) * size)
        unshifted = table[step * len(OFFSETS) :][:length]
        shifted = table[step * (len(OFFSETS) - offset) :][:length]  # position j - offset
        for projection, target in ((attention.query, unshifted), (attention.key, shifted)):
            fitted = torch.linalg.solve(gram, mean.mT @ target)  # (hidden, head_dim)
            # rescale: the variance of words shrinks the solution
            scale = target.square().sum() / (mean @ fitted * target).sum()
            projection.weight[rows] = (fitted * scale).T
