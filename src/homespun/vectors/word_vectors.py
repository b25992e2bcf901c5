"""Word vectors in memory: lookup, nearest words and analogies."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from homespun.choices import Projection
from homespun.errors import UserError

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors.

    Args:
        words: without duplicates, sorted by frequency if known.
        vectors: (words, size) float32, finite.
        counts: (words,) int64 frequencies, if known.
        about: settings of the training.

    Raises:
        UserError: no words, a duplicate word, shapes that do not fit, or a value that is not finite.
    """

    words: Sequence[str]
    vectors: Floats
    counts: NDArray[np.int64] | None = None
    about: dict[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.words):
            raise UserError(f"{len(self.words):,} words need vectors of shape (words, size), not {self.vectors.shape}")
        if not len(self.words) or not self.vectors.shape[1]:
            raise UserError("there are no word vectors: zero words or dimensions")
        if self.counts is not None and len(self.counts) != len(self.words):
            raise UserError(f"{len(self.words):,} words need as many counts, not {len(self.counts):,}")
        if len(self._rows) < len(self.words):
            duplicate = next(word for row, word in enumerate(self.words) if self._rows[word] != row)
            raise UserError(f"the word {duplicate!r} has two vectors; remove one")
        if not np.isfinite(self.vectors).all():
            broken = int(np.argmin(np.isfinite(self.vectors).all(1)))
            raise UserError(
                f"the vector of {self.words[broken]!r} has a value that is not finite; train the vectors again"
            )

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._rows

    @property
    def size(self) -> int:
        """Dimensions of a vector."""
        return int(self.vectors.shape[1])

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> Floats:
        """Unit vectors, (words, size); a zero vector stays zero."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return (self.vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)

    def find_row(self, word: str) -> int | None:
        """Return the row of ``word``, or of ``word`` in lower case; None if neither has a vector."""
        return self._rows.get(word, self._rows.get(word.lower()))

    def row(self, word: str) -> int:
        """Return the row of ``word``, as `find_row`.

        Raises:
            UserError: the word has no vector; the message has similar words.
        """
        row = self.find_row(word)
        if row is None:
            raise UserError(f"the word {word!r} has no vector{self._suggest(word)}")
        return row

    def _suggest(self, word: str) -> str:
        # slow, so only frequent words of similar length
        candidates = [known for known in self.words if abs(len(known) - len(word)) <= 2][:20_000]
        close = difflib.get_close_matches(word, candidates, n=3, cutoff=0.6)
        return f"; similar words: {', '.join(close)}" if close else "; it is too rare in the training text, or missing"

    def similar(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """Find the ``count`` nearest words to ``word``, with cosines.

        Raises:
            UserError: the word has no vector.
        """
        row = self.row(word)
        return self._nearest(self.directions[row], count, without=[row])

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[tuple[str, float]]:
        """Find the words that are to ``c`` as ``b`` is to ``a``: nearest to b - a + c, without the three (3CosAdd).

        Raises:
            UserError: one of the words has no vector.
        """
        rows = [self.row(word) for word in (a, b, c)]
        first, second, third = self.directions[rows]
        direction = second - first + third
        return self._nearest(direction / (np.linalg.norm(direction) or 1), count, without=rows)

    def _nearest(self, direction: Floats, count: int, *, without: Iterable[int]) -> list[tuple[str, float]]:
        if count < 1:
            raise UserError(f"count must be 1 or more, not {count}; 10 is common")
        cosines = self.directions @ direction
        cosines[list(without)] = -np.inf
        count = min(count, int(np.isfinite(cosines).sum()))
        best = np.argpartition(-cosines, count - 1)[:count] if count else np.empty(0, np.int64)
        return [(self.words[row], float(cosines[row])) for row in best[np.argsort(-cosines[best], kind="stable")]]


def frequent_words(vectors: WordVectors, count: int) -> list[str]:
    """Return the first ``count`` words with a letter, the most frequent ones if the vectors are sorted."""
    return list(islice((word for word in vectors.words if any(map(str.isalpha, word))), count))


def project_2d(vectors: WordVectors, words: list[str], *, method: Projection, seed: int) -> NDArray[np.float64]:
    """Project the directions of ``words`` to two dimensions.

    Args:
        vectors: vectors of all words.
        words: three or more; duplicates are removed.
        method: ``pca``, or ``tsne``, which preserves neighbourhoods.
        seed: random seed of the method.

    Returns:
        (words, 2) coordinates.

    Raises:
        UserError: a word has no vector, or there are fewer than three words.
    """
    words = list(dict.fromkeys(words))
    if len(words) < 3:
        raise UserError(f"a map needs at least three words, not {len(words)}: {', '.join(words) or 'none'}")
    directions = vectors.directions[[vectors.row(word) for word in words]].astype(np.float64)
    if method == "pca":
        from sklearn.decomposition import PCA

        if vectors.size < 2:
            raise UserError("vectors of one dimension cannot be projected to two; set a larger method.size")
        points = PCA(2, random_state=seed).fit_transform(directions)
    else:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(words) - 1) / 3)
        points = TSNE(2, perplexity=perplexity, init="random", random_state=seed).fit_transform(directions)
    return np.asarray(points, np.float64)
