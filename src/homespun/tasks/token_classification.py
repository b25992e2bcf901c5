"""Token classification: a tag for each word, such as names or parts of speech (Devlin et al. 2019, section 5.3)."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.labels import Labels, get_text
from homespun.data.loader import Collate
from homespun.data.rows import Row, pad
from homespun.data.token_labels import (
    IGNORE_INDEX,
    TaggedWords,
    TokenLabelRows,
    get_list,
    read_tagged_words,
    word_spans,
)
from homespun.errors import UserError
from homespun.inference.spans import decode_tags, extract_entities, predict_tag_probabilities
from homespun.metrics.sequence_labels import ENTITY_METRICS, WORD_METRICS, EntityMetrics, are_entities, word_metrics
from homespun.models.bundle import ModelBundle
from homespun.models.composite_heads import Layers
from homespun.models.config import ModelConfig
from homespun.models.heads import TokenClassificationHeadConfig
from homespun.models.model import Model
from homespun.objectives.mlm import gather_positions
from homespun.tasks.head_training import ClassLoss, ClassTraining, FineTuningLoss, build_token_head
from homespun.tasks.protocol import Measured, TaskData, TrainingSetup, check_length, numbered_chunks, task_metadata
from homespun.text.formats import Record
from homespun.text.tokenizer import Tokenizer

_CHUNK = 1024  # records read ahead in prediction and sorted by length
_WORD = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")


class TaggedData(TaskData):
    """Sentences of words with a tag each."""

    missing = "which tagged words? give data.train=FILE: CoNLL, or rows with lists of words and of tags"
    default_objective = "token_classification"
    from_heads = ("token_classification",)
    not_stored = ("encoding",)

    kind: Literal["token_labels"] = "token_labels"
    words: str = Field(default="words", description="column of the words; in a CoNLL file the first column")
    tags: str = Field(default="tags", description="column of the tags; in a CoNLL file the last column")
    max_length: int = Field(default=128, ge=8, description="maximum tokens of an input, with special tokens")
    stride: int = Field(default=32, ge=0, description="tokens that two consecutive windows of a sentence share")

    def read_files(self, inputs: Sequence[str]) -> list[TaggedWords]:
        return read_tagged_words(inputs, words=self.words, tags=self.tags, columns=self.columns, encoding=self.encoding)

    def record_of(self, text: str) -> Record:
        return {"text": text}

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """``text`` is the column of the words, ``label`` is the column of the tags."""
        return {"words": text[0] if text else self.words, "tags": label or self.tags}


class TokenClassification(ClassTraining):
    """A tag for each word, by cross-entropy at its first piece."""

    data_kinds = ("token_labels",)
    description = "token classification"
    count_titles: ClassVar[Mapping[str, str]] = {
        "words_without_pieces": "Words without tokens, which get no tag",
        "unseen_tags": "Words with a tag that is not in the training set",
    }
    metrics = ("f1", "precision", "recall", "accuracy", "macro_f1")

    kind: Literal["token_classification"] = "token_classification"
    head: TokenClassificationHeadConfig = TokenClassificationHeadConfig()
    layers: Layers = "last"

    def task(self, data: TaggedData, stored: ModelBundle, training: Sequence[TaggedWords]) -> TokenClassificationTask:
        limit = stored.config.backbone.max_position_embeddings
        check_length("max_length", data.max_length, limit, ": longer sentences are read in windows")
        labels = Labels.collect([tag for sentence in training for tag in sentence.tags])
        return TokenClassificationTask(data, labels, stored)

    @classmethod
    def task_from_metadata(cls, data: TaggedData, stored: ModelBundle, *, source: str) -> TokenClassificationTask:
        """Rebuild the task of a model that was fine-tuned here or with other software."""
        head = stored.config.head
        if stored.labels is None or head is None or head.task_kind != "token_classification":
            raise UserError(f"{source} is no token classifier; fine-tune it first: homespun finetune tag ...")
        length = min(data.max_length, stored.config.backbone.max_position_embeddings)
        data = data.model_copy(update={"max_length": length, "stride": min(data.stride, (length - 2) // 2)})
        return TokenClassificationTask(data, stored.labels, stored)

    def collate(self, pad_id: int, *, weights: tuple[float, ...] | None = None) -> Collate:
        """Build the collate; ``weights`` as in `build`."""
        return TokenClassificationCollate(pad_id, weights)

    def build(
        self, model: Model, config: ModelConfig, labels: Labels, *, weights: tuple[float, ...] | None = None
    ) -> TokenClassificationLoss:
        """Build a new head on the backbone of ``model``, which is changed in place; ``config`` is its config."""
        model, config = build_token_head(self.head, self.layers, model, config, len(labels))
        loss = ClassLoss(weights, self.label_smoothing, smooth_evaluation=False)
        return TokenClassificationLoss(model, config, loss, frozen=self.frozen)


@dataclass(frozen=True)
class TokenClassificationCollate:
    """Collate of rows whose ``label`` is (tokens,): ``positions`` and ``labels`` of the labelled tokens.
    Deterministic.
    """

    pad_id: int
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        batch = pad(rows, self.pad_id)
        table = np.full(batch.input_ids.shape, IGNORE_INDEX, dtype=np.int64)
        for line, row in zip(table, rows, strict=True):
            if isinstance(row.label, np.ndarray):
                line[: len(row.label)] = row.label
        flat = table.ravel()
        positions = np.flatnonzero(flat != IGNORE_INDEX)
        labels = flat[positions]
        count = float(len(labels)) if self.weights is None else float(np.array(self.weights)[labels].sum())
        return dataclasses.replace(
            batch,
            positions=torch.from_numpy(positions),
            labels=torch.from_numpy(labels),
            targets={"loss": count, "accuracy": float(len(labels))},
        )


class TokenClassificationLoss(FineTuningLoss):
    """Terms ``loss`` and ``accuracy`` (weight 0) over the words; the head runs on labelled tokens only."""

    def __init__(self, model: Model, config: ModelConfig, loss: ClassLoss, *, frozen: bool = False) -> None:
        super().__init__(model, config, frozen=frozen)
        self.loss = loss

    def forward(self, batch: Batch) -> Loss:
        if batch.labels is None or batch.positions is None:
            raise ValueError("token classification needs a batch with labels and positions")
        assert self.model.head is not None
        hidden = self.model.read(batch.input_ids, batch.context)
        logits: Tensor = self.model.head(gather_positions(hidden, batch.positions)).float()  # (words, tags)
        terms: Loss = self.loss(logits, batch.labels)
        return terms


class TokenClassificationTask:
    """Tags for words; see `homespun.tasks.protocol.Task`."""

    def __init__(self, data: TaggedData, labels: Labels, stored: ModelBundle) -> None:
        self.data = data
        self.labels = labels
        self.tokenizer: Tokenizer = stored.tokenizer
        spans = are_entities(labels.names)
        self.reported_metrics = ENTITY_METRICS if spans else WORD_METRICS
        self._metrics = EntityMetrics() if spans else word_metrics

    def stratify_by(self, examples: Sequence[TaggedWords]) -> NDArray[np.int64]:
        return np.zeros((len(examples), 0), dtype=np.int64)

    def texts(self, examples: Sequence[TaggedWords]) -> list[str]:
        return [" ".join(one.words) for one in examples]

    def rows(self, examples: Sequence[TaggedWords]) -> TokenLabelRows:
        return TokenLabelRows(
            examples, self.tokenizer, length=self.data.max_length, stride=self.data.stride, names=self.labels
        )

    def training_setup(
        self, objective: TokenClassification, stored: ModelBundle, training: TokenLabelRows
    ) -> TrainingSetup:
        if not len(training):
            raise UserError("no training sentence has a word; give sentences with words")
        numbers = [training[index].label for index in range(len(training))] if objective.class_weights else []
        targets = np.concatenate([np.zeros(0, np.int64), *(np.asarray(one) for one in numbers)])
        weights = objective.weights(self.labels, targets[targets != IGNORE_INDEX])
        loss = objective.build(copy.deepcopy(stored.model), stored.config, self.labels, weights=weights)
        collate = objective.collate(self.tokenizer.pad_id, weights=weights)
        return TrainingSetup(loss, loss.model, training, collate, loss.export_model)

    def measure(self, model: Model, rows: TokenLabelRows, *, batch_size: int) -> Measured:
        """Compute metrics of entities or words; ``score`` is the share of words with the right tag."""
        tables = self._probabilities(model, rows, batch_size)
        return self._measured(rows.sentences, [decode_tags(table, self.labels) for table in tables])

    def _probabilities(self, model: Model, rows: TokenLabelRows, batch_size: int = 32) -> list[NDArray[np.float64]]:
        pad_id = self.tokenizer.pad_id
        return predict_tag_probabilities(model, rows, tags=len(self.labels), pad_id=pad_id, batch_size=batch_size)

    def _measured(self, sentences: Sequence[TaggedWords], predicted: Sequence[list[str]]) -> Measured:
        predictions = []
        for sentence, tags in zip(sentences, predicted, strict=True):
            right = [a == b for a, b in zip(sentence.tags, tags, strict=True)]
            score = {"score": sum(right) / len(right)} if right else {}
            predictions.append({"truth": list(sentence.tags), "predicted": tags} | score)
        return Measured(self._metrics([sentence.tags for sentence in sentences], predicted), predictions)

    def baselines(self, training: Sequence[TaggedWords], test: Sequence[TaggedWords]) -> dict[str, Measured]:
        """Evaluate the most frequent tag of each word."""
        return {"frequent-tag": self._measured(test, frequent_tags(training, [one.words for one in test]))}

    def result_fields(self) -> dict[str, object]:
        return {"labels": list(self.labels.names)}

    def to_metadata(self) -> dict[str, object]:
        return task_metadata("token_classification", self.data)

    def predict(self, model: Model, records: Iterable[Record], *, source: str) -> Iterator[dict[str, object]]:
        """Yield ``words``, ``tags``, and ``entities`` with their start and end in characters.

        A record has a list of words, which are joined by spaces, or a text, which is split into words and punctuation;
        ``offsets`` are their positions.
        """
        for chunk in numbered_chunks(records, _CHUNK, source=source):
            texts = [self._words(record, where) for where, record in chunk]
            rows = self.rows([TaggedWords(tuple(text[start:end] for start, end in spans)) for text, spans in texts])
            for (text, spans), table in zip(texts, self._probabilities(model, rows), strict=True):
                yield self._prediction(text, spans, decode_tags(table, self.labels), table)

    def _words(self, record: Record, where: str) -> tuple[str, list[tuple[int, int]]]:
        value = record.get(self.data.words)
        if isinstance(value, list | tuple):
            words = get_list(record, self.data.words, where=where)
            return " ".join(words), word_spans(words)
        column = self.data.words if self.data.words in record or "text" not in record else "text"
        get_text(record, [column], where=where)  # raises if the column cannot be read
        text = str(record[column] or "")
        return text, [match.span() for match in _WORD.finditer(text)]

    def _prediction(
        self, text: str, spans: Sequence[tuple[int, int]], tags: list[str], table: NDArray[np.float64]
    ) -> dict[str, object]:
        entities = [
            {
                "label": name,
                "text": text[spans[first][0] : spans[last][1]],
                "start": spans[first][0],
                "end": spans[last][1],
                "probability": float(table[first : last + 1].max(axis=1).mean()),
            }
            for name, first, last in extract_entities(tags)
        ]
        words = [text[start:end] for start, end in spans]
        offsets = [list(span) for span in spans]
        return {"words": words, "tags": tags, "offsets": offsets, "entities": entities, "truncated": False}


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
