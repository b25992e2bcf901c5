"""Tagging words: chunks, names of people and places, parts of speech."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.baselines import frequent_tags
from homespun.data.labels import Labels, get_text
from homespun.data.loader import Loader
from homespun.data.token_labels import (
    IGNORE_INDEX,
    TaggedWords,
    TokenLabelRows,
    get_list,
    read_tagged_words,
    word_spans,
)
from homespun.errors import UserError
from homespun.inference.token_classification import decode_tags, extract_entities, predict_tag_probabilities
from homespun.metrics.sequence_labels import ENTITY_METRICS, WORD_METRICS, EntityMetrics, are_entities, word_metrics
from homespun.models.bundle import ModelBundle
from homespun.models.model import Model
from homespun.models.scalar_mix import kind_of_head
from homespun.objectives.token_classification import TokenClassification
from homespun.tasks.protocol import Lesson, Measured, Task, TaskData, check_length
from homespun.text.tokenizer import Tokenizer
from homespun.training.validation import EvalResult, evaluate_loss

_AHEAD = 1024  # records read ahead in prediction, and sorted by length together
_WORD = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")


class TaggedData(TaskData):
    """Words with a tag each, and how to read them."""

    missing = "which tagged words? give data.train=FILE: CoNLL, or rows with lists of words and of tags"
    objectives = ("tagging",)

    kind: Literal["tags"] = "tags"
    words: str = Field(default="words", description="column of the words; of a CoNLL file the first is called so")
    tags: str = Field(default="tags", description="column of the tags; of a CoNLL file the last is called so")
    length: int = Field(
        default=128, ge=8, description="tokens that the model is given at a time, special ones included"
    )
    stride: int = Field(default=32, ge=0, description="of a longer sentence: tokens that a window repeats")

    def read_files(self, inputs: Sequence[str]) -> list[TaggedWords]:
        """The sentences of any files."""
        return read_tagged_words(inputs, words=self.words, tags=self.tags, columns=self.columns, encoding=self.encoding)

    def task(self, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
        """Tagging them.

        Raises:
            UserError: another objective, a length beyond the model's, one tag alone, or seqeval is not installed.
        """
        self.check_objective(objective)
        limit = stored.config.backbone.max_position_embeddings
        check_length("length", self.length, limit, ": longer sentences are read in windows")
        labels = Labels.collect([tag for sentence in training for tag in sentence.tags])
        return TaggingTask(self, labels, stored)

    def stored_task(self, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
        """Tagging, as the model was fine-tuned for it, here or elsewhere."""
        head = stored.config.head
        if stored.labels is None or head is None or kind_of_head(head) != "token_classification":
            raise UserError(
                f"{source} does not tag words; fine-tune it first: homespun finetune tag ... --from {source}"
            )
        length = min(self.length, stored.config.backbone.max_position_embeddings)
        data = self.model_copy(update={"length": length, "stride": min(self.stride, (length - 2) // 2)})
        return TaggingTask(data, stored.labels, stored)

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, Any]:
        """``text`` is the column of the words, ``label`` that of the tags."""
        return {"words": text[0] if text else self.words, "tags": label or self.tags}


class TaggingTask:
    """Tags for words; see `homespun.tasks.protocol.Task`."""

    def __init__(self, data: TaggedData, labels: Labels, stored: ModelBundle) -> None:
        self.data = data
        self.labels = labels
        self.tokenizer: Tokenizer = stored.tokenizer
        spans = are_entities(labels.names)
        self.measures = ENTITY_METRICS if spans else WORD_METRICS
        self._metrics = EntityMetrics() if spans else word_metrics

    def strata(self, examples: Sequence[TaggedWords]) -> NDArray[np.int64]:
        """Sentences are drawn at random."""
        return np.zeros((len(examples), 0), dtype=np.int64)

    def texts(self, examples: Sequence[TaggedWords]) -> list[str]:
        """The words, joined by spaces."""
        return [" ".join(one.words) for one in examples]

    def rows(self, examples: Sequence[TaggedWords]) -> TokenLabelRows:
        """A row a sentence, several where it is longer."""
        return TokenLabelRows(
            examples, self.tokenizer, length=self.data.length, stride=self.data.stride, names=self.labels
        )

    def lesson(self, objective: TokenClassification, stored: ModelBundle, training: TokenLabelRows) -> Lesson:
        """A new head on the encoder."""
        if not len(training):
            raise UserError("there is nothing to learn: no sentence of the training has a word")
        numbers = [training[index].label for index in range(len(training))] if objective.class_weights else []
        targets = np.concatenate([np.zeros(0, np.int64), *(np.asarray(one) for one in numbers)])
        weights = objective.weights(self.labels, targets[targets != IGNORE_INDEX])
        module = objective.build(copy.deepcopy(stored.model), stored.config, self.labels, weights=weights)
        return Lesson(
            module,
            module.model,
            training,
            objective.collate(self.tokenizer.pad_id, weights=weights),
            module.export_model,
        )

    def validate(self, lesson: Lesson, rows: TokenLabelRows, *, batch_size: int) -> EvalResult:
        """The loss over the words, and the metrics."""
        loader = Loader(rows, lesson.collate, batch_size=batch_size, seed=0)
        found = evaluate_loss(lesson.objective, loader.once(), next(lesson.model.parameters()).device)
        metrics = self.measure(lesson.model, rows, batch_size=batch_size).metrics
        plain = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
        return EvalResult(found.loss, found.losses, plain)

    def measure(self, model: Model, rows: TokenLabelRows, *, batch_size: int) -> Measured:
        """Entities and words; ``predicted`` are the tags, ``score`` the share of words that are right."""
        tables = predict_tag_probabilities(
            model, rows, tags=len(self.labels), pad_id=self.tokenizer.pad_id, batch_size=batch_size
        )
        return self._measured(rows.sentences, [decode_tags(table, self.labels) for table in tables])

    def _measured(self, sentences: Sequence[TaggedWords], told: Sequence[list[str]]) -> Measured:
        said = []
        for sentence, tags in zip(sentences, told, strict=True):
            right = [a == b for a, b in zip(sentence.tags, tags, strict=True)]
            score = {"score": sum(right) / len(right)} if right else {}
            said.append({"truth": list(sentence.tags), "predicted": tags} | score)
        return Measured(self._metrics([sentence.tags for sentence in sentences], told), said)

    def baselines(self, training: Sequence[TaggedWords], test: Sequence[TaggedWords]) -> dict[str, Measured]:
        """The most frequent tag of each word."""
        learned = [(one.words, one.tags) for one in training]
        told = frequent_tags(learned, [sentence.words for sentence in test])
        return {"frequent-tag": self._measured(test, told)}

    def facts(self) -> dict[str, Any]:
        """The tags."""
        return {"labels": list(self.labels.names)}

    def describe(self) -> dict[str, Any]:
        """How the sentences are read."""
        return {"kind": "tagging", "data": self.data.kind} | self.data.to_metadata("encoding")

    def predict(self, model: Model, records: Iterable[Mapping[str, Any]], *, source: str) -> Iterator[dict[str, Any]]:
        """``words``, ``tags``, and ``entities`` with where they begin and end in the text, in characters.

        A record has a list of words, whose text is they joined by a space; or a text, which is cut into words and
        marks. ``offsets`` tell where each of these is.
        """
        waiting = enumerate(records, start=1)
        while part := list(islice(waiting, _AHEAD)):
            texts = [self._words(record, f"row {number} of {source}") for number, record in part]
            rows = self.rows([TaggedWords(tuple(text[start:end] for start, end in spans)) for text, spans in texts])
            tables = predict_tag_probabilities(model, rows, tags=len(self.labels), pad_id=self.tokenizer.pad_id)
            for (text, spans), table in zip(texts, tables, strict=True):
                yield self._said(text, spans, decode_tags(table, self.labels), table)

    def _words(self, record: Mapping[str, Any], where: str) -> tuple[str, list[tuple[int, int]]]:
        value = record.get(self.data.words)
        if isinstance(value, list | tuple):
            words = get_list(record, self.data.words, where=where)
            return " ".join(words), word_spans(words)
        column = self.data.words if self.data.words in record or "text" not in record else "text"
        get_text(record, [column], where=where)  # says what is wrong with it
        text = str(record[column] or "")
        return text, [match.span() for match in _WORD.finditer(text)]

    def _said(
        self, text: str, spans: Sequence[tuple[int, int]], tags: list[str], table: NDArray[np.float64]
    ) -> dict[str, Any]:
        found = [
            {
                "label": name,
                "text": text[spans[first][0] : spans[last][1]],
                "start": spans[first][0],
                "end": spans[last][1],
                "probability": float(table[first : last + 1].max(axis=1).mean()),
            }
            for name, first, last in extract_entities(tags)
        ]
        told: dict[str, Any] = {"words": [text[start:end] for start, end in spans], "tags": tags}
        told |= {"offsets": [list(span) for span in spans], "entities": found, "truncated": False}
        return told
