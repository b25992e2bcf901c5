"""Corpus built by the workers of a Ray cluster, equal to a corpus built on one machine.

The files are divided into units of about 64 MB of consecutive files. Duplicates are found first, from hashes: Ray Data
groups them, and the driver decides in the order of the documents, as one machine does. Then a task for each unit reads
its files again and writes its shards. Texts never leave the task that reads them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from homespun.choices import Duplicates
from homespun.commands.cluster_text import SharedText, run_tasks
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import SHARD_TOKENS, Progress, remove_leftovers, start_over, write_description
from homespun.data.corpus_files import DESCRIPTION, TOKENIZER, ShardRecord
from homespun.data.encoding import encode_documents
from homespun.data.reading import Reading
from homespun.data.shards import ShardBuffer
from homespun.errors import UserError
from homespun.io.atomic import entries, write_text
from homespun.io.cluster import connect, refusal
from homespun.text.duplicates import ExactDuplicates, NearDuplicates
from homespun.text.hashing import splitmix64
from homespun.text.sources import Document, ReadProgress
from homespun.text.tokenizer import Tokenizer

UNITS = "units.jsonl"
"""Record of a build: its settings, then a line for each unit that is written."""
_BUCKET_BYTES = 16 * 2**20  # of files whose hashes a worker groups at a time: about 70 MB if documents are short
_ROWS = 20_000  # documents whose hashes are sent at a time
_TASKS = 64  # tasks that hash; the driver holds some 10 kB for each pair of a task and a block of sorted hashes
_POSITION_BITS = 40  # a document's number is its unit, then its position in the unit
Hashes = dict[str, NDArray[np.generic]]


class Unit(BaseModel):
    """Files that a task has written, as a line of `UNITS`."""

    model_config = ConfigDict(frozen=True)

    unit: int
    shards: list[ShardRecord]
    bytes: int
    words: int
    labels: dict[str, int]


@dataclass(frozen=True)
class _Job:
    """Settings of every task."""

    text: SharedText  # text with duplicates
    folder: str
    sentences: bool
    duplicates: Duplicates

    def documents(self, unit: int) -> Iterator[Document]:
        """Documents of a unit, with duplicates; raises `UserError` if this worker has another version or folder."""
        if not (Path(self.folder) / UNITS).is_file():
            raise UserError(f"a worker does not see {self.folder}; give --out in a folder that all machines share")
        return self.text.documents(unit)


def build_on_cluster(
    reading: Reading,
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    sentences: bool = False,
    progress: Progress | None = None,
    read_progress: ReadProgress | None = None,
) -> Corpus:
    """Build a corpus as `build_corpus` does, by the workers of the Ray cluster of ``RAY_ADDRESS``.

    Documents, their order and their tokens are as on one machine; each unit has its own shards. After an interruption,
    the same call continues with the missing units. A worker holds a shard, or the hashes of some 16 MB of
    files; the driver holds the file names, and 16 bytes for each document of each set that shares a hash.

    ``out`` and the inputs are folders and files that all machines see, or object stores. ``progress`` is called, and
    ``read_progress`` updated, after each unit.

    Raises:
        UserError: as there; the cluster cannot be reached; a worker has another version or does not see the files.
    """
    ray, folder = connect(), Path(out).absolute()
    text = SharedText.divide(dataclasses.replace(reading, duplicates="keep"))
    job = _Job(text, str(folder), sentences, reading.duplicates)
    written = _begin(folder, job, tokenizer, reading.describe())
    if not (folder / DESCRIPTION).exists():  # or it was killed after the last write
        tokenizer.save(folder / TOKENIZER)
        try:
            _write_units(ray, job, written, progress, read_progress)
            if not _documents(written.values()):
                raise UserError("there is no text to build a corpus from: all documents are empty; give other inputs")
        except UserError:
            if not _documents(written.values()):
                start_over(folder, UNITS)
            raise
        remove_leftovers(folder)  # files of workers that were killed
        _describe(folder, [written[unit] for unit in range(len(text.units))], tokenizer, sentences=sentences)
    (folder / UNITS).unlink()
    return Corpus.open(folder, tokenizer=tokenizer)


def _write_units(
    ray: Any, job: _Job, written: dict[int, Unit], progress: Progress | None, read_progress: ReadProgress | None
) -> None:
    """Write the units that are missing, and add them to ``written`` and to the record."""
    sizes = job.text.sizes
    missing = [unit for unit in range(len(sizes)) if unit not in written]
    try:
        dropped = _duplicates(ray, job) if missing else {}
        calls = ((unit, dropped.get(unit, np.empty(0, np.int64))) for unit in missing)
        for line in map(Unit.model_validate_json, run_tasks(ray, encode_unit, job, calls)):
            with open(Path(job.folder) / UNITS, "a", encoding="utf-8") as file:
                file.write(line.model_dump_json() + "\n")
                file.flush()
                os.fsync(file.fileno())
            written[line.unit] = line
            if read_progress is not None:
                read_progress.done = sum(sizes[unit] for unit in written)
            if progress is not None:
                progress(sum(unit.bytes for unit in written.values()), _documents(written.values()))
    except ray.exceptions.RayError as error:
        raise refusal(error) from error


def _documents(units: Iterable[Unit]) -> int:
    return sum(shard.documents for unit in units for shard in unit.shards)


def _begin(folder: Path, job: _Job, tokenizer: Tokenizer, described: str) -> dict[int, Unit]:
    """Create the record of the build, or read the record of an interrupted build."""
    inputs = hashlib.blake2b(repr((described, job.text.units)).encode(), digest_size=16).hexdigest()
    header = {"version": 1, "inputs": inputs, "tokenizer": tokenizer.fingerprint, "sentences": job.sentences}
    path = folder / UNITS
    if not path.exists():
        if (folder / DESCRIPTION).exists():
            raise UserError(f"{folder} is a finished corpus; give another folder, or delete it to build it again")
        if folder.exists() and entries(folder):
            raise UserError(f"{folder} is not empty; give a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(header) + "\n")
        return {}
    try:
        first, *rest = path.read_text(encoding="utf-8").split("\n")[:-1]  # a kill may have truncated the last line
        same = json.loads(first) == header
        lines = [Unit.model_validate_json(line) for line in rest]
    except (ValueError, ValidationError) as error:
        raise UserError(f"{path} was altered; delete {folder} to start over") from error
    if not same:
        raise UserError(
            f"{folder} is a half-built corpus of changed inputs or other settings; give another folder, or delete it"
        )
    write_text(path, "".join(f"{line}\n" for line in (first, *rest)))
    return {line.unit: line for line in lines}


def _duplicates(ray: Any, job: _Job) -> dict[int, NDArray[np.int64]]:
    """Positions of the documents that are left out, ascending, by unit."""
    if job.duplicates == "keep":
        return {}
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # after the import, which sets it to INFO
    # other strategies need several processors
    context.shuffle_strategy = ray.data.context.ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    num_units, buckets = len(job.text.units), max(1, sum(job.text.sizes) // _BUCKET_BYTES)
    tasks = min(num_units, max(_TASKS, 2 * int(ray.cluster_resources().get("CPU", 1))))
    distinct = (
        ray.data.from_items([{"unit": unit} for unit in range(num_units)], override_num_blocks=tasks)
        .map_batches(_hash_units, fn_kwargs={"job": job, "buckets": buckets}, batch_size=1, batch_format="numpy")
        .groupby("bucket")
        .map_groups(_shared, fn_kwargs={"buckets": buckets}, batch_format="numpy")
        .groupby("bucket")
        .map_groups(_distinct, batch_format="numpy")
    )
    numbers = resolve(list(distinct.iter_batches(batch_size=None, batch_format="numpy")))
    units, positions = numbers >> _POSITION_BITS, numbers & ((1 << _POSITION_BITS) - 1)
    return {int(unit): positions[units == unit] for unit in np.unique(units)}


def _hash_units(batch: Hashes, job: _Job, buckets: int) -> Iterator[Hashes]:
    """Hashes of the documents of units: of the text, and for near-duplicates of each of its bands."""
    near = NearDuplicates(capacity=1) if job.duplicates == "near" else None

    def rows(hashes: NDArray[np.uint64], documents: NDArray[np.int64], near: bool) -> Hashes:
        return {
            "bucket": (hashes % np.uint64(buckets)).astype(np.int32),
            "hash": hashes.view(np.int64),
            "document": documents,
            "near": np.full(len(documents), near),
        }

    yield rows(np.empty(0, np.uint64), np.empty(0, np.int64), near=False)  # the columns, if there are no documents
    for unit in batch["unit"].tolist():
        stream = enumerate(job.documents(unit))
        while part := list(islice(stream, _ROWS)):
            numbers = np.array([(unit << _POSITION_BITS) + position for position, _ in part], dtype=np.int64)
            texts = [document.text for _, document in part]
            digests = np.frombuffer(b"".join(map(ExactDuplicates.digest, texts)), dtype=np.uint64)
            yield rows(digests, numbers, near=False)
            if near is not None:
                keys = near.keys(texts)  # (documents, bands)
                yield rows(keys.reshape(-1), np.repeat(numbers, keys.shape[1]), near=True)


def _shared(rows: Hashes, buckets: int) -> Hashes:
    """Select the rows of a bucket whose hash several documents have, and name the group of these documents.

    Of equal texts all but the first, whose group is 0. Bands that the same documents share have one group. The new
    buckets are those of documents.
    """
    order = np.lexsort((rows["document"], rows["hash"], rows["near"]))
    documents, hashes = rows["document"][order], rows["hash"][order]
    near = rows["near"][order].astype(bool)
    same = np.ones(len(order) + 1, dtype=bool)  # whether a row begins a group
    same[1:-1] = (hashes[1:] != hashes[:-1]) | (near[1:] != near[:-1])
    first, last = same[:-1], same[1:]
    starts = np.flatnonzero(first)
    group = np.repeat(np.add.reduceat(_mix(documents), starts), np.diff(starts, append=len(order)))
    group[~near] = 0
    kept = np.where(near, ~(first & last), ~first)
    documents = documents[kept]
    return {"bucket": (documents % buckets).astype(np.int32), "document": documents, "group": group[kept]}


def _distinct(rows: Hashes) -> Hashes:
    """Each row of a bucket once, and of a document that equals an earlier one only that row."""
    order = np.lexsort((rows["group"], rows["document"]))
    documents, groups = rows["document"][order], rows["group"][order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = documents[1:] != documents[:-1]
    starts = np.flatnonzero(first)
    equal = np.repeat(groups[starts] == 0, np.diff(starts, append=len(order)))
    kept = first.copy()
    kept[1:] |= (groups[1:] != groups[:-1]) & ~equal[1:]
    return {"document": documents[kept], "group": groups[kept]}


def _mix(numbers: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Hashes of numbers; the sum of a set identifies it."""
    return splitmix64(numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))


