"""Freed memory, measured in a new process, and the peak of memory."""

import errno
import platform
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

from homespun.training.devices import PeakMemory

SCRIPT = """
import resource, psutil, torch
from homespun.training.devices import trim_malloc, disable_malloc_trim

SIZE = 64 * 2**20
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
resident = lambda: psutil.Process().memory_info().rss
disable_malloc_trim()
for _ in range(16):  # glibc takes up to a dozen new blocks first
    torch.ones(SIZE, dtype=torch.uint8)
before = faults()
for _ in range(20):
    torch.ones(SIZE, dtype=torch.uint8)
assert faults() - before < 5 * SIZE // resource.getpagesize(), faults() - before
held = resident()
trim_malloc()
assert resident() < held - SIZE // 2, (held, resident())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again_and_given_back_when_asked() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_peak_memory_goes_on_without_free_files(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def fail(_: psutil.Process) -> None:
        failed.set()
        raise OSError(errno.EMFILE, "Too many open files")

    with PeakMemory(torch.device("cpu")) as memory:
        monkeypatch.setattr(psutil.Process, "memory_info", fail)
        assert failed.wait(20)
        time.sleep(0.01)
        assert memory._thread.is_alive()
    assert memory.peak_bytes > 0
