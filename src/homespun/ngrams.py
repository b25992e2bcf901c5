"""TF-IDF features of texts and of pairs of texts: n-grams of words and of characters."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from homespun.config import Config
from homespun.errors import UserError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


_WORD = re.compile(r"(?u)\b\w+\b")
_WORDS_KEPT = 100_000  # words whose n-grams of characters are kept: about 30 MB


class Ngrams(Config):
    """One block of features: the TF-IDF of n-grams with sublinear term frequency, normalised to unit length."""

    analyzer: Literal["word", "char_wb"] = "word"
    shortest: int = 1
    longest: int = 2
    min_texts: int = 1  # texts that hold an n-gram, at least

    def count(self, texts: Sequence[str]) -> tuple[list[str], csr_matrix]:
        """Count all n-grams as ``CountVectorizer`` of scikit-learn: their sorted names, and (texts, n-grams) counts.

        Raises:
            ValueError: the texts hold no n-gram.
        """
        numbers: dict[str, int] = {}  # of each n-gram, in the order of the texts
        table = _Counter(self, numbers, grow=True).count(texts)
        if not numbers:
            raise ValueError("no n-grams")
        names = sorted(numbers)
        places = np.empty(len(names), dtype=np.int32)
        places[[numbers[name] for name in names]] = np.arange(len(names), dtype=np.int32)
        table.indices = places[table.indices]
        table.has_sorted_indices = False
        table.sort_indices()
        table.resize(len(texts), len(names))
        return names, table

    def fit(self, texts: Sequence[str]) -> Tfidf:
        """Fit vocabulary and inverse document frequencies. Raises `ValueError` for texts without n-grams."""
        names, table = self.count(texts)
        frequencies = table.getnnz(axis=0)
        kept = np.flatnonzero(frequencies >= self.min_texts)
        if not len(kept):
            raise ValueError("no n-grams")
        idf = np.log((1 + len(texts)) / (1 + frequencies[kept])) + 1.0
        return Tfidf(self, tuple(names[column] for column in kept.tolist()), idf)

    def split(self, text: str) -> list[str]:
        """Return the n-grams of a text, as scikit-learn's vectorizers do, whose import takes a second."""
        text = text.lower()
        if self.analyzer == "char_wb":
            return [gram for word in text.split() for gram in self.split_word(word)]
        words = _WORD.findall(text)
        return [
            " ".join(words[start : start + size])
            for size in range(self.shortest, self.longest + 1)
            for start in range(len(words) - size + 1)
        ]

    def split_word(self, word: str) -> list[str]:
        """Return the n-grams of characters of a word in lower case, with a space before and after it."""
        word = f" {word} "
        return [
            word[start : start + size]
            for size in range(self.shortest, min(self.longest, max(len(word), self.shortest)) + 1)
            for start in range(max(1, len(word) - size + 1))
        ]


class _Counter:
    """Counts the n-grams of texts.

    The columns of earlier words are kept, since most words of a text are frequent: n-grams of characters are found five
    times as fast.

    Args:
        ngrams: the block.
        columns: column of each n-gram.
        grow: give new n-grams a column, instead of leaving them out.
    """

    def __init__(self, ngrams: Ngrams, columns: dict[str, int], *, grow: bool) -> None:
        self._ngrams, self._columns, self._grow = ngrams, columns, grow
        self._words: dict[str, array[int]] = {}

    def count(self, texts: Sequence[str]) -> csr_matrix:
        """Count columns: sparse (texts, largest column + 1)."""
        from scipy.sparse import csr_matrix

        columns, counts = [np.empty(0, dtype=np.int32)], [np.empty(0)]
        for text in texts:
            found, times = np.unique(np.asarray(self._of(text), dtype=np.int32), return_counts=True)
            columns.append(found)
            counts.append(times.astype(np.float64))
        ends = np.cumsum([len(found) for found in columns])
        largest = max((int(found[-1]) for found in columns if len(found)), default=-1)
        shape = (len(texts), largest + 1)
        return csr_matrix((np.concatenate(counts), np.concatenate(columns), ends), shape=shape)

    def _of(self, text: str) -> array[int]:
        if self._ngrams.analyzer == "word":
            return self._find(self._ngrams.split(text))
        found = array("i")
        for word in text.lower().split():
            found.extend(self._of_word(word))
        return found

    def _of_word(self, word: str) -> array[int]:
        found = self._words.get(word)
        if found is None:
            if len(self._words) >= _WORDS_KEPT:
                self._words.clear()
            found = self._words[word] = self._find(self._ngrams.split_word(word))
        return found

    def _find(self, grams: list[str]) -> array[int]:
        columns = self._columns
        if self._grow:
            return array("i", [columns.setdefault(gram, len(columns)) for gram in grams])
        return array("i", [column for column in map(columns.get, grams) if column is not None])


