"""Small files that may come from anyone: read, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from homespun.errors import UserError, first_line


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        UserError: it cannot be read, or is no JSON, or lists lie in lists without end.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON that can be read: {first_line(error)}") from error
