"""Prediction of many texts in float32, bf16 and int8, against a transformers pipeline with batches of 32.

All run alternately in one process with the same random BERT on texts of AG News. Times are processor time, which
depends less on other work on the machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import homespun
from benchmarks.measure import measure_interleaved
from benchmarks.paths import SHARED
from benchmarks.serve import SHAPES, read_texts, write_model

BATCH = 32  # texts of the pipeline


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks predict", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with ag_news/train.csv.gz")
    parser.add_argument("--shape", default="bert-base", choices=SHAPES, help="of the BERT (default: %(default)s)")
    parser.add_argument("--texts", type=int, default=256, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: %(default)s)")
    options = parser.parse_args(arguments)
    texts = read_texts(options.data / "ag_news" / "train.csv.gz")
    with tempfile.TemporaryDirectory() as name:
        tokens = write_model(Path(name), texts, options.shape)
        chosen = texts[: options.texts]
        rates = measure_interleaved(
            {
                "pipeline": _timed(_pipeline(name), chosen),
                "float32": _timed(homespun.open(name).predict_proba, chosen),
                "bf16": _timed(homespun.open(name, quantize="bf16").predict_proba, chosen),
                "int8": _timed(homespun.open(name, quantize="int8").predict_proba, chosen),
            },
            options.rounds,
        )
    ratios = {name: round(rate / rates["pipeline"], 2) for name, rate in rates.items() if name != "pipeline"}
    settings = {"shape": options.shape, "texts": len(chosen), "threads": torch.get_num_threads()}
    return {**settings, "tokens_per_text": tokens, "texts_per_second": rates, "ratios": ratios}


def _pipeline(folder: str) -> Callable[[list[str]], object]:
    from transformers import pipeline

    made: Any = pipeline("text-classification", model=folder, truncation=True, device="cpu", batch_size=BATCH)
    return lambda texts: list(made(texts))


def _timed(predict: Callable[[list[str]], object], texts: list[str]) -> Callable[[], float]:
    """Return a function that measures texts a second of processor time."""
    predict(texts[:BATCH])  # the first call also allocates

    def call() -> float:
        start = time.process_time()
        predict(texts)
        return round(len(texts) / (time.process_time() - start), 2)

    return call
