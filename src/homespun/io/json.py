"""Readers of untrusted JSON files, and writers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from homespun.errors import UserError, first_line
from homespun.io.atomic import write_text


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing, is not JSON, or nests too deeply.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {first_line(error)}; it was cut short or altered") from error


def read_object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises:
        UserError: as in `read_json`, or the content is not an object.
    """
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(tree).__name__}")
    return tree


def read_optional(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; empty if the file is missing."""
    return read_object(path) if path.is_file() else {}


def to_json(content: object, *, indent: int | None = None, default: Callable[[Any], object] | None = None) -> str:
    """Return ``content`` as JSON; numbers that are not finite become null, since JSON has none.

    ``default`` converts objects of other types, as in `json.dumps`.
    """
    try:
        return json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False, default=default)
    except ValueError:
        finite = json.loads(json.dumps(content, default=default), parse_constant=lambda _: None)
        return json.dumps(finite, indent=indent, ensure_ascii=False)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically, by `to_json`."""
    write_text(path, to_json(content, indent=1))


def write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write a file of JSON Lines atomically, by `to_json`."""
    write_text(path, "".join(to_json(row) + "\n" for row in rows))
