"""Readers of untrusted JSON files, and writers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
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


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False))


def write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write a file of JSON Lines atomically."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
