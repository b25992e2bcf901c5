"""AG News from scratch by the commands: tokenizer, pretraining, fine-tuning; test accuracy against TF-IDF.

Reads ``ag_news/train.csv.gz`` and ``ag_news/test.csv.gz`` from ``--data`` (by default the shared data sets next to the
checkout). The test rows are read only in the final evaluation. ``--time`` is the pretraining budget; every step is
timed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.paths import SHARED

COLUMNS = {"train": "class,title,description,source", "test": "class,title,description"}


def run(arguments: list[str]) -> dict[str, Any]:
    """Run every step as a separate command, timed by the wall clock."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks agnews", description=__doc__)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--out", type=Path, default=Path("runs/agnews"))
    parser.add_argument("--recipe", default="spun-encoder", help="of pretraining (default: %(default)s)")
    parser.add_argument("--classifier", default="classify-cnn", help="recipe of fine-tuning (default: %(default)s)")
    parser.add_argument("--time", default="25m", help="of pretraining (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=8_000)
    parser.add_argument("--seeds", type=int, default=1, help="of fine-tuning")
    parser.add_argument("--pretrain", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--finetune", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    train, test = (options.data / "ag_news" / f"{split}.csv.gz" for split in ("train", "test"))
    if not (train.is_file() and test.is_file()):
        raise SystemExit(f"no AG News in {options.data}: give --data FOLDER with ag_news/train.csv.gz and test.csv.gz")
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    tokenizer, corpus, base, classifier = (str(out / name) for name in ("tokenizer", "corpus", "base", "classifier"))
    unlabelled = ["--input", str(train), "--columns", COLUMNS["train"]]
    unlabelled += ["--text-field", "title", "--text-field", "description"]
    words = ["--kind", "wordpiece", "--lowercase", "--vocab-size", str(options.vocab_size)]
    budget = f"train.budget.time={options.time}"
    labelled = [f"data.train={train}", "data.text=[title, description]", "data.label=class"]
    labelled += [f"data.columns=[{COLUMNS['train']}]", f"seeds={options.seeds}"]
    steps = {
        "tokenizer": ["tokenizer", "train", *unlabelled, *words, "--out", tokenizer],
        "corpus": ["corpus", "build", *unlabelled, "--tokenizer", tokenizer, "--out", corpus],
        "pretrain": ["pretrain", options.recipe, f"data.corpus={corpus}", budget, *options.pretrain, "--out", base],
        "finetune": ["finetune", options.classifier, *labelled, *options.finetune, "--from", base, "--out", classifier],
        "evaluate": ["evaluate", classifier, "--data", str(test), "--columns", COLUMNS["test"]],
    }
    seconds: dict[str, float] = {}
    printed: dict[str, Any] = {}
    for name, step in steps.items():
        print("$ homespun", *step, file=sys.stderr, flush=True)
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "homespun", *step, "--json"], stdout=subprocess.PIPE, text=True, check=True
        )
        seconds[name] = round(time.perf_counter() - began, 1)
        printed[name] = json.loads(done.stdout)
    ours = printed["evaluate"]["accuracy"]
    tfidf = _tfidf(train, test)
    return {
        "ours": {
            "accuracy": ours,
            "macro_f1": printed["evaluate"]["macro_f1"],
            "log_loss": printed["evaluate"]["log_loss"],
            "validation_accuracy": printed["finetune"]["validation_metrics"]["accuracy"],
            "test_rows": printed["evaluate"]["rows"],
            "seconds": seconds,
            "minutes_in_all": round(sum(seconds.values()) / 60, 1),
            "pretraining": {k: printed["pretrain"][k] for k in ("steps", "tokens", "tokens_per_second", "validation")},
            "parameters": printed["pretrain"]["parameters"],
        },
        "peer": {"name": "TF-IDF (1-2 grams) + linear SVM", "accuracy": tfidf},
        "reach": {"accuracy": 0.922, "minutes_in_all": 40},
    }


def _tfidf(train: Path, test: Path) -> float:
    from homespun.baselines import baseline_report
    from homespun.data.labels import Labels, read_labelled_texts

    texts = ["title", "description"]
    train_texts, train_labels = read_labelled_texts(
        [str(train)], text=texts, label="class", columns=COLUMNS["train"].split(",")
    )
    test_texts, test_labels = read_labelled_texts(
        [str(test)], text=texts, label="class", columns=COLUMNS["test"].split(",")
    )
    labels = Labels.collect(train_labels)
    return float(baseline_report(train_texts, train_labels, test_texts, test_labels, labels)["tfidf"]["accuracy"])
