"""Fine-tuning to label the sentences of a document, each read in the context of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from homespun.batch import Batch, Loss, RowSeed
from homespun.data.labels import Labels
from homespun.data.padding import pad
from homespun.data.rows import Row
from homespun.data.sentence_documents import CONTEXT, Vector
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers
from homespun.models.token_heads import TokenClassificationHeadConfig
from homespun.objectives.head_training import ClassLoss, ClassTraining, build_token_head


class SentenceClassification(ClassTraining):
    """A class for every sentence of a document, by cross entropy, in one pass over the document.

    What is told of a sentence is told from its own tokens: the [SEP] after it (Cohan et al. 2019), a [CLS] before it
    (Liu & Lapata 2019), or the mean of its tokens.
    """

    kind: Literal["sentence_labels"] = "sentence_labels"
    head: TokenClassificationHeadConfig = TokenClassificationHeadConfig()
    vector: Vector = Field(
        default="separator", description="what stands for a sentence: its separator, its first token, the mean of all"
    )
    layers: Layers = "last"

    def build(
        self, model: Model, config: ModelConfig, labels: Labels, *, weights: tuple[float, ...] | None = None
    ) -> SentenceClassificationObjective:
        """A new head on the backbone of ``model``, which is taken over, not copied; ``config`` is its config."""
        head = self.head.model_copy(update={"num_labels": len(labels)})
        model, config = build_token_head(head, self.layers, model, config)
        return SentenceClassificationObjective(
            model, config, ClassLoss(weights, self.label_smoothing), frozen=self.frozen
        )


@dataclass(frozen=True)
class SentenceClassificationCollator:
    """Rows of sentences -> a `Batch` with the ``labels`` (sentences,) of those that are judged, and their tokens."""

    pad_id: int
    vector: Vector
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Nothing is random here."""
        batch = pad(rows, self.pad_id)
        table = np.full(batch.input_ids.shape, -1, dtype=np.int64)
        labels: list[int] = []
        for table_row, row in zip(table, rows, strict=True):
            assert row.sentence_ends is not None
            assert isinstance(row.label, np.ndarray)
            starts = [0 if self.vector == "first" else 1, *row.sentence_ends[:-1].tolist()]
            for start, end, label in zip(starts, row.sentence_ends.tolist(), row.label.tolist(), strict=True):
                if label == CONTEXT:
                    continue
                table_row[self._tokens(start, end)] = len(labels)
                labels.append(label)
        classes = torch.tensor(labels, dtype=torch.int64)
        count = float(len(labels)) if self.weights is None else float(np.array(self.weights)[labels].sum())
        return dataclasses.replace(
            batch,
            sentences=torch.from_numpy(table),
            labels=classes,
            targets={"loss": count, "accuracy": float(len(labels))},
        )

    def _tokens(self, start: int, end: int) -> slice:
        """Those that stand for the sentence from ``start`` to ``end``, its [SEP] the last; an empty one has that."""
        if self.vector == "first":
            return slice(start, start + 1)
        alone = self.vector == "separator" or end - start == 1
        return slice(end - 1, end) if alone else slice(start, end - 1)


def mean_by_sentence(values: Tensor, sentences: Tensor, count: int) -> Tensor:
    """(batch, seq, width) -> (sentences, width): the mean over the tokens of each (`Batch.sentences`)."""
    own = sentences >= 0
    chosen, numbers = values[own], sentences[own]  # (tokens, width), (tokens,)
    sums = values.new_zeros(count, values.shape[-1]).index_add(0, numbers, chosen)
    sizes = values.new_zeros(count).index_add(0, numbers, torch.ones_like(numbers, dtype=values.dtype))
    return sums / sizes[:, None]


class SentenceClassificationObjective(nn.Module):
    """Terms ``loss`` and ``accuracy`` (weight 0) over the sentences that are judged.

    The logits of a sentence are the mean of those of its tokens, which is what the classifier gives of their mean.
    """

    def __init__(self, model: Model, config: ModelConfig, loss: ClassLoss, *, frozen: bool = False) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.loss = loss
        if frozen:
            self.model.freeze(self.model.backbone)

    def forward(self, batch: Batch) -> Loss:
        """The terms.

        Raises:
            ValueError: the batch has no sentences.
        """
        if batch.labels is None or batch.sentences is None:
            raise ValueError("sentences are labelled in a batch that has them")
        logits = self.model(batch.input_ids, **batch.context).float()  # (batch, seq, classes)
        logits = mean_by_sentence(logits, batch.sentences, len(batch.labels))  # (sentences, classes)
        terms: Loss = self.loss(logits, batch.labels)
        return terms

    def export_model(self) -> tuple[Model, ModelConfig]:
        """The model, which gives logits of every token."""
        return Model(self.model.backbone, self.model.head, reader=self.config.reader), self.config
