"""Speed of making batches for denoising objectives on one core, against the demand of a training step of base size.

Batches have 32 rows of 512 tokens of a corpus, as a `Loader` gives them to a trainer: read, corrupted, padded. Times
are processor time, which depends less on other work on the machine. A training step of base size is forward and
backward of the complete model on a batch of a few full rows, without the optimizer, which runs once a large batch. Its
processor time is divided by the number of threads, as if these never waited, so the step is assumed faster than it is.
At a ratio of one, one core would be fully used for making batches. The rate of scoring PEGASUS's sentences is reported
too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.corpus import _texts
from benchmarks.measure import measure_interleaved
from benchmarks.sentence_scoring import sentence_scoring
from homespun.batch import RowSeed
from homespun.commands.workload import with_vocabulary
from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.data.loader import Loader
from homespun.models.config import ModelConfig
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.objectives.denoising import Denoising
from homespun.objectives.future_ngrams import FutureNgrams
from homespun.objectives.gap_sentences import GapSentenceGeneration
from homespun.objectives.span_corruption import SpanCorruption
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import with_sentinels


@dataclass(frozen=True)
class Contestant:
    """Objective with the preset of its base size."""

    objective: Any
    preset: str


CONTESTANTS = {
    "bart": Contestant(Denoising(), "bart-base"),
    "bart_every_noise": Contestant(
        Denoising(token_masking=0.1, token_deletion=0.1, document_rotation=0.5), "bart-base"
    ),
    "t5": Contestant(SpanCorruption(), "t5-base"),
    "pegasus": Contestant(GapSentenceGeneration(), "pegasus-base"),
    "pegasus_sequential": Contestant(GapSentenceGeneration(selection="sequential", rouge="unique"), "pegasus-base"),
    "prophetnet": Contestant(FutureNgrams(), "prophetnet-base"),
}


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks noise", description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=8.0, help="text (default: %(default)s)")
    parser.add_argument("--length", type=int, default=512, help="data.max_length (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of a batch made (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=20, help="in a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--step-rows", type=int, default=2, help="rows of a training step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="training steps, for a median (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of a training step (default: %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        corpus, source = _corpus(Path(name), options.megabytes)
        torch.set_num_threads(1)
        turns = {
            key: _Turn(_loader(corpus, contestant, options.length, options.batch_size), options.batches)
            for key, contestant in CONTESTANTS.items()
        }
        made = measure_interleaved(turns, options.rounds)
        scored = sentence_scoring(corpus, length=options.length, rows=400, rounds=options.rounds)  # target: 2 MB/s
        torch.set_num_threads(options.threads)
        taken: dict[str, float] = {}
        for contestant in CONTESTANTS.values():
            if contestant.preset not in taken:
                print(f"a training step of {contestant.preset} ...", file=sys.stderr, flush=True)
                taken[contestant.preset] = _step_rate(corpus, contestant, options)
    results = {
        key: {
            "tokens_per_second": round(made[key]),
            "batches_per_second": round(made[key] / _tokens(turns[key]), 1),
            "step_tokens_per_second": round(taken[contestant.preset], 1),
        }
        for key, contestant in CONTESTANTS.items()
    }
    ratios = {key: round(made[key] / taken[CONTESTANTS[key].preset], 1) for key in results}  # target: at least 1
    given = {key: getattr(options, key) for key in ("length", "batch_size", "step_rows", "threads")}
    return {"data": source, **given, "ours": results, "ratios": ratios, "scored_megabytes_per_second": scored}


def _corpus(folder: Path, megabytes: float) -> tuple[Corpus, str]:
    source, texts = _texts(int(megabytes * 1e6))
    tokenizer = Tokenizer.train(texts, kind="bpe", vocab_size=15_900, max_characters=10_000_000)
    documents = (Document(text) for text in texts)
    return build_corpus(documents, with_sentinels(tokenizer, 100), folder / "corpus", sentences=True), source


def _loader(corpus: Corpus, contestant: Contestant, length: int, batch_size: int) -> Loader:
    documents, _ = corpus.split(0.02, 1)
    rows = contestant.objective.rows(corpus, documents, length=length, seed=1)
    collate = contestant.objective.collate(corpus.tokenizer)
    return Loader(rows, collate, batch_size=batch_size, seed=1, order="bucketed")


class _Turn:
    """Tokens of sources and targets made in a second of processor time; each turn makes other batches."""

    def __init__(self, loader: Loader, batches: int) -> None:
        self.loader, self.batches, self.step = loader, batches, 0
        self.tokens: list[int] = []

    def __call__(self) -> float:
        tokens = 0
        start = time.process_time()
        for number in range(self.step, self.step + self.batches):
            tokens += sum(batch.real_tokens for batch in self.loader.step(number))
        spent = time.process_time() - start
        self.step += self.batches
        self.tokens.append(tokens)
        return tokens / spent


def _tokens(turn: _Turn) -> float:
    """Count the tokens of a batch."""
    return statistics.mean(turn.tokens) / turn.batches


def _step_rate(corpus: Corpus, contestant: Contestant, options: argparse.Namespace) -> float:
    """Measure the tokens of sources and targets that a training step takes in a second of threads that never wait."""
    tokenizer, objective = corpus.tokenizer, contestant.objective
    backbone = EncoderDecoderConfig.model_validate({"preset": contestant.preset})
    torch.manual_seed(1)
    model = objective.build(
        ModelConfig(
            backbone=with_vocabulary(
                backbone, tokenizer, options.length, target_length=objective.target_length(options.length)
            )
        ),
        tokenizer,
    ).train()
    documents, _ = corpus.split(0.02, 1)
    rows, collate = objective.rows(corpus, documents, length=options.length, seed=1), objective.collate(tokenizer)
    longest = np.argsort(rows.lengths)[::-1]
    rates: list[float] = []
    for number in range(1 + options.steps):
        chosen = longest[number * options.step_rows : (number + 1) * options.step_rows].tolist()
        batch = collate([rows[index] for index in chosen], [RowSeed(1, 0, index) for index in chosen])
        start = time.process_time()
        model(batch).total(batch.targets).backward()
        spent = (time.process_time() - start) / options.threads
        rates.append(batch.real_tokens / spent)
    return statistics.median(rates[1:])  # the first also makes what stays
