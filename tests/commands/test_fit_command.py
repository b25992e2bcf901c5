"""``homespun fit``: the ladder in small, what it leaves, predict and evaluate of every kind of model, refusals."""

import html
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands_world import World, assert_refused, read_lines, write_lines, write_table
from huggingface_hub import ModelCard
from typer.testing import CliRunner

import homespun
from homespun.cli import app
from homespun.data.labels import Labels
from homespun.data.reading import reading
from homespun.errors import StepTooLong, UserError
from homespun.fitting import candidates, ladder, networks
from homespun.fitting.candidates import Clock, average_candidate, candidate, fit_linear_model
from homespun.fitting.card import write_card
from homespun.fitting.fit import fit
from homespun.fitting.inspection import inspect
from homespun.fitting.networks import declared_pooling, fit_frozen, open_source, pretrain_on
from homespun.fitting.results import FitSettings
from homespun.fitting.verdict import candidates_table
from homespun.report.console import Display
from homespun.tasks.text_models import measure, open_text_model, save_text_model
from homespun.text.tokenizer import Tokenizer
from homespun.training.trainer import Interrupted


def words_of(world: World, out: Path, time: str = "55s") -> tuple[str | Path, ...]:
    return ("fit", world.train, "--test", world.test, "--from", world.base, "--time", time, "--out", out)


