"""Building of a corpus on one machine, and its record of progress."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from homespun.config import Tree
from homespun.data.corpus import Corpus
from homespun.data.corpus_files import (
    DESCRIPTION,
    MANIFEST,
    TOKENIZER,
    VERSION,
    Description,
    Line,
    ShardRecord,
    TokenizerFacts,
)
from homespun.data.encoding import Encoded, encode_documents
from homespun.data.shards import OpenShards, ShardBuffer, write_list
from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY, entries, remove, write_text
from homespun.io.cores import available_cores
from homespun.io.lock import LOCK
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer

SHARD_TOKENS = 8_000_000  # 16 MB of uint16: buffered in memory, and lost if the build is killed
PROGRESS_BYTES = 1_000_000


class Progress(Protocol):
    """Callback of a build that gets the totals, including those before a restart."""

    def __call__(self, done_bytes: int, done_documents: int) -> None: ...


def build_corpus(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    out: str | Path,
    *,
    inputs: str = "",
    workers: int | None = None,
    sentences: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """Encode ``documents`` into a corpus in the folder ``out``.

    After an interruption the same call resumes after the last complete shard and writes the same bytes, if
    ``documents`` have the same order. Documents without tokens are left out. Memory stays under 1 GB: a shard, two
    batches for each worker, and one document.

    Args:
        documents: read once.
        tokenizer: encodes the documents; saved with the corpus.
        out: new folder, or folder of an interrupted build.
        inputs: name of the stream (files and options); a build of other inputs is not resumed.
        workers: threads that encode, outside Python's lock; None: one for each core.
        sentences: record sentence ends, for next sentence prediction. Sentences are then encoded separately, each with
            the space before it.
        progress: see `Progress`.

    Raises:
        UserError: ``out`` has other content, a finished corpus or a build of other inputs; no document has a token;
            ``workers`` is below 1.
    """
    workers = available_cores() if workers is None else workers
    if workers < 1:
        raise UserError(f"workers={workers} must be 1 or more; leave it out for one for each core")
    folder = Path(out)
    job = {"version": VERSION, "inputs": inputs, "tokenizer": tokenizer.fingerprint, "sentences": sentences}
    if (folder / DESCRIPTION).exists() and _manifest(folder)[:1] == [job]:  # killed after the last write
        (folder / MANIFEST).unlink()
        return Corpus.open(folder, tokenizer=tokenizer)
    building = _Building(folder, _open_manifest(folder, job), sentences=sentences)
    tokenizer.save(folder / TOKENIZER)
    try:
        _encode(documents, tokenizer, building, workers=workers, progress=progress)
    except UserError:
        if not building.shards:
            start_over(folder, MANIFEST)
        raise
    _finish(building, tokenizer)
    return Corpus.open(folder, tokenizer=tokenizer)


def _encode(
    documents: Iterable[Document], tokenizer: Tokenizer, building: _Building, *, workers: int, progress: Progress | None
) -> None:
    """Encode the documents that are not yet in a shard."""
    stream = iter(documents)
    if sum(1 for _ in islice(stream, building.consumed)) < building.consumed:
        raise UserError(
            f"half-built corpus {building.folder} has read {building.consumed:,} documents, and the inputs have "
            f"fewer now; delete the folder to start over"
        )
    reported = building.num_bytes
    with closing(encode_documents(stream, tokenizer, workers=workers, sentences=building.sentences)) as encoded:
        for document in encoded:
            building.add(document)
            if progress is not None and building.num_bytes - reported >= PROGRESS_BYTES:
                reported = building.num_bytes
                progress(reported, building.consumed)
    building.flush()
    if not building.shards:
        raise UserError("there is no text to build a corpus from: all documents are empty; give other inputs")
    if progress is not None:
        progress(building.num_bytes, building.consumed)


def start_over(folder: Path, record: str) -> None:
    """Remove a build without shards, and its record."""
    remove(folder / TOKENIZER)
    remove(folder / record)
    with suppress(OSError):
        folder.rmdir()  # unless it has a lock


class _Building:
    """Corpus during its build: the shards in its manifest, and the shard in memory."""

    def __init__(self, folder: Path, written: list[Line], *, sentences: bool) -> None:
        self.folder, self.sentences = folder, sentences
        self.shards = [line.shard for line in written]
        last = written[-1] if written else None
        self.consumed = last.consumed if last else 0
        self.num_bytes = last.bytes if last else 0
        self.num_words = last.words if last else 0
        self.labels = Counter(last.labels if last else ())
        self._buffer = ShardBuffer()

    def add(self, document: Encoded) -> None:
        self.consumed += 1
        if not document.pieces:
            return
        self.num_bytes += document.num_bytes
        self.num_words += document.num_words
        if document.label is not None:
            self.labels[document.label] += 1
        self._buffer.add(document.pieces, document.label, sentences=self.sentences)
        if self._buffer.tokens >= SHARD_TOKENS:
            self.flush()

    def flush(self) -> None:
        if not self._buffer.tokens:
            return
        shard = self._buffer.write(self.folder, f"tokens-{len(self.shards):05}.arrow", sentences=self.sentences)
        line = Line(
            shard=shard, consumed=self.consumed, bytes=self.num_bytes, words=self.num_words, labels=dict(self.labels)
        )
        with open(self.folder / MANIFEST, "a", encoding="utf-8") as file:
            file.write(json.dumps(line.model_dump()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.shards.append(shard)
        self._buffer = ShardBuffer()


def _open_manifest(folder: Path, job: Tree) -> list[Line]:
    """Create the manifest, or return the lines of an existing one, one for each shard."""
    if (folder / DESCRIPTION).exists():
        raise UserError(f"{folder} is a finished corpus; give another folder, or delete it to build it again")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a new folder")
    lines = _manifest(folder)
    if not lines and entries(folder):
        raise UserError(f"{folder} is not empty; give a new folder")
    header, *rest = lines or [job]
    differences = [
        f"{key} was {_short(header.get(key), now)}, now {_short(now, header.get(key))}"
        for key, now in job.items()
        if header.get(key) != now
    ]
    if differences:
        raise UserError(
            f"{folder} is a half-built corpus of changed inputs or other settings ({'; '.join(differences)}); give "
            f"another folder, or delete it"
        )
    try:
        written = [Line.model_validate(line) for line in rest]
    except ValidationError as error:
        raise UserError(_altered(folder)) from error
    OpenShards(folder, [line.shard for line in written])  # raises an error before the build, not after it
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    # rewritten, since a kill may have truncated the last line
    write_text(folder / MANIFEST, "".join(json.dumps(line) + "\n" for line in lines or [job]))
    return written


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed processes."""
    for leftover in folder.glob(f"{TEMPORARY}*"):
        if leftover.name != LOCK:
            remove(leftover)


