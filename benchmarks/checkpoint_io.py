"""Opening a checkpoint of BERT-base: seconds, and peak memory beyond the model, against `from_pretrained`.

A random model in the shape of BERT-base with its masked LM head (about 440 MB) is written once, as safetensors and as a
torch file. The contestants open it with its tokenizer, alternately, each in a separate process; imports are not
counted. Both map the weights from the disk, so every weight is then read once, and both times are reported:
``seconds`` until the model is open, ``read_seconds`` until all weights are in memory. Processor time is reported next
to the wall clock, since it depends less on other work. ``beyond`` is the peak resident memory above the start, after
reading, minus the model's own bytes, as a share of the file's bytes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.bert_base import write_bert_base
from benchmarks.measure import peak_memory

FORMS = {"safetensors": "model.safetensors", "torch": "pytorch_model.bin"}


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks checkpoint-io", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=12, help="of the model (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: %(default)s)")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parameters = write_bert_base(folder, layers=options.layers, head="masked_lm")
        for form, name in FORMS.items():
            if form == "torch":
                torch.save(load_file(folder / FORMS["safetensors"]), folder / name)
                (folder / FORMS["safetensors"]).unlink()
            results[form] = _measure(folder, (folder / name).stat().st_size, parameters, options)
    return {"unit": "seconds, bytes", "rounds": options.rounds, "threads": options.threads, **results}


def _measure(folder: Path, size: int, parameters: int, options: argparse.Namespace) -> dict[str, Any]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for number in range(options.rounds):
        order = list(CONTESTANTS)
        for name in order[number % 2 :] + order[: number % 2]:
            found = peak_memory(CONTESTANTS[name], str(folder), options.threads).result
            measured[name].append(found)
            print(f"round {number + 1} of {options.rounds}: {name} {found}", file=sys.stderr, flush=True)
    result: dict[str, Any] = {"file_bytes": size, "parameters": parameters}
    for name, rounds in measured.items():
        middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        beyond = (middle["peak_bytes"] - 4 * parameters) / size
        result[name] = {key: round(value, 3) for key, value in middle.items()} | {"beyond": round(beyond, 3)}
    result["ratios"] = {  # of ours to the peer's; reach: at most 1
        key: round(value / result["peer"][key], 3) for key, value in result["ours"].items() if key.endswith("seconds")
    }
    return result


def ours(folder: str, threads: int) -> dict[str, float]:
    """Open the model as `homespun.load` does."""
    from homespun.hf.open import open_huggingface

    torch.set_num_threads(threads)
    return _timed(lambda: open_huggingface(folder).stored.model)


def peer(folder: str, threads: int) -> dict[str, float]:
    """Open the model as users of transformers do."""
    import transformers

    silence: Any = transformers.utils.logging.disable_progress_bar
    silence()
    tokenizers: Any = transformers.AutoTokenizer  # imported when first named, which is not counted
    models: Any = transformers.BertForMaskedLM
    torch.set_num_threads(threads)

    def load() -> Any:
        tokenizers.from_pretrained(folder)
        return models.from_pretrained(folder).eval()

    return _timed(load)


CONTESTANTS = {"ours": ours, "peer": peer}


def _timed(load: Any) -> dict[str, float]:
    from benchmarks.measure import peak_bytes

    before = _resident()
    clock, processor = time.perf_counter(), time.process_time()
    model: torch.nn.Module = load()
    took = {"seconds": time.perf_counter() - clock, "processor_seconds": time.process_time() - processor}
    for parameter in model.parameters():
        parameter.detach().sum()
    took |= {"read_seconds": time.perf_counter() - clock, "read_processor_seconds": time.process_time() - processor}
    return took | {"peak_bytes": float(peak_bytes() - before)}


def _resident() -> int:
    """Return the resident bytes of this process."""
    import psutil

    return int(psutil.Process().memory_info().rss)
