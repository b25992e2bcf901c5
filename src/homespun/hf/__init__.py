"""Reader and writer of Hugging Face checkpoints without transformers."""

from __future__ import annotations

import re
from pathlib import Path

from homespun.errors import UserError


def is_hub_name(source: str) -> bool:
    """True if ``source`` has the form of a hub name and does not begin with a local folder."""
    return _is_valid_hub_name(source) and not Path(source.partition("/")[0]).is_dir()


def _is_valid_hub_name(source: str) -> bool:
    return bool(re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", source)) and ".." not in source


def check_source(source: str | Path) -> None:
    """Check that ``source`` is a folder or may be a hub name, without importing torch.

    Raises:
        UserError: neither is the case.
    """
    name, folder = str(source), Path(source).expanduser()
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the folder of a model or a run")
    if not folder.exists() and not is_hub_name(name):
        why = "it is not a name on the Hugging Face hub either"
        if _is_valid_hub_name(name):
            why = f"{Path(name).parent} is a local folder, so the Hugging Face hub is not searched"
        raise UserError(f"there is no folder {name}, and {why}")
