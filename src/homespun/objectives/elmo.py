"""Bidirectional language model of two independent directions (ELMo; Peters et al. 2018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from homespun.batch import Batch, Loss, RowSeed, Term
from homespun.data.rows import Row, pad
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.elmo import BiLMHead, BiLMHeadConfig, Cutoffs, Softmax, cutoffs_for
from homespun.models.embeddings import fill_character_table
from homespun.objectives.clm import find_false_ends, find_next_tokens
from homespun.objectives.mlm import gather_positions
from homespun.objectives.protocol import Objective, PretrainingConfig
from homespun.text.tokenizer import Tokenizer

DIRECTIONS = ("forward", "backward")


@dataclasses.dataclass(frozen=True)
class ElmoCollator:
    """Collate rows: ``positions`` of tokens followed by another of the same document, ``labels`` the following tokens.

    The backward direction predicts the token at each position. Pairs with a [CLS] or [SEP] inside a document
    (`Row.cut`) are excluded.
    """

    pad_id: int
    accuracy: bool

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        batch = pad(rows, self.pad_id)
        false_starts = [(number, 0) for number, row in enumerate(rows) if row.cut[0]]
        positions, labels = find_next_tokens(batch, [*false_starts, *find_false_ends(rows)])
        names = [f"{name}{end}" for name in DIRECTIONS for end in ("", *["_accuracy"] * self.accuracy)]
        targets = dict.fromkeys(names, float(len(labels)))
        return dataclasses.replace(batch, positions=positions, labels=labels, targets=targets)


class BiLM(PretrainingConfig):
    """Prediction of the next token from previous tokens, and of the previous token from later tokens.

    The directions are separate networks, and the loss is the mean of their cross-entropies. Documents in a row are
    independent. An adaptive softmax reports no accuracy, which would need the logits of all words.
    """

    kind: Literal["elmo"] = "elmo"
    softmax: Softmax = Field(default="full", description="adaptive: by groups of frequency, for large vocabularies")
    cutoffs: Cutoffs = ()

    def collate(self, tokenizer: Tokenizer) -> ElmoCollator:
        return ElmoCollator(tokenizer.pad_id, self.softmax == "full")

    @property
    def lighter(self) -> str:
        return "objective.softmax=adaptive" if self.softmax == "full" else ""

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> BiLMObjective:
        """Build the objective with a recurrent backbone of independent directions, and its softmax or a new one.

        Character embeddings use the spelling of the tokenizer.

        Raises:
            UserError: another backbone, a subword tokenizer with character embeddings, or invalid cutoffs.
        """
        stack = model.one_text("objective elmo")
        if not stack.is_recurrent or not stack.independent_directions:
            raise UserError(
                "objective elmo needs independent recurrent networks for both directions; set model.bidirectional=true "
                "and model.independent_directions=true, or take model.preset=elmo-mini"
            )
        head = model.head
        if not isinstance(head, BiLMHeadConfig) or head.softmax != self.softmax:
            # the cutoffs are stored, since a vocabulary may grow
            cutoffs = () if self.softmax == "full" else self.cutoffs or cutoffs_for(stack.vocab_size)
            head = BiLMHeadConfig(softmax=self.softmax, cutoffs=cutoffs)
        config = ModelConfig(backbone=stack, head=head)
        built = config.build()
        fill_character_table(built, tokenizer)
        return BiLMObjective(built, config)


class BiLMObjective(Objective):
    """Terms ``forward`` and ``backward``, each half of the loss, and their accuracies with a full softmax."""

    def forward(self, batch: Batch) -> Loss:
        assert batch.positions is not None
        assert batch.labels is not None
        head = self.model.head
        assert isinstance(head, BiLMHead)
        forward, backward = self.model.backbone(batch.input_ids, **batch.context).chunk(2, dim=-1)
        previous = batch.input_ids.flatten()[batch.positions]
        losses = (
            head.softmax.loss(gather_positions(forward, batch.positions), batch.labels),
            head.softmax.loss(gather_positions(backward, batch.positions + 1), previous),
        )
        count, terms = len(batch.labels), {}
        for name, (loss, correct) in zip(DIRECTIONS, losses, strict=True):
            terms[name] = Term(loss, count, weight=0.5)
            if correct is not None:
                terms[f"{name}_accuracy"] = Term(correct, count, weight=0.0)
        return Loss(terms)
