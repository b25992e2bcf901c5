"""Long Range Arena on tiny data: every task, resuming, errors."""

import csv
import json
import random
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import benchmarks.lra.train as module
import numpy as np
import pytest
from benchmarks.__main__ import benchmarks, main
from benchmarks.lra import run as run_lra
from benchmarks.lra.settings import MODELS, PUBLISHED, SETTINGS, TASKS
from benchmarks.lra.train import lra, lra_recipe, scoreboard

from homespun.commands.predict import evaluate
from homespun.errors import NotFinite, UserError

SMALL = (
    *("model.num_hidden_layers=1", "model.hidden_size=16", "model.num_attention_heads=2"),
    *("model.intermediate_size=23", "train.batch_size=13", "train.budget.steps=3"),
)
LISTOPS = (
    *("task.train_rows=60", "task.validation_rows=17", "task.test_rows=19", "task.length=64"),
    *("task.max_depth=4", "task.max_arguments=3", "task.min_length=5", "task.max_length=61"),
)


def run(*words: str | Path) -> dict[str, Any]:
    return run_lra([*map(str, words)])


def check(result: dict[str, Any], out: Path, models: list[str]) -> None:
    assert [model["name"] for model in result["models"]] == models
    for model in result["models"]:
        folder = out / "trials" / model["name"]
        assert 0 <= model["accuracy"] <= 1
        assert all(model[key] > 0 for key in ("parameters", "seconds_per_step", "peak_bytes", "steps"))
        assert (folder / "model" / "homespun.json").is_file()
        assert json.loads((folder / "result.json").read_text())["test"]["accuracy"] == model["accuracy"]
    assert json.loads((out / "result.json").read_text())["models"] == result["models"]


