"""Safetensors files of arrays, with a JSON description that has their digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from homespun.errors import UserError
from homespun.io.atomic import file_digest

Arrays = Mapping[str, NDArray[Any]]


def save_weights(path: Path, arrays: Arrays, description: Mapping[str, object]) -> None:
    """Write arrays to ``path``, and their description with the digest, ``weights``, to ``path`` with suffix .json."""
    save_file(dict(arrays), path)
    text = json.dumps({**description, "weights": file_digest(path)}, ensure_ascii=False)
    path.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def load_weights(path: Path, digest: str) -> dict[str, NDArray[Any]]:
    """Read arrays written by `save_weights`.

    Raises:
        UserError: the file is missing, truncated or altered.
    """
    try:
        if file_digest(path) != digest:
            raise UserError(f"{path} was altered: its digest does not match; fit the model again")
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
