"""What the machine spends, where it tells: the counters of the processor package and of NVIDIA's GPUs."""

from __future__ import annotations

import ctypes
from pathlib import Path

_POWERCAP = Path("/sys/class/powercap")


class Meter:
    """Counts from when it is made: processors by RAPL (which most systems let only root read), GPUs by NVML."""

    def __init__(self, powercap: Path = _POWERCAP) -> None:
        self._packages = {
            zone: energy for zone in _zones(powercap) if (energy := _number(zone / "energy_uj")) is not None
        }
        self._gpus = _gpu_millijoules()

    def joules(self) -> float | None:
        """Spent since; None where nothing tells."""
        spent = 0.0
        for zone, before in self._packages.items():
            now = _number(zone / "energy_uj")
            if now is None:
                return None
            if now < before:  # the counter begins anew at its range
                now += _number(zone / "max_energy_range_uj") or 0
            spent += (now - before) / 1e6
        if self._gpus:
            spent += (sum(_gpu_millijoules()) - sum(self._gpus)) / 1e3
        return spent if self._packages or self._gpus else None


def _zones(powercap: Path) -> list[Path]:
    """One a processor package; zones below one are part of it."""
    try:
        return sorted(zone for zone in powercap.glob("intel-rapl:*") if zone.name.count(":") == 1)
    except OSError:
        return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _gpu_millijoules() -> list[int]:
    """Of each GPU, since its driver was loaded; none where there is no such driver, or its GPUs do not count."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    if nvml.nvmlInit_v2() != 0:
        return []
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        found = []
        for index in range(count.value):
            handle, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
            if (
                nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
                and nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy)) == 0
            ):
                found.append(energy.value)
        return found
    finally:
        nvml.nvmlShutdown()