def test_listops_from_the_command_and_going_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "lra"
    command = ("listops", *SMALL, *LISTOPS, "--out", out)
    first = run(*command, "--models", "full")
    check(first, out, ["full"])
    assert first["rows"] == {"train": 60, "validation": 17, "test": 19}
    assert first["truncated"] == 0
    lines = [line for file in (out / "data").iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == 60 + 17 + 19 + 3
    assert len(set(lines)) == 60 + 17 + 19 + 1  # one heading, and no expression twice

    trained: list[str] = []
    train = module._train
    monkeypatch.setattr(module, "_train", lambda *given: trained.append(given[2].path.name) or train(*given))
    second = run(*command, "--models", "full,local")
    check(second, out, ["full", "local"])
    assert trained == ["local"]
    assert second["models"][0] == first["models"][0]

    longer = run(*command, "train.budget.steps=5", "--models", "full,local")  # a larger budget: all go on under it
    assert trained == ["local", "full", "local"]
    assert [model["steps"] for model in longer["models"]] == [5, 5]
    with pytest.raises(UserError, match=r"task\.seed"):
        run(*command, "task.seed=1", "--models", "full")
    metrics = evaluate(out / "trials" / "full", [str(out / "data" / "test.tsv")])
    assert metrics["accuracy"] == longer["models"][0]["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["text", "listops"])  # of two classes and of ten
def test_a_model_that_diverges_does_not_cost_the_others_their_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, task: str
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for part, rows in (("train", 41), ("test", 23)):
        write(data / f"{part}.csv", texts(rows, random.Random(2)))
    own = (*LISTOPS, "--models", "full,local") if task == "listops" else ("task.text=text1", "task.length=37")
    more = () if task == "listops" else ("--data", data, "--models", "full,local")
    command = (task, *SMALL, "train.budget.steps=1", *own, *more, "--out", out)
    broken = "full.train.optimizer.learning_rate=1e20"
    result = run(*command, broken)
    assert [(model["accuracy"] is None, model["end"]) for model in result["models"]] == [
        (True, "not_finite"),
        (False, "budget"),
    ]
    (message,) = caplog.messages
    assert re.search(r"^full .*step 1; .*train\.optimizer\.learning_rate or train\.max_grad_norm", message)
    scores, costs, published = scoreboard(result)
    assert scores.cells()[0][1] == "–"
    assert costs.cells()[0][-1] == "not finite"
    assert published.cells()[0][0] == ("reformer" if task == "listops" else "linear transformer")
    assert not (out / "trials" / "full" / "result.json").exists()  # the next call tries it again
    shutil.rmtree(out / "trials" / "full")
    again = run(*command)  # the folder is not held to what was set for one model
    assert [model["end"] for model in again["models"]] == ["budget", "budget"]


def test_a_model_that_breaks_on_the_test_rows_alone_has_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = module._measure

    def broken(model: Any, rows: Any, *others: Any, **more: Any) -> Any:
        if len(rows) == 19:
            raise NotFinite("of the test rows")
        return measure(model, rows, *others, **more)

    monkeypatch.setattr(module, "_measure", broken)
    result = lra("listops", tmp_path / "out", models=["full"], overrides=[*SMALL, *LISTOPS])
    assert (result["models"][0]["accuracy"], result["models"][0]["end"]) == (None, "not_finite")


@pytest.mark.slow
def test_models_finished_before_stay_in_the_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    settings = [*SMALL, *LISTOPS, "train.budget.steps=1"]
    of_one = ["linformer.model.attention.k=17", "bigbird.model.hidden_size=18"]
    first = lra("listops", out, models=["bigbird", "linformer", "local"], overrides=[*settings, *of_one])
    second = lra("listops", out, models=["reformer", "full"], overrides=settings)
    assert [model["name"] for model in second["models"]] == ["reformer", "full", "local", "linformer"]
    assert second["models"][2:] == first["models"][:0:-1]
    assert json.loads((out / "result.json").read_text())["models"] == second["models"]
    assert [row[0] for row in scoreboard(second)[0].rows][:4] == ["reformer", "full", "local", "linformer"]
    (message,) = caplog.messages
    assert str(out / "trials" / "bigbird") in message
    caplog.clear()
    longer = lra("listops", out, models=["full"], overrides=[*settings[:-1], "train.budget.steps=2"])
    assert [model["name"] for model in longer["models"]] == ["full"]
    assert len(caplog.messages) == 4  # of which no other went on


def texts(rows: int, draw: random.Random) -> list[dict[str, str]]:
    found = []
    for number in range(rows):
        letters = "abcdé" if number % 2 else "uvwxy"
        words = [["".join(draw.choices(letters, k=5)) for _ in range(draw.randint(2, 9))] for _ in range(2)]
        found.append({"text1": " ".join(words[0]), "text2": " ".join(words[1]), "label": str(number % 2)})
    return found


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


@pytest.mark.parametrize(("task", "columns"), [("text", ["task.text=text1"]), ("retrieval", [])])
def test_bytes_of_one_text_and_of_two(tmp_path: Path, task: str, columns: list[str]) -> None:
    draw = random.Random(0)
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for part, rows in (("train", 67), ("test", 29)):
        write(data / f"pairs_{part}.csv", texts(rows, draw))
    more = ["task.length=41", "task.files.train_rows=53", *columns]
    result = run(task, *SMALL, *more, "--data", data, "--models", "full", "--out", out)
    check(result, out, ["full"])
    assert result["rows"] == {"train": 53, "validation": 7, "test": 29}
    assert result["truncated"] > 0
    assert result["majority"] == pytest.approx(0.5, abs=0.05)


def test_pixels(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    draw = np.random.default_rng(0)
    for part, rows in (("train", 60), ("test", 30)):
        labels = np.arange(rows) % 3
        images = (draw.integers(0, 50, (rows, 5, 7)) + 90 * labels[:, None, None]).astype(np.uint8)
        np.savez(data / f"{part}.npz", images=images, labels=labels)
    result = run("pixels", *SMALL, "task.length=37", "--data", data, "--models", "full", "--out", out)
    check(result, out, ["full"])
    assert result["labels"] == ["0", "1", "2"]
    with pytest.raises(UserError, match=r" 35 pixels .*task\.length=36.* 37"):
        lra("pixels", tmp_path / "short", models=["full"], data=data, overrides=[*SMALL, "task.length=36"])


def test_training_beats_the_majority_class(tmp_path: Path) -> None:
    rows = texts(200, random.Random(1))
    data = tmp_path / "data"
    data.mkdir()
    write(data / "train.csv", rows[:150])
    write(data / "test.csv", rows[150:])
    steps = ["task.text=text1", "task.length=64", "train.budget.steps=30", "train.optimizer.learning_rate=1e-2"]
    result = lra("text", tmp_path / "out", models=["full"], data=data, overrides=[*SMALL, *steps])
    assert result["models"][0]["accuracy"] > 0.9


@pytest.mark.parametrize("task", TASKS)
def test_settings_are_complete(task: str) -> None:
    recipe = lra_recipe(task)
    assert recipe.task.kind == task
    assert recipe.model.max_position_embeddings == recipe.task.length
    assert recipe.model.vocab_size == recipe.task.tokenizer().vocab_size
    assert recipe.train.budget.steps
    assert recipe.objective.kind == ("retrieval" if task == "retrieval" else "classification")


def test_every_model_has_a_published_score_of_every_task() -> None:
    assert set(SETTINGS) == set(TASKS)
    assert set(MODELS) <= set(PUBLISHED)
    assert all(set(scores) == set(TASKS) for scores in PUBLISHED.values())


@pytest.mark.parametrize("model", MODELS)
def test_models_differ_in_their_attention_alone(model: str) -> None:
    changed = lra_recipe("listops", model=model).model_dump()
    plain = lra_recipe("listops").model_dump()
    changed["model"].pop("attention"), plain["model"].pop("attention")
    assert changed == plain


def test_an_override_for_one_model() -> None:
    overrides = ["longformer.model.attention.global_tokens=null", "train.seed=7"]
    changed = lra_recipe("listops", overrides, model="longformer")
    assert changed.model.attention.model_dump()["global_tokens"] is None
    assert changed.train.seed == 7
    assert lra_recipe("listops", overrides, model="bigbird").model == lra_recipe("listops", model="bigbird").model


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("listop",), "unknown task 'listop'; did you mean 'listops'?"),
        (("listops", "--models", "ful"), "unknown model 'ful'; did you mean 'full'?"),
        (("listops", "task.rows=3"), "unknown key 'task.rows'"),
        (("listops", "train.processes=2"), "train.processes=1"),
        (("text", "--models", "full"), "give --data FOLDER"),
        (("text", "--models", "full", "--data", "nowhere"), "nowhere is not"),
        (("listops", "--models", "full", "task.length=99"), "length=99 "),
        (
            ("listops", *SMALL, *LISTOPS, "--models", "full,local", "performer.model.attention.num_features=3"),
            "performer.model.attention.num_features=3 ",
        ),
        (("text", "task.length=16"), "linformer: k=256 "),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError) as caught:
        run(*words, "--out", tmp_path / "out")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()  # nothing is in the way of the right command


def test_the_benchmark_is_listed_and_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert "lra" in benchmarks()
    assert main(["lra", "listop"]) == 2
    assert "did you mean 'listops'?" in capsys.readouterr().err


def test_the_documented_settings_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lra.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = [shlex.split(line)[4:] for line in page.splitlines() if line.startswith("python -m benchmarks lra ")]
    assert {task for task, *_ in commands} == set(TASKS)
    for task, *words in commands:
        settings = [word for word in words if "=" in word]
        assert all(lra_recipe(task, settings, model=model) for model in MODELS)
