"""Models of records that are not networks, behind one interface: linear taggers and extractive summarizers.

Each is stored in the ``model/`` folder of a run; `homespun.tasks.text_models` has classifiers and regressors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, Unpack

from homespun.crf import is_crf
from homespun.data.labels import Labels
from homespun.extractive import is_extractive
from homespun.tasks.protocol import Measured, ReadOptions, TaskData
from homespun.tasks.summarizers import open_summarizer
from homespun.tasks.taggers import open_tagger
from homespun.text.formats import Record


class RecordModel(Protocol):
    """Interface of models of records."""

    @property
    def kind(self) -> str:
        """``linear`` or ``extractive``."""

    @property
    def data(self) -> TaskData:
        """Columns of the records."""

    @property
    def labels(self) -> Labels | None:
        """Tags; ``None`` without any."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""

    def measure_files(self, files: Sequence[str]) -> Measured:
        """Evaluate the model on labelled files."""

    def predict(self, records: Iterable[Record], *, source: str, first: int = 1) -> Iterator[dict[str, object]]:
        """Yield the prediction of each record, in order and in bounded memory."""

    def save(self, folder: Path) -> None:
        """Write the ``model/`` folder atomically, replacing an existing one."""


def find_record_model(run: str | Path) -> Path | None:
    """Return the folder of a `RecordModel` in a run, or ``None`` if there is none."""
    folder = Path(run).expanduser()
    return next((found for found in (folder, folder / "model") if is_crf(found) or is_extractive(found)), None)


def open_record_model(folder: Path, **options: Unpack[ReadOptions]) -> RecordModel:
    """Open the model in a folder of `find_record_model`; ``options`` are columns that differ from training.

    Raises:
        UserError: a file is damaged, or an option does not apply to the model.
    """
    return open_summarizer(folder, **options) if is_extractive(folder) else open_tagger(folder, **options)
