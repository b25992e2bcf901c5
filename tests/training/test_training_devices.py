"""What the process is told about its machine."""

from __future__ import annotations

import platform
import resource

import pytest
import torch

from homespun.training.devices import keep_freed_memory


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
