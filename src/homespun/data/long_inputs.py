"""Treatment of texts that are longer than a model input.

A text is a row. If it is read in chunks, its row holds them one after another, each with its special tokens, numbered
by `Row.documents`; `pad_chunks` makes a sequence of each, and `Batch.chunks` maps texts to sequences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from homespun.batch import Batch
from homespun.config import Config, validate
from homespun.data.rows import Row, pad
from homespun.text.tokenizer import TokenIds as Ids

Chunks = Annotated[int, Field(ge=1, le=1024, description="at most so many a text; tokens beyond them are left out")]
Overlap = Annotated[float, Field(ge=0, le=0.9, description="share of a chunk that repeats the end of the one before")]


class Truncate(Config):
    """The first tokens."""

    kind: Literal["truncate"] = "truncate"
    chunks: ClassVar[int] = 1
    layers: ClassVar[int] = 0  # over the chunks of a text

    def reach(self, room: int) -> int:
        """Tokens of a text that are read at most, with ``room`` in a sequence."""
        return room

    def pieces(self, ids: Ids, room: int) -> list[Ids]:
        """Sequences of at most ``room`` tokens that are read of a text; all but the last are full."""
        return [ids[:room]]


class HeadTail(Config):
    """The first and the last tokens in one sequence (Sun et al. 2019, section 5.3.1).

    ``head`` is the share of the beginning: a quarter, as there (128 of 510); 0 reads the end alone.
    """

    kind: Literal["head_tail"] = "head_tail"
    chunks: ClassVar[int] = 1
    layers: ClassVar[int] = 0
    head: float = Field(default=0.25, ge=0, lt=1, description="share of the sequence for the beginning of the text")

    def reach(self, room: int) -> int:
        """As `Truncate.reach`."""
        return room

    def pieces(self, ids: Ids, room: int) -> list[Ids]:
        """As `Truncate.pieces`: always one."""
        if len(ids) <= room:
            return [ids]
        head = min(round(self.head * room), room - 1)
        return [np.concatenate([ids[:head], ids[len(ids) - (room - head) :]])]


class ChunkMean(Config):
    """Chunks that are read one by one; the logits and the loss of a text are those of the mean of its chunks."""

    kind: Literal["chunk_mean"] = "chunk_mean"
    layers: ClassVar[int] = 0
    chunks: Chunks = 8
    overlap: Overlap = 0.0

    def reach(self, room: int) -> int:
        """As `Truncate.reach`, over all chunks."""
        return room + (self.chunks - 1) * _step(room, self.overlap)

    def pieces(self, ids: Ids, room: int) -> list[Ids]:
        """As `Truncate.pieces`: the chunks, in order."""
        return _windows(ids, room, _step(room, self.overlap), self.chunks)


class ChunkPool(Config):
    """Chunks that are read one by one, and transformer layers over their vectors (ToBERT, Pappagari et al. 2019).

    The layers are in `homespun.models.composite_heads.ChunkPoolHead`.
    """

    kind: Literal["chunk_pool"] = "chunk_pool"
    chunks: Chunks = 8
    overlap: Overlap = 0.0
    layers: int = Field(default=1, ge=1, le=4, description="transformer layers over the chunks of a text")

    def reach(self, room: int) -> int:
        """As `Truncate.reach`, over all chunks."""
        return room + (self.chunks - 1) * _step(room, self.overlap)

    def pieces(self, ids: Ids, room: int) -> list[Ids]:
        """As `Truncate.pieces`: the chunks, in order."""
        return _windows(ids, room, _step(room, self.overlap), self.chunks)


LongInputs = Annotated[Truncate | HeadTail | ChunkMean | ChunkPool, Field(discriminator="kind")]
TRUNCATE = Truncate()


def _step(room: int, overlap: float) -> int:
    """Tokens between the starts of two chunks."""
    return max(1, room - round(overlap * room))


def _windows(ids: Ids, room: int, step: int, most: int) -> list[Ids]:
    count = 1 + max(0, -(-(len(ids) - room) // step))
    return [ids[start : start + room] for start in range(0, min(count, most) * step, step)]


class _Saved(Config):
    truncation: LongInputs = TRUNCATE


def saved_long_inputs(task: Mapping[str, object], *, source: str) -> LongInputs:
    """Setting in the ``task`` of a stored model; without one it is truncation.

    Raises:
        UserError: beginning with ``source``: an unknown setting.
    """
    return validate(_Saved, {k: task[k] for k in ("truncation",) if k in task}, source=source).truncation


def pad_chunks(rows: Sequence[Row], pad_id: int) -> Batch:
    """As `pad`, with a sequence for every chunk of every row; `Batch.chunks` is None if no row has several."""
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
