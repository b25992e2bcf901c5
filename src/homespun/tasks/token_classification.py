"""Token classification: a tag for each word, such as entities or parts of speech (Devlin et al. 2019, section 5.3)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.labels import Labels
from homespun.data.rows import Row, pad
from homespun.data.token_labels import IGNORE_INDEX, TaggedWords, TokenLabelRows
from homespun.errors import UserError
from homespun.inference.spans import predict_tags
from homespun.metrics.sequence_labels import ENTITY_METRICS, WORD_METRICS, are_entities
from homespun.models.bundle import ModelBundle
from homespun.models.composite_heads import Layers
from homespun.models.config import ModelConfig
from homespun.models.heads import TokenClassificationHeadConfig
from homespun.models.model import Model
from homespun.objectives.mlm import gather_positions
from homespun.tasks.head_training import ClassLoss, ClassTraining, FineTuningLoss, build_token_head, count_targets
from homespun.tasks.protocol import Measured, TrainingSetup, check_length, numbered_chunks, task_metadata
from homespun.tasks.taggers import (
    CHUNK,
    TaggedData,
    collect_tags,
    frequent_tags,
    measure_tags,
    tag_metrics,
    tag_prediction,
)
from homespun.text.formats import Record
from homespun.text.tokenizer import Tokenizer


class TokenClassification(ClassTraining):
    """Classification of each word by cross-entropy at its first token."""

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
        return TokenClassificationTask(data, collect_tags(training), stored)

    @classmethod
    def task_from_metadata(cls, data: TaggedData, stored: ModelBundle, *, source: str) -> TokenClassificationTask:
        """Rebuild the task of a model that was fine-tuned here or with other software."""
        head = stored.config.head
        if stored.labels is None or head is None or head.task_kind != "token_classification":
            raise UserError(f"{source} is no token classifier; fine-tune it first: homespun finetune tag ...")
        length = min(data.max_length, stored.config.backbone.max_position_embeddings)
        data = data.model_copy(update={"max_length": length, "stride": min(data.stride, (length - 2) // 2)})
        return TokenClassificationTask(data, stored.labels, stored)

    def build(
        self, model: Model, config: ModelConfig, labels: Labels, *, weights: tuple[float, ...] | None = None
    ) -> TokenClassificationLoss:
        """Build a new head on the backbone of ``model``, which is modified in place."""
        model, config = build_token_head(self.head, self.layers, model, config, len(labels))
        loss = ClassLoss(weights, self.label_smoothing, smooth_evaluation=False)
        return TokenClassificationLoss(model, config, loss, frozen=self.frozen)


@dataclass(frozen=True)
class TokenClassificationCollator:
    """Collate rows whose ``label`` is (tokens,): ``positions`` and ``labels`` of labelled tokens; deterministic."""

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
        return dataclasses.replace(
            batch,
            positions=torch.from_numpy(positions),
            labels=torch.from_numpy(labels),
            targets=count_targets(labels, self.weights),
        )


class TokenClassificationLoss(FineTuningLoss):
    """Compute ``loss`` and ``accuracy`` (weight 0) over the words; the head runs on labelled tokens only."""

    def __init__(self, model: Model, config: ModelConfig, loss: ClassLoss, *, frozen: bool = False) -> None:
        super().__init__(model, config, frozen=frozen)
        self.loss = loss

    def forward(self, batch: Batch) -> Loss:
        if batch.labels is None or batch.positions is None:
            raise ValueError("token classification needs a batch with labels and positions")
        assert self.model.head is not None
        hidden = self.model.read(batch.input_ids, batch.context)
        logits: Tensor = self.model.head(gather_positions(hidden, batch.positions)).float()  # (words, tags)
        return self.loss(logits, batch.labels)


class TokenClassificationTask:
    """Tags for words; see `homespun.tasks.protocol.Task`."""

    def __init__(self, data: TaggedData, labels: Labels, stored: ModelBundle) -> None:
        self.data = data
        self.labels = labels
        self.tokenizer: Tokenizer = stored.tokenizer
        self.reported_metrics = ENTITY_METRICS if are_entities(labels.names) else WORD_METRICS
        self._metrics = tag_metrics(labels)

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
        return TrainingSetup(loss, training, TokenClassificationCollator(self.tokenizer.pad_id, weights))

    def measure(self, model: Model, rows: TokenLabelRows, *, batch_size: int) -> Measured:
        """Compute metrics of entities or words; ``score`` is the tag accuracy of a sentence."""
        found = predict_tags(model, rows, self.labels, pad_id=self.tokenizer.pad_id, batch_size=batch_size)
        return measure_tags(rows.sentences, [tags for tags, _ in found], self._metrics)

    def baselines(self, training: Sequence[TaggedWords], test: Sequence[TaggedWords]) -> dict[str, Measured]:
        """Evaluate the most frequent tag of each word."""
        return {"frequent-tag": measure_tags(test, frequent_tags(training, [one.words for one in test]), self._metrics)}

    def result_fields(self) -> dict[str, object]:
        return {"labels": list(self.labels.names)}

    def to_metadata(self) -> dict[str, object]:
        return task_metadata("token_classification", self.data)

    def predict(
        self, model: Model, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[dict[str, object]]:
        """Yield the `homespun.tasks.taggers.tag_prediction` of each record."""
        for chunk in numbered_chunks(records, CHUNK, source=source, first=first):
            texts = [self.data.split(record, where=where) for where, record in chunk]
            rows = self.rows([TaggedWords(tuple(text[start:end] for start, end in spans)) for text, spans in texts])
            found = predict_tags(model, rows, self.labels, pad_id=self.tokenizer.pad_id)
            for (text, spans), (tags, certain) in zip(texts, found, strict=True):
                yield tag_prediction(text, spans, tags, certain)
