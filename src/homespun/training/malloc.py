"""What the C library does with memory that is freed. Nothing heavy is imported here: a process may yet begin anew.

glibc fits tensors into the holes that others left, and small objects as well. Of these it sets freed ones aside, seven
of each size, and as long as one is set aside the holes beside it stay two: the next tensor of the size that was there
goes elsewhere. A training on a CPU then takes up to twice and a half the memory of its tensors.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Mapping
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MXFAST = -1, -3, 1  # malloc.h
_KEPT_BYTES = 2**31 - 1  # the largest int
_TUNABLES, _NO_TCACHE = "GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"  # read when a process begins
_REEXECED = "HOMESPUN_REEXECED"


def training_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` for a process that trains: with a heap that sets nothing aside, unless it says how many.

    The same where the C library is not glibc. Measured on a CPU, over 20 small models: 1 to 18 % less memory at the
    peak, interpreter and libraries included, in the same time; a larger Reformer took 716 MB in place of 924.
    Tokenizing takes 6 % more time, so that this is for training alone.
    """
    tunables = environment.get(_TUNABLES, "")
    if _glibc("mallopt") is None or "glibc.malloc.tcache_count" in tunables:
        return dict(environment)
    return {**environment, _TUNABLES: ":".join(filter(None, (tunables, _NO_TCACHE)))}


def reexec_with_tunables() -> None:
    """Put this process in its `training_environment`: it runs again from its first line. Call it first of all."""
    environment = training_environment(os.environ)
    if environment == dict(os.environ) or _REEXECED in os.environ:
        return
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment | {_REEXECED: "1"})
    except OSError:  # a system that does not let it: it takes more memory then
        return


def disable_malloc_trim() -> None:
    """Let the C library keep up to 2 GB of freed memory for the next tensors, in place of giving each back at once.

    Tensors above some megabytes are else fresh pages every time, which the kernel fills with zeros when they are first
    touched. Measured on a CPU: 4 % of the time of a small ELECTRA step (23,000 page faults to none), a quarter of that
    of BigBird attention at 4,096 tokens; the same peak within 2 %. Does nothing where the C library is not glibc.

    And set none of the smallest blocks aside, which is the part of a `training_environment` that a running process may
    still be told.
    """
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MXFAST, 0)


def trim_malloc() -> None:
    """The opposite, once: what is free now no longer counts as this process's."""
    gc.collect()
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _glibc(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
