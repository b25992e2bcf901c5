"""Files of a data config, and records read from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from homespun.errors import UserError

Part = Literal["train", "validation", "test"]

SplitSeed = Annotated[
    int,
    Field(
        ge=0, description="divides the training into folds, and the validation from the rest, whatever train.seed is"
    ),
]
"""Trainings of several seeds are then chosen and measured on the same examples, and compared example by example."""


def paths(value: str | Sequence[str] | Path) -> list[str]:
    """Return one input or several as a list."""
    return [str(value)] if isinstance(value, str | Path) else [str(v) for v in value]


class HasFiles(Protocol):
    """Config with the files of each part; a share in place of validation files."""

    @property
    def train(self) -> str | list[str]: ...
    @property
    def validation(self) -> float | str | list[str]: ...
    @property
    def test(self) -> str | list[str]: ...


def files_of(part: Part, data: HasFiles, missing: str) -> list[str]:
    """Return the files of a part, or an empty list.

    Raises:
        UserError: there are no training files; ``missing`` is the message.
    """
    given: float | str | list[str] = getattr(data, part)
    if part == "train" and not given:
        raise UserError(missing)
    return [] if isinstance(given, float) or not given else paths(given)


@contextmanager
def prefix_errors(files: str | Sequence[str] | float) -> Iterator[None]:
    """Put the names of ``files`` before errors raised inside; a share of other files has no name.

    Raises:
        UserError: the one raised inside, with the names before it.
    """
    try:
        yield
    except UserError as error:
        names = "" if isinstance(files, float) else ", ".join(paths(files))
        raise UserError(f"{names}: {error}" if names else str(error)) from error


def numbered_chunks(
    records: Iterable[Mapping[str, Any]], size: int, *, source: str
) -> Iterator[list[tuple[str, Mapping[str, Any]]]]:
    """Yield ``size`` records at a time, each with its position for error messages."""
    numbered = enumerate(records, start=1)
    while chunk := list(islice(numbered, size)):
        yield [(f"row {number} of {source}", record) for number, record in chunk]
