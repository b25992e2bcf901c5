"""Commands `homespun distill ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypedDict

import typer

from homespun.cli.options import (
    CommandGroup,
    Json,
    Out,
    Overrides,
    Resume,
    check_recipe,
    check_source,
    parse_integers,
    print_run_result,
    writing,
)

distill_app = typer.Typer(
    cls=CommandGroup, help="Distil a teacher into a smaller student.", no_args_is_help=True, rich_markup_mode=None
)
Teacher = Annotated[
    str, typer.Option("--teacher", callback=check_source, help="Teacher: run or model with the student's tokenizer.")
]
Student = Annotated[
    str | None, typer.Option("--from", help="Student model; default: initialised with layers of the teacher.")
]
Layers = Annotated[
    str | None, typer.Option("--layers", help="Teacher layers to copy, such as 0,2,5; default: every second layer.")
]


@distill_app.command("pretrain", short_help="Distil a masked language model.")
def distill_pretrain(
    recipe: Annotated[str, typer.Argument(help="Recipe name, such as distil-mini, or .yaml file.")],
    teacher: Teacher,
    overrides: Overrides = None,
    start_from: Student = None,
    layers: Layers = None,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Initialise the model of the recipe randomly, not with teacher layers."),
    ] = False,
    out: Out = Path("runs/distil"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Distil a masked language model with the logits and hidden states of a teacher (DistilBERT)."""
    student = _Student(teacher=teacher, start_from=start_from, layers=_parse_layers(layers), from_scratch=from_scratch)
    _distill("pretrain", recipe, overrides, out, student, resume=resume, as_json=as_json)


@distill_app.command("finetune", short_help="Distil a classifier.")
def distill_finetune(
    recipe: Annotated[str, typer.Argument(help="Recipe name, such as distil-classify, or .yaml file.")],
    teacher: Teacher,
    overrides: Overrides = None,
    start_from: Student = None,
    layers: Layers = None,
    out: Out = Path("runs/distil"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Distil a classifier with the labels and the logits of a fine-tuned teacher."""
    student = _Student(teacher=teacher, start_from=start_from, layers=_parse_layers(layers), from_scratch=False)
    _distill("finetune", recipe, overrides, out, student, resume=resume, as_json=as_json)


class _Student(TypedDict):
    """Arguments of `homespun.commands.distill.distill` that determine the student."""

    teacher: str
    start_from: str | None
    layers: list[int] | None
    from_scratch: bool


def _parse_layers(layers: str | None) -> list[int] | None:
    return None if layers is None else parse_integers(layers, "--layers")


def _distill(
    kind: str, recipe: str, overrides: list[str] | None, out: Path, student: _Student, *, resume: bool, as_json: bool
) -> None:
    from homespun.recipes import split_overrides

    of_recipe, changes = split_overrides(overrides, has_checkpoint=not student["from_scratch"])
    check_recipe(recipe, of_recipe, kind)

    from homespun.commands.distill import distill as command
    from homespun.commands.recipe import load_recipe

    with writing(out, as_json) as display:
        loaded = load_recipe(recipe, of_recipe)
        result = command(loaded, out, changes=changes, resume=resume, display=display, **student)
    print_run_result(result, out, as_json)
