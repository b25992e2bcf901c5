"""The command line: verbs, nothing else. Heavy imports live inside each verb, so that ``--help`` is instant."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from homespun.cli_show import show_app
from homespun.errors import UserError

app = typer.Typer(
    name="homespun",
    help="Spin small language models from your own text, on your own machine, and see the evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
tokenizer_app = typer.Typer(no_args_is_help=True, help="Train a tokenizer.")
corpus_app = typer.Typer(no_args_is_help=True, help="Build a corpus of tokens, and look at it.")
recipes_app = typer.Typer(no_args_is_help=True, help="The shipped recipes.")
app.add_typer(tokenizer_app, name="tokenizer")
app.add_typer(corpus_app, name="corpus")
app.add_typer(recipes_app, name="recipes")
app.add_typer(show_app, name="show")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Input = Annotated[list[str], typer.Option("--input", help="File, glob, folder, archive, URL or hub name; repeatable.")]
TextFields = Annotated[
    list[str] | None, typer.Option("--text-field", help="Column of the text; repeatable, joined with a space.")
]
LabelField = Annotated[str | None, typer.Option("--label-field", help="Column of a label to keep.")]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Of text files; detected where not given.")]
Columns = Annotated[str | None, typer.Option("--columns", help="Names for a csv without a header: a,b,c.")]
Normalise = Annotated[bool, typer.Option(help="Unicode NFC, control characters and surplus space out.")]
Duplicates = Annotated[str, typer.Option("--duplicates", help="keep, exact (drop repeats) or near (and near repeats).")]
Out = Annotated[Path, typer.Option("--out", help="Folder to write.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped, or give it more budget.")]


@tokenizer_app.command("train")
def tokenizer_train(
    inputs: Input,
    out: Out,
    kind: Annotated[str, typer.Option(help="bpe, bpe-characters, wordpiece, unigram or words.")] = "bpe",
    vocab_size: Annotated[int, typer.Option(help="Entries, special tokens included.")] = 16_000,
    lowercase: Annotated[bool, typer.Option(help="Lower-case all text.")] = False,
    text_fields: TextFields = None,
    encoding: Encoding = None,
    columns: Columns = None,
    normalise: Normalise = True,
    as_json: Json = False,
) -> None:
    """Train a tokenizer on your text."""
    from homespun.jobs.prepare import reading, train_tokenizer
    from homespun.report.console import Display
    from homespun.report.show import counter
    from homespun.text.sources import Meter
    from homespun.text.tokenizer import KINDS

    what = reading(
        inputs, text_fields=text_fields or ("text",), encoding=encoding, columns=_list(columns), normalise=normalise
    )
    meter = Meter(inputs)
    with Display(json=as_json) as display:
        tokenizer = train_tokenizer(
            what,
            out,
            kind=_choice(kind, KINDS, "--kind"),
            vocab_size=vocab_size,
            lowercase=lowercase,
            progress=counter(display, "reading for the tokenizer", meter),
            meter=meter,
        )
    _tell(
        {
            "tokenizer": str(out),
            "kind": tokenizer.kind,
            "vocab_size": tokenizer.vocab_size,
            "fingerprint": tokenizer.fingerprint,
        },
        as_json,
    )


@corpus_app.command("build")
def corpus_build(
    inputs: Input,
    tokenizer: Annotated[Path, typer.Option("--tokenizer", help="Folder or tokenizer.json.")],
    out: Out,
    text_fields: TextFields = None,
    label_field: LabelField = None,
    encoding: Encoding = None,
    columns: Columns = None,
    normalise: Normalise = True,
    duplicates: Duplicates = "exact",
    sentences: Annotated[
        bool, typer.Option(help="Note where sentences end; next sentence prediction needs it.")
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Threads; by default one a core.")] = None,
    as_json: Json = False,
) -> None:
    """Encode your text once, into a memory-mapped token store. A killed build goes on where it was."""
    from homespun.jobs.prepare import describe_corpus, make_corpus, reading
    from homespun.report.console import Display
    from homespun.report.show import counter
    from homespun.text.sources import Meter

    what = reading(
        inputs,
        text_fields=text_fields or ("text",),
        label_field=label_field,
        encoding=encoding,
        columns=_list(columns),
        normalise=normalise,
        duplicates=_choice(duplicates, ("keep", "exact", "near"), "--duplicates"),
    )
    meter = Meter(inputs)
    with Display(json=as_json) as display:
        corpus = make_corpus(
            what,
            tokenizer,
            out,
            workers=workers,
            sentences=sentences,
            progress=counter(display, "building the corpus", meter),
            meter=meter,
        )
    _tell(describe_corpus(corpus, out), as_json)


@corpus_app.command("lengths")
def corpus_lengths(
    corpus: Annotated[Path | None, typer.Argument(help="Corpus folder; or give --input with a tokenizer.")] = None,
    inputs: Annotated[list[str] | None, typer.Option("--input", help="Labelled files, one split each.")] = None,
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="For --input.")] = None,
    text_fields: TextFields = None,
    label_field: LabelField = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Lengths in tokens by class and split: mean, median, minimum, maximum, and a histogram."""
    from homespun.jobs.lengths import corpus_lengths, file_lengths

    if (corpus is None) == (not inputs):
        raise UserError("give either a corpus folder, or --input files with --tokenizer")
    if corpus is not None:
        rows = corpus_lengths(corpus)
    else:
        if tokenizer is None:
            raise UserError("--input needs --tokenizer, to count tokens with")
        rows = file_lengths(
            inputs or [],
            tokenizer,
            text_fields=text_fields or ("text",),
            label_field=label_field,
            encoding=encoding,
            columns=_list(columns),
        )
    if as_json:
        _tell({"lengths": rows}, as_json)
        return
    from homespun.report.show import print_lengths

    print_lengths(rows)


