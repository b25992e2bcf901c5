"""Stages of a comparison as tasks of Ray, on this machine or on several that share the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from homespun.compare.executor import START, Command, Outcome, Process, Running
from homespun.io.cluster import connect

_POLL = 0.2  # seconds between polls of a process


class Cluster:
    """A Ray cluster: that of ``RAY_ADDRESS``, one that this process has joined, or a new local one.

    Args:
        slots: tasks at a time, by default one for each node. Each gets an equal share of the processors, and a GPU if
            there are enough.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, slots: int | None = None) -> None:
        self._ray = ray = connect()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        resources = ray.cluster_resources()
        self.slots = slots or max(1, len(nodes))
        most = min(node["Resources"].get("CPU", 1.0) for node in nodes)
        options = {
            "num_cpus": max(1, min(int(most), int(resources.get("CPU", 1.0) // self.slots))),
            "num_gpus": 1 if resources.get("GPU", 0) >= self.slots else 0,
            "max_retries": 0,  # a failed trial is reported; the next attempt resumes from its checkpoint
        }
        self._task = ray.remote(**options)(run_command)

    def start(self, command: Command) -> Running:
        """Start a task; its process ends with it."""
        arguments, log = list(command.arguments), str(command.log.absolute())
        reference = self._task.remote(arguments, log, dict(command.environment), str(command.folder))
        return _Remote(self._ray, reference)


def run_command(arguments: list[str], log: str, environment: Mapping[str, str], folder: str) -> dict[str, object]:
    """Run one command in a worker of the cluster; returns the `Outcome` as a dict.

    A cancelled task lets its command write a checkpoint.
    """
    import time

    command = Command(tuple(arguments), Path(log), environment, Path(folder))
    process = Process(command, START, environment)
    while (outcome := process.poll()) is None:
        try:
            time.sleep(_POLL)
        except KeyboardInterrupt:
            process.stop()
    return asdict(outcome)


class _Remote:
    """A task of the cluster."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray = ray
        self._reference = reference

    def poll(self) -> Outcome | None:
        """Outcome, or None while the task runs or waits for a worker."""
        done, _ = self._ray.wait([self._reference], timeout=0)
        if not done:
            return None
        try:
            return Outcome(**self._ray.get(self._reference))
        # of the task, its worker or its machine
        except (self._ray.exceptions.RayError, OSError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return Outcome(why=f"{type(error).__name__} of Ray: {lines[-1] if lines else 'without a message'}")

    def stop(self) -> None:
        """Cancel the task; its command writes a checkpoint."""
        self._ray.cancel(self._reference, force=False)

    def kill(self) -> None:
        """Cancel the task by force."""
        if self.poll() is None:
            self._ray.cancel(self._reference, force=True)
