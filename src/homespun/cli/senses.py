"""`homespun senses`: one word in several contexts, and which of them are near each other."""

from __future__ import annotations

from typing import Annotated

import typer

from homespun.cli.options import Columns, Encoding, Json, parts, tell
from homespun.errors import UserError


def senses(
    run: Annotated[str, typer.Argument(help="A run or a model of one stack, such as an ELMo or a BERT.")],
    word: Annotated[str, typer.Option("--word", help="Looked for as a whole word, in upper or lower case.")],
    texts: Annotated[list[str] | None, typer.Option("--text", help="A text to look in; repeatable.")] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="A file of texts to look in, glob or folder; repeatable.")
    ] = None,
    text_field: Annotated[str, typer.Option("--text-field", help="Column of the text.")] = "text",
    sentence: Annotated[
        str | None, typer.Option("--sentence", help="Compare the word in this text alone with those.")
    ] = None,
    layer: Annotated[
        int | None, typer.Option("--layer", help="Whose vectors; 0: what enters the layers. The last by default.")
    ] = None,
    nearest: Annotated[int, typer.Option("--nearest", help="How many of each to show.")] = 5,
    most: Annotated[int, typer.Option("--most", help="Occurrences to look at, the first ones.")] = 1000,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Show where else a word is used as it is here, by a model's vectors of it in its contexts."""
    from homespun.jobs.senses import senses as job

    for name, value in (("--nearest", nearest), ("--most", most)):
        if value < 1:
            raise UserError(f"{name} {value}: give 1 or more")
    found = job(
        run,
        word,
        texts=texts or (),
        inputs=inputs or (),
        text_field=text_field,
        encoding=encoding,
        columns=parts(columns),
        sentence=sentence,
        layer=layer,
        nearest=nearest,
        most=most,
    )
    if as_json:
        tell(found, as_json)
        return
    typer.echo(f"{found['word']}: {found['occurrences']} times, layer {found['layer']} of {found['layers']}")
    for one in found["senses"]:
        typer.echo(f"\n{one['text']}")
        for other in one["nearest"]:
            typer.echo(f"  {other['cosine']:6.3f}  {other['text']}")
