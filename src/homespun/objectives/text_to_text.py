"""Text to text: write the target of a source (Sutskever et al. 2014), with two stacks or with one.

An encoder with a decoder reads the source and writes the target. A causal stack reads ``source separator target`` as
one text, and learns the target alone (Radford et al. 2019).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import nn

from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.config import Config
from homespun.data.loader import Collate
from homespun.data.padding import pad
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.backbone import EncoderDecoder
from homespun.models.config import CausalLMHeadConfig, ModelConfig
from homespun.models.encoder import initialise
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.models.heads import CausalLMHead
from homespun.models.model import Model
from homespun.objectives.decoder_loss import EQUAL_WEIGHTS, StreamWeights, decoder_loss
from homespun.objectives.mlm import gather_positions
from homespun.objectives.seq2seq import add_decoder_inputs

_TERMS = ("seq2seq", "seq2seq_accuracy")


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Collate for two stacks: the decoder reads ``start target`` and writes ``target``."""

    pad_id: int
    start_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Rows with ``target_ids`` to a batch; nothing is drawn."""
        return add_decoder_inputs(pad(rows, self.pad_id), _targets(rows), start_id=self.start_id, pad_id=self.pad_id)


@dataclass(frozen=True)
class PrefixLmCollator:
    """Collate for one stack: the target goes on from the source, and its tokens alone are labels."""

    pad_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Rows with ``target_ids`` to a batch; nothing is drawn."""
        targets = _targets(rows)
        joined = [Row(np.concatenate([row.input_ids, ids])) for row, ids in zip(rows, targets, strict=True)]
        batch = pad(joined, self.pad_id)
        seq = batch.input_ids.shape[1]
        # a token is told from the place before it, which for the first is the end of the source
        positions = [
            index * seq + len(row.input_ids) - 1 + np.arange(len(ids))
            for index, (row, ids) in enumerate(zip(rows, targets, strict=True))
        ]
        labels = torch.from_numpy(np.concatenate(targets))
        return dataclasses.replace(
            batch,
            positions=torch.from_numpy(np.concatenate(positions)),
            labels=labels,
            targets=dict.fromkeys(_TERMS, float(len(labels))),
        )


def _targets(rows: Sequence[Row]) -> list[np.ndarray]:
    targets = [row.target_ids for row in rows if row.target_ids is not None]
    if len(targets) != len(rows):
        raise ValueError("text to text needs rows with target_ids")
    return targets


class TextToText(Config):
    """Learn to write the target of each source, by teacher forcing.

    ``label_smoothing`` is for training: the loss of the validation is the plain one, whatever it is.
    """

    kind: Literal["text_to_text"] = "text_to_text"
    label_smoothing: float = Field(default=0.0, ge=0, lt=1, description="share of the truth spread over all words")
    frozen_encoder: bool = Field(default=False, description="train the decoder alone; the word embeddings stay too")
    streams: StreamWeights = Field(default=EQUAL_WEIGHTS, description="of a decoder with several streams (ProphetNet)")

    def collate(self, config: ModelConfig) -> Collate:
        """The data side."""
        backbone = config.backbone
        if isinstance(backbone, EncoderDecoderConfig):
            return Seq2SeqCollator(backbone.pad_token_id, backbone.decoder_start_token_id)
        return PrefixLmCollator(backbone.pad_token_id)

    def build(self, model: Model, config: ModelConfig) -> TextToTextObjective:
        """``model``, which is taken over, not copied, under its language model's head or a new one; ``config`` is its.

        Raises:
            UserError: the model cannot write, or there is no encoder to be frozen.
        """
        backbone = config.backbone
        one_stack = not isinstance(backbone, EncoderDecoderConfig)
        if one_stack and not backbone.causal:
            raise UserError(
                "objective text_to_text needs a model that writes, an encoder with a decoder or a causal stack, and "
                "this one is an encoder alone; start from one such as bart-mini, t5-mini or gpt2-mini, or classify "
                "with `homespun finetune classify`"
            )
        if one_stack and self.frozen_encoder:
            raise UserError("frozen_encoder=true, but a causal stack has no encoder of its own; leave it out")
        if not isinstance(config.head, CausalLMHeadConfig):
            own = CausalLMHeadConfig()
            head = own.build(model.backbone)
            tied = set(model.backbone.modules())
            initialise((module for module in head.modules() if module not in tied), backbone.initializer_range)
            config = ModelConfig(backbone=backbone, head=own)
            model = Model(model.backbone, head, special_tokens=model.special_tokens)
        return TextToTextObjective(
            model,
            config,
            label_smoothing=self.label_smoothing,
            frozen_encoder=self.frozen_encoder,
            streams=self.streams,
        )


class TextToTextObjective(nn.Module):
    """Terms ``seq2seq`` and its accuracy, over the tokens of the targets. Keeps the model with its head."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        *,
        label_smoothing: float = 0.0,
        frozen_encoder: bool = False,
        streams: StreamWeights = EQUAL_WEIGHTS,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.label_smoothing = label_smoothing
        self.streams = streams
        if frozen_encoder:
            assert isinstance(model.backbone, EncoderDecoder)
            model.freeze(model.backbone.encoder)

    def forward(self, batch: Batch) -> Loss:
        """The vocabulary projection runs only where there is a label."""
        smoothing = self.label_smoothing if self.training else 0.0
        backbone, head = self.model.backbone, self.model.head
        if isinstance(backbone, EncoderDecoder):
            source = backbone.encode(batch.input_ids, **batch.context)
            return Loss(decoder_loss(self.model, source, batch, self.streams, label_smoothing=smoothing))
        assert isinstance(head, CausalLMHead)
        assert batch.positions is not None
        assert batch.labels is not None
        hidden = backbone(batch.input_ids, **batch.context)
        prediction = head.predict(gather_positions(hidden, batch.positions), batch.labels, label_smoothing=smoothing)
        count = len(batch.labels)
        learnt, correct = Term(prediction.loss, count), Term(prediction.correct, count, weight=0.0)
        return Loss(dict(zip(_TERMS, (learnt, correct), strict=True)))

    def export_model(self) -> tuple[Model, ModelConfig]:
        """All of it."""
        return self.model, self.config
