"""Generation of 8 concurrent streams with a GPT-2-small shape, against sequential `transformers.generate`.

Both have the same random weights: 12 layers, width 768, a vocabulary of 50,257. They alternate in one process. The
streams start and end together. The time to the first token is measured with a short prompt that joins 7 running
streams.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import measure_interleaved
from homespun.hf.open import open_huggingface
from homespun.inference.continuous import ContinuousGenerator, GenerationRequest
from homespun.text.tokenizer import Tokenizer

PROMPTS = [f"The report of year {year} says that revenue rose by" for year in range(2001, 2009)]


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks serve-generation", description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32, help="new tokens of a text (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        theirs, bundle = _both(Path(name))
    generator = ContinuousGenerator(bundle)
    found: dict[str, list[list[int]]] = {}
    waits: list[float] = []

    def ours() -> float:
        start = time.perf_counter()
        requests = [_add(generator, prompt, options.tokens) for prompt in PROMPTS]
        while generator.requests:
            generator.step()
        seconds = time.perf_counter() - start
        found["ours"] = [request.ids[0].tolist() for request in requests]
        waits.append(_first_token(generator))
        return float(len(PROMPTS) * options.tokens / seconds)

    def peer() -> float:
        start, texts = time.perf_counter(), []
        for prompt in PROMPTS:
            ids = generator.request(prompt).job.input_ids
            settings = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens, "do_sample": False}
            made = theirs.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **settings)
            texts.append(made[0, ids.shape[1] :].tolist())
        found["peer"] = texts
        return float(len(PROMPTS) * options.tokens / (time.perf_counter() - start))

    rates = measure_interleaved({"ours": ours, "peer": peer}, options.rounds)
    if found["ours"] != found["peer"]:
        raise RuntimeError("the two generate different tokens")
    return {
        "unit": "tokens/s",
        "streams": len(PROMPTS),
        **{name: getattr(options, name) for name in ("tokens", "rounds", "threads")},
        "results": {who: round(rate, 1) for who, rate in rates.items()},
        "ratio": round(rates["ours"] / rates["peer"], 2),  # target: at least 4
        "first_token_s": round(statistics.median(waits), 3),  # target: below 0.3
    }


def _add(generator: ContinuousGenerator, prompt: str, tokens: int) -> GenerationRequest:
    request = generator.request(prompt, max_new_tokens=tokens, eos_token_id=None)
    generator.add(request)
    return request


def _first_token(generator: ContinuousGenerator) -> float:
    """Measure the seconds to the first token of a request that joins 7 running requests during a step."""
    running = [_add(generator, prompt, 40) for prompt in PROMPTS[1:]]
    while min(request.tokens for request in running) < 3:
        generator.step()
    start = time.perf_counter()
    generator.step()  # runs when the request arrives
    request = _add(generator, PROMPTS[0], 4)
    while not request.tokens:
        generator.step()
    seconds = time.perf_counter() - start
    for each in (request, *running):
        each.end("cancelled")
    generator.step()
    return seconds


def _both(folder: Path) -> tuple[Any, Any]:
    """Build the same random model in transformers and in homespun."""
    import transformers

    torch.manual_seed(0)
    theirs: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 2:
                parameter *= 3  # so that the text is not one token
    theirs.eval().save_pretrained(folder)
    Tokenizer.train(PROMPTS, kind="bpe", vocab_size=300).save(folder)
    bundle = open_huggingface(folder).stored
    for parameter in bundle.model.parameters():
        parameter.data = parameter.data.clone()  # not mapped from a file that is gone
    return theirs, bundle
