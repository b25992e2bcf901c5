"""Additive attention, and the recurrent decoder layer that uses it (Bahdanau et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from homespun.nn.layers import Dropout
from homespun.nn.masks import Mask
from homespun.nn.recurrent import STATES, Bridge, State

_STEPS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


class AdditiveAttention(nn.Module):
    """The alignment model: ``softmax(v tanh(W s + U h))`` over the vectors ``h`` of a source, for a state ``s``."""

    def __init__(self, state_size: int, source_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(state_size, state_size, bias=False)
        self.key = nn.Linear(source_size, state_size)
        self.score = nn.Linear(state_size, 1, bias=False)

    def forward(self, state: Tensor, keys: Tensor, values: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """Context vectors of decoder states and their attention weights.

        Args:
            state: (batch, state).
            keys: (batch, source, state): ``key`` of the vectors, made once a text.
            values: (batch, source, size): the vectors.
            keep: (batch, source) bool, False at padding; a text that is all padding has even weights.

        Returns:
            (batch, size) and (batch, source), which sums to 1.
        """
        scores: Tensor = self.score(torch.tanh(self.query(state)[:, None] + keys)).squeeze(-1)
        if keep is not None:
            scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        return torch.bmm(weights[:, None], values).squeeze(1), weights


class AlignedLayer(nn.Module):
    """A recurrent layer that attends to its source before each token: ``s_i = f(s_{i-1}, [y_i; c_i])``.

    The context ``c_i`` is that of the previous state; the output is ``tanh(W [s_i; c_i; y_i])``, the deep output of the
    paper without its maxout. Training runs token by token too.

    Args:
        input_size: width of the input.
        size: width of the state and the output.
        source_size: width of the source's vectors.
        cell: see `homespun.nn.recurrent.CELLS`.
        dropout: after the layer.
    """

    def __init__(self, input_size: int, size: int, source_size: int, *, cell: str, dropout: float) -> None:
        super().__init__()
        self.size, self.states = size, STATES[cell]
        self.attention = AdditiveAttention(size, source_size)
        self.bridge = Bridge(source_size, size, states=self.states)
        self.cell = _STEPS[cell](input_size + source_size, size)
        self.output = nn.Linear(size + source_size + input_size, size)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, input) -> (batch, seq, size), with the source of ``mask``."""
        source = mask.source
        assert source is not None
        values, keep, seq = source.hidden, source.mask.keep, hidden.shape[1]
        known = None if mask.cache is None else mask.cache.state(self)
        state: State = self.bridge(source, len(hidden)) if known is None else known
        if mask.cache is None:
            keys = self.attention.key(values)
        else:
            keys, values = mask.cache.once(self, lambda: (self.attention.key(source.hidden), source.hidden))
        beams = len(hidden) // len(values)
        if beams > 1:  # those of one text stand beside each other
            keys, values = keys.repeat_interleave(beams, 0), values.repeat_interleave(beams, 0)
            keep = None if keep is None else keep.repeat_interleave(beams, 0)
        real = None if mask.keep is None else mask.keep[:, -seq:]
        outputs = []
        for place in range(seq):
            token = hidden[:, place]
            context, _ = self.attention(state[0], keys, values, keep)
            after = self._step(torch.cat([token, context], dim=-1), state)
            if real is not None:  # padding is passed over, wherever it stands
                here = real[:, place, None]
                after = tuple(torch.where(here, new, old) for new, old in zip(after, state, strict=True))
            state = after
            outputs.append(torch.cat([state[0], context, token], dim=-1))
        if mask.cache is not None:
            mask.cache.keep_state(self, state)
        vectors = torch.tanh(self.output(torch.stack(outputs, dim=1)))
        if real is not None:
            vectors = vectors.masked_fill(~real[..., None], 0.0)
        dropped: Tensor = self.dropout(vectors)
        return dropped

    def _step(self, inputs: Tensor, state: State) -> State:
        after = self.cell(inputs, state if self.states == 2 else state[0])
        return after if self.states == 2 else (after,)
