"""The command line: verbs, nothing else. Heavy imports live inside each verb, so that ``--help`` is instant."""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from homespun.cli.compare import baselines, compare, measure
from homespun.cli.convert import convert, export
from homespun.cli.distill import distill_app
from homespun.cli.generate import generate, summarize
from homespun.cli.options import (
    Columns,
    CommandGroup,
    DataSet,
    Encoding,
    Input,
    Json,
    Out,
    Overrides,
    Resume,
    StartingVectors,
    Writing,
    parse_overrides,
    print_result,
    print_run_result,
    split_list,
)
from homespun.cli.plan import plan
from homespun.cli.prompt import prompt
from homespun.cli.recipes import recipes_app
from homespun.cli.show import show_app
from homespun.cli.text import corpus_app, tokenizer_app
from homespun.cli.vectors import vectors_app
from homespun.errors import UserError, shorten_warnings
from homespun.training.malloc import reexec_with_tunables

_TRAINING = ("pretrain", "finetune", "distill", "quickstart")  # verbs

app = typer.Typer(
    name="homespun",
    cls=CommandGroup,
    help="Spin small language models from your own text, on your own machine, and see the evidence.",
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
app.command(short_help="Write a model in another form, and check it.")(convert)
app.command(short_help="Write a model as an ONNX file, and check it.")(export)
app.command()(generate)
app.command(short_help="Summarise texts with a model that was fine-tuned to.")(summarize)
app.command(short_help="What a recipe will take in memory and time, before it runs.")(plan)
app.command(short_help="Zero-, one- and few-shot: a task told by a prompt.")(prompt)
app.command()(compare)
app.command(short_help="Measure what a model costs in use: seconds and memory.")(measure)
app.command()(baselines)

Model = Annotated[
    str, typer.Argument(help="Run, model folder, Hugging Face folder or hub name of a model that was fine-tuned.")
]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"homespun {version('homespun')}")
        raise typer.Exit


