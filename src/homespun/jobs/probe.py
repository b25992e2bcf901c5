"""``python -m homespun.jobs.probe``: a few real steps in a process of their own, whose memory is then theirs alone.

Reads one JSON object, {recipe, start_from, changes, rows, accumulate, clock, shadow}, and prints one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from homespun.errors import UserError


def main() -> int:
    """The exit code: 2 for a mistake in what was given, as the last line of standard error says."""
    job = json.load(sys.stdin)
    # what a run has loaded besides, a probe must have too, or its memory would be less
    import homespun.jobs.finetune  # noqa: F401
    from homespun.jobs.plan import recipe_work
    from homespun.jobs.recipe import as_recipe
    from homespun.planning.predict import predict
    from homespun.planning.probe import measure
    from homespun.planning.rates import machine_rates
    from homespun.training.devices import Place

    try:
        recipe, source, changes = as_recipe(job["recipe"]), job.get("start_from"), job.get("changes")
        with recipe_work(recipe, start_from=source, changes=changes) as work:
            accumulate = bool(job.get("accumulate"))
            clock = job.get("clock", "wall")
            found = asdict(measure(work.workload, job["rows"], accumulate=accumulate, clock=clock))
            if job.get("shadow"):
                device = Place.here().device
                rates = machine_rates(device)
                prediction = predict(work.workload, job["rows"], rates, device=device, accumulate=accumulate)
                found["shadow_bytes"] = prediction.memory.peak - prediction.memory.process
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
