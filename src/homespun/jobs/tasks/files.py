"""What every config of data says of its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import Field

from homespun.errors import UserError
from homespun.jobs.tasks.task import Part

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


def files_of(
    part: Part,
    *,
    train: str | Sequence[str],
    validation: float | str | Sequence[str],
    test: str | Sequence[str],
    ways: str,
) -> list[str]:
    """The files of a part, none where it has none.

    Raises:
        UserError: there are none to train on; ``ways`` says how they are given.
    """
    given = {"train": train, "validation": "" if isinstance(validation, float) else validation, "test": test}[part]
    if part == "train" and not given:
        raise UserError(ways)
    return paths(given) if given else []


@contextmanager
def named(files: str | Sequence[str] | float) -> Iterator[None]:
    """What is wrong with the rows of these files is said with their names; a share is of no files.

    Raises:
        UserError: what is raised in here, with the names before it.
    """
    try:
        yield
    except UserError as error:
        names = "" if isinstance(files, float) else ", ".join(paths(files))
        raise UserError(f"{names}: {error}" if names else str(error)) from error