def resolve(tables: list[Hashes]) -> NDArray[np.int64]:
    """Documents to leave out, ascending, as one machine decides in the order of the documents.

    Args:
        tables: documents, each with a group that it shares with others, or with 0 if it equals an earlier one. The
            list is emptied to free its memory.

    Returns:
        The documents of group 0, and each near-duplicate of an earlier document that is not left out.
    """
    documents = np.concatenate([np.empty(0, np.int64), *(table["document"] for table in tables)])
    groups = np.concatenate([np.empty(0, np.uint64), *(table["group"] for table in tables)])
    tables.clear()
    near = groups != 0
    equal, documents, groups = documents[~near], documents[near], groups[near]
    order = np.argsort(documents, kind="stable")
    documents, groups = documents[order], groups[order]
    del near, order
    groups = np.unique(groups, return_inverse=True)[1]
    starts = np.flatnonzero(np.diff(documents, prepend=-1))
    taken = np.zeros(len(groups) and int(groups.max()) + 1, dtype=bool)
    left_out = np.zeros(len(starts), dtype=bool)
    for number, (start, stop) in enumerate(pairwise(np.append(starts, len(groups)))):
        mine = groups[start:stop]
        if taken[mine].any():
            left_out[number] = True
        else:
            taken[mine] = True
    return np.sort(np.concatenate([equal, documents[starts[left_out]]]))


