"""Token ids to vectors: words, positions and segments, summed, normalised, dropped out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from homespun.nn.dropout import Dropout


class Embeddings(nn.Module):
    """BERT's embeddings (Devlin et al. 2019, figure 2), with any `homespun.nn.positions`.

    Without segments ``type_vocab_size`` is 0; where nothing is normalised ``norm`` is the identity. The projection to
    another hidden size, where embeddings are factorised, belongs to the backbone, so that ELECTRA's two models can
    share all of this. ``words`` are those of another stack, whose decoder this is; ``scale`` multiplies them by
    ``sqrt(embedding_size)`` (Vaswani et al. 2017, section 3.4). ``late`` are positions that are not added here, but
    where masked tokens are told (`Encoder.decode_masked`).
    """

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        *,
        positions: nn.Module,
        norm: nn.Module,
        type_vocab_size: int,
        dropout: float,
        pad_token_id: int | None = 0,
        scale: bool = False,
        words: nn.Embedding | None = None,
        late: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embedding_size = embedding_size
        self.scale = math.sqrt(embedding_size) if scale else 1.0
        self.words = words or nn.Embedding(vocab_size, embedding_size, padding_idx=pad_token_id)
        self.positions = positions
        self.late = late
        self.segments = nn.Embedding(type_vocab_size, embedding_size) if type_vocab_size else None
        self.norm = norm
        self.dropout = Dropout(dropout)

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.words.num_embeddings

    @property
    def max_position_embeddings(self) -> int:
        """The longest sequence."""
        longest = self.positions.max_position_embeddings
        assert isinstance(longest, int)
        return longest

    def forward(
        self,
        input_ids: Tensor,
        *,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        start: int = 0,
    ) -> Tensor:
        """(batch, seq) ids -> (batch, seq, embedding). Segments are all 0 where none are given.

        Where no positions are given they count from ``start``.
        """
        length = start + input_ids.shape[1]
        if position_ids is None and start:
            position_ids = torch.arange(start, length, device=input_ids.device)[None]
        words = self.words(input_ids)
        if self.scale != 1.0:
            words = words * self.scale
        vectors = words + self.positions(position_ids, length)
        if self.segments is not None:
            if token_type_ids is None:
                vectors = vectors + self.segments.weight[0]
            else:
                vectors = vectors + self.segments(token_type_ids)
        result: Tensor = self.dropout(self.norm(vectors))
        return result
