"""Word tagging without torch: data, metrics, predictions, baseline, and a linear tagger."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Unpack, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.crf import Crf
from homespun.data.labels import Labels, get_text
from homespun.data.token_labels import TaggedWords, get_list, parse_tagged_words, word_spans
from homespun.errors import UserError
from homespun.io.atomic import atomic_path
from homespun.metrics.classification import Metrics
from homespun.metrics.sequence_labels import EntityMetrics, Tags, are_entities, extract_entities, word_metrics
from homespun.tasks.protocol import Measured, ReadOptions, TaskData, numbered_chunks, task_metadata
from homespun.tasks.stored_data import StoredData, stored_data
from homespun.text.formats import Record

CHUNK = 1024
"""Records read ahead in prediction and sorted by length."""
MAX_TAGS = 2**16
"""Tags of a training; the logits of a batch of 32 sentences of 128 words have 1 GB."""
_WORD = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")


class TaggedData(TaskData):
    """Sentences of words with tags."""

    missing = "which tagged words? give data.train=FILE: CoNLL, or rows with lists of words and of tags"
    no_examples = "no sentence; give lists of words and tags, or a CoNLL file"
    default_objective = "token_classification"
    from_heads = ("token_classification",)
    not_stored = ("encoding",)
    not_for_baselines = ("max_length", "stride")
    text_settings, label_settings = ("words",), ("tags",)

    kind: Literal["token_labels"] = "token_labels"
    words: str = Field(default="words", description="column of the words; in a CoNLL file the first column")
    tags: str = Field(default="tags", description="column of the tags; in a CoNLL file the last column")
    max_length: int = Field(default=128, ge=8, description="maximum tokens of an input, with special tokens")
    stride: int = Field(default=32, ge=0, description="tokens that two consecutive windows of a sentence share")

    def parse(self, record: Record, *, where: str) -> list[TaggedWords]:
        return parse_tagged_words(record, words=self.words, tags=self.tags, columns=self.columns, where=where)

    def record_of(self, text: str) -> Record:
        return {"text": text}

    def record_of_texts(self, texts: Sequence[str]) -> Record:
        return {self.words: list(texts)}

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Return the fields for the columns of the words and of the tags."""
        if len(text) > 1:
            raise UserError(f"--text-field is given {len(text)} times; give the one column of the words")
        return {"words": text[0] if text else self.words, "tags": label or self.tags}

    def missing_columns(self, names: Collection[str], *, labelled: bool) -> list[str]:
        """Return missing columns; a column of texts is predicted too, and a text file is evaluated as CoNLL."""
        if "text" in names and (not labelled or len(names) == 1):
            return []
        return super().missing_columns(names, labelled=labelled)

    def split(self, record: Record, *, where: str) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a record, and the start and end of each word in characters.

        A record has a list of words, which are joined by spaces, or a text, which is split into words and punctuation.

        Raises:
            UserError: a record lacks the column; the message begins with ``where``.
        """
        value = record.get(self.words)
        if isinstance(value, list | tuple):
            words = get_list(record, self.words, where=where)
            return " ".join(words), word_spans(words)
        column = self.words if self.words in record or "text" not in record else "text"
        text = str(record[column]) if get_text(record, [column], where=where) else ""
        return text, [match.span() for match in _WORD.finditer(text)]


def collect_tags(sentences: Iterable[TaggedWords]) -> Labels:
    """Collect the tags of training sentences.

    Raises:
        UserError: fewer than two tags, or more than `MAX_TAGS`.
    """
    labels = Labels.collect([tag for sentence in sentences for tag in sentence.tags])
    if len(labels) > MAX_TAGS:
        raise UserError(
            f"{len(labels):,} different tags are more than {MAX_TAGS:,}; name the column of the tags, or join rare tags"
        )
    return labels


def tag_metrics(labels: Labels) -> Callable[[Tags, Tags], Metrics]:
    """Return the metrics of entities or of words. Raises `UserError` if the package is missing."""
    return EntityMetrics() if are_entities(labels.names) else word_metrics


def measure_tags(
    sentences: Sequence[TaggedWords], predicted: Sequence[Sequence[str]], metrics: Callable[[Tags, Tags], Metrics]
) -> Measured:
    """Compute metrics of entities or words; ``score`` is the tag accuracy of a sentence.

    Raises:
        UserError: no sentence has a word.
    """
    predictions = []
    for sentence, tags in zip(sentences, predicted, strict=True):
        right = [a == b for a, b in zip(sentence.tags, tags, strict=True)]
        score = {"score": sum(right) / len(right)} if right else {}
        predictions.append({"truth": list(sentence.tags), "predicted": list(tags)} | score)
    return Measured(metrics([sentence.tags for sentence in sentences], predicted), predictions)


def tag_prediction(
    text: str, spans: Sequence[tuple[int, int]], tags: Sequence[str], probabilities: NDArray[np.float64]
) -> dict[str, object]:
    """Return ``words``, ``tags``, ``offsets``, and ``entities`` with their start and end in characters.

    ``spans`` are the start and end of the words in ``text``, ``probabilities`` (words,) those of the tags; an entity
    has their mean.
    """
    entities = [
        {
            "label": name,
            "text": text[spans[first][0] : spans[last][1]],
            "start": spans[first][0],
            "end": spans[last][1],
            "probability": float(probabilities[first : last + 1].mean()),
        }
        for name, first, last in extract_entities(tags)
    ]
    words = [text[start:end] for start, end in spans]
    offsets = [list(span) for span in spans]
    return {"words": words, "tags": list(tags), "offsets": offsets, "entities": entities, "truncated": False}


def frequent_tags(training: Iterable[TaggedWords], sentences: Sequence[Sequence[str]]) -> list[list[str]]:
    """Tag each word with its most frequent tag in ``training``, and unseen words with the most frequent tag."""
    by_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for sentence in training:
        total.update(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word[word][tag] += 1
    best = {word: _most_frequent(counts) for word, counts in by_word.items()}
    default = _most_frequent(total)
    return [[best.get(word, default) for word in words] for words in sentences]


def _most_frequent(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))


@dataclass(frozen=True)
class LinearTagger:
    """Conditional random field on word features."""

    model: Crf
    data: TaggedData
    kind: Literal["linear"] = "linear"

    @property
    def labels(self) -> Labels:
        """Tags."""
        return self.model.labels

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return self.model.parameters

    def measure(self, sentences: Sequence[TaggedWords]) -> Measured:
        """Evaluate the tagger; see `measure_tags`."""
        predicted = [tags for tags, _ in self.model.predict([sentence.words for sentence in sentences])]
        return measure_tags(sentences, predicted, tag_metrics(self.labels))

    def measure_files(self, files: Sequence[str]) -> Measured:
        """Evaluate the tagger on tagged files."""
        return self.measure(cast(Sequence[TaggedWords], self.data.read_files(files)))

    def predict(self, records: Iterable[Record], *, source: str, first: int = 1) -> Iterator[dict[str, object]]:
        """Yield the `tag_prediction` of each record, in order and in bounded memory.

        Raises:
            UserError: a record lacks the column; the message begins with ``source``.
        """
        for chunk in numbered_chunks(records, CHUNK, source=source, first=first):
            texts = [self.data.split(record, where=where) for where, record in chunk]
            found = self.model.predict([[text[start:end] for start, end in spans] for text, spans in texts])
            for (text, spans), (tags, probabilities) in zip(texts, found, strict=True):
                yield tag_prediction(text, spans, tags, probabilities)

    def save(self, folder: Path) -> None:
        """Write the ``model/`` folder atomically, replacing an existing one."""
        with atomic_path(folder) as temporary:
            temporary.mkdir()
            replace(self.model, task=task_metadata("token_classification", self.data)).save(temporary)


class _StoredTags(StoredData):
    data: TaggedData


def open_tagger(folder: Path, **options: Unpack[ReadOptions]) -> LinearTagger:
    """Open the linear tagger in a ``model/`` folder; ``options`` are columns that differ from training.

    Raises:
        UserError: a file is damaged.
    """
    model = Crf.load(folder)
    data = stored_data(_StoredTags, model.task, source=str(folder), **options)
    return LinearTagger(model, cast(TaggedData, data))
