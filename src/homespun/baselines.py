"""Baselines on texts and on pairs of texts, which every model must beat.

For classes, the majority class, and TF-IDF with a linear support vector machine; for numbers, TF-IDF with a ridge
regression. Of pairs, TF-IDF has features of both texts and of their overlap. Baselines of a single task are in its file
in `homespun.tasks`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from homespun.data.labels import LabelNames, Labels
from homespun.metrics.classification import Metrics, classification_metrics, classify
from homespun.ngrams import WORDS, Texts, features, fit_vectorizers

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Baseline:
    """Metrics on the test texts, and (texts,) or (texts, classes) predictions."""

    metrics: Metrics
    predicted: NDArray[np.int64]


def baseline_report(
    train_texts: Sequence[str],
    train_labels: LabelNames,
    test_texts: Sequence[str],
    test_labels: LabelNames,
    labels: Labels,
) -> dict[str, Metrics]:
    """``{"majority": ..., "tfidf": ...}``: metrics of `homespun.metrics.classification`, ``seconds`` (fit and
    prediction) and ``parameters``.

    Raises:
        UserError: an unknown label, or training texts without a word.
    """
    train, test = labels.encode(train_labels), labels.encode(test_labels)
    return {
        "majority": majority(train, test, labels).metrics,
        "tfidf": tfidf(train_texts, train, test_texts, test, labels).metrics,
    }


def majority(train: NDArray[np.int64], test: NDArray[np.int64], labels: Labels) -> Baseline:
    """The most frequent class, with class shares as probabilities; multi-label: the labels of over half of the
    texts."""
    start = time.perf_counter()
    shares = train.mean(axis=0) if labels.multi_label else np.bincount(train, minlength=len(labels)) / len(train)
    probabilities = np.tile(shares, (len(test), 1))
    predicted = classify(probabilities, labels)
    seconds = time.perf_counter() - start
    metrics = classification_metrics(labels, test, predicted, probabilities=probabilities)
    return Baseline({**metrics, "seconds": seconds, "parameters": len(labels)}, predicted)


def tfidf(
    train_texts: Sequence[str],
    train: NDArray[np.int64],
    test_texts: Sequence[str],
    test: NDArray[np.int64],
    labels: Labels,
    *,
    seconds: tuple[Sequence[str], Sequence[str]] | None = None,
) -> Baseline:
    """TF-IDF of words and word pairs with sublinear term frequency, and a linear support vector machine a class.

    Areas under curves are of the distances from the plane; there is no log loss. A label that all training texts have,
    or none, is predicted as such.

    Args:
        train, test: result of `Labels.encode`.
        seconds: second texts of training and test pairs: see `text_features`.

    Raises:
        UserError: the training texts hold no word.
    """
    start = time.perf_counter()
    features, unseen = text_features(train_texts, test_texts, seconds=seconds)
    scores = np.stack([_distances(features, column, unseen) for column in labels.columns(train)], axis=1)
    predicted = (scores > 0).astype(np.int64) if labels.multi_label else scores.argmax(axis=1)
    taken = time.perf_counter() - start
    metrics = classification_metrics(labels, test, predicted, scores=scores)
    parameters = (features.shape[1] + 1) * len(labels)
    return Baseline({**metrics, "seconds": taken, "parameters": parameters}, predicted)


def text_features(
    train: Sequence[str], test: Sequence[str], *, seconds: tuple[Sequence[str], Sequence[str]] | None = None
) -> tuple[csr_matrix, csr_matrix]:
    """Sparse (texts, features) of training and test: TF-IDF of words and word pairs, sublinear.

    For pairs with second texts ``seconds``: the TF-IDF product and absolute difference, the cosine, the share of common
    words, and the ratio of lengths.

    Raises:
        UserError: the training texts hold no word.
    """
    others = (None, None) if seconds is None else seconds
    known, unseen = (Texts(texts, second) for texts, second in zip((train, test), others, strict=True))
    vectorizers = fit_vectorizers(WORDS, known)
    return features(vectorizers, known), features(vectorizers, unseen)


def tfidf_ridge(
    train_texts: Sequence[str],
    train: NDArray[np.float64],
    test_texts: Sequence[str],
    *,
    seconds: tuple[Sequence[str], Sequence[str]] | None = None,
) -> NDArray[np.float64]:
    """Predict (test,) numbers by a ridge regression on `text_features`, within the range of the training's.

    Raises:
        UserError: the training texts hold no word.
    """
    from sklearn.linear_model import Ridge

    features, unseen = text_features(train_texts, test_texts, seconds=seconds)
    predicted: NDArray[np.float64] = Ridge(random_state=0).fit(features, train).predict(unseen)
    return np.clip(predicted, train.min(), train.max())


def _distances(features: csr_matrix, column: NDArray[np.int64], unseen: csr_matrix) -> NDArray[np.float64]:
    """Return (texts,) distances of the ``unseen`` texts from the plane of a class, trained on zeros and ones."""
    from sklearn.svm import LinearSVC

    if column.min() == column.max():
        return np.full(unseen.shape[0], 1.0 if column[0] else -1.0)
    return LinearSVC(random_state=0).fit(features, column).decision_function(unseen)
