"""Inputs of a decoder that predicts several tokens ahead (Qi et al. 2020, ProphetNet, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from homespun.models.characters import CharacterEmbeddings
from homespun.models.embeddings import Embeddings


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
