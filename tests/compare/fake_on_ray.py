"""What `homespun.compare.cluster.run_command` does, with the stand-in for the command."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import comparing
import killed
import ray

from homespun.compare import cluster
from homespun.compare.store import Store

_run = cluster.run_command


def run_command(
    arguments: list[str],
    log: str,
    environment: Mapping[str, str],
    folder: str,
    processes: int,
    version: str,
    store: Store | None = None,
) -> dict[str, Any]:
    cluster.START = killed.START if "pretrain" in arguments[:1] and arguments[1] == "any" else comparing.FAKE
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    Path(log).with_name(f"worker-{os.getpid()}.txt").write_text(ray.get_runtime_context().get_node_id())
    scratch = Path(os.environ["FAKE_SCRATCH"], str(os.getpid()))  # of this worker
    scratch.mkdir(exist_ok=True)
    tempfile.tempdir = str(scratch)
    return _run(arguments, log, environment, folder, processes, version, store)
