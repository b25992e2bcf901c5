"""``python -m homespun.compare.worker VERB ...``: the command homespun, in a process that ends when its starter does.

Whoever starts it keeps the other end of its standard input open, and writes nothing: the end of that input is the end
of its starter, however that came. A process that outlives its runner would go on writing where the next runner works.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def follow_starter() -> None:
    """End at once when the starter does. On Linux the system sees to it too, should this process not get to run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, name="starter", daemon=True).start()


def _watch() -> None:
    while os.read(0, 1):
        pass
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)  # with the processes that prepare its batches
    os._exit(137)


if __name__ == "__main__":
    follow_starter()
    runpy.run_module("homespun", run_name="__main__", alter_sys=True)
