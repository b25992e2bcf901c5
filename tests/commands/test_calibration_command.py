"""Thresholds, temperature, leakage, worst errors and most confident predictions."""

import json
import logging
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands_world import COMMON, WORDS, read_lines, write_csv

from homespun.commands.error_analysis import find_leakage, notable_predictions, summarize_leakage
from homespun.commands.finetune import finetune
from homespun.commands.predict import evaluate, predict
from homespun.commands.recipe import finetune_recipe
from homespun.commands.trials import Trial, write_run_predictions
from homespun.errors import UserError
from homespun.models.bundle import load_model, save_model
from homespun.models.config import ModelConfig
from homespun.tasks.calibration import Calibration, calibrate
from homespun.tasks.classification import ClassificationTask
from homespun.text.duplicates import NearDuplicatePairs
from homespun.text.tokenizer import Tokenizer

SIZES: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48, "num_hidden_layers": 1}
SIZES |= {"max_position_embeddings": 64, "hidden_dropout_prob": 0.0}
SETTINGS = (
    "data.text=text",
    "data.label=label",
    "data.multi_label=true",
    "data.max_length=31",
    "train.budget.epochs=1",
)
BAD = "<script>alert(1)</script>"
HEADER = ["text", "label"]


def texts_of(rows: int, seed: int) -> list[tuple[str, str]]:
    """A rare label is hardly ever given with a probability of one half."""
    draw = random.Random(seed)
    made = []
    for _ in range(rows):
        labels = [label for label, share in zip(WORDS, (0.5, 0.3, 0.12), strict=True) if draw.random() < share]
        words = [draw.choice(COMMON.split()) for _ in range(11)]
        for label in labels:
            words[draw.randrange(11)] = draw.choice(WORDS[label])
        made.append((" ".join(words), ",".join(labels)))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tuning")
    training = texts_of(307, seed=1)
    test = [*texts_of(37, seed=2), training[3], (training[5][0].upper(), training[5][1]), (BAD, "food")]
    write_csv(made / "train.csv", HEADER, training)
    write_csv(made / "validation.csv", HEADER, texts_of(211, seed=3))
    write_csv(made / "test.csv", HEADER, test)
    tokenizer = Tokenizer.train([text for text, _ in training], kind="wordpiece", vocab_size=97)
    tree: dict[str, Any] = {"backbone": SIZES | {"vocab_size": 97, "pad_token_id": tokenizer.pad_id}}
    config = ModelConfig.model_validate(tree)
    torch.manual_seed(0)
    save_model(made / "base" / "model", config.build(), config, tokenizer)
    return made


def recipe(folder: Path, *more: str, test: bool = True) -> Any:
    files = [f"data.train={folder / 'train.csv'}", f"data.validation={folder / 'validation.csv'}"]
    files += [f"data.test={folder / 'test.csv'}"] if test else []
    return finetune_recipe("classify", [*files, *SETTINGS, *more])


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    finetune(recipe(folder), folder / "run", start_from=str(folder / "base"))
    return folder / "run"


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def test_thresholds_are_found_kept_and_used(run: Path, folder: Path, tmp_path: Path) -> None:
    result = read(run / "result.json")
    rule = result["decision_rule"]
    assert rule["rows"] == 211
    assert rule["micro_f1_held_up"] > rule["micro_f1_before"]
    threshold = rule["thresholds"][0]
    assert rule["thresholds"] == [threshold] * 3
    assert threshold != 0.5
    again = evaluate(str(run), [str(folder / "test.csv")])
    assert again["micro_f1"] == pytest.approx(result["test"]["micro_f1"])
    assert again["log_loss"] == pytest.approx(result["test"]["log_loss"])
    predict(str(run), [str(folder / "test.csv")], tmp_path / "said.jsonl")
    lines = read_lines(tmp_path / "said.jsonl")
    output = [set(line.get("predicted_label") or ()) for line in lines]
    assert output == [{n for n, p in line["probabilities"].items() if p > threshold} for line in lines]
    halves = [{n for n, p in line["probabilities"].items() if p > 0.5} for line in lines]
    assert any(one - half for one, half in zip(output, halves, strict=True))


