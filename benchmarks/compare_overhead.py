"""Overhead of a comparison: two variations with two seeds, against the same commands run separately.

The text is the documentation of the installed Python packages, the labels are the packages, and the test is labelled
too, unless files are given. The separate commands are those of every stage, each in its own process as in the
comparison, with the baselines once. Both sides have budgets in steps, so that they do the same work. Times are
processor time of all processes together, and wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

VOCAB_SIZE = 4000


@dataclass(frozen=True)
class Took:
    """Seconds of a command and of its child processes."""

    processor: float
    clock: float

    def __add__(self, other: Took) -> Took:
        return Took(self.processor + other.processor, self.clock + other.clock)


def run(arguments: list[str]) -> dict[str, Any]:
    """Run the comparison, then its stages separately."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare-overhead", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/compare-overhead"), help="a folder; data in it is kept")
    parser.add_argument("--train", type=Path, help="labelled texts with columns text and label; with --test")
    parser.add_argument("--test", type=Path, help="the same, for the test")
    parser.add_argument("--steps", type=int, default=700, help="of pretraining (default: %(default)s)")
    parser.add_argument("--epochs", type=float, default=0.5, help="of fine-tuning (default: %(default)s)")
    parser.add_argument("--by-hand", type=int, default=4, help="trials that are run by hand too (default: all four)")
    options = parser.parse_args(arguments)
    out: Path = options.out
    if (options.train is None) != (options.test is None):
        parser.error("give both --train and --test, or neither")
    given = None if options.train is None else (options.train, options.test)
    prepare(out / "data", given)
    recipe = out / "comparison.yaml"
    recipe.write_text(yaml.safe_dump(comparison(out / "data", given, options.steps, options.epochs), sort_keys=False))
    folder = out / "comparison"
    if folder.exists():
        parser.error(f"{folder} is there: delete it, what it has finished would not be run again")
    total = _took(["compare", str(recipe), "--out", str(folder), "--json"])
    return summarize(folder, total, by_hand(folder, out / "by-hand", options.by_hand))


def summarize(folder: Path, total: Took, hand: Sequence[Took]) -> dict[str, Any]:
    """Summarise the times: total, stages as counted by the comparison, and separate commands.

    For trials without separate commands, the stages count as in the comparison.
    """
    records = [json.loads(path.read_text(encoding="utf-8")) for path in trials(folder)]
    if not all(record["status"] == "done" for record in records):
        raise SystemExit(f"not all trials of {folder} are done; see its report")
    stages = [
        Took(
            sum(stage["processor_seconds"] for stage in record["stages"].values()),
            sum(stage["seconds"] for stage in record["stages"].values()),
        )
        for record in records
    ]
    inside = sum(stages, Took(0, 0))
    own = sum([*hand, *stages[len(hand) :]], Took(0, 0))
    overhead = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["overhead"]
    return {
        "trials": len(records),
        "by_hand": len(hand),
        "ours": vars(total),
        "trials_own": vars(own),
        "stages_inside": vars(inside),
        "ratios": {
            "processor": round(total.processor / own.processor, 4),
            "clock": round(total.clock / own.clock, 4),
            "beside_stages": round(total.processor / inside.processor, 4),
        },
        "counted_by_the_comparison": overhead,
    }


def prepare(data: Path, given: tuple[Path, Path] | None) -> None:
    """Prepare text, tokenizer, corpus and labelled rows; existing files are kept."""
    if (data / "corpus").is_dir():
        return
    from homespun.data.corpus_build import build_corpus
    from homespun.fitting.quickstart import labelled_passages
    from homespun.text.pydocs import python_documentation
    from homespun.text.sources import Document, read_documents
    from homespun.text.tokenizer import Tokenizer

    data.mkdir(parents=True, exist_ok=True)
    if given is None:
        documents = list(python_documentation(workers=1))
        for split, rows in labelled_passages(documents).items():
            lines = (json.dumps({"text": row["text"], "label": row["package"]}) for row in rows)
            (data / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    else:
        documents = list(read_documents([str(given[0])]))
    texts = [document.text for document in documents][:8000]
    tokenizer = Tokenizer.train(texts, kind="bpe", vocab_size=VOCAB_SIZE, max_characters=4_000_000)
    build_corpus((Document(text) for text in texts), tokenizer, data / "corpus", workers=1)


def comparison(data: Path, given: tuple[Path, Path] | None, steps: int, epochs: float) -> dict[str, Any]:
    """Build a comparison of replaced and masked tokens with two seeds each, fine-tuned on the packages."""
    train, test = given or (data / "train.jsonl", data / "test.jsonl")
    return {
        "kind": "compare",
        "pretrain": {
            "recipe": "electra-tiny",
            "settings": {
                "data": {"corpus": str((data / "corpus").resolve()), "max_length": 128, "validation_rows": 64},
                "train": {"batch_size": 8, "validate_every": 0.5},
            },
        },
        "finetune": {
            "packages": {
                "recipe": "classify",
                "settings": {
                    "data": {"train": str(train.resolve()), "test": str(test.resolve()), "max_length": 96},
                    "objective.head": {"kind": "mean"},
                    "train": {"budget": {"epochs": epochs}, "optimizer.learning_rate": 1e-3},
                },
            }
        },
        "variations": {"replaced": {}, "masked": {"pretrain": {"objective": {"kind": "mlm"}}}},
        "budget": {"steps": steps},
        "seeds": 2,
        "benchmark": {"lengths": [128, 512]},
    }


def trials(folder: Path) -> list[Path]:
    """Return the records in the order in which the trials ran."""
    return sorted(folder.glob("trials/*/*/trial.json"), key=lambda path: (path.parent.name, path.parent.parent.name))


def by_hand(folder: Path, out: Path, count: int) -> list[Took]:
    """Run the stages of the first trials as separate commands, the first task with its baselines."""
    found: list[Took] = []
    baselines: set[str] = set()
    for path in trials(folder)[:count]:
        record = json.loads(path.read_text(encoding="utf-8"))
        trial_folder, took, begin = out / record["name"] / f"seed-{record['seed']}", Took(0, 0), ""
        for name, stage in record["stages"].items():
            settings = [s for s in record["settings"][name] if name in baselines or s != "baselines=false"]
            words = [stage["kind"], stage["recipe"], *settings, "--out", str(trial_folder / name), "--json"]
            took += _took([*words, *(["--from", begin] if stage["kind"] == "finetune" else [])])
            baselines |= {name} if stage["kind"] == "finetune" else set()
            begin = begin or str(trial_folder / name)
        found.append(took)
    return found


def _took(words: Sequence[str]) -> Took:
    print("$ homespun", *words, file=sys.stderr, flush=True)
    before, clock = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "homespun", *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    processor = after.children_user - before.children_user + after.children_system - before.children_system
    took = Took(processor, time.perf_counter() - clock)
    print(f"  {took.processor:.1f} s of the processor, {took.clock:.1f} s", file=sys.stderr, flush=True)
    return took
