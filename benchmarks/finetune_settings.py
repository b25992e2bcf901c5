"""Fine-tuning settings of a small pretrained network, compared on validation examples over several seeds.

A `spun-encoder` is pretrained on the training texts of each data set, as in `homespun fit`, and fine-tuned with the
settings of the fit and one change each. Data sets are those of ``python -m benchmarks fit``; their test rows are not
read. The last lines are averages of probabilities: of the seeds, of one seed with the linear model of the fit, and
of the seeds with it (weights by the validation loss, as in the fit, so these two are slightly optimistic).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

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
from homespun.tasks.text_outputs import average, choose_decision, measure_outputs, to_predictions

SETS = ("phrasebank", "topics", "ag-news")
CHANGES: dict[str, list[str]] = {
    "as in fit": [],
    "8 epochs": ["train.budget.epochs=8"],
    "learning rate 2e-3": ["train.optimizer.learning_rate=2e-3"],
    "learning rate 5e-4": ["train.optimizer.learning_rate=5e-4"],
    "label smoothing 0.1": ["objective.label_smoothing=0.1"],
    "layer decay 1.0": ["train.optimizer.layer_decay=1.0"],
    "SOAP at 1e-3": ['train.optimizer={"kind": "soap", "learning_rate": 1e-3, "layer_decay": 0.9}'],
    "SOAP at 3e-3": ['train.optimizer={"kind": "soap", "learning_rate": 3e-3, "layer_decay": 0.9}'],
    "CNN head": ['objective.head={"kind": "cnn", "dropout": 0.5}'],
    "mean of the tokens": ['objective.head={"kind": "mean"}'],
}


def run(arguments: list[str]) -> dict[str, Any]:
    """Pretrain once for each data set, then fine-tune each change with each seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks finetune-settings", description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--changes", nargs="*", choices=list(CHANGES), default=list(CHANGES))
    parser.add_argument("--minutes", type=float, default=4.0, help="of pretraining (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/finetune-settings"))
    options = parser.parse_args(arguments)
    results = {}
    for name in options.sets:
        folder = options.out / name
        folder.mkdir(parents=True, exist_ok=True)
        rows = read(name, options.data)[0]
        rows.to_csv(folder / "train.csv", index=False)
        inspection = inspect([str(folder / "train.csv")], [])
        texts = texts_to_read([], (one.text for one in inspection.train), folder)
        source = open_source(
            pretrain_on(texts, folder, seconds=60 * options.minutes, memory=None, display=Display(json=True))[0],
            inspection,
        )
        results[name] = _data_set(source, inspection, folder, options)
    return {"minutes": options.minutes, "results": results}


def _data_set(source: Source, inspection: Inspection, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    files, found = write_parts(inspection, folder / "data"), {}
    for change in options.changes:
        accuracies, seconds, outputs = [], [], []
        for seed in range(options.seeds):
            out = folder / "runs" / f"{change.replace(' ', '-')}-{seed}"
            if not (out / "result.json").is_file():
                start = time.process_time()
                name, settings = finetuning_settings(source, inspection, files, own=True, seconds=3600, memory=None)
                recipe = finetune_recipe(name, [*settings, *CHANGES[change], f"train.seed={seed}"])
                finetune(recipe, out, start_from=source.path, display=Display(json=True))
                seconds.append(time.process_time() - start)
            model = open_network(out)
            outputs.append(candidate(change, change, model, inspection, Clock(0.0, 0.0)))
            accuracies.append(outputs[-1].validation["accuracy"])
        found[change] = {
            "accuracy": round(100 * fmean(accuracies), 2),
            "deviation": round(100 * stdev(accuracies), 2) if len(accuracies) > 1 else None,
            "macro_f1": round(100 * fmean(one.validation["macro_f1"] for one in outputs), 2),
            "seconds": round(fmean(seconds), 1) if seconds else None,  # those of finished runs are not known
        }
        print(folder.name, change, json.dumps(found[change]), file=sys.stderr, flush=True)
        if change == options.changes[0]:
            found |= _averages(outputs, inspection)
            print(folder.name, json.dumps(found), file=sys.stderr, flush=True)
    return found


def _averages(networks: list[Candidate], inspection: Inspection) -> dict[str, Any]:
    """Evaluate averages of the seeds, of one seed and the linear model, and of all."""
    labels, examples = inspection.labels, inspection.validation
    linear, _ = fit_linear_model(inspection, inspection.train, plan=plan_linear(inspection, 300.0))
    alone = candidate("linear", "linear", linear, inspection, Clock(0.0, 0.0))
    predicted = [to_predictions(one.outputs, labels, one.decision) for one in networks]
    mean = average(predicted, [1 / len(predicted)] * len(predicted), labels)
    ensemble = replace(networks[0], outputs=mean, decision=choose_decision(mean, examples, labels))
    seeds = measure_outputs(mean, examples, labels, ensemble.decision).metrics["accuracy"]
    one = fmean(average_candidate(network, alone, inspection).validation["accuracy"] for network in networks)
    both = average_candidate(ensemble, alone, inspection).validation["accuracy"]
    found = {
        "linear model": alone.validation["accuracy"],
        "average of the seeds": seeds,
        "one seed and the linear model": one,
        "all seeds and the linear model": both,
    }
    return {name: {"accuracy": round(100 * value, 2)} for name, value in found.items()}
