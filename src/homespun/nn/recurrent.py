"""Recurrent layers with the interface of attention layers.

With a `Cache` a layer starts from the cached state and stores its last state, without gradient: for generation and
truncated backpropagation through time (Williams and Peng 1990).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from homespun.nn.layers import Dropout
from homespun.nn.masks import Mask, Source

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
"""Elman network with tanh (1990), LSTM (Hochreiter and Schmidhuber 1997), GRU (Cho et al. 2014)."""
STATES = {"rnn": 1, "lstm": 2, "gru": 1}
"""Number of state vectors; an LSTM has output and memory."""

_FUNCTIONS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "RNN_TANH": torch.rnn_tanh,
    "LSTM": torch.lstm,
    "GRU": torch.gru,
}
_LENGTH_RATIO = 2.0  # maximum ratio of the longest to the shortest text in a padded batch of an LSTM
_PADDING_RATIO = 1.5  # positions per token up to which other networks read all texts in one padded batch

State = tuple[Tensor, ...]
Groups = tuple[tuple[int, int], ...]
"""Number of texts and maximum length of each padded batch."""


class Bridge(nn.Module):
    """Initial state of a decoder: ``tanh(W [first; last])`` of the first and last vectors of the source.

    These are the final states of both directions (Bahdanau et al. 2015, A.2.2, use only the first).
    """

    def __init__(self, source_size: int, size: int, *, states: int) -> None:
        super().__init__()
        self.states = states
        self.linear = nn.Linear(2 * source_size, states * size)

    def forward(self, source: Source, rows: int) -> State:
        """Compute ``states`` tensors (rows, size); rows of one text (beams) are adjacent."""
        hidden, keep = source.hidden, source.mask.keep
        texts = torch.arange(len(hidden), device=hidden.device)
        if keep is None:
            first, last = hidden[:, 0], hidden[:, -1]
        else:
            positions = torch.arange(keep.shape[1], device=keep.device)
            last = hidden[texts, torch.where(keep, positions, 0).amax(1)]
            first = hidden[texts, keep.int().argmax(1)]
        state: Tensor = torch.tanh(self.linear(torch.cat([first, last], dim=-1)))
        if rows != len(state):
            state = state.repeat_interleave(rows // len(state), 0)
        return state.chunk(self.states, dim=-1)


class RecurrentLayer(nn.Module):
    """RNN, LSTM or GRU layer in one or both directions, with dropout.

    Padding is skipped: if padding or packed documents would be read, each text becomes one row (`PaddedBatches`) or
    tokens are packed (`torch.nn.utils.rnn.PackedSequence`). Outputs at padding are zero.

    Args:
        input_size: width of the input.
        size: width of the output, half of it for each of two directions.
        cell: one of `CELLS`.
        bidirectional: read in both directions.
        dropout: dropout probability of the output, never of the state (Zaremba et al. 2014).
        bridge: initial state of a decoder.
        cell_size: width of an LSTM's memory, projected to ``size`` (Sak et al. 2014); 0: no projection.

    Attributes:
        state_sizes: widths of the state of one direction, an LSTM's memory last.
    """

    def __init__(
        self,
        input_size: int,
        size: int,
        *,
        cell: str,
        bidirectional: bool,
        dropout: float,
        bridge: Bridge | None = None,
        cell_size: int = 0,
    ) -> None:
        super().__init__()
        width = size // (1 + bidirectional)
        self.size, self.states, self.bidirectional = size, STATES[cell], bidirectional
        self.state_sizes = (width, cell_size or width)[: self.states]
        projected = {"proj_size": width} if cell_size else {}
        self.network = CELLS[cell](
            input_size, cell_size or width, batch_first=True, bidirectional=bidirectional, **projected
        )
        self.dropout = Dropout(dropout)
        self.bridge = bridge

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (batch, seq, input) to (batch, seq, size)."""
        before = self._initial_state(mask, len(hidden))
        seq = hidden.shape[1]
        keep = None if mask.keep is None else mask.keep[:, -seq:]  # with a cache, the mask includes previous tokens
        group: Callable[[list[int]], Groups] | None = None
        if hidden.device.type == "cpu" and before is None and mask.cache is None:
            group = _similar_lengths if self.network.mode == "LSTM" else _one_group
        plan = mask.once(("texts", seq, group), lambda: _plan(keep, mask, read_back=self.bidirectional, group=group))
        after: State = ()
        with self._ignore_projection_warning():
            if plan is None:
                vectors, after = self._run(hidden, before)
            elif isinstance(plan, PaddedBatches):
                vectors = plan.run(self._run_direction, hidden, both=self.bidirectional)
            else:
                vectors, after = plan.run(self._run, hidden, before)
        if keep is not None and plan is None:
            vectors = vectors.masked_fill(~keep[..., None], 0.0)
        if mask.cache is not None:
            mask.cache.keep_state(self, after)
        return self.dropout(vectors)

    def _ignore_projection_warning(self) -> AbstractContextManager[None]:
        if not self.network.proj_size:
            return nullcontext()
        return warnings.catch_warnings(action="ignore", category=UserWarning)  # oneDNN has no projections

    def _initial_state(self, mask: Mask, rows: int) -> State | None:
        state = None if mask.cache is None else mask.cache.state(self)
        if state is None and self.bridge is not None and mask.source is not None:
            state = cast(State, self.bridge(mask.source, rows))
        return state

    def _run(self, inputs: Tensor | PackedSequence, state: State | None) -> tuple[Tensor, State]:
        """Run the network; states are (rows, width) and only for one direction."""
        initial = None
        if state is not None:
            parts = tuple(part.unsqueeze(0).contiguous() for part in state)
            initial = parts if self.states == 2 else parts[0]
        outputs, after = self.network(inputs, initial)
        vectors = outputs.data if isinstance(outputs, PackedSequence) else outputs
        ends = after if self.states == 2 else (after,)
        return vectors, tuple(end[-1] for end in ends)

    def _run_direction(self, inputs: Tensor, direction: int) -> Tensor:
        """Map (texts, seq, input) to (texts, seq, width) of one direction, from zero states."""
        states = tuple(inputs.new_zeros(1, len(inputs), width) for width in self.state_sizes)
        initial = states if self.states == 2 else states[0]
        weights = self.network.all_weights[direction]
        function = _FUNCTIONS[self.network.mode]
        return function(inputs, initial, weights, True, 1, 0.0, self.training, False, True)[0]


