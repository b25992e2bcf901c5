"""Commands `homespun convert` and `homespun export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homespun.choices import ExportTarget, ModelFormat, Quantization
from homespun.cli.options import Json, Out, check_source, print_line, print_result

if TYPE_CHECKING:
    from homespun.config import Tree

Source = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_FOLDER", callback=check_source, help="Run, model folder, Hugging Face folder or hub name."
    ),
]
Head = Annotated[str | None, typer.Option("--head", help="Head to load, such as pooler; none: backbone only.")]


def convert(
    source: Source,
    out: Out,
    to: Annotated[
        ModelFormat, typer.Option("--to", help="Output format: homespun (model/ folder) or hf (transformers).")
    ] = "homespun",
    head: Head = None,
    as_json: Json = False,
) -> None:
    """Convert a model, compare its outputs with those of the source, and list the mapping of tensors."""
    from homespun.commands.convert import convert as command
    from homespun.hf.family import STORED
    from homespun.io.lock import locked

    with locked(out, as_one=True):
        result = command(source, out, to=to, head=_head_kind(head, STORED))
    if as_json:
        print_result(result, as_json)
        return
    from homespun.report.console import print_tables
    from homespun.report.transfer import conversion_tables

    print_tables(*conversion_tables(result))
    for note in result["notes"]:
        print_line(f"note: {note}")
    check = result["check"]
    target = result["architecture"]["to"] or "homespun"
    facts = {
        "written": result["out"],
        "model": target,
        "parameters": f"{result['parameters']:,}",
        "checked": _difference(check),
    }
    print_result(facts, as_json)


def export(
    source: Source,
    out: Annotated[Path, typer.Option("--out", help="Output folder, or file: .onnx (the graph alone) or .gguf.")],
    to: Annotated[
        ExportTarget, typer.Option("--to", help="Output format. For transformers: `homespun convert --to hf`.")
    ] = "onnx",
    head: Head = None,
    quantize: Annotated[
        Quantization | None, typer.Option("--quantize", help="Quantize the weights of a classifier.")
    ] = None,
    push: Annotated[
        str | None,
        typer.Option("--push", metavar="OWNER/NAME", help="Upload to this repository of the Hugging Face hub."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX, sentence-transformers or GGUF, and compare its outputs with those of the source."""
    from homespun.commands.export import export as command
    from homespun.hf.family import STORED
    from homespun.io.lock import locked

    with locked(out, as_one=True):
        result = command(source, out, to=to, head=_head_kind(head, STORED), quantize=quantize, push=push)
    if not as_json:
        for note in result["notes"]:
            print_line(f"note: {note}")
        result = _FACTS[to](result) | ({"pushed": result["pushed"]} if push else {})
    print_result(result, as_json)


def _difference(check: Tree) -> str:
    texts = f"{check['compared']} of {len(check['lengths'])} texts"
    return f"{texts}, largest difference {check['largest_difference']:.1g}"


def _onnx_facts(result: Tree) -> dict[str, str]:
    largest = max(check["largest_difference"] for check in result["checked"])
    facts = {"written": result["file"]}
    if result["inputs"]:  # a network; a linear model has no token inputs
        facts["inputs"] = ", ".join(result["inputs"])
    facts["output"] = result["output"]
    if result["inputs"]:
        facts["tokens"] = f"exactly {result['length']}" if result["length"] else f"up to {result['max_length']}"
    facts["checked"] = f"{len(result['checked'])} batches, largest difference {largest:.1g}"
    if quantization := result.get("quantization"):
        size, accuracy, kind = quantization["bytes"], quantization["accuracy"], quantization["type"]
        facts["bytes"] = f"{size['before']:,} in float32, {size['after']:,} in {kind}"
        if quantization["examples"]:
            facts["accuracy"] = (
                f"{accuracy['before']:.3f} in float32, {accuracy['after']:.3f} in {kind}, "
                f"on {quantization['examples']:,} validation examples"
            )
    return facts


def _encoder_facts(result: Tree) -> dict[str, str]:
    check = result["check"]
    return {
        "written": result["folder"],
        "model": f"{result['architecture']}, {result['pooling']} of the tokens",
        "tokens": f"up to {result['max_length']}",
        "checked": _difference(check),
    }


def _gguf_facts(result: Tree) -> dict[str, str]:
    return {"written": result["file"], "model": result["architecture"]}


_FACTS = {"onnx": _onnx_facts, "sentence-transformers": _encoder_facts, "gguf": _gguf_facts}


def _head_kind(head: str | None, stored: str) -> str | None:
    return stored if head is None else None if head == "none" else head
