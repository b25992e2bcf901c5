"""Corpus of tokenized documents in a folder of memory-mapped Arrow files.

A folder has ``tokens-00000.arrow`` and further shards, ``tokenizer/``, and ``corpus.json``, which is written last and
marks a complete corpus. During a build, ``building.jsonl`` records the progress, one line for each shard.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import cached_property
from itertools import accumulate, islice, takewhile
from pathlib import Path
from typing import Protocol

import numpy as np
from pydantic import ValidationError

from homespun.config import Tree
from homespun.data.corpus_files import VERSION, Description, Line, TokenizerFacts
from homespun.data.document_set import DocumentSet, split_documents
from homespun.data.encoding import Encoded, encode_documents
from homespun.data.shards import OpenShards, Shard, ShardBuffer
from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY, entries, remove, write_text
from homespun.io.cores import available_cores
from homespun.io.lock import LOCK
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer

DESCRIPTION = "corpus.json"
MANIFEST = "building.jsonl"
TOKENIZER = "tokenizer"
SHARD_TOKENS = 8_000_000  # 16 MB of uint16: buffered in memory, and lost if the build is killed
PROGRESS_BYTES = 1_000_000
_COUNTED = 1 << 20  # documents counted at a time


def random_keys(*parts: int, count: int = 1) -> np.ndarray:
    """Derive (count,) uint64 random numbers from integers, equal on every machine."""
    name = "/".join(map(str, parts))
    digests = (hashlib.blake2b(f"{name}#{i}".encode(), digest_size=8).digest() for i in range(count))
    return np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)


class Corpus:
    """Corpus open for reading. Documents are numbered from 0 in the order of the build.

    Made by `build_corpus`, opened by `Corpus.open`. Stores a few numbers for each shard and no text; pickles as its
    path, so that worker processes map the same files.
    """

    def __init__(self, path: Path, description: Description) -> None:
        self.path = path
        self.num_documents = description.documents
        self.num_tokens = description.tokens
        self.num_bytes = description.bytes  # UTF-8 bytes of the raw text
        self.num_words = description.words  # separated by white space; None in old corpora
        self.has_sentences = description.sentences
        self._tokenizer = description.tokenizer
        self.records = description.shards
        self.shards = OpenShards(path, self.records)
        self._starts = [0, *accumulate(record.documents for record in self.records)]

    @classmethod
    def open(cls, path: str | Path, *, tokenizer: Tokenizer | None = None) -> Corpus:
        """Open the corpus in the folder ``path``, and check that it was built with ``tokenizer`` if given.

        Raises:
            UserError: no complete corpus, a truncated or altered file, or another tokenizer.
        """
        path = Path(path)
        try:
            corpus = cls(path, Description.model_validate_json((path / DESCRIPTION).read_bytes()))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(_not_a_corpus(path)) from error
        except ValidationError as error:
            raise UserError(_invalid(path, error)) from error
        if tokenizer is not None and tokenizer.fingerprint != corpus._tokenizer.fingerprint:
            raise UserError(
                f"corpus {path} was built with {corpus._tokenizer}, not with {TokenizerFacts.of(tokenizer)}; "
                f"build it again with that tokenizer, or use {path / TOKENIZER}"
            )
        return corpus

    def __reduce__(self) -> tuple[object, ...]:
        return Corpus.open, (self.path,)

    def __len__(self) -> int:
        return self.num_documents

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer in the corpus folder. Raises `UserError` if the corpus was built with another one."""
        tokenizer = Tokenizer.load(self.path / TOKENIZER)
        if tokenizer.fingerprint != self._tokenizer.fingerprint:
            raise UserError(
                f"{self.path / TOKENIZER} is {TokenizerFacts.of(tokenizer)}, and the corpus was built with "
                f"{self._tokenizer}; build the corpus again"
            )
        return tokenizer

    @cached_property
    def lengths(self) -> np.ndarray:
        """(documents,) int64 number of tokens of each document."""
        return self.sizes(0, self.num_documents)

    def sizes(self, first: int, stop: int) -> np.ndarray:
        """Return the (stop - first,) int64 numbers of tokens of the documents from ``first`` to ``stop`` - 1."""
        sizes = np.empty(stop - first, np.int64)
        at = first
        while at < stop:
            shard, local = self._find(at)
            offsets = shard.offsets[local : local + stop - at + 1]
            end = at + len(offsets) - 1
            np.subtract(offsets[1:], offsets[:-1], out=sizes[at - first : end - first])
            at = end
        return sizes

    def count_tokens(self, documents: DocumentSet) -> int:
        """Count the tokens of a set of documents."""
        total = 0
        for first in range(0, self.num_documents, _COUNTED):
            stop = min(first + _COUNTED, self.num_documents)
            total += int(self.sizes(first, stop)[documents.between(first, stop) - first].sum())
        return total

    def tokens(self, index: int) -> np.ndarray:
        """Return (tokens,) uint16 or uint32 ids of a document, a read-only view of the file."""
        shard, local = self._find(index)
        return shard.tokens(local)

    def labels(self) -> list[str | None]:
        return [label for shard in self.shards for label in shard.labels()]

    def sentence_ends(self, index: int) -> np.ndarray:
        """Return (sentences,) uint32 end of each sentence of a document, in tokens, exclusive.

        Raises:
            UserError: the corpus was built without sentences.
        """
        shard, local = self._find(index)
        if (ends := shard.sentence_ends(local)) is None:
            raise UserError(
                f"corpus {self.path} was built without sentence ends; build it again with --sentences or sentences=True"
            )
        return ends

    def counts(self, first: int) -> np.ndarray:
        """Return (vocabulary - first,) int64 counts of the tokens with ids from ``first`` on."""
        counts = np.zeros(self._tokenizer.vocab_size - first, np.int64)
        for shard in self.shards:
            counts += np.bincount(shard.ids[shard.ids >= first] - first, minlength=len(counts))
        return counts

    def split(self, validation: float, seed: int) -> tuple[DocumentSet, DocumentSet]:
        """Split documents into training and validation by a hash of seed and index, at least one each.

        Raises:
            UserError: ``validation`` is not between 0 and 1, or there are fewer than two documents.
        """
        if not 0 < validation < 1:
            raise UserError(f"data.validation={validation} must be between 0 and 1, exclusive; set it to 0.02")
        if self.num_documents < 2:
            raise UserError(f"corpus {self.path} has one document; a validation split needs two or more")
        count = min(max(round(validation * self.num_documents), 1), self.num_documents - 1)
        return split_documents(self.num_documents, count, int(random_keys(seed)[0]))

    def _find(self, index: int) -> tuple[Shard, int]:
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of a corpus of {self.num_documents}")
        shard = bisect_right(self._starts, index) - 1
        return self.shards[shard], int(index) - self._starts[shard]


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
        if self.num_words is not None:
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
    description = Description(
        documents=sum(shard.documents for shard in building.shards),
        tokens=sum(shard.tokens for shard in building.shards),
        bytes=building.num_bytes,
        words=building.num_words,
        sentences=building.sentences,
        tokenizer=TokenizerFacts.of(tokenizer),
        labels=dict(sorted(building.labels.items())),
        shards=building.shards,
    )
    write_description(building.folder, description)
    (building.folder / MANIFEST).unlink()