@dataclass(frozen=True, eq=False)
class PaddedBatches:
    """Padded batches of texts of similar length, one text a row.

    Much faster on a CPU than packed sequences, whose backward pass is quadratic in the length and which oneDNN's LSTM
    does not support.

    Args:
        groups: number of texts and maximum length of each batch.
        sources: (rows,) int64 indices into batch * seq, of the positions of all groups.
        reverse: (rows,) int64 indices into rows that reverse each text.
        rows: (tokens,) int64 indices into rows.
        tokens: (tokens,) int64 indices into batch * seq.
    """

    groups: Groups
    sources: Tensor
    reverse: Tensor
    rows: Tensor
    tokens: Tensor

    def run(self, network: Callable[[Tensor, int], Tensor], hidden: Tensor, *, both: bool) -> Tensor:
        """Map (batch, seq, input) to (batch, seq, size), zero at padding."""
        batch, seq = hidden.shape[:2]
        texts = hidden.flatten(0, 1).index_select(0, self.sources)
        vectors = self._run_groups(network, texts, 0)
        if both:
            backward = self._run_groups(network, texts.index_select(0, self.reverse), 1)
            vectors = torch.cat([vectors, backward.index_select(0, self.reverse)], -1)
        vectors = vectors.index_select(0, self.rows)
        padded = vectors.new_zeros(batch * seq, vectors.shape[-1]).index_copy(0, self.tokens, vectors)
        return padded.view(batch, seq, -1)

    def _run_groups(self, network: Callable[[Tensor, int], Tensor], texts: Tensor, direction: int) -> Tensor:
        parts = zip(torch.split(texts, [count * longest for count, longest in self.groups]), self.groups, strict=True)
        outputs = [network(part.view(*group, -1), direction).flatten(0, 1) for part, group in parts]
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


@dataclass(frozen=True, eq=False)
class Packing:
    """Indices of a packed sequence: first tokens of all texts, second tokens, and so on.

    Args:
        tokens: (tokens,) int64 indices into batch * seq.
        batch_sizes: (longest,) int64 on the CPU: number of texts with a first token, a second token, and so on.
        rows: (texts,) int64 row of each text, the longest text first.
    """

    tokens: Tensor
    batch_sizes: Tensor
    rows: Tensor

    def run(
        self,
        network: Callable[[PackedSequence, State | None], tuple[Tensor, State]],
        hidden: Tensor,
        before: State | None,
    ) -> tuple[Tensor, State]:
        """Map (batch, seq, input) to (batch, seq, size), zero at padding, and the state after each row.

        ``before`` is the state of rows with one text each; a row without tokens keeps its state.
        """
        batch, seq = hidden.shape[:2]
        if not len(self.tokens):  # networks need a token: run one row, without gradient and effect
            length, rows = torch.ones(1, dtype=torch.int64), hidden.new_zeros(1, dtype=torch.int64)
            vectors, ends = Packing(rows, length, rows).run(network, hidden, before)
            return vectors * 0.0, before or tuple(end * 0.0 for end in ends)
        packed = PackedSequence(hidden.flatten(0, 1).index_select(0, self.tokens), self.batch_sizes)
        initial = None if before is None else tuple(part.index_select(0, self.rows) for part in before)
        vectors, ends = network(packed, initial)
        padded = vectors.new_zeros(batch * seq, vectors.shape[-1]).index_copy(0, self.tokens, vectors)
        after = []
        for number, end in enumerate(ends):
            final = end.new_zeros(batch, end.shape[-1]) if before is None else before[number].to(end.dtype)
            after.append(final.index_copy(0, self.rows, end))
        return padded.view(batch, seq, -1), tuple(after)


