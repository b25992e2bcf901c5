"""Options that commands share, and output of results."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, TypeVar, cast

import typer
from typer.core import TyperGroup

from homespun.choices import Duplicates
from homespun.errors import UserError, escape, escape_controls, nearest
from homespun.migration import RENAMED_COMMANDS, RENAMED_FLAGS

if TYPE_CHECKING:
    from homespun.data.corpus_build import Progress
    from homespun.report.console import Display
    from homespun.tasks.protocol import ReadOptions
    from homespun.text.sources import ReadProgress

T = TypeVar("T", bound=str)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def check_inputs(inputs: list[str] | None) -> list[str] | None:
    """Refuse missing files, as the callback of an option, before anything heavy is imported."""
    from homespun.text import input_files

    input_files.check_inputs(inputs or ())
    return inputs


STDIN = "-"
"""Input that is standard input."""


def check_inputs_or_stdin(inputs: list[str] | None) -> list[str] | None:
    """Refuse missing files, and standard input besides files, as the callback of an option."""
    if STDIN not in (inputs or ()):
        return check_inputs(inputs)
    if inputs != [STDIN]:
        raise UserError(f"--input - (standard input) is given with other inputs: {', '.join(inputs or ())}; give one")
    return inputs


def read_stdin() -> list[str]:
    """Read the lines of standard input, without blank lines at the end.

    Raises:
        UserError: there are none, or they are not UTF-8.
    """
    try:
        lines = sys.stdin.buffer.read().decode("utf-8-sig").rstrip().split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not UTF-8 ({error}); convert it, such as with iconv") from error
    if lines == [""]:
        raise UserError("standard input has no text; give one text a line")
    return [line.removesuffix("\r") for line in lines]


def check_source(source: str | None) -> str | None:
    """Refuse a missing model, as the callback of an argument or option."""
    from homespun import hf

    if source:
        hf.check_source(source)
    return source


def check_recipe(recipe: str, overrides: Sequence[str], kind: str | None = None) -> str:
    """Refuse unknown keys, wrong values, missing files and another ``kind`` of a recipe, before torch is imported.

    Returns:
        The kind of the recipe.
    """
    from homespun import recipes

    tree = recipes.check_recipe(recipe, overrides, kind=kind)
    if kind == "finetune":
        recipes.require_data(tree)
    data = tree.get("data", {})
    for given in (data.get(name) for name in ("train", "validation", "test")):
        files = given if isinstance(given, list) else [given]
        check_inputs([file for file in files if file and isinstance(file, str)])
    if (corpus := data.get("corpus")) and not Path(corpus).is_dir():
        from homespun.data.corpus import Corpus

        Corpus.open(corpus)
    return str(tree["kind"])


def check_start(kind: str, start_from: str | None) -> None:
    """Refuse a recipe for fine-tuning without a checkpoint."""
    from homespun.recipes import require_start

    if kind == "finetune":
        require_start(start_from)


Input = Annotated[
    list[str],
    typer.Option("--input", callback=check_inputs, help="File, glob, folder, archive, URL or hub name; repeatable."),
]
TextFields = Annotated[
    list[str] | None, typer.Option("--text-field", help="Text column, default: text; repeatable, joined with a space.")
]
TrainedText = Annotated[list[str] | None, typer.Option("--text-field", help="Column; default: as in training.")]
LabelField = Annotated[str | None, typer.Option("--label-field", help="Label column to keep.")]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Character encoding; default: detected.")]
Columns = Annotated[str | None, typer.Option("--columns", help="Column names of a csv without a header: a,b,c.")]
Normalise = Annotated[bool, typer.Option(help="Apply Unicode NFC, and remove control characters and repeated spaces.")]
RemovedDuplicates = Annotated[
    Duplicates, typer.Option("--duplicates", help="Duplicates to remove; near also removes exact ones, keep none.")
]
MaxCharacters = Annotated[
    str, typer.Option("--max-characters", help="Maximum length of a document; longer ones are skipped and counted.")
]
Recipe = Annotated[str, typer.Argument(help="Recipe name or .yaml file.")]
Out = Annotated[Path, typer.Option("--out", help="Output folder.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings of the recipe to change.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume a stopped run, or extend its budget.")]
DataSet = Annotated[
    str | None,
    typer.Option("--data-set", help="Data set of the training whose prefix and columns to use (`data.sets`)."),
]
Generation = Annotated[
    list[str] | None,
    typer.Option(
        "--generation", metavar="KEY=VALUE", help="Generation setting, such as num_beams=4; default: as in training."
    ),
]
StartingVectors = Annotated[
    Path | None,
    typer.Option("--vectors", help="Word vectors to initialise the embeddings: folder, .txt, .vec or .bin."),
]
Quantize = Annotated[
    Literal["bf16", "int8"] | None,
    typer.Option(help="Precision of linear layers, bfloat16 or 8-bit integers; default: float32."),
]
Processes = Annotated[
    int | None,
    typer.Option("--processes", min=1, help="Processes for --input; default: one per core, fewer if memory is low."),
]

_REMOVED_COMMANDS = {
    "arena": "was removed; in a checkout, use python -m benchmarks lra",
    "senses": "was removed",
}


SECTIONS = {
    "Main commands": ("quickstart", "fit", "evaluate", "predict", "serve"),
    "Training steps": ("tokenizer", "corpus", "pretrain", "finetune"),
    "More commands": ("plan", "compare", "distill", "generate", "summarize", "few-shot", "vectors"),
    "Tools": ("recipes", "show", "report", "baselines", "benchmark", "convert", "export", "doctor"),
}
"""Commands of ``homespun --help``, by section and in this order."""


class CommandGroup(TyperGroup):
    """Command group that rejects unknown, removed and renamed commands and options in one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands, those of ``homespun`` itself by section."""
        if ctx.parent is not None:
            super().format_commands(ctx, formatter)
            return
        width = max(map(len, self.commands))
        for section, names in SECTIONS.items():
            with formatter.section(section):
                described = [(name, self.commands[name].get_short_help_str(formatter.width)) for name in names]
                formatter.write_dl([(name.ljust(width), text) for name, text in described])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve the command named by ``args[0]``.

        Raises:
            UserError: unknown, removed or renamed command, or an option that was renamed.
        """
        name = args[0] if ctx.parent is None else f"{ctx.info_name} {args[0]}"
        if name in RENAMED_COMMANDS:
            raise UserError(f"homespun {name} was renamed to homespun {RENAMED_COMMANDS[name]}")
        if ctx.parent is None and args[0] in _REMOVED_COMMANDS:
            raise UserError(f"{ctx.command_path} {args[0]} {_REMOVED_COMMANDS[args[0]]}")
        if args[0] not in self.commands:
            raise UserError(f"{ctx.command_path} has no command {args[0]!r}{nearest(args[0], self.commands)}")
        found = super().resolve_command(ctx, args)
        options = {option for parameter in self.commands[args[0]].params for option in parameter.opts}
        for flag in (word.partition("=")[0] for word in args[1:]):
            if flag not in options and (new := RENAMED_FLAGS.get(flag)) in options:
                raise UserError(f"{ctx.command_path} {args[0]}: {flag} was renamed to {new}")
        return found


