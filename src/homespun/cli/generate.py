"""The verbs that write: `homespun generate`, and `homespun summarize` for models that were fine-tuned to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from homespun.cli.options import (
    Columns,
    DataSet,
    Encoding,
    Input,
    Json,
    Writing,
    parse_overrides,
    print_result,
    split_list,
)
from homespun.errors import UserError


def generate(
    run: Annotated[
        str, typer.Argument(help="Run, model folder, Hugging Face folder or hub name of a model that writes.")
    ],
    prompt: Annotated[str | None, typer.Option("--prompt", help="The text to go on with, or to write of.")] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", help="A file of prompts, with --out; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A .jsonl file to write, with --input.")] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text-field", help="Column of the prompt; text by default.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens to write at the most; 20 where not given.")] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="And at the least.")] = None,
    num_beams: Annotated[
        int | None, typer.Option(help="Texts held at a time; 1: the likeliest token is taken.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="With --num-beams; above 0, longer beams are preferred.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Draw tokens, from scores divided by it.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the so many likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest with this share.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draw, and the same again with the same seed.")] = None,
    no_repeat_ngram_size: Annotated[int | None, typer.Option(help="No so many tokens in a row come twice.")] = None,
    num_return_sequences: Annotated[int | None, typer.Option(help="Texts to a prompt.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="A string that ends a text; repeatable.")] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts of a file that are worked on together.")] = 8,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Write on from a prompt, or from each in a file."""
    given = {
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": min_new_tokens,
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "num_return_sequences": num_return_sequences,
    }
    arguments: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if arguments.keys() & {"temperature", "top_k", "top_p", "seed"}:
        arguments["do_sample"] = True
    if (prompt is None) == (not inputs):
        raise UserError("give either --prompt TEXT, or --input FILE with --out FILE")
    if inputs:
        if out is None:
            raise UserError("--input needs --out: a .jsonl file to write")
        _generate_file(run, inputs, out, text, stop, arguments, batch_size, encoding, columns, as_json)
        return
    if out is not None:
        raise UserError("--out is for --input; what is written of --prompt is printed")
    assert prompt is not None
    from homespun.commands.generate import generator

    writer = generator(run, stop=stop or ())
    several = arguments.get("num_beams", 1) > 1 or arguments.get("num_return_sequences", 1) > 1
    if as_json or several:
        (written,) = writer.generate([prompt], **arguments)
        if as_json:
            print_result(
                {"prompt": prompt, "generated": [w.text for w in written], "tokens": [w.tokens for w in written]}, True
            )
            return
        for each in written:
            typer.echo(each.text)
        return
    for piece in writer.stream(prompt, **arguments):
        typer.echo(piece, nl=False)
    typer.echo()


def _generate_file(
    run: str,
    inputs: list[str],
    out: Path,
    text: list[str] | None,
    stop: list[str] | None,
    arguments: dict[str, Any],
    batch_size: int,
    encoding: str | None,
    columns: str | None,
    as_json: bool,
) -> None:
    from homespun.commands.generate import generate as job
    from homespun.report.console import Display
    from homespun.report.terminal import counter
    from homespun.text.sources import ReadProgress

    read_progress = ReadProgress(inputs)
    with Display(json=as_json) as display:
        result = job(
            run,
            inputs,
            out,
            text=text or ("text",),
            stop=stop or (),
            arguments=arguments,
            batch_size=batch_size,
            encoding=encoding,
            columns=split_list(columns),
            progress=counter(display, "writing", read_progress),
            read_progress=read_progress,
        )
    print_result(result, as_json)


def summarize(
    run: Annotated[str, typer.Argument(help="A run of finetune summarize, or another that writes texts of texts.")],
    inputs: Input,
    out: Annotated[
        Path | None, typer.Option("--out", help="A .jsonl or .csv file to write; without one they are printed.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option("--text-field", help="As in training where not given.")] = None,
    data_set: DataSet = None,
    writing: Writing = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Summarise texts, read and written as the model was fine-tuned to; printed, each is a line."""
    from homespun.commands.generate import summaries
    from homespun.commands.generate import summarize as job
    from homespun.report.console import Display
    from homespun.report.terminal import counter
    from homespun.text.sources import ReadProgress

    given: dict[str, Any] = {"text": text, "encoding": encoding, "columns": split_list(columns), "data_set": data_set}
    given["writing"] = parse_overrides(writing)
    if out is None:
        written = summaries(run, inputs, **given)
        if as_json:
            print_result({"texts": list(written)}, as_json)
            return
        for each in written:
            typer.echo(" ".join(each.split()))
        return
    read_progress = ReadProgress(inputs)
    with Display(json=as_json) as display:
        result = job(
            run, inputs, out, **given, progress=counter(display, "writing", read_progress), read_progress=read_progress
        )
    print_result(result, as_json)
