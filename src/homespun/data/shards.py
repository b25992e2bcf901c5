"""Shards of a corpus: token ids, labels and sentence ends of documents, as one Arrow record batch.

The columns are ``tokens`` (list of uint16, or uint32 for a vocabulary above 65,536), ``label`` (dictionary of strings,
nullable) and optionally ``sentence_ends`` (list of uint32). Files are memory-mapped and shared by processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from homespun.errors import UserError
from homespun.io.atomic import atomic_path
from homespun.io.digests import file_digest


@dataclass(frozen=True)
class ShardRecord:
    """Name, size and checksum of a shard."""

    name: str
    documents: int
    tokens: int
    size: int  # bytes of the file
    checksum: str  # blake2b of the file


@dataclass
class ShardBuffer:
    """Documents of the next shard."""

    pieces: list[np.ndarray] = field(default_factory=list)  # token ids; a document may be several pieces
    lengths: list[int] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=list)
    tokens: int = 0

    def add(self, pieces: list[np.ndarray], label: str | None, *, sentences: bool) -> None:
        """Append a document, the concatenation of ``pieces``; each piece is a sentence if ``sentences``."""
        sizes = [len(piece) for piece in pieces]
        self.pieces += pieces
        self.lengths.append(sum(sizes))
        self.labels.append(label)
        self.tokens += self.lengths[-1]
        if sentences:
            self.ends.append(np.cumsum(sizes).tolist())

    def write(self, folder: Path, name: str, *, sentences: bool) -> ShardRecord:
        """Write the file atomically."""
        columns = {
            "tokens": _lists(np.concatenate(self.pieces), self.lengths),
            "label": pa.array(self.labels, pa.string()).dictionary_encode(),
        }
        if sentences:
            flat = np.fromiter((end for ends in self.ends for end in ends), np.uint32)
            columns["sentence_ends"] = _lists(flat, [len(ends) for ends in self.ends])
        batch = pa.record_batch(columns)
        path = folder / name
        with atomic_path(path) as temporary, pa.ipc.new_file(str(temporary), batch.schema) as writer:
            writer.write_batch(batch)
        return ShardRecord(name, len(self.lengths), self.tokens, path.stat().st_size, file_digest(path))


def _lists(values: np.ndarray, lengths: list[int]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:  # one document alone can be that long
        return pa.LargeListArray.from_arrays(offsets, pa.array(values))
    return pa.ListArray.from_arrays(offsets.astype(np.int32), pa.array(values))


class Shard:
    """A shard open for reading. Arrays are read-only views of the mapped file.

    Raises:
        UserError: the file is missing, has another size than recorded, or is not a shard.
    """

    def __init__(self, folder: Path, record: ShardRecord) -> None:
        path = folder / record.name
        if path.parent != folder:
            raise UserError(f"corpus {folder} names a file outside its folder, {record.name!r}; it was altered")
        try:
            size = path.stat().st_size
            if size != record.size:
                raise UserError(
                    f"{path} is {size:,} bytes where {record.size:,} were written: it was cut short or altered; "
                    f"copy the corpus again, or build it again"
                )
            with pa.memory_map(str(path)) as source:  # the mapping outlives the descriptor, which is given back here
                batch = pa.ipc.open_file(source).get_batch(0)
            self.offsets, self.ids = _parts(batch.column("tokens"))  # (documents + 1,), (tokens,)
            self._labels = batch.column("label")
            ends = batch.column("sentence_ends") if "sentence_ends" in batch.schema.names else None
        except FileNotFoundError as error:
            raise UserError(f"{path} is missing from the corpus; copy the corpus again, or build it again") from error
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

    def label(self, index: int) -> str | None:
        label: str | None = self._labels[index].as_py()
        return label

    def labels(self) -> list[str | None]:
        labels: list[str | None] = self._labels.to_pylist()
        return labels


def _parts(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    return column.offsets.to_numpy(zero_copy_only=True), column.values.to_numpy(zero_copy_only=True)