def test_the_probabilities_are_those_of_the_temperature(run: Path) -> None:
    result = read(run / "result.json")
    off = result["test"]["calibration"]
    assert result["test"]["ece"] == off["after"]["ece"]
    assert result["test"]["log_loss"] == pytest.approx(off["after"]["log_loss"], rel=1e-4)
    assert sum(one["count"] for one in off["before"]["bins"]) == 40 * 3
    rule = result["decision_rule"]
    assert rule["temperature"] == 1.0 or rule["log_loss"] < rule["log_loss_before"]


def test_leakage_is_counted_and_logged(run: Path) -> None:
    found = read(run / "result.json")["overlap"]
    assert (found["rows"], found["near"], found["same"]) == (40, 2, 2)
    assert [pair["row"] for pair in found["pairs"]] == [37, 38]
    assert 0 <= found["unseen"] <= 1
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert "2 of 40 evaluated examples" in page


@pytest.mark.slow
def test_of_several_trainings_temperature_and_calibration_are_those_of_the_one_that_is_kept(folder: Path) -> None:
    finetune(recipe(folder, "seeds=2", "baselines=false"), folder / "seeds", start_from=str(folder / "base"))
    result = read(folder / "seeds/result.json")
    trials = [read(folder / f"seeds/trials/seed-{seed}/result.json") for seed in range(2)]
    kept = max(trials, key=lambda trial: float(trial["score"]))
    assert (result["decision_rule"], result["calibration"]) == (kept["decision_rule"], kept["test"]["calibration"])


def test_how_good_it_is_at_the_others_is_over_the_trainings_that_were_compared(tmp_path: Path) -> None:
    """Of fewer examples each seed draws its own, and only those of the first are looked through."""
    test, drawn = ["a b c", "d e f", "g h i"], [["a b c", "x"], ["a b c", "x"], ["d e f", "x"]]
    right = [(1, 0, 0), (1, 1, 0), (1, 1, 1)]
    trials, folders = [], []
    for seed, (training, scores) in enumerate(zip(drawn, right, strict=True)):
        trials.append(Trial(f"seed-{seed}", seed, 0, 2, training, [], test, np.arange(3), []))
        folders.append(tmp_path / f"seed-{seed}")
        folders[-1].mkdir()
        write_run_predictions(
            folders[-1], "model", np.arange(3), [{"truth": 1, "predicted": score} for score in scores]
        )
    task: Any = SimpleNamespace(texts=list)
    output = summarize_leakage(find_leakage(task, trials), task, trials, folders)
    assert (output.rows, output.near) == (3, 1)
    assert output.all == pytest.approx(3 / 6)
    assert output.unseen == pytest.approx(1 / 4)


def test_the_worst_comes_first_and_is_text_on_the_page(run: Path) -> None:
    wrong = read(run / "result.json")["top_errors"]
    losses = [one["loss"] for one in wrong]
    assert losses == sorted(losses, reverse=True)
    lines = read_lines(run / "predictions/model.jsonl")
    assert losses[0] == max(line["loss"] for line in lines if line["truth"] != line["predicted"])
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert BAD not in page
    assert {path.name for path in (run / "report/plots").iterdir()} >= {"reliability.svg", "reliability.png"}


