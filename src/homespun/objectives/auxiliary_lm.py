"""Auxiliary language modelling loss in fine-tuning (Radford et al. 2018, equation 5): L3 = L2 + lambda L1."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from homespun.batch import Batch, RowSeed, Term
from homespun.data.loader import Collate
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.heads import CausalLMHead, CausalLMHeadConfig
from homespun.models.model import Model
from homespun.objectives.clm import find_next_tokens
from homespun.objectives.mlm import gather_positions

TERM = "causal"


@dataclass(frozen=True)
class WithNextTokenCounts:
    """Collate that also counts the next tokens, the targets of the auxiliary loss."""

    collate: Collate

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """The batch of ``collate``."""
        batch = self.collate(rows, row_seeds)
        positions, _ = find_next_tokens(batch)
        return dataclasses.replace(batch, targets=batch.targets | {TERM: float(len(positions))})


class AuxiliaryLM(nn.Module):
    """Loss of every next token, from the hidden states that the head of the task reads.

    Args:
        head: of the language model.
        weight: lambda; 0.5 in the paper.
    """

    def __init__(self, head: CausalLMHead, weight: float) -> None:
        super().__init__()
        self.head, self.weight = head, weight

    @classmethod
    def of(cls, model: Model, config: ModelConfig, weight: float) -> AuxiliaryLM:
        """Build it for a pretrained model, with its language model head or a new one on its word embeddings.

        Raises:
            UserError: the model is not causal.
        """
        if not config.one_text("auxiliary_lm").causal:
            raise UserError(
                "auxiliary_lm predicts the next token, which a model that is not causal sees; take a causal model, "
                "or set objective.auxiliary_lm=0"
            )
        head = model.head
        if not isinstance(head, CausalLMHead):
            built = CausalLMHeadConfig().build(model.backbone)
            assert isinstance(built, CausalLMHead)
            head = built
        return cls(head, weight)

    def forward(self, hidden: Tensor, batch: Batch) -> Term:
        """(sequences, seq, hidden) of the batch -> its term."""
        positions, labels = find_next_tokens(batch)
        prediction = self.head.predict(gather_positions(hidden, positions), labels)
        return Term(prediction.loss, torch.tensor(float(len(labels))), weight=self.weight)
