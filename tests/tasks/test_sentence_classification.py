"""Sentences in their documents: the rows, what stands for a sentence, and the loss."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from homespun.data.labels import Labels
from homespun.data.sentence_documents import CONTEXT, LabelledDocument, SentenceWindows
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.tasks.sentence_classification import (
    SentenceClassification,
    SentenceClassificationCollator,
    sentence_means,
)
from homespun.text.tokenizer import Tokenizer

WORDS = [f"{a}{b}" for a in "abcdefg" for b in "hijkl"]
TOKENIZER = Tokenizer.train([" ".join(WORDS)] * 3, kind="wordpiece", vocab_size=61)
VECTORS: list[Any] = ["separator", "first", "mean"]
BACKBONE = {"hidden_size": 14, "num_attention_heads": 2, "intermediate_size": 22, "num_hidden_layers": 1}
BACKBONE |= {"max_position_embeddings": 31, "hidden_dropout_prob": 0.0, "initializer_range": 0.5}
CONFIG = ModelConfig.model_validate({"backbone": BACKBONE | {"vocab_size": TOKENIZER.vocab_size}})
LABELS = Labels(("0", "1", "2"))


def documents(count: int, seed: int) -> list[LabelledDocument]:
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        sentences = [" ".join(draw.choices(WORDS, k=draw.randint(0, 5))) for _ in range(draw.randint(0, 11))]
        made.append(LabelledDocument(tuple(sentences), tuple(draw.choice("012") for _ in sentences)))
    return made


def windows(some: list[LabelledDocument], **changes: Any) -> SentenceWindows:
    settings: dict[str, Any] = {"length": 23, "context": 0.3, "vector": "separator"} | changes
    targets = LABELS.encode([label for document in some for label in document.labels])
    return SentenceWindows(some, targets, TOKENIZER, **settings)


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("context", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("length", [8, 23])
def test_every_sentence_is_judged_once(vector: Any, context: float, length: int) -> None:
    some = documents(17, seed=1)
    rows = windows(some, vector=vector, context=context, length=length)
    judged: list[int] = []
    for index in range(len(rows)):
        row = rows[index]
        assert len(row.input_ids) == rows.lengths[index] <= length
        assert row.sentence_ends is not None
        assert (row.input_ids[row.sentence_ends - 1] == TOKENIZER.sep_id).all()
        assert row.input_ids[0] == TOKENIZER.cls_id
        judged += row.label[row.label != CONTEXT].tolist()
    assert judged == rows.targets.tolist()
    filled = [document for document in some if document.sentences]
    assert rows.counts["empty_documents"] == 17 - len(filled)
    assert rows.counts["windows_beyond_one"] == len(rows) - len(filled)


def test_a_long_document_goes_on_after_what_came_before() -> None:
    document = LabelledDocument(tuple(WORDS[:9]), tuple("012012012"))
    rows = windows([document], length=13, context=0.5)
    (_, _, first_end), (start, judged, _) = rows.windows[0].tolist(), rows.windows[1].tolist()
    assert judged == first_end
    assert start < judged
    label = rows[1].label
    assert isinstance(label, np.ndarray)
    assert (label == CONTEXT).sum() == judged - start
    assert windows([document], length=13, context=0.0).windows[1].tolist()[0] == first_end


def test_a_sentence_that_is_too_long_is_cut_and_counted() -> None:
    rows = windows([LabelledDocument((" ".join(WORDS), "ah"), ("1", "0"))], length=11)
    assert rows.counts["sentences_cut"] == 1
    assert rows.cut.tolist() == [True, False]
    assert rows.lengths.max() == 11
    with pytest.raises(UserError, match="leaves no room"):
        windows([LabelledDocument(("ah",), ("1",))], length=2)


@pytest.mark.parametrize("vector", VECTORS)
def test_the_tokens_of_each_sentence_stand_for_it(vector: Any) -> None:
    rows = windows(documents(7, seed=2), vector=vector)
    some = [rows[index] for index in range(len(rows))]
    batch = SentenceClassificationCollator(TOKENIZER.pad_id, vector)(some, ())
    assert batch.labels is not None
    assert batch.targets["loss"] == len(batch.labels)
    sizes = torch.bincount(batch.sentences[batch.sentences >= 0], minlength=len(batch.labels))
    kinds = batch.input_ids[batch.sentences >= 0]
    if vector == "mean":
        assert (sizes >= 1).all()
        assert (kinds != TOKENIZER.cls_id).all()
    else:
        assert (sizes == 1).all()
        assert (kinds == (TOKENIZER.sep_id if vector == "separator" else TOKENIZER.cls_id)).all()


def test_means_by_sentence() -> None:
    values = torch.arange(2 * 3 * 5, dtype=torch.float32).reshape(2, 3, 5)
    sentences = torch.tensor([[0, 0, -1], [-1, 1, -1]])
    found = sentence_means(values, sentences, 2)
    assert torch.equal(found, torch.stack([values[0, :2].mean(dim=0), values[1, 1]]))


@torch.no_grad()
@pytest.mark.parametrize("vector", VECTORS)
def test_loss_is_the_cross_entropy_of_the_judged_sentences_alone_or_together(vector: Any) -> None:
    torch.manual_seed(1)
    weights = (0.5, 2.0, 1.5)
    objective = SentenceClassification(vector=vector).build(CONFIG.build(), CONFIG, LABELS, weights=weights).eval()
    rows = windows(documents(7, seed=3), vector=vector)
    collate = SentenceClassificationCollator(TOKENIZER.pad_id, vector, weights)
    together = objective(collate([rows[index] for index in range(len(rows))], ()))
    alone = [objective(collate([rows[index]], ())) for index in range(len(rows))]
    for name in ("loss", "accuracy"):
        total = sum(float(part.terms[name].sum) for part in alone)
        assert total == pytest.approx(float(together.terms[name].sum), rel=1e-5)
    batch = collate([rows[0]], ())
    assert batch.labels is not None
    assert batch.sentences is not None
    assert float(alone[0].terms["loss"].count) == pytest.approx(batch.targets["loss"])
    logits = sentence_means(objective.model(batch.input_ids, **batch.context), batch.sentences, len(batch.labels))
    mean = F.cross_entropy(logits, batch.labels, weight=torch.tensor(weights))
    assert float(alone[0].total()) == pytest.approx(float(mean), rel=1e-5)


@torch.no_grad()
def test_a_sentence_is_read_in_its_context() -> None:
    torch.manual_seed(1)
    objective = SentenceClassification().build(CONFIG.build(), CONFIG, LABELS).eval()
    collate = SentenceClassificationCollator(TOKENIZER.pad_id, "separator")
    told = []
    for other in ("ah", "gl fk"):
        rows = windows([LabelledDocument(("bi cj", other), ("0", "1"))])
        batch = collate([rows[0]], ())
        assert batch.sentences is not None
        told.append(sentence_means(objective.model(batch.input_ids), batch.sentences, 2)[0])
    assert not torch.allclose(told[0], told[1], atol=1e-4)
