"""Shards of token ids on disk, and the list of the shards of a corpus."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

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
        path = folder / name
        _write(path, pa.record_batch(columns))
        return ShardRecord(
            name=name,
            documents=len(self.lengths),
            tokens=self.tokens,
            size=path.stat().st_size,
            checksum=file_digest(path),
        )


def _write(path: Path, batch: pa.RecordBatch) -> None:
    with atomic_path(path) as temporary, pa.ipc.new_file(str(temporary), batch.schema) as writer:
        writer.write_batch(batch)


def _read(path: Path) -> pa.RecordBatch:
    """Map a file. Raises `UserError` if it is missing or damaged."""
    try:
        with pa.memory_map(str(path)) as source:  # the mapping outlives the file descriptor
            batch = pa.ipc.open_file(source).get_batch(0)
        batch.validate(full=True)  # offsets and strings; reads no numbers
    except FileNotFoundError as error:
        raise UserError(_missing(path)) from error
    except (OSError, pa.ArrowException) as error:
        raise UserError(_unreadable(path)) from error
    return batch


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
        batch = _read(path)
        try:
            self.offsets, self.ids = _parts(batch.column("tokens"))  # (documents + 1,), (tokens,)
            self._labels = batch.column("label")
            ends = batch.column("sentence_ends") if "sentence_ends" in batch.schema.names else None
        except KeyError as error:
            raise UserError(_unreadable(path)) from error
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


SHARDS = "shards.arrow"
_COLUMNS = pa.schema(
    {"name": pa.string(), "documents": pa.int64(), "tokens": pa.int64(), "size": pa.int64(), "checksum": pa.string()}
)


class ShardList:
    """Records of the shards of a corpus in order, each read from the mapped file when it is asked for.

    Args:
        path: Arrow file.
        batch: result of `tabulate`, in place of the file's content.

    Raises:
        UserError: the file is missing, or is not a list of shards.
    """

    def __init__(self, path: Path, batch: pa.RecordBatch | None = None) -> None:
        self._path, self._batch = path, _read(path) if batch is None else batch
        if self._batch.schema != _COLUMNS:
            raise UserError(_unreadable(path))
        self.documents = _view(self._batch.column("documents"))  # (shards,) int64
        self.tokens = _view(self._batch.column("tokens"))  # (shards,) int64

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, number: int) -> ShardRecord:
        return self._records(number, 1)[0]

    def __iter__(self) -> Iterator[ShardRecord]:
        return (record for first in range(0, len(self), MAX_OPEN) for record in self._records(first, MAX_OPEN))

    def _records(self, first: int, count: int) -> list[ShardRecord]:
        columns = [column.to_pylist() for column in self._batch.slice(first, count).columns]
        try:
            return [ShardRecord(*values) for values in zip(*columns, strict=True)]
        except ValidationError as error:
            raise UserError(_unreadable(self._path)) from error


def write_list(folder: Path, shards: Sequence[ShardRecord]) -> str:
    """Write the list of the shards atomically; returns its checksum."""
    _write(folder / SHARDS, tabulate(shards))
    return file_digest(folder / SHARDS)


def tabulate(shards: Sequence[ShardRecord]) -> pa.RecordBatch:
    """Build the table of a `ShardList`."""
    columns = {name: pa.array([getattr(shard, name) for shard in shards]) for name in _COLUMNS.names}
    return pa.record_batch(columns, schema=_COLUMNS)


MAX_OPEN = 1024
"""Shards of a corpus that are mapped at a time, far below the 65,530 mappings that Linux allows a process."""


class OpenShards:
    """Shards of a corpus in order, of which at most `MAX_OPEN` are mapped at a time.

    With at most `MAX_OPEN` shards all are opened immediately, so that damage is found early; otherwise each is opened
    when it is read.

    Raises:
        UserError: a file is missing, has another size than recorded, or is not a shard.
    """

    def __init__(self, folder: Path, records: Sequence[ShardRecord] | ShardList) -> None:
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


def _unreadable(path: Path) -> str:
    return f"{path} cannot be read: it was altered; build the corpus again"


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
