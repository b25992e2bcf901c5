"""Sentence-pair tasks for `benchmarks.tasks`: the files, and the loops with `transformers`."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peer_loop import fit

HEADER = ("first", "second", "label")
Rows = Sequence[Sequence[str]]


def mrpc(data: Path, out: Path, most: int | None) -> dict[str, Path]:
    """Write the files; a tenth of the training rows is the validation, which neither side trains on."""
    parts = {}
    for part in ("train", "test"):
        with _open(data / "mrpc" / f"msr_paraphrase_{part}.txt", encoding="utf-8-sig") as stream:
            _, *rows = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        parts[part] = [(row[3], row[4], row[0]) for row in rows]
    random.Random(0).shuffle(parts["train"])
    held = len(parts["train"]) // 10
    return _write(
        {"train": parts["train"][held:], "validation": parts["train"][:held], "test": parts["test"]}, "mrpc", out, most
    )


def stsb(data: Path, out: Path, most: int | None) -> dict[str, Path]:
    """Write the official parts, without a header."""
    parts = {}
    for part, name in (("train", "train"), ("validation", "dev"), ("test", "test")):
        with _open(data / "stsb" / f"stsb-en-{name}.csv", encoding="utf-8") as stream:
            parts[part] = [(row[0], row[1], row[2]) for row in csv.reader(stream)]
    return _write(parts, "stsb", out, most)


def _open(path: Path, *, encoding: str) -> Any:
    if not path.is_file():
        raise SystemExit(f"no {path}: give --data FOLDER with mrpc/ and stsb/")
    return path.open(encoding=encoding, newline="")


def _write(parts: Mapping[str, Rows], name: str, out: Path, most: int | None) -> dict[str, Path]:
    files = {}
    for part, rows in parts.items():
        path = out / f"{name}-{part}.csv"
        temporary = path.with_suffix(".tmp")
        with temporary.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([HEADER, *rows[:most]])
        temporary.replace(path)
        files[part] = path
    return files


def peer_of_classes(model: Path, files: Mapping[str, Path], training: Any) -> float:
    """Return the F1 of class 1."""
    from sklearn.metrics import f1_score

    logits, truth = _trained(model, files, training, num_labels=2, read=int)
    return float(f1_score(truth, logits.argmax(axis=1)))


def peer_of_numbers(model: Path, files: Mapping[str, Path], training: Any) -> float:
    """Return Spearman's correlation."""
    from scipy.stats import spearmanr

    predicted, truth = _trained(model, files, training, num_labels=1, read=float)
    return float(spearmanr(predicted[:, 0], truth).statistic)


def _trained(
    model: Path, files: Mapping[str, Path], training: Any, *, num_labels: int, read: Callable[[str], Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, labels) test logits after a training, and the (rows,) truth."""
    import transformers

    torch.manual_seed(training.seed)
    # the classes of transformers have no types
    automatic: Any = transformers.AutoModelForSequenceClassification
    tokens: Any = transformers.AutoTokenizer
    tokenizer = tokens.from_pretrained(str(model))
    network = automatic.from_pretrained(str(model), num_labels=num_labels)
    network.bert.pooler.dense.reset_parameters()  # a new head, as ours
    network.bert.pooler.dense.weight.data.normal_(std=network.config.initializer_range)
    network.bert.pooler.dense.bias.data.zero_()
    parts = {part: _rows(files[part], read) for part in ("train", "test")}

    def batch(rows: Sequence[tuple[str, str, Any]]) -> Any:
        return tokenizer(
            [first for first, _, _ in rows],
            [second for _, second, _ in rows],
            truncation=True,
            max_length=training.length,
            padding=True,
            return_tensors="pt",
        )

    def loss(rows: Sequence[tuple[str, str, Any]]) -> torch.Tensor:
        labels = torch.tensor([label for _, _, label in rows])
        return network(**batch(rows), labels=labels).loss

    fit(network, parts["train"], loss, training)
    test = parts["test"]
    with torch.no_grad():
        logits = [network(**batch(test[start : start + 64])).logits for start in range(0, len(test), 64)]
    return torch.cat(logits).numpy(), np.array([label for _, _, label in test])


def _rows(path: Path, read: Callable[[str], Any]) -> list[tuple[str, str, Any]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return [(row["first"], row["second"], read(row["label"])) for row in csv.DictReader(stream)]