def encode_unit(job: _Job, unit: int, dropped: NDArray[np.int64]) -> str:
    """Write the shards of a unit, without the documents at ``dropped``; returns a `Unit` in JSON."""
    folder = Path(job.folder)
    left_out = set(dropped.tolist())
    kept = (document for position, document in enumerate(job.documents(unit)) if position not in left_out)
    buffer, shards, labels = ShardBuffer(), list[ShardRecord](), Counter[str]()
    num_bytes = num_words = 0

    def flush() -> ShardBuffer:
        if buffer.tokens:
            name = f"tokens-{unit:05}-{len(shards):05}.arrow"
            shards.append(buffer.write(folder, name, sentences=job.sentences))
        return ShardBuffer()

    tokenizer = Tokenizer.load(folder / TOKENIZER)
    for document in encode_documents(kept, tokenizer, workers=1, sentences=job.sentences):
        if not document.pieces:
            continue
        num_bytes += document.num_bytes
        num_words += document.num_words
        labels.update([] if document.label is None else [document.label])
        buffer.add(document.pieces, document.label, sentences=job.sentences)
        if buffer.tokens >= SHARD_TOKENS:
            buffer = flush()
    flush()
    return Unit(unit=unit, shards=shards, bytes=num_bytes, words=num_words, labels=dict(labels)).model_dump_json()


def _describe(folder: Path, units: Sequence[Unit], tokenizer: Tokenizer, *, sentences: bool) -> None:
    shards = [shard for unit in units for shard in unit.shards]
    labels: Counter[str] = sum((Counter(unit.labels) for unit in units), Counter())
    write_description(
        folder,
        shards,
        tokenizer,
        num_bytes=sum(unit.bytes for unit in units),
        num_words=sum(unit.words for unit in units),
        labels=labels,
        sentences=sentences,
    )
