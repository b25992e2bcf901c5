"""Projections of word vectors to two dimensions, for plots."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from homespun.errors import UserError
from homespun.vectors.word_vectors import WordVectors

Projection = Literal["pca", "tsne"]
PROJECTIONS: tuple[Projection, ...] = ("pca", "tsne")


def frequent_words(vectors: WordVectors, count: int) -> list[str]:
    """First ``count`` words with a letter: the most frequent if the vectors are in that order."""
    named = (word for word in vectors.words if any(character.isalpha() for character in word))
    return [word for word, _ in zip(named, range(count), strict=False)]


def project_2d(vectors: WordVectors, words: list[str], *, method: Projection, seed: int) -> NDArray[np.float64]:
    """Project the unit vectors of ``words`` to two dimensions.

    Args:
        vectors: of the words.
        words: three or more; duplicates are removed.
        method: ``pca``, or ``tsne``, which preserves neighbourhoods.
        seed: of the method.

    Returns:
        (words, 2) coordinates.

    Raises:
        UserError: a word has no vector, or there are too few words.
    """
    words = list(dict.fromkeys(words))
    if len(words) < 3:
        raise UserError(f"a map needs three words or more, not {len(words)}: {', '.join(words) or 'none'}")
    given = vectors.directions[[vectors.row(word) for word in words]].astype(np.float64)
    if method == "pca":
        from sklearn.decomposition import PCA

        if vectors.size < 2:
            raise UserError("vectors of one dimension cannot be projected to two; train wider ones")
        points = PCA(2, random_state=seed).fit_transform(given)
    else:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(words) - 1) / 3)
        points = TSNE(2, perplexity=perplexity, init="random", random_state=seed).fit_transform(given)
    projected: NDArray[np.float64] = np.asarray(points, np.float64)
    return projected
