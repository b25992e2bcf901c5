"""Tasks from the MiniLM checkpoint, against a plain `transformers` loop with the same settings; trials are stored.

Both start from the same checkpoint with a new head of the same form, and are trained on the same rows with the same
number of epochs, batch size, AdamW, linear schedule, clipping, dropout and precision. The final model is evaluated in
float32 on the same test rows. homespun runs `homespun finetune` (rows of similar length together, standardized numbers,
its own model); the peer is a loop of shuffled batches, a padding collate and the classes of `transformers`.

A trial in ``--results`` is not run again. ``--rehearse ROWS`` uses the first rows and one epoch as a short test; its
results are stored elsewhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import pair_contests, word_contests
from benchmarks.paths import RESULTS, SHARED
from benchmarks.trials import minilm, processor_seconds, read_results, run_homespun, trial_machine, write_results

SIDES = ("ours", "peer")


@dataclass(frozen=True)
class Training:
    """Settings common to both sides."""

    length: int = 128
    batch_size: int = 32
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    eps: float = 1e-6
    warmup: float = 0.1
    epochs: float = 3.0
    precision: str = "float32"
    seed: int = 0

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings for `homespun finetune`."""
        return (
            f"train.precision={self.precision}",
            "train.validate_every=1.0",  # once, at the end: the last weights are the best
            "train.optimizer.layer_decay=1.0",
            f"train.optimizer.learning_rate={self.learning_rate}",
            f"train.optimizer.weight_decay={self.weight_decay}",
            f"train.optimizer.eps={self.eps}",
            f"train.schedule.warmup={self.warmup}",
            f"train.batch_size={self.batch_size}",
            f"train.budget.epochs={self.epochs}",
            f"train.seed={self.seed}",
        )


Files = Mapping[str, Path]  # train, validation, test


@dataclass(frozen=True)
class Contest:
    """One data set.

    Args:
        measure: name of the metric.
        recipe: recipe of `homespun finetune`.
        settings: settings of homespun, besides those of `Training` and the files.
        prepare: function from the shared data, a folder and the maximum number of rows to the files.
        score: function from the ``test`` of homespun's result to the metric.
        peer: function from checkpoint, files and training to the metric of the `transformers` loop.
        training: settings common to both sides.
        baseline: baseline in homespun's result.
    """

    measure: str
    recipe: str
    settings: tuple[str, ...]
    prepare: Callable[[Path, Path, int | None], Files]
    score: Callable[[Mapping[str, Any]], float]
    peer: Callable[[Path, Files, Any], float]
    training: Training = Training()
    baseline: str = "tfidf"


HEAD = "objective.head={kind: pooled, dropout: 0.1}"
CONTESTS = {
    "mrpc": Contest(
        "F1 of paraphrases",
        "pairs",
        (HEAD,),
        pair_contests.mrpc,
        lambda test: float(test["f1"]),
        pair_contests.peer_of_classes,
    ),
    "stsb": Contest(
        "Spearman correlation",
        "similarity",
        (HEAD,),
        pair_contests.stsb,
        lambda test: float(test["spearman"]),
        pair_contests.peer_of_numbers,
    ),
    "conll2000": Contest(
        "F1 of chunks",
        "tag",
        (),
        word_contests.conll2000,
        lambda test: float(test["f1"]),
        word_contests.peer_of_tags,
        baseline="frequent-tag",
    ),
    "xquad": Contest(  # few questions, and a checkpoint that never saw any: many epochs
        "exact match",
        "question-answering",
        (),
        word_contests.xquad,
        lambda test: float(test["exact_match"]),
        word_contests.peer_of_answers,
        Training(length=384, batch_size=16, epochs=8.0),
        baseline="tfidf-sentence",
    ),
}


