"""The documentation says what is true: its commands parse, its recipes and keys exist, its names can be imported."""

import re
import shlex
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel
from typer.core import TyperGroup

import homespun
from homespun.cli import app
from homespun.compare.recipe import compare_recipe
from homespun.jobs.recipe import FinetuneRecipe, PretrainRecipe, comparison_names, load_recipe, recipe_names

ROOT = Path(__file__).resolve().parents[1]
PAGES = [path for path in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md") if path.name != "design.md"]


def commands() -> Iterator[tuple[str, str]]:
    """Every `homespun ...` line of a code block, continued lines joined, with its page."""
    for page in PAGES:
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                if line.startswith("homespun ") and "..." not in line:
                    yield page.name, line


COMMANDS = sorted(set(commands()))


def keys_of(model: object, prefix: str = "") -> Iterator[str]:
    """Every dotted key below a config, all members of its unions opened."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        for name, field in model.model_fields.items():
            yield prefix + name
            yield from keys_of(field.annotation, f"{prefix}{name}.")
    else:
        for part in typing.get_args(model):
            yield from keys_of(part, prefix)


def test_there_are_commands_in_the_documentation() -> None:
    assert len(COMMANDS) >= 10
    assert {"tokenizer", "corpus", "pretrain", "finetune", "evaluate", "predict", "recipes"} <= {
        line.split()[1] for _, line in COMMANDS
    }


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_parse(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    words.pop(0)
    command: typing.Any = typer.main.get_command(app)
    while isinstance(command, TyperGroup):
        assert words[0] in command.commands, f"{page}: no command {words[0]!r} in {line!r}"
        command = command.commands[words.pop(0)]
    if ">" in words:
        words = words[: words.index(">")]
    if words == ["--help"]:
        return
    parsed = command.make_context(command.name, words)
    recipe = parsed.params.get("recipe") or parsed.params.get("name")
    if recipe in recipe_names():
        load_recipe(recipe, parsed.params.get("overrides") or ())
    elif recipe in comparison_names():
        compare_recipe(recipe, parsed.params.get("overrides") or ())
    else:
        assert recipe is None or recipe.endswith(".yaml"), f"{page}: no recipe {recipe!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_keys_exist(page: Path) -> None:
    known = {*keys_of(PretrainRecipe), *keys_of(FinetuneRecipe), "model.preset"}
    named = set(re.findall(r"\b((?:train|data|model|objective)\.[a-z_]+(?:\.[a-z_]+)*)", page.read_text("utf-8")))
    suffixes = ("csv", "jsonl", "json", "yaml", "parquet", "txt", "conll")
    files = {name for name in named if name.rpartition(".")[2] in suffixes}
    assert named - files <= known, f"no such keys: {sorted(named - files - known)}"


@pytest.mark.parametrize("name", homespun.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(homespun, name).__doc__
