"""Shards of token ids on disk, and the list of the shards of a corpus."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from homespun.data.corpus_files import ShardRecord
from homespun.errors import UserError
from homespun.io.atomic import atomic_path, file_digest

_MAX_PIECES = 2**16


@dataclass
class ShardBuffer:
    """Documents of the next shard, in memory."""

    pieces: list[np.ndarray] = field(default_factory=list)  # token ids; a document may be several pieces
    lengths: list[int] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=list)
    tokens: int = 0

    def add(self, pieces: list[np.ndarray], label: str | None, *, sentences: bool) -> None:
        """Append a document, the concatenation of ``pieces``, which are its sentences if ``sentences``."""
        sizes = [len(piece) for piece in pieces]
        self.pieces += pieces
        if len(self.pieces) >= _MAX_PIECES:  # an array takes 100 bytes besides its numbers
            self.pieces = [np.concatenate(self.pieces)]
        self.lengths.append(sum(sizes))
        self.labels.append(label)
        self.tokens += self.lengths[-1]
        if sentences:
            self.ends.append(np.cumsum(sizes).tolist())

    def write(self, folder: Path, name: str, *, sentences: bool) -> ShardRecord:
        """Write the file atomically."""
        # `pyarrow.array` imports pandas, which takes 0.4 s
        unlabelled = pa.nulls(len(self.labels), pa.dictionary(pa.int32(), pa.string()))
        labelled = any(label is not None for label in self.labels)
        columns = {
            "tokens": _lists(np.concatenate(self.pieces), self.lengths),
            "label": pa.array(self.labels, pa.string()).dictionary_encode() if labelled else unlabelled,
        }
        if sentences:
            flat = np.fromiter((end for ends in self.ends for end in ends), np.uint32)
            columns["sentence_ends"] = _lists(flat, [len(ends) for ends in self.ends])
        batch = pa.record_batch(columns)
        path = folder / name
        with atomic_path(path) as temporary, pa.ipc.new_file(str(temporary), batch.schema) as writer:
            writer.write_batch(batch)
        return ShardRecord(
            name=name,
            documents=len(self.lengths),
            tokens=self.tokens,
            size=path.stat().st_size,
            checksum=file_digest(path),
        )


def _lists(values: np.ndarray, lengths: list[int]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:  # a single document can be that long
        return pa.LargeListArray.from_arrays(_array(offsets), _array(values))
    return pa.ListArray.from_arrays(_array(offsets.astype(np.int32)), _array(values))


def _array(values: np.ndarray) -> pa.Array:
    """Build an Arrow array of numbers without a copy; see `ShardBuffer.write`."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


class Shard:
    """Shard open for reading. Arrays are read-only views of the mapped file.

    Raises:
        UserError: the file is missing, or is not a shard.
    """

    def __init__(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as source:  # the mapping outlives the file descriptor
                batch = pa.ipc.open_file(source).get_batch(0)
            batch.validate(full=True)  # offsets and labels; reads no tokens
            self.offsets, self.ids = _parts(batch.column("tokens"))  # (documents + 1,), (tokens,)
            self._labels = batch.column("label")
            ends = batch.column("sentence_ends") if "sentence_ends" in batch.schema.names else None
        except FileNotFoundError as error:
            raise UserError(_missing(path)) from error
        except (OSError, pa.ArrowException, KeyError) as error:
            raise UserError(f"{path} cannot be read: it was altered; build the corpus again") from error
        self._sentences = None if ends is None else _parts(ends)

    def tokens(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def sentence_ends(self, index: int) -> np.ndarray | None:
        if self._sentences is None:
            return None
        offsets, ends = self._sentences
        return ends[offsets[index] : offsets[index + 1]]

    def labels(self) -> list[str | None]:
        return self._labels.to_pylist()


MAX_OPEN = 1024
"""Shards of a corpus that are mapped at a time, far below the 65,530 mappings that Linux allows a process."""


class OpenShards:
    """Shards of a corpus in order, of which at most `MAX_OPEN` are mapped at a time.

    With at most `MAX_OPEN` shards all are opened immediately, so that damage is found early; otherwise each is opened
    when it is read.

    Raises:
        UserError: a file is missing, has another size than recorded, or is not a shard.
    """

    def __init__(self, folder: Path, records: Sequence[ShardRecord]) -> None:
        self._folder, self._records = folder, records
        self._open = functools.lru_cache(MAX_OPEN)(self._read)
        for record in records:
            _check_file(folder, record)
        for number in range(len(records) if len(records) <= MAX_OPEN else 0):
            self[number]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, number: int) -> Shard:
        return self._open(number)

    def _read(self, number: int) -> Shard:
        record = self._records[number]
        shard = Shard(self._folder / record.name)
        if (len(shard.offsets) - 1, len(shard.ids)) != (record.documents, record.tokens):
            raise UserError(f"{self._folder / record.name} is not as recorded: it was altered; build the corpus again")
        return shard

    def __iter__(self) -> Iterator[Shard]:
        return (self[number] for number in range(len(self)))


def _check_file(folder: Path, record: ShardRecord) -> None:
    path = folder / record.name
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise UserError(_missing(path)) from error
    if size != record.size:
        raise UserError(f"{path} has {size:,} bytes instead of {record.size:,}, it was altered; copy it again")


def _missing(path: Path) -> str:
    return f"{path} is missing from the corpus; copy the corpus again, or build it again"


def _parts(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    return _view(column.offsets), _view(column.values)


def _view(numbers: pa.Array) -> np.ndarray:
    """View an Arrow array as a read-only numpy array; `pyarrow.Array.to_numpy` imports pandas."""
    dtype = np.dtype(numbers.type.to_pandas_dtype())
    if not len(numbers):
        return np.empty(0, dtype)
    return np.frombuffer(numbers.buffers()[1], dtype, len(numbers), numbers.offset * dtype.itemsize)
