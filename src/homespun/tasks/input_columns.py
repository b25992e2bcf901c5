"""Columns of input files, checked against a fine-tuned model before torch is imported and the model is opened."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Unpack

from pydantic import Field

from homespun.config import Tree
from homespun.errors import UserError
from homespun.io.json import read_object
from homespun.migration import TASK_PATH, migrate
from homespun.tasks.protocol import ReadOptions, TaskData
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.tasks.stored_data import StoredData, stored_data
from homespun.tasks.taggers import TaggedData
from homespun.tasks.texts import LabelledData, PairsData
from homespun.text.input_files import is_local
from homespun.text.sources import read_records

_SAMPLE = 2_000  # records in one of which a column must be: those of JSON lines may lack some
_DESCRIPTIONS = ("homespun.json", "linear.json", "crf.json", "extractive.json")
_KINDS = ("texts", "sentence_pairs", "source_target", "token_labels")


class _StoredColumns(StoredData):
    data: Annotated[LabelledData | PairsData | TextPairsData | TaggedData, Field(discriminator="kind")]


def check_input_columns(
    run: str, files: Sequence[str], *, labelled: bool = False, **options: Unpack[ReadOptions]
) -> None:
    """Check that local ``files`` have the columns that a model reads, and its label if ``labelled``.

    Not checked are models of questions or of labelled sentences, and those that homespun did not write.

    Raises:
        UserError: a missing column, files that cannot be read, or as in `homespun.tasks.stored_data.stored_data`.
    """
    metadata = _find_metadata(Path(run).expanduser())
    if metadata.get("data") not in _KINDS or not all(map(is_local, files)):
        return
    data = stored_data(_StoredColumns, metadata, source=run, **options)
    unlabelled: dict[str, list[str]] = {}  # names of the columns by file
    for entry in files:
        names = _column_names(entry, data, labelled)
        if missing := data.missing_columns(names, labelled=False):
            count = len(data.missing_columns((), labelled=False))
            option = "--text-field" if count == 1 else f"--text-field, given {count} times"
            raise UserError(f"{_lacks(entry, missing[0], names)}; name the text with {option}")
        if labelled and data.missing_columns(names, labelled=True):
            unlabelled[entry] = names
    if files and len(unlabelled) == len(set(files)):  # rows of other files may lack the label
        entry, names = next(iter(unlabelled.items()))
        missing = data.missing_columns(names, labelled=True)
        raise UserError(f"{_lacks(entry, missing[0], names)}; name the label with --label-field")


def _column_names(entry: str, data: TaskData, labelled: bool) -> list[str]:
    """Return the columns of an input, up to the record with the last column that is read."""
    names: dict[str, None] = {}
    for record in islice(read_records([entry], encoding=data.encoding, columns=data.columns), _SAMPLE):
        names |= dict.fromkeys(map(str, record))
        if not data.missing_columns(names, labelled=labelled):
            break
    return list(names)


def _lacks(entry: str, column: str, names: Sequence[str]) -> str:
    return f"{entry} has no column {column!r}; there are: {', '.join(names)}"


def _find_metadata(folder: Path) -> Tree:
    """Return the ``task`` in the ``model/`` folder of a run, or in a model folder; empty without one."""
    for place in (folder, folder / "model"):
        if (average := place / "average.json").is_file():
            weights = read_object(average).get("weights")
            return _find_metadata(place / Path(next(iter(weights), "")).name) if isinstance(weights, dict) else {}
        for name in _DESCRIPTIONS:
            if (place / name).is_file():
                task = read_object(place / name).get("task")
                return migrate(task, TASK_PATH) if isinstance(task, dict) else {}
    return {}
