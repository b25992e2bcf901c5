"""Additive attention, and the recurrent decoder layer that uses it (Bahdanau et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from homespun.nn.layers import Dropout
from homespun.nn.masks import Mask
from homespun.nn.recurrent import STATES, Bridge, State

_CELLS = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


class AdditiveAttention(nn.Module):
    """Alignment model ``softmax(v tanh(W s + U h))`` of decoder state ``s`` and source ``h`` (appendix A.1.2)."""

    def __init__(self, state_size: int, source_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(state_size, state_size, bias=False)
        self.key = nn.Linear(source_size, state_size)
        self.score = nn.Linear(state_size, 1, bias=False)

    def forward(self, state: Tensor, keys: Tensor, values: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """Attend to the source.

        Args:
            state: (batch, state).
            keys: (batch, source, state): ``key`` applied to the source.
            values: (batch, source, size): the source.
            keep: (batch, source) bool, False at padding; weights are uniform if all is padding.

        Returns:
            Context vectors (batch, size) and weights (batch, source).
        """
        scores: Tensor = self.score(torch.tanh(self.query(state)[:, None] + keys)).squeeze(-1)
        if keep is not None:
            scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1)
        return torch.bmm(weights[:, None], values).squeeze(1), weights


class AlignedLayer(nn.Module):
    """Recurrent decoder layer with attention before each step: ``s_i = f(s_{i-1}, [y_i; c_i])`` (section 3.1).

    The context ``c_i`` attends with ``s_{i-1}``; the output is ``tanh(W [s_i; c_i; y_i])``, the paper's deep output
    without maxout. Training also runs token by token.

    Args:
        input_size: width of the input.
        size: width of the state and the output.
        source_size: width of the source.
        cell: one of `homespun.nn.recurrent.CELLS`.
        dropout: dropout probability of the output, in training.
    """

    def __init__(self, input_size: int, size: int, source_size: int, *, cell: str, dropout: float) -> None:
        super().__init__()
        self.size, self.states = size, STATES[cell]
        self.attention = AdditiveAttention(size, source_size)
        self.bridge = Bridge(source_size, size, states=self.states)
        self.cell = _CELLS[cell](input_size + source_size, size)
        self.output = nn.Linear(size + source_size + input_size, size)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Map (batch, seq, input) to (batch, seq, size), attending to ``mask.source``."""
        source = mask.source
        assert source is not None
        values, keep, seq = source.hidden, source.mask.keep, hidden.shape[1]
        cached = None if mask.cache is None else mask.cache.state(self)
        state: State = self.bridge(source, len(hidden)) if cached is None else cached
        if mask.cache is None:
            keys = self.attention.key(values)
        else:
            keys, values = mask.cache.once(self, lambda: (self.attention.key(source.hidden), source.hidden))
        beams = len(hidden) // len(values)
        if beams > 1:  # beams of a text are adjacent rows
            keys, values = keys.repeat_interleave(beams, 0), values.repeat_interleave(beams, 0)
            keep = None if keep is None else keep.repeat_interleave(beams, 0)
        real = None if mask.keep is None else mask.keep[:, -seq:]
        outputs = []
        for position in range(seq):
            token = hidden[:, position]
            context, _ = self.attention(state[0], keys, values, keep)
            after = self._step(torch.cat([token, context], dim=-1), state)
            if real is not None:  # padding keeps the state
                is_token = real[:, position, None]
                after = tuple(torch.where(is_token, new, old) for new, old in zip(after, state, strict=True))
            state = after
            outputs.append(torch.cat([state[0], context, token], dim=-1))
        if mask.cache is not None:
            mask.cache.keep_state(self, state)
        vectors = torch.tanh(self.output(torch.stack(outputs, dim=1)))
        if real is not None:
            vectors = vectors.masked_fill(~real[..., None], 0.0)
        return self.dropout(vectors)

    def _step(self, inputs: Tensor, state: State) -> State:
        after = self.cell(inputs, state if self.states == 2 else state[0])
        return after if self.states == 2 else (after,)
