"""Speed of scoring and selecting sentences, in megabytes of text a second of one core."""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks.measure import measure_interleaved
from homespun.data.corpus import Corpus
from homespun.data.rows import Row
from homespun.objectives.gap_selection import PrincipalSelector
from homespun.objectives.gap_sentences import GapSentenceGeneration

WAYS = {
    f"{selection}_{rouge}": GapSentenceGeneration(selection=selection, rouge=rouge)
    for selection in ("independent", "sequential")
    for rouge in ("original", "unique")
}


def sentence_scoring(corpus: Corpus, *, length: int, rows: int, rounds: int) -> dict[str, float]:
    """Measure megabytes a second of the four principal methods, for 30 % of the sentences of rows of ``length``."""
    documents, _ = corpus.split(0.02, 1)
    given = GapSentenceGeneration().rows(corpus, documents, length=length, seed=1)
    selected = [given[number] for number in range(min(rows, len(given)))]
    text = sum(len(corpus.tokenizer.decode(row.input_ids).encode()) for row in selected)
    torch.set_num_threads(1)
    turns = {name: _Turn(way.collate(corpus.tokenizer).select, selected, text) for name, way in WAYS.items()}
    return {name: round(rate / 1e6, 1) for name, rate in measure_interleaved(turns, rounds).items()}


class _Turn:
    """Bytes of text whose sentences are scored and selected in a second of processor time."""

    def __init__(self, select: object, rows: list[Row], text: int) -> None:
        assert isinstance(select, PrincipalSelector)
        self.select, self.rows, self.text = select, rows, text

    def __call__(self) -> float:
        generator = torch.Generator().manual_seed(1)
        start = time.process_time()
        for row in self.rows:
            ends = row.sentence_ends
            assert ends is not None
            number = min(max(round(0.3 * len(ends)), 1), len(ends) - 1)
            chosen: np.ndarray = self.select(row.input_ids, ends, number, generator)
            assert len(chosen) == number
        return self.text / (time.process_time() - start)
