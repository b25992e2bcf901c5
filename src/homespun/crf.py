"""Linear-chain conditional random field on hashed features of words, trained by AdaGrad and stored without pickle.

The model is that of Lafferty et al. (2001): the score of the tags of a sentence is the sum of the weights of the
features of each word for its tag, and of a weight for each pair of consecutive tags. Training minimises its negative
log-likelihood by the forward-backward algorithm, prediction is by the Viterbi algorithm.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from homespun.config import Config, validate
from homespun.data.labels import Labels
from homespun.errors import UserError
from homespun.io.json import read_object
from homespun.io.weights import Arrays, load_weights, save_weights
from homespun.metrics.sequence_labels import are_entities

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DESCRIPTION, WEIGHTS = "crf.json", "crf.safetensors"
FORMAT = 1
_BATCH = 32  # sentences of a step
_MOST_PADDED = 100_000  # words of a batch, with padding; a longer sentence is a batch
_LEARNING_RATE = 0.2
_FIRST_SQUARE = 1e-3  # sum of squared gradients before the first step
_MIN_COUNT = 2  # words that have a feature, at least
_MOST_WEIGHTS = 2**25  # weights of features and tags; rarer features are left out
_BARRED = -100.0  # weight of a pair of tags that never follow each other; finite, so that all sentences have a tagging

Words = Sequence[str]
Floats = NDArray[np.float64]
Keys = NDArray[np.uint64]
_LOWER, _SHAPE, _SUFFIX_2, _SUFFIX_3 = 1, 3, 9, 10  # numbers of the features of a word
_NEIGHBOURS = [((place, number),) for place in (-2, -1, 1, 2) for number in (_LOWER, _SHAPE, _SUFFIX_2, _SUFFIX_3)]
_TOGETHER = [
    *(((place, _LOWER), (place + 1, _LOWER)) for place in (-2, -1, 0, 1)),
    *(((place, _SUFFIX_3), (place + 1, _SUFFIX_3)) for place in (-1, 0)),
    *(((place, _SUFFIX_3), (place + 1, _SUFFIX_3), (place + 2, _SUFFIX_3)) for place in (-2, -1, 0)),
    ((-1, _LOWER), (1, _LOWER)),
    ((-1, _SUFFIX_3), (0, _LOWER)),
    ((0, _LOWER), (1, _SUFFIX_3)),
    ((-1, _LOWER), (0, _LOWER), (1, _LOWER)),
]
_TEMPLATES = [*(((0, number),) for number in range(12)), *_NEIGHBOURS, *_TOGETHER]
"""Features of a word in its sentence: (place, number) of features of words, one or several together."""


def _word_features(word: str) -> list[str]:
    """Word, lower case, shape, shape without repetitions, prefixes and suffixes."""
    lower = word.lower()
    shape = re.sub(r"\d", "0", re.sub(r"[^\W\d_]", lambda letter: "A" if letter[0].isupper() else "a", word))
    sizes = range(1, 5)
    found = [
        word,
        lower,
        shape,
        re.sub(r"(.)\1+", r"\1", shape),
        *(lower[:n] for n in sizes),
        *(lower[-n:] for n in sizes),
    ]
    return [f"{number} {text}" for number, text in enumerate(found)]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def _mix(keys: Keys, salt: int) -> Keys:
    """Scramble 64-bit integers (the finaliser of SplitMix64, Steele et al. 2014), differently for each salt."""
    keys = keys + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys ^ (keys >> np.uint64(31))


def feature_keys(sentences: Sequence[Words]) -> Keys:
    """Compute (words, templates) hashes of the features of all words, one sentence after another."""
    numbers: dict[str | None, int] = {None: 0}  # numbers of distinct words; None is the border of a sentence
    padded = [0, 0]
    for words in sentences:
        padded += [*(numbers.setdefault(word, len(numbers)) for word in words), 0, 0]
    table = [
        [_hash(text) for text in ([f"{n} border" for n in range(12)] if word is None else _word_features(word))]
        for word in numbers
    ]
    by_word: Keys = np.array(table, dtype=np.uint64)
    row = np.array(padded, dtype=np.int64)
    places = np.flatnonzero(row)
    found: Keys = np.empty((len(places), len(_TEMPLATES)), dtype=np.uint64)
    for column, template in enumerate(_TEMPLATES):
        keys: Keys = np.zeros(len(places), dtype=np.uint64)
        for place, number in template:
            keys = _mix(keys ^ by_word[row[places + place], number], column + 1)
        found[:, column] = keys
    return found


def _matrix(keys: Keys, known: Keys) -> csr_matrix:
    """Return sparse (words, features) zeros and ones of the features in ``known``, which is sorted."""
    from scipy.sparse import csr_matrix

    columns = np.searchsorted(known, keys).clip(max=len(known) - 1)
    found = known[columns] == keys
    ends = np.concatenate([[0], np.cumsum(found.sum(axis=1))])
    ones = np.ones(ends[-1], dtype=np.float32)
    return csr_matrix((ones, columns[found].astype(np.int32), ends), shape=(len(keys), len(known)))


@dataclass(frozen=True)
class Crf:
    """Weights of a conditional random field.

    Args:
        keys: (features,) sorted hashes of the features.
        weights: (features, tags) float32.
        transitions: (tags + 1, tags + 1) float32 weights of a tag and the next one; the last row is of the beginning of
            a sentence, the last column of its end.
        labels: the tags.
        task: metadata, as of `homespun.models.bundle.ModelBundle`.
    """

    keys: Keys
    weights: NDArray[np.float32]
    transitions: NDArray[np.float32]
    labels: Labels
    task: Mapping[str, object] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.weights.size + self.transitions.size

    def predict(self, sentences: Sequence[Words]) -> list[tuple[list[str], Floats]]:
        """Compute the most probable tags of each sentence, and the (words,) marginal probabilities of these tags."""
        found: list[tuple[list[str], Floats]] = [([], np.zeros(0))] * len(sentences)
        lengths = np.array([len(words) for words in sentences], dtype=np.int64)
        for batch in _batches(np.argsort(-lengths, kind="stable"), lengths):
            matrix = _matrix(feature_keys([sentences[number] for number in batch]), self.keys)
            chain = _Chain(matrix @ self.weights, lengths[batch], self.transitions.astype(np.float64))
            best, probabilities = chain.best(), chain.marginals()[0]
            shown = probabilities[np.arange(len(best)), best]
            starts = np.cumsum(lengths[batch])[:-1]
            for number, tags, values in zip(batch, np.split(best, starts), np.split(shown, starts), strict=True):
                found[number] = [self.labels.names[tag] for tag in tags], values
        return found

    def save(self, folder: Path) -> None:
        """Write ``crf.safetensors`` and ``crf.json`` into an existing folder."""
        tensors: Arrays = {"keys": self.keys, "weights": self.weights, "transitions": self.transitions}
        description = {"format": FORMAT, "labels": self.labels.to_dict(), "task": dict(self.task)}
        save_weights(folder / WEIGHTS, tensors, description)

    @classmethod
    def load(cls, folder: Path) -> Crf:
        """Read a model that `save` wrote.

        Raises:
            UserError: a file is missing, truncated, altered, or of another version.
        """
        path = folder / DESCRIPTION
        stored = validate(_Stored, read_object(path), source=str(path))
        tensors = load_weights(folder / WEIGHTS, stored.weights)
        labels = Labels.from_dict(stored.labels)
        features, tags = len(tensors["keys"]) if "keys" in tensors else 0, len(labels)
        shapes = {"keys": (features,), "weights": (features, tags), "transitions": (tags + 1, tags + 1)}
        if not features or {name: tensor.shape for name, tensor in tensors.items()} != shapes:
            raise UserError(f"{folder / WEIGHTS} does not fit {path}; fit the model again")
        return cls(tensors["keys"], tensors["weights"], tensors["transitions"], labels, stored.task)


class _Stored(Config):
    format: Literal[1]
    labels: dict[str, object]
    task: dict[str, object]
    weights: str


def is_crf(folder: Path) -> bool:
    """True if a folder holds a conditional random field."""
    return (folder / DESCRIPTION).is_file()


def fit_crf(
    sentences: Sequence[Words], tags: Sequence[Sequence[str]], labels: Labels, *, epochs: int, seed: int = 0
) -> Iterator[Crf]:
    """Train by AdaGrad (Duchi et al. 2011) without other regularisation, and yield a copy after each epoch.

    Pairs of IOB or IOBES marks that no training sentence has are barred, so that predicted tags are as well formed as
    the training tags.

    Args:
        sentences: words of the training sentences; empty ones are skipped.
        tags: tags of their words.
        labels: the tags.
        epochs: maximum number.
        seed: random seed of the order of the sentences.
    """
    keys = feature_keys(sentences)
    known = _frequent(keys, _MOST_WEIGHTS // len(labels))
    matrix = _matrix(keys, known)
    numbers = {name: number for number, name in enumerate(labels.names)}
    targets = np.array([numbers[tag] for sentence in tags for tag in sentence], dtype=np.int64)
    lengths = np.array([len(sentence) for sentence in tags], dtype=np.int64)
    ends, random = np.cumsum(lengths), np.random.default_rng(seed)
    weights = np.zeros((len(known), len(labels)), dtype=np.float32)
    transitions = np.where(_barred(tags, labels), _BARRED, 0.0)
    squares, transition_squares = np.full_like(weights, _FIRST_SQUARE), np.full_like(transitions, _FIRST_SQUARE)
    for _ in range(epochs):
        order = np.argsort(-lengths - random.uniform(0, 4, len(lengths)))  # sentences of a batch have similar lengths
        batches = list(_batches(order, lengths))
        for number in random.permutation(len(batches)):
            batch = batches[number]
            rows = np.concatenate([np.arange(ends[one] - lengths[one], ends[one]) for one in batch])
            part = matrix[rows]
            columns, part.indices = np.unique(part.indices, return_inverse=True)
            part.resize(len(rows), len(columns))
            chain = _Chain(part @ weights[columns], lengths[batch], transitions)
            gradient, transition_gradient = chain.gradient(targets[rows])
            gradient = (part.T @ gradient.astype(np.float32)) / np.float32(len(batch))
            squares[columns] += gradient**2
            weights[columns] -= _LEARNING_RATE * gradient / np.sqrt(squares[columns])
            transition_squares += (transition_gradient / len(batch)) ** 2
            transitions -= _LEARNING_RATE * transition_gradient / len(batch) / np.sqrt(transition_squares)
        yield Crf(known, weights.copy(), transitions.astype(np.float32), labels)


def _frequent(keys: Keys, most: int) -> Keys:
    """Return the sorted features of at least `_MIN_COUNT` words; at most ``most``, the frequent ones."""
    found, counts = np.unique(keys, return_counts=True)
    least = max(_MIN_COUNT, int(np.partition(counts, -most)[-most]) + 1 if len(counts) > most else 0)
    return found[counts >= least]


def _barred(tags: Sequence[Sequence[str]], labels: Labels) -> NDArray[np.bool_]:
    """Find the pairs, as in `Crf.transitions`, whose marks follow each other in no sentence, for equal types or not."""
    names = [*labels.names, ""]

    def marks(first: str, second: str) -> tuple[str, str, bool]:
        return first[:1], second[:1], first[2:] == second[2:]

    if not are_entities(labels.names):
        return np.zeros((len(names), len(names)), dtype=np.bool_)
    seen = {marks(*pair) for sentence in tags for pair in pairwise(["", *sentence, ""])}
    return np.array([[marks(first, second) not in seen for second in names] for first in names])


def _batches(order: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Divide the sentences with words, in an order of falling lengths; each batch is sorted by length."""
    order = order[lengths[order] > 0]
    start = 0
    while start < len(order):
        count = max(1, min(_BATCH, _MOST_PADDED // int(lengths[order[start]])))
        batch = order[start : start + count]
        yield batch[np.argsort(-lengths[batch], kind="stable")]
        start += count


class _Chain:
    """Sentences with the scores of their tags.

    Args:
        scores: (words, tags) scores by the features, one sentence after another.
        lengths: (sentences,) words, falling.
        transitions: as of `Crf`.
    """

    def __init__(self, scores: NDArray[np.float32], lengths: NDArray[np.int64], transitions: Floats) -> None:
        self.lengths, self.transitions = lengths, transitions[:-1, :-1]
        ends = np.cumsum(lengths)
        self.sentence = np.repeat(np.arange(len(lengths)), lengths)
        self.place = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        self.scores = np.zeros((lengths[0], len(lengths), scores.shape[1]))  # (places, sentences, tags)
        self.scores[self.place, self.sentence] = scores
        self.scores[0] += transitions[-1, :-1]
        self.scores[lengths - 1, np.arange(len(lengths))] += transitions[:-1, -1]
        self.counts = np.searchsorted(-lengths, -np.arange(lengths[0]), side="left")  # sentences with a place

    def marginals(self) -> tuple[Floats, Floats]:
        """Compute (words, tags) probabilities of tags, and (tags, tags) sums of the probabilities of pairs."""
        steps = np.exp(self.transitions)
        factors = np.exp(self.scores - self.scores.max(axis=2, keepdims=True))
        before, after = np.zeros_like(factors), np.zeros_like(factors)
        sums = np.ones(factors.shape[:2])
        for place, count in enumerate(self.counts):  # each place is scaled to the sum 1 (Rabiner 1989, section V A)
            reached = before[place - 1, :count] @ steps if place else 1.0
            before[place, :count] = reached * factors[place, :count]
            sums[place, :count] = before[place, :count].sum(axis=1)
            before[place] /= sums[place, :, None]
        after[self.lengths - 1, np.arange(len(self.lengths))] = 1.0
        pairs = np.zeros_like(steps)
        for place in range(len(self.counts) - 1, 0, -1):
            count = self.counts[place]
            later = after[place, :count] * factors[place, :count] / sums[place, :count, None]
            after[place - 1, :count] = later @ steps.T
            pairs += before[place - 1, :count].T @ later
        return (before * after)[self.place, self.sentence], pairs * steps

    def gradient(self, targets: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Compute the gradient of the negative log-likelihood of (words,) tags: of the scores, and of transitions.

        Beginnings and ends have none: the features of the neighbours show them.
        """
        gradient, pairs = self.marginals()
        gradient[np.arange(len(targets)), targets] -= 1.0
        inside = self.sentence[1:] == self.sentence[:-1]
        np.subtract.at(pairs, (targets[:-1][inside], targets[1:][inside]), 1.0)
        return gradient, np.pad(pairs, (0, 1))

    def best(self) -> NDArray[np.int64]:
        """Find the (words,) tags of the greatest score."""
        total, back = self.scores[0].copy(), np.zeros(self.scores.shape, dtype=np.int64)
        for place in range(1, len(self.counts)):
            count = self.counts[place]
            reached = total[:count, :, None] + self.transitions  # (sentences, tags, next tags)
            back[place, :count] = reached.argmax(axis=1)
            total[:count] = reached.max(axis=1) + self.scores[place, :count]
        sentences = np.arange(len(self.lengths))
        found = np.zeros(self.scores.shape[:2], dtype=np.int64)
        found[self.lengths - 1, sentences] = total.argmax(axis=1)
        for place in range(len(self.counts) - 1, 0, -1):
            count = self.counts[place]
            found[place - 1, :count] = back[place, sentences[:count], found[place, :count]]
        return found[self.place, self.sentence]
