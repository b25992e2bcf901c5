"""The wheel: what is in it, and that it runs from where it was installed, not from the checkout."""

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "homespun"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in a folder of its own, its dependencies being those of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    done = subprocess.run([*command, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def run(installed: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        command, cwd=installed, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(path.relative_to(PACKAGE.parent))
        for pattern in ("*.py", "*.yaml", "*.j2", "*.txt", "settings.json", "py.typed", "page/page.*", "page/*.html")
        for path in PACKAGE.rglob(pattern)
    }
    assert "homespun/py.typed" in wanted
    assert wanted <= names, f"missing: {sorted(wanted - names)}"
    strangers = {name for name in names - wanted if not name.startswith("homespun-")}
    assert not strangers
    assert any(name.startswith("homespun/recipes/") and name.endswith(".yaml") for name in names)
    assert any(name.startswith("homespun/report/") and name.endswith(".j2") for name in names)


@pytest.mark.slow
def test_the_metadata_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        (license_name,) = (n for n in archive.namelist() if n.endswith(".dist-info/licenses/LICENSE"))
        assert "Apache License" in archive.read(license_name).decode()
    assert metadata["Name"] == "homespun"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert not [line for line in metadata.get_all("Requires-Dist") if "transformers" in line and "peers" not in line]


@pytest.mark.slow
@pytest.mark.parametrize("start", [[sys.executable, "-m", "homespun"], ["bin/homespun"]])
def test_the_installed_command_answers(installed: Path, start: list[str]) -> None:
    first = str(installed / start[0]) if start[0].startswith("bin/") else start[0]
    done = run(installed, first, *start[1:], "--help")
    assert done.returncode == 0, done.stderr
    for verb in ("quickstart", "tokenizer", "corpus", "pretrain", "finetune", "evaluate", "predict", "recipes"):
        assert verb in done.stdout


@pytest.mark.slow
def test_the_installed_command_finds_its_recipes(installed: Path) -> None:
    code = "import homespun; print(homespun.__file__)"
    assert run(installed, sys.executable, "-c", code).stdout.startswith(str(installed))
    done = run(installed, sys.executable, "-m", "homespun", "recipes", "list", "--json")
    assert done.returncode == 0, done.stderr
    assert "electra-mini" in done.stdout


def test_the_lock_pins_everything_it_needs() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    lines = [line.split() for line in lock if line[:1] != "#"]
    assert all(re.fullmatch("( --hash=sha256:[0-9a-f]{64})+", "".join(f" {one}" for one in line[1:])) for line in lines)
    pins = [pin for pin, *_ in lines]
    assert all(pin.count("==") == 1 and "+" not in pin for pin in pins)
    names = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    assert len(names) == len(pins)
    assert "torch" not in names  # see the Makefile
    assert {"hatchling", "editables", "pytest", "mkdocs-material", "transformers", "tensorboard"} <= names