def test_nothing_is_tuned_on_what_is_measured(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = finetune(recipe(folder, test=False), folder / "untested", start_from=str(folder / "base"))
    assert result["decision_rule"] == {}
    assert result["measured_on"] == "validation"
    assert "decision" not in load_model(folder / "untested/model").task
    assert "word for word" not in caplog.text


def test_without_test_examples_validation_examples_are_predicted_once_after_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, measured = ClassificationTask.measure, list[Any]()

    def counted(*args: Any, **options: Any) -> Any:
        measured.append(measure(*args, **options))
        return measured[-1]

    monkeypatch.setattr(ClassificationTask, "measure", counted)
    found = recipe(folder, "train.validate_every=1", test=False)
    result = finetune(found, folder / "once", start_from=str(folder / "base"))
    assert len(measured) == 2  # one validation in the training, and one prediction after it
    assert result["validation"]["loss"] == measured[-1].metrics["log_loss"]
    assert result["validation_metrics"].items() <= result["test"].items()
    assert result["validation_metrics"]["micro_f1"] == measured[0].metrics["micro_f1"]


def test_half_and_no_temperature_leave_everything_as_it_was(folder: Path) -> None:
    plain = recipe(folder, "calibration.thresholds=half", "calibration.temperature=false")
    finetune(plain, folder / "plain", start_from=str(folder / "base"))
    assert "decision" not in load_model(folder / "plain/model").task


def test_damaged_decision_is_an_error(run: Path, tmp_path: Path, folder: Path) -> None:
    shutil.copytree(run / "model", tmp_path / "model")
    file = next(f for f in (tmp_path / "model").glob("*.json") if "decision" in f.read_text(encoding="utf-8"))
    file.write_text(file.read_text(encoding="utf-8").replace('"temperature"', '"temperatur"'), encoding="utf-8")
    with pytest.raises(UserError, match="temperatur"):
        evaluate(str(tmp_path / "model"), [str(folder / "test.csv")])
    tree = read(file)
    tree["task"]["decision"] = {"thresholds": [0.5]}
    file.write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(UserError, match=r"1 .*3 labels"):
        evaluate(str(tmp_path / "model"), [str(folder / "test.csv")])


@pytest.mark.parametrize(("rows", "kept"), [(29, False), (30, True)])
def test_nothing_is_tuned_on_few_examples(rows: int, kept: bool) -> None:
    """Examples that any threshold but one half is right about."""
    truth = np.eye(3, dtype=np.int64)[np.arange(rows) % 3]
    logits = np.where(truth == 1, -1.0, -3.0).astype(np.float32)
    decision, output = calibrate(logits, truth, Calibration())
    assert (decision.thresholds is not None) == kept
    assert output["micro_f1"] == (1.0 if kept else output["micro_f1_before"])
    assert ("29 validation examples" in output.get("thresholds_why", "")) == (not kept)
    assert ("too few" in output.get("temperature_why", "")) == (not kept)


def test_a_text_may_hold_what_ends_a_line_elsewhere(tmp_path: Path) -> None:
    texts = [f"one{end}two" for end in ("\u2028", "\u2029", "\x85", "\r", "\n")]
    truths = [*texts[:-1], "another"]
    predictions = [{"truth": truth, "predicted": text} for truth, text in zip(truths, texts, strict=True)]
    write_run_predictions(tmp_path, "model", np.arange(5), predictions)
    trial = Trial("seed-0", 0, 0, 0, ["one two"], texts, None, np.arange(5), [])
    task: Any = SimpleNamespace(texts=list)
    output = summarize_leakage({0: NearDuplicatePairs((1,), (0,), (1.0,), 5)}, task, [trial], [tmp_path])
    assert (output.all, output.unseen) == (0.8, 0.75)


def test_worst_and_most_confident_predictions() -> None:
    pairs = [("a", "b", 3.0), ("a", "a", 0.5), ("b", "a", 5.0), ("b", "b", 0.1), (None, "b", 0.0)]
    predictions = [{"truth": truth, "predicted": predicted, "loss": loss} for truth, predicted, loss in pairs]
    trial = Trial("seed-0", 0, 0, 0, [], [f"text {i}" for i in range(5)], None, np.arange(10, 15), [])
    task: Any = SimpleNamespace(texts=list)
    found = notable_predictions(task, trial, predictions)
    assert [one["row"] for one in found["top_errors"]] == [12, 10]
    assert [one["text"] for one in found["most_confident"]] == ["text 3", "text 1"]
    for prediction in predictions:
        del prediction["loss"]
    found = notable_predictions(task, trial, predictions)
    assert [one["row"] for one in found["top_errors"]] == [10, 12]
    assert found["most_confident"] == []
