"""Several documents as one text to read: their paragraphs, the likeliest to matter first, numbered, cut to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config
from homespun.text.tokenizer import Tokenizer

BREAK = "\n"
"""Stands between documents, and between the paragraphs of one."""


class Paragraphs(Config):
    """Which paragraphs of a source a model is given, and how much of each (Liu and Lapata 2019, section 3.1).

    Paragraphs are lines. They are ranked by TF-IDF similarity to a title, or to all of them together where there is
    none; the paper learns its ranker, and names this as the line to beat.
    """

    most: int = Field(default=24, ge=1, description="paragraphs; the paper's is 24")
    length: int = Field(default=64, ge=4, description="tokens of a paragraph at the most")
    title: str = Field(default="", description="column of a title, by which they are ranked; not read by the model")
    order: Literal["rank", "text"] = Field(
        default="rank", description="how those that are taken are numbered: the best first, or as they stand"
    )

    def read(self, text: str, title: str, tokenizer: Tokenizer, room: int) -> NumberedParagraphs:
        """The paragraphs of ``text`` that fit into ``room`` tokens."""
        lines = [line for line in map(str.strip, text.split(BREAK)) if line]
        chosen = rank_paragraphs(lines, title)[: self.most]
        ids: list[NDArray[Any]] = []
        taken: list[int] = []
        cut = False
        for line, encoded in zip(chosen, tokenizer.encode_batch([lines[line] for line in chosen]), strict=True):
            part = encoded[: min(self.length, room)].copy()
            if len(part):  # what has no token is no paragraph, and what has no room is left out
                ids.append(part)
                taken.append(line)
            cut = cut or len(part) < len(encoded)
            room -= len(part)
        if self.order == "text":
            ids = [ids[place] for place in np.argsort(taken)]
        documents = np.repeat(np.arange(len(ids)), [len(part) for part in ids])
        joined = np.concatenate(ids) if ids else np.empty(0, np.int64)
        return NumberedParagraphs(
            joined, documents, cut=cut or len(taken) < len(lines), left_out=len(lines) - len(taken)
        )


@dataclass(frozen=True)
class NumberedParagraphs:
    """The tokens of a source.

    Args:
        ids: (tokens,) ids.
        documents: (tokens,) the number of the paragraph of each.
        cut: something was left out.
        left_out: paragraphs that were.
    """

    ids: NDArray[Any]
    documents: NDArray[np.int64]
    cut: bool = False
    left_out: int = 0


def rank_paragraphs(lines: Sequence[str], title: str) -> list[int]:
    """The numbers of ``lines``, that most like ``title`` first; equal ones, and those without a word, as they stand.

    Words weigh by how few of the lines have them (TF-IDF). Without a title they are compared with all lines together.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    try:
        vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit(lines)
    except ValueError:  # no word, or no line
        return list(range(len(lines)))
    vectors = vectorizer.transform(lines)
    wanted = vectorizer.transform([title]) if title.strip() else vectors.mean(axis=0)
    likeness = np.asarray(vectors @ np.asarray(wanted.todense() if title.strip() else wanted).T).ravel()
    order: list[int] = np.argsort(-likeness.round(12), kind="stable").tolist()
    return order
