"""Training step of a causal language model in the shape of GPT-2 small: tokens a second and peak memory.

Both contestants train 4 layers of width 768 on the same rows without padding, with the same loss, dropout of hidden
states, clipping and AdamW; preparing batches is not timed. homespun runs the objective as its trainer does, and like
its trainer keeps freed memory for the next step, which the peers do not. The peer is `transformers`' `GPT2LMHeadModel`
with labels and `torch.optim.AdamW`, with default settings. Its config has a dropout of 0.1 on attention probabilities,
which homespun does not have in pretraining; a ``careful_peer`` has none, and uses fused AdamW as homespun does.

Each contestant runs in a separate process, so that their memory does not mix. On a shared machine, ``--clock
processor`` measures processor time instead of wall-clock time.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import CLOCKS, PRECISIONS, autocast, contestant, measure_interleaved, wait
from homespun.batch import Batch, RowSeed
from homespun.data.rows import Row
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.objectives.clm import CausalLMObjective, ClmCollator
from homespun.training.devices import disable_malloc_trim
from homespun.training.optim import adamw, parameter_groups

VOCAB_SIZE, LAYERS, LEARNING_RATE, MAX_NORM, WARMUP = 50_257, 4, 5e-4, 1.0, 2


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks causal-step", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2, help="steps of each in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, help="rows in a step (default: %(default)s)")
    parser.add_argument("--length", type=int, default=512, help="tokens in a row (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help="bf16: mixed, by autocast")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="clock (default: %(default)s)")
    settings = vars(parser.parse_args(arguments))
    contestants = {name: contestant(settings["device"], turns, name, settings) for name in CONTESTANTS}
    try:
        rates = measure_interleaved(contestants, settings["rounds"])
        peaks = {name: measured.peak for name, measured in contestants.items()}
    finally:
        for measured in contestants.values():
            measured.close()
    return {
        "unit": "tokens/s, bytes",
        **settings,
        **{name: {"tokens_per_second": round(rates[name], 1), "peak_bytes": peaks[name]} for name in CONTESTANTS},
        "ratios": {
            "tokens_per_second": round(rates["ours"] / rates["peer"], 3),  # target: at least 1.3
            "peak_bytes": round(peaks["ours"] / peaks["peer"], 3),  # target: at most 0.7
            "tokens_per_second_careful": round(rates["ours"] / rates["careful_peer"], 3),
            "peak_bytes_careful": round(peaks["ours"] / peaks["careful_peer"], 3),
        },
    }


def turns(name: str, settings: dict[str, Any]) -> Callable[[], float]:
    """Return a function that measures tokens a second over the next steps."""
    torch.manual_seed(0)
    torch.set_num_threads(settings["threads"])
    training, clock = CONTESTANTS[name](settings), CLOCKS[settings["clock"]]

    def run(steps: int) -> None:
        for _ in range(steps):
            next(training)
        wait(settings["device"])

    run(WARMUP)

    def measure() -> float:
        start = clock()
        run(settings["steps"])
        return int(settings["steps"]) * int(settings["batch_size"]) * int(settings["length"]) / (clock() - start)

    return measure


def ours(settings: dict[str, Any]) -> Iterator[None]:
    """Yield endlessly after steps of the objective, as in the trainer."""
    disable_malloc_trim()
    size = {"preset": "gpt2-small", "num_hidden_layers": LAYERS, "vocab_size": VOCAB_SIZE}
    config = ModelConfig(backbone=EncoderConfig.model_validate(size), head=CausalLMHeadConfig())
    objective = CausalLMObjective(config.build(), config).to(settings["device"]).train()
    groups = parameter_groups(objective, weight_decay=0.01)
    optimizer = adamw(groups, learning_rate=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-6)
    for batch in itertools.cycle(_batches(settings)):
        with autocast(settings["device"], settings["precision"]):
            loss = objective(batch).total(batch.targets)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(objective.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        yield


def peer(settings: dict[str, Any]) -> Iterator[None]:
    """Yield endlessly after steps of the `transformers` loop with default settings."""
    return _peer(settings, attention_dropout=0.1, fused=None)


def careful_peer(settings: dict[str, Any]) -> Iterator[None]:
    """Yield endlessly after steps of the `transformers` loop without attention dropout and with fused AdamW."""
    return _peer(settings, attention_dropout=0.0, fused=True)


def _peer(settings: dict[str, Any], *, attention_dropout: float, fused: bool | None) -> Iterator[None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, attn_pdrop=attention_dropout)).to(settings["device"]).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=fused)
    for batch in itertools.cycle(_batches(settings)):
        with autocast(settings["device"], settings["precision"]):
            loss: Tensor = model(input_ids=batch.input_ids, labels=batch.input_ids).loss
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        yield


CONTESTANTS: dict[str, Callable[[dict[str, Any]], Iterator[None]]] = {
    "ours": ours,
    "peer": peer,
    "careful_peer": careful_peer,
}


def _batches(settings: dict[str, Any], count: int = 8) -> list[Batch]:
    """Build batches of random words."""
    random = np.random.default_rng(0)
    shape = count, settings["batch_size"], settings["length"]
    collate = ClmCollator(pad_id=0)
    return [
        collate([Row(row) for row in rows], [RowSeed(0, number, index) for index in range(len(rows))]).to(
            settings["device"]
        )
        for number, rows in enumerate(random.integers(5, VOCAB_SIZE, shape))
    ]
