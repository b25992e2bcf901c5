"""Recurrent layers: a state that goes from token to token, under the same mask as attention.

With a `Cache` a layer starts from the state in it and leaves the one after its last token, through which no gradient
flows: for generation and truncated back-propagation through time (Williams and Peng 1990).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from homespun.nn.layers import Dropout, SequentialStack
from homespun.nn.masks import Mask, Source

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
"""Elman's network with tanh (1990), long short-term memory (Hochreiter and Schmidhuber 1997), gated recurrent units
(Cho et al. 2014)."""
STATES = {"rnn": 1, "lstm": 2, "gru": 1}
"""Vectors that a cell hands on: of an LSTM its output and its memory."""

_READ: dict[str, Callable[..., tuple[Tensor, ...]]] = {"RNN_TANH": torch.rnn_tanh, "LSTM": torch.lstm, "GRU": torch.gru}
_LENGTH_RATIO = 2.0  # oneDNN's LSTM reads those texts together whose lengths differ by no more than this factor
_EMPTY = 1.5  # times as many places as tokens, up to which other networks read all texts together

State = tuple[Tensor, ...]
Groups = tuple[tuple[int, int], ...]
"""Texts that are read together, and tokens of the longest of them, for each group in turn."""


class Bridge(nn.Module):
    """The first state of a decoder: ``tanh(W [first; last])`` of the source's real vectors.

    These hold all that each direction has read (Sutskever et al. 2014; Bahdanau et al. 2015, A.2.2, use the first
    alone).
    """

    def __init__(self, source_size: int, size: int, *, states: int) -> None:
        super().__init__()
        self.states = states
        self.linear = nn.Linear(2 * source_size, states * size)

    def forward(self, source: Source, rows: int) -> State:
        """-> ``states`` tensors (rows, size); the rows of one text, such as beams, are adjacent."""
        hidden, keep = source.hidden, source.mask.keep
        texts = torch.arange(len(hidden), device=hidden.device)
        if keep is None:
            first, last = hidden[:, 0], hidden[:, -1]
        else:
            places = torch.arange(keep.shape[1], device=keep.device)
            last = hidden[texts, torch.where(keep, places, 0).amax(1)]
            first = hidden[texts, keep.int().argmax(1)]
        state: Tensor = torch.tanh(self.linear(torch.cat([first, last], dim=-1)))
        if rows != len(state):
            state = state.repeat_interleave(rows // len(state), 0)
        return state.chunk(self.states, dim=-1)


class RecurrentLayer(nn.Module):
    """One layer of an RNN, an LSTM or a GRU, in one direction or in both, and dropout.

    Padding is never read: rows with padding before or between tokens, with packed documents, or read from the end,
    become one row a text (`PaddedBatches`) or packed tokens (`torch.nn.utils.rnn.PackedSequence`). Outputs at padding
    are zero.

    Args:
        input_size: width of the input.
        size: width of the output; each of two directions has half of it.
        cell: see `CELLS`.
        bidirectional: the text is read from its end too.
        dropout: after the layer (Zaremba et al. 2014: never from one token to the next).
        bridge: makes the first state of a decoder from its source.
        cell_size: width of an LSTM's memory, projected to ``size`` (Sak et al. 2014); 0: no projection.

    Attributes:
        state_sizes: widths of a direction's state, an LSTM's memory last.
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
        """(batch, seq, input) -> (batch, seq, size)."""
        before = self._before(mask, len(hidden))
        seq = hidden.shape[1]
        keep = None if mask.keep is None else mask.keep[:, -seq:]  # that of a cache has the tokens before too
        together: Callable[[list[int]], Groups] = _no_groups
        if hidden.device.type == "cpu" and before is None and mask.cache is None:
            together = _similar_lengths if self.network.mode == "LSTM" and not self.network.proj_size else _all_together
        plan = mask.once(
            ("texts", seq, together), lambda: _plan(keep, mask, read_back=self.bidirectional, together=together)
        )
        after: State = ()
        with self._as_it_is_made():
            if plan is None:
                vectors, after = self._run(hidden, before)
            elif isinstance(plan, PaddedBatches):
                vectors = plan.run(self._read, hidden, both=self.bidirectional)
            else:
                vectors, after = plan.run(self._run, hidden, before)
        if keep is not None and plan is None:
            vectors = vectors.masked_fill(~keep[..., None], 0.0)
        if mask.cache is not None:
            mask.cache.keep_state(self, after)
        dropped: Tensor = self.dropout(vectors)
        return dropped

    def _as_it_is_made(self) -> AbstractContextManager[None]:
        if not self.network.proj_size:
            return nullcontext()
        return warnings.catch_warnings(action="ignore", category=UserWarning)  # that oneDNN has no projections

    def _before(self, mask: Mask, rows: int) -> State | None:
        known = None if mask.cache is None else mask.cache.state(self)
        if known is None and self.bridge is not None and mask.source is not None:
            first: State = self.bridge(mask.source, rows)
            return first
        return known

    def _run(self, inputs: Tensor | PackedSequence, state: State | None) -> tuple[Tensor, State]:
        """The network itself; the parts of a state are (rows, width), and two directions have no state."""
        given = None
        if state is not None:
            parts = tuple(part.unsqueeze(0).contiguous() for part in state)
            given = parts if self.states == 2 else parts[0]
        outputs, after = self.network(inputs, given)
        vectors = outputs.data if isinstance(outputs, PackedSequence) else outputs
        ends = after if self.states == 2 else (after,)
        return vectors, tuple(end[-1] for end in ends)

    def _read(self, inputs: Tensor, direction: int) -> Tensor:
        """(texts, seq, input) -> (texts, seq, width): one direction alone, from zero states."""
        states = tuple(inputs.new_zeros(1, len(inputs), width) for width in self.state_sizes)
        given = states if self.states == 2 else states[0]
        weights = self.network.all_weights[direction]
        outputs: Tensor = _READ[self.network.mode](inputs, given, weights, True, 1, 0.0, self.training, False, True)[0]
        return outputs


