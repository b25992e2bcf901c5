"""Quickstart: a fit that predicts which installed Python package a passage documents."""

from __future__ import annotations

import hashlib
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from homespun.config import Tree
from homespun.data.reading import clean_documents
from homespun.errors import UserError
from homespun.fitting.fit import fit
from homespun.io.atomic import entries
from homespun.io.cores import available_cores
from homespun.io.json import write_lines
from homespun.report.console import SILENT, Display
from homespun.text.clean import sentence_spans
from homespun.text.pydocs import python_documentation
from homespun.text.sources import Document

CLASSES = 12
PASSAGE = 420  # characters, about 96 tokens
MOST = {"train": 400, "test": 120}  # passages of a class
MIN_SECONDS = 60.0

_ALIASES = {
    "numpy": ("np",),
    "pandas": ("pd",),
    "matplotlib": ("plt", "mpl"),
    "networkx": ("nx",),
    "sklearn": ("scikit-learn", "scikits"),
    "torch": ("pytorch", "aten"),
    "huggingface_hub": ("huggingface", "hugging"),
    "fontTools": ("ttlib",),
}


def quickstart(out: str | Path, *, seconds: float = 330.0, display: Display = SILENT) -> Tree:
    """Collect the documentation, label its passages with their packages, and fit a classifier.

    Args:
        out: a new folder; the files are in ``data``, the fit is in ``fit``.
        seconds: time limit.
        display: where progress is shown.

    Returns:
        The result of `homespun.fitting.fit.fit`.

    Raises:
        UserError: ``out`` is not a new folder, or there is too little time or documentation.
    """
    out, start = Path(out), time.monotonic()
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give --out a new folder")
    if entries(out):
        raise UserError(f"{out} is not empty; give --out a new folder, or delete it first")
    if seconds < MIN_SECONDS:
        raise UserError(f"--minutes {seconds / 60:g} is too short; give at least {MIN_SECONDS / 60:g}")
    documents = _collect(display)
    data = out / "data"
    for split, rows in labelled_passages(documents).items():
        write_lines(data / f"{split}.jsonl", rows)
    unseen = [document for document in documents if not _is_test(document)]
    write_lines(data / "documents.jsonl", ({"text": d.text, "package": d.label, "source": d.source} for d in unseen))
    display.line(
        f"{len(documents):,} texts of documentation; classes: the {CLASSES} packages with the most documentation; "
        "their names are masked in the passages"
    )
    return fit(
        [str(data / "train.jsonl")],
        fit_folder(out),
        test=[str(data / "test.jsonl")],
        texts=[str(data / "documents.jsonl")],
        seconds=seconds - (time.monotonic() - start),
        display=display,
    )


def fit_folder(out: str | Path) -> Path:
    """Return the folder of the fit of a quickstart."""
    return Path(out) / "fit"


def labelled_passages(documents: Sequence[Document]) -> dict[str, list[dict[str, str]]]:
    """``train`` and ``test`` passages of the packages with the most documentation, at most `MOST` of each.

    A passage is the beginning of a document. All passages of a document are in one split. Names of packages are masked,
    because they would reveal the label.

    Raises:
        UserError: too few packages with enough documentation are installed.
    """
    by_package: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        by_package[str(document.label)].append(document)
    largest = sorted(by_package, key=lambda name: (-len(by_package[name]), name))[:CLASSES]
    if len(largest) < CLASSES:
        raise UserError(f"only {len(largest)} packages here have documentation; install homespun's requirements")
    hide = _names(largest)
    splits: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    for package in largest:
        taken = dict.fromkeys(splits, 0)
        for document in sorted(by_package[package], key=lambda d: _digest(d.source)):
            split = "test" if _is_test(document) else "train"
            if taken[split] < MOST[split] and (text := _passage(document.text, hide)):
                taken[split] += 1
                splits[split].append({"text": text, "package": package, "source": document.source})
    return splits


def _collect(display: Display) -> list[Document]:
    task = display.task("documentation of the installed packages", total=None, unit="texts")
    documents: list[Document] = []
    stream = python_documentation(workers=available_cores())
    for document in clean_documents(stream, normal=True, duplicates="near"):
        documents.append(document)
        if len(documents) % 256 == 0:
            task.update(len(documents))
    return documents


def _names(packages: Iterable[str]) -> re.Pattern[str]:
    words = {word for package in packages for word in (package, *_ALIASES.get(package, ()))}
    return re.compile(rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, sorted(words)))})(?![A-Za-z0-9])", re.IGNORECASE)


def _passage(text: str, hide: re.Pattern[str]) -> str:
    """The first sentences, up to `PASSAGE` characters, on one line, without the packages' names."""
    ends = [end for _, end in sentence_spans(text[: 2 * PASSAGE]) if end <= PASSAGE]
    passage = text[: ends[-1] if ends else PASSAGE]
    passage = " ".join(hide.sub("this", passage).split())
    return passage if len(passage) >= 80 else ""


def _is_test(document: Document) -> bool:
    return int(_digest(document.source)[:4], 16) % 5 == 0


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
