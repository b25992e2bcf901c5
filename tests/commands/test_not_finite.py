"""A model with non-finite outputs ends in one line wherever metrics are computed."""

import random
from pathlib import Path
from typing import Any

import pytest
from commands_world import WORDS, World, read_lines, write_csv, write_lines

from homespun.errors import NotFinite

BROKEN = ("train.optimizer.learning_rate=1e20", "train.schedule={kind: linear, warmup: 0}", "train.budget.steps=1")
TOPICS = list(WORDS)
FINETUNINGS = {
    "two classes": ("classify", "table.csv", "data.label=two"),
    "three classes": ("classify", "table.csv", "data.label=three"),
    "several labels": ("classify", "table.csv", "data.label=several", "data.multi_label=true"),
    "pairs": ("pairs", "table.csv", "data.label=two", "data.first=text", "data.second=other"),
    "numbers": ("similarity", "table.csv", "data.label=number", "data.first=text", "data.second=other"),
    "ratings": ("ordinal-regression", "table.csv", "data.label=rating"),
    "sentences": ("classify-sentences", "reviews.jsonl"),
    "tags": ("tag", "tagged.txt", "data.stride=5"),
    "answers": ("question-answering", "questions.jsonl", "data.stride=5", "data.max_question_length=7"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, draw = tmp_path_factory.mktemp("broken"), random.Random(1)

    def phrase() -> str:
        return " ".join(draw.choices(WORDS[draw.choice(TOPICS)], k=5))

    table = []
    for row in range(43):
        labels = (f"a{row % 2}", f"b{row % 3}", ",".join(TOPICS[: row % 3]), row / 7, 1 + row % 4)
        table.append([phrase(), phrase(), *labels])
    write_csv(made / "table.csv", ["text", "other", "two", "three", "several", "number", "rating"], table)
    reviews = [[[index % 2, phrase()] for index in range(3)] for _ in range(23)]
    write_lines(made / "reviews.jsonl", [{"review_sentences": sentences} for sentences in reviews])
    found = [phrase().split() for _ in range(31)]
    asked = [{"question": words[0], "context": " ".join(words), "answers": words[2]} for words in found]
    write_lines(made / "questions.jsonl", asked)
    tagged = [[f"{word} {'O' if index % 2 else 'X'}\n" for index, word in enumerate(words)] for words in found]
    (made / "tagged.txt").write_text("\n".join(map("".join, tagged)), encoding="utf-8")
    return made


@pytest.mark.parametrize("case", FINETUNINGS)
def test_a_broken_fine_tuning_has_no_metrics(world: World, folder: Path, tmp_path: Path, case: str) -> None:
    recipe, file, *settings = FINETUNINGS[case]
    given: tuple[Any, ...] = (
        f"data.train={folder / file}",
        "data.max_length=32",
        *settings,
        "train.batch_size=7",
        *BROKEN,
    )
    settings_to_lower = r"validation .*step 1; .*train\.optimizer\.learning_rate or train\.max_grad_norm$"
    with pytest.raises(NotFinite, match=settings_to_lower):
        world.run("finetune", recipe, *given, "--from", world.base, "--out", tmp_path / "run")
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line.get("reason") for line in lines][-1] == "not_finite"
    assert "validation" not in {line["event"] for line in lines}
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_broken_pretraining_has_no_loss(world: World, tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match=r"validation .*step 1; no checkpoint"):
        world.run(*world.pretraining, "train.batch_size=7", *BROKEN, "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "model").exists()
