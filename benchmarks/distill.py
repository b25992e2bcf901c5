"""A 3-layer student of a fine-tuned MiniLM on AG News: relative accuracy, speed and size; trials are stored.

The teacher is a run of `benchmarks checkpoint` (``full``), given by ``--teacher`` or trained here with the same
settings. A student starts from layers 0, 2 and 5 of its teacher and is trained on the labels and on the teacher's
probabilities, which are cached on disk for all epochs and seeds. Another student with the same start is trained on the
labels alone. Trials in ``--results`` are not run again; an interrupted one resumes. ``--rows`` is for short tests.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint import DATA, FULL, TRAIN
from benchmarks.paths import RESULTS, SHARED
from benchmarks.trials import (
    copy_agnews,
    minilm,
    processor_seconds,
    read_results,
    run_homespun,
    trial_machine,
    write_results,
)

STUDENT = (
    "train.optimizer.learning_rate=2.0e-4",
    "train.optimizer.layer_decay=0.9",
    "train.budget.epochs=2",
    "train.validate_every=0.25",
)
VARIANTS = {
    "student": "its teacher's probabilities and the labels",
    "labels": "the labels alone, from the same layers",
}
REACH = {"kept": 0.97, "faster": 1.7}
LAYERS = (0, 2, 5)
_LENGTHS = (64, 128)


def run(arguments: list[str]) -> dict[str, Any]:
    """Run the requested trials without a result, and write the page of all trials."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks distill", description=__doc__)
    parser.add_argument("--teacher", type=Path, help="a fine-tuned run of MiniLM; trained where not given")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32", help="whichever is faster here")
    parser.add_argument("--rows", type=int, help="so many training rows, and a quarter as many test rows")
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with ag_news/train.csv.gz and test.csv.gz")
    parser.add_argument("--out", type=Path, default=Path("runs/distill"), help="where the runs go")
    parser.add_argument("--results", type=Path, default=RESULTS / "distill.json")
    options = parser.parse_args(arguments)
    model = minilm()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    files = {
        split: copy_agnews(options.data, split, out, rows)
        for split, rows in (("train", options.rows), ("test", options.rows and options.rows // 4))
    }
    data = [*DATA, f"data.train={files['train']}", f"data.test={files['test']}"]
    teacher: Path = options.teacher or out / "teacher"
    if not (teacher / "result.json").is_file():
        resume = ["--resume"] if teacher.is_dir() else []
        given = [*data, *TRAIN, *FULL, f"train.precision={options.precision}"]
        run_homespun("finetune", "classify", *given, "--from", str(model), "--out", str(teacher), *resume)
    measured = read_results(options.results)
    for name in options.only:
        for seed in options.seeds:
            key = f"{name}-{seed}"
            if key not in measured["trials"]:
                settings = [*data, *TRAIN, *STUDENT, f"train.seed={seed}", f"train.precision={options.precision}"]
                found = _trial(out / key, teacher, settings, alone=name == "labels")
                measured = read_results(options.results)  # another process may have added to it meanwhile
                measured["trials"][key] = found | {"rows_asked": options.rows, "precision": options.precision}
                write_results(options.results, measured, _page(measured))
    ours = _summary(measured["trials"])
    return {"ours": ours, "peer": ours.get("teacher"), "reach": REACH}


def _trial(folder: Path, teacher: Path, settings: list[str], *, alone: bool) -> dict[str, Any]:
    """Train one student, and measure both models by processor time. ``alone``: train on the labels only."""
    from homespun.hf.open import open_model

    began = processor_seconds()
    finished = (folder / "result.json").is_file()
    if not finished:
        where = ["--out", str(folder), *(["--resume"] if folder.is_dir() else [])]
        if alone:
            start = _save_start(teacher, folder.parent / "begun")
            run_homespun("finetune", "classify", *settings, "objective.head.kind=mean", "--from", str(start), *where)
        else:
            run_homespun(
                *("distill", "finetune", "distil-classify", *settings, "--layers", ",".join(map(str, LAYERS))),
                *(f"objective.teacher.cache={folder.parent / 'logits'}", "--teacher", str(teacher), *where),
            )
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    pair = {"teacher": open_model(teacher), "student": open_model(folder)}
    return {
        "accuracy": result["test"]["accuracy"],
        "macro_f1": result["test"]["macro_f1"],
        "teacher": result.get("distillation", {}).get("quality"),
        "parameters": {name: sum(p.numel() for p in stored.model.parameters()) for name, stored in pair.items()},
        "speed": _speed(**pair),
        "rows": result["rows"],
        "steps": result["steps"],
        "seconds": result["seconds"],
        "processor_seconds": None if finished else round(processor_seconds() - began, 1),
        "settings": [*TRAIN, *STUDENT],
        "machine": trial_machine(),
    }


def _save_start(teacher: Path, folder: Path) -> Path:
    """Save the student with the teacher's layers before training."""
    from homespun.hf.open import open_model
    from homespun.models.bundle import save_model
    from homespun.models.weight_transfer import build_student

    if not folder.is_dir():
        made, _ = build_student(open_model(teacher), layers=LAYERS)
        save_model(folder, made.model, made.config, made.tokenizer)
    return folder


def _speed(teacher: Any, student: Any) -> list[dict[str, Any]]:
    """Measure processor seconds a text of both models alternately."""
    from homespun.commands.distill import compare_speed

    rows = []
    for length in _LENGTHS:
        rows += compare_speed(teacher, student, length=length, device=torch.device("cpu"), clock=time.process_time)
    return rows


def _summary(trials: dict[str, Any]) -> dict[str, Any]:
    """Average over seeds: accuracy of each variant and its share of the teacher's; speed of all students."""
    teacher_accuracies = [trial["teacher"]["accuracy"]["teacher"] for trial in trials.values() if trial["teacher"]]
    found: dict[str, Any] = {"teacher": statistics.mean(teacher_accuracies)} if teacher_accuracies else {}
    for name in VARIANTS:
        accuracies = [trial["accuracy"] for key, trial in trials.items() if key.rpartition("-")[0] == name]
        if accuracies:
            mean = statistics.mean(accuracies)
            found[name] = {"seeds": len(accuracies), "accuracy": mean, "lowest": min(accuracies)}
            found[name] |= {"kept": mean / found["teacher"]} if teacher_accuracies else {}
    turns: dict[str, list[float]] = {}
    for trial in trials.values():
        for row in trial["speed"]:
            key = f"{row['length']} tokens, {row['batch_size']} at a time"
            turns.setdefault(key, []).append(row["teacher"] / row["student"])
    return found | {"faster": {key: statistics.median(ratios) for key, ratios in turns.items()}}


def _answer(summary: Mapping[str, Any]) -> str:
    if "student" not in summary:
        return "Not measured."
    speed = summary["faster"].values()
    return f"It keeps {summary['student']['kept']:.1%} at {min(speed):.2f} to {max(speed):.2f} times the speed."


def _page(measured: dict[str, Any]) -> str:
    """Build the page of the results."""
    trials, summary = measured["trials"], _summary(measured["trials"])
    first = next(iter(trials.values()))
    sizes = first["parameters"]
    precisions = " and ".join(sorted({trial["precision"] for trial in trials.values()}))
    lines = [
        "# A student of MiniLM on AG News",
        "",
        f"Does a student of half the layers keep {REACH['kept']:.0%} of its teacher's accuracy at "
        f"{REACH['faster']} times its speed? {_answer(summary)}",
        "All trials are in `distill.json`.",
        "",
        "```",
        f"python -m benchmarks distill --precision {first['precision']}",
        "```",
        "",
    ]
    if first["rows_asked"]:
        lines += [f"**A rehearsal on {first['rows_asked']:,} training rows, not the figure.**", ""]
    lines += [
        f"Teacher: MiniLM (6 layers of 384) with all weights tuned, test accuracy {summary['teacher']:.2%}.",
        f"Student: 3 of its layers and no segments, {sizes['student'] / 1e6:.1f} M parameters against "
        f"{sizes['teacher'] / 1e6:.1f} M, {1 - sizes['student'] / sizes['teacher']:.0%} fewer.",
        f"Trained in {precisions}.",
        "",
        "| trained on | seeds | test accuracy | lowest | share of the teacher's |",
        "|---|---|---|---|---|",
    ]
    for name, about in VARIANTS.items():
        if name in summary:
            row = summary[name]
            cells = (about, row["seeds"], f"{row['accuracy']:.2%}", f"{row['lowest']:.2%}", f"{row['kept']:.1%}")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        "Speed: processor time a text, one thread, both models alternating, median of the trials.",
        "",
        "| texts | times as fast as the teacher |",
        "|---|---|",
        *(f"| {key} | {ratio:.2f} |" for key, ratio in summary["faster"].items()),
        "",
    ]
    return "\n".join(lines)
