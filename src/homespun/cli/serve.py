"""Command `homespun serve`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from homespun.cli.options import Quantize
from homespun.errors import UserError

HOST = "127.0.0.1"


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]MODEL", help="Run, model folder, Hugging Face folder or hub name."),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all addresses of this machine.")] = HOST,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8000,
    api_key: Annotated[
        Path | None, typer.Option("--api-key", help="File with the API key that requests must send; default: none.")
    ] = None,
    quantize: Quantize = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of batches that are computed in parallel; default: the cores, at most 4."),
    ] = None,
) -> None:
    """Serve predictions, embeddings and generated text over HTTP."""
    sources, key = name_models(models), read_api_key(api_key)
    command = import_server().serve
    from homespun.serving.settings import ServingSettings

    given = {} if workers is None else {"workers": workers}
    command(sources, ServingSettings(api_key=key, quantize=quantize, **given), host=host, port=port)


def import_server() -> ModuleType:
    """Import `homespun.serving.server`. Raises `UserError` if the extra ``serve`` is not installed."""
    try:
        from homespun.serving import server
    except ModuleNotFoundError as error:
        raise UserError(f"homespun serve needs {error.name}; pip install 'homespun[serve]'") from error
    return server


def serve_local(model: Path, port: int) -> None:
    """Serve one model on this machine alone, with the default settings."""
    server = import_server()
    from homespun.serving.settings import ServingSettings

    server.serve(name_models([str(model)]), ServingSettings(), host=HOST, port=port)


def check_port(port: int) -> None:
    """Raise `UserError` if a server could not listen on the port, or the extra ``serve`` is not installed."""
    import_server().listen(HOST, port).close()


def name_models(arguments: Sequence[str]) -> dict[str, str]:
    """Parse arguments ``MODEL`` or ``NAME=MODEL``; the default name is the folder's.

    Raises:
        UserError: there is no such model, or two have the same name.
    """
    from homespun import hf

    found: dict[str, str] = {}
    for argument in arguments:
        name, equals, source = argument.partition("=")
        if not equals or "/" in name or Path(argument).exists():
            name, source = "", argument
        if not source:
            raise UserError(f"{argument!r} names no model; write NAME=MODEL")
        hf.check_source(source)
        name = name or _default_name(Path(source).expanduser())
        if name in found:
            raise UserError(f"{found[name]} and {source} are both named {name!r}; name one: NAME={source}")
        found[name] = source
    return found


def _default_name(folder: Path) -> str:
    """Name of a folder, of the run of a ``model/`` folder, or of a repository on the hub."""
    folder = folder.resolve() if folder.exists() else folder
    return folder.parent.name if folder.name == "model" and folder.parent.name else folder.name


def read_api_key(path: Path | None) -> str | None:
    """Read the API key from a file; ``None`` without a file.

    Raises:
        UserError: the file cannot be read, is empty, or has several lines or characters other than ASCII.
    """
    if path is None:
        return None
    try:
        key = path.expanduser().read_text(encoding="ascii").strip()
    except OSError as error:
        raise UserError(f"cannot read the API key in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the API key in {path} must be one line of ASCII characters") from error
    if not key:
        raise UserError(f"{path} is empty; write the API key into it, one line")
    if len(key.split()) > 1 or not key.isprintable():
        raise UserError(f"the API key in {path} must be one line without spaces")
    return key
