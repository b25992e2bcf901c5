"""Stages of a comparison as tasks of Ray, on this machine or on several that share a folder or a store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from homespun.compare.executor import START, Command, Outcome, Process, Running
from homespun.compare.store import Store
from homespun.errors import UserError, last_line
from homespun.io.cluster import check_version, connect, refusal
from homespun.io.lock import PATIENCE

logger = logging.getLogger(__name__)

_POLL, _PUBLISH = 0.2, 1.0  # seconds between polls of a process, and between searches for new files to publish
_RESTARTS = 3  # restarts of a stage whose worker or machine was lost
_REFRESH = 60.0  # seconds between downloads of a running stage, for the progress of the comparison
_LEASE = "120"  # seconds after which a file server releases the locks of a lost machine


class Cluster:
    """Executor on a Ray cluster: that of ``RAY_ADDRESS``, a cluster that this process has joined, or a new local one.

    Args:
        slots: number of parallel tasks, by default one for each node that the cluster has at the time. Each gets an
            equal share of the processors.
        gpus: GPUs of a task, all of one node. A task of one GPU runs without it if there are too few.
        store: has the runs, so that workers do not need the folder of the comparison.

    Raises:
        UserError: Ray is not installed, the cluster cannot be reached, or no node has ``gpus`` GPUs.
    """

    def __init__(self, slots: int | None = None, *, gpus: int = 1, store: Store | None = None) -> None:
        self._ray, self._slots, self._gpus, self._store = connect(), slots, gpus, store
        self._records = None if store is None else store.records()
        if gpus > 1 and (most := max((node.get("GPU", 0.0) for node in self._nodes()), default=0.0)) < gpus:
            raise UserError(f"gpus_per_trial={gpus}, and no machine of the cluster has more than {most:.0f}; lower it")

    @property
    def slots(self) -> int:
        """Tasks at a time."""
        return self._slots or max(1, len(self._nodes()))

    def start(self, command: Command) -> Running:
        """Start a task; its process ends with it. If its worker is lost, another one resumes from the checkpoint."""
        self.publish_records()
        command.log.parent.mkdir(parents=True, exist_ok=True)
        command.log.touch()  # a worker that does not see it has another folder
        arguments, log = list(command.arguments), str(command.log.absolute())

        def submit(variables: Mapping[str, str]) -> Any:
            task = self._ray.remote(**self._resources())(run_command)
            environment = {**command.environment, **variables}
            where = (str(command.folder), command.processes)
            return task.remote(arguments, log, environment, *where, version("homespun"), self._store)

        return _Remote(self._ray, submit, command, self._store)

    def publish_records(self) -> None:
        """Write the records of the comparison to the store."""
        if self._records is not None:
            self._records.publish()

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _resources(self) -> dict[str, int]:
        nodes, slots = self._nodes(), self.slots
        processors = [node.get("CPU", 1.0) for node in nodes] or [1.0]
        enough = self._gpus > 1 or sum(node.get("GPU", 0.0) for node in nodes) >= slots
        return {
            "num_cpus": max(1, int(min(*processors, sum(processors) // slots))),
            "num_gpus": self._gpus if enough else 0,
            "max_retries": 0,  # Ray would repeat without end what it has killed because memory ran out
        }


def run_command(
    arguments: list[str],
    log: str,
    environment: Mapping[str, str],
    folder: str,
    processes: int,
    version: str,
    store: Store | None = None,
) -> dict[str, object]:
    """Run one command in a worker of the cluster; returns the `Outcome` as a dict.

    A cancelled task lets its command write a checkpoint. With a store, the command runs in a temporary folder, which is
    published after each checkpoint and at the end.

    Raises:
        UserError: this worker has another version of homespun, or sees neither the folder of the comparison nor the
            store.
    """
    check_version(version)
    command = Command(tuple(arguments), Path(log), environment, Path(folder), processes)
    if store is not None:
        with store.scratch(command) as (moved, publisher):
            return asdict(_run(moved, _PUBLISH, publisher.publish_changes))
    if not Path(log).is_file():
        raise UserError(
            f"a worker does not see {Path(log).parent}; give --out in a folder that all machines share, or --store"
        )
    return asdict(_run(command, _POLL))


def _run(command: Command, seconds: float, publish: Callable[[], None] = lambda: None) -> Outcome:
    process = Process(command, START, command.environment)
    try:
        while (outcome := process.poll()) is None:
            try:
                time.sleep(seconds)
                publish()
            except KeyboardInterrupt:
                process.stop()
    finally:
        process.kill()
    return outcome


class _Remote:
    """Task of the cluster, submitted again if its worker or machine is lost."""

    def __init__(
        self, ray: Any, submit: Callable[[Mapping[str, str]], Any], command: Command, store: Store | None
    ) -> None:
        self._ray, self._submit, self._command, self._store = ray, submit, command, store
        self._reference = submit({})
        self._restarts = _RESTARTS
        self._refreshed = time.monotonic()

    def poll(self) -> Outcome | None:
        """Return the outcome, or None while the task runs or waits for a worker.

        Raises:
            UserError: a worker cannot run any task, or the store cannot be read.
        """
        done, _ = self._ray.wait([self._reference], timeout=0)
        if not done:
            if time.monotonic() >= self._refreshed + _REFRESH:
                try:
                    self._restore()
                except UserError as error:  # only the progress line needs it
                    logger.warning("%s", error)
                self._refreshed = time.monotonic()
            return None
        errors = self._ray.exceptions
        try:
            outcome = Outcome(**self._ray.get(self._reference))
        except (errors.RayError, OSError) as error:
            if isinstance(error, errors.WorkerCrashedError | errors.NodeDiedError) and self._restarts:
                self._restarts -= 1
                logger.warning("the worker that wrote %s was lost; another one resumes its stage", self._command.log)
                self._reference = self._submit({PATIENCE: _LEASE})
                return None
            if isinstance(getattr(error, "cause", None), UserError | RuntimeError):  # an error of the worker process
                raise refusal(error) from error
            return Outcome(why=f"{type(error).__name__} of Ray: {last_line(str(error)) or 'without a message'}")
        self._restore()
        return outcome

    def _restore(self) -> None:
        """Download the newest version of the stage from the store."""
        if self._store is not None:
            self._store.restore(self._store.unit(self._command), self._store.out, checkpoints=False)

    def stop(self) -> None:
        """Cancel the task; its command writes a checkpoint."""
        self._restarts = 0
        self._ray.cancel(self._reference, force=False)

    def kill(self) -> None:
        """Cancel the task by force."""
        self._restarts = 0
        self._ray.cancel(self._reference, force=True)
