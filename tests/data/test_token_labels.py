"""Words and their pieces: label alignment and windows of long sentences."""

import numpy as np
import pytest

from homespun.data.labels import Labels
from homespun.data.token_labels import IGNORE_INDEX, TaggedWords, TokenLabelRows
from homespun.metrics.sequence_labels import extract_entities
from homespun.tasks.taggers import TaggedData
from homespun.text.tokenizer import Tokenizer

LABELS = Labels(("B-X", "I-X", "O"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["harbour harbours quay quays the of and old"] * 3, kind="wordpiece", vocab_size=48)


def rows(tokenizer: Tokenizer, *sentences: TaggedWords, length: int = 64, stride: int = 0) -> TokenLabelRows:
    return TokenLabelRows(sentences, tokenizer, length=length, stride=stride, names=LABELS)


def test_the_first_piece_carries_the_tag(tokenizer: Tokenizer) -> None:
    words = ("the", "hoary", "", "quay", "\u200b\ufeff", "ed")
    made = rows(tokenizer, TaggedWords(words, ("O", "B-X", "O", "I-X", "O", "new")))
    row = made[0]
    ids = [tokenizer.encode_batch([word])[0].tolist() for word in words]
    assert row.input_ids.tolist() == [tokenizer.cls_id, *(i for pieces in ids for i in pieces), tokenizer.sep_id]
    assert len(ids[1]) > 1
    expected = [IGNORE_INDEX]
    for pieces, label in zip(ids, (2, 0, 2, 1, 2, IGNORE_INDEX), strict=True):
        expected += [label, *[IGNORE_INDEX] * (len(pieces) - 1)][: len(pieces)]
    assert row.label.tolist() == [*expected, IGNORE_INDEX]
    assert made.counts["unseen_tags"] == 1
    assert made.counts["words_without_pieces"] == sum(not pieces for pieces in ids) == 2


def test_empty_sentences_have_no_row(tokenizer: Tokenizer) -> None:
    made = rows(tokenizer, TaggedWords(()), TaggedWords(("old",), ("O",)), TaggedWords(("",), ("O",)))
    assert len(made) == 1
    assert made.owner(0) == 1
    assert made.counts["empty_sentences"] == 1


@pytest.mark.parametrize(("length", "stride"), [(13, 0), (13, 5), (11, 8), (64, 3)])
def test_windows_label_every_word_once(tokenizer: Tokenizer, length: int, stride: int) -> None:
    words = tuple(["the", "old", "harbours", "of", "quay"] * 5)
    tags = tuple(["O", "O", "B-X", "O", "I-X"] * 5)
    made = rows(tokenizer, TaggedWords(words, tags), length=length, stride=stride)
    assert (made.lengths <= length).all()
    found = np.concatenate([made.first_pieces(index)[1] for index in range(len(made))])
    assert sorted(found.tolist()) == list(range(25))
    for index in range(len(made)):
        row = made[index]
        assert len(row.input_ids) == made.lengths[index]
        places, of = made.first_pieces(index)
        assert np.flatnonzero(row.label != IGNORE_INDEX).tolist() == places.tolist()
        assert [LABELS.names[n] for n in row.label[places]] == [tags[word] for word in of]
        for place, word in zip(places.tolist(), of.tolist(), strict=True):
            assert row.input_ids[place] == tokenizer.encode_batch([words[word]])[0][0]


def test_lists_texts_and_conll_read_the_same(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"words": ["a", "b"], "tags": [1, "0 "]}\n{"words": "a b", "tags": "1 0"}\n')
    (tmp_path / "b.txt").write_text("a x 1\nb x 0\n")
    one = TaggedWords(("a", "b"), ("1", "0"))
    assert TaggedData().read_files([str(tmp_path / "a.jsonl"), str(tmp_path / "b.txt")]) == [one, one, one]


@pytest.mark.parametrize("suffix", [".txt", ".conll"])
def test_only_line_ends_end_a_line(tmp_path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes("a\u2028b x 1\r\nc\x0cd x 0\r\n".encode())
    assert TaggedData().read_files([str(path)]) == [TaggedWords(("a\u2028b", "c\x0cd"), ("1", "0"))]


@pytest.mark.parametrize(
    "tags",
    [
        ["B-X", "I-X", "O", "I-X", "I-Y", "B-Y", "B-Y", "I-Y"],
        ["O", "I-X", "B-X", "O", "O", "I-X"],
        ["S-X", "B-Y", "I-Y", "E-Y", "S-X", "S-X"],
        ["B-X", "E-X", "I-X", "B-X"],
    ],
)
def test_entities_are_those_of_seqeval(tags: list[str]) -> None:
    scheme = pytest.importorskip("seqeval.metrics.sequence_labeling")
    assert extract_entities(tags) == scheme.get_entities(tags)


def test_parts_of_speech_with_hyphens_are_no_entities() -> None:
    assert extract_entities(["-LRB-", "NN", "-RRB-", "BI-X", "B-X"]) == [("X", 4, 4)]
