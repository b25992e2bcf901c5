"""Fine-tuning to find answers in a text: its first and its last token (Devlin et al. 2019, sections 4.2 and 4.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.config import Config
from homespun.data.loader import Collate
from homespun.data.padding import pad
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.models.scalar_mix import Layers, on_layers
from homespun.models.token_heads import FeedForwardAnsweringHeadConfig, QuestionAnsweringHeadConfig
from homespun.objectives.head_training import build_token_head


class ExtractiveQA(Config):
    """The first and the last token of an answer, by cross entropy over the tokens of a window; of none, ``[CLS]``."""

    kind: Literal["span_answers"] = "span_answers"
    head: Annotated[QuestionAnsweringHeadConfig | FeedForwardAnsweringHeadConfig, Field(discriminator="kind")] = (
        QuestionAnsweringHeadConfig()
    )
    frozen: bool = Field(default=False, description="train the head alone; the encoder stays as it is")
    layers: Layers = "last"

    def collate(self, pad_id: int) -> Collate:
        """The data side."""
        return QuestionAnsweringCollator(pad_id)

    def build(self, model: Model, config: ModelConfig) -> ExtractiveQAObjective:
        """A new head on the backbone of ``model``, which is taken over, not copied; ``config`` is its config.

        A model that comes with such a head, fine-tuned before, keeps it.
        """
        if config.head == on_layers(self.head, self.layers) and model.head is not None:
            return ExtractiveQAObjective(model, config, frozen=self.frozen)
        model, config = build_token_head(self.head, self.layers, model, config)
        return ExtractiveQAObjective(model, config, frozen=self.frozen)


def question_batch(rows: Sequence[Row], pad_id: int) -> Batch:
    """Windows side by side. The tokens of the question see all of the text, and are seen, where the attention has
    such tokens (Beltagy et al. 2020, section 6)."""
    batch = pad(rows, pad_id)
    seen = np.zeros(batch.input_ids.shape, dtype=np.bool_)
    for table_row, row in zip(seen, rows, strict=True):
        assert row.sentence_ends is not None
        table_row[: int(row.sentence_ends[0])] = True
    return dataclasses.replace(batch, global_attention_mask=torch.from_numpy(seen))


@dataclass(frozen=True)
class QuestionAnsweringCollator:
    """Rows whose ``label`` is (2,), the places of the first and the last token, to a `Batch`."""

    pad_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Nothing is random here."""
        labels = torch.from_numpy(np.array([row.label for row in rows], dtype=np.int64))
        targets = dict.fromkeys(("loss", "accuracy"), float(len(rows)))
        return dataclasses.replace(question_batch(rows, self.pad_id), labels=labels, targets=targets)


class ExtractiveQAObjective(nn.Module):
    """Terms ``loss``, the mean of both ends' cross entropies, and ``accuracy`` (weight 0): both ends are right."""

    def __init__(self, model: Model, config: ModelConfig, *, frozen: bool = False) -> None:
        super().__init__()
        self.model = model
        self.config = config
        if frozen:
            self.model.freeze(self.model.backbone)

    def forward(self, batch: Batch) -> Loss:
        """An end may be any token of the row but its padding."""
        if batch.labels is None:
            raise ValueError("span answers need a batch with labels")
        logits: Tensor = self.model(batch.input_ids, **batch.context).float()  # (windows, seq, 2)
        if batch.attention_mask is not None:
            logits = logits.masked_fill(~batch.attention_mask[..., None], -torch.inf)
        ends = logits.transpose(1, 2).flatten(0, 1)  # (windows * 2, seq)
        loss = F.cross_entropy(ends, batch.labels.flatten(), reduction="sum") / 2
        right = (logits.argmax(dim=1) == batch.labels).all(dim=1).sum().float()
        count = len(batch.labels)
        return Loss({"loss": Term(loss, count), "accuracy": Term(right, count, weight=0.0)})

    def export_model(self) -> tuple[Model, ModelConfig]:
        """All of it."""
        return self.model, self.config
