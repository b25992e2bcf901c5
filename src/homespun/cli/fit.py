"""Command `homespun fit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from homespun.choices import TaskName
from homespun.cli.options import (
    Columns,
    Encoding,
    Json,
    Out,
    check_inputs,
    print_line,
    print_result,
    split_list,
    writing,
)
from homespun.cli.serve import check_port, serve_local


def fit(
    train: Annotated[
        list[str],
        typer.Argument(
            callback=check_inputs, help="Labelled files, or text files for a language model; globs and folders too."
        ),
    ],
    test: Annotated[
        list[str] | None,
        typer.Option(
            "--test",
            callback=check_inputs,
            help="Labelled test file; default: up to a fifth of the examples. Repeatable.",
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option("--texts", callback=check_inputs, help="Unlabelled text file for pretraining; repeatable."),
    ] = None,
    start_from: Annotated[list[str] | None, typer.Option("--from", help="Pretrained model to try; repeatable.")] = None,
    time: Annotated[str, typer.Option("--time", help="Time limit, such as 30m or 2h.")] = "30m",
    memory: Annotated[str | None, typer.Option("--memory", help="Memory limit, such as 8GB.")] = None,
    task: Annotated[TaskName, typer.Option("--task", help="Task; auto detects it from the labels.")] = "auto",
    text: Annotated[
        list[str] | None,
        typer.Option("--text-field", help="Text column; default: detected. Repeatable; columns are joined."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label-field", help="Label column; default: detected. Repeatable, for columns of 0 and 1."),
    ] = None,
    encoding: Encoding = None,
    columns: Columns = None,
    latency: Annotated[
        float | None, typer.Option("--latency", help="Maximum milliseconds to predict one text.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of splits and trainings.")] = 0,
    out: Out = Path("runs/fit"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped fit.")] = False,
    port: Annotated[
        int | None,
        typer.Option("--serve", metavar="PORT", min=0, max=65535, help="Then serve the model at this port."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train several models on your files within a time limit, and select the best."""
    from homespun.config import parse_bytes, parse_duration, parse_option

    seconds = parse_option(parse_duration, time, "--time") or 0.0
    bytes_ = parse_option(parse_bytes, memory, "--memory")
    if port is not None:
        check_port(port)
    from homespun.fitting.fit import fit as command

    with writing(out, as_json) as display:
        result = command(
            train,
            out,
            test=test or (),
            texts=texts or (),
            start_from=start_from or (),
            seconds=seconds,
            memory=bytes_,
            task=task,
            text=text or (),
            label=label or (),
            columns=split_list(columns),
            encoding=encoding,
            seed=seed,
            latency=latency,
            resume=resume,
            display=display,
        )
    print_fit(result, out, as_json)
    if port is not None:
        serve_local(out, port)


def print_fit(result: Mapping[str, object], out: Path, as_json: bool) -> None:
    """Print the verdict of a fit, or its result as one JSON object."""
    if as_json:
        print_result({"run": str(out), **result}, as_json)
        return
    from homespun.config import Tree
    from homespun.fitting.verdict import candidates_table, commands, headline, problems
    from homespun.report.console import print_tables

    found: Tree = dict(result)
    for line in headline(found):
        print_line(line)
    print_line("")
    print_tables(candidates_table(found).without("processor time"))  # so that 80 columns hold it
    steps = ["next:", *(f"  {step}" for step in found["next"])] if found["next"] else []
    uses = [*(f"use: {command}" for command in commands(found, out)), f"page: {out / 'report' / 'index.html'}"]
    for lines in filter(None, (problems(found), steps)):
        for line in [*lines, ""]:
            print_line(line)
    for line in uses:
        print_line(line)