@dataclass(frozen=True, eq=False)
class PaddedBatches:
    """Each text in its own row, from its first token on; outputs behind its end are dropped.

    Texts of similar length are read together. On a CPU far faster than packed texts, whose backward pass takes the
    square of the length, and which oneDNN's LSTM does not read.

    Args:
        groups: which texts are read together.
        places: (rows,) int64 into batch * seq, of all groups.
        turned: (rows,) int64 into the same rows: source of each row when texts are reversed.
        cells: (tokens,) int64 into the rows.
        tokens: (tokens,) int64 into batch * seq.
    """

    groups: Groups
    places: Tensor
    turned: Tensor
    cells: Tensor
    tokens: Tensor

    def run(self, read: Callable[[Tensor, int], Tensor], hidden: Tensor, *, both: bool) -> Tensor:
        """(batch, seq, input) -> (batch, seq, size), zero at padding."""
        batch, seq = hidden.shape[:2]
        texts = hidden.flatten(0, 1).index_select(0, self.places)
        vectors = self._read(read, texts, 0)
        if both:
            back = self._read(read, texts.index_select(0, self.turned), 1)
            vectors = torch.cat([vectors, back.index_select(0, self.turned)], -1)
        kept = vectors.index_select(0, self.cells)
        spread = kept.new_zeros(batch * seq, kept.shape[-1]).index_copy(0, self.tokens, kept)
        return spread.view(batch, seq, -1)

    def _read(self, read: Callable[[Tensor, int], Tensor], texts: Tensor, direction: int) -> Tensor:
        parts = torch.split(texts, [count * longest for count, longest in self.groups])
        read_parts = [
            read(part.view(*group, -1), direction).flatten(0, 1) for part, group in zip(parts, self.groups, strict=True)
        ]
        return torch.cat(read_parts) if len(read_parts) > 1 else read_parts[0]


@dataclass(frozen=True, eq=False)
class Packing:
    """Indices of the tokens in packed order: the first tokens of all texts, then the second ones, and so on.

    Args:
        places: (tokens,) int64 into batch * seq.
        batch_sizes: (longest,) int64 on the CPU: texts that have a first token, a second one ...
        rows: (texts,) int64: the row of each text, the longest text first.
    """

    places: Tensor
    batch_sizes: Tensor
    rows: Tensor

    def run(
        self,
        network: Callable[[PackedSequence, State | None], tuple[Tensor, State]],
        hidden: Tensor,
        before: State | None,
    ) -> tuple[Tensor, State]:
        """(batch, seq, input) -> (batch, seq, size), zero at padding, and the state after each row.

        ``before`` is of rows, each of which is one text; a row without tokens keeps its state.
        """
        batch, seq = hidden.shape[:2]
        if not len(self.places):  # a network refuses to read nothing, and must learn nothing of it
            length, rows = torch.ones(1, dtype=torch.int64), hidden.new_zeros(1, dtype=torch.int64)
            return Packing(rows, length, rows).run(network, hidden * 0.0, before)
        packed = PackedSequence(hidden.flatten(0, 1).index_select(0, self.places), self.batch_sizes)
        given = None if before is None else tuple(part.index_select(0, self.rows) for part in before)
        vectors, ends = network(packed, given)
        spread = vectors.new_zeros(batch * seq, vectors.shape[-1]).index_copy(0, self.places, vectors)
        after = []
        for number, end in enumerate(ends):
            final = end.new_zeros(batch, end.shape[-1]) if before is None else before[number].to(end.dtype)
            after.append(final.index_copy(0, self.rows, end))
        return spread.view(batch, seq, -1), tuple(after)


