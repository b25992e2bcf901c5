"""Processes of a data-parallel training, and signals that stop a training after the current step."""

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

from homespun.errors import UserError, shorten_warnings

logger = logging.getLogger(__name__)


class Interruption:
    """Inside ``with``, the first signal sets ``asked``; a second Ctrl-C raises `KeyboardInterrupt`.

    Signals reach the main thread alone: in another thread this does nothing.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._process = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """True after a signal."""
        return self.signal is not None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            # a handler that was not set from Python is None and cannot be set again
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked worker: end it by default
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        logger.warning("stopping after this step, with a checkpoint; Ctrl-C once more stops at once")


_POLL_SECONDS = 0.2
_GRACE_SECONDS = 10.0  # for the others to end after one failed, before SIGTERM and again before SIGKILL
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_TRACEBACK_CHARACTERS = 4000  # those of all processes fit into a pipe


def is_launched() -> bool:
    """True in one of several processes of ``torchrun``, ``accelerate launch`` or `launch`."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def launch(count: int, function: Callable[..., object], *arguments: object) -> None:
    """Call ``function(*arguments)`` in ``count`` new CPU processes, joined to a group by `DistributedContext.join`.

    Each has an equal part of this process's threads. They use the loopback interface; warnings come from the first
    alone. SIGINT and SIGTERM are passed on; a second Ctrl-C ends all at once. None outlives the call.

    Args:
        count: processes.
        function: of the top level of a module: processes are spawned.
        arguments: picklable.

    Raises:
        UserError: of the first process that failed, or a process was killed.
        RuntimeError: with the traceback of any other exception.
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
    in_main_thread = threading.current_thread() is threading.main_thread()
    # children inherit it, so that Ctrl-C in a terminal does not reach them while they import
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_main_thread else None
    start: Callable[..., ProcessContext] = start_processes
    try:
        return start(_child, (errors, function, arguments), nprocs=count, join=False, start_method="spawn")
    finally:
        if in_main_thread:
            signal.signal(signal.SIGINT, before)


def _wait(started: ProcessContext, interruption: Interruption) -> None:
    passed_on = False
    while not started.join(timeout=_POLL_SECONDS, grace_period=_GRACE_SECONDS):
        if interruption.asked and not passed_on:
            passed_on = True
            for process in started.processes:
                process.terminate()


def _cause(
    failure: ProcessException, errors: SimpleQueue[BaseException], interruption: Interruption, count: int
) -> BaseException:
    """Exception to raise for the failure of a process."""
    # the first report is of the process that failed by itself: the others lost their connection to it afterwards
    if not errors.empty() and (interruption.asked or not _was_killed(failure)):
        return errors.get()
    if interruption.signal == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)  # as one process would end before its training
    if interruption.asked or not _was_killed(failure):
        return KeyboardInterrupt()
    return UserError(
        f"process {failure.error_index + 1} of {count} was killed ({failure.msg.rpartition(' ')[2]}), perhaps for lack "
        f"of memory; continue with --resume"
    )


def _was_killed(failure: ProcessException) -> bool:
    return isinstance(failure, ProcessExitedException) and failure.exit_code < 0


def _child(
    rank: int, errors: SimpleQueue[BaseException], function: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    if hasattr(os, "setsid"):
        os.setsid()  # signals of the terminal reach the parent alone, which passes each on once
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
    except Exception:  # reported to the parent, which raises it
        text = traceback.format_exc()[-_TRACEBACK_CHARACTERS:]
        errors.put(RuntimeError(f"process {rank + 1} failed:\n{text}"))
        sys.exit(1)