@dataclass(frozen=True)
class Tfidf:
    """Fitted block of features.

    Args:
        ngrams: the block.
        names: n-gram of each feature.
        idf: (features,) float64 inverse document frequencies.
    """

    ngrams: Ngrams
    names: tuple[str, ...]
    idf: NDArray[np.float64]

    @cached_property
    def _counter(self) -> _Counter:
        return _Counter(self.ngrams, {name: column for column, name in enumerate(self.names)}, grow=False)

    def transform(self, texts: Sequence[str]) -> csr_matrix:
        """Compute sparse (texts, features), with the values of scikit-learn's ``TfidfVectorizer``."""
        table = self._counter.count(texts)
        table.resize(len(texts), len(self.names))
        values = (np.log(table.data) + 1.0) * self.idf[table.indices]
        rows = np.repeat(np.arange(len(texts)), np.diff(table.indptr))
        table.data = values / np.sqrt(np.bincount(rows, weights=values * values))[rows]
        return table


WORDS = (Ngrams(),)
CHARACTERS = (Ngrams(), Ngrams(analyzer="char_wb", shortest=2, longest=5, min_texts=2))
"""Feature sets that are tried: words and word pairs, with or without characters inside words."""


@dataclass(frozen=True)
class Texts:
    """Texts, or pairs of texts with ``second``."""

    first: Sequence[str]
    second: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.first)

    @property
    def both(self) -> list[str]:
        """First texts, followed by second ones."""
        return [*self.first, *(self.second or ())]

    def take(self, rows: NDArray[np.int64]) -> Texts:
        """Select rows."""
        first, second = self.first, self.second
        return Texts([first[row] for row in rows], None if second is None else [second[row] for row in rows])


def features(vectorizers: Sequence[Tfidf], texts: Texts) -> csr_matrix:
    """Compute sparse (texts, features): TF-IDF of every block, or of pairs `pair_features`."""
    first = _transform(vectorizers, texts.first)
    return first if texts.second is None else pair_features(first, _transform(vectorizers, texts.second))


def _transform(vectorizers: Sequence[Tfidf], texts: Sequence[str]) -> csr_matrix:
    from scipy.sparse import hstack

    blocks = [vectorizer.transform(texts) for vectorizer in vectorizers]
    return blocks[0] if len(blocks) == 1 else hstack(blocks, format="csr")


def fit_vectorizers(ngrams: Sequence[Ngrams], texts: Texts) -> tuple[Tfidf, ...]:
    """Fit the vectorizers of all blocks on texts, or on both texts of pairs.

    Raises:
        UserError: the texts hold no word.
    """
    with _refuse_without_words():
        return tuple(block.fit(texts.both) for block in ngrams)


@contextmanager
def _refuse_without_words() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UserError("the training texts hold no word; name another column of text") from error


def pair_features(first: csr_matrix, second: csr_matrix) -> csr_matrix:
    """Compute sparse (pairs, features) from the features of both texts.

    These are their product and absolute difference, the cosine, the share of common features, and the ratio of their
    counts.
    """
    from scipy.sparse import csr_matrix, hstack

    both = first.multiply(second)
    cosine = np.asarray(both.sum(axis=1))
    present = [(side > 0).astype(np.int64) for side in (first, second)]
    sizes = [np.asarray(side.sum(axis=1)) for side in present]
    common = np.asarray(present[0].multiply(present[1]).sum(axis=1))
    shared = common / (sizes[0] + sizes[1] - common).clip(min=1)
    ratio = np.minimum(*sizes) / np.maximum(*sizes).clip(min=1)
    return hstack([both, abs(first - second), csr_matrix(np.hstack([cosine, shared, ratio]))], format="csr")


def count_ngrams(block: Ngrams, texts: Texts) -> csr_matrix:
    """Count the n-grams of a block, in (texts, n-grams); of pairs, the second texts follow the first.

    Raises:
        UserError: the texts hold no word.
    """
    with _refuse_without_words():
        return block.count(texts.both)[1]


def fold_features(
    counts: Sequence[tuple[Ngrams, csr_matrix]], train: NDArray[np.int64], test: NDArray[np.int64], texts: int
) -> tuple[csr_matrix, csr_matrix]:
    """Compute the features of both parts of a fold as `fit_vectorizers` on the training part does.

    A block without an n-gram in the training part has no features, and texts without any have one that is 0.

    Args:
        counts: n-gram counts of each block, (texts, n-grams) counts; of pairs, those of the second texts follow.
        train, test: rows.
        texts: number of texts or pairs.
    """
    from scipy.sparse import csr_matrix, hstack
    from sklearn.feature_extraction.text import TfidfTransformer

    paired = bool(counts) and counts[0][1].shape[0] > texts
    fitted = np.concatenate([train, train + texts]) if paired else train
    blocks = []
    for block, table in counts:
        kept = np.flatnonzero(table[fitted].getnnz(axis=0) >= block.min_texts)
        if len(kept):
            table = table[:, kept]
            blocks.append(TfidfTransformer(sublinear_tf=True).fit(table[fitted]).transform(table))
    both = hstack(blocks, format="csr") if blocks else csr_matrix((counts[0][1].shape[0], 1))
    known, unseen = (pair_features(both[rows], both[rows + texts]) if paired else both[rows] for rows in (train, test))
    return known, unseen
