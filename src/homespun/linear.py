"""Linear models on TF-IDF n-grams, selected by cross-validation and stored without pickle.

Classes are predicted by one-vs-rest linear support vector machines, whose decision values are used as logits with a
temperature from cross-validation, numbers by ridge regression.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from homespun.config import Config, validate
from homespun.data.labels import Labels
from homespun.data.splits import stratified_order
from homespun.errors import UserError
from homespun.io.json import read_object
from homespun.io.weights import load_weights, save_weights
from homespun.metrics.calibration import find_temperature
from homespun.ngrams import (
    CHARACTERS,
    WORDS,
    Ngrams,
    Texts,
    Tfidf,
    count_ngrams,
    features,
    fit_vectorizers,
    fold_features,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DESCRIPTION, WEIGHTS = "linear.json", "linear.safetensors"
FORMAT = 1
SEARCH_ROWS = 8_000
"""Maximum number of examples in the cross-validation; the final model is fitted on all."""
OTHER_STRENGTHS = (0.1, 0.3, 3.0)
"""Inverse regularisation strengths to try besides 1."""

Floats = NDArray[np.float64]
Targets = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True)
class Candidate:
    """Settings with their cross-validated score: accuracy, micro F1 of multi-label examples, or R² of numbers."""

    ngrams: tuple[Ngrams, ...]
    strength: float
    score: float


PLAIN = Candidate(WORDS, 1.0, float("nan"))
"""Default settings: words and word pairs."""


@dataclass(frozen=True)
class LinearModel:
    """TF-IDF n-grams and a linear function of them.

    Args:
        ngrams: blocks of features.
        vectorizers: fitted, one a block.
        weights: (outputs, features) float32.
        biases: (outputs,) float32.
        labels: classes of the outputs; ``None`` for one number.
        bounds: minimum and maximum predicted number, from the training examples.
        pairs: reads pairs of texts.
        task: metadata, as of `homespun.models.bundle.ModelBundle`.
    """

    ngrams: tuple[Ngrams, ...]
    vectorizers: tuple[Tfidf, ...]
    weights: NDArray[np.float32]
    biases: NDArray[np.float32]
    labels: Labels | None
    bounds: tuple[float, float] | None = None
    pairs: bool = False
    task: Mapping[str, object] = field(default_factory=dict)

    def outputs(self, texts: Texts) -> Floats:
        """Compute (texts, classes) logits, or (texts,) numbers."""
        from scipy.sparse import csr_matrix

        found = features(self.vectorizers, texts)
        weights = self.weights
        if found.nnz < found.shape[1]:  # products with all weights copy them, 20 ms for 6 million
            used, columns = np.unique(found.indices, return_inverse=True)
            found = csr_matrix((found.data, columns, found.indptr), shape=(found.shape[0], len(used)))
            weights = weights[:, used]
        values: Floats = (found @ weights.T).astype(np.float64) + self.biases
        if self.labels is not None:
            return values
        return values[:, 0] if self.bounds is None else np.clip(values[:, 0], *self.bounds)

    def top_ngrams(self, output: int, count: int = 10) -> list[str]:
        """N-grams with the largest weights for an output; empty for pairs."""
        if self.pairs:
            return []
        names = [name for vectorizer in self.vectorizers for name in vectorizer.names]
        order = np.argsort(-self.weights[output])[:count]
        return [names[index].strip() for index in order if self.weights[output, index] > 0]

    @property
    def parameters(self) -> int:
        """Number of weights and biases."""
        return self.weights.size + self.biases.size

    def save(self, folder: Path) -> None:
        """Write ``linear.safetensors`` and ``linear.json`` into an existing folder."""
        tensors: dict[str, NDArray[np.float32] | Floats] = {"weights": self.weights, "biases": self.biases}
        tensors |= {f"idf.{i}": v.idf for i, v in enumerate(self.vectorizers)}
        description = {
            "format": FORMAT,
            "ngrams": [block.model_dump(mode="json") for block in self.ngrams],
            "vocabularies": [v.names for v in self.vectorizers],
            "labels": None if self.labels is None else self.labels.to_dict(),
            "bounds": self.bounds,
            "pairs": self.pairs,
            "task": dict(self.task),
        }
        save_weights(folder / WEIGHTS, tensors, description)

    @classmethod
    def load(cls, folder: Path) -> LinearModel:
        """Read a model that `save` wrote.

        Raises:
            UserError: a file is missing, truncated, altered, or of another version.
        """
        path = folder / DESCRIPTION
        stored = validate(_Stored, read_object(path), source=str(path))
        tensors = load_weights(folder / WEIGHTS, stored.weights)
        labels = None if stored.labels is None else Labels.from_dict(stored.labels)
        outputs = 1 if labels is None else len(labels)
        sizes = [len(vocabulary) for vocabulary in stored.vocabularies]
        columns = sum(sizes) * (2 if stored.pairs else 1) + (3 if stored.pairs else 0)
        shapes: dict[str, tuple[int, ...]] = {"weights": (outputs, columns), "biases": (outputs,)}
        shapes |= {f"idf.{index}": (size,) for index, size in enumerate(sizes)}
        if {name: tensor.shape for name, tensor in tensors.items()} != shapes or len(sizes) != len(stored.ngrams):
            raise UserError(f"{folder / WEIGHTS} does not fit {path}; fit the model again")
        blocks = enumerate(zip(stored.ngrams, stored.vocabularies, strict=True))
        vectorizers = [Tfidf(block, names, tensors[f"idf.{index}"]) for index, (block, names) in blocks]
        return cls(
            stored.ngrams,
            tuple(vectorizers),
            tensors["weights"],
            tensors["biases"],
            labels,
            stored.bounds,
            stored.pairs,
            stored.task,
        )


class _Stored(Config):
    format: Literal[1]
    ngrams: tuple[Ngrams, ...]
    vocabularies: tuple[tuple[str, ...], ...]
    labels: dict[str, object] | None
    bounds: tuple[float, float] | None
    pairs: bool
    task: dict[str, object]
    weights: str


@dataclass(frozen=True)
class LinearFit:
    """Fitted model, temperature from cross-validation, and candidates, the best first."""

    model: LinearModel
    temperature: float
    candidates: tuple[Candidate, ...]


def is_linear(folder: Path) -> bool:
    """True if a folder holds a linear model."""
    return (folder / DESCRIPTION).is_file()


# time of the search and of the fit / time of the first features, and of the choice of features: 10 and 2.7 on 1,000
# sentences
_FIRST_STEP, _FEATURES = 10.0, 2.7


def fit_linear(
    texts: Texts,
    targets: Targets,
    labels: Labels | None,
    *,
    settings: Candidate | None = None,
    feature_sets: Sequence[tuple[Ngrams, ...]] = (WORDS, CHARACTERS),
    search_rows: int = SEARCH_ROWS,
    seconds: float = math.inf,
    seed: int = 0,
) -> LinearFit:
    """Choose features and regularisation by cross-validation, and fit on all texts.

    Args:
        texts: training texts or pairs.
        targets: (texts,) classes, (texts, classes) zeros and ones, or (texts,) numbers without ``labels``.
        labels: the classes.
        settings: fit these, without cross-validation.
        feature_sets: blocks of features to choose from.
        search_rows: maximum number of examples in the cross-validation.
        seconds: time limit; on a slow machine the rest of the search is left out.
        seed: random seed of the folds.

    Raises:
        UserError: the texts have no words.
    """
    if settings is not None:
        model = _fit(settings.ngrams, texts, targets, labels, settings.strength)
        return LinearFit(model, 1.0, (settings,))
    rows = np.arange(len(texts))
    if len(texts) > search_rows:
        order = targets if labels is not None else np.zeros((len(texts), 0), dtype=np.int64)
        rows = np.sort(stratified_order(order.astype(np.int64), seed)[:search_rows])
    searched, searched_targets = texts.take(rows), targets[rows]
    folds, started = list(_folds(searched_targets, labels, seed)), time.monotonic()
    tried: list[_Tried] = []
    if folds:
        counted = cache(lambda block: count_ngrams(block, searched))  # blocks are in several feature sets
        search = partial(_cross_validate, counted, targets=searched_targets, labels=labels, folds=folds)
        for ngrams in feature_sets:
            if not tried or _FIRST_STEP * (time.monotonic() - started) <= seconds:
                tried += search(ngrams, (1.0,))
        # then the regularisation of the best features
        best = max(tried, key=lambda one: one.candidate.score)
        if _FEATURES * (time.monotonic() - started) <= seconds:
            tried += search(best.candidate.ngrams, OTHER_STRENGTHS)
        tried.sort(key=lambda one: -one.candidate.score)
    temperature = 1.0
    if tried and labels is not None:
        temperature = find_temperature(tried[0].outputs, searched_targets[tried[0].rows].astype(np.int64))
    candidates = tuple(one.candidate for one in tried) or (PLAIN,)
    model = _fit(candidates[0].ngrams, texts, targets, labels, candidates[0].strength)
    return LinearFit(model, temperature, candidates)


def _folds(targets: Targets, labels: Labels | None, seed: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Five folds of few examples, three of many; fewer if only one class has as many examples, or none.

    The examples of a class with fewer examples than folds are in different folds.
    """
    from sklearn.model_selection import KFold, StratifiedKFold

    count = 5 if len(targets) <= 2_000 else 3
    if labels is None or labels.multi_label:
        if len(targets) >= 2 * count:
            yield from KFold(count, shuffle=True, random_state=seed).split(targets)
        return
    targets = targets.astype(np.int64)
    counts = np.bincount(targets, minlength=len(labels))
    count = min(count, int(np.sort(counts)[-2]))
    if count >= 2:
        by_class = np.argsort(targets, kind="stable")
        is_rare = counts[targets[by_class]] < count
        rare, rows = by_class[is_rare], np.sort(by_class[~is_rare])
        splitter = StratifiedKFold(count, shuffle=True, random_state=seed)
        for fold, (_, tested) in enumerate(splitter.split(rows, targets[rows])):
            test = np.sort(np.concatenate([rows[tested], rare[fold::count]]))
            yield np.setdiff1d(by_class, test), test