@app.callback()
def homespun(
    asked: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What stands before a verb."""


@app.command()
def pretrain(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe, or a .yaml file.")],
    overrides: Overrides = None,
    out: Out = Path("runs/pretrain"),
    start_from: Annotated[
        str | None, typer.Option("--from", help="Run or model to go on from; model.KEY=VALUE then change it.")
    ] = None,
    generator: Annotated[
        str | None, typer.Option("--generator", help="Beside --from: the generator of objective electra.")
    ] = None,
    vectors: StartingVectors = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Pretrain a model on a corpus, or go on with one."""
    from homespun.commands.adaptation import split_overrides
    from homespun.commands.pretrain import pretrain as job
    from homespun.commands.recipe import pretrain_recipe
    from homespun.report.console import Display

    of_recipe, changes = (overrides or [], {}) if start_from is None else split_overrides(overrides or [])
    with Display(json=as_json) as display:
        result = job(
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


@app.command(short_help="Fine-tune a pretrained model on labelled texts.")
def finetune(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe such as classify, or a .yaml file.")],
    overrides: Overrides = None,
    start_from: Annotated[str | None, typer.Option("--from", help="Run or model to start from.")] = None,
    out: Out = Path("runs/finetune"),
    vectors: StartingVectors = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a pretrained model on labelled texts, and measure it beside the baselines."""
    from homespun.commands.finetune import finetune as job
    from homespun.commands.recipe import finetune_recipe
    from homespun.report.console import Display

    if start_from is None:
        raise UserError("give --from: a run, a model folder, or a Hugging Face folder or hub name to start from")
    loaded = finetune_recipe(recipe, overrides or ())
    with Display(json=as_json) as display:
        result = job(loaded, out, start_from=start_from, vectors=vectors, resume=resume, display=display)
    print_run_result(result, out, as_json)


@app.command()
def evaluate(
    run: Model,
    data: Annotated[list[str], typer.Option("--data", help="Labelled file, glob, folder or hub name; repeatable.")],
    text: Annotated[list[str] | None, typer.Option("--text-field", help="As in training where not given.")] = None,
    label: Annotated[str | None, typer.Option("--label-field", help="As in training where not given.")] = None,
    data_set: DataSet = None,
    writing: Writing = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Measure a fine-tuned model on labelled texts."""
    from homespun.commands.predict import evaluate as job

    given: dict[str, Any] = {"encoding": encoding, "columns": split_list(columns), "data_set": data_set}
    metrics = job(run, data, text=text, label=label, **given, writing=parse_overrides(writing))
    if as_json:
        print_result(metrics, as_json)
        return
    from homespun.report.terminal import print_metrics

    print_metrics(metrics)


@app.command()
def predict(
    run: Model,
    inputs: Input,
    out: Annotated[Path, typer.Option("--out", help="A .jsonl or .csv file to write.")],
    text: Annotated[list[str] | None, typer.Option("--text-field", help="As in training where not given.")] = None,
    data_set: DataSet = None,
    writing: Writing = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Label new texts: one line each, in their order."""
    from homespun.commands.predict import predict as job
    from homespun.report.console import Display
    from homespun.report.terminal import counter
    from homespun.text.sources import ReadProgress

    read_progress = ReadProgress(inputs)
    with Display(json=as_json) as display:
        result = job(
            run,
            inputs,
            out,
            text=text,
            encoding=encoding,
            columns=split_list(columns),
            data_set=data_set,
            writing=parse_overrides(writing),
            progress=counter(display, "predicting", read_progress),
            read_progress=read_progress,
        )
    print_result(result, as_json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one or several, or the folder of one comparison.")],
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write; report by default.")] = None,
    title: Annotated[str | None, typer.Option(help="Of the page; Report by default.")] = None,
    as_json: Json = False,
) -> None:
    """Write one page about one run, or comparing several.

    That of a comparison stands in its own folder, under its own name: it takes neither --out nor --title.
    """
    from homespun.report.comparison import is_comparison, write_comparison
    from homespun.report.page import write_report

    if len(runs) == 1 and is_comparison(runs[0]):
        if out is not None or title is not None:
            raise UserError(
                f"the report of a comparison is written to {runs[0] / 'report'} and has its name; leave out --out and "
                f"--title"
            )
        print_result({"report": str(write_comparison(runs[0]))}, as_json)
        return
    print_result({"report": str(write_report(runs, out or Path("report"), title=title or "Report"))}, as_json)


@app.command(short_help="The whole job, on documentation that is installed here.")
def quickstart(
    out: Out = Path("runs/quickstart"),
    minutes: Annotated[float, typer.Option(help="For the whole of it, on this machine.")] = 5.5,
    as_json: Json = False,
) -> None:
    """The whole job on the documentation of the Python packages that are installed here."""
    from homespun.commands.quickstart import quickstart as job
    from homespun.report.console import Display

    with Display(json=as_json) as display:
        result = job(out, seconds=60 * minutes, display=display)
    if as_json:
        print_result(result, as_json)
        return
    from homespun.report.terminal import print_run

    print_run(result["classifier"])
    typer.echo(result["next"])


@app.command()
def doctor(as_json: Json = False) -> None:
    """Look at this machine and this installation."""
    from dataclasses import asdict

    from homespun.commands.doctor import examine

    checks = examine()
    if as_json:
        print_result({"checks": [asdict(check) for check in checks]}, as_json)
    else:
        from homespun.report.terminal import print_checks

        print_checks(checks)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def main() -> NoReturn:
    """Run the command line: a user's mistake is one line and exit code 2, a bug keeps its traceback."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if sys.argv[1:2] and sys.argv[1] in _TRAINING:
        reexec_with_tunables()
    shorten_warnings()
    try:
        app(standalone_mode=True)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise SystemExit(130) from None
    except Exception:
        traceback.print_exc()
        typer.echo("this is a bug in homespun; the lines above say where", err=True)
        raise SystemExit(1) from None
    sys.exit(0)


if __name__ == "__main__":
    main()
