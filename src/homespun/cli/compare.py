"""Commands `homespun compare`, `benchmark` and `baselines`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import (
    Json,
    Out,
    Overrides,
    Resume,
    check_recipe,
    check_source,
    check_start,
    parse_integers,
    print_line,
    print_result,
)


def compare(
    recipe: Annotated[str, typer.Argument(help="Comparison recipe: name or .yaml file of kind compare.")],
    overrides: Overrides = None,
    out: Out = Path("runs/compare"),
    max_parallel: Annotated[
        int | None, typer.Option("--max-parallel", help="Number of parallel trials; default: the recipe's, or 1.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")] = False,
    on_ray: Annotated[
        bool, typer.Option("--ray", help="Run trials on the Ray cluster at RAY_ADDRESS, or on a local one.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option("--store", help="With --ray: URL of a folder for the runs, if machines do not share --out."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare variants under one budget.

    The same command resumes a stopped comparison.
    """
    from homespun.recipes import check_comparison_name

    check_comparison_name(recipe)

    from homespun.compare.comparison import run_comparison
    from homespun.compare.recipe import compare_recipe
    from homespun.report.console import Display

    with Display(json=as_json) as display:
        result = run_comparison(
            compare_recipe(recipe, overrides or ()),
            out,
            max_parallel=max_parallel,
            retry_failed=retry_failed,
            on_ray=on_ray,
            store=store,
            display=display,
        )
    if as_json:
        print_result(result, as_json)
    else:
        for failed in result["failed"]:
            print_line(f"failed: {failed['name']}, seed {failed['seed']}: {failed['why']}")
        for note in result["notes"]:
            print_line(f"note: {note}")
        print_result({"trials done": f"{result['done']} of {result['trials']}", "report": result["page"]}, as_json)
    if not result["done"]:
        raise typer.Exit(1)


def benchmark(
    run: Annotated[
        str, typer.Argument(callback=check_source, help="Run, model folder, Hugging Face folder or hub name.")
    ],
    lengths: Annotated[str, typer.Option("--lengths", help="Comma-separated input lengths in tokens.")] = "128,512",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Texts per batch.")] = 1,
    as_json: Json = False,
) -> None:
    """Measure the latency and memory of a model by input length."""
    numbers = parse_integers(lengths, "--lengths")

    from homespun.commands.benchmark import benchmark as command

    result = command(run, lengths=numbers, batch_size=batch_size)
    if as_json:
        print_result(result, as_json)
        return
    from homespun.report import formats
    from homespun.report.console import print_tables
    from homespun.report.document import Column, Table

    columns = (
        Column("tokens", formats.integer),
        Column("seconds a text", formats.step_seconds),
        Column("peak memory", formats.memory),
    )
    rows = tuple((row["length"], row["seconds_per_text"], row["peak_bytes"]) for row in result["inference"])
    print_tables(Table("inference", f"Inference on {result['device']}, batch size {batch_size}", columns, rows))


def baselines(
    recipe: Annotated[str, typer.Argument(help="Fine-tuning recipe: name or .yaml file.")],
    overrides: Overrides = None,
    start_from: Annotated[
        str | None,
        typer.Option("--from", callback=check_source, help="Pretrained model; its tokenizer reads the examples."),
    ] = None,
    out: Out = Path("runs/baselines"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train and evaluate the baselines of a fine-tuning recipe."""
    check_start("finetune", start_from)
    assert start_from is not None
    check_recipe(recipe, overrides or (), "finetune")

    from homespun.commands.recipe import finetune_recipe
    from homespun.commands.trials import measure_baselines as command
    from homespun.io.lock import locked

    with locked(out):
        result = command(finetune_recipe(recipe, overrides or ()), out, start_from=start_from, resume=resume)
    if as_json:
        print_result(result, as_json)
        return
    from homespun.report import tables
    from homespun.report.console import print_tables
    from homespun.results import RunResult

    print_tables(tables.baselines(RunResult.model_validate(result)))
    print_line(f"written: {out / 'result.json'}")
