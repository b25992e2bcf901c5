"""What becomes of memory that is freed."""

from __future__ import annotations

import platform
import resource

import psutil
import pytest
import torch

from homespun.training.memory import give_back_freed_memory, keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep freed memory")
def test_freed_memory_is_used_again() -> None:
    keep_freed_memory()
    size = 64 * 2**20
    for _ in range(8):  # where the heap has holes, a few are new
        torch.ones(size, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(size, dtype=torch.uint8)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < size // resource.getpagesize() // 4
    held = psutil.Process().memory_info().rss
    give_back_freed_memory()
    assert psutil.Process().memory_info().rss < held - size // 2
