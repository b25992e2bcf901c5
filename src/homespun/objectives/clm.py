"""Causal language modelling (Radford et al. 2018), as an objective and as an auxiliary loss in fine-tuning."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.data.loader import Collate
from homespun.data.rows import Row, pad
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.encoder_decoder import StackConfig
from homespun.models.heads import CausalLMHead, CausalLMHeadConfig, MaskedLMHeadConfig
from homespun.models.model import Model
from homespun.objectives.mlm import gather_positions, token_terms
from homespun.objectives.protocol import Objective, PretrainingConfig, UnigramTerm
from homespun.text.tokenizer import Tokenizer


def find_next_tokens(batch: Batch, excluded: Sequence[tuple[int, int]] = ()) -> tuple[Tensor, Tensor]:
    """Find the tokens that are followed by a token of the same document, and the following tokens.

    Tokens at the (row, position) pairs ``excluded`` have no label.

    Returns:
        (targets,) positions into batch * seq, and (targets,) token ids.
    """
    ids = batch.input_ids
    follows = torch.ones(ids.shape, dtype=torch.bool, device=ids.device)
    follows[:, -1] = False
    if batch.attention_mask is not None:
        follows[:, :-1] &= batch.attention_mask[:, 1:]
    if batch.documents is not None:
        follows[:, :-1] &= batch.documents[:, 1:] == batch.documents[:, :-1]
    for row, position in excluded:
        follows[row, position] = False
    positions = follows.flatten().nonzero().squeeze(-1)
    return positions, ids.flatten()[positions + 1]


def find_false_ends(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return the (row, position) before each final [SEP] whose document continues in another row."""
    return [(number, len(row.input_ids) - 2) for number, row in enumerate(rows) if row.cut[1]]


@dataclasses.dataclass(frozen=True)
class ClmCollator:
    """Collate rows; the label of a token is the next token of the same document.

    A [SEP] that ends a row inside a document is not a label; otherwise a model would learn to end texts at the row
    length.
    """

    pad_id: int

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        batch = pad(rows, self.pad_id)
        positions, labels = find_next_tokens(batch, find_false_ends(rows))
        count = float(len(labels))
        targets = {"causal": count, "causal_accuracy": count}
        return dataclasses.replace(batch, positions=positions, labels=labels, targets=targets)


class CausalLM(PretrainingConfig):
    """Prediction of each next token by a causal model."""

    kind: Literal["clm"] = "clm"

    @property
    def unigram_term(self) -> UnigramTerm:
        return UnigramTerm("causal")

    def collate(self, tokenizer: Tokenizer) -> ClmCollator:
        return ClmCollator(tokenizer.pad_id)

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> CausalLMObjective:
        """Build the objective with the backbone of ``model`` and its language model head, or a new head.

        Raises:
            UserError: the backbone is not causal.
        """
        stack = model.one_text("objective clm")
        if not stack.causal:
            raise UserError(
                f"objective clm needs a causal model, or tokens would see their labels; set "
                f"{stack.causal_setting(True)} for a new model; for a model given with --from set objective.kind=mlm"
            )
        head = model.head if isinstance(model.head, CausalLMHeadConfig | MaskedLMHeadConfig) else None
        config = ModelConfig(backbone=model.backbone, head=head or build_clm_head_config(stack))
        return CausalLMObjective(config.build(), config)


def build_clm_head_config(backbone: StackConfig) -> CausalLMHeadConfig:
    """Build the config of a new head. A projection to narrower embeddings has a bias if the layers have biases."""
    if backbone.embedding_size in (0, backbone.hidden_size):
        return CausalLMHeadConfig()
    return CausalLMHeadConfig(transform_bias=backbone.mlp_bias)


class CausalLMObjective(Objective):
    """Terms ``causal`` and ``causal_accuracy``. Exports the model with its language model head."""

    def forward(self, batch: Batch) -> Loss:
        hidden = self.model.backbone(batch.input_ids, **batch.context)
        return Loss(token_terms("causal", self.model.lm_head, hidden, batch.positions, batch.labels))


@dataclasses.dataclass(frozen=True)
class WithNextTokenCounts:
    """Collate that also counts the next tokens, which are the targets of the auxiliary loss."""

    collate: Collate

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        batch = self.collate(rows, row_seeds)
        positions, _ = find_next_tokens(batch)
        return dataclasses.replace(batch, targets=batch.targets | {"causal": float(len(positions))})


class AuxiliaryLM(nn.Module):
    """Causal language modelling loss on the hidden states of the task (Radford et al. 2018, equation 5).

    ``weight`` is lambda, 0.5 in the paper.
    """

    def __init__(self, head: CausalLMHead, weight: float) -> None:
        super().__init__()
        self.head, self.weight = head, weight

    @classmethod
    def of(cls, model: Model, config: ModelConfig, weight: float) -> AuxiliaryLM:
        """Build the loss for a pretrained model, with its language model head or a new head on its word embeddings.

        Raises:
            UserError: the model is not causal.
        """
        if not config.one_text("auxiliary_lm").causal:
            raise UserError("auxiliary_lm needs a causal model, and this one is not; set objective.auxiliary_lm=0")
        head = model.head if isinstance(model.head, CausalLMHead) else CausalLMHeadConfig().build(model.backbone)
        assert isinstance(head, CausalLMHead)
        return cls(head, weight)

    def forward(self, hidden: Tensor, batch: Batch) -> Term:
        """Compute the term ``causal`` from (sequences, seq, hidden) hidden states."""
        positions, labels = find_next_tokens(batch)
        prediction = self.head.predict(gather_positions(hidden, positions), labels)
        return Term(prediction.loss, len(labels), weight=self.weight)
