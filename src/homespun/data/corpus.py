"""Corpus of tokenized documents in a folder of memory-mapped Arrow files.

A folder has ``tokens-00000.arrow`` and further shards, ``shards.arrow`` with their names and sizes, ``tokenizer/``, and
``corpus.json``, which is written last and marks a complete corpus. During a build, ``building.jsonl`` records the
progress, one line for each shard.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from homespun.data.corpus_files import DESCRIPTION, MANIFEST, TOKENIZER, VERSION, Description, TokenizerFacts
from homespun.data.document_set import DocumentSet, split_documents
from homespun.data.shards import SHARDS, OpenShards, Shard, ShardList, tabulate
from homespun.errors import UserError
from homespun.io.atomic import file_digest
from homespun.text.tokenizer import Tokenizer

_COUNTED = 1 << 20  # documents counted at a time


def random_keys(*parts: int, count: int = 1) -> np.ndarray:
    """Derive (count,) uint64 random numbers from integers, equal on every machine."""
    name = "/".join(map(str, parts))
    digests = (hashlib.blake2b(f"{name}#{i}".encode(), digest_size=8).digest() for i in range(count))
    return np.array([int.from_bytes(digest, "little") for digest in digests], dtype=np.uint64)


class Corpus:
    """Corpus open for reading. Documents are numbered from 0 in the order of the build.

    Made by `build_corpus`, opened by `Corpus.open`. Stores a number for each shard and no text; pickles as its path, so
    that worker processes map the same files.
    """

    def __init__(self, path: Path, description: Description) -> None:
        """Open the shards of a described corpus. Raises `UserError` if they are not as described."""
        self.path = path
        self.num_documents = description.documents
        self.num_tokens = description.tokens
        self.num_bytes = description.bytes  # UTF-8 bytes of the raw text
        self.num_words = description.words  # separated by white space; None in old corpora
        self.has_sentences = description.sentences
        self._tokenizer = description.tokenizer
        self.records = _open_list(path, description)
        if (self.records.documents.sum(), self.records.tokens.sum()) != (description.documents, description.tokens):
            raise UserError(_altered(path))
        self.shards = OpenShards(path, self.records)
        self._starts = array("q", [0])
        self._starts.frombytes(np.cumsum(self.records.documents).tobytes())

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


def _open_list(path: Path, description: Description) -> ShardList:
    if isinstance(description.shards, list):
        return ShardList(path / DESCRIPTION, tabulate(description.shards))
    shards = ShardList(path / SHARDS)
    if (len(shards), file_digest(path / SHARDS)) != (description.shards, description.shards_checksum):
        raise UserError(_altered(path))
    return shards


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
    return _altered(path)


def _altered(path: Path) -> str:
    return f"{path / DESCRIPTION} is incomplete or altered; build the corpus again"
