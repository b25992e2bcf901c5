"""Commands `homespun generate`, `homespun summarize` and `homespun few-shot`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from homespun.cli.options import (
    Columns,
    DataSet,
    Encoding,
    Generation,
    Input,
    Json,
    Out,
    Processes,
    TrainedText,
    check_inputs,
    check_source,
    print_line,
    print_result,
    print_text,
    read_options,
    split_list,
    writing,
    writing_from,
)
from homespun.errors import UserError


def generate(
    run: Annotated[
        str,
        typer.Argument(
            callback=check_source, help="Generative model: run, model folder, Hugging Face folder or hub name."
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Text to continue, or source text of an encoder-decoder.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", callback=check_inputs, help="File of prompts, with --out; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Output file, .jsonl, with --input.")] = None,
    text: Annotated[list[str] | None, typer.Option("--text-field", help="Column of the prompt; default: text.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Maximum number of new tokens; default: 20.")] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="Minimum number of new tokens.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="Number of beams; 1: greedy search.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Exponent of the length in beam scores; larger values prefer longer texts.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="Sample with this softmax temperature.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens with this total probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Sample with this seed.")] = None,
    no_repeat_ngram_size: Annotated[int | None, typer.Option(help="Size of n-grams that may not repeat.")] = None,
    num_return_sequences: Annotated[int | None, typer.Option(help="Texts per prompt.")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="String that ends generation; repeatable.")] = None,
    batch_size: Annotated[int, typer.Option(help="Prompts per batch.")] = 8,
    processes: Processes = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Generate text from a prompt, or from each prompt of a file.

    The same command continues a killed generation from files.
    """
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
        from homespun.commands.generate import generate as command

        with writing_from(inputs, out, "generating", as_json, as_one=True) as progress:
            result = command(
                run,
                inputs,
                out,
                text=text or ("text",),
                stop=stop or (),
                arguments=arguments,
                batch_size=batch_size,
                processes=processes or "auto",
                encoding=encoding,
                columns=split_list(columns),
                **progress,
            )
        print_result(result, as_json)
        return
    if out is not None:
        raise UserError("--out needs --input; text generated from --prompt is printed")
    assert prompt is not None
    _generate_from_prompt(run, prompt, stop or (), arguments, as_json)


def _generate_from_prompt(run: str, prompt: str, stop: Sequence[str], arguments: dict[str, Any], as_json: bool) -> None:
    from homespun.commands.generate import generator

    model = generator(run, stop=stop)
    several = arguments.get("num_beams", 1) > 1 or arguments.get("num_return_sequences", 1) > 1
    if as_json or several:
        (generated,) = model.generate([prompt], **arguments)
        if as_json:
            texts, tokens = [each.text for each in generated], [each.tokens for each in generated]
            print_result({"prompt": prompt, "generated": texts, "tokens": tokens}, as_json)
            return
        for each in generated:
            print_text(each.text)
        return
    for piece in model.stream(prompt, **arguments):
        print_text(piece, end="")
    print_text("")


def summarize(
    run: Annotated[
        str,
        typer.Argument(
            callback=check_source, help="Model fine-tuned on text to text, such as a run of finetune summarize."
        ),
    ],
    inputs: Input,
    out: Annotated[
        Path | None, typer.Option("--out", help="Output file, .jsonl or .csv; default: standard output.")
    ] = None,
    text: TrainedText = None,
    data_set: DataSet = None,
    generation: Generation = None,
    processes: Processes = None,
    encoding: Encoding = None,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Summarise texts with a fine-tuned model and the settings of its training."""
    from homespun.commands.generate import summaries
    from homespun.commands.generate import summarize as command

    options = read_options(text, encoding, columns, data_set, generation)
    if out is None:
        texts = summaries(run, inputs, **options)
        if as_json:
            print_result({"texts": list(texts)}, as_json)
            return
        for each in texts:
            print_line(" ".join(each.split()))
        return
    with writing_from(inputs, out, "summarising", as_json, as_one=True) as progress:
        result = command(run, inputs, out, processes=processes or "auto", **progress, **options)
    print_result(result, as_json)


def few_shot(
    run: Annotated[str, typer.Argument(callback=check_source, help="Generative model: causal or encoder-decoder.")],
    data: Annotated[
        list[str],
        typer.Option(
            "--data", callback=check_inputs, help="Labelled file, glob or folder with the examples of the prompts."
        ),
    ],
    test: Annotated[
        list[str] | None,
        typer.Option("--test", callback=check_inputs, help="Test examples; default: examples of --data."),
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text-field", help="Text column, default: text; repeatable.")
    ] = None,
    label: Annotated[str, typer.Option("--label-field", help="Label column.")] = "label",
    shots: Annotated[str, typer.Option("--shots", help="Comma-separated numbers of examples in the prompt.")] = "0,1,4",
    repeats: Annotated[int, typer.Option("--repeats", help="Random draws of examples for each number.")] = 3,
    balanced: Annotated[bool, typer.Option(help="Balance the classes of the examples.")] = True,
    answers: Annotated[
        list[str] | None,
        typer.Option("--answers", help="LABEL=WORD, the answer for a label; default: the label. Repeatable."),
    ] = None,
    instruction: Annotated[str, typer.Option("--instruction", help="Instruction before the examples.")] = "",
    example: Annotated[
        str, typer.Option("--example", help="Template of an example; \\n is a new line.")
    ] = "{text}\\nAnswer: {answer}",
    separator: Annotated[str, typer.Option("--separator", help="Text between examples.")] = "\\n\\n",
    score: Annotated[str, typer.Option("--score", help="Score: likelihood, per_token or generated.")] = "likelihood",
    calibrated: Annotated[
        bool, typer.Option(help="Subtract the scores for empty texts (contextual calibration).")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", help="Maximum number of test examples.")] = 500,
    text_tokens: Annotated[
        int | None, typer.Option("--text-tokens", help="Maximum number of tokens of each text.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    encoding: Encoding = None,
    columns: Columns = None,
    out: Out = Path("runs/few-shot"),
    as_json: Json = False,
) -> None:
    """Classify with examples in the prompt of a language model, and measure accuracy by number of examples."""
    from homespun.commands.few_shot import Prompting
    from homespun.commands.few_shot import few_shot as command
    from homespun.config import validate
    from homespun.report.console import print_tables
    from homespun.report.tables import in_context

    prompting = validate(
        Prompting,
        {
            "template": {
                "instruction": instruction,
                "example": example.replace("\\n", "\n"),
                "separator": separator.replace("\\n", "\n"),
            },
            "answers": dict(map(_parse_answer, answers or ())),
            "shots": split_list(shots),
            "repeats": repeats,
            "balanced": balanced,
            "score": score,
            "calibrated": calibrated,
            "seed": seed,
            "limit": limit,
            "text_tokens": text_tokens,
        },
        source="few-shot",
    )
    with writing(out, as_json) as display:
        result = command(
            run,
            data,
            out,
            text=text or "text",
            label=label,
            test=test,
            encoding=encoding,
            columns=split_list(columns),
            prompting=prompting,
            display=display,
        )
    if as_json:
        print_result(result, as_json)
        return
    print_tables(in_context(result))
    print_line(f"report: {result['page']}")


def _parse_answer(answer: str) -> tuple[str, str]:
    name, equals, word = answer.partition("=")
    if not (name and equals):
        raise UserError(f"--answers must be LABEL=WORD, not {answer!r}")
    return name, word
