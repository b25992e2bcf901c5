"""Command `homespun plan`."""

from __future__ import annotations

import gc
from typing import Annotated, Any

import typer

from homespun.cli.options import Json, Overrides, Recipe, check_recipe, check_source, print_result


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

    of_recipe, changes = (overrides or [], {}) if start_from is None else split_overrides(overrides or [])
    check_recipe(recipe, of_recipe)

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


def _facts(result: dict[str, Any]) -> dict[str, str]:
    from homespun.report import formats

    parameters, memory, chosen = result["parameters"], result["memory"], result["chosen"]
    flops, expected, probe = result["flops_per_token"], result["expected"], result["probe"]
    parts = ", ".join(f"{name} {formats.memory(memory[name])}" for name in _MEMORY)
    rows = f"{chosen['micro_batch_size']} rows, {chosen['accumulation']} a step of {chosen['batch_size']}"
    checkpointing = ", gradient checkpointing" if chosen["gradient_checkpointing"] else ""
    trainings = result["trainings"]
    epochs = "" if expected["epochs"] is None else f", {_pluralize(formats.count(expected['epochs']), 'epoch')}"
    size, forecast = result["size"], result["forecast"]
    facts = {} if size is None else {"model": size["reason"]}
    facts |= {
        "parameters": f"{parameters['total']:,}, {parameters['embeddings']:,} of them embeddings, "
        f"{parameters['trained']:,} trained",
        "micro-batches": f"{rows}; precision {chosen['precision']}{checkpointing}",
        "memory": f"{formats.memory(memory['peak'])} at the peak: {parts}",
        "FLOPs a token": f"{formats.count(round(flops['forward']))} forward, "
        f"{formats.count(round(flops['backward']))} backward",
        "step": formats.duration(result["seconds_per_step"]),
        "expected": f"{_format_budget(expected)}{epochs}; limited by {expected['limit']}",
    }
    if trainings["count"] > 1:
        facts["expected"] += ", for one training"
        facts[f"all {trainings['count']} trainings"] = _format_budget(trainings)
    if forecast is not None and forecast["summary"] is not None:
        facts["forecast"] = forecast["summary"]
    if probe is not None:
        before = formats.memory(probe["peak_before"]), formats.duration(probe["seconds_per_step_before"])
        facts["before the probe"] = f"{before[0]} at the peak, {before[1]} a step"
    facts |= _format_parallel(result["parallel"])
    if result["made_up_text"]:
        facts["note"] = "without data.corpus the plan is for random text"
    for number, warning in enumerate(result["warnings"], 1):
        facts[f"warning {number}"] = warning
    return facts


def _format_parallel(parallel: dict[str, Any] | None) -> dict[str, str]:
    from homespun.report import formats

    if parallel is None:
        return {}
    limit = formats.memory(parallel["limit"])
    place = f"{_pluralize(str(parallel['nodes']), 'node')} of {parallel['gpus']}, device {parallel['device']}"
    chosen = f"{parallel['chosen']} on {place}, {formats.memory(parallel['bandwidth'])} a second"
    if not parallel["kinds"][parallel["chosen"]]["fits"]:
        chosen += f"; does not fit into {limit}: take more devices, or a smaller model"
    facts = {"parallel": chosen}
    for kind, plan in parallel["kinds"].items():
        parts = ", ".join(f"{name} {formats.memory(plan[name])}" for name in _SHARED)
        checkpointing = " with gradient checkpointing" if plan["gradient_checkpointing"] else ""
        sent, step = formats.memory(plan["communicated_bytes"]), formats.duration(plan["seconds_per_step"])
        rows, rate = plan["micro_batch_size"], formats.count(round(plan["tokens_per_second"]))
        peak = f"{formats.memory(plan['peak'])} of {limit} a device, {rows} rows{checkpointing}"
        facts[f"parallel {kind}"] = f"{peak}: {parts}; sends {sent} a step of {step}, {rate} tokens/s"
        if "training_seconds" in plan:
            hours, cost = formats.count(plan["device_hours"]), plan["cost"]
            facts[f"all steps {kind}"] = f"{formats.duration(plan['training_seconds'])}, {hours} hours of a device"
            facts[f"all steps {kind}"] += "" if cost is None else f", price {formats.count(cost)}"
    return facts


def _format_budget(totals: dict[str, Any]) -> str:
    from homespun.report import formats

    steps, tokens = _pluralize(f"{totals['steps']:,}", "step"), _pluralize(formats.count(totals["tokens"]), "token")
    return f"{steps}, {tokens} in {formats.duration(totals['seconds'])}"


def _pluralize(number: str, noun: str) -> str:
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"


_SHARED = ("weights", "gradients", "optimizer", "buffers", "activations")
_MEMORY = ("weights", "gradients", "optimizer", "activations", "process")
