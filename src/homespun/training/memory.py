"""Peak memory of training."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil
import torch

from homespun.training.malloc import trim_malloc

_INTERVAL = 0.02  # seconds; reading the resident size takes about 20 microseconds


class PeakMemory:
    """Measure the peak memory inside ``with``.

    On a GPU the allocator's peak. On a CPU a thread samples the resident size of the process after earlier free memory
    was returned; the system's high-water mark would include earlier work.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self._process = psutil.Process()
        self._highest = 0

    @property
    def peak_bytes(self) -> int:
        """The peak so far."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return self._highest

    def __enter__(self) -> PeakMemory:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            trim_malloc()
            self._highest = self._process.memory_info().rss
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(_INTERVAL):
            self._highest = max(self._highest, self._process.memory_info().rss)
