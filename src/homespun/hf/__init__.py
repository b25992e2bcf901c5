"""Hugging Face checkpoints, read and written without transformers: one table a family, read in both directions."""

from __future__ import annotations

import re
from pathlib import Path

from homespun.errors import UserError


def is_hub_name(source: str) -> bool:
    """True for what may be a name on the hub: it has the form of one, and does not begin with a local folder."""
    return _has_form_of_hub_name(source) and not Path(source.partition("/")[0]).is_dir()


def _has_form_of_hub_name(source: str) -> bool:
    return bool(re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", source)) and ".." not in source


def check_source(source: str | Path) -> None:
    """Refuse what is neither a folder nor may be a name on the hub; imports no torch.

    Raises:
        UserError: there is no such folder, or it is a file.
    """
    name, folder = str(source), Path(source).expanduser()
    if folder.is_file():
        raise UserError(f"{folder} is a file; give the folder of the model or of the run")
    if not folder.exists() and not is_hub_name(name):
        why = "it is not a name on the Hugging Face hub either"
        if _has_form_of_hub_name(name):
            why = f"{Path(name).parent} is a folder here, so it is not looked for on the Hugging Face hub"
        raise UserError(f"there is no folder {name}, and {why}")