def _manifest(folder: Path) -> list[Tree]:
    """Complete lines of the manifest, without a truncated last one."""
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.split("\n")[:-1]]
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError) as error:
        raise UserError(_altered(folder)) from error
    if not all(isinstance(line, dict) for line in lines):
        raise UserError(_altered(folder))
    return lines


def _altered(folder: Path) -> str:
    return f"{folder / MANIFEST} was altered; delete {folder} to start over"


def _finish(building: _Building, tokenizer: Tokenizer) -> None:
    """Write ``corpus.json``, which makes the folder a corpus."""
    write_description(
        building.folder,
        building.shards,
        tokenizer,
        num_bytes=building.num_bytes,
        num_words=building.num_words,
        labels=building.labels,
        sentences=building.sentences,
    )
    (building.folder / MANIFEST).unlink()


def write_description(
    folder: Path,
    shards: Sequence[ShardRecord],
    tokenizer: Tokenizer,
    *,
    num_bytes: int,
    num_words: int,
    labels: Mapping[str, int],
    sentences: bool,
) -> None:
    """Write the list of the shards, and ``corpus.json``."""
    description = Description(
        documents=sum(shard.documents for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        bytes=num_bytes,
        words=num_words,
        sentences=sentences,
        tokenizer=TokenizerFacts.of(tokenizer),
        labels=dict(sorted(labels.items())),
        shards=len(shards),
        shards_checksum=write_list(folder, shards),
    )
    write_text(folder / DESCRIPTION, json.dumps(description.model_dump(), ensure_ascii=False, indent=1))


def _short(value: object, other: object) -> str:
    """Shorten a value to 60 characters around its first difference from another."""
    text = str(value)
    if len(text) <= 60:
        return text
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, str(other), strict=False)))
    return f"...{text[max(0, shared - 20) :][:54]}..."
