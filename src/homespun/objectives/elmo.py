"""Two language models side by side, one in each direction, over the same words (ELMo; Peters et al. 2018)."""

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
    """Collate: ``positions`` are tokens that another follows in the same document, ``labels`` the ones that follow.

    The backward direction predicts the token at each position from those that follow it. The pairs with a [CLS] or
    [SEP] that stands inside a document (`Row.cut`) are left out.
    """

    pad_id: int
    accuracy: bool

    def __call__(self, rows: Sequence[Row], row_seeds: Sequence[RowSeed]) -> Batch:
        """Rows to a batch; nothing is drawn."""
        batch = pad(rows, self.pad_id)
        false_starts = [(number, 0) for number, row in enumerate(rows) if row.cut[0]]
        positions, labels = find_next_tokens(batch, [*false_starts, *find_false_ends(rows)])
        names = [f"{name}{end}" for name in DIRECTIONS for end in ("", *["_accuracy"] * self.accuracy)]
        targets = dict.fromkeys(names, float(len(labels)))
        return dataclasses.replace(batch, positions=positions, labels=labels, targets=targets)


class BiLM(PretrainingConfig):
    """Predict the next token from those before it, and the previous token from those after it, by separate networks.

    The loss is the mean of both directions' cross entropies. Documents in one row are independent. An adaptive softmax
    has no accuracy, which would need the logits of all words.
    """

    kind: Literal["elmo"] = "elmo"
    softmax: Softmax = Field(
        default="full", description="over all words at once, or by groups of rarer and rarer ones (large vocabularies)"
    )
    cutoffs: Cutoffs = ()

    def collate(self, tokenizer: Tokenizer) -> ElmoCollator:
        """Function from rows to a batch."""
        return ElmoCollator(tokenizer.pad_id, self.softmax == "full")

    @property
    def lighter(self) -> str:
        """Setting that takes less memory, for a large vocabulary that does not fit; empty: none known."""
        return "objective.softmax=adaptive" if self.softmax == "full" else ""

    def build(self, model: ModelConfig, tokenizer: Tokenizer) -> BiLMObjective:
        """Objective: a recurrent backbone with independent directions under one softmax, its own where it has one.

        Words that are made of characters are spelled as the tokenizer has them.

        Raises:
            UserError: another backbone; a tokenizer of pieces under words of characters; cutoffs that cannot be.
        """
        stack = model.one_text("objective elmo")
        if not stack.is_recurrent or not stack.independent_directions:
            raise UserError(
                "objective elmo needs a recurrent network in each direction, independent of the other, which reads "
                "its labels; set model.bidirectional=true and model.independent_directions=true, or "
                "take model.preset=elmo-mini"
            )
        config = ModelConfig(backbone=stack, head=self._head(model, stack.vocab_size))
        built = config.build()
        fill_character_table(built, tokenizer)
        return BiLMObjective(built, config)

    def _head(self, model: ModelConfig, vocab_size: int) -> BiLMHeadConfig:
        own = model.head
        if isinstance(own, BiLMHeadConfig) and own.softmax == self.softmax:
            return own
        if self.softmax == "full":
            return BiLMHeadConfig()
        cutoffs = self.cutoffs or cutoffs_for(vocab_size)  # kept, since a vocabulary may grow
        return BiLMHeadConfig(softmax="adaptive", cutoffs=cutoffs)


class BiLMObjective(Objective):
    """Terms ``forward`` and ``backward``, each half of the loss, and their accuracies where they are known."""

    def forward(self, batch: Batch) -> Loss:
        """The softmax is computed only where there is a label."""
        assert batch.positions is not None
        assert batch.labels is not None
        head = self.model.head
        assert isinstance(head, BiLMHead)
        onwards, back = self.model.backbone(batch.input_ids, **batch.context).chunk(2, dim=-1)
        before = batch.input_ids.flatten()[batch.positions]
        losses = (
            head.loss(gather_positions(onwards, batch.positions), batch.labels),
            head.loss(gather_positions(back, batch.positions + 1), before),
        )
        count, terms = len(batch.labels), {}
        for name, (loss, correct) in zip(DIRECTIONS, losses, strict=True):
            terms[name] = Term(loss, count, weight=0.5)
            if correct is not None:
                terms[f"{name}_accuracy"] = Term(correct, count, weight=0.0)
        return Loss(terms)