@app.command()
def pretrain(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe, or a .yaml file.")],
    overrides: Overrides = None,
    out: Out = Path("runs/pretrain"),
    start_from: Annotated[str | None, typer.Option("--from", help="Run or model whose backbone to start from.")] = None,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Pretrain a model on a corpus."""
    from homespun.jobs.pretrain import pretrain as job
    from homespun.jobs.recipe import pretrain_recipe
    from homespun.report.console import Display

    with Display(json=as_json) as display:
        result = job(
            pretrain_recipe(recipe, overrides or ()), out, start_from=start_from, resume=resume, display=display
        )
    _tell_run(result, out, as_json)


@app.command()
def finetune(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe such as classify, or a .yaml file.")],
    overrides: Overrides = None,
    start_from: Annotated[str | None, typer.Option("--from", help="Run or model to start from.")] = None,
    out: Out = Path("runs/finetune"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a pretrained model on labelled texts, and measure it beside the baselines."""
    from homespun.jobs.finetune import finetune as job
    from homespun.jobs.recipe import finetune_recipe
    from homespun.report.console import Display

    if start_from is None:
        raise UserError("give --from: a run, a model folder, or a Hugging Face folder or hub name to start from")
    loaded = finetune_recipe(recipe, overrides or ())
    with Display(json=as_json) as display:
        result = job(loaded, out, start_from=start_from, resume=resume, display=display)
    _tell_run(result, out, as_json)


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="A fine-tuned run or model folder.")],
    data: Annotated[list[str], typer.Option("--data", help="Labelled file, glob, folder or hub name; repeatable.")],
    text: Annotated[list[str] | None, typer.Option("--text-field", help="As in training where not given.")] = None,
    label: Annotated[str | None, typer.Option("--label-field", help="As in training where not given.")] = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Measure a fine-tuned model on labelled texts."""
    from homespun.jobs.use import evaluate as job

    metrics = job(run, data, text=text, label=label, encoding=encoding, columns=_list(columns))
    if as_json:
        _tell(metrics, as_json)
        return
    from homespun.report.show import print_metrics

    print_metrics(metrics)


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help="A fine-tuned run or model folder.")],
    inputs: Input,
    out: Annotated[Path, typer.Option("--out", help="A .jsonl or .csv file to write.")],
    text: Annotated[list[str] | None, typer.Option("--text-field", help="As in training where not given.")] = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Label new texts: one line each, in their order."""
    from homespun.jobs.use import predict as job
    from homespun.report.console import Display
    from homespun.report.show import counter
    from homespun.text.sources import Meter

    meter = Meter(inputs)
    with Display(json=as_json) as display:
        result = job(
            run,
            inputs,
            out,
            text=text,
            encoding=encoding,
            columns=_list(columns),
            progress=counter(display, "predicting", meter),
            meter=meter,
        )
    _tell(result, as_json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one or several to compare.")],
    out: Out = Path("report"),
    title: Annotated[str, typer.Option(help="Of the page.")] = "Report",
    as_json: Json = False,
) -> None:
    """Write one page about one run, or comparing several."""
    from homespun.report.page import write_report

    _tell({"report": str(write_report(runs, out, title=title))}, as_json)


