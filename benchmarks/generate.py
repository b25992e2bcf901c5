"""Greedy and beam-4 generation with BART- and T5-small shapes, batch 8, against `transformers.generate`.

Both have the same random weights, 6 + 6 layers, hidden size 512 and 8 heads, and vocabularies of 50,265 and 32,128.
They read and generate equal numbers of tokens, with caches, alternately in one process. Signs in the norms and larger
weights give texts with several words; equal outputs are checked.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import CLOCKS, measure_interleaved
from homespun.hf.open import open_huggingface
from homespun.text.tokenizer import Tokenizer

SHAPES = ("bart", "t5")
BEAMS = (1, 4)


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks generate", description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8, help="texts at a time (default: %(default)s)")
    parser.add_argument("--source", type=int, default=64, help="tokens to read (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to write (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default: %(default)s)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="wall or processor (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    results: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    for shape in SHAPES:
        theirs, ours = _both(shape)
        for beams in BEAMS:
            name = f"{shape} {'greedy' if beams == 1 else f'beam {beams}'}"
            seconds = _measure(theirs, ours, beams, options)
            written = options.batch * options.tokens
            results[name] = {who: round(written / value, 1) for who, value in seconds.items()}
            ratios[name] = round(seconds["peer"] / seconds["ours"], 3)  # target: at least 1.5
    given = {key: getattr(options, key) for key in ("batch", "source", "tokens", "rounds", "threads", "clock")}
    return {"unit": "tokens/s", **given, "results": results, "ratios": ratios}


def _measure(theirs: Any, ours: Any, beams: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure the seconds of a call, the median over the rounds."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(10, 30_000, (options.batch, options.source), generator=generator)
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "num_beams": beams}
    given |= {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens}
    written: dict[str, torch.Tensor] = {}
    now = CLOCKS[options.clock]

    def turn(who: str, generate: Callable[..., torch.Tensor], **more: Any) -> float:
        start = now()
        written[who] = generate(**given, **more)
        return now() - start

    contestants: dict[str, Callable[[], float]] = {
        "ours": lambda: turn("ours", ours.generate),
        "peer": lambda: turn("peer", theirs.generate, do_sample=False),
    }
    for contestant in contestants.values():
        contestant()  # to warm up
    seconds = measure_interleaved(contestants, options.rounds)
    if not torch.equal(written["ours"], written["peer"]):
        raise RuntimeError("the two generate different tokens; their times cannot be compared")
    if len({*written["ours"].flatten().tolist()}) < 3:
        raise RuntimeError("the texts have fewer than three different tokens")
    return seconds


def _both(shape: str) -> tuple[Any, Any]:
    """Build the same random model in transformers and in homespun."""
    import transformers

    torch.manual_seed(0)
    if shape == "bart":
        stacks: dict[str, Any] = {
            f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in _LAYERS.items()
        }
        theirs: Any = transformers.BartForConditionalGeneration(transformers.BartConfig(d_model=512, **stacks))
    else:
        sizes: dict[str, Any] = {"d_model": 512, "d_ff": 2048, "d_kv": 64, "num_layers": 6, "num_heads": 8}
        sizes |= {"decoder_start_token_id": 0}
        theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter *= torch.randint(2, parameter.shape) * 2 - 1
            elif parameter.dim() == 2 and shape == "bart":
                parameter *= 3
    with tempfile.TemporaryDirectory() as folder:
        theirs.eval().save_pretrained(folder)
        Tokenizer.train(["a few words"], kind="bpe", vocab_size=262).save(Path(folder))
        ours = open_huggingface(folder).stored.model
        for parameter in ours.parameters():
            parameter.data = parameter.data.clone()  # not mapped from a file that is gone
    return theirs, ours


_LAYERS = {"layers": 6, "attention_heads": 8, "ffn_dim": 2048}
