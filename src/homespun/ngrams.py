"""TF-IDF features of texts and of pairs of texts: n-grams of words and of characters."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
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
    from sklearn.feature_extraction.text import CountVectorizer


_WORD = re.compile(r"(?u)\b\w+\b")
_WORDS_KEPT = 100_000  # words whose n-grams of characters are kept: about 30 MB


class Ngrams(Config):
    """One block of features: the TF-IDF of n-grams with sublinear term frequency, normalised to unit length."""

    analyzer: Literal["word", "char_wb"] = "word"
    shortest: int = 1
    longest: int = 2
    min_texts: int = 1  # texts that hold an n-gram, at least

    def counter(self) -> CountVectorizer:
        """Return an unfitted vectorizer of counts of all n-grams."""
        from sklearn.feature_extraction.text import CountVectorizer

        return CountVectorizer(**self._tokenization)

    def fit(self, texts: Sequence[str]) -> Tfidf:
        """Fit vocabulary and inverse document frequencies. Raises `ValueError` for texts without n-grams."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(min_df=self.min_texts, sublinear_tf=True, **self._tokenization).fit(texts)
        return Tfidf(self, tuple(vectorizer.get_feature_names_out().tolist()), vectorizer.idf_)

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

    @property
    def _tokenization(self) -> dict[str, object]:
        """Arguments of the vectorizers of scikit-learn."""
        pattern = _WORD.pattern if self.analyzer == "word" else None
        return {"analyzer": self.analyzer, "ngram_range": (self.shortest, self.longest), "token_pattern": pattern}


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
    def _columns(self) -> dict[str, int]:
        return {name: column for column, name in enumerate(self.names)}

    @cached_property
    def _words(self) -> dict[str, array[int]]:
        return {}  # columns of the n-grams of earlier words: most words of a text are frequent

    def _known(self, grams: Iterable[str]) -> array[int]:
        return array("i", [column for column in map(self._columns.get, grams) if column is not None])

    def _word_columns(self, word: str) -> array[int]:
        found = self._words.get(word)
        if found is None:
            if len(self._words) >= _WORDS_KEPT:
                self._words.clear()
            found = self._words[word] = self._known(self.ngrams.split_word(word))
        return found

    def transform(self, texts: Sequence[str]) -> csr_matrix:
        """Compute sparse (texts, features), with the values of scikit-learn's ``TfidfVectorizer``."""
        from scipy.sparse import csr_matrix

        columns, ends = array("i"), [0]
        for text in texts:
            if self.ngrams.analyzer == "char_wb":
                for word in text.lower().split():
                    columns.extend(self._word_columns(word))
            else:
                columns.extend(self._known(self.ngrams.split(text)))
            ends.append(len(columns))
        table = csr_matrix((np.ones(len(columns)), np.array(columns), ends), shape=(len(ends) - 1, len(self.names)))
        table.sum_duplicates()
        values = (np.log(table.data) + 1.0) * self.idf[table.indices]
        rows = np.repeat(np.arange(len(ends) - 1), np.diff(table.indptr))
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


def count_ngrams(ngrams: Sequence[Ngrams], texts: Texts) -> list[tuple[Ngrams, csr_matrix]]:
    """Count the n-grams of every block, in (texts, n-grams); of pairs, the second texts follow the first.

    Raises:
        UserError: the texts hold no word.
    """
    with _refuse_without_words():
        return [(block, block.counter().fit_transform(texts.both)) for block in ngrams]


def fold_features(
    counts: Sequence[tuple[Ngrams, csr_matrix]], train: NDArray[np.int64], test: NDArray[np.int64], texts: int
) -> tuple[csr_matrix, csr_matrix]:
    """Compute the features of both parts of a fold as `fit_vectorizers` on the training part does.

    Args:
        counts: n-gram counts of each block, (texts, n-grams) counts; of pairs, those of the second texts follow.
        train, test: rows.
        texts: number of texts or pairs.
    """
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfTransformer

    paired = bool(counts) and counts[0][1].shape[0] > texts
    fitted = np.concatenate([train, train + texts]) if paired else train
    blocks = []
    for block, table in counts:
        kept = table[fitted].getnnz(axis=0) >= block.min_texts
        table = table[:, np.flatnonzero(kept)]
        blocks.append(TfidfTransformer(sublinear_tf=True).fit(table[fitted]).transform(table))
    both = hstack(blocks, format="csr")
    known, unseen = (pair_features(both[rows], both[rows + texts]) if paired else both[rows] for rows in (train, test))
    return known, unseen
