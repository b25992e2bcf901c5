"""The verbs of distillation: the ordinary trainings with a teacher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import CommandGroup, Json, Out, Overrides, Resume, print_run_result, split_list
from homespun.errors import UserError

distill_app = typer.Typer(
    cls=CommandGroup, help="Teach a smaller model what a larger one knows.", no_args_is_help=True, rich_markup_mode=None
)
Teacher = Annotated[str, typer.Option("--teacher", help="Run or model to learn from, of the student's tokenizer.")]
Student = Annotated[
    str | None, typer.Option("--from", help="The student; made of the teacher's layers where not given.")
]
Layers = Annotated[
    str | None, typer.Option("--layers", help="The teacher's layers that the student begins as: 0,2,5; every second.")
]


@distill_app.command("pretrain", short_help="On a corpus, as DistilBERT was.")
def distill_pretrain(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe such as distil-mini, or a .yaml file.")],
    teacher: Teacher,
    overrides: Overrides = None,
    start_from: Student = None,
    layers: Layers = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Draw the recipe's model, of whatever shape, in place of layers.")
    ] = False,
    out: Out = Path("runs/distil"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """On a corpus: masked words, the teacher's distributions over them, and its hidden states (DistilBERT)."""
    from homespun.commands.adaptation import split_overrides
    from homespun.commands.distill import distill as job
    from homespun.commands.recipe import pretrain_recipe
    from homespun.report.console import Display

    of_recipe, changes = (overrides or [], {}) if fresh else split_overrides(overrides or [])
    with Display(json=as_json) as display:
        result = job(
            pretrain_recipe(recipe, of_recipe),
            out,
            teacher=teacher,
            start_from=start_from,
            layers=_parse_layers(layers),
            changes=changes,
            fresh=fresh,
            resume=resume,
            display=display,
        )
    print_run_result(result, out, as_json)


@distill_app.command("finetune", short_help="On labelled texts, with what a teacher says of each.")
def distill_finetune(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe such as distil-classify, or a .yaml file.")],
    teacher: Teacher,
    overrides: Overrides = None,
    start_from: Student = None,
    layers: Layers = None,
    out: Out = Path("runs/distil"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """On labelled texts: the labels, and what a fine-tuned teacher says of each text."""
    from homespun.commands.adaptation import split_overrides
    from homespun.commands.distill import distill as job
    from homespun.commands.recipe import finetune_recipe
    from homespun.report.console import Display

    of_recipe, changes = split_overrides(overrides or [])
    with Display(json=as_json) as display:
        result = job(
            finetune_recipe(recipe, of_recipe),
            out,
            teacher=teacher,
            start_from=start_from,
            layers=_parse_layers(layers),
            changes=changes,
            resume=resume,
            display=display,
        )
    print_run_result(result, out, as_json)


def _parse_layers(given: str | None) -> list[int] | None:
    found = split_list(given)
    if found is None:
        return None
    try:
        return [int(part) for part in found]
    except ValueError:
        raise UserError(f"--layers {given} are no numbers; write them like 0,2,5") from None
