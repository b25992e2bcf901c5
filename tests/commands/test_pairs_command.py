"""Pairs, regression, ratings and sentence classification through the commands, with their errors."""

import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands_world import COMMON, WORDS, World, assert_refused, read_lines, write_csv, write_lines
from safetensors.torch import load_file, save_file

import homespun
from homespun.data.labels import Labels
from homespun.data.sentence_documents import LabelledDocument
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.tasks.sentence_classification import SentenceClassificationTask, SentencesData

QUICK = ("train.optimizer.layer_decay=1.0", "train.optimizer.learning_rate=5e-3", "train.batch_size=17")
TOPICS = list(WORDS)


def phrase(draw: random.Random, topic: str, words: int = 5) -> str:
    return " ".join(draw.choice(WORDS[topic] if draw.random() < 0.6 else COMMON.split()) for _ in range(words))


def pairs(rows: int, seed: int) -> list[list[Any]]:
    """Of one topic or two; the number is how much the first is about sport."""
    draw = random.Random(seed)
    made = []
    for _ in range(rows):
        first = draw.choice(TOPICS)
        second = first if draw.random() < 0.5 else draw.choice(TOPICS)
        same = "same" if first == second else "other"
        made.append([phrase(draw, first), phrase(draw, second), same, 700.0 + 100 * TOPICS.index(first)])
    return made


def reviews(rows: int, seed: int) -> list[dict[str, Any]]:
    """A sentence about food gives away what follows the sentence before it."""
    draw = random.Random(seed)
    made = []
    for _ in range(rows):
        topics = [draw.choice(TOPICS) for _ in range(draw.randint(1, 7))]
        made.append({"id": 3, "review_sentences": [[int(t == "food"), phrase(draw, t) + "."] for t in topics]})
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pairs")
    header = ["one", "two", "same", "sport"]
    write_csv(made / "pairs.csv", header, pairs(181, 1))
    write_csv(made / "pairs-test.csv", header, pairs(41, 2))
    draw = random.Random(3)
    for name, count in (("stars", 181), ("stars-test", 41)):
        topics = [draw.choice(TOPICS) for _ in range(count)]
        write_csv(made / f"{name}.csv", ["text", "stars"], [[phrase(draw, t), 2 + TOPICS.index(t)] for t in topics])
    write_lines(made / "reviews.jsonl", reviews(67, 4))
    write_lines(made / "reviews-test.jsonl", [*reviews(17, 5), {"id": 1, "review_sentences": []}])
    return made


def of_pairs(folder: Path, label: str, *others: str) -> tuple[Any, ...]:
    given = (f"data.train={folder / 'pairs.csv'}", f"data.test={folder / 'pairs-test.csv'}", "data.first=one")
    return (*given, "data.second=two", f"data.label={label}", "data.max_length=23", *QUICK, *others)


def of_reviews(folder: Path) -> tuple[Any, ...]:
    given = (f"data.train={folder / 'reviews.jsonl'}", "data.max_length=23", *QUICK)
    return ("finetune", "classify-sentences", *given)


@pytest.mark.slow
def test_pairs_are_classified(folder: Path, tmp_path: Path, world: World) -> None:
    run = tmp_path / "run"
    others = ("train.budget.epochs=2", "objective.class_weights=balanced")
    result = world.run("finetune", "pairs", *of_pairs(folder, "same", *others), "--from", world.base, "--out", run)
    assert result["labels"] == ["other", "same"]
    assert result["rows"]["test"] == 41
    assert result["baselines"].keys() == {"majority", "tfidf"}
    assert "roc_auc" in result["test"]
    again = world.run("evaluate", run, "--data", folder / "pairs-test.csv")
    assert again["accuracy"] == result["test"]["accuracy"]
    output = world.run("predict", run, "--input", folder / "pairs-test.csv", "--out", tmp_path / "out.jsonl")
    assert sum(output["labels"].values()) == 41
    written = [line["label"] for line in read_lines(tmp_path / "out.jsonl")]
    assert written == [line["predicted"] for line in read_lines(run / "predictions/model.jsonl")]
    assert_refused(
        "--text-field .*1 times", "evaluate", run, "--data", folder / "pairs-test.csv", "--text-field", "one"
    )


