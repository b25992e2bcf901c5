"""Corpus: documents as token ids in a folder of Arrow files, opened memory-mapped.

A folder holds ``tokens-00000.arrow`` and on, ``tokenizer/``, and ``corpus.json``, which is written last: without it the
folder is no corpus. During a build, ``building.jsonl`` records the progress, one line a shard.
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from functools import cached_property
from itertools import accumulate, islice, takewhile
from pathlib import Path
from typing import Protocol

import numpy as np

from homespun.config import Tree
from homespun.data.shards import Encoded, Shard, ShardBuffer, ShardRecord, encode_documents
from homespun.errors import UserError
from homespun.io.atomic import TEMPORARY, file_digest, remove, write_text
from homespun.text.clean import splitmix64
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer

VERSION = 1
DESCRIPTION = "corpus.json"
MANIFEST = "building.jsonl"
TOKENIZER = "tokenizer"
SHARD_TOKENS = 8_000_000  # 16 MB of uint16: what waits in memory, and what a kill can cost
PROGRESS_BYTES = 1_000_000


def random_keys(*parts: int, count: int = 1) -> np.ndarray:
    """(count,) uint64 random numbers from integers, equal on every machine."""
    name = "/".join(map(str, parts))
    digests = (hashlib.blake2b(f"{name}#{i}".encode(), digest_size=8).digest() for i in range(count))
    return np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)


class Corpus:
    """A corpus open for reading. Documents are numbered from 0 in the order of the build.

    Made by `build_corpus`, opened by `Corpus.open`. Holds a few numbers a document and no text; pickles as its path, so
    that worker processes map the same files.
    """

    def __init__(self, path: Path, description: Tree) -> None:
        records = [ShardRecord(**record) for record in description["shards"]]
        self.path = path
        self.num_documents: int = description["documents"]
        self.num_tokens: int = description["tokens"]
        self.num_bytes: int = description["bytes"]  # UTF-8 bytes of the raw text
        self.num_words: int | None = description.get("words")  # between white space; None: built before it was counted
        self.label_counts: dict[str, int] = description["labels"]
        self.has_sentences: bool = description["sentences"]
        self._tokenizer: Tree = description["tokenizer"]
        self._records = records
        self._shards = [Shard(path, record) for record in records]
        self._starts = [0, *accumulate(record.documents for record in records)]

    @classmethod
    def open(cls, path: str | Path, *, tokenizer: Tokenizer | None = None) -> Corpus:
        """Open the corpus in the folder ``path``, to be used with ``tokenizer``.

        Raises:
            UserError: no finished corpus, a file that was truncated or altered, or another tokenizer.
        """
        path = Path(path)
        try:
            description = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(_not_a_corpus(path)) from error
        except ValueError as error:
            raise UserError(
                f"{path / DESCRIPTION} is not valid JSON: it was altered; build the corpus again"
            ) from error
        if not isinstance(description, dict) or description.get("version") != VERSION:
            raise UserError(f"{path} is not a corpus of format {VERSION}, which this version reads; build it again")
        try:
            corpus = cls(path, description)
        except (KeyError, TypeError) as error:
            raise UserError(f"{path / DESCRIPTION} is incomplete: it was altered; build the corpus again") from error
        if tokenizer is not None and tokenizer.fingerprint != corpus._tokenizer["fingerprint"]:
            raise UserError(
                f"corpus {path} was built with {_name(**corpus._tokenizer)}, and cannot be used with "
                f"{_name(**_facts(tokenizer))}; build a corpus with that tokenizer, or use {path / TOKENIZER}"
            )
        return corpus

    def __reduce__(self) -> tuple[object, ...]:
        return Corpus.open, (self.path,)

    def __len__(self) -> int:
        return self.num_documents

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer in the corpus folder.

        Raises:
            UserError: it is not the one that the corpus was built with.
        """
        tokenizer = Tokenizer.load(self.path / TOKENIZER)
        if tokenizer.fingerprint != self._tokenizer["fingerprint"]:
            raise UserError(
                f"{self.path / TOKENIZER} holds {_name(**_facts(tokenizer))}, but the corpus was built with "
                f"{_name(**self._tokenizer)}; build the corpus again"
            )
        return tokenizer

    @cached_property
    def lengths(self) -> np.ndarray:
        """(documents,) int64: tokens in each document."""
        return np.concatenate([np.diff(shard.offsets) for shard in self._shards]).astype(np.int64)

    def tokens(self, index: int) -> np.ndarray:
        """(tokens,) uint16 or uint32: ids of a document, a read-only view of the file."""
        shard, local = self._find(index)
        return shard.tokens(local)

    def label(self, index: int) -> str | None:
        """Label of a document."""
        shard, local = self._find(index)
        return shard.label(local)

    def labels(self) -> list[str | None]:
        """Labels of all documents."""
        return [label for shard in self._shards for label in shard.labels()]

    def sentence_ends(self, index: int) -> np.ndarray:
        """(sentences,) uint32: end of each sentence of a document, in tokens, exclusive.

        Raises:
            UserError: the corpus was built without sentences.
        """
        shard, local = self._find(index)
        ends = shard.sentence_ends(local)
        if ends is None:
            raise UserError(f"corpus {self.path} was built without sentence ends; build it again with sentences=True")
        return ends

    def counts(self, first: int) -> np.ndarray:
        """(vocabulary - first,) int64: counts of the tokens from ``first`` on."""
        counts = np.zeros(self._tokenizer["vocab_size"] - first, np.int64)
        for shard in self._shards:
            counts += np.bincount(shard.ids[shard.ids >= first] - first, minlength=len(counts))
        return counts

    def split(self, validation: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Document indices (ascending int64) for training and validation, at least one each, by a hash of ``seed`` and
        index.

        Raises:
            UserError: ``validation`` is not a share between 0 and 1, or there are fewer than two documents.
        """
        if not 0 < validation < 1:
            raise UserError(f"data.validation={validation} must be between 0 and 1, exclusive; set it to 0.02")
        if self.num_documents < 2:
            raise UserError(f"corpus {self.path} has one document, which cannot be split for validation; give it more")
        count = min(max(round(validation * self.num_documents), 1), self.num_documents - 1)
        order = np.argsort(
            splitmix64(np.arange(self.num_documents, dtype=np.uint64) ^ random_keys(seed)[0]), kind="stable"
        )
        return np.sort(order[count:]), np.sort(order[:count])

    def verify(self) -> None:
        """Compare the checksums of all shards with those recorded.

        Raises:
            UserError: a shard was altered.
        """
        for record in self._records:
            if file_digest(self.path / record.name) != record.checksum:
                raise UserError(f"{self.path / record.name} was altered since it was written; build the corpus again")

    def _find(self, index: int) -> tuple[Shard, int]:
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of a corpus of {self.num_documents}")
        shard = bisect_right(self._starts, index) - 1
        return self._shards[shard], int(index) - self._starts[shard]


class Progress(Protocol):
    """Called during a build with totals, those before a restart included."""

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

    Restarted after a kill, the same call continues after the last complete shard and ends with the same bytes, if
    ``documents`` come in the same order. Documents without a token are left out. Memory stays under 1 GB: a shard, two
    batches a worker, and one document.

    Args:
        documents: the stream, read once.
        inputs: names the stream (files and options); a half-built folder of other inputs is refused.
        workers: threads that encode, outside Python's lock; None: one a core.
        sentences: record sentence ends, which next sentence prediction needs. Sentences are then encoded one by one,
            each with the space before it.

    Raises:
        UserError: ``out`` holds something else, a finished corpus or a half-built one of other inputs; no document has
            a token; or ``workers`` is below 1.
    """
    workers = os.cpu_count() or 1 if workers is None else workers
    if workers < 1:
        raise UserError(f"workers must be 1 or more, not {workers}; leave it out for one a core")
    folder = Path(out)
    job = {"version": VERSION, "inputs": inputs, "tokenizer": tokenizer.fingerprint, "sentences": sentences}
    building = _Building(folder, _open_manifest(folder, job), sentences=sentences)
    tokenizer.save(folder / TOKENIZER)
    stream = iter(documents)
    if sum(1 for _ in islice(stream, building.consumed)) < building.consumed:
        raise UserError(
            f"half-built corpus {folder} holds {building.consumed:,} documents of its inputs already, and there are "
            f"fewer now: they have changed; delete the folder to start over"
        )
    reported = building.num_bytes
    with closing(encode_documents(stream, tokenizer, workers=workers, sentences=sentences)) as encoded:
        for document in encoded:
            building.add(document)
            if progress is not None and building.num_bytes - reported >= PROGRESS_BYTES:
                reported = building.num_bytes
                progress(reported, building.consumed)
    building.flush()
    if not building.shards:
        (folder / MANIFEST).unlink()
        raise UserError("there is no text to build a corpus from: every document is empty, or there are none")
    if progress is not None:
        progress(building.num_bytes, building.consumed)
    _finish(building, tokenizer)
    return Corpus.open(folder, tokenizer=tokenizer)


class _Building:
    """A corpus during its build: the shards that its manifest lists, and the one in memory."""

    def __init__(self, folder: Path, written: list[Tree], *, sentences: bool) -> None:
        last: Tree = written[-1] if written else {"consumed": 0, "bytes": 0, "words": 0, "labels": {}}
        self.folder, self.sentences = folder, sentences
        self.shards = [ShardRecord(**line["shard"]) for line in written]
        self.consumed: int = last["consumed"]  # documents of the stream, with those that had no token
        self.num_bytes: int = last["bytes"]
        self.num_words: int | None = last.get("words")  # None: started before they were counted
        self.labels = Counter[str](last["labels"])
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
        totals = {"bytes": self.num_bytes, "words": self.num_words, "labels": self.labels}
        with open(self.folder / MANIFEST, "a", encoding="utf-8") as file:
            file.write(json.dumps({"shard": asdict(shard), "consumed": self.consumed} | totals) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.shards.append(shard)
        self._buffer = ShardBuffer()


def _open_manifest(folder: Path, job: Tree) -> list[Tree]:
    """Create the manifest, or return the lines of the present one, one for each shard."""
    if (folder / DESCRIPTION).exists():
        raise UserError(f"{folder} holds a finished corpus; give another folder, or delete it to build it again")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; a corpus needs a folder of its own")
    lines = _manifest(folder)
    # a killed build can leave temporary files
    if not lines and folder.exists() and any(not entry.name.startswith(TEMPORARY) for entry in folder.iterdir()):
        raise UserError(f"{folder} exists and is not empty; a corpus needs a folder of its own")
    header, *written = lines or [job]
    differs = [
        f"{key} was {_short(header.get(key), now)}, now {_short(now, header.get(key))}"
        for key, now in job.items()
        if header.get(key) != now
    ]
    if differs:
        raise UserError(
            f"{folder} is a half-built corpus of inputs that have changed, or of another job ({'; '.join(differs)}); "
            f"give another folder, or delete it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{TEMPORARY}*"):
        remove(leftover)
    # rewritten: a kill may have cut the last line
    write_text(folder / MANIFEST, "".join(json.dumps(line) + "\n" for line in [header, *written]))
    return written


def _manifest(folder: Path) -> list[Tree]:
    """Complete lines of the manifest; a kill can have cut the last one."""
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n")[:-1]]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise UserError(f"{folder / MANIFEST} was altered; delete {folder} to start over") from error


def _finish(building: _Building, tokenizer: Tokenizer) -> None:
    """Write ``corpus.json``, which makes the folder a corpus."""
    description = {
        "version": VERSION,
        "documents": sum(shard.documents for shard in building.shards),
        "tokens": sum(shard.tokens for shard in building.shards),
        "bytes": building.num_bytes,
        "words": building.num_words,
        "sentences": building.sentences,
        "tokenizer": _facts(tokenizer),
        "labels": dict(sorted(building.labels.items())),
        "shards": [asdict(shard) for shard in building.shards],
    }
    write_text(building.folder / DESCRIPTION, json.dumps(description, ensure_ascii=False, indent=1))
    (building.folder / MANIFEST).unlink()


def _facts(tokenizer: Tokenizer) -> Tree:
    return {"fingerprint": tokenizer.fingerprint, "kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size}


def _name(fingerprint: str, kind: str, vocab_size: int) -> str:
    return f"tokenizer {fingerprint[:12]} ({kind}, {vocab_size:,} tokens)"


def _short(value: object, other: object) -> str:
    """At most 60 characters of a value, from where it differs from the other."""
    text = str(value)
    if len(text) <= 60:
        return text
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, str(other), strict=False)))
    return f"...{text[max(0, shared - 20) :][:54]}..."


def _not_a_corpus(path: Path) -> str:
    if not path.exists():
        return f"there is no corpus at {path}; build one with: homespun corpus build"
    if (path / MANIFEST).exists():
        return f"corpus {path} is half-built; repeat the command that started it, which continues the build"
    return f"{path} is not a corpus: it has no {DESCRIPTION}; build one with: homespun corpus build"
