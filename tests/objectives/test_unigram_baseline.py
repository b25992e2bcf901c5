"""The unigram baseline is optimal for text of independent tokens."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_language import WORDS, row_seeds
from torch import Tensor

from homespun.batch import Batch
from homespun.data.rows import Row
from homespun.objectives.clm import CausalLM
from homespun.objectives.config import PretrainingObjective
from homespun.objectives.electra import Electra
from homespun.objectives.elmo import BiLM
from homespun.objectives.mlm import MaskedLM
from homespun.objectives.protocol import unigram_losses
from homespun.text.tokenizer import Tokenizer

SHARES = np.arange(1.0, len(WORDS) + 1) / sum(range(1, len(WORDS) + 1))
LENGTH = 40


def batches_of(objective: Any, tokenizer: Tokenizer, *, rows: int, seed: int) -> list[Batch]:
    random, collate = np.random.default_rng(seed), objective.collate(tokenizer)
    texts = 5 + random.choice(len(WORDS), (rows, LENGTH - 2), p=SHARES)
    framed = np.pad(texts, ((0, 0), (1, 1)), constant_values=tokenizer.cls_id)
    framed[:, -1] = tokenizer.sep_id
    made = [Row(row) for row in framed]
    return [collate(made[at : at + 50], row_seeds(50, first=at + seed * rows)) for at in range(0, rows, 50)]


def label_counts(batches: list[Batch], vocab_size: int, *, causal: bool) -> Tensor:
    """(seen, label) how often each is to be told where each stands."""
    counts = torch.zeros(vocab_size, vocab_size)
    for batch in batches:
        seen = torch.zeros_like(batch.labels) if causal else batch.input_ids.flatten()[batch.positions]
        counts.index_put_((seen, batch.labels), torch.ones(len(seen)), accumulate=True)
    return counts


def counted(tokenizer: Tokenizer) -> np.ndarray:
    """How often each token is in a million words."""
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    counts[5 : 5 + len(WORDS)] = SHARES * 1e6
    return counts


@pytest.mark.parametrize(
    ("objective", "term"),
    [
        (MaskedLM(), "mlm"),
        (MaskedLM(mask_share=0.3, random_share=0.4), "mlm"),
        (MaskedLM(mask_share=0.6, random_share=0.0), "mlm"),
        (MaskedLM(mask_share=0.5, random_share=0.5), "mlm"),
        (MaskedLM(mask_share=1.0, random_share=0.0), "mlm"),
        (Electra(), "generator"),
        (CausalLM(), "causal"),
    ],
)
def test_it_is_what_a_table_of_what_stands_there_comes_to(
    objective: PretrainingObjective, term: str, tokenizer: Tokenizer
) -> None:
    """The table is counted in ten thousand texts of their own; the guess is given how often the words are, no more."""
    causal = term == "causal"
    table = (
        label_counts(batches_of(objective, tokenizer, rows=10_000, seed=1), tokenizer.vocab_size, causal=causal) + 0.01
    )
    held_out = batches_of(objective, tokenizer, rows=2_000, seed=2)
    guess = unigram_losses(objective.unigram_term, lambda: counted(tokenizer), held_out, tokenizer)
    tests = label_counts(held_out, tokenizer.vocab_size, causal=causal)
    best = -(tests * (table / table.sum(1, keepdim=True)).log()).sum() / tests.sum()
    assert guess == {term: pytest.approx(float(best), abs=0.01)}


def test_a_word_that_training_never_had_costs_no_infinity(tokenizer: Tokenizer) -> None:
    never = np.zeros(tokenizer.vocab_size, np.int64)
    for objective in (MaskedLM(), Electra(), CausalLM()):
        held_out = batches_of(objective, tokenizer, rows=50, seed=4)
        (loss,) = unigram_losses(objective.unigram_term, lambda: never, held_out, tokenizer).values()
        assert 0 < loss < 10


def test_other_objectives_have_none_and_the_corpus_is_not_read_for_them(tokenizer: Tokenizer) -> None:
    def counts() -> np.ndarray:
        raise AssertionError("the corpus was read")

    assert unigram_losses(BiLM().unigram_term, counts, [], tokenizer) == {}