@dataclass(frozen=True)
class _Tried:
    """A candidate with its (rows, outputs) held-out outputs."""

    candidate: Candidate
    outputs: Floats
    rows: NDArray[np.int64]


def _cross_validate(
    counted: Callable[[Ngrams], csr_matrix],
    ngrams: tuple[Ngrams, ...],
    strengths: Sequence[float],
    targets: Targets,
    labels: Labels | None,
    folds: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> Iterator[_Tried]:
    """Yield the candidate of each strength."""
    outputs: dict[float, list[Floats]] = {strength: [] for strength in strengths}
    counts = [(block, counted(block)) for block in ngrams]
    for train, test in folds:
        known, unseen = fold_features(counts, train, test, len(targets))
        for strength in strengths:
            weights, biases = _fit_outputs(known, targets[train], labels, strength)
            outputs[strength].append(unseen @ weights.T + biases)
    rows = np.concatenate([test for _, test in folds])
    for strength, held_out in outputs.items():
        values = np.concatenate(held_out)
        yield _Tried(Candidate(ngrams, strength, _score(values, targets[rows], labels)), values, rows)


def _fit(
    ngrams: tuple[Ngrams, ...], texts: Texts, targets: Targets, labels: Labels | None, strength: float
) -> LinearModel:
    vectorizers = fit_vectorizers(ngrams, texts)
    weights, biases = _fit_outputs(features(vectorizers, texts), targets, labels, strength)
    bounds = None if labels is not None else (float(targets.min()), float(targets.max()))
    return LinearModel(
        ngrams,
        vectorizers,
        weights.astype(np.float32),
        biases.astype(np.float32),
        labels,
        bounds=bounds,
        pairs=texts.second is not None,
    )


def _fit_outputs(known: csr_matrix, targets: Targets, labels: Labels | None, strength: float) -> tuple[Floats, Floats]:
    """Fit (outputs, features) weights and (outputs,) biases.

    A class that every text has, or none, is predicted as such.
    """
    from sklearn.linear_model import Ridge
    from sklearn.svm import LinearSVC

    if labels is None:
        ridge = Ridge(alpha=1.0 / strength, random_state=0).fit(known, targets)
        return ridge.coef_[None], np.array([ridge.intercept_])
    weights, biases = np.zeros((len(labels), known.shape[1])), np.zeros(len(labels))
    for index, column in enumerate(labels.columns(targets.astype(np.int64))):
        if column.min() == column.max():
            biases[index] = 1.0 if column[0] else -1.0
            continue
        if index == 1 and len(labels) == 2 and not labels.multi_label and weights[0].any():
            weights[1], biases[1] = -weights[0], -biases[0]  # two classes share one plane
            continue
        machine = LinearSVC(C=strength, random_state=0).fit(known, column)
        weights[index], biases[index] = machine.coef_[0], machine.intercept_[0]
    return weights, biases


def _score(outputs: Floats, targets: Targets, labels: Labels | None) -> float:
    from sklearn.metrics import f1_score, r2_score

    if labels is None:
        return float(r2_score(targets, outputs[:, 0]))
    if labels.multi_label:
        return float(f1_score(targets, outputs > 0, average="micro", zero_division=0.0))
    return float((outputs.argmax(axis=1) == targets).mean())
