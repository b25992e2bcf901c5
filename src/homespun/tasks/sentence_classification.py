"""Sentence classification: a label for each sentence of a document, such as spoilers in reviews."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from homespun.baselines import majority, tfidf
from homespun.batch import Batch, Loss, RowSeed
from homespun.data.labels import Labels
from homespun.data.rows import Row, pad
from homespun.data.sentence_documents import CONTEXT, LabelledDocument, SentenceWindows, Vector, parse_document
from homespun.errors import UserError
from homespun.inference.predict import forward_logits
from homespun.metrics.calibration import probabilities
from homespun.metrics.classification import check_memory, classification_metrics, classify, log_loss
from homespun.models.bundle import ModelBundle
from homespun.models.composite_heads import Layers
from homespun.models.config import ModelConfig
from homespun.models.heads import TokenClassificationHeadConfig
from homespun.models.model import Model
from homespun.tasks.head_training import ClassLoss, ClassTraining, FineTuningLoss, build_token_head, count_targets
from homespun.tasks.protocol import Measured, TaskData, TrainingSetup, check_length, numbered_chunks, task_metadata
from homespun.text.formats import Record

_CHUNK = 256  # documents read ahead in prediction


class SentencesData(TaskData):
    """Documents with a label for each sentence: JSON lines in the Goodreads format, or similar."""

    missing = "which documents? give data.train=FILE, with data.sentences=COLUMN, a list of [label, sentence] in each"
    default_objective = "sentence_classification"
    input_kind = "sentences"
    not_for_baselines = ("max_length", "context")

    kind: Literal["sentences"] = "sentences"
    sentences: str = Field(default="review_sentences", description="column of [[label, sentence], ...] or of sentences")
    labels: str | None = Field(default=None, description="column of the labels, if `sentences` has none")
    max_length: int = Field(default=512, ge=8, description="maximum tokens of a row")
    context: float = Field(default=0.25, ge=0, le=0.9, description="share of a row for sentences of the row before")

    def read_files(self, inputs: Sequence[str]) -> list[LabelledDocument]:
        documents = super().read_files(inputs)
        if not any(document.sentences for document in documents):
            raise UserError(f"{', '.join(inputs)} has no sentences; give a file with labelled sentences")
        return documents

    def parse(self, record: Record, *, where: str) -> list[LabelledDocument]:
        document = parse_document(record, self.sentences, where=where, labels=self.labels)
        if len(document.labels) != len(document.sentences):
            column = self.sentences
            raise UserError(f"{where} lacks labels in column {column!r}; write [label, sentence], or set data.labels")
        return [document]

    def record_of_texts(self, texts: Sequence[str]) -> Record:
        """Return the record of the sentences of a document."""
        return {self.sentences: list(texts)}

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, object]:
        """Return the fields for the columns of the sentences and of their labels."""
        if len(text) > 1:
            raise UserError(f"--text-field is given {len(text)} times; give the one column of the sentences")
        return {"sentences": text[0] if text else self.sentences, "labels": label or self.labels}


class SentenceClassification(ClassTraining):
    """Classification of each sentence of a document by cross-entropy, in one pass over the document.

    The vector of a sentence is that of the [SEP] after it (Cohan et al. 2019), of a [CLS] before it (Liu and Lapata
    2019), or the mean of its tokens.
    """

    data_kinds = ("sentences",)
    description = "sentence classification"
    count_titles: ClassVar[Mapping[str, str]] = {
        "windows_beyond_one": "Windows beyond the first one of a document",
        "sentences_cut": "Sentences truncated to the maximum length",
        "empty_documents": "Documents without a sentence",
    }
    metrics = ("accuracy", "macro_f1", "weighted_f1", "log_loss", "f1", "roc_auc", "pr_auc")

    kind: Literal["sentence_classification"] = "sentence_classification"
    head: TokenClassificationHeadConfig = TokenClassificationHeadConfig()
    vector: Vector = Field(default="separator", description="representation of a sentence: a token, or their mean")
    layers: Layers = "last"

    def task(
        self, data: SentencesData, stored: ModelBundle, training: Sequence[LabelledDocument]
    ) -> SentenceClassificationTask:
        limit = stored.config.backbone.max_position_embeddings
        check_length("max_length", data.max_length, limit, ": longer documents are read in several parts")
        if self.vector == "first" and stored.config.one_text("objective.vector=first").causal:
            raise UserError(
                "objective.vector=first reads the token before a sentence, where a causal model has not seen the "
                "sentence; set objective.vector=separator"
            )
        given = [label for document in training for label in document.labels]
        labels = Labels.collect(given)
        check_memory(labels, len(given))
        return SentenceClassificationTask(data, labels, stored, vector=self.vector)

    @classmethod
    def task_from_metadata(cls, data: SentencesData, stored: ModelBundle, *, source: str) -> SentenceClassificationTask:
        learned = stored.task.get("learned")
        if stored.labels is None or not isinstance(learned, Mapping) or "vector" not in learned:
            raise UserError(
                f"{source} is not a sentence classifier; fine-tune it first: homespun finetune classify-sentences ..."
            )
        return SentenceClassificationTask(data, stored.labels, stored, vector=learned["vector"])

    def build(
        self, model: Model, config: ModelConfig, labels: Labels, *, weights: tuple[float, ...] | None = None
    ) -> SentenceClassificationLoss:
        """Build a new head on the backbone of ``model``, which is modified in place."""
        model, config = build_token_head(self.head, self.layers, model, config, len(labels))
        loss = ClassLoss(weights, self.label_smoothing)
        return SentenceClassificationLoss(model, config, loss, frozen=self.frozen)


@dataclass(frozen=True)
class SentenceClassificationCollator:
    """Collate rows of sentences: ``labels`` (sentences,), and the tokens of each sentence; deterministic."""

    pad_id: int
    vector: Vector
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        batch = pad(rows, self.pad_id)
        table = np.full(batch.input_ids.shape, -1, dtype=np.int64)
        labels: list[int] = []
        for line, row in zip(table, rows, strict=True):
            assert row.sentence_ends is not None
            assert isinstance(row.label, np.ndarray)
            starts = [0 if self.vector == "first" else 1, *row.sentence_ends[:-1].tolist()]
            for start, end, label in zip(starts, row.sentence_ends.tolist(), row.label.tolist(), strict=True):
                if label == CONTEXT:
                    continue
                line[self._tokens(start, end)] = len(labels)
                labels.append(label)
        classes = torch.tensor(labels, dtype=torch.int64)
        return dataclasses.replace(
            batch,
            sentences=torch.from_numpy(table),
            labels=classes,
            targets=count_targets(labels, self.weights),
        )

    def _tokens(self, start: int, end: int) -> slice:
        """Return the tokens that represent the sentence from ``start`` to ``end``; the last is its [SEP]."""
        if self.vector == "first":
            return slice(start, start + 1)
        separator = self.vector == "separator" or end - start == 1  # an empty sentence is its [SEP]
        return slice(end - 1, end) if separator else slice(start, end - 1)


def sentence_means(values: Tensor, sentences: Tensor, count: int) -> Tensor:
    """Compute (sentences, width) means over the tokens of each sentence (`Batch.sentences`) of (batch, seq, width)."""
    numbers = sentences.flatten() + 1  # (batch * seq,); 0: in no sentence. Selected tokens would synchronise with a GPU
    sums = values.new_zeros(count + 1, values.shape[-1]).index_add(0, numbers, values.flatten(0, 1))
    sizes = values.new_zeros(count + 1).index_add(0, numbers, torch.ones_like(numbers, dtype=values.dtype))
    return sums[1:] / sizes[1:, None]


class SentenceClassificationLoss(FineTuningLoss):
    """Terms ``loss`` and ``accuracy`` (weight 0) over the labelled sentences.

    The logits of a sentence are the mean of its tokens' logits, which equals the logits of their mean.
    """

    def __init__(self, model: Model, config: ModelConfig, loss: ClassLoss, *, frozen: bool = False) -> None:
        super().__init__(model, config, frozen=frozen)
        self.loss = loss

    def forward(self, batch: Batch) -> Loss:
        if batch.labels is None or batch.sentences is None:
            raise ValueError("sentence classification needs a batch with labels and sentences")
        logits = self.model(batch.input_ids, **batch.context).float()  # (batch, seq, classes)
        logits = sentence_means(logits, batch.sentences, len(batch.labels))  # (sentences, classes)
        return self.loss(logits, batch.labels)


class SentenceClassificationTask:
    """Labels for the sentences of documents; see `homespun.tasks.protocol.Task`."""

    def __init__(self, data: SentencesData, labels: Labels, stored: ModelBundle, *, vector: Vector) -> None:
        self.data = data
        self.labels = labels
        self.stored = stored
        self.vector = vector

    @property
    def reported_metrics(self) -> Sequence[str]:
        """Metrics in tables; areas under curves only with two classes."""
        areas = ("roc_auc", "pr_auc") if len(self.labels) == 2 else ()
        return (*areas, "macro_f1", "accuracy", "log_loss")

    def stratify_by(self, examples: Sequence[LabelledDocument]) -> NDArray[np.int64]:
        """Stratify by the rarest label of each document, and empty documents by the most frequent label."""
        targets = self._targets(examples)
        counts = np.bincount(targets, minlength=len(self.labels))
        frequent_first = np.argsort(-counts, kind="stable")
        ranks = np.argsort(frequent_first)[targets]
        ends = np.cumsum([len(document.sentences) for document in examples])
        rarest = [max(document, default=0) for document in np.split(ranks, ends[:-1])]
        return frequent_first[np.array(rarest, dtype=np.int64)]

    def _targets(self, examples: Sequence[LabelledDocument]) -> NDArray[np.int64]:
        return self.labels.encode([label for document in examples for label in document.labels])

    def texts(self, examples: Sequence[LabelledDocument]) -> list[str]:
        return [" ".join(document.sentences) for document in examples]

    def rows(self, examples: Sequence[LabelledDocument]) -> SentenceWindows:
        return self._windows(examples, self._targets(examples))

    def _windows(self, examples: Sequence[LabelledDocument], targets: NDArray[np.int64] | None) -> SentenceWindows:
        tokenizer, length, context = self.stored.tokenizer, self.data.max_length, self.data.context
        return SentenceWindows(examples, targets, tokenizer, length=length, context=context, vector=self.vector)

    def training_setup(
        self, objective: SentenceClassification, stored: ModelBundle, training: SentenceWindows
    ) -> TrainingSetup:
        assert training.targets is not None
        weights = objective.weights(self.labels, training.targets)
        loss = objective.build(copy.deepcopy(stored.model), stored.config, self.labels, weights=weights)
        collate = SentenceClassificationCollator(stored.tokenizer.pad_id, self.vector, weights)
        return TrainingSetup(loss, training, collate, loss_from_metrics=lambda metrics: float(metrics["log_loss"]))

    def measure(self, model: Model, rows: SentenceWindows, *, batch_size: int) -> Measured:
        """Compute `classification_metrics` over all sentences, and predictions by document."""
        assert rows.targets is not None
        if not len(rows):
            raise UserError("no document has a sentence; give documents with sentences")
        check_memory(self.labels, len(rows.targets), evaluated=True)
        table = self._table(model, rows, batch_size)
        predicted = classify(table, self.labels)
        metrics = classification_metrics(self.labels, rows.targets, predicted, probabilities=table)
        return Measured(metrics | {"documents": len(rows.documents)}, self._predictions(rows, predicted, table))

    def _table(self, model: Model, rows: SentenceWindows, batch_size: int = 32) -> NDArray[np.float64]:
        """Compute (sentences, classes) probabilities."""
        collate = SentenceClassificationCollator(self.stored.tokenizer.pad_id, self.vector)
        logits = np.zeros((len(rows.sizes), len(self.labels)), dtype=np.float32)
        for numbers, part in forward_logits(model, rows, lambda chosen: collate(chosen, ()), batch_size=batch_size):
            sentences = collate([rows[number] for number in numbers], ()).sentences
            assert sentences is not None
            predicted = [s for n in numbers for s in range(rows.windows[n, 1], rows.windows[n, 2])]
            logits[predicted] = sentence_means(torch.from_numpy(part).double(), sentences, len(predicted)).numpy()
        return probabilities(logits, self.labels)

    def _predictions(
        self, rows: SentenceWindows, predicted: NDArray[np.int64], table: NDArray[np.float64] | None = None
    ) -> list[dict[str, object]]:
        """Return an object for each document; ``score`` is the accuracy of its sentences."""
        assert rows.targets is not None
        predictions = []
        for start, end in _spans(rows):
            truth, labels = rows.targets[start:end], predicted[start:end]
            prediction: dict[str, object] = {"truth": self._names(truth), "predicted": self._names(labels)}
            if end > start:
                prediction["score"] = float((truth == labels).mean())
            if table is not None:
                prediction["probability"] = table[start:end].tolist()
                if end > start:
                    prediction["loss"] = log_loss(truth, table[start:end])
            predictions.append(prediction)
        return predictions

    def _names(self, numbers: NDArray[np.int64]) -> list[str]:
        return [str(self.labels.decode(number)) for number in numbers.tolist()]

    def baselines(self, training: Sequence[LabelledDocument], test: Sequence[LabelledDocument]) -> dict[str, Measured]:
        """Evaluate the majority class, and TF-IDF with a linear classifier, on single sentences."""
        train, rows = self._targets(training), self.rows(test)
        assert rows.targets is not None
        train_texts, test_texts = ([s for document in part for s in document.sentences] for part in (training, test))
        baselines = {
            "majority": majority(train, rows.targets, self.labels),
            "tfidf": tfidf(train_texts, train, test_texts, rows.targets, self.labels),
        }
        return {name: Measured(one.metrics, self._predictions(rows, one.predicted)) for name, one in baselines.items()}

    def result_fields(self) -> dict[str, object]:
        return {"labels": list(self.labels.names), "vector": self.vector}

    def to_metadata(self) -> dict[str, object]:
        return task_metadata("sentence_classification", self.data, {"vector": self.vector})

    def predict(
        self, model: Model, records: Iterable[Record], *, source: str, first: int = 1
    ) -> Iterator[dict[str, object]]:
        """Yield ``label`` and ``probability``, lists with a class and class probabilities for each sentence."""
        for chunk in numbered_chunks(records, _CHUNK, source=source, first=first):
            documents = [parse_document(record, self.data.sentences, where=where) for where, record in chunk]
            rows = self._windows(documents, None)
            table = self._table(model, rows)
            names = self._names(classify(table, self.labels))
            for start, end in _spans(rows):
                yield {
                    "label": names[start:end],
                    "probability": table[start:end].tolist(),
                    "truncated": bool(rows.cut[start:end].any()),
                }


def _spans(rows: SentenceWindows) -> Iterator[tuple[int, int]]:
    """Return the (start, end) sentence numbers of each document."""
    return zip(rows.starts[:-1].tolist(), rows.starts[1:].tolist(), strict=True)
