"""What becomes of memory that is freed; in a process of its own, whose heap has no history."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, psutil, torch
from homespun.training.memory import give_back_freed_memory, keep_freed_memory

SIZE = 64 * 2**20
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
resident = lambda: psutil.Process().memory_info().rss
keep_freed_memory()
for _ in range(8):  # a heap with holes takes a few
    torch.ones(SIZE, dtype=torch.uint8)
before = faults()
for _ in range(20):
    torch.ones(SIZE, dtype=torch.uint8)
assert faults() - before < 5 * SIZE // resource.getpagesize(), faults() - before
held = resident()
give_back_freed_memory()
assert resident() < held - SIZE // 2, (held, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep freed memory")
def test_freed_memory_is_used_again_and_given_back_when_asked() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
