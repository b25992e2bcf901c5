"""Source-target pairs: records, rows, mixed data sets."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from homespun.data.source_target import SourceTargetPair, SourceTargetRows, SourceTargetTemplate, mix_rows
from homespun.errors import UserError
from homespun.tasks.seq2seq_data import TextPairsData
from homespun.text.tokenizer import Tokenizer

PAIRS = [
    SourceTargetPair("the cat sat on the mat and slept", ("a cat slept", "sleeping cat")),
    SourceTargetPair("", ("nothing",)),
    SourceTargetPair("the dog", ("dog",), data_set=1),
    SourceTargetPair("the dog", ()),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["the cat sat on the mat and slept", "the dog nothing summarize: TL;DR: a sleeping name it"] * 3
    return Tokenizer.train(texts, kind="bpe", vocab_size=280)


def rows(tokenizer: Tokenizer, template: SourceTargetTemplate, **lengths: int) -> SourceTargetRows:
    given = {"source_length": 37, "target_length": 23} | lengths
    return SourceTargetRows(PAIRS, tokenizer, template=template, prefixes=("", "name it: "), **given)


def test_a_row_is_a_source_and_one_of_its_targets_in_their_frames(tokenizer: Tokenizer) -> None:
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    found = rows(tokenizer, SourceTargetTemplate.for_encoder_decoder(tokenizer, bos_id=cls, eos_id=sep))
    assert len(found) == 3
    for row in (found[0], found[1], found[2]):
        for ids in (row.input_ids, row.target_ids):
            assert (ids[0], ids[-1]) == (cls, sep)
            assert sep not in ids[1:-1]
    assert tokenizer.decode(found[0].input_ids) == tokenizer.decode(found[1].input_ids) == PAIRS[0].source
    assert [tokenizer.decode(found[i].target_ids) for i in range(3)] == ["a cat slept", "sleeping cat", "dog"]
    assert tokenizer.decode(found[2].input_ids) == "name it: the dog"
    assert found.lengths.tolist() == [len(found[i].input_ids) + len(found[i].target_ids) for i in range(3)]
    assert found.counts == {"empty": 2, "longer": 0, "truncated": 0, "targets_truncated": 0}
    assert found.usable.tolist() == [0, 2]


def test_a_model_without_a_first_token_has_none(tokenizer: Tokenizer) -> None:
    template = SourceTargetTemplate.for_encoder_decoder(tokenizer, bos_id=None, eos_id=None)
    assert (template.before, template.after_source) == ((), (tokenizer.sep_id,))
    foreign = SourceTargetTemplate.for_encoder_decoder(tokenizer, bos_id=tokenizer.mask_id, eos_id=7)
    assert (foreign.before, foreign.after_target) == ((), (7,))


def test_one_stack_reads_a_text_that_goes_on(tokenizer: Tokenizer) -> None:
    found = rows(tokenizer, SourceTargetTemplate.for_decoder(tokenizer, " TL;DR: "))[0]
    joined = np.concatenate([found.input_ids, found.target_ids])
    assert tokenizer.decode(joined) == f"{PAIRS[0].source} TL;DR: a cat slept"
    assert joined[0] == tokenizer.cls_id
    assert joined[-1] == tokenizer.sep_id
    # the words are the tokens that they are inside a text
    assert found.target_ids[:-1].tolist() == tokenizer.encode_batch([" a cat slept"])[0].tolist()


def test_what_is_too_long_is_cut_at_its_end_and_counted(tokenizer: Tokenizer) -> None:
    template = SourceTargetTemplate.for_encoder_decoder(tokenizer, bos_id=tokenizer.cls_id, eos_id=tokenizer.sep_id)
    found = rows(tokenizer, template, source_length=11, target_length=5)
    assert len(found[0].input_ids) == 11
    assert found[0].input_ids[-1] == tokenizer.sep_id
    assert tokenizer.decode(found[2].input_ids).startswith("name it")  # a prefix is not what is cut
    assert found.counts["truncated"] == int(found.cut.sum()) == 2
    assert found.counts["targets_truncated"] >= 2
    with pytest.raises(UserError, match=r"data\.max_target_length=2 "):
        rows(tokenizer, template, target_length=2)


class Numbered:
    def __init__(self, rows: int) -> None:
        self.lengths = np.arange(rows)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("weights", "limit", "expected"),
    [
        ((1.0, 1.0, 1.0), None, (103, 31, 7)),  # in proportion: every row once
        ((1.0, 1.0, 1.0), 31, (103, 103, 23)),  # 31 : 31 : 7, until the largest was gone through
        ((1.0, 1.0, 2.0), 31, (103, 103, 47)),
        ((1.0, 1.0, 1.0), 5, (103, 103, 103)),
    ],
)
def test_data_sets_are_mixed_by_size_up_to_a_limit(
    weights: tuple[float, ...], limit: int | None, expected: tuple[int, ...]
) -> None:
    data_sets = np.repeat([0, 1, 2], [103, 31, 7])
    mixture = mix_rows(Numbered(141), data_sets, weights=weights, limit=limit)
    seen = [mixture[i] for i in range(len(mixture))]
    assert tuple(Counter(data_sets[seen].tolist())[k] for k in range(3)) == expected
    assert set(seen) == set(range(141))  # nothing is left out
    times = Counter(seen)
    for number in range(3):  # and in one data set all come equally often
        own = [times[i] for i in np.flatnonzero(data_sets == number).tolist()]
        assert max(own) - min(own) <= 1
    assert mixture.lengths.tolist() == seen


def test_records(tmp_path: Path) -> None:
    records = [{"a": ["One.", "Two."], "b": ["x", "y", "x"]}, {"a": "Three.", "b": None}, {"a": " ", "b": "z"}]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = TextPairsData(source=["a"], target=["b"]).read_files([str(file)])
    assert [(pair.source, pair.targets, pair.is_empty) for pair in found] == [
        ("One. Two.", ("x", "y"), False),
        ("Three.", (), True),
        ("", ("z",), True),
    ]
    joined = TextPairsData(source=["a"], target=["b"], listed="sentences").read_files([str(file)])
    assert joined[0].targets == ("x y x",)
    with pytest.raises(UserError, match=r"row 1 of .* no column 'c'.*: a, b"):
        TextPairsData(source=["a"], target=["c"]).read_files([str(file)])
    file.write_text(json.dumps({"a": {"x": 1}, "b": "z"}))
    with pytest.raises(UserError, match=r"'a' .*dict"):
        TextPairsData(source=["a"], target=["b"]).read_files([str(file)])
