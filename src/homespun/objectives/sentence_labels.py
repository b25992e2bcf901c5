"""Fine-tuning to label the sentences of a document, each read in the context of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.batch import Batch, Draw, Loss, Term
from homespun.config import Config
from homespun.data.document_sentences import CONTEXT, Vector
from homespun.data.labelled import Labels
from homespun.data.padding import pad
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.encoder import initialise
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers, on_layers
from homespun.models.token_heads import TokenClassificationHeadConfig
from homespun.objectives.supervised import Classification, ClassWeight


class SentenceLabels(Config):
    """A class for every sentence of a document, by cross entropy, in one pass over the document.

    What is told of a sentence is told from its own tokens: the [SEP] after it (Cohan et al. 2019), a [CLS] before it
    (Liu & Lapata 2019), or the mean of its tokens.
    """

    kind: Literal["sentence_labels"] = "sentence_labels"
    head: TokenClassificationHeadConfig = TokenClassificationHeadConfig()
    vector: Vector = Field(
        default="separator", description="what stands for a sentence: its separator, its first token, the mean of all"
    )
    frozen: bool = Field(default=False, description="train the head alone; the encoder stays as it is")
    layers: Layers = "last"
    class_weights: Literal["balanced"] | dict[str, ClassWeight] | None = Field(
        default=None, description="weight of each class in the loss, by name; balanced: by inverse frequency"
    )
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    def weights(self, labels: Labels, targets: NDArray[np.int64]) -> tuple[float, ...] | None:
        """The weight of each class, where ``targets`` are (sentences,) of the training: `Classification.weights`."""
        return Classification(class_weights=self.class_weights).weights(labels, targets)

    def build(
        self, model: Model, config: ModelConfig, labels: Labels, *, weights: tuple[float, ...] | None = None
    ) -> SentenceObjective:
        """A new head on the backbone of ``model``, which is taken over, not copied; ``config`` is its config."""
        own = on_layers(self.head.model_copy(update={"num_labels": len(labels)}), self.layers)
        head = own.build(model.backbone)
        initialise(head.modules(), config.backbone.initializer_range)
        config = config.model_copy(update={"head": own})
        return SentenceObjective(
            Model(model.backbone, head, reader=config.reader),
            config,
            frozen=self.frozen,
            weights=weights,
            label_smoothing=self.label_smoothing,
        )


@dataclass(frozen=True)
class SentenceCollate:
    """Rows of sentences -> a `Batch` with the ``labels`` (sentences,) of those that are judged, and their tokens."""

    pad_id: int
    vector: Vector
    weights: tuple[float, ...] | None = None

    def __call__(self, rows: Sequence[Row], draws: Sequence[Draw]) -> Batch:
        """Nothing is random here."""
        batch = pad(rows, self.pad_id)
        table = np.full(batch.input_ids.shape, -1, dtype=np.int64)
        labels: list[int] = []
        for place, row in zip(table, rows, strict=True):
            assert row.sentence_ends is not None
            assert isinstance(row.label, np.ndarray)
            begins = [0 if self.vector == "first" else 1, *row.sentence_ends[:-1].tolist()]
            for begin, end, label in zip(begins, row.sentence_ends.tolist(), row.label.tolist(), strict=True):
                if label == CONTEXT:
                    continue
                place[self._tokens(begin, end)] = len(labels)
                labels.append(label)
        classes = torch.tensor(labels, dtype=torch.int64)
        count = float(len(labels)) if self.weights is None else float(np.array(self.weights)[labels].sum())
        return dataclasses.replace(
            batch,
            sentences=torch.from_numpy(table),
            labels=classes,
            targets={"loss": count, "accuracy": float(len(labels))},
        )

    def _tokens(self, begin: int, end: int) -> slice:
        """Those that stand for the sentence from ``begin`` to ``end``, its [SEP] the last; an empty one has that."""
        if self.vector == "first":
            return slice(begin, begin + 1)
        alone = self.vector == "separator" or end - begin == 1
        return slice(end - 1, end) if alone else slice(begin, end - 1)


def by_sentence(values: Tensor, sentences: Tensor, count: int) -> Tensor:
    """(batch, seq, width) -> (sentences, width): the mean over the tokens of each (`Batch.sentences`)."""
    own = sentences >= 0
    chosen, numbers = values[own], sentences[own]  # (tokens, width), (tokens,)
    sums = values.new_zeros(count, values.shape[-1]).index_add(0, numbers, chosen)
    sizes = values.new_zeros(count).index_add(0, numbers, torch.ones_like(numbers, dtype=values.dtype))
    return sums / sizes[:, None]


class SentenceObjective(nn.Module):
    """Terms ``loss`` and ``accuracy`` (weight 0) over the sentences that are judged.

    The logits of a sentence are the mean of those of its tokens, which is what the classifier gives of their mean.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        *,
        frozen: bool = False,
        weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.label_smoothing = label_smoothing
        self.register_buffer("class_weights", None if weights is None else torch.tensor(weights), persistent=False)
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
        logits = by_sentence(logits, batch.sentences, len(batch.labels))  # (sentences, classes)
        loss = F.cross_entropy(
            logits, batch.labels, weight=self.class_weights, label_smoothing=self.label_smoothing, reduction="sum"
        )
        count = len(batch.labels) if self.class_weights is None else self.class_weights[batch.labels].sum()
        right = (logits.argmax(dim=1) == batch.labels).sum().float()
        return Loss({"loss": Term(loss, count), "accuracy": Term(right, len(batch.labels), weight=0.0)})

    def export_model(self) -> tuple[Model, ModelConfig]:
        """The model, which gives logits of every token."""
        return Model(self.model.backbone, self.model.head, reader=self.config.reader), self.config
