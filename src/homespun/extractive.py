"""Extractive summaries without torch: a linear model scores the sentences of a text, and the best form its summary.

After Kupiec et al. (1995), with ridge regression instead of a naive Bayes classifier. The features of a sentence are
the TF-IDF of its words and word pairs, its position, its length, and how many sentences of its text share its words.
The model predicts the overlap with the reference summary, the mean of the F1 of ROUGE-1 and ROUGE-2 (Lin 2004).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config, validate
from homespun.errors import UserError
from homespun.io.json import read_object
from homespun.io.weights import load_weights, save_weights
from homespun.ngrams import Ngrams, Texts, Tfidf, fit_vectorizers
from homespun.text.clean import split_sentences

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DESCRIPTION, WEIGHTS = "extractive.json", "extractive.safetensors"
FORMAT = 1
_NGRAMS = Ngrams()
_RECURRING = Ngrams(min_texts=3)
_PENALTY = 5.0  # of ridge regression
_FIRST, _LAST = 6, 3  # positions from the start and from the end of a text that have a weight
_LONGEST = 60  # words; longer sentences count as this long
_FACTS = _FIRST + _LAST + 6  # features of a sentence besides its words
_WORD = re.compile(r"\w+")

Floats = NDArray[np.float64]
Sentences = Sequence[str]


@dataclass(frozen=True)
class SentenceRanker:
    """Linear scores of sentences.

    Args:
        words: TF-IDF of words and word pairs.
        weights: (features,) float32, first of the words.
        bias: score of a sentence without features.
        count: sentences of a summary.
        task: metadata, as of `homespun.models.bundle.ModelBundle`.
    """

    words: Tfidf
    weights: NDArray[np.float32]
    bias: float
    count: int
    task: Mapping[str, object] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return self.weights.size + 1

    def rank(self, texts: Sequence[Sentences]) -> list[list[int]]:
        """Return the indices of the sentences of each text, the best first."""
        if not any(texts):
            return [[] for _ in texts]
        scores = _features(self.words, texts) @ self.weights + self.bias
        ends = np.cumsum([len(sentences) for sentences in texts])[:-1]
        return [np.argsort(-part, kind="stable").tolist() for part in np.split(scores, ends)]

    def summarize(self, sources: Sequence[str]) -> list[str]:
        """Return the ``count`` best sentences of each source, in their order."""
        texts = [split_sentences(source) for source in sources]
        return [join(sentences, best, self.count) for sentences, best in zip(texts, self.rank(texts), strict=True)]

    def save(self, folder: Path) -> None:
        """Write ``extractive.safetensors`` and ``extractive.json`` into an existing folder."""
        description = {
            "format": FORMAT,
            "vocabulary": self.words.names,
            "bias": self.bias,
            "count": self.count,
            "task": dict(self.task),
        }
        save_weights(folder / WEIGHTS, {"weights": self.weights, "idf": self.words.idf}, description)

    @classmethod
    def load(cls, folder: Path) -> SentenceRanker:
        """Read a model that `save` wrote.

        Raises:
            UserError: a file is missing, truncated, altered, or of another version.
        """
        path = folder / DESCRIPTION
        stored = validate(_Stored, read_object(path), source=str(path))
        tensors = load_weights(folder / WEIGHTS, stored.weights)
        size = len(stored.vocabulary)
        if {name: array.shape for name, array in tensors.items()} != {"weights": (size + _FACTS,), "idf": (size,)}:
            raise UserError(f"{folder / WEIGHTS} does not fit {path}; fit the model again")
        words = Tfidf(_NGRAMS, stored.vocabulary, tensors["idf"])
        return cls(words, tensors["weights"], stored.bias, stored.count, stored.task)


class _Stored(Config):
    format: Literal[1]
    vocabulary: tuple[str, ...]
    bias: float
    count: Annotated[int, Field(ge=1)]
    task: dict[str, object]
    weights: str


def is_extractive(folder: Path) -> bool:
    """True if a folder holds a `SentenceRanker`."""
    return (folder / DESCRIPTION).is_file()


def fit_ranker(
    sources: Sequence[str], references: Sequence[Sequence[str]], *, count: int = 1, max_words: int | None = None
) -> SentenceRanker:
    """Fit a ranker.

    Args:
        sources: training texts.
        references: summaries of each text, of which the most similar one counts.
        count: sentences of a summary.
        max_words: maximum words of the sources; of longer ones, evenly spaced texts are used.

    Raises:
        UserError: the texts have no words.
    """
    from sklearn.linear_model import Ridge

    step = 1.0 if max_words is None else max(1.0, count_words(sources) / max_words)
    chosen = np.arange(0, len(sources), step).astype(int)
    chosen = chosen[chosen < len(sources)]  # the last number may be rounded up
    texts = [split_sentences(sources[index]) for index in chosen]
    sentences = [sentence for text in texts for sentence in text]
    try:
        (words,) = fit_vectorizers((_RECURRING,), Texts(sentences))
    except UserError:  # no word recurs
        (words,) = fit_vectorizers((_NGRAMS,), Texts(sentences))
    targets = [
        overlap(sentence, references[index]) for index, text in zip(chosen, texts, strict=True) for sentence in text
    ]
    ridge = Ridge(alpha=_PENALTY, random_state=0).fit(_features(words, texts), np.array(targets))
    return SentenceRanker(words, ridge.coef_.astype(np.float32), float(ridge.intercept_), count)


def count_words(texts: Sequence[str]) -> int:
    """Count the words of texts."""
    return sum(len(text.split()) for text in texts)


def with_count(ranker: SentenceRanker, count: int) -> SentenceRanker:
    """Return the ranker with ``count`` sentences a summary."""
    return replace(ranker, count=count)


def join(sentences: Sentences, ranked: Sequence[int], count: int) -> str:
    """Join the ``count`` first sentences of a ranking, in the order of the text."""
    return " ".join(sentences[index] for index in sorted(ranked[:count]))


def overlap(sentence: str, references: Sequence[str]) -> float:
    """Mean F1 of the words and of the word pairs that a sentence shares with the most similar reference."""
    mine = _counts(sentence)
    return max((sum(map(_f1, mine, _counts(reference))) / 2 for reference in references), default=0.0)


def _counts(text: str) -> tuple[Counter[object], Counter[object]]:
    words = _WORD.findall(text.lower())
    return Counter(words), Counter(pairwise(words))


def _f1(first: Counter[object], second: Counter[object]) -> float:
    shared = (first & second).total()
    return 2 * shared / (first.total() + second.total()) if shared else 0.0


def _features(words: Tfidf, texts: Sequence[Sentences]) -> csr_matrix:
    """Compute sparse (sentences, features) of all sentences, one text after another."""
    from scipy.sparse import csr_matrix, hstack

    facts = np.concatenate([_facts(sentences) for sentences in texts if sentences])
    table = words.transform([sentence for sentences in texts for sentence in sentences])
    return hstack([table, csr_matrix(facts)], format="csr")


def _facts(sentences: Sentences) -> Floats:
    """Compute (sentences, `_FACTS`) positions, lengths, and shares of the sentences that hold the words."""
    count = len(sentences)
    split = [_WORD.findall(sentence.lower()) for sentence in sentences]
    holding = Counter(word for words in split for word in set(words))
    facts = np.zeros((count, _FACTS))
    for index, (sentence, words) in enumerate(zip(sentences, split, strict=True)):
        facts[index, min(index, _FIRST - 1)] = 1
        facts[index, _FIRST + min(count - 1 - index, _LAST - 1)] = 1
        length = min(len(words), _LONGEST) / _LONGEST
        facts[index, _FIRST + _LAST :] = (
            index / count,
            sum(holding[word] for word in words) / (count * max(1, len(words))),
            length,
            length * length,
            sum(map(str.isdigit, sentence)) / max(1, len(sentence)),
            sentence.endswith("?"),
        )
    return facts