def run(arguments: list[str]) -> dict[str, Any]:
    """Run the requested trials without a result, alternating homespun and the peer for each seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tasks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CONTESTS, default=list(CONTESTS), metavar="TASK")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32", help="of both sides' training")
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with mrpc/, stsb/, ...")
    parser.add_argument("--out", type=Path, default=Path("runs/tasks"), help="where the runs go")
    parser.add_argument("--results", type=Path, default=RESULTS / "tasks.json")
    parser.add_argument("--rehearse", type=int, metavar="ROWS", help="the first rows only, and one epoch")
    options = parser.parse_args(arguments)
    model = minilm()
    out: Path = options.out / f"rehearsal-{options.rehearse}" if options.rehearse else options.out
    results: Path = out / "results.json" if options.rehearse else options.results
    out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        contest = CONTESTS[name]
        files = contest.prepare(options.data, out, options.rehearse)
        for seed in options.seeds:
            training = replace(contest.training, seed=seed, precision=options.precision)
            training = replace(training, epochs=1.0) if options.rehearse else training
            for side in SIDES:
                trials = read_results(results)["trials"]
                key = f"{name}-{side}-{seed}"
                if key in trials:
                    if trials[key]["training"] != vars(training):
                        raise SystemExit(f"{key} was measured with other settings; take it out of {results} first")
                    continue
                print(f"{key} ...", file=sys.stderr, flush=True)
                measured = _ours(out / key, model, contest, files, training) if side == "ours" else None
                if measured is None:
                    measured = _peer(model, contest, files, training)
                print(f"{key}: {measured['score']:.4f}", file=sys.stderr, flush=True)
                trials = read_results(results)["trials"]  # another process may have added to it meanwhile
                trials[key] = measured | {"training": vars(training), "machine": trial_machine()}
                write_results(results, {"trials": trials}, page(trials))
    found = summary(read_results(results)["trials"])
    return {"results": str(results), **found}


def _ours(folder: Path, model: Path, contest: Contest, files: Files, training: Training) -> dict[str, Any]:
    before = processor_seconds()
    resumed = folder.is_dir()
    if not (folder / "result.json").is_file():
        given = [f"data.{part}={path}" for part, path in files.items()]
        words = ["finetune", contest.recipe, *given, f"data.max_length={training.length}", *contest.settings]
        words += [*training.settings, "--from", str(model), "--out", str(folder)]
        words += ["--resume"] if resumed else []
        run_homespun(*words)
    used = processor_seconds() - before
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    lines = {}
    for line, metrics in result.get("baselines", {}).items():
        try:
            lines[line] = contest.score(metrics)
        except (KeyError, TypeError):  # a constant has no correlation
            continue
    # what a stopped process took is not known
    took = None if resumed else round(used, 1)
    return {"score": contest.score(result["test"]), "baselines": lines, "processor_seconds": took}


def _peer(model: Path, contest: Contest, files: Files, training: Training) -> dict[str, Any]:
    began = time.process_time()
    score = contest.peer(model, files, training)
    return {"score": score, "processor_seconds": round(time.process_time() - began, 1)}


def summary(trials: Mapping[str, Any]) -> dict[str, Any]:
    """Return means and deviations over seeds by task, and whether homespun is within one deviation of the peer."""
    found: dict[str, Any] = {}
    for name in CONTESTS:
        sides = {side: [t["score"] for key, t in trials.items() if key.startswith(f"{name}-{side}-")] for side in SIDES}
        if not all(sides.values()):
            continue
        row: dict[str, Any] = {side: _spread(values) for side, values in sides.items()}
        gap = row["ours"]["mean"] - row["peer"]["mean"]
        deviation = max(row[side]["std"] or 0.0 for side in SIDES)
        known = min(len(values) for values in sides.values()) > 1
        found[name] = row | {"difference": gap, "reached": gap >= -deviation if known else None}
    return found


def _spread(values: Sequence[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": deviation, "seeds": len(values)}


def page(trials: Mapping[str, Any]) -> str:
    """Build the page in Markdown."""
    found = summary(trials)
    lines = [
        "# Tasks from the MiniLM checkpoint",
        "",
        "Does `homespun finetune` reach the figures of a plain loop with `transformers` from the same checkpoint, rows "
        f"and settings? On {sum(row['reached'] is True for row in found.values())} of {len(found)} tasks. Target: its "
        "mean, within one standard deviation over the seeds.",
        "",
        "```",
        "python -m benchmarks tasks",
        "```",
        "",
        "| task | measure | homespun | transformers | difference | seeds | reached | baseline |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        reached = {True: "yes", False: "no", None: "unknown with one seed"}[row["reached"]]
        line = next(
            (t["baselines"].get(CONTESTS[name].baseline) for k, t in trials.items() if k.startswith(f"{name}-ours")),
            None,
        )
        lines.append(
            f"| {name} | {CONTESTS[name].measure} | {_shown(row['ours'])} | {_shown(row['peer'])} "
            f"| {100 * row['difference']:+.2f} | {row['ours']['seeds']} and {row['peer']['seeds']} | {reached} "
            f"| {'–' if line is None else f'{100 * line:.2f}'} |"
        )
    training = sorted({json.dumps({k: v for k, v in t["training"].items() if k != "seed"}) for t in trials.values()})
    lines += ["", "In percent; ± is the standard deviation over the seeds."]
    lines += [text for line in training for text in ("", f"Settings: `{line}`")]
    for side in SIDES:
        used = [t["processor_seconds"] for key, t in trials.items() if f"-{side}-" in key and t["processor_seconds"]]
        if used:
            lines += ["", f"Processor seconds a trial, {side}: {min(used):,.0f} to {max(used):,.0f}."]
    kinds = {(t["machine"]["cpu"], t["machine"]["threads"], t["machine"]["torch"]) for t in trials.values()}
    lines += [
        "",
        *(f"Measured on {cpu}, {threads} threads, torch {torch}." for cpu, threads, torch in sorted(kinds, key=str)),
    ]
    return "\n".join(lines) + "\n"


def _shown(spread: Mapping[str, Any]) -> str:
    deviation = "" if spread["std"] is None else f" ± {100 * spread['std']:.2f}"
    return f"{100 * spread['mean']:.2f}{deviation}"
