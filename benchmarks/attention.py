"""Training step on a long text with each kind of attention: seconds and peak memory, against other libraries.

A step is a forward pass of one text, a backward pass from the mean of the output, and an AdamW update, equal on both
sides. The vocabulary is small, so that the layers dominate. Peers have their default settings: `transformers` has a
dropout of 0.1 on attention probabilities and hidden states, `linformer` and `performer-pytorch` have none. homespun has
the same dropout on hidden states as the peer, and none on attention probabilities. Each contestant runs in a separate
process. homespun keeps freed memory for the next step, as its trainer does, where a plain loop gets new pages for every
large tensor. A ``careful_peer`` keeps memory too; it is not run with full attention, where memory would not suffice.

``--alone`` measures only the attention module, forward and backward. ``--by-length`` measures homespun from short to
long texts, with models that differ only in the attention: exponents of time and memory, and the length from which on
each kind is cheaper than full attention. On a CPU its seconds are processor time, which depends less on other work on a
shared machine; waiting threads count, so the default is one thread.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.attention_peers import ALONE, PEERS
from benchmarks.measure import (
    PRECISIONS,
    autocast,
    contestant,
    measure_interleaved,
    peak_bytes,
    peak_memory,
    seconds,
    wait,
)
from benchmarks.paths import RESULTS, ROOT
from homespun.models.encoder import EncoderConfig
from homespun.nn.masks import Mask
from homespun.training.devices import disable_malloc_trim

VOCAB_SIZE, SHORT = 1000, 64
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
GROWS_FROM = 2048
FULL_UNTIL = 8192  # full attention of twice that takes a CPU minutes a step
CLEARLY = 0.95  # less by more than the noise


@dataclass(frozen=True)
class Settings:
    """Settings common to all contestants, sent to the processes that measure memory."""

    length: int
    device: str
    precision: str
    threads: int
    hidden_size: int
    layers: int

    @property
    def heads(self) -> int:
        return max(1, self.hidden_size // 64)


BLOCKS = [{"kind": "blocks", "size": 64}, {"kind": "random_blocks", "size": 64, "count": 3}]
ATTENTIONS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "longformer": {"kind": "sparse", "patterns": [{"kind": "window", "radius": 256}]}
    | {"global_tokens": {"first": 1, "projections": True}},
    "bigbird": {"kind": "sparse", "patterns": BLOCKS, "global_tokens": {"first": 0, "block": 64}},
    "reformer": {"kind": "lsh", "chunk_length": 64, "num_hashes": 1},
    "linformer": {"kind": "linformer", "k": 256},
    "performer": {"kind": "performer", "num_features": 256},
}
# the rest of the model, where the peer's is not BERT's
AS_PEER: dict[str, dict[str, Any]] = {
    "bigbird": {"hidden_act": "gelu_new"},
    "reformer": {"residual": {"kind": "reversible", "streams": "copy"}, "hidden_act": "relu"}
    | {"hidden_dropout_prob": 0.05},
    "linformer": {"residual": {"kind": "pre"}, "hidden_dropout_prob": 0.0},
    "performer": {"residual": {"kind": "pre"}, "hidden_dropout_prob": 0.0},
}


def ours(name: str, settings: Settings) -> dict[str, Any]:
    """Return a BERT with the attention of this name, as the tree of an `EncoderConfig`."""
    longest = max(settings.length, SHORT)
    attention = ATTENTIONS[name] | ({"k": min(256, longest)} if name == "linformer" else {})
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": settings.hidden_size,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "intermediate_size": 4 * settings.hidden_size,
        "max_position_embeddings": longest,
        "attention": attention,
    }


NAMES = tuple(ATTENTIONS)
Step = Callable[[int], None]


def run(arguments: list[str]) -> dict[str, Any]:
    options = _options(arguments)
    settings = Settings(
        options.length, options.device, options.precision, options.threads, options.hidden, options.layers
    )
    result = {
        "unit": "seconds a step, bytes",
        "device": settings.device,
        "precision": settings.precision,
        "threads": settings.threads,
        "hidden_size": settings.hidden_size,
        "layers": settings.layers,
    }
    if options.by_length:
        return result | _ours_by_length(options, settings)
    return result | {"length": settings.length, "alone": options.alone} | _against_peers(options, settings)


def _against_peers(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Measure homespun, the peers and the ratios, each by the name of the attention."""
    ours, peer = (_our_attention, _peer_attention) if options.alone else (_ours, _peer)
    sides = {"ours": (ours, True), "peer": (peer, False), "careful_peer": (peer, True)}
    results: dict[str, dict[str, Any]] = {side: {} for side in (*sides, "ratios")}
    for name in [options.only] if options.only else [*ALONE] if options.alone else NAMES:
        contenders = {side: of for side, of in sides.items() if (name, side) != ("full", "careful_peer")}
        contestants = {
            side: contestant(settings.device, _seconds, make, name, settings, keep)
            for side, (make, keep) in contenders.items()
        }
        times = measure_interleaved(contestants, options.rounds)
        for side, measured in contestants.items():
            measured.close()
            results[side][name] = {"seconds": round(times[side], 5), "peak_bytes": measured.peak}
        results["ratios"][name] = {}
        for side, suffix in (("peer", ""), ("careful_peer", "_careful")):
            if side in contenders:
                ratio = contestants["ours"].peak / contestants[side].peak
                results["ratios"][name] |= {
                    f"times_faster{suffix}": round(times[side] / times["ours"], 3),
                    f"peak_bytes{suffix}": round(ratio, 3),
                }
    return results


