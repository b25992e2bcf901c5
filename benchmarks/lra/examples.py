"""Labelled examples from a folder with a training, a test and optionally a validation part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config
from homespun.data.labels import Labels, get_text
from homespun.data.splits import stratified_split
from homespun.errors import UserError
from homespun.text.formats import Record
from homespun.text.sources import read_records

Split = Literal["train", "validation", "test"]
MostRows = Annotated[int | None, Field(ge=1, description="at most so many, drawn at random with the seed; null: all")]

# words in file names; the first match counts: `test_data.csv` is a test set
_WORDS: dict[Split, set[str]] = {
    "test": {"test"},
    "validation": {"validation", "valid", "val", "dev", "eval"},
    "train": {"train", "training", "data"},  # CIFAR-10's parts are data_batch_1 to 5
}


@dataclass(frozen=True)
class Examples:
    """Labelled texts; ``others`` are the second texts of pairs."""

    texts: list[str]
    labels: list[str]
    others: list[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: NDArray[Any]) -> Examples:
        """Select ``indices``, in their order."""
        others = None if self.others is None else [self.others[i] for i in indices]
        return Examples([self.texts[i] for i in indices], [self.labels[i] for i in indices], others)

    def at_most(self, rows: int | None, seed: int) -> Examples:
        """Draw ``rows`` examples at random, in their original order."""
        if rows is None or rows >= len(self):
            return self
        return self.take(np.sort(np.random.default_rng(seed).permutation(len(self))[:rows]))

    def by_length(self) -> Examples:
        """Sort by length, shortest first, so that batches in this order have little padding."""
        others = self.others or [""] * len(self)
        sizes = [len(text) + len(other) for text, other in zip(self.texts, others, strict=True)]
        return self.take(np.argsort(sizes, kind="stable"))


Parts = dict[Split, Examples]
Reader = Callable[[list[Path]], Examples]


class Files(Config):
    """Which rows to read from a folder with a file or folder for each part: train.csv, basic_val.tsv, test/."""

    train_rows: MostRows = None
    validation_rows: MostRows = None
    test_rows: MostRows = None
    validation: float = Field(
        default=0.1, gt=0, lt=0.5, description="share of the training rows held out if there is no validation file"
    )
    seed: int = Field(default=0, ge=0, description="of the choice of rows")

    def read(self, folder: str, read: Reader) -> Parts:
        """Read the three parts with ``read``; file names identify the parts.

        Raises:
            UserError: there is no folder, or no training or test file in it; errors of ``read``.
        """
        if not folder:
            raise UserError("which files? give --data FOLDER, with a file or folder each for train and test in it")
        found = _by_split(Path(folder))
        train = read(found["train"])
        test = read(found["test"]).at_most(self.test_rows, self.seed)
        if "validation" in found:
            validation = read(found["validation"])
        else:
            targets = Labels.collect(train.labels).encode(train.labels)
            training, held_out = stratified_split(targets, self.validation, self.seed)
            train, validation = train.take(training), train.take(held_out)
        return {
            "train": train.at_most(self.train_rows, self.seed),
            "validation": validation.at_most(self.validation_rows, self.seed),
            "test": test,
        }


def table_reader(texts: Sequence[str], label: str, columns: Sequence[str] | None, *, characters: int) -> Reader:
    """Build a reader of one or two text columns, cut to ``characters``, and a label column, of any file of records.

    A folder of folders is read as classes of ``.txt`` files; the inner folder names the class.
    """

    def read(paths: list[Path]) -> Examples:
        rows: list[list[str]] = []
        names: list[str] = []
        for path in paths:
            for where, record in _records(path, label, columns):
                rows.append([get_text(record, [text], where=where)[:characters] for text in texts])
                names.append(get_text(record, [label], where=where))
                if not names[-1]:
                    raise UserError(f"{where} has no label in column {label!r}; give it one, or leave the row out")
        first, *others = map(list, zip(*rows, strict=True))
        return Examples(first, names, others[0] if others else None)

    return read


def _records(path: Path, label: str, columns: Sequence[str] | None) -> Iterator[tuple[str, Record]]:
    classes = sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
    # IMDb's folder `unsup` has reviews without a class
    classes = [folder for folder in classes if folder.name != "unsup"]
    for folder in classes:
        for record in read_records([str(folder)]):
            yield str(folder), {**record, label: folder.name}
    if not classes:
        for number, record in enumerate(read_records([str(path)], columns=columns), start=1):
            yield f"row {number} of {path}", record


def _by_split(folder: Path) -> dict[Split, list[Path]]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one with a file or folder each for train and test in it")
    found: dict[Split, list[Path]] = {}
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        words = set(re.split(r"[^a-z]+", entry.name.lower()))
        split = next((split for split, known in _WORDS.items() if words & known), None)
        if split is not None:
            found.setdefault(split, []).append(entry)
    for split in ("train", "test"):
        if split not in found:
            listing = ", ".join(entry.name for entry in entries[:8]) or "nothing"
            raise UserError(f"{folder} has no file or folder with {split!r} in its name; there is: {listing}")
    return found
