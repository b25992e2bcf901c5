"""Nearest training examples of a text by cosine similarity."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel

from homespun.config import read_yaml
from homespun.data.labels import read_rows
from homespun.errors import UserError, first_line
from homespun.io.json import read_optional
from homespun.tasks.text_models import TextModel
from homespun.tasks.texts import LabelledText, TextsData, readable_texts

if TYPE_CHECKING:
    from homespun.tasks.text_models import Vectors

logger = logging.getLogger(__name__)

MAX_EXAMPLES = 20_000
"""Training examples that are searched: the first ones of the files."""
_CHUNK = 64  # examples embedded at a time


class Neighbour(BaseModel):
    """Training example near a text."""

    text: str
    label: str | list[str]
    similarity: float


@dataclass(eq=False)
class NeighbourIndex:
    """Training examples of a model with their vectors, computed in a thread."""

    model: TextModel
    run: Path  # folder that names the training files
    rows: int = 0  # examples, when their files have been read
    done: int = 0  # examples that `nearest` searches; a random subset until all are embedded
    error: str | None = None  # reason for missing examples
    _examples: list[LabelledText] = field(default_factory=list)
    _vectors: list[Vectors] = field(default_factory=list)
    _usable: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._build, name="neighbours", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self, seconds: float) -> None:
        """Wait until the first examples are embedded, or there is an error."""
        self._usable.wait(seconds)

    def nearest(self, example: LabelledText, count: int) -> list[Neighbour]:
        """Return the ``count`` examples with the greatest cosine similarity to a text, the greatest first."""
        from sklearn.metrics.pairwise import cosine_similarity

        parts = list(self._vectors)
        if not parts:
            return []
        vector = self.model.vectors([example])
        similarity = np.concatenate([cosine_similarity(part, vector)[:, 0] for part in parts])
        order = np.argsort(-similarity, kind="stable")[:count].tolist()
        found = [self._examples[index] for index in order]
        return [
            Neighbour(
                text=text,
                label=list(one.label) if isinstance(one.label, tuple) else one.label,
                similarity=round(float(similarity[index]), 6),
            )
            for index, one, text in zip(order, found, readable_texts(found), strict=True)
        ]

    def _build(self) -> None:
        try:
            examples = list(islice(training_examples(self.model.data, self.run), MAX_EXAMPLES))
            self._examples = [examples[index] for index in np.random.default_rng(0).permutation(len(examples))]
            self.rows = len(self._examples)
            while self.done < self.rows and not self._stop.is_set():
                chunk = self._examples[self.done : self.done + _CHUNK]
                self._vectors.append(self.model.vectors(chunk))
                self.done += len(chunk)
                self._usable.set()
        except (UserError, OSError) as error:
            self.error = first_line(error)
        except Exception:
            logger.exception("the training examples were not embedded")
            self.error = "an internal error, which the log of the server describes"
        finally:
            self._usable.set()


def training_examples(data: TextsData, run: Path) -> Iterator[LabelledText]:
    """Yield the training examples of a fit or a run.

    Raises:
        UserError: the run does not name its training files, they are missing, or they have other columns.
    """
    files, columns, encoding = _training_files(run)
    for record, where in read_rows(files, columns=columns, encoding=encoding):
        if data.multi_label or not data.lacks_label(record, set(record)):
            yield from data.parse(record, where=where)


def _training_files(run: Path) -> tuple[list[str], list[str] | None, str | None]:
    """Return the files, column names of files without a header, and the encoding."""
    own = run / "data" / "train.jsonl"  # training examples of a fit with networks
    if own.is_file():
        return [str(own)], None, None
    config = run / "config.yaml"
    tree, name = read_optional(run / "result.json"), "settings"  # settings of a fit
    if name not in tree and config.is_file():
        tree, name = read_yaml(config), "data"
    settings = tree.get(name)
    files = settings.get("train") if isinstance(settings, dict) else None
    if not isinstance(settings, dict) or not files:
        raise UserError(f"{run} does not name its training files; serve the folder of a fit or of a run")
    names = [files] if isinstance(files, str) else [str(name) for name in files]
    return names, settings.get("columns"), settings.get("encoding")
