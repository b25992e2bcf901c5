"""Token ids to vectors: words, positions and segments, summed, normalised, dropped out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from homespun.models.characters import CharacterEmbeddings
from homespun.nn.elementwise import Dropout


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


class NgramStreams(nn.Module):
    """Streams beside a decoder's main one, each of a learned vector and of the position to predict.

    Stream ``s`` predicts, at place ``t``, the token of place ``t + 1`` from those up to ``t - s``: so many steps ahead
    are learned at once. The first knows what an ordinary decoder knows, and decoding needs no other. What each sees of
    the main one is the matter of `homespun.attention.ngram`.

    The last position has none after it: there the streams take its own.

    Args:
        ngram: how many.
        embedding_size: width of the embeddings.
        max_position_embeddings: the longest input.
    """

    def __init__(self, ngram: int, embedding_size: int, *, max_position_embeddings: int) -> None:
        super().__init__()
        self.ngram, self.last = ngram, max_position_embeddings - 1
        self.embedding = nn.Embedding(ngram, embedding_size)

    def forward(
        self, embeddings: Embeddings | CharacterEmbeddings, input_ids: Tensor, *, streams: int, start: int = 0
    ) -> Tensor:
        """(batch, seq) ids -> (batch, 1 + streams, seq, embedding): the main stream, and the first of the others.

        ``embeddings`` are the decoder's; ``start`` is the place of the first token.
        """
        main = embeddings(input_ids, start=start)  # (batch, seq, embedding)
        length = input_ids.shape[1]
        next_ids = torch.arange(start + 1, start + length + 1, device=input_ids.device).clamp(max=self.last)
        positions = embeddings.positions(next_ids[None], length)  # (1, seq, embedding)
        predicting = embeddings.norm(self.embedding.weight[:streams, None] + positions)  # (streams, seq, embedding)
        predicting = embeddings.dropout(predicting.expand(len(main), -1, -1, -1))
        return torch.cat([main[:, None], predicting], 1)
