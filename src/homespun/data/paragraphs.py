"""Several documents as one source: their paragraphs, ranked, numbered and cut to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from homespun.config import Config
from homespun.text.tokenizer import TokenIds, Tokenizer

BREAK = "\n"
"""Stands between documents, and between the paragraphs of one."""


class Paragraphs(Config):
    """Choice of the paragraphs (lines) of a source (Liu and Lapata 2019, section 3.1).

    They are ranked by TF-IDF similarity to a title, or to all of them together without one; the paper learns its ranker
    and has this one as its baseline.
    """

    max_paragraphs: int = Field(default=24, ge=1, description="paragraphs; the paper's is 24")
    max_length: int = Field(default=64, ge=4, description="tokens of a paragraph at the most")
    title: str = Field(default="", description="column of a title, by which they are ranked; not read by the model")
    order: Literal["rank", "text"] = Field(
        default="rank", description="how those that are taken are numbered: the best first, or as they stand"
    )

    def read(self, text: str, title: str, tokenizer: Tokenizer, room: int) -> NumberedParagraphs:
        """Paragraphs of ``text`` that fit into ``room`` tokens."""
        lines = [line for line in map(str.strip, text.split(BREAK)) if line]
        chosen = rank_paragraphs(lines, title)[: self.max_paragraphs]
        ids: list[TokenIds] = []
        taken: list[int] = []
        cut = False
        for line, encoded in zip(chosen, tokenizer.encode_batch([lines[line] for line in chosen]), strict=True):
            part = encoded[: min(self.max_length, room)].copy()
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
    """Tokens of a source."""

    ids: TokenIds  # (tokens,)
    documents: NDArray[np.int64]  # (tokens,) number of the paragraph
    cut: bool = False  # something was left out
    left_out: int = 0  # paragraphs


def rank_paragraphs(lines: Sequence[str], title: str) -> list[int]:
    """Numbers of ``lines`` by TF-IDF similarity to ``title``, or to all lines without one; ties stay in order."""
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
