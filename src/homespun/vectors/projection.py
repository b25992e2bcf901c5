"""Word vectors laid into a plane, to be drawn."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from homespun.errors import UserError
from homespun.vectors.word_vectors import WordVectors

Projection = Literal["pca", "tsne"]
PROJECTIONS: tuple[Projection, ...] = ("pca", "tsne")


def frequent_words(vectors: WordVectors, count: int) -> list[str]:
    """The first ``count`` words with a letter in them: the most frequent, where vectors are in that order."""
    named = (word for word in vectors.words if any(character.isalpha() for character in word))
    return [word for word, _ in zip(named, range(count), strict=False)]


def project_2d(vectors: WordVectors, words: list[str], *, method: Projection, seed: int) -> NDArray[np.float64]:
    """(words, 2): a place for each of ``words``.

    Args:
        vectors: theirs, taken at length 1.
        words: three at the least, each once.
        method: ``pca``, the two directions in which they differ most, or ``tsne``, which keeps neighbours together.
        seed: of what is drawn.

    Raises:
        UserError: a word has no vector, or there are too few.
    """
    words = list(dict.fromkeys(words))
    if len(words) < 3:
        raise UserError(f"a map needs three words or more, not {len(words)}: {', '.join(words) or 'none'}")
    given = vectors.directions[[vectors.row(word) for word in words]].astype(np.float64)
    if method == "pca":
        from sklearn.decomposition import PCA

        if vectors.size < 2:
            raise UserError("vectors of one value cannot be laid into a plane; train wider ones")
        points = PCA(2, random_state=seed).fit_transform(given)
    else:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(words) - 1) / 3)
        points = TSNE(2, perplexity=perplexity, init="random", random_state=seed).fit_transform(given)
    projected: NDArray[np.float64] = np.asarray(points, np.float64)
    return projected
