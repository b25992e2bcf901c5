"""Accuracy of the planner: memory and time of small models of many kinds, predicted, probed and measured.

Each case is a small recipe on synthetic text: a kind of attention, of network or of residual connection. It is
predicted from its config alone; then probed with micro-batches of a quarter and of half its size, in separate
processes; then measured at its own size, in a third. Nothing was fitted to any case: the memory of a process without
tensors and the speed of the machine are measured with a model of two layers of 128 and single operators. Times are
processor time of the main thread.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from homespun.commands.plan import plan
from homespun.commands.probe import ProbeJob, run_probe
from homespun.commands.recipe import PretrainRecipe
from homespun.config import validate

_MLM: dict[str, Any] = {"kind": "mlm"}
_ELECTRA: dict[str, Any] = {"kind": "electra"}
_SIZE = {
    "vocab_size": 8000,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def _with(attention: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return _SIZE | {"attention": attention} | changes


def _two(preset: str) -> dict[str, Any]:
    """Return an encoder-decoder."""
    return {"preset": preset, "encoder": {"vocab_size": 8000}}


# name: model, objective, tokens in a row, rows in a step
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int, int]] = {
    "full, mlm": (_SIZE, _MLM, 128, 32),
    "full, electra": (_SIZE, _ELECTRA, 128, 32),
    "full, clm": (_SIZE | {"causal": True}, {"kind": "clm"}, 128, 32),
    "longformer": ({"preset": "longformer-mini"} | _SIZE, _MLM, 512, 8),
    "bigbird": ({"preset": "big_bird-mini"} | _SIZE, _MLM, 512, 8),
    "blockbert": ({"preset": "blockbert-mini"} | _SIZE, _MLM, 512, 8),
    "reformer": ({"preset": "reformer-mini"} | _SIZE, _MLM, 512, 8),
    "linformer": (_with({"kind": "linformer", "k": 64}), _MLM, 512, 8),
    "performer": (_with({"kind": "performer"}), _MLM, 512, 8),
    "deberta": ({"preset": "deberta-mini"} | _SIZE, _MLM, 128, 32),
    "albert": ({"preset": "albert-mini"} | _SIZE, _MLM, 128, 32),
    "reversible dilated": ({"preset": "reversible-dilated-bert-small"} | _SIZE, _ELECTRA, 128, 32),
    "dilated": ({"preset": "dilated-bert-small"} | _SIZE, _ELECTRA, 128, 32),
    "gpt3": ({"preset": "gpt3-mini"} | _SIZE, {"kind": "clm"}, 512, 8),
    "checkpointed": (_SIZE, _MLM, 128, 32),
    "t5": (_two("t5-tiny"), {"kind": "span_corruption"}, 128, 32),
    "lstm": ({"preset": "lstm-mini", "vocab_size": 8000}, {"kind": "stateful_clm"}, 64, 64),
    "elman": ({"preset": "rnn-mini", "vocab_size": 8000}, {"kind": "stateful_clm"}, 64, 64),
    "lstm, both directions": ({"preset": "bilstm-mini", "vocab_size": 8000}, _MLM, 128, 32),
    "gru, both directions": ({"preset": "bigru-mini", "vocab_size": 8000}, _MLM, 128, 32),
    "elmo": ({"preset": "elmo-mini", "vocab_size": 8000}, {"kind": "elmo"}, 32, 32),
    "gru, encoder and decoder": (_two("rnn-seq2seq-mini"), {"kind": "denoising"}, 64, 32),
    "bart": (_two("bart-mini"), {"kind": "denoising"}, 128, 16),
    "transformer of 2017": (_two("transformer-mini"), {"kind": "denoising"}, 128, 16),
    "bigbird-pegasus": (_two("bigbird-pegasus-mini"), {"kind": "gap_sentences"}, 512, 4),
    "pegasus": (_two("pegasus-mini"), {"kind": "gap_sentences"}, 128, 16),
    "led": (_two("led-mini"), {"kind": "span_corruption"}, 512, 4),
    "prophetnet": (_two("prophetnet-mini"), {"kind": "future_ngrams"}, 128, 16),
    "hierarchical": (_two("hierarchical-mini"), {"kind": "denoising"}, 128, 16),
}


def recipe_of(name: str, times: int = 1) -> PretrainRecipe:
    """Build the recipe of a case, with ``times`` its rows."""
    model, objective, length, rows = CASES[name]
    rows *= times
    train = {"batch_size": rows, "micro_batch_size": rows, "budget": {"steps": 10}}
    tree = {"data": {"max_length": length}, "model": model, "objective": objective, "train": train}
    tree["train"] = train | {"gradient_checkpointing": name == "checkpointed"}
    return validate(PretrainRecipe, tree, source=name)


def run(arguments: list[str]) -> dict[str, Any]:
    """Run the cases, and compute the deviations."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks planner", description=__doc__)
    parser.add_argument("--only", default="", help="names of cases, separated by semicolons; default: all")
    parser.add_argument("--times", type=int, default=1, help="factor of the rows (default: %(default)s)")
    options = parser.parse_args(arguments)
    names = [part.strip() for part in options.only.split(";") if part.strip()] or list(CASES)
    recipes = {name: recipe_of(name, options.times) for name in names}  # all of them before the first is measured
    cases = []
    for name, recipe in recipes.items():
        cases.append(_case(name, recipe))
        print(_line(cases[-1]), file=sys.stderr, flush=True)
    return {"cases": cases, "deviations": _deviations(cases)}


def _case(name: str, recipe: PretrainRecipe) -> dict[str, Any]:
    planned = plan(recipe, probe=True)
    rows = planned["chosen"]["micro_batch_size"]
    measured = run_probe(ProbeJob(recipe=recipe.model_dump(mode="json"), rows=rows))
    seconds = measured.seconds + measured.update_seconds
    return {
        "case": name,
        "rows": rows,
        "length": recipe.data.max_length,
        "parameters": planned["parameters"]["total"],
        "probes": planned["probe"]["points"],
        "flops_per_token": planned["flops_per_token"]["total"],
        "memory": {
            "predicted": planned["probe"]["peak_before"],
            "probed": planned["memory"]["peak"],
            "measured": measured.peak_bytes,
        },
        "seconds": {
            "predicted": planned["probe"]["seconds_per_step_before"],
            "probed": planned["seconds_per_step"],
            "measured": seconds,
        },
    }


def _off(case: dict[str, Any], what: str, how: str) -> float:
    return float(case[what][how] / case[what]["measured"] - 1.0)


def _deviations(cases: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the maximum and median deviation of each prediction from the measurement."""
    found = {}
    for what in ("memory", "seconds"):
        for how in ("predicted", "probed"):
            off = [abs(_off(case, what, how)) for case in cases]
            found[f"{what}, {how}"] = {"largest": max(off), "median": statistics.median(off)}
    return found


def _line(case: dict[str, Any]) -> str:
    """Format a row of the table in results/planner.md."""
    memory = [f"{case['memory'][how] / 1e6:,.0f}" for how in ("predicted", "probed", "measured")]
    seconds = [f"{case['seconds'][how]:.3f}" for how in ("predicted", "probed", "measured")]
    off = [f"{100 * _off(case, what, how):+.0f} %" for what in ("memory", "seconds") for how in ("predicted", "probed")]
    cells = [case["case"], f"{case['rows']} x {case['length']}", *memory, *off[:2], *seconds, *off[2:]]
    return f"| {' | '.join(cells)} |"
