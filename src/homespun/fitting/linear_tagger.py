"""Linear tagger of a fit: plan for a time limit, training, and selection of the number of epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from homespun.crf import fit_crf
from homespun.data.token_labels import TaggedWords
from homespun.metrics.classification import Metrics
from homespun.tasks.taggers import LinearTagger, TaggedData, collect_tags, frequent_tags, measure_tags, tag_metrics

_EPOCHS, _LEAST_EPOCHS, _PATIENCE = 8, 3, 2
_MOST_WORDS = 1_000_000  # the features of a million words take 330 MB
# seconds on one core: features of a word; a word and a tag of a word in an epoch
_FEATURES_COST, _WORD_COST, _TAG_COST = 15e-6, 6e-6, 0.4e-6


@dataclass(frozen=True)
class TaggerPlan:
    """Share of the training sentences, maximum epochs, and expected and allowed seconds with the final training."""

    title: ClassVar[str] = "linear tagger"
    share: float
    epochs: int
    seconds: float
    limit: float


def plan_tagger(training: Sequence[TaggedWords], seconds: float) -> TaggerPlan:
    """Choose sentences and epochs for a time limit, for two trainings: the search and the final training."""
    words = sum(len(sentence.words) for sentence in training)
    tags = len({tag for sentence in training for tag in sentence.tags})
    epoch = _WORD_COST + _TAG_COST * tags
    each = seconds / (2 * max(1, words))
    epochs = int(np.clip((each - _FEATURES_COST) / epoch, _LEAST_EPOCHS, _EPOCHS))
    cost = _FEATURES_COST + epochs * epoch
    share = min(1.0, each / cost, _MOST_WORDS / max(1, words))
    return TaggerPlan(share, epochs, 2 * share * words * cost, seconds)


@dataclass(frozen=True)
class TaggerFit:
    """A linear tagger with the examples, the plan and the number of epochs of its training."""

    name: ClassVar[str] = "linear"
    model: LinearTagger
    parts: Mapping[str, list[TaggedWords]]
    plan: TaggerPlan
    epochs: int
    seed: int

    def measure(self, part: str) -> Metrics:
        """Evaluate the tagger on a split of the examples."""
        return self.model.measure(self.parts[part]).metrics

    def baselines(self) -> dict[str, Metrics]:
        """Evaluate the most frequent tag of each word on the test examples."""
        words = [sentence.words for sentence in self.parts["test"]]
        found = frequent_tags(self._everything, words)
        return {"frequent-tag": measure_tags(self.parts["test"], found, tag_metrics(self.model.labels)).metrics}

    def with_validation(self) -> TaggerFit:
        """Train for as many epochs on training and validation examples together."""
        *_, model = _epochs(self.model.data, self._everything, self.plan.share, self.epochs, self.seed)
        return replace(self, model=model)

    @property
    def _everything(self) -> list[TaggedWords]:
        return [*self.parts["train"], *self.parts["validation"]]


def fit_tagger(data: TaggedData, parts: Mapping[str, list[TaggedWords]], plan: TaggerPlan, *, seed: int) -> TaggerFit:
    """Train a linear tagger until the validation metric stops improving, and keep the best epoch.

    The training stops after half of the time limit of ``plan``, which it reaches if other work slows the machine.

    Raises:
        UserError: the training examples have fewer than two tags.
    """
    best, highest, chosen, started = None, -np.inf, 0, time.monotonic()
    for epoch, tagger in enumerate(_epochs(data, parts["train"], plan.share, plan.epochs, seed), start=1):
        metrics = tagger.measure(parts["validation"]).metrics
        reached = float(metrics["f1" if "f1" in metrics else "accuracy"])
        if reached > highest:
            best, highest, chosen = tagger, reached, epoch
        if epoch - chosen >= _PATIENCE or time.monotonic() - started > plan.limit / 2:
            break
    assert best is not None
    return TaggerFit(best, parts, plan, chosen, seed)


def _epochs(
    data: TaggedData, examples: Sequence[TaggedWords], share: float, epochs: int, seed: int
) -> Iterator[LinearTagger]:
    order = np.random.default_rng(seed).permutation(len(examples))[: math.ceil(share * len(examples))]
    sentences = [examples[index] for index in np.sort(order)]
    words, tags = [sentence.words for sentence in sentences], [sentence.tags for sentence in sentences]
    for crf in fit_crf(words, tags, collect_tags(sentences), epochs=epochs, seed=seed):
        yield LinearTagger(crf, data)
