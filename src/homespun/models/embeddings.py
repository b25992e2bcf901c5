"""Token ids to vectors: words, positions and segments, summed, normalised, dropped out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from homespun.models.characters import CharacterEmbeddings
from homespun.nn.elementwise import Dropout


class Embeddings(nn.Module):
    """BERT's embeddings (Devlin et al. 2019, figure 2), with any `homespun.nn.positions`.

    A projection of factorised embeddings belongs to the backbone, so that ELECTRA's two models can share all of this.

    Args:
        type_vocab_size: segments; 0: none.
        norm: identity for embeddings that are not normalised.
        scale: multiply words by ``sqrt(embedding_size)`` (Vaswani et al. 2017, section 3.4).
        words: those of another stack, whose decoder this is.
        late: positions that `Encoder.decode_masked` adds.
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
        """(batch, seq) ids -> (batch, seq, embedding). Segments are 0 by default; positions count from ``start``."""
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


class NgramStreams(nn.Module):
    """Prediction streams of a decoder, each a learned vector plus the position to predict (Qi et al. 2020, section
    3.2).

    Stream ``s`` predicts, at position ``t``, the token of ``t + 1`` from those up to ``t - s``; the first is an
    ordinary decoder's, and the only one in decoding. `homespun.attention.ngram` has their masks. The last position has
    none after it: there the streams take its own.

    Args:
        ngram: number of streams.
        embedding_size: width of the embeddings.
        max_position_embeddings: longest input.
    """

    def __init__(self, ngram: int, embedding_size: int, *, max_position_embeddings: int) -> None:
        super().__init__()
        self.ngram, self.last = ngram, max_position_embeddings - 1
        self.embedding = nn.Embedding(ngram, embedding_size)

    def forward(
        self, embeddings: Embeddings | CharacterEmbeddings, input_ids: Tensor, *, streams: int, start: int = 0
    ) -> Tensor:
        """(batch, seq) ids -> (batch, 1 + streams, seq, embedding): the main stream, then the first of the others.

        ``embeddings`` are the decoder's; ``start`` is the position of the first token.
        """
        main = embeddings(input_ids, start=start)  # (batch, seq, embedding)
        length = input_ids.shape[1]
        next_ids = torch.arange(start + 1, start + length + 1, device=input_ids.device).clamp(max=self.last)
        positions = embeddings.positions(next_ids[None], length)  # (1, seq, embedding)
        predicting = embeddings.norm(self.embedding.weight[:streams, None] + positions)  # (streams, seq, embedding)
        predicting = embeddings.dropout(predicting.expand(len(main), -1, -1, -1))
        return torch.cat([main[:, None], predicting], 1)
