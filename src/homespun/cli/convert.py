"""The verbs that take a model elsewhere: `homespun convert` and `homespun export`."""

from __future__ import annotations

from typing import Annotated

import typer

from homespun.cli.options import Json, Out, choice, tell

Source = Annotated[
    str, typer.Argument(metavar="NAME_OR_FOLDER", help="Hugging Face folder or hub name, a run or a model folder.")
]


def convert(
    source: Source,
    out: Out,
    to: Annotated[str, typer.Option("--to", help="homespun (a model/ folder) or hf (for transformers).")] = "homespun",
    head: Annotated[
        str | None, typer.Option("--head", help="Kind of head to open it with, such as pooler; none: without.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model in another form, check it, and say where every tensor went."""
    from homespun.hf.family import STORED
    from homespun.jobs.convert import FORMS
    from homespun.jobs.convert import convert as job

    wanted = STORED if head is None else None if head == "none" else head
    result = job(source, out, to=choice(to, FORMS, "--to"), head=wanted)
    if as_json:
        tell(result, as_json)
        return
    from homespun.report.console import print_tables
    from homespun.report.conversion import conversion_tables

    print_tables(*conversion_tables(result))
    for note in result["notes"]:
        typer.echo(f"note: {note}")
    check = result["check"]
    there = result["architecture"]["to"] or "homespun"
    facts = {
        "written": result["out"],
        "model": there,
        "parameters": f"{result['parameters']:,}",
        "checked": f"{check['compared']} of {len(check['lengths'])} texts differ by {check['largest_difference']:.1g}",
    }
    tell(facts, as_json)
