"""Treatment of texts longer than a model input.

A text is a row. If it is split into chunks, the row has all chunks, each with its special tokens, numbered by
`Row.documents`; `pad_chunks` makes a sequence of each chunk, and `Batch.chunks` maps texts to sequences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.batch import Batch
from homespun.config import Config
from homespun.data.rows import Row, pad
from homespun.text.tokenizer import TokenIds as Ids

Chunks = Annotated[int, Field(ge=1, le=1024, description="maximum chunks of a text; further tokens are left out")]
Overlap = Annotated[float, Field(ge=0, le=0.9, description="share of a chunk that overlaps the previous one")]


class _OneSequence(Config):
    """Base of one sequence of a text."""

    kind: str
    chunks: ClassVar[int] = 1
    layers: ClassVar[int] = 0  # transformer layers over the chunks

    def kept(self, room: int) -> tuple[int, int]:
        """Return how many first and last tokens of a longer text are read, with ``room`` in a sequence."""
        return room, 0

    def reach(self, room: int) -> int:
        """Return the maximum number of tokens of a text that are read, with ``room`` in a sequence."""
        return room

    def pieces(self, ids: Ids, room: int) -> list[Ids]:
        """Split ids into sequences of at most ``room`` tokens, in order; all but the last are full."""
        if len(ids) <= room:
            return [ids]
        first, last = self.kept(room)
        return [np.concatenate([ids[:first], ids[len(ids) - last :]])]


class Truncate(_OneSequence):
    """Truncation: the first tokens of the text are read."""

    kind: Literal["truncate"] = "truncate"


class HeadTail(_OneSequence):
    """First and last tokens of the text (Sun et al. 2019, section 5.3.1).

    ``head`` is the share of the first tokens: a quarter in the paper (128 of 510); with 0 only the end is read.
    """

    kind: Literal["head_tail"] = "head_tail"
    head: float = Field(default=0.25, ge=0, lt=1, description="share of the sequence for the beginning of the text")

    def kept(self, room: int) -> tuple[int, int]:
        first = min(round(self.head * room), room - 1)
        return first, room - first


class _Chunked(Config):
    """Base of overlapping chunks of the text, each encoded separately."""

    kind: str
    chunks: Chunks = 8
    overlap: Overlap = 0.0

    def kept(self, room: int) -> tuple[int, int]:
        return self.reach(room), 0

    def reach(self, room: int) -> int:
        return room + (self.chunks - 1) * self._step(room)

    def pieces(self, ids: Ids, room: int) -> list[Ids]:
        step = self._step(room)
        count = 1 + max(0, -(-(len(ids) - room) // step))
        return [ids[start : start + room] for start in range(0, min(count, self.chunks) * step, step)]

    def _step(self, room: int) -> int:
        """Return the number of tokens between the starts of two chunks."""
        return max(1, room - round(self.overlap * room))


class ChunkMean(_Chunked):
    """Chunks whose logits are averaged before the loss."""

    kind: Literal["chunk_mean"] = "chunk_mean"
    layers: ClassVar[int] = 0


class ChunkPool(_Chunked):
    """Chunks with transformer layers over their vectors (ToBERT, Pappagari et al. 2019).

    The layers are in `homespun.models.composite_heads.ChunkPoolHead`.
    """

    kind: Literal["chunk_pool"] = "chunk_pool"
    layers: int = Field(default=1, ge=1, le=4, description="transformer layers over the chunks of a text")


LongInputs = Annotated[Truncate | HeadTail | ChunkMean | ChunkPool, Field(discriminator="kind")]
TRUNCATE = Truncate()


def pad_chunks(rows: Sequence[Row], pad_id: int) -> Batch:
    """Pad each chunk as a sequence, see `homespun.data.rows.pad`; `Batch.chunks` is None if no row has several."""
    import torch

    sequences: list[Row] = []
    counts = []
    for row in rows:
        parts = [row] if row.documents is None else _split(row, row.documents)
        counts.append(len(parts))
        sequences += parts
    batch = pad(sequences, pad_id)
    if len(sequences) == len(rows):
        return batch
    place = np.arange(max(counts))
    first = np.cumsum(counts) - counts
    chunks = np.where(place < np.array(counts)[:, None], first[:, None] + place, -1)
    return dataclasses.replace(batch, chunks=torch.from_numpy(chunks))


def _split(row: Row, documents: NDArray[np.int64]) -> list[Row]:
    return [Row(ids) for ids in np.split(row.input_ids, np.flatnonzero(np.diff(documents)) + 1)]
