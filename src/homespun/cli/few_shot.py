"""Command `homespun few-shot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import Columns, Encoding, Json, Out, print_result, split_list
from homespun.errors import UserError


def few_shot(
    run: Annotated[str, typer.Argument(help="Generative model: causal or encoder-decoder.")],
    data: Annotated[
        list[str], typer.Option("--data", help="Labelled file, glob or folder with the examples of the prompts.")
    ],
    test: Annotated[
        list[str] | None, typer.Option("--test", help="Test examples; default: examples of --data.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text-field", help="Text column, default: text; repeatable.")
    ] = None,
    label: Annotated[str, typer.Option("--label-field", help="Label column.")] = "label",
    shots: Annotated[str, typer.Option("--shots", help="Comma-separated numbers of examples in the prompt.")] = "0,1,4",
    repeats: Annotated[int, typer.Option("--repeats", help="Random draws of examples per number.")] = 3,
    balanced: Annotated[bool, typer.Option(help="Balance the classes of the examples.")] = True,
    answers: Annotated[
        list[str] | None, typer.Option("--answers", help="LABEL=WORD, the word for a label; repeatable.")
    ] = None,
    instruction: Annotated[str, typer.Option("--instruction", help="Instruction before the examples.")] = "",
    example: Annotated[
        str, typer.Option("--example", help="Template of an example; \\n is a new line.")
    ] = "{text}\\nAnswer: {answer}",
    separator: Annotated[str, typer.Option("--separator", help="Text between examples.")] = "\\n\\n",
    score: Annotated[str, typer.Option("--score", help="Score: likelihood, per_token or generated.")] = "likelihood",
    calibrated: Annotated[bool, typer.Option(help="Subtract the scores of a prompt without text.")] = False,
    limit: Annotated[int, typer.Option("--limit", help="Maximum number of test examples.")] = 500,
    text_tokens: Annotated[
        int | None, typer.Option("--text-tokens", help="Truncate texts to this number of tokens.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of test examples and draws.")] = 0,
    encoding: Encoding = None,
    columns: Columns = None,
    out: Out = Path("runs/few-shot"),
    as_json: Json = False,
) -> None:
    """Evaluate zero- and few-shot prompting: accuracy by number of examples in the prompt."""
    from homespun.commands.few_shot import Prompting
    from homespun.commands.few_shot import few_shot as job
    from homespun.config import validate
    from homespun.report.console import Display, print_tables
    from homespun.report.learning_curve import in_context_table

    pairs = [given.partition("=") for given in answers or ()]
    if wrong := [given for given, (name, equals, _) in zip(answers or (), pairs, strict=True) if not (name and equals)]:
        raise UserError(f"--answers {wrong[0]!r} is not LABEL=WORD")
    prompting = validate(
        Prompting,
        {
            "template": {
                "instruction": instruction,
                "example": example.replace("\\n", "\n"),
                "separator": separator.replace("\\n", "\n"),
            },
            "answers": {name: word for name, _, word in pairs},
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
    with Display(json=as_json) as display:
        result = job(
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
    print_tables(in_context_table(result))
    typer.echo(f"report: {result['page']}")
