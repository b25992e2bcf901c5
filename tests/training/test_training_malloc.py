"""What becomes of memory that is freed; in a process of its own, whose heap has no history."""

from __future__ import annotations

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

NONE_ASIDE = "glibc.malloc.tcache_count=0"
with_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")

SCRIPT = """
import resource, psutil, torch
from homespun.training.malloc import give_back_freed_memory, keep_freed_memory

SIZE = 64 * 2**20
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
resident = lambda: psutil.Process().memory_info().rss
keep_freed_memory()
for _ in range(4):  # the first ones
    torch.ones(SIZE, dtype=torch.uint8)
before = faults()
for _ in range(20):
    torch.ones(SIZE, dtype=torch.uint8)
assert faults() - before < 5 * SIZE // resource.getpagesize(), faults() - before
held = resident()
give_back_freed_memory()
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
    ("told", "then"),
    [
        ({}, NONE_ASIDE),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, f"glibc.malloc.hugetlb=1:{NONE_ASIDE}"),
        ({"GLIBC_TUNABLES": NONE_ASIDE}, NONE_ASIDE),
        ({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=3"}, "glibc.malloc.tcache_count=3"),
    ],
)
def test_what_is_told_of_the_heap_before_a_process_begins(told: dict[str, str], then: str) -> None:
    assert training_environment({"HOME": "/there"} | told) == {"HOME": "/there", "GLIBC_TUNABLES": then}


ANEW = """
import json, os, sys
from homespun.training.malloc import begin_anew_to_train

print(json.dumps([os.getpid(), sys.argv, os.environ.get("GLIBC_TUNABLES"), sys.flags.utf8_mode]), flush=True)
begin_anew_to_train()
"""


def lines_of(environment: dict[str, str]) -> list[Any]:
    told = {name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "HOMESPUN_"))}
    command = [sys.executable, "-X", "utf8", "-c", ANEW, "one argument", "--two=2"]
    done = subprocess.run(command, env=told | environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@with_glibc
def test_a_process_begins_anew_once_with_its_own_words_and_number() -> None:
    first, second = lines_of({})
    assert second == [first[0], ["-c", "one argument", "--two=2"], NONE_ASIDE, 1]
    assert first == [first[0], ["-c", "one argument", "--two=2"], None, 1]


@with_glibc
def test_a_process_that_is_told_enough_does_not_begin_anew() -> None:
    assert len(lines_of({"GLIBC_TUNABLES": NONE_ASIDE})) == 1


@with_glibc
def test_a_system_that_takes_the_setting_away_does_not_make_it_begin_for_ever() -> None:
    assert len(lines_of({"HOMESPUN_BEGUN_ANEW": "1"})) == 1


@pytest.mark.parametrize(("verb", "anew"), [("pretrain", 1), ("distill", 1), ("corpus", 0), ("--help", 0)])
def test_verbs_that_train_begin_anew(verb: str, anew: int, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(sys, "argv", ["homespun", verb])
    monkeypatch.setattr(cli, "begin_anew_to_train", lambda: begun.append(verb))
    monkeypatch.setattr(cli, "app", lambda **_: None)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # which it changes, as it does this
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    with pytest.raises(SystemExit):
        cli.main()
    assert len(begun) == anew