@pytest.mark.slow
def test_transformers_predicts_the_same_of_pairs(
    folder: Path, tmp_path: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    transformers = pytest.importorskip("transformers")
    run, base = tmp_path / "run", tmp_path / "half"
    shutil.copytree(world.base / "hf", base)
    weights = {name: tensor.half() for name, tensor in load_file(base / "model.safetensors").items()}
    save_file(weights, base / "model.safetensors")
    others = ("data.max_length=31", "train.budget.epochs=1", "objective.head.kind=ffn", "baselines=false")
    world.run("finetune", "pairs", *of_pairs(folder, "same", *others), "--from", base, "--out", run)
    assert [r.getMessage().partition(" in the")[0] for r in caplog.records] == [f"{base}: weights are float16"]
    world.run("predict", run, "--input", folder / "pairs-test.csv", "--out", tmp_path / "out.jsonl")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "hf")
    output = read_lines(tmp_path / "out.jsonl")
    first, second = ([line[side] for line in output] for side in ("one", "two"))
    given = tokenizer(first, second, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(**given).logits.softmax(-1)
    assert given["input_ids"].shape[1] <= 31  # nothing is cut
    expected = torch.tensor([[line["probabilities"][name] for name in model.config.label2id] for line in output])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert f"`{base.name}`" in (run / "hf" / "README.md").read_text()


@pytest.mark.slow
def test_regression_predicts_on_the_scale_of_the_labels(folder: Path, tmp_path: Path, world: World) -> None:
    run = tmp_path / "run"
    others = ("train.budget.epochs=8", "train.best_metric=spearman", "objective.range=[700, 900]")
    given = of_pairs(folder, "sport", *others)
    result = world.run("finetune", "similarity", *given, "--from", world.base, "--out", run)
    test, lines = result["test"], read_lines(run / "predictions/model.jsonl")
    assert test["spearman"] > 0.5
    assert test["absolute_error"] < result["baselines"]["mean"]["absolute_error"]
    assert result["baselines"]["mean"]["pearson"] is None
    assert -sum(line["score"] for line in lines) / 41 == pytest.approx(test["absolute_error"])
    assert not any(set(line) & set(result["measures"]) for line in lines)  # no row has a correlation
    assert all(700 <= line["predicted"] <= 900 for line in lines)
    again = world.run("evaluate", run, "--data", folder / "pairs-test.csv")
    assert again["spearman"] == pytest.approx(test["spearman"])
    world.run("predict", run, "--input", folder / "pairs-test.csv", "--out", tmp_path / "out.jsonl")
    output = [line["number"] for line in read_lines(tmp_path / "out.jsonl")]
    assert output == pytest.approx([line["predicted"] for line in lines], rel=1e-4)
    assert "Spearman" in (run / "report/index.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("by", ["cumulative", "squared"])
def test_ratings_are_predicted(folder: Path, tmp_path: Path, world: World, by: str) -> None:
    run = tmp_path / "run"
    data = (f"data.train={folder / 'stars.csv'}", f"data.test={folder / 'stars-test.csv'}", "data.label=stars")
    given = (*data, "data.max_length=13", f"objective.method={by}", *QUICK, "train.budget.epochs=7")
    result = world.run("finetune", "ordinal-regression", *given, "--from", world.base, "--out", run)
    assert result["levels"] == [2.0, 3.0, 4.0]
    assert result["test"]["quadratic_kappa"] > 0.4
    assert result["baselines"]["majority"]["accuracy"] < result["test"]["accuracy"]
    again = world.run("evaluate", run, "--data", folder / "stars-test.csv")
    world.run("predict", run, "--input", folder / "stars-test.csv", "--out", tmp_path / "out.jsonl")
    lines = read_lines(tmp_path / "out.jsonl")
    wrong = np.mean([abs(line["rating"] - float(line["stars"])) for line in lines])
    assert again["absolute_error"] == pytest.approx(wrong)
    assert all(2 <= line["expected"] <= 4 for line in lines)
    assert again["absolute_error"] == pytest.approx(result["test"]["absolute_error"])
    if by == "cumulative":
        assert sum(lines[0]["probabilities"].values()) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("vector", ["separator", "first", "mean"])
def test_sentences_are_labelled_in_their_documents(folder: Path, tmp_path: Path, world: World, vector: str) -> None:
    run, test = tmp_path / "run", folder / "reviews-test.jsonl"
    given = (*of_reviews(folder), f"data.test={test}", f"objective.vector={vector}", "train.budget.epochs=9")
    result = world.run(*given, "objective.class_weights=balanced", "--from", world.base, "--out", run)
    sentences = sum(len(row["review_sentences"]) for row in read_lines(test))
    assert (result["test"]["rows"], result["test"]["documents"]) == (sentences, 18)
    assert result["test"]["roc_auc"] > 0.7
    assert result["windows_beyond_one"] > 0
    assert result["empty_documents"] == 1
    again = world.run("evaluate", run, "--data", test)
    assert again["roc_auc"] == pytest.approx(result["test"]["roc_auc"])
    output = world.run("predict", run, "--input", test, "--out", tmp_path / "out.jsonl")
    assert sum(output["labels"].values()) == sentences
    lines = read_lines(tmp_path / "out.jsonl")
    predictions = read_lines(run / "predictions/model.jsonl")
    assert [line["label"] for line in lines] == [line["predicted"] for line in predictions]
    assert predictions[-1]["truth"] == []
    assert homespun.load(run).head is not None


def test_sentences_may_have_more_than_two_labels(tmp_path: Path, world: World) -> None:
    rows = reviews(31, 7)
    for row in rows:
        row["review_sentences"] = [[f"{label}{len(text) % 2}", text] for label, text in row["review_sentences"]]
    write_lines(tmp_path / "reviews.jsonl", rows)
    given = (*of_reviews(tmp_path), "data.validation=0.3", "train.budget.steps=2", "--from", world.base)
    assert_refused("best_metric=roc_auc .* 4 classes", *given, "train.best_metric=roc_auc", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert world.run(*given, "--out", tmp_path / "run")["labels"] == ["00", "01", "10", "11"]


@pytest.mark.parametrize("recipe", ["classify-sentences", "pairs"])
def test_an_area_of_one_class_is_refused_before_the_training(
    folder: Path, tmp_path: Path, world: World, recipe: str
) -> None:
    if recipe == "classify-sentences":
        one_class = write_lines(tmp_path / "alike.jsonl", [{"review_sentences": [[0, "a goal."], [0, "a match."]]}])
        given = of_reviews(folder)
    else:
        one_class = write_csv(tmp_path / "alike.csv", ["one", "two", "same"], [["a goal", "a match", "same"]] * 3)
        given = ("finetune", recipe, *of_pairs(folder, "same"))
    given += (f"data.validation={one_class}", "train.best_metric=roc_auc", "train.budget.steps=1")
    assert_refused("roc_auc .*one class", *given, "--from", world.base, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_documents_are_divided_by_the_rarest_label_in_each(world: World) -> None:
    made = ["aa", "ab", "", "cab", "bb", "cc", "aab", "a"]
    documents = [LabelledDocument(tuple(f"the {label}" for label in labels), tuple(labels)) for labels in made]
    data, labels = SentencesData(), Labels(("a", "b", "c"))
    task = SentenceClassificationTask(data, labels, open_model(world.base), vector="separator")
    assert task.stratify_by(documents).tolist() == [0, 1, 0, 2, 1, 2, 1, 0]  # 7 a, 5 b, 3 c
    with pytest.raises(UserError, match="label 'd' "):
        task.stratify_by([LabelledDocument(("the d",), ("d",))])


def test_a_rating_that_stands_once_goes_to_some_fold(tmp_path: Path, world: World) -> None:
    draw = random.Random(7)
    rows = [[phrase(draw, TOPICS[i % 3]), 2 + i % 3] for i in range(29)] + [["a goal", 7]]
    file = write_csv(tmp_path / "stars.csv", ["text", "stars"], rows)
    given = (f"data.train={file}", "data.label=stars", "data.max_length=13", *QUICK, "train.budget.steps=1", "folds=3")
    given += ("objective.class_weights=balanced", "data.validation=0.3", "baselines=false")
    result = world.run("finetune", "ordinal-regression", *given, "--from", world.base, "--out", tmp_path / "run")
    assert result["levels"] == [2.0, 3.0, 4.0, 7.0]
    assert sum(seed["rows"] for seed in result["seeds"]) == 30


@pytest.mark.slow
def test_a_frozen_encoder_and_folds(folder: Path, tmp_path: Path, world: World) -> None:
    given = (*of_reviews(folder), "objective.frozen=true", "folds=2", "seeds=2", "train.budget.steps=2")
    result = world.run(*given, "--from", world.base, "--out", tmp_path / "run")
    assert result["measured_on"] == "folds"
    assert len(result["seeds"]) == 4
    before, after = (homespun.load(source).backbone.state_dict() for source in (world.base, tmp_path / "run"))
    assert all((before[name] == after[name]).all() for name in before)


def test_what_is_missing_or_outside_is_counted(tmp_path: Path, world: World) -> None:
    rows = [["a match", "a goal", 3 + i % 3] for i in range(29)]
    rows += [["", "a goal", 4], ["a match", " ", 3], ["a match", "a bond", 17]]
    file = write_csv(tmp_path / "rows.csv", ["first", "second", "label"], rows)
    given = ("finetune", "similarity", f"data.train={file}", f"data.test={file}", "data.max_length=16", *QUICK)
    given += ("train.budget.steps=1", "objective.range=[3, 5]", "--from", world.base, "--out", tmp_path / "run")
    assert_refused(r"^\S*rows\.csv: row 32 .*17.*objective\.range", *given)
    result = world.run(*given, "objective.out_of_range=leave_out")
    assert (result["one_sided"], result["outside"], result["test"]["rows"]) == (4, 2, 31)  # in both files
    lines = read_lines(tmp_path / "run/predictions/model.jsonl")
    assert [line["row"] for line in lines if line["truth"] is None] == [31]
    page = (tmp_path / "run/report/index.html").read_text(encoding="utf-8")
    assert re.search("empty side.*: 4", page)


@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize("recipe", ["similarity", "ordinal-regression"])
@pytest.mark.parametrize(("number", "message"), [("9", "row 7 .*9, "), ("nan", "row 7 .*'nan'")])
def test_a_number_that_cannot_be_names_its_file(
    tmp_path: Path, world: World, recipe: str, part: str, number: str, message: str
) -> None:
    column = "first" if recipe == "similarity" else "text"
    given: list[Any] = ["finetune", recipe, "data.max_length=13", "train.budget.steps=1", *QUICK]
    for name in ("train", "validation", "test"):
        rows = [[f"a goal {i}", "a match", 3 + i % 3] for i in range(11)]
        rows[6][2] = number if name == part else 4
        given.append(f"data.{name}={write_csv(tmp_path / f'{name}.csv', [column, 'second', 'label'], rows)}")
    if number == "9":
        given.append("objective.range=[3, 5]" if recipe == "similarity" else "objective.levels=[3, 4, 5]")
    assert_refused(rf"^\S*{part}\.csv: {message}", *given, "--from", world.base, "--out", tmp_path / "run")


def test_a_number_that_cannot_be_names_its_file_in_evaluate_too(tmp_path: Path, world: World) -> None:
    rows = [[f"a goal {i}", 3 + i % 3] for i in range(31)]
    train = write_csv(tmp_path / "train.csv", ["text", "label"], rows)
    test = write_csv(tmp_path / "test.csv", ["text", "label"], [*rows[:5], ["a match", 9]])
    given = (f"data.train={train}", "data.max_length=13", "train.budget.steps=1", "baselines=false", *QUICK)
    world.run("finetune", "ordinal-regression", *given, "--from", world.base, "--out", tmp_path / "run")
    assert_refused(r"^\S*test\.csv: row 6 .* 9.* 3, 4, 5", "evaluate", tmp_path / "run", "--data", test)


MISTAKES = {
    "one side": ("pairs", "data.second=none", "empty text"),
    "same column": ("pairs", "data.second=one", "same column, 'one'"),
    "no number": ("similarity", "data.label=same", "row 1 has label '(same|other)'"),
    "no range": ("similarity", "objective.range=[3, 1]", "range"),
    "levels": ("similarity", "objective={kind: ordinal_regression, levels: [700, 800]}", "rating 900"),
    "order": ("similarity", "objective={kind: ordinal_regression, levels: [5, 3]}", "ascending"),
    "another objective": ("pairs", "objective={kind: seq2seq}", "objective.kind=seq2seq.*data.kind=sentence_pairs"),
    "length": ("pairs", "data.max_length=4096", "max_position_embeddings"),
    "no constant": ("similarity", "objective.head.kind=last", "no bias"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(folder: Path, tmp_path: Path, world: World, name: str) -> None:
    recipe, change, message = MISTAKES[name]
    rows = [[*row, ""] for row in pairs(31, 6)]
    file = write_csv(tmp_path / "rows.csv", ["one", "two", "same", "sport", "none"], rows)
    given = of_pairs(folder, "same" if recipe == "pairs" else "sport", f"data.train={file}", "data.test=", change)
    given += ("train.budget.steps=1", "--from", world.base, "--out", tmp_path / "run")
    assert_refused(message, "finetune", recipe, *given)


SENTENCES = {
    "no list": ([{"review_sentences": "a goal. a match."}], "row 1 of .* str"),
    "no pairs": ([{"review_sentences": [[0, "a", "b"]]}], "only sentences, or only pairs"),
    "no labels": ([{"review_sentences": ["a goal"]}], "lacks labels"),
    "no label": ([{"review_sentences": [["", "a goal"]]}], "label is ''"),
    "no column": ([{"reviews": []}], "no column 'review_sentences'"),
    "nothing": ([{"review_sentences": []}], "has no sentences"),
    "one class": ([{"review_sentences": [[0, "a goal"]]}], "only one class, '0'"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_documents_that_cannot_be_read(tmp_path: Path, world: World, name: str) -> None:
    rows, message = SENTENCES[name]
    write_lines(tmp_path / "reviews.jsonl", rows)
    assert_refused(message, *of_reviews(tmp_path), "--from", world.base, "--out", tmp_path / "run")


def test_labels_that_differ_between_splits(folder: Path, tmp_path: Path, world: World) -> None:
    odd = write_lines(tmp_path / "odd.jsonl", [{"review_sentences": [[2, "a goal"]]}])
    run = ("--from", world.base, "--out", tmp_path / "run")
    assert_refused(r"odd\.jsonl: label '2' .*: 0, 1", *of_reviews(folder), f"data.test={odd}", *run)
    other = write_csv(tmp_path / "odd.csv", ["one", "two", "same", "sport"], [["a", "b", "maybe", 1]])
    assert_refused("label 'maybe' ", "finetune", "pairs", *of_pairs(folder, "same", f"data.test={other}"), *run)