def write_description(folder: Path, description: Description) -> None:
    """Write ``corpus.json``."""
    write_text(folder / DESCRIPTION, json.dumps(description.model_dump(), ensure_ascii=False, indent=1))


def _short(value: object, other: object) -> str:
    """Shorten a value to 60 characters around its first difference from another."""
    text = str(value)
    if len(text) <= 60:
        return text
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, str(other), strict=False)))
    return f"...{text[max(0, shared - 20) :][:54]}..."


def _not_a_corpus(path: Path) -> str:
    if not path.exists():
        return f"there is no corpus at {path}; build one with: homespun corpus build"
    if (path / MANIFEST).exists():
        return f"corpus {path} is half-built; repeat the command that started it to resume the build"
    return f"{path} is not a corpus: it has no {DESCRIPTION}; build one with: homespun corpus build"


def _invalid(path: Path, error: ValidationError) -> str:
    problems = {(problem["type"], *problem["loc"]) for problem in error.errors()}
    if any(kind == "json_invalid" for kind, *_ in problems):
        return f"{path / DESCRIPTION} is not valid JSON; build the corpus again"
    if any(place == ["version"] for _, *place in problems):
        return f"{path} is not a corpus of format {VERSION}; build it again with this version of homespun"
    return f"{path / DESCRIPTION} is incomplete or altered; build the corpus again"