@app.command()
def quickstart(
    out: Out = Path("runs/quickstart"),
    minutes: Annotated[float, typer.Option(help="For the whole of it, on this machine.")] = 5.5,
    as_json: Json = False,
) -> None:
    """The whole job on the documentation of the Python packages that are installed here."""
    from homespun.jobs.quickstart import quickstart as job
    from homespun.report.console import Display

    with Display(json=as_json) as display:
        result = job(out, seconds=60 * minutes, display=display)
    if as_json:
        _tell(result, as_json)
        return
    from homespun.report.show import print_run

    print_run(result["classifier"])
    typer.echo(result["next"])


@app.command()
def arena(
    task: Annotated[str, typer.Argument(help="listops, text, retrieval or pixels.")],
    overrides: Overrides = None,
    models: Annotated[
        str | None, typer.Option("--models", help="By attention: full,longformer; all if not given.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Folder with train and test; listops needs none.")] = None,
    out: Out = Path("runs/arena"),
    as_json: Json = False,
) -> None:
    """Long Range Arena: attentions on one task under one budget. Give the command again to go on."""
    from homespun.jobs.arena import arena as job
    from homespun.jobs.arena import scoreboard
    from homespun.jobs.arena_settings import MODELS
    from homespun.report.console import Display, print_tables

    with Display(json=as_json) as display:
        chosen = _list(models) or list(MODELS)
        result = job(task, out, models=chosen, data=data, overrides=overrides or (), display=display)
    if as_json:
        _tell(result, as_json)
        return
    print_tables(*scoreboard(result))
    typer.echo(f"report: {result['page']}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Look at this machine and this installation."""
    from dataclasses import asdict

    from homespun.jobs.doctor import examine

    checks = examine()
    if as_json:
        _tell({"checks": [asdict(check) for check in checks]}, as_json)
    else:
        from homespun.report.show import print_checks

        print_checks(checks)
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


@recipes_app.command("list")
def recipes_list(as_json: Json = False) -> None:
    """The shipped recipes, a line each."""
    from homespun.jobs.recipe import recipe_names, recipe_tree

    rows = {name: str(recipe_tree(name).get("about", "")) for name in recipe_names()}
    _tell({"recipes": rows} if as_json else rows, as_json)


@recipes_app.command("show")
def recipes_show(
    name: Annotated[str, typer.Argument(help="A shipped recipe, or a .yaml file.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """A recipe in full, every default written out."""
    from homespun.config import dump
    from homespun.jobs.recipe import load_recipe

    recipe = load_recipe(name, overrides or ())
    if as_json:
        _tell(recipe.model_dump(mode="json"), as_json)
    else:
        typer.echo(dump(recipe), nl=False)


@recipes_app.command("schema")
def recipes_schema(as_json: Json = False) -> None:
    """The JSON schema of recipes, for editors."""
    from homespun.jobs.recipe import schema

    typer.echo(json.dumps(schema(), indent=None if as_json else 2))


def _list(value: str | None) -> list[str] | None:
    return None if value is None else [part.strip() for part in value.split(",")]


def _choice(value: str, allowed: Any, option: str) -> Any:
    if value not in allowed:
        raise UserError(f"{option} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def _tell(values: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(values, ensure_ascii=False, default=str))
        return
    from homespun.report.show import print_facts

    print_facts(values)


def _tell_run(result: Mapping[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        _tell({"run": str(out), **result}, as_json)
        return
    from homespun.report.show import print_run

    print_run(out)


def main() -> NoReturn:
    """Run the command line: a user's mistake is one line and exit code 2, a bug keeps its traceback."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
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
