"""Command `homespun plan`."""

from __future__ import annotations

import gc
from typing import Annotated, Any

import typer

from homespun.cli.options import Json, Overrides, Recipe, check_recipe, check_source, check_start, print_result


def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory limit: 12GB, 8GiB.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="Time budget: 90s, 20m, 10h.")] = None,
    tokens: Annotated[str | None, typer.Option("--tokens", help="Token budget: 10M, 1.5B.")] = None,
    steps: Annotated[str | None, typer.Option("--steps", help="Budget in optimizer steps: 5000, 250k.")] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Correct the prediction with a few measured steps.")] = False,
    start_from: Annotated[
        str | None,
        typer.Option("--from", callback=check_source, help="Checkpoint to start from; model.KEY=VALUE changes it."),
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Number of machines; with --gpus.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", help="GPUs or CPU processes per machine.")] = None,
    device: Annotated[
        str, typer.Option("--device", help="Device: here (this machine), a100 or h100; with --gpus.")
    ] = "here",
    bandwidth: Annotated[
        str | None,
        typer.Option("--bandwidth", help="Bandwidth of a device in bytes per second, such as 25GB; with --gpus."),
    ] = None,
    price: Annotated[float | None, typer.Option("--price", help="Price of an hour of a device; with --gpus.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the memory and time of a recipe before training, and choose micro-batches."""
    from homespun.recipes import split_overrides

    of_recipe, changes = split_overrides(overrides, has_checkpoint=start_from is not None)
    check_start(check_recipe(recipe, of_recipe), start_from)

    gc.disable()  # garbage collection takes a sixth of the import time
    from homespun.commands.parallel import Cluster
    from homespun.commands.plan import plan as command
    from homespun.commands.recipe import load_recipe
    from homespun.config import parse_bytes, parse_option
    from homespun.planning.tracer import StepTracer
    from homespun.report.console import Display

    StepTracer()  # imports torch's compiler
    gc.freeze()
    gc.enable()

    cluster = None
    if nodes is not None or gpus is not None or device != "here" or bandwidth is not None or price is not None:
        sent = parse_option(parse_bytes, bandwidth, "--bandwidth")
        cluster = Cluster(1 if nodes is None else nodes, 1 if gpus is None else gpus, device, sent, price)
    with Display(json=as_json) as display:
        result = command(
            load_recipe(recipe, of_recipe),
            memory=memory,
            time=time,
            tokens=tokens,
            steps=steps,
            probe=probe,
            start_from=start_from,
            changes=changes,
            cluster=cluster,
            display=display,
        )
    print_result(result if as_json else _facts(result), as_json)


_FACTS = {
    "model": "model",
    "parameters": "parameters",
    "micro-batches": "micro_batches",
    "memory": "memory",
    "FLOPs a token": "flops",
    "step": "step",
    "expected": "expected",
    "all {} trainings": "trainings",
    "forecast": "forecast",
    "before the probe": "before_probe",
    "parallel": "parallel",
}
"""Macro of ``plan.j2`` of each fact, in the order of printing."""


def _facts(result: dict[str, Any]) -> dict[str, str]:
    from homespun.report.document import fill

    count = result["trainings"]["count"]
    facts = {name.format(count): fill("plan", macro, plan=result) for name, macro in _FACTS.items()}
    parallel = result["parallel"] or {"kinds": {}}
    for kind, plan in parallel["kinds"].items():
        facts[f"parallel {kind}"] = fill("plan", "parallel_kind", kind=plan, limit=parallel["limit"])
        facts[f"all steps {kind}"] = fill("plan", "all_steps", kind=plan)
    if result["made_up_text"]:
        facts["note"] = "without data.corpus the plan is for random text"
    for number, warning in enumerate(result["warnings"], 1):
        facts[f"warning {number}"] = warning
    return {name: fact for name, fact in facts.items() if fact}
