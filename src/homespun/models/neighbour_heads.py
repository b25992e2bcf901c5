"""Start the first layer's heads at their neighbours: what lets encoders with absolute positions learn early.

The input at a masked token says nothing about it, so nothing but token frequencies is learned until some head looks at
a neighbour. Attention of relative positions finds its neighbours within hundreds of steps; with absolute positions
queries and keys first have to agree on what a position is, and a small model stays at the unigram baseline for millions
of tokens (results/efficiency.md). Here the queries and keys of the first layer are fitted to the positions.
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
from homespun.nn.positions import LearnedPositions, SinusoidalPositions

OFFSETS = (-1, 1, -2, 2)
CAUSAL_OFFSETS = (-1, -2, -3, -4)
_PEAK = 12.0  # logit of the position that a head looks at, as far as positions decide it
_SHARED_PEAK = 6.0  # of relative biases, which all layers share
_SAMPLED = 8  # rows of random words that queries and keys are fitted on
_DIRECTED = 2.9  # length of Performer's queries and keys: the neighbour of 128 gets 0.49, under 2.4 and 3.5 0.42
_RIDGE = 1e-4
_FASTEST = 4  # frequencies that a rotated head uses: the slower ones do not tell a position from the next
_Fitting = MultiHeadAttention | GlobalAttention | LinformerAttention
_FITTED = 512  # positions that queries and keys are fitted to, at most


@torch.no_grad()
def initialise_neighbour_heads(encoder: Encoder, *, deviation: float, step: int = 1) -> None:
    """Let head h of the first layer attend to the position at ``OFFSETS[h] * step`` from each token.

    With rotary positions the biases of queries and keys agree at the offset. Learned positions start as sinusoids of
    the words' deviation, whose frequencies are spaced evenly up to pi, so that neighbouring positions differ most;
    queries and keys are then fitted by `fit_neighbour_heads`. Heads beyond the fourth stay as they were drawn. Of
    relative biases, which all layers share, the number of each head's offset is raised; a causal stack has the offsets
    of `CAUSAL_OFFSETS`.

    Args:
        encoder: a new stack whose first layer projects queries and keys.
        deviation: of the word embeddings.
        step: distance between two tokens that a head can see: 2 in windows of dilation 2.

    Raises:
        UserError: positions are neither learned, sinusoidal, rotary with biases, nor relative biases; or the first
            layer has one projection for queries and keys (LSH).
    """
    modules = list(encoder.layers[0].modules())
    biases = [module for module in modules if isinstance(module, RelativeBias)]
    if biases:
        _raise_neighbours(biases[0], step, causal=encoder.causal)
        return
    turned = [module for module in modules if isinstance(module, MultiHeadAttention) and module.rotary is not None]
    if turned:
        for attention in turned:
            _bias(attention, step)
        return
    if not isinstance(encoder.embeddings.positions, (LearnedPositions, SinusoidalPositions)):
        raise UserError(
            "neighbour_heads needs learned, sinusoidal or rotary positions, or relative biases; set "
            "model.neighbour_heads=0"
        )
    if not any(isinstance(module, _Fitting) for module in modules):
        raise UserError(
            "neighbour_heads needs separate projections of queries and keys in the first layer, which LSH attention "
            "does not have; set model.neighbour_heads=0"
        )
    fit_neighbour_heads(encoder.embeddings.words.weight, encoder, deviation=deviation, step=step)


def fit_neighbour_heads(tensor: Tensor, encoder: Encoder, *, deviation: float, step: int) -> None:
    """Fit queries and keys of the first layer to absolute positions, by least squares on rows of random words.

    The projection of narrow embeddings (ALBERT) is drawn orthogonal, so that positions keep their size. Where projected
    keys (Linformer) are as many as positions they start as the keys, else as sums of every ``k``-th.

    Args:
        tensor: the word embeddings: a mode that leaves out the functions of `torch.nn.init` leaves this out too.
        encoder: the stack, whose other weights are drawn.
        deviation: of the word embeddings.
        step: multiplies ``OFFSETS``.
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
    if isinstance(encoder.projection, nn.Linear):  # of narrow embeddings: positions keep their size and their angles
        gain = math.sqrt(max(1.0, encoder.projection.out_features / size))
        nn.init.orthogonal_(encoder.projection.weight, gain=gain, generator=_generator())
    for attention in encoder.layers[0].modules():
        if isinstance(attention, _Fitting):
            length = min(_FITTED, encoder.embeddings.max_position_embeddings)
            if isinstance(attention.kernel, Performer):  # as many as have a direction and an independent sinusoid
                length = min(length, attention.kernel.num_features // 2, size // 2)
            before = step * len(OFFSETS)
            width = attention.query.out_features // attention.num_attention_heads
            all_positions = torch.arange(-before, length + before)
            table = _targets(attention.kernel, frequencies, all_positions, width)
            _fit(attention, _entering(encoder, attention, length), table, step)
    for module in encoder.modules():
        if isinstance(module, LinearProjection):
            k, longest = module.weight.shape[1:]
            module.weight.copy_(torch.arange(longest) % k == torch.arange(k)[:, None])


def _bias(attention: MultiHeadAttention, step: int) -> None:
    """Set biases of queries and keys: rotated by their positions, they agree most at the head's offset.

    Their product is ``sum_i a^2 cos(w_i (j - i - offset))`` over the fastest frequencies ``w_i``.
    """
    query, key = attention.query.bias, attention.key.bias
    if query is None or key is None or attention.num_key_value_heads != attention.num_attention_heads:
        raise UserError(
            "neighbour_heads with rotary positions needs biases, and as many heads of keys as of queries; set "
            "model.attention_bias=true and model.num_key_value_heads=0, or model.neighbour_heads=0"
        )
    assert attention.rotary is not None
    size = len(query) // attention.num_attention_heads
    frequencies = attention.rotary.frequencies[:_FASTEST]
    scale = math.sqrt(_PEAK * math.sqrt(size) / len(frequencies))
    for head, offset in zip(range(attention.num_attention_heads), OFFSETS, strict=False):
        first = head * size + torch.arange(len(frequencies))
        angles = frequencies * offset * step
        query[first] = scale
        key[first], key[first + size // 2] = scale * angles.cos(), -scale * angles.sin()


def _raise_neighbours(bias: RelativeBias, step: int, *, causal: bool) -> None:
    """Raise the number of each head's offset: that of its bucket, in which there is no other distance."""
    weight = bias.embedding.weight  # (buckets, heads)
    for head, offset in zip(range(weight.shape[1]), CAUSAL_OFFSETS if causal else OFFSETS, strict=False):
        position = bias.longest - 1 + offset * step
        weight[:, head].index_fill_(
            0, bias.buckets[position : position + 1], _SHARED_PEAK
        )  # not by value: it may be on meta


class _FirstAttention(Exception):
    """Stop a forward pass before the first attention: the cross-attention behind it would need a source."""


def _entering(encoder: Encoder, attention: nn.Module, length: int) -> Tensor:
    """Input of the first layer's attention for rows of random tokens, (rows, length, hidden).

    Norms, narrow embeddings and reversible streams all change how large positions and words are in it.
    """
    seen: list[Tensor] = []

    def stop(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])
        raise _FirstAttention

    hook = attention.register_forward_pre_hook(stop)
    training = encoder.training
    words = torch.randint(encoder.embeddings.vocab_size, (_SAMPLED, length), generator=_generator())
    with contextlib.suppress(_FirstAttention):
        list(encoder.eval().hidden_states(words))
    encoder.train(training)
    hook.remove()
    return seen[0]


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _targets(kernel: nn.Module, frequencies: Tensor, positions: Tensor, size: int) -> Tensor:
    """(n, size) queries and keys of (n,) positions, whose logit is `_PEAK` where they are equal."""
    if isinstance(kernel, Performer):  # one of its random directions each, so that a feature stands for a position
        directions = nn.functional.normalize(kernel.projection, dim=-1)
        return directions[positions % len(directions)] * _DIRECTED
    chosen = frequencies[: size // 2]
    return _sinusoids(chosen, positions, size) * math.sqrt(_PEAK * math.sqrt(size) / len(chosen))


def _sinusoids(frequencies: Tensor, positions: Tensor, width: int) -> Tensor:
    """(n, width) of (n,) positions: sines, then cosines; zero in the rest of the width."""
    angles = positions[:, None] * frequencies
    table = torch.zeros(len(positions), width)
    table[:, : 2 * len(frequencies)] = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return table


def _fit(attention: _Fitting, entering: Tensor, table: Tensor, step: int) -> None:
    """Set queries and keys by least squares, so that those of i and j agree most where j - i is the head's offset.

    Args:
        entering: (rows, length, hidden) of rows of random words.
        table: (4 * step + length + 4 * step, head_dim) vectors of positions, which agree most with themselves.
        step: multiplies ``OFFSETS``.
    """
    length, size = entering.shape[1], table.shape[1]
    # without the ridge embeddings narrower than the layers have no solution
    gram = (entering.mT @ entering).mean(0)
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    mean = entering.mean(0)
    for head, offset in zip(range(attention.num_attention_heads), OFFSETS, strict=False):
        rows = slice(head * size, (head + 1) * size)
        here = table[step * len(OFFSETS) :][:length]
        shifted = table[step * (len(OFFSETS) - offset) :][:length]  # position j - offset
        for projection, target in ((attention.query, here), (attention.key, shifted)):
            fitted = torch.linalg.solve(gram, mean.mT @ target)  # (hidden, head_dim)
            # least squares make them smaller the more words there are in what is read
            scale = target.square().sum() / (mean @ fitted * target).sum()
            projection.weight[rows] = (fitted * scale).T
