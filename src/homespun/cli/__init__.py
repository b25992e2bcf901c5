"""Command line of homespun. Each command imports its libraries when it runs, so that ``--help`` is instant."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn, cast

import typer

from homespun.cli.compare import baselines, benchmark, compare
from homespun.cli.convert import convert, export
from homespun.cli.distill import distill_app
from homespun.cli.fit import fit, print_fit
from homespun.cli.generate import few_shot, generate, summarize
from homespun.cli.options import (
    STDIN,
    Columns,
    CommandGroup,
    DataSet,
    Encoding,
    Generation,
    Json,
    Out,
    Overrides,
    Processes,
    Quantize,
    Recipe,
    Resume,
    StartingVectors,
    TrainedText,
    check_inputs,
    check_inputs_or_stdin,
    check_recipe,
    check_source,
    check_start,
    print_prediction,
    print_result,
    print_run_result,
    read_options,
    read_stdin,
    writing,
    writing_from,
)
from homespun.cli.plan import plan
from homespun.cli.serve import serve
from homespun.cli.show import recipes_app, show_app
from homespun.cli.text import corpus_app, tokenizer_app
from homespun.cli.vectors import vectors_app
from homespun.errors import UserError, describe_system_error, one_line, shorten_warnings

app = typer.Typer(
    name="homespun",
    cls=CommandGroup,
    help="Train, fine-tune and evaluate small language models on your own text and machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(tokenizer_app, name="tokenizer")
app.add_typer(corpus_app, name="corpus")
app.add_typer(recipes_app, name="recipes")
app.add_typer(show_app, name="show")
app.add_typer(distill_app, name="distill")
app.add_typer(vectors_app, name="vectors")
app.command(short_help="Train and select a model within a time limit.")(fit)
app.command(short_help="Convert a model to or from the transformers format.")(convert)
app.command(short_help="Export a model to ONNX, sentence-transformers or GGUF.")(export)
app.command()(generate)
app.command(short_help="Summarise texts with a fine-tuned model.")(summarize)
app.command(short_help="Predict the memory and time of a recipe.")(plan)
app.command(short_help="Classify with examples in the prompt of a language model.")(few_shot)
app.command()(compare)
app.command(short_help="Measure the latency and memory of a model.")(benchmark)
app.command()(baselines)
app.command(short_help="Serve models over HTTP.")(serve)

Model = Annotated[
    str,
    typer.Argument(callback=check_source, help="Fine-tuned model: run, model folder, Hugging Face folder or hub name."),
]


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"homespun {version('homespun')}")
        raise typer.Exit


@app.callback()
def homespun(
    print_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of ``homespun`` without a command."""