def _plan(
    keep: Tensor | None, mask: Mask, *, read_back: bool, together: Callable[[list[int]], Groups]
) -> PaddedBatches | Packing | None:
    """Packing of the texts, or None if reading the rows as they are gives the same.

    ``together`` groups their lengths, the longest first, for `PaddedBatches`; no groups: they are packed.
    """
    documents = mask.documents
    if documents is None and (keep is None or bool(keep.all())):
        return None
    onwards = documents is None and keep is not None and not read_back and mask.cache is None
    if onwards and keep is not None and bool((keep[:, 1:] <= keep[:, :-1]).all()):
        return None  # what comes after the text changes nothing in it
    tokens = torch.ones_like(documents, dtype=torch.bool) if keep is None and documents is not None else keep
    assert tokens is not None
    row, column = tokens.nonzero(as_tuple=True)
    text = row if documents is None else row * (documents.amax() + 2) + documents[row, column] + 1
    order = text.argsort(stable=True)
    row, column = row[order], column[order]
    starts = torch.ones_like(order, dtype=torch.bool)
    starts[1:] = text[order][1:] != text[order][:-1]
    which = starts.cumsum(0) - 1
    lengths = torch.bincount(which)
    begins = lengths.cumsum(0) - lengths
    step = torch.arange(len(row), device=row.device) - begins[which]
    stands = row * tokens.shape[1] + column
    by_length = lengths.argsort(descending=True, stable=True)
    if groups := together(lengths[by_length].tolist()):
        longest = torch.cat([lengths.new_full((count,), most) for count, most in groups])
        rows = torch.empty_like(by_length).index_copy(0, by_length, longest.cumsum(0) - longest)  # where each begins
        cells, every = rows[which] + step, torch.arange(int(longest.sum()))
        turned = every.index_copy(0, cells, rows[which] + lengths[which] - 1 - step)
        return PaddedBatches(groups, torch.zeros_like(every).index_copy(0, cells, stands), turned, cells, stands)
    rank = torch.empty_like(by_length).scatter_(0, by_length, torch.arange(len(by_length), device=row.device))
    reading = (step * max(len(lengths), 1) + rank[which]).argsort()
    batch_sizes = torch.bincount(step).cpu() if len(step) else step.cpu()
    return Packing(stands[reading], batch_sizes, row[begins][by_length])


def _no_groups(_: list[int]) -> Groups:
    return ()


def _all_together(lengths: list[int]) -> Groups:
    if not lengths or len(lengths) * lengths[0] > _EMPTY * sum(lengths):
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


class DirectionStack:
    """`LayerStack` of two halves with the same input."""

    copies = 2

    def expand(self, hidden: Tensor) -> Tensor:
        """(batch, seq, size) -> (batch, seq, 2 * size)."""
        return torch.cat([hidden, hidden], dim=-1)

    def run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask, *, recompute: bool) -> Tensor:
        """(batch, seq, 2 * size) -> the same."""
        return SequentialStack().run(layers, hidden, mask, recompute=recompute)


class IndependentDirections(nn.Module):
    """A layer for each half of the stream: ``forwards`` reads the left one, ``backwards`` the right one reversed.

    Neither half depends on the other, so that each can predict the next token of its direction (Peters et al. 2018).
    Texts are reversed in place: padding and packed documents stay where they are, and one mask serves both directions.

    Args:
        forwards, backwards: causal ``(hidden, mask) -> hidden``.
        residual: add the input, which must be as wide, to the output.
        dropout: after that.
    """

    def __init__(self, forwards: nn.Module, backwards: nn.Module, *, residual: bool, dropout: float) -> None:
        super().__init__()
        self.forwards, self.backwards, self.residual = forwards, backwards, residual
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, 2 * input) -> (batch, seq, 2 * size)."""
        positions = mask.once(("turned", hidden.shape[1]), lambda: _turned(hidden.shape[1], mask, hidden.device))
        onwards, back = hidden.chunk(2, dim=-1)
        read = self.backwards(_take(back, positions), mask)
        vectors = torch.cat([self.forwards(onwards, mask), _take(read, positions)], dim=-1)
        if self.residual:
            vectors = vectors + hidden
        dropped: Tensor = self.dropout(vectors)
        return dropped


def _take(hidden: Tensor, positions: Tensor | None) -> Tensor:
    if positions is None:
        return hidden.flip(1)
    return hidden.flatten(0, 1).index_select(0, positions).view_as(hidden)


def _turned(seq: int, mask: Mask, device: torch.device) -> Tensor | None:
    """(batch * seq,) int64: source of each position when every text is reversed in place; its own inverse.

    None if each row is one text without padding.
    """
    keep, documents = mask.keep, mask.documents
    known = keep if keep is not None else documents
    if known is None:
        return None
    positions = torch.arange(known.numel(), device=device)
    own = positions if keep is None else positions[keep.flatten()]
    text = own // seq
    if documents is not None:
        text = text * (documents.amax() + 2) + documents.flatten()[own] + 1
    order = own[text.argsort(stable=True)]  # one text after the other, each from its beginning
    lengths = torch.unique_consecutive(text.sort().values, return_counts=True)[1]
    ends = lengths.cumsum(0)
    mirror = (2 * ends - lengths - 1).repeat_interleave(lengths) - torch.arange(len(order), device=device)
    return positions.index_copy(0, order, order[mirror])
