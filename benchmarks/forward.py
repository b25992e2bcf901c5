"""Forward pass of a BERT-base shape on 221 tokens, eager and compiled, against `transformers` with SDPA.

Each contestant is a separate process with the same random weights and the same text, in evaluation mode without
gradients; they alternate. A turn is the median of several passes. ``--clock processor`` measures processor time, which
depends less on other work on the machine. Compilation, which needs a C++ compiler, happens before the first turn.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.bert_base import VOCAB_SIZE, write_bert_base
from benchmarks.measure import CLOCKS, ContestantProcess, measure_interleaved
from homespun.hf.open import open_huggingface

WARMUP = 3


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks forward", description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=221, help="tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=5, help="in a turn (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default: %(default)s)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="wall or processor (default: %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        write_bert_base(Path(folder))
        settings = (folder, options.length, options.passes, options.threads, options.clock)
        contestants = {name: ContestantProcess(partial(turn, name), *settings) for name in CONTESTANTS}
        seconds = measure_interleaved(contestants, options.rounds)
        for contestant in contestants.values():
            contestant.close()
    milliseconds = {name: round(1000 * value, 1) for name, value in seconds.items()}
    ratios = {
        "eager": round(seconds["ours"] / seconds["peer"], 3),  # target: at most 1
        "compiled": round(seconds["ours_compiled"] / seconds["peer"], 3),  # target: below 1
        "compiled_both": round(seconds["ours_compiled"] / seconds["peer_compiled"], 3),
    }
    given = {key: getattr(options, key) for key in ("length", "rounds", "passes", "threads", "clock")}
    return {"unit": "ms", **given, **milliseconds, "ratios": ratios}


def turn(name: str, folder: str, length: int, passes: int, threads: int, clock: str) -> Callable[[], float]:
    """Return a function that measures the median seconds of a pass over ``passes``."""
    torch.set_num_threads(threads)
    now = CLOCKS[clock]
    input_ids = torch.randint(VOCAB_SIZE, (1, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(input_ids)
    model = CONTESTANTS[name](folder)

    def once() -> float:
        start = now()
        with torch.no_grad():
            model(input_ids=input_ids, attention_mask=mask)
        return now() - start

    for _ in range(WARMUP):
        once()
    return lambda: statistics.median(once() for _ in range(passes))


def _ours(folder: str) -> torch.nn.Module:
    return open_huggingface(folder).stored.model


def _peer(folder: str) -> torch.nn.Module:
    from transformers import BertModel

    opened: Any = BertModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation="sdpa")
    return opened.eval()


CONTESTANTS: dict[str, Callable[[str], Any]] = {
    "ours": _ours,
    "peer": _peer,
    "ours_compiled": lambda folder: torch.compile(_ours(folder)),
    "peer_compiled": lambda folder: torch.compile(_peer(folder)),
}
