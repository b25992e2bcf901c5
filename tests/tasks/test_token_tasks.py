"""Tags and answers as objectives: their losses by hand, padding, frozen encoders, and the spans that are best."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from homespun.batch import RowSeed
from homespun.data.labels import Labels
from homespun.data.question_answering import Question, QuestionRows, question_batch
from homespun.data.rows import Row
from homespun.data.token_labels import IGNORE_INDEX, TaggedWords, TokenLabelRows
from homespun.errors import UserError
from homespun.inference import spans
from homespun.inference.spans import find_answers, predict_tags
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.models.model import Model
from homespun.tasks.protocol import TaskData
from homespun.tasks.question_answering import QuestionAnswering, QuestionAnsweringCollator, QuestionData
from homespun.tasks.taggers import MAX_TAGS, TaggedData, collect_tags
from homespun.tasks.texts import PairsData
from homespun.tasks.token_classification import TokenClassification, TokenClassificationCollator
from homespun.text.tokenizer import Tokenizer

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 23}
LABELS = Labels(("B-X", "I-X", "O"))


def base(**changes: Any) -> tuple[Model, ModelConfig]:
    torch.manual_seed(3)
    tree: dict[str, Any] = SIZES | {"vocab_size": 61, "max_position_embeddings": 64, "type_vocab_size": 2}
    config = ModelConfig.model_validate({"backbone": tree | changes})
    return config.build(), config


def row_seeds(rows: list[Row]) -> list[RowSeed]:
    return [RowSeed(0, 0, index) for index in range(len(rows))]


def tagged(*labels: list[int]) -> list[Row]:
    generator = np.random.default_rng(1)
    return [Row(generator.integers(5, 61, len(label)), label=np.array(label, dtype=np.int64)) for label in labels]


@pytest.mark.parametrize(("value", "text"), [("ab c", "ab c"), (0, "0"), (None, ""), (np.nan, "")])
def test_a_missing_text_has_no_words_and_zero_is_a_text(value: object, text: str) -> None:
    found, spans = TaggedData().split({"text": value}, where="row 1")
    assert found == text
    assert [found[start:end] for start, end in spans] == text.split()


@pytest.mark.parametrize(("data", "texts"), [(QuestionData(), ["q"]), (PairsData(), ["a", "b", "c"])])
def test_an_input_of_another_number_of_texts_is_one_line(data: TaskData, texts: list[str]) -> None:
    with pytest.raises(UserError, match=f"give two texts, not {len(texts)}"):
        data.record_of_texts(texts)


@pytest.mark.parametrize(("data", "columns"), [(TaggedData(), ["a", "b"]), (QuestionData(), ["a", "b", "c"])])
def test_more_columns_than_the_model_reads_are_refused(data: TaskData, columns: list[str]) -> None:
    with pytest.raises(UserError, match=f"--text-field is given {len(columns)} times"):
        data.rename_columns(columns, None)


def test_the_record_of_a_pair_has_both_texts() -> None:
    data = PairsData(first=["title", "body"], second="claim")
    assert data.texts_of(data.record_of_texts(["x", "y"]), where="row 1") == ("x", "y")


class TestTagging:
    rows = tagged(
        [IGNORE_INDEX, 2, 0, IGNORE_INDEX, 1, IGNORE_INDEX],
        [IGNORE_INDEX, 0, IGNORE_INDEX],
        [IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX, IGNORE_INDEX],
        [IGNORE_INDEX, 1, 1, 2, 2, 0, 2, IGNORE_INDEX],
    )

    @pytest.mark.parametrize("weights", [None, (0.5, 2.0, 3.0)])
    def test_the_loss_is_the_mean_over_labelled_tokens(self, weights: tuple[float, ...] | None) -> None:
        objective = TokenClassification().build(*base(), LABELS, weights=weights).eval()
        batch = TokenClassificationCollator(0, weights)(self.rows, row_seeds(self.rows))
        loss = objective(batch)
        logits = objective.model(batch.input_ids, **batch.context)
        table = torch.full(batch.input_ids.shape, IGNORE_INDEX)
        for index, row in enumerate(self.rows):
            assert isinstance(row.label, np.ndarray)
            table[index, : len(row.label)] = torch.from_numpy(row.label)
        given = None if weights is None else torch.tensor(weights)
        expected = F.cross_entropy(logits.flatten(0, 1), table.flatten(), weight=given, ignore_index=IGNORE_INDEX)
        torch.testing.assert_close(loss.total(), expected)
        torch.testing.assert_close(loss.total(batch.targets), expected)
        assert batch.targets["accuracy"] == 10.0

    def test_rows_without_labels_are_no_trouble(self) -> None:
        objective = TokenClassification().build(*base(), LABELS)
        batch = TokenClassificationCollator(0)(self.rows[2:3], row_seeds(self.rows[2:3]))
        assert float(objective(batch).total().detach()) == 0.0

    def test_alone_as_in_a_batch(self) -> None:
        objective = TokenClassification().build(*base(), LABELS).eval()
        collate = TokenClassificationCollator(0)
        whole = objective(collate(self.rows, row_seeds(self.rows))).terms["loss"].sum
        alone = [objective(collate([row], row_seeds([row]))).terms["loss"].sum for row in self.rows]
        torch.testing.assert_close(torch.stack(alone).sum(), whole)

    def test_a_frozen_encoder_learns_nothing(self) -> None:
        objective = TokenClassification(frozen=True).build(*base(), LABELS).train()
        objective(TokenClassificationCollator(0)(self.rows, row_seeds(self.rows))).total().backward()
        assert all(p.grad is None for p in objective.model.backbone.parameters())
        assert not objective.model.backbone.training
        assert all(p.grad is not None for p in objective.model.head.parameters())

    def test_balanced_weights(self) -> None:
        targets = np.array([0, 0, 1, 2, 2, 2])
        weights = TokenClassification(class_weights="balanced").weights(LABELS, targets)
        assert weights == pytest.approx((1.0, 2.0, 2 / 3))


def questions(tokenizer: Tokenizer) -> QuestionRows:
    long = "the old quay and the new harbour of the old harbour quay " * 3
    asked = (
        Question("which quay", long, ("old",), ((4, 7),)),
        Question("old", "the quay of the harbour", ("harbour",), ((16, 23),)),
        Question("new harbour", "of the new old"),
    )
    return QuestionRows(asked, tokenizer, length=23, stride=5, question_length=5)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    text = "the old quay and the new harbour of which"
    return Tokenizer.train([text] * 3, kind="wordpiece", vocab_size=45)


class TestAnswers:
    def test_the_loss_is_that_of_both_ends(self, tokenizer: Tokenizer) -> None:
        rows = questions(tokenizer)
        objective = QuestionAnswering().build(*base()).eval()
        whole = [rows[index] for index in range(len(rows))]
        batch = QuestionAnsweringCollator(tokenizer.pad_id)(whole, row_seeds(whole))
        alone = []
        for row in whole:
            ids, types = (torch.from_numpy(array)[None] for array in (row.input_ids, row.token_type_ids))
            logits = objective.model(ids, token_type_ids=types)[0]  # no padding there
            label = torch.from_numpy(np.asarray(row.label))
            alone.append(F.cross_entropy(logits.T, label))
        torch.testing.assert_close(objective(batch).total(), torch.stack(alone).mean())

    def test_lengths_beyond_the_model_are_lowered(self, tokenizer: Tokenizer) -> None:
        """A checkpoint of other software has no task metadata, and may be shorter than the defaults."""
        loss = QuestionAnswering().build(*base())
        stored = ModelBundle(loss.model, loss.config, tokenizer)
        data = QuestionAnswering.task_from_metadata(QuestionData(), stored, source="x").data
        assert (data.max_length, data.stride, data.max_question_length) == (64, 21, 21)

    def test_the_question_sees_all(self, tokenizer: Tokenizer) -> None:
        rows = questions(tokenizer)
        batch = question_batch([rows[0], rows[len(rows) - 1]], tokenizer.pad_id)
        counts = batch.global_attention_mask.sum(dim=1).tolist()
        assert counts == [rows.windows[0].place, rows.windows[-1].place]
        assert batch.global_attention_mask[:, : min(counts)].all()

    @pytest.mark.parametrize("no_answer", [False, True])
    def test_the_best_spans_are_the_best(self, tokenizer: Tokenizer, no_answer: bool) -> None:
        rows = questions(tokenizer)
        model = QuestionAnswering().build(*base()).model.eval()
        limits: dict[str, Any] = {"n_best": 7, "max_answer_length": 3, "null_threshold": 0.0, "batch_size": 3}
        told = find_answers(model, rows, no_answer=no_answer, pad_id=tokenizer.pad_id, **limits)
        for number, question in enumerate(rows.questions):
            best: dict[tuple[int, int], float] = {}
            none = np.inf
            for index, window in enumerate(rows.windows):
                if window.question != number:
                    continue
                ids, types = (torch.from_numpy(a)[None] for a in (rows[index].input_ids, rows[index].token_type_ids))
                with torch.no_grad():
                    logits = model(ids, token_type_ids=types)[0].double().numpy()
                none = min(none, logits[0].sum())
                offsets = rows.offsets(window)
                for first in range(window.tokens):
                    for last in range(first, min(first + 3, window.tokens)):
                        span = (int(offsets[first, 0]), int(offsets[last, 1]))
                        score = logits[window.place + first, 0] + logits[window.place + last, 1]
                        best[span] = max(score, best.get(span, -np.inf))
            expected = sorted(best.items(), key=lambda item: -item[1])[:7]
            spans = [one for one in told[number] if one.start is not None]
            assert [one.score for one in spans] == pytest.approx([score for _, score in expected], abs=1e-5)
            assert all(question.context[one.start : one.end] == one.text for one in spans)
            assert sum(one.probability for one in told[number]) == pytest.approx(1)
            assert sum(one.start is None for one in told[number]) == no_answer
            if no_answer:
                assert (told[number][0].start is None) == (none > expected[0][1])

    def test_a_model_that_answers_goes_on(self) -> None:
        first = QuestionAnswering().build(*base())
        again = QuestionAnswering().build(*first.export_model())
        assert again.model.head is first.model.head

    def test_far_tokens_see_the_question(self, tokenizer: Tokenizer) -> None:
        rows = questions(tokenizer)
        sparse = {"kind": "sparse", "patterns": [{"kind": "window", "radius": 1}], "global_tokens": {"first": 1}}
        objective = QuestionAnswering().build(*base(attention=sparse, num_hidden_layers=1)).eval()
        given = question_batch([rows[0]], tokenizer.pad_id)
        other = given.input_ids.clone()
        other[0, 1] += 1  # a token of the question
        with torch.no_grad():
            told, changed = (objective.model(ids, **given.context)[0, -3:] for ids in (given.input_ids, other))
            plain, same = (objective.model(ids)[0, -3:] for ids in (given.input_ids, other))
        assert (told - changed).abs().max() > 1e-6
        torch.testing.assert_close(plain, same)


def test_tags_in_small_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = base()
    loss = TokenClassification().build(model, config, LABELS)
    tokenizer = Tokenizer.train(["a b c d"], kind="words", vocab_size=9)
    sentences = [TaggedWords(tuple("abcdabc"[:length])) for length in (3, 0, 7, 1)]
    rows = TokenLabelRows(sentences, tokenizer, length=64, stride=8, names=LABELS)

    def predict() -> list[tuple[list[str], list[float]]]:
        found = predict_tags(loss.model, rows, LABELS, pad_id=tokenizer.pad_id)
        return [(tags, certain.tolist()) for tags, certain in found]

    expected = predict()
    assert [len(tags) for tags, _ in expected] == [3, 0, 7, 1]
    monkeypatch.setattr(spans, "_LOGITS", 1)
    monkeypatch.setattr(spans, "_PROBABILITIES", 6)  # of two words
    for (tags, certain), (tags_before, certain_before) in zip(predict(), expected, strict=True):
        assert tags == tags_before
        assert certain == pytest.approx(certain_before, rel=1e-5)


def test_more_tags_than_a_batch_can_have_are_refused() -> None:
    sentence = TaggedWords(("a",) * (MAX_TAGS + 1), tuple(map(str, range(MAX_TAGS + 1))))
    assert len(collect_tags([TaggedWords(sentence.words[1:], sentence.tags[1:])])) == MAX_TAGS
    with pytest.raises(UserError, match=r"65,537 .* tags"):
        collect_tags([sentence])
