"""CoNLL files: a sentence a record."""

import gzip
from pathlib import Path

import pytest

from homespun.errors import UserError
from homespun.text.sources import read_records
from homespun.text.tokenizer import Tokenizer

LINES = """-DOCSTART- -X- O

# newpar
# text = Ada wrote
Ada NNP B-PER
Lovelace NNP I-PER
wrote VBD O

# NN O
5 CD O


"""


def test_a_record_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.conll.gz"
    path.write_bytes(gzip.compress(LINES.encode()))
    first, second = read_records([str(path)])
    assert first == {
        "words": ["Ada", "Lovelace", "wrote"],
        "column_2": ["NNP", "NNP", "VBD"],
        "tags": ["B-PER", "I-PER", "O"],
    }
    assert second["words"] == ["#", "5"]
    named = next(read_records([str(path)], columns=["word", "pos", "ner"]))
    assert list(named) == ["word", "pos", "ner"]


def test_the_last_sentence_needs_no_empty_line_and_tabs_part_words_with_spaces(tmp_path: Path) -> None:
    path = tmp_path / "a.bio"
    path.write_text("New York\tB-LOC\n\nis\tO\nbig\tO")
    assert [record["words"] for record in read_records([str(path)])] == [["New York"], ["is", "big"]]


def test_white_space_around_a_tag_is_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.bio"
    path.write_text("New York \tB-LOC\n is\tO \n")
    (record,) = read_records([str(path)])
    assert record == {"words": ["New York", "is"], "tags": ["B-LOC", "O"]}


def test_a_no_break_space_does_not_end_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("10\u00a0000  CD O\neuros NNS  O \n", encoding="utf-8")
    (record,) = read_records([str(path)])
    assert record == {"words": ["10\u00a0000", "euros"], "column_2": ["CD", "NNS"], "tags": ["O", "O"]}


def test_lines_of_another_width(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("Ada B-PER\nwrote\n")
    with pytest.raises(UserError, match=r"a\.conll, line 2 has 1 .* 2 columns \(words, tags\)"):
        list(read_records([str(path)]))


@pytest.mark.parametrize("kind", ["bpe", "bpe-characters", "wordpiece", "unigram", "words"])
def test_offsets_are_of_the_text(kind: str) -> None:
    texts = ["the old harbour, é\u00f1 and the new one"] * 7 + ["a quay; the harbour"]
    tokenizer = Tokenizer.train(texts, kind=kind, vocab_size={"bpe": 280, "words": 15, "unigram": 26}.get(kind, 40))
    text = "  the harbour\tand  the quay"
    (ids, offsets), (none, nowhere) = tokenizer.encode_with_offsets([text, ""])
    assert ids.tolist() == tokenizer.encode_batch([text])[0].tolist()
    assert len(none) == len(nowhere) == 0
    assert offsets.shape == (len(ids), 2)
    pieces = [text[start:end] for start, end in offsets]
    covered = {place for start, end in offsets for place in range(start, end)}  # "▁" may share its word's first letter
    assert covered == {place for place, letter in enumerate(text) if not letter.isspace()}
    assert (offsets[1:, 0] >= offsets[:-1, 0]).all()
    assert all(piece == piece.strip() for piece in pieces)
