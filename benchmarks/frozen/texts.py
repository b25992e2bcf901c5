"""Small files of every kind that the commands read, drawn from fixed seeds."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

TOPICS = {
    "sport": "match goal team coach league striker referee stadium penalty season fans trophy",
    "money": "market share profit bank bond trader index price loan dividend stock quarter",
    "food": "soup bread salt oven butter onion pepper dinner sauce flour knife kitchen",
}
WORDS = {topic: words.split() for topic, words in TOPICS.items()}
COMMON = "the a of in and was with for new old after before more less today very all"
COMMON_WORDS = COMMON.split()


def write(folder: Path) -> None:
    """Write training and test files of every task into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, seed in (("train", 1), ("test", 2)):
        random_ = random.Random(seed)
        rows = 96 if split == "train" else 32
        _csv(folder / f"{split}.csv", ["text", "label"], [_example(random_) for _ in range(rows)])
        _csv(folder / f"stars-{split}.csv", ["text", "stars"], [_rating(random_) for _ in range(rows)])
        _csv(folder / f"pairs-{split}.csv", ["one", "two", "same", "score"], [_pair(random_) for _ in range(rows)])
        _lines(folder / f"tags-{split}.jsonl", [_tags(random_) for _ in range(rows)])
        _lines(folder / f"reviews-{split}.jsonl", [_review(random_) for _ in range(rows // 2)])
        _lines(folder / f"summaries-{split}.jsonl", [_summary(random_) for _ in range(rows)])
        articles = [{"title": f"{n}", "paragraphs": [_paragraph(random_) for _ in range(3)]} for n in range(rows // 4)]
        (folder / f"answers-{split}.json").write_text(json.dumps({"version": "2", "data": articles}))


def _phrase(random_: random.Random, topic: str, length: int) -> list[str]:
    return [random_.choice(WORDS[topic] if random_.random() < 0.5 else COMMON_WORDS) for _ in range(length)]


def _topic(random_: random.Random) -> str:
    return random_.choice(list(TOPICS))


def _example(random_: random.Random) -> list[Any]:
    topic = _topic(random_)
    sentences = [" ".join(_phrase(random_, topic, random_.randint(5, 14))).capitalize() for _ in range(3)]
    return [". ".join(sentences) + ".", topic]


def _rating(random_: random.Random) -> list[Any]:
    topic = _topic(random_)
    return [" ".join(_phrase(random_, topic, 8)), 2 + list(TOPICS).index(topic)]


def _pair(random_: random.Random) -> list[Any]:
    first, second = _topic(random_), _topic(random_)
    texts = [" ".join(_phrase(random_, topic, 6)) for topic in (first, second)]
    return [*texts, "same" if first == second else "other", 7.0 + list(TOPICS).index(first)]


def _tags(random_: random.Random) -> dict[str, Any]:
    words = _phrase(random_, "sport", 9)
    return {"words": words, "tags": ["B-SPO" if word in WORDS["sport"] else "O" for word in words]}


def _review(random_: random.Random) -> dict[str, Any]:
    topics = [_topic(random_) for _ in range(random_.randint(1, 6))]
    return {"review_sentences": [[int(t == "food"), " ".join(_phrase(random_, t, 5)) + "."] for t in topics]}


def _summary(random_: random.Random) -> dict[str, Any]:
    word = random_.choice(WORDS["food"])
    words = [random_.choice(COMMON_WORDS) for _ in range(7)]
    pages = [" ".join(random_.choice(COMMON_WORDS) for _ in range(5)) for _ in range(3)]
    return {"document": " ".join([*words, word]), "summary": word, "pages": [*pages, word], "title": f"the {word}"}


def _paragraph(random_: random.Random) -> dict[str, Any]:
    words = [random_.choice(COMMON_WORDS) for _ in range(11)]
    position = random_.randrange(11)
    words[position] = random_.choice(WORDS["food"])
    start = sum(len(word) + 1 for word in words[:position])
    answers = [{"text": words[position], "answer_start": start}]
    question: dict[str, Any] = {"id": str(random_.random()), "question": "new today", "answers": answers}
    if random_.random() < 0.2:
        words[position] = "today"
        question |= {"answers": [], "is_impossible": True}
    return {"context": " ".join(words), "qas": [question]}


def _csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
