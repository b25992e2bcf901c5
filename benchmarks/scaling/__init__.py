"""Training in several processes: losses, memory and resuming; killed workers; a store of 10^12 tokens; Ray.

Without options: the losses of 1 process, 2 with DDP, and 2 and 4 with FSDP, see `benchmarks.scaling.losses`.
``--kills``: workers killed under torchrun, see `benchmarks.scaling.kills`. ``--simulate``: a store of up to 10^12
tokens, see `benchmarks.scaling.simulation`. ``--corpus``: a corpus built by workers of Ray, see
`benchmarks.scaling.cluster`. ``--save``: a sharded checkpoint, see `benchmarks.scaling.saving`.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.scaling import cluster, kills, losses, saving, simulation


def run(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help="of each training (default: 20, with --kills 30)")
    parser.add_argument("--kills", type=int, metavar="RUNS", help="trainings under torchrun, one kill in each")
    parser.add_argument("--simulate", action="store_true", help="stores of 100 shards of 10^7 tokens and on")
    parser.add_argument("--shards", type=int, default=100_000, help="of the largest store (default: %(default)s)")
    parser.add_argument("--corpus", type=int, metavar="MEGABYTES", help="text of a corpus built by workers of Ray")
    parser.add_argument("--rounds", type=int, default=2, help="of --corpus; 0: Ray alone, once (default: %(default)s)")
    parser.add_argument("--save", type=int, metavar="MILLIONS", help="parameters of a sharded checkpoint")
    options = parser.parse_args(arguments)
    if options.save:
        return saving.measure(options.save)
    if options.corpus:
        return cluster.measure(options.corpus, options.rounds)
    if options.simulate:
        return simulation.measure(options.shards)
    if options.kills:
        return kills.measure(options.kills, options.steps or 30)
    return losses.measure(options.steps or 20)
