"""What every config of data says of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, Protocol

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
    """One input or several, as a list."""
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
    """Files of a part, none where it has none.

    Raises:
        UserError: there are none to train on; ``missing`` is the message.
    """
    given: float | str | list[str] = getattr(data, part)
    if part == "train" and not given:
        raise UserError(missing)
    return [] if isinstance(given, float) or not given else paths(given)


@contextmanager
def prefix_errors(files: str | Sequence[str] | float) -> Iterator[None]:
    """What is wrong with the rows of these files is said with their names; a share is of no files.

    Raises:
        UserError: what is raised in here, with the names before it.
    """
    try:
        yield
    except UserError as error:
        names = "" if isinstance(files, float) else ", ".join(paths(files))
        raise UserError(f"{names}: {error}" if names else str(error)) from error