def _ours_by_length(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Measure homespun at each length, with exponents and the lengths from which full attention is slower."""
    lengths = options.lengths or LENGTHS
    found = {
        name: _by_length(name, [n for n in lengths if name != "full" or n <= FULL_UNTIL], settings, options.rounds)
        for name in NAMES
        if options.only in (None, name) or name == "full"
    }
    grown = [length for length in lengths if length >= GROWS_FROM]
    plot = _plot(lengths, found, Path(options.plot), settings)
    return {
        "lengths": [*lengths],
        "ours": found,
        "exponents": {
            name: _exponents(grown, {key: of[-len(grown) :] for key, of in values.items()})
            for name, values in found.items()
            if name != "full" and len(grown) > 1
        },
        "begins_to_beat_full": _crossovers(lengths, found),
        "plot": plot,
    }


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks attention", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=NAMES, help="only this attention")
    parser.add_argument("--length", type=int, default=4096, help="tokens of the text (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32", help="bf16: mixed, by autocast")
    parser.add_argument("--threads", type=int, help="processor threads (default: 2, with --by-length 1)")
    parser.add_argument("--plot", default=str(RESULTS / "attention-crossover.svg"), help="of --by-length")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--alone", action="store_true", help="measure the attention module alone")
    mode.add_argument(
        "--by-length", action="store_true", help="compare with our full attention, from short to long texts"
    )
    # small ones, for trying the benchmark itself
    parser.add_argument("--hidden", type=int, default=768, help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=4, help=argparse.SUPPRESS)
    parser.add_argument("--lengths", type=lambda text: tuple(map(int, text.split(","))), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.threads = options.threads or (1 if options.by_length else 2)
    if options.only == "full" and options.by_length:
        parser.error("--by-length is of the others; full attention is what it compares with")
    if options.alone and options.only not in (None, *ALONE):
        parser.error(f"--alone compares {' and '.join(ALONE)}, not {options.only}")
    if options.alone and (options.length < 1024 or options.length % 512):
        parser.error(
            "--alone takes a --length of 1024 or more that is a multiple of 512: the peers' modules do not pad"
        )
    return options


def _seconds(
    make: Callable[[str, Settings], Step], name: str, settings: Settings, keep: bool = True
) -> Callable[[], float]:
    """Return a function that measures the seconds of a step, repeated if short.

    ``keep``: freed memory is kept, as in the trainer.
    """
    if keep:
        disable_malloc_trim()
    step = make(name, settings)
    steps = max(1, 2048 // settings.length)
    step(settings.length)

    def measure() -> float:
        def turn() -> None:
            for _ in range(steps):
                step(settings.length)
            wait(settings.device)

        return seconds(turn) / steps

    return measure


def _at_length(name: str, settings: Settings, rounds: int) -> tuple[float, int, int]:
    """Measure seconds of a step, and the peaks after texts of `SHORT` and of all tokens, in a separate process."""
    disable_malloc_trim()
    step = _ours_with(name, settings)
    for _ in range(2):  # the first makes the state of the optimizer
        step(SHORT)
    short = _peak(settings)
    step(settings.length)
    times = []
    for _ in range(rounds * max(1, 1024 // settings.length)):
        start = _clock(settings)
        step(settings.length)
        times.append(_clock(settings) - start)
    return statistics.median(times), short, _peak(settings)


def _clock(settings: Settings) -> float:
    if settings.device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _peak(settings: Settings) -> int:
    return torch.cuda.max_memory_allocated() if settings.device == "cuda" else peak_bytes()


def _ours(name: str, settings: Settings) -> Step:
    return _our_training(ours(name, settings) | AS_PEER.get(name, {}), settings)


def _ours_with(name: str, settings: Settings) -> Step:
    """Build a step in which only the attention depends on the name."""
    return _our_training(ours(name, settings), settings)


def _our_training(tree: dict[str, Any], settings: Settings) -> Step:
    torch.manual_seed(0)
    model = EncoderConfig.model_validate(tree).build()
    return _training(model, model, settings)


def _peer(name: str, settings: Settings) -> Step:
    torch.manual_seed(0)
    model, forward = PEERS[name](settings)
    return _training(model, forward, settings)


def _our_attention(name: str, settings: Settings) -> Step:
    torch.manual_seed(0)
    layers: Any = EncoderConfig.model_validate(ours(name, replace(settings, layers=1))).build().layers
    attention = layers[0].attention.sublayer
    attention.output = nn.Identity()  # the peers' modules end before this projection
    return _attending(attention, lambda hidden: attention(hidden, Mask()), settings)


def _peer_attention(name: str, settings: Settings) -> Step:
    torch.manual_seed(0)
    attention, forward = ALONE[name](settings)
    return _attending(attention, forward, settings)


def _training(model: nn.Module, forward: Callable[[Tensor], Tensor], settings: Settings) -> Step:
    """Build a training step on random tokens."""
    torch.set_num_threads(settings.threads)
    model.to(settings.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(5, VOCAB_SIZE, (1, max(settings.length, SHORT))).to(settings.device)

    def step(length: int) -> None:
        with autocast(settings.device, settings.precision):
            loss: Any = forward(ids[:, :length]).float().abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _attending(attention: nn.Module, forward: Callable[[Tensor], Tensor], settings: Settings) -> Step:
    """Build a forward and backward pass of the attention alone."""
    torch.set_num_threads(settings.threads)
    attention.to(settings.device).train()
    hidden = torch.randn(1, settings.length, settings.hidden_size).to(settings.device).requires_grad_()

    def step(length: int) -> None:
        with autocast(settings.device, settings.precision):
            mean: Any = forward(hidden[:, :length]).float().abs().mean()
        mean.backward()
        attention.zero_grad()
        hidden.grad = None

    return step


def _by_length(name: str, lengths: Sequence[int], settings: Settings, rounds: int) -> dict[str, list[float]]:
    """Measure seconds, peak memory, and the part of it due to the text, at each length."""
    found: dict[str, list[float]] = {"seconds": [], "peak_bytes": [], "added_bytes": []}
    for length in lengths:
        contenders = replace(settings, length=length)
        seconds_a_step, short, peak = peak_memory(_at_length, name, contenders, rounds).result
        print(f"{name} {length}: {seconds_a_step:.4g} s, {peak / 1e9:.3g} GB", file=sys.stderr, flush=True)
        for values, value in zip(found.values(), (round(seconds_a_step, 5), peak, peak - short), strict=True):
            values.append(value)
    return found


def _exponents(lengths: Sequence[int], values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Fit the slopes of time and memory over the length, both as logarithms; target: at most 1.15."""
    return {
        key: round(float(np.polyfit(np.log(lengths), np.log(np.maximum(values[key], 1e-9)), 1)[0]), 3)
        for key in ("seconds", "peak_bytes", "added_bytes")
    }


def _crossovers(
    lengths: Sequence[int], found: Mapping[str, Mapping[str, Sequence[float]]]
) -> dict[str, dict[str, int | None]]:
    """Find the first measured length from which on each is clearly cheaper than full attention, or None."""

    def first(values: Sequence[float], full: Sequence[float]) -> int | None:
        wins = [value < CLEARLY * other for value, other in zip(values, full, strict=False)]
        return next((lengths[index] for index in range(len(wins)) if all(wins[index:])), None)

    return {
        name: {key: first(values[key], found["full"][key]) for key in ("seconds", "peak_bytes")}
        for name, values in found.items()
        if name != "full"
    }


def _plot(
    lengths: Sequence[int], found: Mapping[str, Mapping[str, Sequence[float]]], path: Path, settings: Settings
) -> str:
    """Draw cost as a share of full attention."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    from homespun.report.figure import CARD, PALETTE, STYLE, render

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 3.4), facecolor=CARD, layout="constrained")
        where = f"{settings.layers} layers of {settings.hidden_size}, {settings.precision}, {settings.device}"
        panels = {"seconds": f"time of a training step ({where})", "peak_bytes": "peak memory"}
        for axes, (key, label) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
            axes.set_facecolor(CARD)
            axes.axhline(1, color="#000000", linewidth=1.6, label="full attention: 1")
            for colour, name in zip(PALETTE, [name for name in found if name != "full"], strict=False):
                full = found["full"][key]
                shares = np.array(found[name][key])[: len(full)] / np.array(full)
                axes.plot(lengths[: len(full)], shares, "o-", color=colour, markersize=3.5, linewidth=1.2, label=name)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(lengths[: len(full)], [f"{length:,}" for length in lengths[: len(full)]], fontsize=7)
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel("tokens")
            axes.set_title(label, loc="left", fontsize=8.5)
        figure.axes[1].legend(frameon=False, fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(render(figure, "png" if path.suffix == ".png" else "svg"))
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
