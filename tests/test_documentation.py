"""Documentation is correct: commands parse, recipes and keys exist, names can be imported."""

import ast
import importlib
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
from homespun.commands.recipe import CorpusData, FinetuneRecipe, PretrainRecipe, load_recipe
from homespun.compare.recipe import compare_recipe
from homespun.config import Config, override
from homespun.models.sequence_heads import SequenceHeadConfig
from homespun.objectives.config import PretrainingObjective
from homespun.recipes import comparison_names, recipe_names
from homespun.results import RunResult
from homespun.tasks.texts import LabelledData
from homespun.training.config import AdamW, LinearSchedule, TrainConfig

ROOT = Path(__file__).resolve().parents[1]
OTHER_NAMES = ("design.md", "migration.md")  # they have names of classes, and old names
PAGES = [path for path in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md") if path.name not in OTHER_NAMES]


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
def test_commands_parse(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homespun.text.input_files.check_inputs", lambda _: None)  # the files are the reader's
    monkeypatch.setattr("homespun.hf.check_source", lambda _: None)
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
    key = r"(?<!homespun\.)\b((?:train|data|model|objective)\.[a-z_]+(?:\.[a-z_]+)*)"
    named = set(re.findall(key, page.read_text("utf-8")))
    suffixes = ("csv", "jsonl", "json", "yaml", "parquet", "txt", "conll", "onnx")
    files = {name for name in named if name.rpartition(".")[2] in suffixes}
    assert named - files <= known, f"no such keys: {sorted(named - files - known)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_uses_public_names(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "homespun":
                assert node.attr in homespun.__all__, node.attr
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("homespun"):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), node.module


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def defaults(text: str) -> dict[str, str]:
    """The rows of the tables of keys and defaults."""
    tables = re.findall(r"^\| key \| default \| meaning \|\n.*\n((?:\|.*\n)+)", text, re.M)
    rows = [row.split("|") for row in "".join(tables).splitlines()]
    return {key.strip(" `"): default.strip(" `") for _, key, default, *_ in rows}


@pytest.mark.parametrize(
    ("name", "stage", "config"),
    [
        ("settings.md", "train", TrainConfig),
        ("pretraining.md", "data", CorpusData),
        ("finetuning.md", "data", LabelledData),
    ],
)
def test_defaults_are_those_of_the_code(name: str, stage: str, config: type[Config]) -> None:
    documented = {key: value for key, value in defaults(read_page(name)).items() if key.startswith(f"{stage}.")}
    assert len(documented) >= 4
    for key, value in documented.items():
        changed = override({stage: config().model_dump(mode="json")}, [f"{key}={value}"])
        assert config.model_validate(changed[stage]) == config(), f"{name}: {key} is not {value}"


def test_every_setting_of_a_training_is_documented() -> None:
    documented = defaults(read_page("settings.md")).keys()
    parts = {"train.": TrainConfig, "train.optimizer.": AdamW, "train.schedule.": LinearSchedule}
    every = {prefix + name for prefix, config in parts.items() for name in config.model_fields}
    assert every - documented == {"train.budget", "train.optimizer", "train.schedule"}


def kinds(union: object) -> set[str]:
    members = typing.get_args(typing.get_args(union)[0])
    return {member.model_fields["kind"].default for member in members}


@pytest.mark.parametrize(
    ("names", "every"),
    [
        (["pretraining.md"], kinds(PretrainingObjective)),
        (["finetuning.md"], kinds(SequenceHeadConfig)),
        (["comparing.md", "replications.md"], set(comparison_names())),
    ],
)
def test_pages_list_all(names: list[str], every: set[str]) -> None:
    text = "".join(map(read_page, names))
    assert {kind for kind in every if f"`{kind}`" not in text} == set()


def leaves(command: typing.Any, *path: str) -> Iterator[tuple[str, typing.Any]]:
    """Every verb that is shown, by its words."""
    if isinstance(command, TyperGroup):
        for name, below in command.commands.items():
            if not below.hidden:
                yield from leaves(below, *path, name)
    else:
        yield " ".join(path), command


VERBS = dict(leaves(typer.main.get_command(app)))


def test_the_page_on_commands_has_every_verb() -> None:
    documented = set()
    for row in re.findall(r"^\| `homespun (.+?) \|", read_page("commands.md"), re.M):
        first, *others = row.replace("`", "").split(", ")
        documented |= {first, *(" ".join([*first.split()[:-1], other]) for other in others)}
    assert documented == VERBS.keys()


def test_the_readme_and_the_navigation_lead_to_every_page() -> None:
    listed = re.findall(r": (\S+\.md)$", read_page("../mkdocs.yml"), re.M)
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted([*pages, "results/README.md"])  # docs/results_hook.py adds the results
    users = listed[: listed.index("architecture.md")]
    linked = re.findall(r"\]\(docs/([^)#]+)\)", read_page("../README.md"))
    assert {page for page in users if not page.startswith(("api/", "results/"))} - {*linked} == {"index.md"}


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_option_is_documented(verb: str) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    for parameter in VERBS[verb].params:
        names = [name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")]
        assert not names or any(re.search(rf"{name}(?![\w-])", text) for name in names), f"{verb}: {names}"


@pytest.mark.parametrize("name", homespun.__all__)
def test_the_page_on_python_has_every_public_name(name: str) -> None:
    public = getattr(homespun, name)
    assert public.__doc__
    reference = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "api").glob("*.md"))
    assert f"::: {public.__module__}.{public.__qualname__}\n" in reference
    assert f"`{name}`" in read_page("python.md")


def test_the_page_on_design_has_every_field_of_a_result() -> None:
    design = read_page("design.md")
    assert {name for name in RunResult.model_fields if f"`{name}`" not in design} == set()


RESULTS = sorted((ROOT / "results").glob("*.md"))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_results_that_the_documentation_names_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"`results/([\w-]+\.md)`", page.read_text("utf-8"))}
    assert named
    assert named <= {page.name for page in RESULTS}


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.name)
def test_links_of_results_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_of_results_lists_every_page() -> None:
    listed = re.findall(r"^\| \[([\w-]+\.md)\]\(\1\)", read_page("../results/README.md"), re.M)
    assert sorted([*listed, "README.md"]) == [page.name for page in RESULTS]
