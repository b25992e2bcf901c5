"""Data-parallel processes, and signals that stop a training after the current step."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from types import FrameType, TracebackType
from typing import Any

import torch
from accelerate.utils import patch_environment
from accelerate.utils.other import get_free_port
from torch import multiprocessing
from torch.multiprocessing.spawn import ProcessContext, ProcessException, ProcessExitedException, start_processes

from homespun.errors import UserError, describe_system_error, shorten_warnings
from homespun.io.signals import ignored_interrupts

logger = logging.getLogger(__name__)


class Interruption:
    """Context manager: the first SIGINT or SIGTERM sets ``requested``, a second Ctrl-C raises `KeyboardInterrupt`.

    Has no effect outside the main thread, the only one that receives signals.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._process = os.getpid()
        self._handlers: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """True after a signal."""
        return self.signal is not None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            # a handler that was not set from Python is None and cannot be set again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked worker: default action
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        logger.warning("stopping after this step with a checkpoint; press Ctrl-C again to stop immediately")


_POLL_SECONDS = 0.2
_GRACE_SECONDS = 10.0  # after a process failed: before SIGTERM to the others, and before SIGKILL
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_TRACEBACK_CHARACTERS = 4000  # so that the tracebacks of all processes fit into a pipe


def is_launched() -> bool:
    """True in one of several processes of ``torchrun``, ``accelerate launch`` or `launch`."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def launch(count: int, function: Callable[..., object], *arguments: object) -> None:
    """Call ``function(*arguments)`` in ``count`` new CPU processes that form a process group.

    The processes join by `DistributedContext.join`, share the threads of this process equally, and communicate over the
    loopback interface. Only the first prints warnings. SIGINT and SIGTERM are forwarded; a second Ctrl-C kills all
    processes. No process outlives the call.

    Args:
        count: number of processes.
        function: importable, for spawned processes.
        arguments: picklable arguments of ``function``.

    Raises:
        UserError: raised by the first process that failed, or a process was killed.
        RuntimeError: another exception of a process, with its traceback.
        KeyboardInterrupt: the processes were interrupted before they could save a checkpoint.
    """
    context = multiprocessing.get_context("spawn")
    errors: SimpleQueue[BaseException] = context.SimpleQueue()
    environment = {
        "world_size": count,
        "local_world_size": count,
        "master_addr": "127.0.0.1",
        "master_port": get_free_port(),
        "accelerate_use_cpu": "true",
        "omp_num_threads": max(1, torch.get_num_threads() // count),
    }
    if (interface := _LOOPBACK.get(sys.platform)) is not None:
        environment["gloo_socket_ifname"] = interface
    failure: ProcessException | None = None
    with Interruption() as interruption:
        with patch_environment(**environment):
            started = _start(count, errors, function, arguments)
        try:
            _wait(started, interruption)
        except ProcessException as error:
            failure = error
        finally:
            for process in started.processes:
                if process.is_alive():
                    process.kill()
                process.join()
    if failure is not None:
        raise _cause(failure, errors, interruption, count)


def _start(
    count: int, errors: SimpleQueue[BaseException], function: Callable[..., object], arguments: tuple[object, ...]
) -> ProcessContext:
    start: Callable[..., ProcessContext] = start_processes
    with ignored_interrupts():  # the children would otherwise get the Ctrl-C of a terminal while they import
        return start(_child, (errors, function, arguments), nprocs=count, join=False, start_method="spawn")


def _wait(started: ProcessContext, interruption: Interruption) -> None:
    forwarded = False
    while not started.join(timeout=_POLL_SECONDS, grace_period=_GRACE_SECONDS):
        if interruption.requested and not forwarded:
            forwarded = True
            for process in started.processes:
                process.terminate()


def _cause(
    failure: ProcessException, errors: SimpleQueue[BaseException], interruption: Interruption, count: int
) -> BaseException:
    # the first error is the cause: the other processes failed when they lost the connection
    if not errors.empty() and (interruption.requested or not _was_killed(failure)):
        return errors.get()
    if interruption.signal == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)  # a single process ends the same way before its training
    if interruption.requested or not _was_killed(failure):
        return KeyboardInterrupt()
    return UserError(
        f"process {failure.error_index + 1} of {count} was killed ({failure.msg.rpartition(' ')[2]}), perhaps out of "
        f"memory; continue with --resume"
    )


def _was_killed(failure: ProcessException) -> bool:
    return isinstance(failure, ProcessExitedException) and failure.exit_code < 0


def _child(
    rank: int, errors: SimpleQueue[BaseException], function: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # only the parent gets signals of the terminal, and passes them on
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    shorten_warnings()
    if rank:
        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")
    else:
        logging.getLogger("homespun.training.processes").setLevel(logging.ERROR)  # the parent warns
    try:
        function(*arguments)
    except KeyboardInterrupt:
        sys.exit(130)
    except UserError as error:
        errors.put(error)
        sys.exit(2)
    except Exception as error:  # reported to the parent, which raises it
        if (line := describe_system_error(error)) is not None:
            errors.put(UserError(line))
            sys.exit(2)
        text = traceback.format_exc()[-_TRACEBACK_CHARACTERS:]
        errors.put(RuntimeError(f"process {rank + 1} failed:\n{text}"))
        sys.exit(1)
