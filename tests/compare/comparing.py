"""What the tests of comparisons share: a recipe from a mapping, and a runner whose stages are not trainings."""

import json
import sys
from pathlib import Path
from typing import Any

from homespun.compare.executor import LocalExecutor
from homespun.compare.folder import open_records
from homespun.compare.recipe import CompareRecipe
from homespun.compare.runner import Runner
from homespun.compare.trials import trials
from homespun.config import validate
from homespun.report.console import Display

FAKE = (sys.executable, "-S", str(Path(__file__).with_name("fake_homespun.py")))


def comparison(**tree: Any) -> CompareRecipe:
    return validate(CompareRecipe, {"kind": "compare", **tree}, source="test")


def runner_of(recipe: CompareRecipe, out: Path, *, slots: int = 1, retry_failed: bool = False) -> Runner:
    runner = Runner(
        out,
        recipe,
        LocalExecutor(slots, start=FAKE),
        Display(json=True),
        report=lambda folder: folder / "report",
        started=0.0,
    )
    runner.add(open_records(out, recipe, trials(recipe)), retry_failed=retry_failed)
    return runner


def run(recipe: CompareRecipe, out: Path, *, slots: int = 1, retry_failed: bool = False) -> dict[str, Any]:
    runner = runner_of(recipe, out, slots=slots, retry_failed=retry_failed)
    runner.run()
    return runner.close()


def records(out: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(out.glob("trials/*/*/trial.json")):
        found[f"{path.parts[-3]}/{path.parts[-2]}"] = json.loads(path.read_text())
    return found


def calls(out: Path) -> list[str]:
    """Every stage that was started, by its folder below ``trials``, as often as it was."""
    return sorted(
        str(path.parent.relative_to(out)) for path in out.rglob("calls.txt") for _ in path.read_text().splitlines()
    )


def change_record(out: Path, name: str, **values: Any) -> None:
    path = out / "trials" / name / "trial.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
