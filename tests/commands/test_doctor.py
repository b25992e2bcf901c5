import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from homespun.commands import doctor
from homespun.commands.doctor import Check, examine
from homespun.training import devices, precision


@pytest.fixture(autouse=True)
def no_rates_of_a_busy_machine_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def only(check: Iterator[Check]) -> Check:
    (found,) = check
    return found


def test_this_machine_can_work() -> None:
    checks = examine()
    assert not [check for check in checks if check.status == "fail"]
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert {"python", "torch", "memory", "disk", "compiler", "matmul", "attention", "files"} <= set(names)
    for check in checks:
        assert check.detail
        assert "\n" not in check.detail + check.advice
        assert bool(check.advice) == (check.status == "warn")


def test_a_broken_part_is_a_finding_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Check]:
        raise OSError("libsomething.so:\nnot found")
        yield

    monkeypatch.setattr(doctor, "_CHECKS", {"torch": broken, "python": doctor._python})
    assert [(check.name, check.status) for check in examine()] == [("torch", "fail"), ("python", "ok")]
    assert examine()[0].detail == "OSError: libsomething.so: not found"


def test_without_compiler_or_headers_there_is_no_compiling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    check = only(doctor._compiler())
    assert check.status == "warn"
    assert "no C++ compiler" in check.detail
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "no Python.h" in only(doctor._compiler()).detail
    (tmp_path / "Python.h").touch()
    assert only(doctor._compiler()).status == "ok"


def test_more_threads_than_cores_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: usable + 1)
    check = only(doctor._cores())
    assert check.status == "warn"
    assert f"OMP_NUM_THREADS={usable}" in check.advice


def test_little_memory_and_disk_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "COMFORTABLE_MEMORY", psutil.virtual_memory().total + 1)
    monkeypatch.setattr(doctor, "COMFORTABLE_DISK", 2**62)
    assert only(doctor._memory()).status == "warn"
    assert only(doctor._disk()).status == "warn"


def test_wrong_arithmetic_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: right(*a, **k) * 1.001)
    assert only(doctor._attention()).status == "fail"


def test_extras_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    offered = project["optional-dependencies"]
    for_the_project_itself = {"dev", "docs", "peers"}
    assert set(doctor.EXTRAS) == set(offered) - for_the_project_itself
    for extra, (module, _) in doctor.EXTRAS.items():
        assert any(requirement.replace("-", "_").startswith(module) for requirement in offered[extra])
    monkeypatch.setattr(doctor, "EXTRAS", {"wings": ("no_such_module", "flying")})
    advice = "pip install 'homespun[wings]'"  # the module may be one of several packages of the extra
    assert only(doctor._extras()) == Check("extra wings", "warn", "not installed: flying", advice)


@pytest.mark.parametrize(("half", "faster"), [(90.0, False), (200.0, True)])
def test_faster_bfloat16_is_reported(monkeypatch: pytest.MonkeyPatch, half: float, faster: bool) -> None:
    monkeypatch.setattr(devices, "has_bf16", lambda: True)
    monkeypatch.setattr(precision, "product_rates", lambda dtypes, *, size, seconds: [100e9, 1e9 * half])
    detail = only(doctor._matmul()).detail
    assert re.search(rf"100 GFLOP/s in float32 .*1024 x 1024.* {half / 100:.2f} times .*bfloat16", detail)
    assert ("train.precision=auto" in detail) is faster


def test_emulated_bfloat16_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_bf16", lambda: False)
    monkeypatch.setattr(precision, "product_rates", lambda dtypes, *, size, seconds: [100e9] * len(dtypes))
    assert only(doctor._matmul()).detail == "100 GFLOP/s in float32 on the CPU (1024 x 1024), no bfloat16 instructions"
