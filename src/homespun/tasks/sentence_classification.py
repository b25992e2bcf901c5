"""Sentences in the context of their document, with one label each, such as the spoilers of a review."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.baselines import Baseline, majority, tfidf
from homespun.data.labels import Labels
from homespun.data.sentence_documents import (
    LabelledDocument,
    SentenceWindows,
    Vector,
    parse_document,
    read_sentence_documents,
)
from homespun.errors import UserError
from homespun.inference.logits import forward_logits
from homespun.inference.predict import probabilities
from homespun.metrics.classification import classification_metrics, classify
from homespun.models.bundle import ModelBundle
from homespun.models.model import Model
from homespun.objectives.sentence_classification import SentenceClassification, SentenceClassificationCollator
from homespun.tasks.protocol import Lesson, Measured, Task, TaskData, check_length
from homespun.training.validation import EvalResult

_AHEAD = 256  # documents read ahead in prediction
_LEAST = np.finfo(np.float32).eps


class SentencesData(TaskData):
    """Documents whose sentences have a label each: JSON lines in the Goodreads format, or of that kind."""

    missing = "which documents? give data.train=FILE, with data.sentences=COLUMN, a list of [label, sentence] in each"
    objectives = ("sentence_labels",)

    kind: Literal["sentences"] = "sentences"
    sentences: str = Field(
        default="review_sentences", description="column of [[label, sentence], ...], or of a list of sentences"
    )
    labels: str | None = Field(default=None, description="column of as many labels, where the sentences stand alone")
    length: int = Field(default=512, ge=8, description="tokens that the model is given at a time")
    context: float = Field(
        default=0.25,
        ge=0,
        le=0.9,
        description="of a long document's next part: the share that repeats what came before",
    )

    def read_files(self, inputs: Sequence[str]) -> list[LabelledDocument]:
        """The documents of any files."""
        return read_sentence_documents(
            inputs, sentences=self.sentences, labels=self.labels, columns=self.columns, encoding=self.encoding
        )

    def task(self, objective: Any, stored: ModelBundle, training: Sequence[Any]) -> Task[Any, Any]:
        """Labels for their sentences.

        Raises:
            UserError: another objective, documents longer than the model, or one class alone.
        """
        self.check_objective(objective)
        limit = stored.config.backbone.max_position_embeddings
        check_length("length", self.length, limit, ": longer documents are read in several parts")
        if objective.vector == "first" and stored.config.one_text("objective.vector=first").causal:
            raise UserError(
                "objective.vector=first stands before its sentence, which a causal model has not read there; set "
                "objective.vector=separator"
            )
        labels = Labels.collect([label for document in training for label in document.labels])
        return SentencesTask(self, labels, stored, vector=objective.vector)

    def stored_task(self, stored: ModelBundle, *, source: str) -> Task[Any, Any]:
        """The same, as the model was fine-tuned for it."""
        learned = stored.task.get("learned")
        if stored.labels is None or not isinstance(learned, Mapping) or "vector" not in learned:
            raise UserError(f"{source} does not label sentences; fine-tune it first: homespun finetune spoilers ...")
        return SentencesTask(self, stored.labels, stored, vector=learned["vector"])

    def rename_columns(self, text: Sequence[str], label: str | None) -> dict[str, Any]:
        """``text`` is the column of the sentences, ``label`` that of their labels."""
        if len(text) > 1:
            raise UserError("the sentences of a document are in one column; give --text-field once")
        return {"sentences": text[0] if text else self.sentences, "labels": label or self.labels}


class SentencesTask:
    """Labels for the sentences of documents; see `homespun.tasks.protocol.Task`."""

    def __init__(self, data: SentencesData, labels: Labels, stored: ModelBundle, *, vector: Vector) -> None:
        self.data = data
        self.labels = labels
        self.stored = stored
        self.vector = vector

    @property
    def measures(self) -> Sequence[str]:
        """Areas under curves where there are two classes."""
        areas = ("roc_auc", "pr_auc") if len(self.labels) == 2 else ()
        return (*areas, "macro_f1", "accuracy", "log_loss")

    def strata(self, examples: Sequence[LabelledDocument]) -> NDArray[np.int64]:
        """The label of each document's sentences that is the rarest of all, or the most frequent of all without any.

        Raises:
            UserError: a label that was not seen in training.
        """
        targets = self._targets(examples)
        counts = np.bincount(targets, minlength=len(self.labels))
        frequent_first = np.argsort(-counts, kind="stable")
        ranks = np.argsort(frequent_first)[targets]
        ends = np.cumsum([len(document.sentences) for document in examples])
        rarest = [max(own, default=0) for own in np.split(ranks, ends[:-1])]
        return frequent_first[np.array(rarest, dtype=np.int64)]

    def _targets(self, examples: Sequence[LabelledDocument]) -> NDArray[np.int64]:
        return self.labels.encode([label for document in examples for label in document.labels])

    def texts(self, examples: Sequence[LabelledDocument]) -> list[str]:
        """The documents, their sentences joined."""
        return [" ".join(document.sentences) for document in examples]

    def rows(self, examples: Sequence[LabelledDocument]) -> SentenceWindows:
        """A row a document, or a part of it."""
        return self._windows(examples, self._targets(examples))

    def _windows(self, examples: Sequence[LabelledDocument], targets: NDArray[np.int64] | None) -> SentenceWindows:
        return SentenceWindows(
            examples,
            targets,
            self.stored.tokenizer,
            length=self.data.length,
            context=self.data.context,
            vector=self.vector,
        )

    def lesson(self, objective: SentenceClassification, stored: ModelBundle, training: SentenceWindows) -> Lesson:
        """A new head on the backbone."""
        assert training.targets is not None
        weights = objective.weights(self.labels, training.targets)
        module = objective.build(copy.deepcopy(stored.model), stored.config, self.labels, weights=weights)
        collate = SentenceClassificationCollator(stored.tokenizer.pad_id, self.vector, weights)
        return Lesson(module, module.model, training, collate, module.export_model)

    def validate(self, lesson: Lesson, rows: SentenceWindows, *, batch_size: int) -> EvalResult:
        """The log loss and the metrics, over all sentences."""
        metrics = self.measure(lesson.model, rows, batch_size=batch_size).metrics
        plain = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
        return EvalResult(metrics["log_loss"], {"loss": metrics["log_loss"]}, plain)

    def measure(self, model: Model, rows: SentenceWindows, *, batch_size: int) -> Measured:
        """`classification_metrics` over all sentences, and what was said of those of each document."""
        assert rows.targets is not None
        if not len(rows):
            raise UserError("there is nothing to measure: no document has a sentence")
        table = self._table(model, rows, batch_size)
        predicted = classify(table, self.labels)
        metrics = classification_metrics(self.labels, rows.targets, predicted, probabilities=table)
        return Measured(metrics | {"documents": len(rows.documents)}, self._said(rows, predicted, table))

    def _table(self, model: Model, rows: SentenceWindows, batch_size: int) -> NDArray[np.float64]:
        """(sentences, classes) probabilities."""
        collate = SentenceClassificationCollator(self.stored.tokenizer.pad_id, self.vector)
        logits = np.zeros((len(rows.sizes), len(self.labels)), dtype=np.float32)
        for numbers, part in forward_logits(model, rows, lambda some: collate(some, ()), batch_size=batch_size):
            sentences = collate([rows[number] for number in numbers], ()).sentences
            assert sentences is not None
            own = sentences.numpy()
            judged = [s for n in numbers for s in range(rows.windows[n, 1], rows.windows[n, 2])]
            sums = np.zeros((len(judged), part.shape[-1]))
            np.add.at(sums, own[own >= 0], part[own >= 0])
            logits[judged] = sums / np.bincount(own[own >= 0], minlength=len(judged))[:, None]
        return probabilities(logits, self.labels)

    def _said(
        self, rows: SentenceWindows, predicted: NDArray[np.int64], table: NDArray[np.float64] | None = None
    ) -> list[dict[str, Any]]:
        """An object a document; its ``score`` is the share of its sentences that is right."""
        assert rows.targets is not None
        said = []
        for begin, end in zip(rows.starts[:-1].tolist(), rows.starts[1:].tolist(), strict=True):
            true, told = rows.targets[begin:end], predicted[begin:end]
            line: dict[str, Any] = {
                "truth": [str(self.labels.decode(t)) for t in true.tolist()],
                "predicted": [str(self.labels.decode(t)) for t in told.tolist()],
            }
            if end > begin:
                line["score"] = float((true == told).mean())
            if table is not None:
                line["probability"] = table[begin:end].tolist()
            if table is not None and end > begin:
                likely = table[begin:end][np.arange(end - begin), true]
                line["loss"] = float(-np.log(np.clip(likely, _LEAST, None)).mean())
            said.append(line)
        return said

    def baselines(self, training: Sequence[LabelledDocument], test: Sequence[LabelledDocument]) -> dict[str, Measured]:
        """The majority class, and TF-IDF with a linear model, of sentences by themselves."""
        learned, rows = self._targets(training), self.rows(test)
        assert rows.targets is not None
        texts, unseen = ([s for document in part for s in document.sentences] for part in (training, test))
        made: dict[str, Baseline] = {
            "majority": majority(learned, rows.targets, self.labels),
            "tfidf": tfidf(texts, learned, unseen, rows.targets, self.labels),
        }
        return {name: Measured(line.metrics, self._said(rows, line.predicted)) for name, line in made.items()}

    def facts(self) -> dict[str, Any]:
        """Classes, and what stands for a sentence."""
        return {"labels": list(self.labels.names), "vector": self.vector}

    def describe(self) -> dict[str, Any]:
        """How the documents are read."""
        learned = {"vector": self.vector}
        return {"kind": "sentence_labels", "data": self.data.kind, "learned": learned} | self.data.to_metadata()

    def predict(self, model: Model, records: Iterable[Mapping[str, Any]], *, source: str) -> Iterator[dict[str, Any]]:
        """``label``, a list with one for each sentence, and ``probability``, a list of those of all classes."""
        waiting = enumerate(records, start=1)
        while part := list(islice(waiting, _AHEAD)):
            documents = [
                parse_document(record, self.data.sentences, where=f"row {number} of {source}")
                for number, record in part
            ]
            rows = self._windows(documents, None)
            table = self._table(model, rows, 32)
            names = [str(self.labels.decode(number)) for number in classify(table, self.labels).tolist()]
            for begin, end in zip(rows.starts[:-1].tolist(), rows.starts[1:].tolist(), strict=True):
                yield {
                    "label": names[begin:end],
                    "probability": table[begin:end].tolist(),
                    "truncated": bool(rows.cut[begin:end].any()),
                }
