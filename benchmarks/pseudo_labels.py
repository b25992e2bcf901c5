"""Self-training: pseudo-labels of unlabelled text, against the labelled examples alone.

Of the training part of each data set of ``python -m benchmarks fit``, ``--labelled`` examples keep their labels, and
the texts of ``--unlabelled`` others are the user's unlabelled text. A `spun-encoder` is pretrained on all of them, and
fine-tuned as in `homespun fit`: on the labelled examples, and on these and the pseudo-labels whose probability is at
least ``--confidence``. The average of the network and the linear model of the fit assigns them (Lee 2013). Accuracy is
measured on the validation examples, which also choose checkpoint and weights; the test rows are not read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks.fit import read
from benchmarks.paths import SHARED
from homespun.commands.finetune import finetune
from homespun.commands.recipe import finetune_recipe
from homespun.fitting.candidates import Candidate, Clock, average_candidate, candidate, fit_linear_model
from homespun.fitting.inspection import Inspection, inspect
from homespun.fitting.linear_plan import plan_linear
from homespun.fitting.networks import Source, finetuning_settings, open_source, pretrain_on, texts_to_read, write_parts
from homespun.report.console import Display
from homespun.tasks.network_text_model import open_network
from homespun.tasks.text_outputs import to_predictions
from homespun.tasks.texts import LabelledText

SETS = ("phrasebank", "topics", "ag-news")


def run(arguments: list[str]) -> dict[str, Any]:
    """Compare both trainings on each data set, over seeds of fine-tuning."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pseudo-labels", description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--labelled", type=int, default=1_000, help="(default: %(default)s)")
    parser.add_argument("--unlabelled", type=int, default=4_000, help="at most (default: %(default)s)")
    parser.add_argument("--confidence", type=float, default=0.9, help="(default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=4.0, help="of pretraining (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/pseudo-labels"))
    options = parser.parse_args(arguments)
    results = {}
    for name in options.sets:
        folder = options.out / name
        folder.mkdir(parents=True, exist_ok=True)
        read(name, options.data)[0].to_csv(folder / "train.csv", index=False)
        inspection = inspect([str(folder / "train.csv")], [])
        order = np.random.default_rng(0).permutation(len(inspection.train))[: options.labelled + options.unlabelled]
        examples = [inspection.train[index] for index in order]
        texts = texts_to_read([], (one.text for one in examples), folder)
        pretrained = pretrain_on(texts, folder, seconds=60 * options.minutes, memory=None, display=Display(json=True))
        inspection = replace(inspection, train=examples[: options.labelled])
        source = open_source(pretrained[0], inspection)
        results[name] = _data_set(source, inspection, examples[options.labelled :], folder, options)
        print(name, json.dumps(results[name]), file=sys.stderr, flush=True)
    return {"labelled": options.labelled, "confidence": options.confidence, "results": results}


def _data_set(
    source: Source,
    inspection: Inspection,
    unlabelled: Sequence[LabelledText],
    folder: Path,
    options: argparse.Namespace,
) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    linear = _linear(inspection)
    for seed in range(options.seeds):
        network = _network(source, inspection, folder, f"labelled-{seed}", seed)
        teacher = average_candidate(network, linear, inspection)
        pseudo, correct = _pseudo_labels(teacher, inspection, unlabelled, options.confidence)
        extended = replace(inspection, train=[*inspection.train, *pseudo])
        student = _network(source, extended, folder, f"pseudo-{seed}", seed)
        retrained = _linear(extended)
        measured = {
            "network": network,
            "network, pseudo-labels": student,
            "linear model": linear,
            "linear model, pseudo-labels": retrained,
            "average": teacher,
            "average, pseudo-labels": average_candidate(student, retrained, inspection),
        }
        for name, one in measured.items():
            found.setdefault(name, []).append(one.validation["accuracy"])
        found.setdefault("share of pseudo-labels", []).append(len(pseudo) / len(unlabelled))
        found.setdefault("correct pseudo-labels", []).append(correct)
        print(folder.name, seed, {name: values[-1] for name, values in found.items()}, file=sys.stderr, flush=True)
    return {
        name: {
            "mean": round(100 * fmean(values), 2),
            "deviation": round(100 * stdev(values), 2) if len(values) > 1 else None,
        }
        for name, values in found.items()
    }


def _linear(inspection: Inspection) -> Candidate:
    model, _ = fit_linear_model(inspection, inspection.train, plan=plan_linear(inspection, 300.0))
    return candidate("linear", "linear model", model, inspection, Clock(0.0, 0.0))


def _network(source: Source, inspection: Inspection, folder: Path, name: str, seed: int) -> Candidate:
    out = folder / "runs" / name
    if not (out / "result.json").is_file():
        files = write_parts(inspection, folder / "data" / name)
        recipe, settings = finetuning_settings(source, inspection, files, own=True, seconds=3600, memory=None)
        finetune(
            finetune_recipe(recipe, [*settings, f"train.seed={seed}"]),
            out,
            start_from=source.path,
            display=Display(json=True),
        )
    model = open_network(out)
    return candidate("network", "network", model, inspection, Clock(0.0, 0.0))


def _pseudo_labels(
    teacher: Candidate, inspection: Inspection, unlabelled: Sequence[LabelledText], confidence: float
) -> tuple[list[LabelledText], float]:
    """Return the texts with confident labels, and the share of labels that are correct."""
    assert teacher.model is not None
    assert inspection.labels is not None
    outputs = teacher.model.outputs(unlabelled).values
    probabilities = to_predictions(outputs, inspection.labels, teacher.decision)
    pseudo, correct = [], 0
    for example, row in zip(unlabelled, probabilities, strict=True):
        if row.max() >= confidence:
            pseudo.append(replace(example, label=inspection.labels.names[int(row.argmax())]))
            correct += pseudo[-1].label == example.label
    return pseudo, correct / max(1, len(pseudo))
