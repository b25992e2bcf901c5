"""Commands `homespun recipes ...`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from homespun.cli.options import CommandGroup, Json, Overrides, print_result

recipes_app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="List and show recipes.")


@recipes_app.command("list")
def recipes_list(as_json: Json = False) -> None:
    """List the shipped recipes."""
    from homespun.commands.recipe import comparison_names, recipe_names, recipe_tree

    rows, comparisons = (
        {name: str(recipe_tree(name).get("description", "")) for name in names}
        for names in (recipe_names(), comparison_names())
    )
    print_result({"recipes": rows, "comparisons": comparisons} if as_json else rows | comparisons, as_json)


@recipes_app.command("show")
def recipes_show(
    name: Annotated[str, typer.Argument(help="Recipe name or .yaml file.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show a recipe with all defaults."""
    from homespun.commands.recipe import load_recipe, recipe_tree
    from homespun.compare.recipe import compare_recipe
    from homespun.config import dump

    load = compare_recipe if recipe_tree(name).get("kind") == "compare" else load_recipe
    recipe = load(name, overrides or ())
    if as_json:
        print_result(recipe.model_dump(mode="json"), as_json)
    else:
        typer.echo(dump(recipe), nl=False)


@recipes_app.command("schema")
def recipes_schema(as_json: Json = False) -> None:
    """Print the JSON schema of recipes, for editors."""
    from homespun.commands.recipe import schema

    typer.echo(json.dumps(schema(), indent=None if as_json else 2))
