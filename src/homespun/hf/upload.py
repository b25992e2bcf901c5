"""Upload of exported files to the Hugging Face hub, or to the server that ``HF_ENDPOINT`` names."""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import HfApi, get_token

from homespun.errors import UserError, first_line


def check_repository(name: str) -> None:
    """Raise `UserError` unless ``name`` has the form of a repository and there is a token."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        raise UserError(f"--push must be OWNER/NAME, not {name!r}")
    if get_token() is None:
        raise UserError("--push needs a token with write access: run `hf auth login`, or set HF_TOKEN")


def upload(path: str | Path, name: str) -> str:
    """Upload a file, or all files of a folder, to OWNER/NAME in one commit; a new repository is private.

    Returns:
        URL of the commit.

    Raises:
        UserError: the upload failed.
    """
    path, api = Path(path), HfApi()
    folder, files = (path, None) if path.is_dir() else (path.parent, [path.name])
    try:
        api.create_repo(name, private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=files, commit_message="Upload an export of homespun"
        )
    except Exception as error:  # network errors have other classes in each version of the client
        raise UserError(f"{path} was written, but not uploaded to {name}: {first_line(error)}") from error
    return str(commit.commit_url)
