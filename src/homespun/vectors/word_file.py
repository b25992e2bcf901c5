"""Word ids of a corpus on disk, numbered by frequency, for word2vec and GloVe.

A first pass over the documents counts words, a second writes their ids, 4 bytes each, so that no text is in memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config
from homespun.data.corpus import Corpus
from homespun.errors import UserError

Unit = Literal["words", "tokens"]
OnProgress = Callable[[float], None]  # completed share
_WORD = re.compile(r"\w+|[^\w\s]")  # words and punctuation marks, as in tokenizers of kind `words`
_BATCH = 64  # documents


class WordsConfig(Config):
    """Vocabulary of word vectors."""

    unit: Unit = Field(default="words", description="words of the text, or tokens of the corpus without special tokens")
    lowercase: bool = Field(default=True, description="lowercase words of the text; tokens stay as they are")
    min_count: int = Field(default=5, ge=1, description="minimum frequency of a word")
    max_words: int = Field(default=400_000, ge=2, description="maximum size of the vocabulary")


@dataclass(frozen=True)
class WordFile:
    """Word ids of a corpus in order, without rare words."""

    path: Path  # raw file of (length,) int32
    words: list[str]  # the vocabulary, by frequency and then by name
    counts: NDArray[np.int64]  # (words,) int64 frequencies
    ends: NDArray[np.int64]  # (documents,) int64 offsets of the ends of documents

    @property
    def ids(self) -> NDArray[np.int32]:
        """Memory-map the ids, (length,) int32."""
        return np.memmap(self.path, dtype=np.int32, mode="r")

    def documents(self) -> Iterator[NDArray[np.int32]]:
        """Yield the (words,) ids of each document that is not empty."""
        ids, start = self.ids, 0
        for end in self.ends.tolist():
            if end > start:
                yield ids[start:end]
            start = end


def write_words(
    corpus: Corpus, path: str | Path, config: WordsConfig, *, on_progress: OnProgress = lambda share: None
) -> WordFile:
    """Write the word ids of ``corpus`` to the file ``path``.

    Tokens are without special tokens. Words of the decoded text are runs of letters, digits and ``_``, and punctuation
    marks. With a tokenizer of kind ``words`` they are its tokens.

    Raises:
        UserError: fewer than two words are frequent enough.
    """
    reader: _Tokens | _Text
    if config.unit == "tokens" or corpus.tokenizer.kind == "words":
        reader = _Tokens(corpus, lowercase=config.lowercase and config.unit == "words")
    else:
        reader = _Text(corpus, lowercase=config.lowercase)
    counts = reader.count(lambda share: on_progress(share / 2))
    kept = [(word, count) for word, count in counts.items() if count >= config.min_count]
    if len(kept) < 2:
        raise UserError(
            f"corpus {corpus.path} has {len(kept)} of {len(counts):,} {config.unit} with words.min_count="
            f"{config.min_count}; two are needed: lower min_count, or build the corpus with more text or a larger "
            f"vocabulary"
        )
    kept.sort(key=lambda entry: (-entry[1], entry[0]))
    kept = kept[: config.max_words]
    index = {word: number for number, (word, _) in enumerate(kept)}
    ends = np.zeros(len(corpus), np.int64)
    written = 0
    with open(path, "wb") as stream:
        for number, ids in enumerate(reader.documents(index, lambda share: on_progress((1 + share) / 2))):
            stream.write(ids.astype(np.int32).tobytes())
            written += len(ids)
            ends[number] = written
    return WordFile(Path(path), [w for w, _ in kept], np.array([c for _, c in kept], np.int64), ends)


class _Tokens:
    def __init__(self, corpus: Corpus, *, lowercase: bool) -> None:
        self.corpus = corpus
        tokenizer = corpus.tokenizer
        self.names = [token.lower() if lowercase else token for token in tokenizer.tokens]
        self.special = tokenizer.special_mask

    def count(self, on_progress: OnProgress) -> dict[str, int]:
        counts = np.zeros(len(self.special), np.int64)
        for number in range(len(self.corpus)):
            counts += np.bincount(self.corpus.tokens(number), minlength=len(counts))
            on_progress((number + 1) / len(self.corpus))
        counts[self.special] = 0
        totals: Counter[str] = Counter()
        for i in np.flatnonzero(counts):
            totals[self.names[i]] += int(counts[i])
        return totals

    def documents(self, index: dict[str, int], on_progress: OnProgress) -> Iterator[NDArray[np.int32]]:
        numbers = np.array([index.get(name, -1) for name in self.names], np.int32)
        table = np.where(self.special, -1, numbers)
        for number in range(len(self.corpus)):
            ids = table[self.corpus.tokens(number)]
            yield ids[ids >= 0]
            on_progress((number + 1) / len(self.corpus))


class _Text:
    def __init__(self, corpus: Corpus, *, lowercase: bool) -> None:
        self.corpus, self.lowercase = corpus, lowercase

    def _words(self, on_progress: OnProgress) -> Iterator[list[str]]:
        total = len(self.corpus)
        for start in range(0, total, _BATCH):
            numbers = range(start, min(start + _BATCH, total))
            for text in self.corpus.tokenizer.decode_batch([self.corpus.tokens(number) for number in numbers]):
                yield _WORD.findall(text.lower() if self.lowercase else text)
            on_progress((numbers[-1] + 1) / total)

    def count(self, on_progress: OnProgress) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for words in self._words(on_progress):
            counts.update(words)
        return counts

    def documents(self, index: dict[str, int], on_progress: OnProgress) -> Iterator[NDArray[np.int32]]:
        for words in self._words(on_progress):
            yield np.fromiter((index[word] for word in words if word in index), np.int32)
