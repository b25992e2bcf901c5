"""What word vectors know: analogies by section, and similarities against those that people gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from homespun.errors import UserError
from homespun.vectors.word_vectors import WordVectors

_SUFFIXES = (".txt", ".tsv", ".csv")
_AT_ONCE = 256  # questions


@dataclass(frozen=True)
class Analogies:
    """Questions by section: a is to b as c is to d."""

    name: str
    sections: dict[str, list[tuple[str, str, str, str]]]


@dataclass(frozen=True)
class Similarities:
    """Pairs of words, and how alike people found them."""

    name: str
    pairs: list[tuple[str, str]]
    scores: list[float]


def read_lists(path: str | Path) -> list[Analogies | Similarities]:
    """The lists in a folder, or one file: .txt, .tsv or .csv, with white space or commas between the fields.

    A file of analogies has ``: SECTION`` lines and four words a line; one of similarities two words and a number.

    Raises:
        UserError: no such list, two of one name, or a line that is neither.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    elif path.is_file():
        files = [path]
    else:
        raise UserError(f"there are no lists at {path}; give a file or a folder of {', '.join(_SUFFIXES)} files")
    if not files:
        raise UserError(f"{path} has no lists in it; they are {', '.join(_SUFFIXES)} files")
    for one, other in pairwise(sorted(files, key=lambda file: file.stem)):
        if one.stem == other.stem:
            raise UserError(f"{one} and {other.name} are lists of one name; rename one of them")
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
            raise UserError(f"{path}, line {number}: {len(fields)} words, where a question has four, a section a colon")
    return Analogies(path.stem, sections)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8; save it so") from error
    for number, line in enumerate(text.splitlines(), 1):
        fields = (line.replace(",", " ") if path.suffix == ".csv" else line).split()
        if fields:
            yield number, fields


def evaluate_vectors(vectors: WordVectors, lists: Sequence[Analogies | Similarities]) -> dict[str, Any]:
    """``analogies`` and ``similarities`` by the name of the list.

    Of analogies: ``questions``, ``covered`` (all four words have vectors; the others are left out of the accuracy),
    ``correct``, ``accuracy`` (None where none is covered), and the same by section in ``sections``. An answer is the
    nearest word to b - a + c among all, without a, b and c. Of similarities: ``pairs``, ``covered``, ``spearman``
    (None where fewer than two different are covered), of the cosines with people's scores. Words are looked up as they
    are, and in lower case where that is not there.
    """
    found: dict[str, Any] = {"analogies": {}, "similarities": {}}
    for each in lists:
        if isinstance(each, Analogies):
            found["analogies"][each.name] = _answer(vectors, each)
        else:
            found["similarities"][each.name] = _compare(vectors, each)
    return found


def _answer(vectors: WordVectors, analogies: Analogies) -> dict[str, Any]:
    sections = {name: _score(vectors, questions) for name, questions in analogies.sections.items()}
    totals = {key: sum(section[key] for section in sections.values()) for key in ("questions", "covered", "correct")}
    return {**totals, "accuracy": _share(totals["correct"], totals["covered"]), "sections": sections}


def _score(vectors: WordVectors, questions: Sequence[tuple[str, str, str, str]]) -> dict[str, Any]:
    rows = [[vectors.find_row(word) for word in question] for question in questions]
    known = np.array([row for row in rows if None not in row], np.int64).reshape(-1, 4)
    correct = 0
    directions = vectors.directions
    for start in range(0, len(known), _AT_ONCE):
        a, b, c, d = known[start : start + _AT_ONCE].T
        cosines = (directions[b] - directions[a] + directions[c]) @ directions.T  # its length changes no order
        here = np.arange(len(a))
        for given in (a, b, c):
            cosines[here, given] = -np.inf
        correct += int((cosines.argmax(1) == d).sum())
    return {
        "questions": len(questions),
        "covered": len(known),
        "correct": correct,
        "accuracy": _share(correct, len(known)),
    }


def _compare(vectors: WordVectors, similarities: Similarities) -> dict[str, Any]:
    cosines, scores = [], []
    for (first, second), score in zip(similarities.pairs, similarities.scores, strict=True):
        a, b = vectors.find_row(first), vectors.find_row(second)
        if a is not None and b is not None:
            cosines.append(float(vectors.directions[a] @ vectors.directions[b]))
            scores.append(score)
    varies = len(set(cosines)) > 1 and len(set(scores)) > 1
    spearman = float(spearmanr(cosines, scores).statistic) if varies else None
    return {"pairs": len(similarities.pairs), "covered": len(cosines), "spearman": spearman}


def _share(part: int, total: int) -> float | None:
    return part / total if total else None
