"""Accuracy by number of examples in the prompt and by size of the model, on AG News.

Causal models of several sizes are pretrained on the texts of AG News without their labels (``spun-decoder``, rows of
512 tokens; a document is ten texts, so that models learn from several), then classify test texts by the likelihood of a
class name after examples (`homespun few-shot`). All sizes read as many tokens. Models and evaluations that are there
are not made again.

The effect of examples is the accuracy with the most examples minus that without, tested by Student's t over the seeds
of pretraining; for pairs of sizes the difference of their effects. `homespun.report.significance.holm` corrects all.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.paths import SHARED
from benchmarks.sources import MADE, build_corpus
from benchmarks.trials import run_homespun
from homespun.report.significance import detectable_difference, holm, pooled_variance, seed_error, seed_test

SHOTS = (0, 1, 2, 4, 8)
REPEATS = 5  # draws of examples for each number


def run(arguments: list[str]) -> dict[str, Any]:
    """Pretrain and evaluate the models, and test the effect of examples."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks few-shot", description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=SHARED, help="the folder of the shared data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/few-shot"))
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=3_000_000, help="of pretraining")
    parser.add_argument("--limit", type=int, default=1000, help="test texts")
    options = parser.parse_args(arguments)
    data: Path = options.out / "data"
    MADE["agnews"](options.data, data)
    build_corpus(data / "agnews", lambda: _documents(data / "agnews-train.csv"))
    accuracies: dict[str, list[list[float]]] = {}
    losses: dict[str, list[float]] = {}
    for seed, size in itertools.product(options.seeds, options.sizes):
        folder = options.out / f"{size}-{seed}"
        budget = f"train.budget={{time: null, tokens: {options.tokens}, clock: processor}}"
        if not (folder / "result.json").is_file():
            settings = [f"model.size={size}", f"train.seed={seed}", "train.batch_size=4", budget, f"--out={folder}"]
            rows = [f"data.corpus={data}/agnews", "data.max_length=512"]
            run_homespun("pretrain", "spun-decoder", *rows, *settings)
        evaluation = folder / "few-shot" / "in_context.json"
        if not evaluation.is_file():
            given = ["--data", str(data / "agnews-train.csv"), "--test", str(data / "agnews-test.csv")]
            shots = ["--shots", ",".join(map(str, SHOTS)), "--repeats", str(REPEATS), "--limit", str(options.limit)]
            template = [r"--example={text}\nTopic: {answer}", "--text-tokens", "48", f"--out={evaluation.parent}"]
            run_homespun("few-shot", str(folder), *given, *shots, *template)
        found = json.loads(evaluation.read_text(encoding="utf-8"))["shots"]
        accuracies.setdefault(size, []).append([one["accuracy"] for one in found])
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        losses.setdefault(size, []).append(result["validation"]["loss"])
    by_shots = {size: [_spread(values) for values in zip(*rows, strict=True)] for size, rows in accuracies.items()}
    return {
        "unit": "accuracy",
        "tokens": options.tokens,
        "ours": {
            size: {
                "loss": _spread(losses[size]),
                "accuracy": dict(zip(map(str, SHOTS), by_shots[size], strict=True)),
            }
            for size in accuracies
        },
        "effects": effects(accuracies),
    }


def effects(accuracies: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, dict[str, float]]:
    """Test the effect of examples for each size, and the difference of the effects of each pair of sizes.

    Args:
        accuracies: by size, for each seed the accuracy by number of examples.

    Returns:
        ``mean``, ``p`` (Holm) and ``detectable`` by name; of ``A, B`` the effect of B minus that of A.
    """
    gains = {size: [row[-1] - row[0] for row in rows] for size, rows in accuracies.items()}
    pooled = pooled_variance(list(gains.values()))
    named: dict[str, tuple[Sequence[float], Sequence[float]]] = {size: ([0.0], gain) for size, gain in gains.items()}
    named |= {f"{a}, {b}": (gains[a], gains[b]) for a, b in itertools.combinations(gains, 2)}
    found, probabilities = {}, []
    for name, (first, second) in named.items():
        fixed = (name in gains, False)
        p = seed_test(first, second, pooled, deterministic=fixed)
        error = seed_error(first, second, pooled[0], deterministic=fixed)
        assert p is not None
        probabilities.append(p)
        found[name] = {
            "mean": fmean(second) - fmean(first),
            "detectable": detectable_difference(error, pooled[1], pairs=len(named)),
        }
    for name, p in zip(named, holm(probabilities), strict=True):
        found[name]["p"] = p
    return found


def _spread(values: Sequence[float]) -> tuple[float, float]:
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def _documents(path: Path) -> list[dict[str, str]]:
    """Return documents of ten texts in random order; the file is sorted by class."""
    with path.open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    random.Random(0).shuffle(texts)
    return [{"text": "\n\n".join(texts[first : first + 10])} for first in range(0, len(texts), 10)]