class ProgressArguments(TypedDict):
    """Arguments of commands that show how much of their input files they have read."""

    progress: Progress
    read_progress: ReadProgress


@contextmanager
def writing(out: Path, as_json: bool, *, as_one: bool = False) -> Iterator[Display]:
    """Context of a command that writes ``out``: its lock and its progress display; see `homespun.io.lock.locked`."""
    from homespun.io.lock import locked
    from homespun.report.console import Display

    with locked(out, as_one=as_one), Display(json=as_json) as display:
        yield display


@contextmanager
def writing_from(
    inputs: Sequence[str], out: Path, description: str, as_json: bool, *, as_one: bool = False
) -> Iterator[ProgressArguments]:
    """Context of a command that reads files and writes ``out``: its lock, and the arguments that show its progress."""
    from homespun.report.console import counter
    from homespun.text.sources import ReadProgress

    read_progress = ReadProgress(inputs)
    with writing(out, as_json, as_one=as_one) as display:
        yield {"progress": counter(display, description, read_progress), "read_progress": read_progress}


def split_list(value: str | None) -> list[str] | None:
    """Split ``a,b,c`` into a list."""
    return None if value is None else [part.strip() for part in value.split(",")]


def parse_integers(value: str, option: str) -> list[int]:
    """Parse ``1,2,5``.

    Raises:
        UserError: a part is not a whole number.
    """
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UserError(f"{option} takes whole numbers, such as 1,2, not {value!r}")
    return [int(part) for part in parts]


def parse_overrides(values: list[str] | None) -> Mapping[str, object]:
    """Parse ``KEY=VALUE`` arguments into a mapping; values are YAML."""
    from homespun.config import override

    return override({}, values or ())


def read_options(
    text: list[str] | None,
    encoding: str | None,
    columns: str | None,
    data_set: str | None,
    generation: list[str] | None,
) -> ReadOptions:
    """Build the arguments of commands that read new records for a fine-tuned model."""
    return {
        "text": text,
        "encoding": encoding,
        "columns": split_list(columns),
        "data_set": data_set,
        "generation": parse_overrides(generation),
    }


def print_line(text: str) -> None:
    """Print a line, with names and texts of files in it."""
    typer.echo(escape(text))


def print_text(text: str, *, end: str = "\n") -> None:
    """Print text of a model, which may have several lines."""
    typer.echo(f"{escape_controls(text)}{end}", nl=False)


def print_result(values: Mapping[str, object], as_json: bool) -> None:
    """Print a name and a value per line, or one JSON object."""
    if as_json:
        from homespun.io.json import to_json

        typer.echo(to_json(values, default=str))
        return
    from homespun.report.console import print_facts

    print_facts(values)


def print_prediction(prediction: Mapping[str, object], as_json: bool) -> None:
    """Print a prediction: its label with the probability, words with tags, the first value, or one JSON object."""
    if as_json:
        print_result(prediction, as_json)
        return
    label, probability = prediction.get("label"), prediction.get("probability")
    if isinstance(label, tuple | list):
        print_line("|".join(map(str, label)) or "(no label)")
    elif "tags" in prediction:
        pairs = zip(cast(list[str], prediction["words"]), cast(list[str], prediction["tags"]), strict=True)
        print_line(" ".join(f"{word}/{tag}" for word, tag in pairs))
    elif isinstance(probability, float):
        print_line(f"{label}  {100 * probability:.1f} %")
    else:
        value = next(iter(prediction.values()))
        print_line(f"{value:.6g}" if isinstance(value, float) else str(value))


def print_run_result(result: Mapping[str, object], out: Path, as_json: bool) -> None:
    """Print tables of a run, or its result as one JSON object."""
    if as_json:
        print_result({"run": str(out), **result}, as_json)
        return
    from homespun.report.console import print_run

    print_run(out)
