"""GloVe against gensim's word2vec: time on the same words, and quality on analogies and similarities."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import CLOCKS, measure_interleaved
from benchmarks.paths import SHARED
from homespun.data.corpus_build import build_corpus
from homespun.data.reading import reading
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.cooccurrence import count_pairs
from homespun.vectors.evaluation import evaluate_vectors, read_lists
from homespun.vectors.training import Glove, GloveConfig, Word2VecConfig, train_word2vec
from homespun.vectors.word_file import WordFile, WordsConfig, write_words
from homespun.vectors.word_vectors import WordVectors

INPUTS = ("edgar_10k/item1a.jsonl.gz", "maec/maec_calls.jsonl.gz", "imdb/train.jsonl.gz", "imdb/test.jsonl.gz")
_MARK = 5000  # documents that a vocabulary is learnt of


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks vectors", description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the data sets")
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3, help="of the scores; each is trained anew, outside the timing")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor on a busy machine")
    options = parser.parse_args(arguments)
    lists = read_lists(options.data / "word_vectors_eval")
    clock = CLOCKS[options.clock]
    torch.set_num_threads(options.workers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = _words(options.data, options.tokens, folder)
        print(f"{int(text.ends[-1]):,} words, {len(text.words):,} of them different", file=sys.stderr, flush=True)
        trainings: dict[str, Callable[[int], np.ndarray]] = {
            "glove": lambda seed: _glove(text, folder, options, seed),
            "skipgram": lambda seed: _word2vec(text, folder, options, seed, "skipgram"),
            "cbow": lambda seed: _word2vec(text, folder, options, seed, "cbow"),
        }
        vectors: dict[str, list[np.ndarray]] = {method: [] for method in trainings}

        def timed(method: str) -> Callable[[], float]:
            def once() -> float:
                began = clock()
                vectors[method].append(trainings[method](len(vectors[method])))
                return clock() - began

            return once

        seconds = measure_interleaved({method: timed(method) for method in trainings}, options.rounds)
        for method, trained in vectors.items():
            while len(trained) < options.seeds:
                trained.append(trainings[method](len(trained)))
        scores = {
            method: _together([evaluate_vectors(WordVectors(text.words, v), lists) for v in trained])
            for method, trained in vectors.items()
        }
    return {
        "words": int(text.ends[-1]),
        "different": len(text.words),
        "size": options.size,
        "epochs": options.epochs,
        "workers": options.workers,
        "clock": options.clock,
        "seconds": {method: round(value, 2) for method, value in seconds.items()},
        "ratio": {method: round(seconds["glove"] / seconds[method], 3) for method in ("skipgram", "cbow")},
        "reach": 1.5,
        "scores": scores,
    }


def _words(data: Path, tokens: int, folder: Path) -> WordFile:
    """Write about ``tokens`` tokens of the data sets, in equal shares as far as possible."""
    corpora = [reading([str(data / name)], duplicates="keep") for name in INPUTS]

    def interleaved() -> Iterator[Document]:
        streams = [corpus.documents() for corpus in corpora]
        while streams:
            for stream in list(streams):
                document = next(stream, None)
                if document is None:
                    streams.remove(stream)
                else:
                    yield document

    tokenizer = Tokenizer.train(
        (document.text for document in islice(interleaved(), _MARK)), kind="words", vocab_size=30_000, lowercase=True
    )

    def enough() -> Iterator[Document]:
        found = 0
        for document in interleaved():
            found += len(tokenizer.encode_batch([document.text])[0])
            yield document
            if found >= tokens:
                return

    corpus = build_corpus(enough(), tokenizer, folder / "corpus")
    return write_words(corpus, folder / "words", WordsConfig())


def _glove(text: WordFile, folder: Path, options: argparse.Namespace, seed: int) -> np.ndarray:
    """Count and train as `homespun vectors train glove`."""
    config = GloveConfig(size=options.size, epochs=options.epochs)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        matrix = count_pairs(text, name, window=config.window, workers=options.workers)
        glove = Glove(matrix, config, seed=seed)
        for epoch in glove.epochs(config.epochs):
            loss = epoch.loss
        print(f"glove: {matrix.cells:,} cells, loss {loss:.4g}", file=sys.stderr, flush=True)
    return glove.vectors


def _word2vec(text: WordFile, folder: Path, options: argparse.Namespace, seed: int, architecture: Any) -> np.ndarray:
    config = Word2VecConfig(architecture=architecture, size=options.size, epochs=options.epochs)
    return train_word2vec(text, config, folder, seed=seed, workers=options.workers)


def _together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means and deviations over the seeds, with the coverage."""
    result: dict[str, Any] = {}
    for group, measure in (("analogies", "accuracy"), ("similarities", "spearman")):
        for name, first in found[0][group].items():
            values = [each[group][name][measure] for each in found]
            known = [value for value in values if value is not None]
            result[name] = {
                "mean": round(float(np.mean(known)), 4) if known else None,
                "std": round(float(np.std(known, ddof=1)), 4) if len(known) > 1 else None,
                "covered": first["covered"],
                "of": first.get("questions", first.get("pairs")),
            }
    return result
