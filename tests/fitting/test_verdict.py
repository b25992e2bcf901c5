"""Sentences and commands about the result of a fit."""

import ast
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from homespun.config import parse_bytes
from homespun.errors import UserError
from homespun.fitting.fit import fit
from homespun.fitting.results import FitSettings, next_steps, numbers_not_in_sources
from homespun.fitting.verdict import commands, headline, problems

RESULT: dict[str, Any] = {
    "task": "classification",
    "metric": "accuracy",
    "title": "linear model",
    "test": {"accuracy": 0.75},
    "interval": None,
    "examples": {"train": 100, "validation": 40, "test": 60},
    "test_from": "files",
    "next_best": None,
    "candidates": [],
    "learning_curve": [],
    "never_predicted": [],
    "skipped": [],
    "cost": {"parameters": 12},
}


@pytest.mark.parametrize(("test_from", "part"), [("none", "validation"), ("files", "test"), ("split", "test")])
def test_the_headline_names_the_part_that_was_measured(test_from: str, part: str) -> None:
    (sentence,) = (line for line in headline(RESULT | {"test_from": test_from}) if "75.0 %" in line)
    assert f"{60 if part == 'test' else 40} {part} examples" in sentence


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize(
    ("difference", "words"), [(0.0, ()), (0.02, ("better", "lower")), (-0.02, ("worse", "higher"))]
)
def test_an_equal_candidate_is_neither_better_nor_worse(task: str, difference: float, words: tuple[str, ...]) -> None:
    rival = {"name": "other", "title": "own network", "difference": difference, "difference_interval": (-0.1, 0.1)}
    result = RESULT | {"task": task, "next_best": "other", "candidates": [rival | {"p": 0.5}]}
    (sentence,) = (line for line in headline(result) if "own network" in line)
    found = {word for word in ("better", "lower", "worse", "higher") if word in sentence}
    assert found == set(words[task == "regression" :][:1])
    assert "p=0.5" in sentence


def test_classes_of_low_recall_are_named_the_worst_first() -> None:
    recalls = [0.0, 0.4, 0.3, 0.5, 0.9, *[0.45] * 12]
    test = {"per_class": {f"class-{index}": {"recall": recall} for index, recall in enumerate(recalls)}}
    (line,) = problems(RESULT | {"test": test, "never_predicted": [], "warnings": []})
    names = re.findall(r"class-\d+ ", line)
    assert len(names) == 10
    assert names[:2] == ["class-2 ", "class-1 "]
    assert "4 more" in line


def test_long_lists_of_classes_are_cut() -> None:
    names = [f"class-{number}" for number in range(300)]
    result = RESULT | {"never_predicted": names, "warnings": []}
    (line,) = problems(result)
    step = next_steps(result, FitSettings(train=["t.csv"]))[0]
    for text in (line, step):
        assert len(re.findall(r"class-\d+", text)) == 10
        assert "290 more" in text


@pytest.mark.parametrize("memory", ["200MB", "8GB", "12GiB", "1536MiB", "1234567"])
def test_a_memory_limit_is_repeated_as_it_was_given(memory: str) -> None:
    words = FitSettings(train=["t.csv"], memory=parse_bytes(memory)).command().split()
    assert words[words.index("--memory") + 1] == memory


def test_metrics_of_two_classes_are_in_the_headline() -> None:
    test = {"accuracy": 0.99, "roc_auc": 0.871, "pr_auc": 0.143, "positive": "sports"}
    line = next(line for line in headline(RESULT | {"test": test}) if "99.0" in line)
    assert all(found in line for found in ("87.1", "14.3", "sports"))
    one_class = headline(RESULT | {"test": test | {"roc_auc": None, "pr_auc": None}})
    assert not any("sports" in line for line in one_class)


def write_rows(path: Path, rows: list[tuple[str, object]]) -> str:
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows), encoding="utf-8")
    return str(path)


def test_a_model_that_is_not_better_than_the_baseline_is_warned_of(tmp_path: Path) -> None:
    draw = random.Random(0)

    def text() -> str:
        return " ".join(draw.choice("abcdefghij") * 3 for _ in range(8))

    noise = [(text(), "rare" if number % 25 == 0 else "frequent") for number in range(400)]
    numbers = [(text(), draw.random()) for _ in range(200)]
    topics = [(f"{text()} {'goal' if number % 2 else 'soup'}", "ab"[number % 2]) for number in range(200)]
    found = []
    for name, rows in (("noise", noise), ("numbers", numbers), ("topics", topics)):
        result = fit([write_rows(tmp_path / f"{name}.csv", rows)], tmp_path / name, seconds=30.0)
        found.append(any("baseline" in line for line in result["warnings"]))
        if name == "noise":
            assert result["never_predicted"] == ["rare"]
            assert "rare" in result["next"][0]
    assert found == [True, True, False]


def test_texts_with_many_numbers_that_are_not_in_their_sources_are_warned_of() -> None:
    test = {"unsupported_numbers": 0.59, "unsupported_numbers_target": 0.15}
    assert numbers_not_in_sources(test) == ["59% of the numbers in generated texts are not in their sources"]
    assert numbers_not_in_sources(test | {"unsupported_numbers": 0.3}) == []
    assert numbers_not_in_sources({}) == []


def test_commands_quote_the_folder() -> None:
    folder = Path('it\'s a "fit"')
    (command,) = commands({"task": "language-model", "masked": True}, folder)
    program, flag, code = shlex.split(command)
    assert (program, flag) == ("python", "-c")
    assert str(folder) in [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, ["--time 1m", "--time 1m"]),
        ({"candidates": [{"name": "own"}]}, ["--time 10m", "--time 1m", "--time 1m"]),
        ({"skipped": ["own network: give more text with --texts"]}, ["--time 1m", "--time 1m"]),
        ({"skipped": ["own network: 5 s is left; give more --time"]}, ["--time 10m"] * 3),
    ],
)
def test_more_time_is_suggested_where_it_was_missing(changes: dict[str, Any], times: list[str]) -> None:
    steps = next_steps(RESULT | changes, FitSettings(train=["t.csv"], seconds=60.0))
    assert [step[step.index("--time") :].removesuffix(" --out NEW") for step in steps] == times


@pytest.mark.parametrize(("latency", "warnings"), [(1e-6, 1), (1e6, 0)])
def test_a_latency_that_no_model_meets_is_warned_of(tmp_path: Path, latency: float, warnings: int) -> None:
    lines = [f"{'goal' if n % 2 else 'soup'} number {n},{'sport' if n % 2 else 'food'}\n" for n in range(200)]
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(lines), encoding="utf-8")
    result = fit([str(tmp_path / "t.csv")], tmp_path / "run", seconds=30.0, latency=latency)
    assert result["selected"] == "linear"
    assert sum("--latency" in line for line in result["warnings"]) == warnings


@pytest.mark.parametrize("name", ["latency", "seconds"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_times_that_are_not_positive_are_refused(tmp_path: Path, name: str, value: float) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(UserError, match=f"{name}="):
        fit([str(tmp_path / "train.csv")], tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