def _plan(
    keep: Tensor | None, mask: Mask, *, read_back: bool, group: Callable[[list[int]], Groups] | None
) -> PaddedBatches | Packing | None:
    """Return the indices of the texts of a batch, or None if the network can read the rows directly.

    ``group`` divides decreasing lengths into groups for `PaddedBatches`; without groups the texts are packed.
    """
    documents = mask.documents
    if documents is None and (keep is None or bool(keep.all())):
        return None
    forward_only = documents is None and not read_back and mask.cache is None
    if forward_only and keep is not None and bool((keep[:, 1:] <= keep[:, :-1]).all()):
        return None  # padding on the right does not change earlier outputs
    tokens = torch.ones_like(documents, dtype=torch.bool) if keep is None and documents is not None else keep
    assert tokens is not None
    row, column = tokens.nonzero(as_tuple=True)
    text = row if documents is None else row * (documents.amax() + 2) + documents[row, column] + 1
    order = text.argsort(stable=True)
    row, column = row[order], column[order]
    starts = torch.ones_like(order, dtype=torch.bool)
    starts[1:] = text[order][1:] != text[order][:-1]
    text_index = starts.cumsum(0) - 1
    lengths = torch.bincount(text_index)
    begins = lengths.cumsum(0) - lengths
    step = torch.arange(len(row), device=row.device) - begins[text_index]
    source = row * tokens.shape[1] + column
    by_length = lengths.argsort(descending=True, stable=True)
    if group is not None and (groups := group(lengths[by_length].tolist())):
        longest = torch.cat([lengths.new_full((count,), size) for count, size in groups])
        first = torch.empty_like(by_length).index_copy(0, by_length, longest.cumsum(0) - longest)  # row of first token
        rows, every = first[text_index] + step, torch.arange(int(longest.sum()))
        reverse = every.index_copy(0, rows, first[text_index] + lengths[text_index] - 1 - step)
        return PaddedBatches(groups, torch.zeros_like(every).index_copy(0, rows, source), reverse, rows, source)
    rank = torch.empty_like(by_length).scatter_(0, by_length, torch.arange(len(by_length), device=row.device))
    packed_order = (step * max(len(lengths), 1) + rank[text_index]).argsort()
    batch_sizes = torch.bincount(step).cpu() if len(step) else step.cpu()
    return Packing(source[packed_order], batch_sizes, row[begins][by_length])


def _one_group(lengths: list[int]) -> Groups:
    if not lengths or len(lengths) * lengths[0] > _PADDING_RATIO * sum(lengths):
        return ()
    return ((len(lengths), lengths[0]),)


def _similar_lengths(lengths: list[int]) -> Groups:
    groups: list[tuple[int, int]] = []
    for length in lengths:
        if groups and groups[-1][1] <= _LENGTH_RATIO * length:
            groups[-1] = (groups[-1][0] + 1, groups[-1][1])
        else:
            groups.append((1, length))
    return tuple(groups)


class IndependentDirections(nn.Module):
    """Two causal layers, one on the left half of the stream, one on the right half with reversed texts.

    Neither half depends on the other, so that each predicts the next token of its direction (Peters et al. 2018). Texts
    are reversed in place: padding and packed documents keep their positions.

    Args:
        forwards, backwards: causal ``(hidden, mask) -> hidden``.
        residual: add the input to the output.
        dropout: dropout probability of the output.
    """

    def __init__(self, forwards: nn.Module, backwards: nn.Module, *, residual: bool, dropout: float) -> None:
        super().__init__()
        self.forwards, self.backwards, self.residual = forwards, backwards, residual
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (batch, seq, 2 * input) to (batch, seq, 2 * size)."""
        index = mask.once(("reverse", hidden.shape[1]), lambda: _reverse_index(hidden.shape[1], mask, hidden.device))
        left, right = hidden.chunk(2, dim=-1)
        backward = self.backwards(_reverse(right, index), mask)
        vectors = torch.cat([self.forwards(left, mask), _reverse(backward, index)], dim=-1)
        if self.residual:
            vectors = vectors + hidden
        return self.dropout(vectors)


def _reverse(hidden: Tensor, index: Tensor | None) -> Tensor:
    if index is None:
        return hidden.flip(1)
    return hidden.flatten(0, 1).index_select(0, index).view_as(hidden)


def _reverse_index(seq: int, mask: Mask, device: torch.device) -> Tensor | None:
    """Return (batch * seq,) int64 indices that reverse each text in place.

    None if each row is one text without padding.
    """
    keep, documents = mask.keep, mask.documents
    table = keep if keep is not None else documents
    if table is None:
        return None
    positions = torch.arange(table.numel(), device=device)
    real = positions if keep is None else positions[keep.flatten()]
    text = real // seq
    if documents is not None:
        text = text * (documents.amax() + 2) + documents.flatten()[real] + 1
    order = real[text.argsort(stable=True)]  # texts in order
    lengths = torch.unique_consecutive(text.sort().values, return_counts=True)[1]
    ends = lengths.cumsum(0)
    mirror = (2 * ends - lengths - 1).repeat_interleave(lengths) - torch.arange(len(order), device=device)
    return positions.index_copy(0, order, order[mirror])
