"""What a decoder writes of what an encoder has read: teacher forcing, under whatever noise made the source.

BART, T5, PEGASUS and fine-tuning on pairs of texts are this one module; they differ in the rows they are given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from homespun.batch import Batch, Loss
from homespun.errors import UserError
from homespun.models.config import CausalLMHeadConfig, ModelConfig
from homespun.models.model import Model
from homespun.objectives.decoder_loss import EQUAL_WEIGHTS, StreamWeights, decoder_loss


def add_decoder_inputs(batch: Batch, targets: Sequence[np.ndarray], *, start_id: int, pad_id: int) -> Batch:
    """The batch of sources with what the decoder reads and writes.

    Args:
        batch: the sources.
        targets: (target,) ids for each row, the end token included: the labels.
        start_id: what the decoder reads first; after it come the labels but for the last.
        pad_id: fills the decoder's rows.
    """
    lengths = np.array([len(target) for target in targets])
    shape = len(targets), int(lengths.max())
    ids = np.full(shape, pad_id, dtype=np.int64)
    for row, target in zip(ids, targets, strict=True):
        row[0] = start_id
        row[1 : len(target)] = target[:-1]
    keep = np.arange(shape[1]) < lengths[:, None]
    count = float(lengths.sum())
    return dataclasses.replace(
        batch,
        decoder_input_ids=torch.from_numpy(ids),
        decoder_attention_mask=None if keep.all() else torch.from_numpy(keep),
        positions=torch.from_numpy(np.flatnonzero(keep)),
        labels=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        targets={"seq2seq": count, "seq2seq_accuracy": count},
    )


def build_seq2seq_config(
    model: ModelConfig,
    kind: str,
    *,
    tokens: Mapping[str, int | None] | None = None,
    head: CausalLMHeadConfig | None = None,
) -> ModelConfig:
    """An encoder with a decoder under a language model's head, its own where it has one.

    Args:
        model: what is to write.
        kind: of the objective, for its name in errors.
        tokens: what its texts begin and end with, by the names in `NAMED_TOKENS`; others stay as they are.
        head: what it gets where it has none; by default one over the words that it reads.

    Raises:
        UserError: the backbone is one stack.
    """
    if not model.backbone.has_decoder:
        raise UserError(
            f"objective {kind} needs an encoder with a decoder, and this model is one stack; take one such as "
            f"model.preset=bart-mini, or objective clm for a causal stack"
        )
    own = model.head if isinstance(model.head, CausalLMHeadConfig) else None
    backbone = model.backbone.model_copy(update=dict(tokens or {}))
    return ModelConfig(backbone=backbone, head=own or head or CausalLMHeadConfig())


class Seq2SeqObjective(nn.Module):
    """Terms ``seq2seq`` and its accuracy. Keeps the model with its language model's head."""

    def __init__(self, model: Model, config: ModelConfig, streams: StreamWeights = EQUAL_WEIGHTS) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self.streams = streams

    def forward(self, batch: Batch) -> Loss:
        """The vocabulary projection runs only where there is a label."""
        source = self.model.backbone.encode(batch.input_ids, **batch.context)
        return Loss(decoder_loss(self.model, source, batch, self.streams))

    def export_model(self) -> tuple[Model, ModelConfig]:
        """Both stacks with their head."""
        return self.model, self.config
