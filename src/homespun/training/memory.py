"""How much memory training takes: the peak above what was held before."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil
import torch

_INTERVAL = 0.02  # seconds; reading the resident size takes some 20 microseconds


class PeakMemory:
    """Measures between entering and leaving ``with``.

    On a GPU it is the allocator's own peak. On a CPU a thread samples the resident size of this process: the system's
    own high-water mark cannot be set back, and would tell of the corpus building that went before.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self._process = psutil.Process()
        self._before = 0
        self._highest = 0

    @property
    def peak_bytes(self) -> int:
        """The peak so far."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return max(0, self._highest - self._before)

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._before = self._highest = self._process.memory_info().rss
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(_INTERVAL):
            self._highest = max(self._highest, self._process.memory_info().rss)