@app.command()
def pretrain(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Out = Path("runs/pretrain"),
    start_from: Annotated[
        str | None, typer.Option("--from", help="Checkpoint to continue from; model.KEY=VALUE changes it.")
    ] = None,
    generator: Annotated[
        str | None, typer.Option("--generator", help="Checkpoint of the generator of objective electra; with --from.")
    ] = None,
    vectors: StartingVectors = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Pretrain a model on a corpus, from scratch or from a checkpoint."""
    from homespun.recipes import split_overrides

    of_recipe, changes = split_overrides(overrides, has_checkpoint=start_from is not None)
    check_recipe(recipe, of_recipe, "pretrain")
    check_source(None if resume else start_from)

    from homespun.commands.pretrain import pretrain as command
    from homespun.commands.recipe import pretrain_recipe

    with writing(out, as_json) as display:
        result = command(
            pretrain_recipe(recipe, of_recipe),
            out,
            start_from=start_from,
            changes=changes,
            generator=generator,
            vectors=vectors,
            resume=resume,
            display=display,
        )
    print_run_result(result, out, as_json)


@app.command(short_help="Fine-tune a pretrained model on labelled examples.")
def finetune(
    recipe: Annotated[str, typer.Argument(help="Recipe name, such as classify, or .yaml file.")],
    overrides: Overrides = None,
    start_from: Annotated[
        str | None, typer.Option("--from", help="Pretrained model: run, model folder, Hugging Face folder or hub name.")
    ] = None,
    out: Out = Path("runs/finetune"),
    vectors: StartingVectors = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a pretrained model on labelled examples, and compare it with baselines."""
    check_start("finetune", start_from)
    assert start_from is not None
    check_recipe(recipe, overrides or (), "finetune")
    check_source(None if resume else start_from)

    from homespun.commands.finetune import finetune as command
    from homespun.commands.recipe import finetune_recipe

    loaded = finetune_recipe(recipe, overrides or ())
    with writing(out, as_json) as display:
        result = command(loaded, out, start_from=start_from, vectors=vectors, resume=resume, display=display)
    print_run_result(result, out, as_json)


@app.command()
def evaluate(
    run: Model,
    data: Annotated[
        list[str],
        typer.Option("--data", callback=check_inputs, help="Labelled file, glob, folder or hub name; repeatable."),
    ],
    text: TrainedText = None,
    label: Annotated[str | None, typer.Option("--label-field", help="Column; default: as in training.")] = None,
    data_set: DataSet = None,
    generation: Generation = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Evaluate a fine-tuned model on labelled examples."""
    from homespun.commands.predict import evaluate as command

    options = read_options(text, encoding, columns, data_set, generation)
    options["label"] = label
    metrics = command(run, data, **options)
    if as_json:
        print_result(metrics, as_json)
        return
    from homespun.report.console import print_metrics

    print_metrics(metrics)


@app.command()
def predict(
    run: Model,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts; for a model of pairs, two a pair.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            callback=check_inputs_or_stdin,
            help="File, glob, folder, archive, URL or hub name; repeatable. -: standard input, one text a line.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Output file for --input, .jsonl or .csv.")] = None,
    text: TrainedText = None,
    data_set: DataSet = None,
    generation: Generation = None,
    quantize: Quantize = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Write csv cells unchanged, also those that a spreadsheet would calculate, such as '=1+1'."
        ),
    ] = False,
    processes: Processes = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Predict labels or other outputs of texts or files.

    After an interruption, the same command continues from the finished parts.
    """
    if bool(texts) == bool(inputs):
        raise UserError("give either texts as arguments, or files with --input")
    options = read_options(text, encoding, columns, data_set, generation)
    if texts or inputs == [STDIN]:
        if out is not None:
            raise UserError("--out needs --input with a file; predictions of texts are printed")
        given: dict[str, object] = {"--text-field": text, "--encoding": encoding, "--columns": columns}
        given |= {"--raw": raw, "--processes": processes}
        if wrong := next((option for option, value in given.items() if value), None):
            raise UserError(f"{wrong} is for files; leave it out, or give a file with --input and --out")
        texts = texts or read_stdin()
        from homespun.commands.predict import predict_texts

        for prediction in predict_texts(run, texts, quantize=quantize, **options):
            print_prediction(prediction, as_json)
        return
    if out is None or inputs is None:
        raise UserError("--out is missing; give a file for the predictions, .jsonl or .csv")
    if out.suffix not in (".jsonl", ".csv"):
        raise UserError(f"--out must end in .jsonl or .csv, not {out.name!r}")

    from homespun.commands.predict import predict as command

    with writing_from(inputs, out, "predicting", as_json, as_one=True) as progress:
        result = command(
            run, inputs, out, quantize=quantize, raw=raw, processes=processes or "auto", **progress, **options
        )
    print_result(result, as_json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or the folder of one comparison.")],
    out: Annotated[Path | None, typer.Option("--out", help="Output folder; default: report.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page; default: Report.")] = None,
    as_json: Json = False,
) -> None:
    """Write the report of one or several runs.

    For the folder of a comparison, write its report again, without --out and --title.
    """
    from homespun.io.lock import locked
    from homespun.report.comparison import write_comparison
    from homespun.report.comparison_records import is_comparison
    from homespun.report.page import write_report

    compared = len(runs) == 1 and is_comparison(runs[0])
    folder = runs[0] / "report" if compared else out or Path("report")
    if compared and (out is not None or title is not None):
        raise UserError(f"the report of a comparison is written to {folder}; leave out --out and --title")
    with locked(folder):
        page = write_comparison(runs[0]) if compared else write_report(runs, folder, title=title or "Report")
    print_result({"report": str(page)}, as_json)


@app.command(short_help="Fit a classifier on the documentation of installed packages.")
def quickstart(
    out: Out = Path("runs/quickstart"),
    minutes: Annotated[float, typer.Option(help="Total time in minutes.")] = 5.5,
    as_json: Json = False,
) -> None:
    """Fit a classifier that names the Python package that a passage documents."""
    from homespun.fitting.quickstart import fit_folder
    from homespun.fitting.quickstart import quickstart as command

    with writing(out, as_json) as display:
        result = command(out, seconds=60 * minutes, display=display)
    print_fit(result, fit_folder(out), as_json)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check the machine and the installation."""
    from dataclasses import asdict

    from homespun.commands.doctor import examine

    checks = examine()
    if as_json:
        print_result({"checks": [asdict(check) for check in checks]}, as_json)
    else:
        from homespun.report.console import print_checks

        print_checks(checks)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def main() -> NoReturn:
    """Run the command line; user errors print one line and exit with code 2, other errors keep their traceback."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # new processes import nothing from the working directory
    shorten_warnings()
    try:
        status = _run()
    except UserError as error:
        _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("stopped", err=True)
        raise SystemExit(130) from None
    except Exception as error:
        if isinstance(error, typer.BadParameter.__mro__[1]):  # a usage error
            _refuse_usage(cast(typer.BadParameter, error))
        if (line := describe_system_error(error)) is not None:
            _refuse(line)
        traceback.print_exc()
        typer.echo("this is a bug in homespun; please report the traceback above", err=True)
        raise SystemExit(1) from None
    if status == 130:  # typer returns it for Ctrl-C
        typer.echo("stopped", err=True)
    sys.exit(status if isinstance(status, int) else 0)


def _run() -> object:
    try:
        return app(standalone_mode=False)
    except typer.Abort as abort:
        if isinstance(abort.__cause__, EOFError):  # of a pipe; typer takes it for the end of an input by a user
            raise abort.__cause__ from None
        raise


def _refuse_usage(error: typer.BadParameter) -> NoReturn:
    """Print a message about an argument or option, or the help of a group without a command."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        raise SystemExit(2) from None
    command = "homespun" if error.ctx is None else error.ctx.command_path
    message = error.format_message().replace("Value error, ", "", 1).rstrip(".")  # typer copies messages of pydantic
    _refuse(f"{message}; see `{command} --help`")


def _refuse(message: str) -> NoReturn:
    typer.echo(f"error: {one_line(message)}", err=True)
    raise SystemExit(2) from None


if __name__ == "__main__":
    main()
