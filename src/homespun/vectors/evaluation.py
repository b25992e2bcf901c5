"""Intrinsic evaluation of word vectors: analogies by section, and correlation with human similarity scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import JsonValue

from homespun.errors import UserError
from homespun.vectors.word_vectors import WordVectors

_SUFFIXES = (".txt", ".tsv", ".csv")
_BATCH = 256  # questions
Scores = dict[str, JsonValue]


@dataclass(frozen=True)
class Analogies:
    """Questions by section: ``a`` is to ``b`` as ``c`` is to ``d``."""

    name: str
    sections: dict[str, list[tuple[str, str, str, str]]]
    kind: ClassVar[str] = "analogies"

    def evaluate(self, vectors: WordVectors) -> Scores:
        """Answer the questions by `WordVectors.analogy`."""
        counts = {name: _count_correct(vectors, questions) for name, questions in self.sections.items()}
        questions, covered, correct = (sum(section[part] for section in counts.values()) for part in range(3))
        return _accuracy(questions, covered, correct) | {
            "sections": {name: _accuracy(*section) for name, section in counts.items()}
        }


@dataclass(frozen=True)
class Similarities:
    """Pairs of words with human similarity scores."""

    name: str
    pairs: list[tuple[str, str]]
    scores: list[float]
    kind: ClassVar[str] = "similarities"

    def evaluate(self, vectors: WordVectors) -> Scores:
        """Correlate cosines with the human scores."""
        from scipy.stats import spearmanr

        cosines, scores = [], []
        for (first, second), score in zip(self.pairs, self.scores, strict=True):
            a, b = vectors.find_row(first), vectors.find_row(second)
            if a is not None and b is not None:
                cosines.append(float(vectors.directions[a] @ vectors.directions[b]))
                scores.append(score)
        varies = len(set(cosines)) > 1 and len(set(scores)) > 1
        spearman = float(spearmanr(cosines, scores).statistic) if varies else None
        return {"pairs": len(self.pairs), "covered": len(cosines), "spearman": spearman}


def read_lists(path: str | Path) -> list[Analogies | Similarities]:
    """Read lists from a folder or a file: .txt, .tsv or .csv, with white space or commas between the fields.

    Analogies have ``: SECTION`` lines and lines of four words; similarities have lines of two words and a number.

    Raises:
        UserError: no list, two lists with the same name, or an invalid line.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    elif path.is_file():
        files = [path]
    else:
        raise UserError(f"{path} does not exist; give a file or a folder of {', '.join(_SUFFIXES)} files")
    if not files:
        raise UserError(f"{path} has no {', '.join(_SUFFIXES)} files; give a folder with lists")
    for first, second in pairwise(sorted(files, key=lambda file: file.stem)):
        if first.stem == second.stem:
            raise UserError(f"{first} and {second.name} have the same name without suffix; rename one of them")
    return [_read(file) for file in files]


def _read(path: Path) -> Analogies | Similarities:
    lines = list(_lines(path))
    if not lines:
        raise UserError(f"{path} is empty; give lists of analogies or of similarities")
    if len(lines[0][1]) == 4 or lines[0][1][0].startswith(":"):
        return _analogies(path, lines)
    pairs, scores = [], []
    for number, fields in lines:
        try:
            first, second, score = fields
            scores.append(float(score))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not two words and a number") from error
        pairs.append((first, second))
    return Similarities(path.stem, pairs, scores)


def _analogies(path: Path, lines: Sequence[tuple[int, list[str]]]) -> Analogies:
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    section = path.stem
    for number, fields in lines:
        if fields[0].startswith(":"):
            section = " ".join(fields).lstrip(": ")
        elif len(fields) == 4:
            a, b, c, d = fields
            sections.setdefault(section, []).append((a, b, c, d))
        else:
            raise UserError(
                f"{path}, line {number}: {len(fields)} words; a question has four, a section begins with a colon"
            )
    return Analogies(path.stem, sections)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8; save it in UTF-8") from error
    for number, line in enumerate(text.splitlines(), 1):
        fields = (line.replace(",", " ") if path.suffix == ".csv" else line).split()
        if fields:
            yield number, fields


def evaluate_vectors(vectors: WordVectors, lists: Sequence[Analogies | Similarities]) -> dict[str, Scores]:
    """Evaluate vectors on lists; words without a vector are looked up in lower case.

    Returns:
        ``analogies`` and ``similarities``, each by the name of the list. Analogies have ``questions``, ``covered`` (all
        four words have vectors), ``correct``, ``accuracy`` of the covered ones or None, and ``sections`` with the same
        keys. Similarities have ``pairs``, ``covered`` and ``spearman`` of cosines and scores, None without variance.
    """
    scores: dict[str, Scores] = {"analogies": {}, "similarities": {}}
    for words in lists:
        scores[words.kind][words.name] = words.evaluate(vectors)
    return scores


def _accuracy(questions: int, covered: int, correct: int) -> Scores:
    accuracy = correct / covered if covered else None
    return {"questions": questions, "covered": covered, "correct": correct, "accuracy": accuracy}


def _count_correct(vectors: WordVectors, questions: Sequence[tuple[str, str, str, str]]) -> tuple[int, int, int]:
    rows = [[vectors.find_row(word) for word in question] for question in questions]
    known = np.array([row for row in rows if None not in row], np.int64).reshape(-1, 4)
    correct = 0
    directions = vectors.directions
    for start in range(0, len(known), _BATCH):
        a, b, c, d = known[start : start + _BATCH].T
        # the sum is not normalised, which does not change the order
        cosines = (directions[b] - directions[a] + directions[c]) @ directions.T
        for word in (a, b, c):
            cosines[np.arange(len(a)), word] = -np.inf
        correct += int((cosines.argmax(1) == d).sum())
    return len(questions), len(known), correct
