"""Freed memory, measured in a new process."""

import json
import os
import platform
import subprocess
import sys
import warnings
from typing import Any

import pytest

from homespun import cli
from homespun.training.malloc import training_environment

NO_TCACHE = "glibc.malloc.tcache_count=0"
with_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")

SCRIPT = """
import resource, psutil, torch
from homespun.training.malloc import trim_malloc, disable_malloc_trim

SIZE = 64 * 2**20
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
resident = lambda: psutil.Process().memory_info().rss
disable_malloc_trim()
for _ in range(4):  # the first ones
    torch.ones(SIZE, dtype=torch.uint8)
before = faults()
for _ in range(20):
    torch.ones(SIZE, dtype=torch.uint8)
assert faults() - before < 5 * SIZE // resource.getpagesize(), faults() - before
held = resident()
trim_malloc()
assert resident() < held - SIZE // 2, (held, resident())
"""


@with_glibc
def test_freed_memory_is_used_again_and_given_back_when_asked() -> None:
    environment = training_environment(os.environ)  # else glibc takes up to a dozen, in as many places
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@with_glibc
@pytest.mark.parametrize(
    ("tunables", "then"),
    [
        ({}, NO_TCACHE),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, f"glibc.malloc.hugetlb=1:{NO_TCACHE}"),
        ({"GLIBC_TUNABLES": NO_TCACHE}, NO_TCACHE),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=3"}, "glibc.malloc.tcache_count=3"),
    ],
)
def test_tunables_are_extended(tunables: dict[str, str], then: str) -> None:
    assert training_environment({"HOME": "/there"} | tunables) == {"HOME": "/there", "GLIBC_TUNABLES": then}


REEXEC_SCRIPT = """
import json, os, sys
from homespun.training.malloc import reexec_with_tunables

print(json.dumps([os.getpid(), sys.argv, os.environ.get("GLIBC_TUNABLES"), sys.flags.utf8_mode]), flush=True)
reexec_with_tunables()
"""


def lines_of(environment: dict[str, str]) -> list[Any]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "HOMESPUN_"))}
    command = [sys.executable, "-X", "utf8", "-c", REEXEC_SCRIPT, "one argument", "--two=2"]
    done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@with_glibc
def test_reexec_runs_once_and_keeps_arguments_and_pid() -> None:
    first, second = lines_of({})
    assert second == [first[0], ["-c", "one argument", "--two=2"], NO_TCACHE, 1]
    assert first == [first[0], ["-c", "one argument", "--two=2"], None, 1]


@with_glibc
def test_no_reexec_with_the_tunable_set() -> None:
    assert len(lines_of({"GLIBC_TUNABLES": NO_TCACHE})) == 1


@with_glibc
def test_no_second_reexec() -> None:
    assert len(lines_of({"HOMESPUN_REEXECED": "1"})) == 1


@pytest.mark.parametrize(("verb", "expected"), [("pretrain", 1), ("distill", 1), ("corpus", 0), ("--help", 0)])
def test_training_commands_reexec(verb: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reexecs = []
    monkeypatch.setattr(sys, "argv", ["homespun", verb])
    monkeypatch.setattr(cli, "reexec_with_tunables", lambda: reexecs.append(verb))
    monkeypatch.setattr(cli, "app", lambda **_: None)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # which it changes, as it does this
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    with pytest.raises(SystemExit):
        cli.main()
    assert len(reexecs) == expected
