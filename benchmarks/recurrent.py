"""Training step of an LSTM language model over long streams, against plain `torch.nn.LSTM` code.

Both train two layers of 256 on 64 streams, 64 tokens of each a step, with tied embeddings, the state carried and
detached, dropout after the embeddings and each layer, clipping and AdamW. homespun runs the objective as its trainer
does. The peer is the loop of PyTorch's word language model example, with its criterion over the full table of logits. A
``careful_peer`` has fused AdamW, as homespun has.

The contestants alternate in one process; times are processor time.

``--padded`` measures one layer in both directions over padded rows instead, against PyTorch's network with the same
weights over `pack_padded_sequence`, forward and backward, for each kind of cell.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from homespun.batch import Batch
from homespun.models.config import ModelConfig
from homespun.models.heads import CausalLMHeadConfig
from homespun.models.recurrent import RecurrentConfig
from homespun.nn.masks import Mask
from homespun.nn.recurrent import CELLS, RecurrentLayer
from homespun.objectives.tbptt import StatefulCausalLMObjective
from homespun.training.devices import disable_malloc_trim
from homespun.training.optim import adamw, parameter_groups

LEARNING_RATE, MAX_NORM, DROPOUT = 1e-3, 0.25, 0.1


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks recurrent", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="steps of each in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=64, help="texts read in parallel (default: %(default)s)")
    parser.add_argument("--length", type=int, default=64, help="tokens of each in a step (default: %(default)s)")
    parser.add_argument("--hidden-size", type=int, default=256, help="of both layers (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=10_000, help="words (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: %(default)s)")
    parser.add_argument("--padded", action="store_true", help="a layer over rows that end in padding")
    parser.add_argument("--shortest", type=int, help="of --padded: fewest tokens of a text (default: half of --length)")
    parser.add_argument("--bf16", action="store_true", help="of --padded: mixed precision")
    settings = vars(parser.parse_args(arguments))
    torch.set_num_threads(settings["threads"])
    disable_malloc_trim()
    padded = settings.pop("padded")
    if padded:
        return _padded(settings)
    del settings["bf16"], settings["shortest"]
    trainings = {name: make(settings) for name, make in CONTESTANTS.items()}
    for training in trainings.values():
        next(training)
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    for _ in range(settings["rounds"]):
        for name, training in trainings.items():
            start = time.process_time()
            for _ in range(settings["steps"]):
                next(training)
            seconds[name].append((time.process_time() - start) / settings["steps"])
    tokens = settings["streams"] * settings["length"]
    rates = {name: tokens / statistics.median(spent) for name, spent in seconds.items()}
    ratios = {
        f"tokens_per_second_{name}": statistics.median(
            theirs / ours for ours, theirs in zip(seconds["ours"], seconds[name], strict=True)
        )
        for name in ("peer", "careful_peer")
    }
    return {
        "unit": "tokens a second of the processor",
        **settings,
        **{name: round(rate, 1) for name, rate in rates.items()},
        "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},  # target: at least 0.95
    }


def _padded(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure the speed-up by cell; lengths are uniform from the shortest on."""
    rows, length, size = settings["streams"], settings["length"], settings["hidden_size"]
    settings["shortest"] = settings["shortest"] or length // 2
    torch.manual_seed(0)
    lengths = torch.randint(settings["shortest"], length + 1, (rows,))
    lengths[0] = length
    keep = torch.arange(length) < lengths[:, None]
    hidden = torch.randn(rows, length, size)
    found = {}
    for cell in CELLS:
        layer = RecurrentLayer(size, size, cell=cell, bidirectional=True, dropout=0.0)

        def packed(network: nn.Module = layer.network) -> Tensor:
            texts = nn.utils.rnn.pack_padded_sequence(hidden, lengths, batch_first=True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(network(texts)[0], batch_first=True)[0]

        contestants = {"ours": lambda layer=layer: layer(hidden, Mask(keep=keep)), "packed": packed}
        torch.testing.assert_close(*(read() for read in contestants.values()))
        spent: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(settings["rounds"]):
            for name, read in contestants.items():
                start = time.process_time()
                for _ in range(settings["steps"]):
                    with torch.autocast("cpu", enabled=settings["bf16"]):
                        made = read()
                    made.float().square().mean().backward()
                spent[name].append((time.process_time() - start) / settings["steps"])
        found[cell] = {name: round(statistics.median(values), 5) for name, values in spent.items()}
        found[cell]["times_faster"] = round(found[cell]["packed"] / found[cell]["ours"], 3)
    return {"unit": "seconds of the processor", **settings, **found}


def ours(settings: dict[str, Any]) -> Iterator[None]:
    """Yield endlessly after steps of the objective, as in the trainer."""
    torch.manual_seed(0)
    size = {name: settings[name] for name in ("hidden_size", "vocab_size")}
    backbone = RecurrentConfig.model_validate(size | {"hidden_dropout_prob": DROPOUT})
    config = ModelConfig(backbone=backbone, head=CausalLMHeadConfig())
    objective = StatefulCausalLMObjective(config.build(), config, streams=settings["streams"]).train()
    groups = parameter_groups(objective, weight_decay=0.01)
    optimizer = adamw(groups, learning_rate=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-6)
    streams = torch.arange(settings["streams"])
    for number, (ids, labels) in enumerate(pieces(settings)):
        batch = Batch(
            ids,
            positions=torch.arange(ids.numel()),
            labels=labels.flatten(),
            stream_positions=torch.stack([streams, torch.full_like(streams, number)], 1),
            targets={"causal": float(ids.numel())},
        )
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(objective(batch).total(batch.targets))
        nn.utils.clip_grad_norm_(objective.parameters(), MAX_NORM)
        optimizer.step()
        yield


class PlainModel(nn.Module):
    """Language model of a few lines."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, hidden_size)
        self.network = nn.LSTM(hidden_size, hidden_size, 2, batch_first=True, dropout=DROPOUT)
        self.output = nn.Linear(hidden_size, vocab_size)
        self.output.weight = self.words.weight
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, ids: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.network(self.dropout(self.words(ids)), state)
        return self.output(self.dropout(hidden)), state


def peer(settings: dict[str, Any]) -> Iterator[None]:
    """Yield endlessly after steps of the loop of PyTorch's example, with default AdamW."""
    return _peer(settings, fused=None)


def careful_peer(settings: dict[str, Any]) -> Iterator[None]:
    """Yield endlessly after steps of the loop of PyTorch's example, with fused AdamW."""
    return _peer(settings, fused=True)


def _peer(settings: dict[str, Any], *, fused: bool | None) -> Iterator[None]:
    torch.manual_seed(0)
    model = PlainModel(settings["vocab_size"], settings["hidden_size"]).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=fused)
    criterion = nn.CrossEntropyLoss()
    zero = torch.zeros(2, settings["streams"], settings["hidden_size"])
    state = zero, zero
    for ids, labels in pieces(settings):
        optimizer.zero_grad()
        state = state[0].detach(), state[1].detach()
        logits, state = model(ids, state)
        criterion(logits.flatten(0, 1), labels.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        yield


CONTESTANTS = {"ours": ours, "peer": peer, "careful_peer": careful_peer}


def pieces(settings: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield endless pieces of random words: (streams, length) ids, and the next ids."""
    draw = torch.Generator().manual_seed(0)
    for _ in itertools.count():
        text = torch.randint(5, settings["vocab_size"], (settings["streams"], settings["length"] + 1), generator=draw)
        yield text[:, :-1].contiguous(), text[:, 1:].contiguous()
