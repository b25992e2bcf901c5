"""Commands `homespun recipes ...` and `homespun show ...`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from homespun.cli.options import (
    CommandGroup,
    Json,
    Overrides,
    Recipe,
    check_recipe,
    check_source,
    check_start,
    parse_integers,
    print_line,
    print_result,
)
from homespun.errors import quantity

show_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Show attention patterns, alignments or the first batch."
)


@show_app.command("attention", short_help="Plot the attention pattern of each layer and head.")
def show_attention(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE_OR_RUN", help="Recipe name, .yaml file, run or model.")],
    overrides: Overrides = None,
    length: Annotated[
        int | None, typer.Option(help="Number of tokens; default: the smallest that shows the pattern.")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Layers to plot: 1,2.")] = None,
    stack: Annotated[
        str | None, typer.Option(help="Stack of an encoder-decoder: encoder (default) or decoder.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output file, .svg or .png; default: attention.svg.")] = None,
    as_json: Json = False,
) -> None:
    """Plot the attention pattern of each layer and head, and the receptive field."""
    from homespun.commands.attention_plot import show_attention as command

    numbers = None if layers is None else parse_integers(layers, "--layers")
    path = out if as_json or out is not None else Path("attention.svg")
    result = command(recipe, overrides or (), length=length, layers=numbers, stack=stack, out=path)
    if as_json:
        print_result(result, as_json)
        return
    from homespun.report.formats import percent

    depth = result["all_reach_all"]
    shares = [percent(layer["share"]) for layer in result["layers"]]
    facts = {
        "plot": result["out"],
        **({} if result["stack"] is None else {"stack": result["stack"]}),
        "tokens": result["length"],
        "attended pairs by layer": ", ".join(shares),
        "all tokens connected": "not within the model" if depth is None else f"after layer {depth}",
    }
    print_result(facts, as_json)


@show_app.command("alignment", short_help="Plot the alignment of source and target tokens.")
def show_alignment(
    run: Annotated[
        str, typer.Argument(callback=check_source, help="Run or model folder of a model with additive attention.")
    ],
    source: Annotated[str, typer.Option(help="Source text.")],
    target: Annotated[str | None, typer.Option(help="Target text; default: the generated text.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output file, .svg or .png; default: alignment.svg.")] = None,
    as_json: Json = False,
) -> None:
    """Plot the attention of each target token to the source tokens."""
    from homespun.commands.attention_plot import show_alignment as command

    path = out if as_json or out is not None else Path("alignment.svg")
    result = command(run, source=source, target=target, out=path)
    if as_json:
        print_result(result, as_json)
        return
    tokens = {"source": len(result["source"]), "target": len(result["target"])}
    written = {} if result["written"] is None else {"written": result["written"]}
    print_result({"plot": result["out"], "tokens": tokens} | written, as_json)


@show_app.command("batch", short_help="Print the first batch of a recipe as text.")
def show_batch(
    recipe: Recipe,
    overrides: Overrides = None,
    start_from: Annotated[
        str | None,
        typer.Option("--from", callback=check_source, help="Checkpoint to start from; required for fine-tuning."),
    ] = None,
    rows: Annotated[int, typer.Option(help="Number of rows to print.")] = 4,
    as_json: Json = False,
) -> None:
    """Print the first batch of a recipe as text: tokens, padding and labels, with the masks and noise of epoch 0."""
    from homespun.recipes import split_overrides

    of_recipe, _ = split_overrides(overrides, has_checkpoint=start_from is not None)
    check_start(check_recipe(recipe, of_recipe), start_from)

    from homespun.commands.batch_preview import show_batch as command

    result = command(recipe, overrides or (), start_from=start_from, rows=rows)
    if as_json:
        print_result(result, as_json)
        return
    batch = result["batch"]
    size = f"{quantity(batch['rows'], 'row')} of {batch['length']} tokens, {batch['padding']:.1%} padding"
    print_result({"objective": result["objective"], "batch": size, "targets": result["targets"]}, as_json)
    for number, row in enumerate(result["rows"]):
        typer.echo(f"\nrow {number}")
        for line in _describe_row(row):
            print_line(f"  {line}")


def _describe_row(row: dict[str, Any]) -> Iterator[str]:
    for name, value in row.items():
        match value:
            case [{}, *_]:  # labelled positions
                pairs = [f"{label['position']}: {label['input']} -> {label['target']}" for label in value]
                left = row[f"num_{name}"] - len(value)
                yield f"{name}: {', '.join(pairs)}{f', and {left} more' if left else ''}"
            case list() if name.endswith("tokens"):
                yield f"{name}: {' '.join(value)}"
            case _:
                yield f"{name}: {value}"


recipes_app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="List and show recipes.")


@recipes_app.command("list")
def recipes_list(as_json: Json = False) -> None:
    """List the shipped recipes."""
    from homespun.recipes import comparison_names, recipe_names, recipe_tree

    rows, comparisons = (
        {name: str(recipe_tree(name).get("description", "")) for name in names}
        for names in (recipe_names(), comparison_names())
    )
    print_result({"recipes": rows, "comparisons": comparisons} if as_json else rows | comparisons, as_json)


@recipes_app.command("show")
def recipes_show(name: Recipe, overrides: Overrides = None, as_json: Json = False) -> None:
    """Show a recipe with all defaults."""
    from homespun.config import dump
    from homespun.recipes import recipe_tree

    is_comparison = recipe_tree(name).get("kind") == "compare"
    if not is_comparison:
        check_recipe(name, overrides or ())

    from homespun.commands.recipe import load_recipe
    from homespun.compare.recipe import compare_recipe

    load = compare_recipe if is_comparison else load_recipe
    recipe = load(name, overrides or ())
    if as_json:
        print_result(recipe.model_dump(mode="json"), as_json)
    else:
        typer.echo(dump(recipe), nl=False)


@recipes_app.command("schema")
def recipes_schema(as_json: Json = False) -> None:
    """Print the JSON schema of recipes, for completion in editors."""
    from homespun.commands.recipe import schema

    typer.echo(json.dumps(schema(), indent=None if as_json else 2))
