"""Questions and their windows: where answers are, which windows hold them, what is done about wrong offsets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homespun.data.question_answering import Question, QuestionRows
from homespun.errors import UserError
from homespun.tasks.question_answering import QuestionData
from homespun.text.tokenizer import Tokenizer

CONTEXT = "The  old quay is by the harbour; the new quay (of the harbour) is not."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([CONTEXT] * 3, kind="wordpiece", vocab_size=48, lowercase=True)


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def squad(*questions: dict[str, Any]) -> dict[str, Any]:
    paragraph = {"context": CONTEXT, "qas": list(questions)}
    return {"version": "1.1", "data": [{"title": "Quays", "paragraphs": [paragraph]}]}


def test_forms_of_a_question(tmp_path: Path) -> None:
    start = CONTEXT.index("new quay")
    (tmp_path / "squad.json").write_text(
        json.dumps(squad({"id": "7", "question": "Which?", "answers": [{"text": "new quay", "answer_start": start}]}))
    )
    flat = {"question": "Which?", "context": CONTEXT}
    rows = write(
        tmp_path / "rows.jsonl",
        flat | {"answers": {"text": ["new quay", "the new quay"], "answer_start": [start, start - 4]}},
        flat | {"answers": {"text": ["new quay", "the harbour"], "answer_start": [start]}},
        flat | {"answers": {"text": ["new quay"], "answer_start": start}},
        flat | {"answers": "new quay"},
        flat | {"answers": ["new quay"]},
        flat | {"answers": []},
        flat | {"answers": [{"text": "new quay", "answer_start": start}], "is_impossible": True},
    )
    found = QuestionData().read_files([str(tmp_path / "squad.json"), rows])
    spans = [[CONTEXT[a:b] for a, b in one.spans] for one in found]
    assert spans == [
        ["new quay"],
        ["new quay", "the new quay"],
        ["new quay", "the harbour"],
        *[["new quay"]] * 3,
        [],
        [],
    ]
    assert [one.article for one in found] == ["Quays", *[""] * 7]
    assert found[0].name == "7"
    assert not any(one.realigned for one in found)


@pytest.mark.parametrize(
    ("value", "impossible"),
    [
        *((value, True) for value in (True, 1, "True", " true ", "1")),
        *((v, False) for v in (False, 0, "FALSE", "0", "", None)),
    ],
)
def test_is_impossible_as_text(value: Any, impossible: bool, tmp_path: Path) -> None:
    row = {"question": "Which?", "context": CONTEXT, "answers": "new quay", "is_impossible": value}
    (found,) = QuestionData().read_files([write(tmp_path / "rows.jsonl", row)])
    assert found.answers == (() if impossible else ("new quay",))


def test_wrong_offsets_are_mended(tmp_path: Path) -> None:
    second = CONTEXT.rindex("the harbour")
    rows = [
        {"question": "q", "context": CONTEXT, "answers": [{"text": text, "answer_start": start}]}
        for text, start in (("the harbour", second - 3), ("the harbour", 0), ("the harbour", -5), ("a pier", 4))
    ]
    found = QuestionData().read_files([write(tmp_path / "rows.jsonl", *rows)])
    first = CONTEXT.index("the harbour")
    assert [one.spans for one in found] == [((at, at + 11),) for at in (second, first, first)] + [()]
    assert [one.realigned for one in found] == [1, 1, 1, 0]
    assert found[3].answers == ("a pier",)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q", "context": "c"}, "no column 'answers'.*: question, context"),
        ({"question": "q", "context": ["c"], "answers": []}, "'context' .*list"),
        ({"question": "q", "context": "c", "answers": [["c"]]}, "text and answer_start"),
        ({"question": "q", "context": "c", "answers": [{"text": "c", "answer_start": "0"}]}, "texts, or objects"),
        (
            {"question": "q", "context": "c", "answers": "c", "is_impossible": "perhaps"},
            "row 1 of .*: is_impossible='perhaps'",
        ),
        ({"paragraphs": [{"context": "c"}]}, "no column 'qas'"),
        ({"paragraphs": "c"}, "'paragraphs' .*objects"),
    ],
)
def test_what_cannot_be_read(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        QuestionData().read_files([write(tmp_path / "rows.jsonl", row)])


def rows_of(tokenizer: Tokenizer, *questions: Question, **changes: Any) -> QuestionRows:
    settings: dict[str, Any] = {"length": 17, "stride": 5, "question_length": 3} | changes
    return QuestionRows(questions, tokenizer, **settings)


def test_the_answer_span_matches_its_label(tokenizer: Tokenizer) -> None:
    start = CONTEXT.index("new quay")
    asked = Question("which quay", CONTEXT, ("new quay",), ((start, start + 8),))
    rows = rows_of(tokenizer, asked)
    assert (rows.lengths <= 17).all()
    assert len(rows) > 2
    held = 0
    for index, window in enumerate(rows.windows):
        row = rows[index]
        assert len(row.input_ids) == rows.lengths[index]
        assert row.input_ids[row.sentence_ends[0] - 1] == tokenizer.sep_id == row.input_ids[-1]
        assert row.token_type_ids.tolist() == [0] * window.place + [1] * (window.tokens + 1)
        first, last = np.asarray(row.label).tolist()
        offsets = rows.offsets(window)
        if first:
            held += 1
            assert CONTEXT[offsets[first - window.place, 0] : offsets[last - window.place, 1]] == "new quay"
        else:
            assert last == 0
            assert not (offsets[0, 0] <= start and start + 8 <= offsets[-1, 1])
    assert 0 < held < len(rows)
    assert rows.counts["windowed"] == 1


def test_windows_hold_every_token(tokenizer: Tokenizer) -> None:
    rows = rows_of(tokenizer, Question("which quay", CONTEXT))
    places = {place for window in rows.windows for place in range(window.start, window.start + window.tokens)}
    assert places == set(range(len(tokenizer.encode_batch([CONTEXT])[0])))
    starts = [window.start for window in rows.windows]
    assert np.diff(starts).tolist() == [rows.windows[0].tokens - 5] * (len(starts) - 1)


def test_what_is_left_out_is_counted(tokenizer: Tokenizer) -> None:
    lost = Question("the", "the quay", ("a pier",), (), realigned=0)
    moved = Question("old", "the quay", ("quay",), ((4, 8),), realigned=1)
    none, long = Question("quay", "the harbour"), Question("old " * 9, "the quay")
    rows = rows_of(tokenizer, lost, moved, none, long, Question("quay", "  \n"))
    assert rows.counts == {
        "empty_contexts": 1,
        "answers_realigned": 1,
        "answers_dropped": 1,
        "windowed": 0,
        "questions_truncated": 1,
    }
    assert [rows.windows[index].question for index in rows.trainable_rows] == [1, 2, 3]
    assert len(rows) == 4
    assert rows_of(tokenizer, none, segments=False)[0].token_type_ids is None


def test_length_too_short_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"data\.max_length=17 .*13 .*data\.stride=13"):
        rows_of(tokenizer, Question("the", CONTEXT), stride=13)
