"""Readers of untrusted JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from homespun.errors import UserError, first_line


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
