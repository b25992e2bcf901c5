"""Counting pairs against counting them one by one, whatever memory there is."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from tiny_corpus import corpus_of, two_topics

from homespun.errors import UserError
from homespun.vectors import cooccurrence
from homespun.vectors.cooccurrence import Cooccurrence, count_pairs
from homespun.vectors.word_file import WordFile, WordsConfig, write_words


def made_up(folder: Path, words: int, lengths: list[int], seed: int = 0) -> WordFile:
    draw = np.random.default_rng(seed)
    ids = (words * draw.random(sum(lengths)) ** 3).astype(np.int32)
    path = folder / "ids"
    ids.tofile(path)
    counts = np.bincount(ids, minlength=words).astype(np.int64)
    return WordFile(path, [str(i) for i in range(words)], counts, np.cumsum(np.array(lengths, np.int64)))


def one_by_one(text: WordFile, window: int) -> dict[tuple[int, int], float]:
    """The definition (Pennington et al. 2014, section 3.1): each context word adds 1 / distance."""
    found: dict[tuple[int, int], float] = defaultdict(float)
    for ids in text.documents():
        for place, word in enumerate(ids.tolist()):
            for other in range(max(0, place - window), min(len(ids), place + window + 1)):
                if other != place:
                    found[word, int(ids[other])] += 1 / abs(place - other)
    return found


def cells(matrix: Cooccurrence) -> dict[tuple[int, int], float]:
    found = {}
    for number in range(matrix.blocks):
        block = matrix.block(number)
        rows = np.repeat(np.arange(matrix.words), np.diff(block.row_starts))
        for row, column, weight in zip(rows, block.words[block.columns], block.weights, strict=True):
            assert (int(row), int(column)) not in found
            found[int(row), int(column)] = float(weight)
    return found


@pytest.mark.parametrize(
    ("limits", "workers"),
    [
        ({}, 1),
        ({"PAIRS": 37}, 2),
        ({"PAIRS": 37, "RUN": 53, "MERGED": 29}, 3),
        ({"PAIRS": 11, "RUN": 1, "CELLS": 7}, 1),
    ],
    ids=["at once", "in pieces", "over disk", "every piece to disk"],
)
@pytest.mark.parametrize("window", [1, 5, 13])
def test_pairs_are_those_counted_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, limits: dict[str, int], workers: int
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(cooccurrence, name, limit)
    text = made_up(tmp_path, 43, [97, 0, 1, 3, 131])
    (tmp_path / "matrix").mkdir()
    progress: list[float] = []
    matrix = count_pairs(text, tmp_path / "matrix", window=window, workers=workers, on_progress=progress.append)
    wanted, found = one_by_one(text, window), cells(matrix)
    assert found.keys() == wanted.keys()
    assert matrix.cells == len(wanted)
    for key, weight in wanted.items():
        assert found[key] == pytest.approx(weight, rel=1e-5)
    assert progress == sorted(progress)
    assert progress[-1] == pytest.approx(1)
    # nothing is left but the matrix
    assert len(list((tmp_path / "matrix").iterdir())) == 3 * matrix.blocks


def test_words_are_sorted_by_frequency_and_rare_ones_dropped(tmp_path: Path) -> None:
    texts = ["b a b c a b .", "c b d a ."]
    text = write_words(corpus_of(texts, tmp_path / "corpus"), tmp_path / "words", WordsConfig(min_count=2))
    assert text.words == ["b", "a", ".", "c"]
    assert text.counts.tolist() == [4, 3, 2, 2]
    assert [ids.tolist() for ids in text.documents()] == [[0, 1, 0, 3, 1, 0, 2], [3, 0, 1, 2]]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_words_of_pieces_are_those_of_the_text(tmp_path: Path, kind: str) -> None:
    texts = two_topics(41)
    known = corpus_of(texts, tmp_path / "whole")
    full = write_words(known, tmp_path / "one", WordsConfig(min_count=1, lowercase=False))
    cut = corpus_of(texts, tmp_path / "cut", kind=kind, vocab_size={"bpe": 290, "wordpiece": 80, "unigram": 39}[kind])
    pieces = write_words(cut, tmp_path / "two", WordsConfig(min_count=1, lowercase=False))
    assert sorted(pieces.words) == sorted(full.words)
    assert pieces.counts.tolist() == full.counts.tolist()
    for number, corpus in enumerate((known, cut)):
        lower = write_words(corpus, tmp_path / f"lower-{number}", WordsConfig(min_count=1))
        assert sorted(lower.words) == sorted({word.lower() for word in full.words})
        assert int(lower.counts.sum()) == int(full.counts.sum()) == int(lower.ends[-1])
    tokens = write_words(cut, tmp_path / "four", WordsConfig(unit="tokens", min_count=1))
    assert int(tokens.ends[-1]) == cut.num_tokens


@pytest.mark.parametrize(
    ("texts", "unit", "message"), [(["a b c"], "words", "0 of 3 words.*min_count"), (["x x"], "words", "0 of 1 words")]
)
def test_a_corpus_without_words_is_one_line(tmp_path: Path, texts: list[str], unit: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        write_words(corpus_of(texts, tmp_path / "corpus"), tmp_path / "words", WordsConfig())
    assert "\n" not in str(caught.value)


def test_a_corpus_of_nothing_known_has_no_words(tmp_path: Path) -> None:
    from homespun.data.corpus_build import build_corpus
    from homespun.text.sources import Document

    tokenizer = corpus_of(["a b a b"], tmp_path / "known").tokenizer
    unknown = build_corpus([Document("x y z")] * 7, tokenizer, tmp_path / "unknown")
    with pytest.raises(UserError, match="0 of 0 words"):
        write_words(unknown, tmp_path / "words", WordsConfig(min_count=1))
