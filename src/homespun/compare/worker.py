"""Entry point ``python -m homespun.compare.worker VERB ...``: a homespun command that ends with its parent process.

The parent keeps the other end of standard input open and writes nothing, so that the input ends when the parent does.
A process that outlived its runner would write into the folder of the next runner.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def exit_with_parent() -> None:
    """End as soon as the parent process ends; on Linux the kernel also sends SIGKILL if this process hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, name="parent", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1):
        pass
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)  # ends the loader processes too
    os._exit(137)


if __name__ == "__main__":
    exit_with_parent()
    runpy.run_module("homespun", run_name="__main__", alter_sys=True)