@pytest.fixture(scope="module")
def fitted(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A fit that starts from the pretrained run of the world, whose last rung is too dear for the time."""
    out = tmp_path_factory.mktemp("fit") / "run"
    return out, world.run(*words_of(world, out))


def test_it_selects_on_validation_and_reports_the_test(fitted: tuple[Path, dict[str, Any]], world: World) -> None:
    out, result = fitted
    names = [one["name"] for one in result["candidates"]]
    assert names == ["constant", "linear", "frozen-1", "average"]
    scores = {one["name"]: one["validation"]["accuracy"] for one in result["candidates"]}
    assert scores[result["selected"]] == max(scores.values())
    assert result["test"]["rows"] == 61
    assert result["test"]["accuracy"] > 0.8
    assert result["interval"][0] < result["test"]["accuracy"] <= result["interval"][1]
    assert result["skipped"]
    assert "fine-tuned" in result["skipped"][0]
    assert json.loads((out / "result.json").read_text())["selected"] == result["selected"]
    metrics = world.run("evaluate", out, "--data", world.test)
    assert metrics["accuracy"] == result["test"]["accuracy"]


def test_the_card_has_the_results_and_no_texts(
    fitted: tuple[Path, dict[str, Any]], world: World, tmp_path: Path
) -> None:
    out, result = fitted
    assert not (out / "hf").exists()  # the network is frozen
    card = ModelCard.load(out / "README.md")
    values = {one.metric_type: one.metric_value for one in card.data.eval_results}
    assert values == {"accuracy": result["test"]["accuracy"], "f1": result["test"]["macro_f1"]}
    assert (card.data.library_name, card.data.pipeline_tag) == ("homespun", "text-classification")
    assert all(name in card.text for name in ("money", "food", "sport", "majority class", "homespun.open"))
    for file in (world.train, world.test):
        sentences = [line.partition(".")[0].strip('"') for line in file.read_text().splitlines()[1:]]
        assert not any(sentence in card.content for sentence in sentences)
    assert str(out.parent) not in card.content
    assert str(world.base) not in card.content


def test_the_card_of_a_folder_for_transformers_and_of_odd_names(
    fitted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, result = fitted
    run, odd = tmp_path / "a: [b] 'c' --- #", "x | y\n---\n# <script>alert(1)</script> ![i](j) `k`"
    (run / "hf").mkdir(parents=True)
    used = result["candidates"][1] | {"name": "finetuned-1", "title": f"{odd}, fine-tuned"}
    described = result | {
        "labels": [odd, "money", "sport"],
        "title": used["title"],
        "candidates": [used, result["candidates"][1] | {"name": "finetuned-2", "title": odd}],
        "never_predicted": [odd],
        "settings": result["settings"] | {"start_from": ["owner/checkpoint", "owner/other"]},
    }
    for name, folder in (("BertModel", run), ("BertForSequenceClassification", run / "hf")):
        (run / "hf" / "config.json").write_text(json.dumps({"architectures": [name]}))
        assert write_card(described, run, open_text_model(out)) == folder / "README.md"
        card = ModelCard.load(folder / "README.md")
        assert card.data.model_name == run.name
        assert card.data.base_model == ["owner/checkpoint"]
        assert "<" not in card.text.replace("\\<", "")
        assert "\n---" not in card.text
        assert "![" not in card.text
        assert ("from transformers import pipeline" in card.text) == (folder != run)
        assert card.data.library_name == ("homespun" if folder == run else "transformers")


def test_predictions_of_files_and_of_texts_agree(
    fitted: tuple[Path, dict[str, Any]], world: World, tmp_path: Path
) -> None:
    out, _ = fitted
    text = "The striker was said to be fit. The goal and the penalty"
    rows = write_lines(tmp_path / "rows.jsonl", [{"sentence": text}])
    summary = world.run("predict", out, "--input", rows, "--out", tmp_path / "p.jsonl")
    (line,) = read_lines(tmp_path / "p.jsonl")
    alone = world.run("predict", out, text)
    assert summary["rows"] == 1
    assert alone["label"] == line["label"] == "sport"
    assert alone["probability"] == pytest.approx(line["probability"])


def test_resume_returns_the_finished_fit_and_refuses_other_settings(
    fitted: tuple[Path, dict[str, Any]], world: World
) -> None:
    out, result = fitted
    again = world.run(*words_of(world, out), "--resume")
    assert again["candidates"] == result["candidates"]
    assert_refused("--resume", "fit", world.train, "--out", out)
    (out / "result.json").rename(out / "kept.json")
    assert_refused("another seed", *words_of(world, out), "--seed", "4", "--resume")
    (out / "kept.json").rename(out / "result.json")


def test_a_stopped_fit_keeps_its_finished_candidates(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, frozen = tmp_path / "run", ladder.fit_frozen
    words = words_of(world, out, "1h")
    monkeypatch.setattr(ladder, "_MIN_NETWORK", 1e6)  # no fine-tuning

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(Interrupted, match="--resume") as stopped:
        patched.setattr(ladder, "average_candidate", stop)
        world.run(*words)
    assert all(str(out / "candidates" / name) in str(stopped.value) for name in ("linear", "frozen-1"))
    assert world.run("predict", out / "candidates" / "linear", "The soup and the bread")["label"] == "food"
    with pytest.raises(UserError, match=f"stopped fit.*{out}/candidates/linear"):
        world.run("predict", out, "The soup and the bread")
    calls: list[object] = []
    monkeypatch.setattr(ladder, "fit_frozen", lambda *args: calls.append(args) or frozen(*args))
    monkeypatch.setattr(ladder.Ladder, "_frozen", lambda *_: 1e6)  # a slower machine
    kept = world.test.read_bytes()
    try:
        world.test.write_bytes(kept + b"Soup and bread for the striker.,food\n")
        assert_refused("other examples", *words, "--resume")
    finally:
        world.test.write_bytes(kept)
    result = world.run(*words, "--resume")
    assert not calls
    assert [one["name"] for one in result["candidates"]] == ["constant", "linear", "frozen-1", "average"]


@pytest.mark.parametrize(("rate", "length"), [(2.0, 256), (1.0, 128), (0.5, 64), (0.4, 64), (0.1, 256)])
def test_inputs_are_shortened_until_fine_tuning_or_the_frozen_encoder_fits(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: float, length: int
) -> None:
    inspection = inspect([str(world.train)], [str(world.test)])
    monkeypatch.setattr(networks, "_measure_rate", lambda stored, inspection, length: rate * 256 / length)
    monkeypatch.setattr(ladder, "_MIN_NETWORK", 1.0)
    source = replace(open_source(str(world.base), inspection), length=256, texts_per_second=rate)
    monkeypatch.setattr(ladder, "_training_cost", lambda: 3.3)
    examples = 3.3 * len(inspection.train) + 1.3 * len(inspection.validation) + 1.3 * len(inspection.test)
    settings = FitSettings(train=[str(world.train)], seconds=10.0)
    made = ladder.Ladder(inspection, tmp_path, settings, [source], Display(json=True), 0.0)
    assert made._affordable(source, 0.6 * examples).length == length


def test_a_checkpoint_that_is_named_twice_is_one() -> None:
    assert FitSettings(train=["t.csv"], start_from=["b", "a", "b"]).start_from == ["b", "a"]


def test_a_time_too_short_for_a_network_still_gives_the_linear_model(world: World, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = homespun.fit(world.train, run, seconds=20)
    assert result["selected"] == "linear"
    assert result["test_from"] == "split"
    assert any("own network" in reason for reason in result["skipped"])
    assert (run / "model" / "linear.json").is_file()
    assert_refused("linear model", "generate", run, "--prompt", "a")


def test_a_network_too_slow_for_a_step_is_skipped(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*_: object, **__: object) -> None:
        (tmp_path / "run" / "pretrained" / "run").mkdir(parents=True)
        raise StepTooLong("train.budget.time=1 s is less than one step")

    monkeypatch.setattr(ladder, "_MIN_NETWORK", 0.1)
    monkeypatch.setattr(ladder, "MIN_CHARACTERS", 1_000)
    monkeypatch.setattr(networks, "pretrain", train)
    result = world.run("fit", world.train, "--time", "30s", "--out", tmp_path / "run")
    assert result["selected"] == "linear"
    assert "give more --time" in result["skipped"][0]
    assert not (tmp_path / "run" / "pretrained" / "run").exists()  # --resume starts it again, with its time limit


@pytest.mark.slow
def test_a_network_slower_than_the_latency_is_distilled(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "_MIN_NETWORK", 8.0)
    seconds = {"network": 40.0, "linear": 50.0, "average": 90.0}
    monkeypatch.setattr(candidates, "measure_latency", lambda model, _: seconds[model.kind])
    result = world.run(*words_of(world, tmp_path / "run", "90s"), "--latency", "20")
    assert [one["name"] for one in result["candidates"]][-1] == "student"
    layers = json.loads((tmp_path / "run/candidates/student/run/result.json").read_text())["distillation"]["layers"]
    assert layers == [0]


def test_the_console_leads_with_the_verdict(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    app(["fit", str(world.train), "--time", "20s", "--out", str(tmp_path / "run")], standalone_mode=False)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "Selected: linear model on TF-IDF n-grams."
    assert "95 % interval" in lines[1]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    table = candidates_table(result)
    for cells in table.cells():
        assert all(f">{html.escape(cell)}</t" in page for cell in cells)
    marks = ("majority class", ">  linear model")
    for mark, cells in zip(marks, table.without("processor time").cells(), strict=True):
        (line,) = (line.replace("\N{NO-BREAK SPACE}", " ") for line in lines if line.strip().startswith(mark))
        assert all(cell.replace("\N{NO-BREAK SPACE}", " ") in line for cell in cells)
    assert any(line.startswith("use: homespun predict") for line in lines)
    assert "task: classification (3 distinct labels)" in printed.err


def test_frozen_encoders_equal_their_stored_models(world: World, tmp_path: Path) -> None:
    inspection = inspect([str(world.train)], [str(world.test)])
    source = open_source(str(world.base), inspection)
    assert 1 < source.tokens_per_word < 5
    model, rate = fit_frozen(source, inspection)
    assert rate > 0
    linear, _ = fit_linear_model(inspection, inspection.train)
    members = {"network": model, "linear": linear}
    both = [candidate(name, name, one, inspection, Clock(0.0, 0.0)) for name, one in members.items()]
    mean = average_candidate(*both, inspection)
    for number, one in enumerate((model, linear, mean.model)):
        assert one is not None
        save_text_model(tmp_path / str(number), one)
        opened = open_text_model(tmp_path / str(number))
        found, expected = (each.outputs(inspection.test).values for each in (opened, one))
        np.testing.assert_allclose(found, expected, atol=1e-5)
        accuracies = [measure(each, inspection.test).metrics["accuracy"] for each in (opened, one)]
        assert accuracies[0] == accuracies[1]


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_frozen_encoder_with_a_label_that_does_not_vary(world: World, tmp_path: Path, everywhere: bool) -> None:
    rows = [
        {
            "text": f"goal {number}" if number % 2 else f"soup {number}",
            "label": ["a" if number % 2 else "b", *["c"] * everywhere],
        }
        for number in range(60)
    ]
    inspection = inspect([str(write_lines(tmp_path / "t.jsonl", rows))], task="multi-label")
    if not everywhere:  # only held-out examples have it
        inspection = replace(inspection, labels=Labels(("a", "b", "c"), multi_label=True))
    model, _ = fit_frozen(open_source(str(world.base), inspection), inspection)
    logits = model.outputs(inspection.validation).values
    assert logits.shape == (len(inspection.validation), 3)
    assert ((logits[:, 2] > 0) == everywhere).all()
    right = [
        (one[0] > one[1]) == ("a" in example.label) for one, example in zip(logits, inspection.validation, strict=True)
    ]
    assert np.mean(right) > 0.7


@pytest.mark.parametrize("recipe", ["spun-encoder", "spun-encoder-decoder"])
def test_a_repetitive_text_has_a_smaller_vocabulary_and_few_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(f"the cat saw {number % 7} dogs" for number in range(5_000)))
    budgets = []
    monkeypatch.setattr(networks, "pretrain", lambda made, *_, **__: budgets.append(made.train.budget) or {})
    read = reading([str(tmp_path / "t.txt")], duplicates="keep")
    pretrain_on(read, tmp_path, recipe=recipe, seconds=9.0, memory=None, display=Display(json=True))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    assert 256 < tokenizer.vocab_size < 400
    assert [(budget.time, budget.epochs) for budget in budgets] == [(20.0, 20.0)]


@pytest.mark.parametrize(
    ("settings", "pooling"),
    [
        ('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}', "first"),
        ('{"embedding_dimension": 8, "pooling_mode": "cls", "include_prompt": true}', "first"),  # version 6
        ('{"embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": true}', "mean"),
        ('{"embedding_dimension": 8, "pooling_mode": ["cls", "max"], "include_prompt": true}', None),
    ],
)
def test_pooling_is_read_from_sentence_transformers_folders(tmp_path: Path, settings: str, pooling: str | None) -> None:
    assert declared_pooling(str(tmp_path)) is None
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(settings)
    assert declared_pooling(str(tmp_path)) == pooling


@pytest.mark.slow
def test_an_own_network_is_pretrained_and_fine_tuned(world: World, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ladder, "_MIN_NETWORK", 8.0)
    table = write_table(tmp_path / "train.csv", 300, seed=3)
    result = world.run("fit", table, "--time", "45s", "--out", tmp_path / "run")
    assert [one["name"] for one in result["candidates"]] == ["constant", "linear", "own", "average"]
    assert (tmp_path / "run" / "pretrained" / "run" / "hf").is_dir()
    assert result["test"]["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--time", "0s"), "--time"),
        (("--label-field", "lable"), "lable"),
        (("--from", "runs/none"), "runs/none"),
        (("--seed", "-1"), "seed"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    words: tuple[str, ...], message: str, world: World, tmp_path: Path
) -> None:
    assert_refused(message, "fit", world.train, *words, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("parts", [("train.csv", "test.csv"), ("train/a.csv", "test/a.csv")])
def test_a_folder_of_both_parts_is_refused(parts: tuple[str, str], tmp_path: Path) -> None:
    for part in parts:
        (tmp_path / "data" / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / part).write_text("text,label\na b,c\n")
    train, test = (tmp_path / "data" / part.split("/")[0] for part in parts)
    assert_refused(f"give {train} --test {test}", "fit", tmp_path / "data", "--out", tmp_path / "run")


def test_an_unknown_task_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="task"):
        fit(world.train, tmp_path / "run", task="regresion")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_few_numbers_are_enough_for_a_regression(tmp_path: Path) -> None:
    train, test = tmp_path / "t.csv", tmp_path / "u.csv"
    rows = [f"word{number} text,{number}.5\n" for number in range(4)]
    for file in (train, test):
        file.write_text("text,label\n" + "".join(rows))
    result = fit([str(train)], tmp_path / "run", test=[str(test)], seconds=50.0)
    assert [one["examples"] for one in result["learning_curve"]] == [1, 3]


@pytest.mark.parametrize("name", ["../other", "/etc", ".hidden", "a/b"])
def test_members_of_an_average_stay_inside_its_folder(name: str, tmp_path: Path) -> None:
    described = {"format": 1, "weights": {name: 1.0}, "decision": {"temperature": 1.0, "thresholds": None}}
    (tmp_path / "average.json").write_text(json.dumps(described), encoding="utf-8")
    with pytest.raises(UserError, match="must name folders"):
        open_text_model(tmp_path)


def test_the_command_of_settings_gives_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("a file.csv", "test.csv", "more.txt")]
    for file in files:
        file.write_text("a,b\n")
    train, test, texts = ([str(file)] for file in files)
    given: dict[str, Any] = {"train": train, "test": test, "texts": texts, "start_from": ["one", "two"]}
    given |= {"seconds": 7260.0, "memory": 8_000_000_000, "latency": 1.5, "seed": 3, "encoding": "latin-1"}
    settings = FitSettings(**given, task="regression", text=["a b"], label="c", columns=["a b", "c"])
    seen: dict[str, Any] = {}

    def stop(train: list[str], out: Path, **arguments: Any) -> None:
        seen.update(arguments, train=train)
        raise UserError("seen")

    monkeypatch.setattr("homespun.fitting.fit.fit", stop)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, shlex.split(settings.command())[1:]).exit_code != 0
    assert FitSettings(**{name: seen[name] for name in FitSettings.model_fields}) == settings
    assert FitSettings(train=["t"]).command(seconds=90.0) == "homespun fit t --time 90s --out NEW"
