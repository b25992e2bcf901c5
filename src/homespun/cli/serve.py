"""Command `homespun serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import Quantize
from homespun.errors import UserError


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL [NAME=MODEL]...", help="Run, model folder, Hugging Face folder or hub name."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0: all addresses of this machine.")
    ] = "127.0.0.1",
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
    from homespun.serving.sources import name_models, read_api_key

    sources, key = name_models(models), read_api_key(api_key)
    try:
        from homespun.serving.server import serve as command
    except ModuleNotFoundError as error:
        raise UserError(f"homespun serve needs {error.name}; pip install 'homespun[serve]'") from error
    from homespun.serving.settings import ServingSettings

    given = {} if workers is None else {"workers": workers}
    command(sources, ServingSettings(api_key=key, quantize=quantize, **given), host=host, port=port)
