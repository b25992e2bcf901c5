"""`homespun prompt`: a task told by a prompt, and how well a model does it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from homespun.cli.options import Columns, Encoding, Json, Out, print_result, split_list
from homespun.errors import UserError


def prompt(
    run: Annotated[str, typer.Argument(help="A run or model that writes: of objective clm, or of two stacks.")],
    data: Annotated[list[str], typer.Option("--data", help="Labelled file, glob or folder; examples come from it.")],
    test: Annotated[
        list[str] | None, typer.Option("--test", help="Texts to ask about; of --data if not given.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option("--text-field", help="Column of the text, text by default; repeatable.")
    ] = None,
    label: Annotated[str, typer.Option("--label-field", help="Column of the label.")] = "label",
    shots: Annotated[str, typer.Option("--shots", help="Examples in the prompt, such as 0,1,4.")] = "0,1,4",
    draws: Annotated[int, typer.Option("--draws", help="Times that examples are drawn, of each number.")] = 3,
    balanced: Annotated[bool, typer.Option(help="As many examples of each class as can be.")] = True,
    answers: Annotated[
        list[str] | None, typer.Option("--answers", help="LABEL=WORD, what is said for a label; repeatable.")
    ] = None,
    instruction: Annotated[str, typer.Option("--instruction", help="What is to be done.")] = "",
    example: Annotated[
        str, typer.Option("--example", help="How an example is written; \\n is a new line.")
    ] = "{text}\\nAnswer: {answer}",
    separator: Annotated[str, typer.Option("--separator", help="After each example.")] = "\\n\\n",
    score: Annotated[str, typer.Option("--score", help="likelihood, per_token or generated.")] = "likelihood",
    calibrated: Annotated[bool, typer.Option(help="Take out what the prompt says without a text.")] = False,
    limit: Annotated[int, typer.Option("--limit", help="Ask about at most so many texts.")] = 500,
    text_tokens: Annotated[int | None, typer.Option("--text-tokens", help="Keep so many tokens of each text.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the texts and the examples.")] = 0,
    encoding: Encoding = None,
    columns: Columns = None,
    out: Out = Path("runs/prompt"),
    as_json: Json = False,
) -> None:
    """Zero-, one- and few-shot: accuracy against the number of examples in the prompt."""
    from homespun.commands.in_context import Prompting, in_context
    from homespun.config import validate
    from homespun.report.console import Display, print_tables
    from homespun.report.in_context import in_context_table

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
            "draws": draws,
            "balanced": balanced,
            "score": score,
            "calibrated": calibrated,
            "seed": seed,
            "limit": limit,
            "text_tokens": text_tokens,
        },
        source="prompt",
    )
    with Display(json=as_json) as display:
        result = in_context(
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
