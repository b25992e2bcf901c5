"""Ctrl-C and SIGTERM: stop after the current step."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

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
