"""Independent forward and backward language models: labels, leakage, refusals."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from tiny_language import (
    UNIGRAM_ENTROPY,
    batches,
    fit,
    row_seeds,
    some_rows,
    tiny_elmo,
    tiny_model,
    tiny_recurrent,
    tiny_writer,
)
from torch import nn

from homespun.batch import Batch
from homespun.config import validate
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.elmo import BiLMHeadConfig
from homespun.objectives.clm import CausalLM
from homespun.objectives.elmo import BiLM, BiLMObjective
from homespun.objectives.mlm import MaskedLM
from homespun.text.tokenizer import Tokenizer


def build(tokenizer: Tokenizer, *, softmax: str = "full", **fields: Any) -> BiLMObjective:
    torch.manual_seed(1)
    cutoffs = [7, 19] if softmax == "adaptive" else []
    config = BiLM.model_validate({"softmax": softmax, "cutoffs": cutoffs})
    return config.build(tiny_elmo(tokenizer, **fields), tokenizer)


def batch_of(tokenizer: Tokenizer, rows: list[Row], **fields: Any) -> Batch:
    return BiLM(**fields).collate(tokenizer)(rows, row_seeds(len(rows)))


@pytest.mark.parametrize("softmax", ["full", "adaptive"])
def test_labels_are_next_tokens_of_each_direction(softmax: str, tokenizer: Tokenizer) -> None:
    """By hand, from the logits of the model."""
    objective = build(tokenizer, softmax=softmax).eval()
    rows = [*some_rows(tokenizer, [13, 7]), *some_rows(tokenizer, [17], packed=True)]
    batch = batch_of(tokenizer, rows, softmax=softmax)
    scores = objective.model(batch.input_ids, **batch.context).log_softmax(-1)
    expected, count = [torch.zeros(()), torch.zeros(())], 0
    for row, one in enumerate(rows):
        ids = one.input_ids
        documents = np.zeros(len(ids), int) if one.documents is None else one.documents
        for place in range(len(ids) - 1):
            if documents[place] == documents[place + 1]:
                count += 1
                expected[0] = expected[0] - scores[row, place, 0, ids[place + 1]]
                expected[1] = expected[1] - scores[row, place + 1, 1, ids[place]]
    terms = objective(batch).terms
    assert batch.targets["forward"] == terms["forward"].count == terms["backward"].count == count
    torch.testing.assert_close(terms["forward"].sum, expected[0])
    torch.testing.assert_close(terms["backward"].sum, expected[1])
    mean = (expected[0] + expected[1]) / (2 * count)
    torch.testing.assert_close(objective(batch).total(), mean)
    assert ("forward_accuracy" in terms) == ("forward_accuracy" in batch.targets) == (softmax == "full")


def test_ends_of_a_row_inside_a_document_are_no_labels(tokenizer: Tokenizer) -> None:
    rows = some_rows(tokenizer, [13, 11])
    complete = batch_of(tokenizer, rows)
    batch = batch_of(tokenizer, [dataclasses.replace(row, cut=(True, True)) for row in rows])
    assert set(complete.positions.tolist()) - set(batch.positions.tolist()) == {0, 11, 13, 13 + 9}
    assert batch.targets["forward"] == complete.targets["forward"] - 4


@pytest.mark.slow
@pytest.mark.parametrize("config", [BiLM(), BiLM(softmax="adaptive", cutoffs=(7, 19))], ids=["full", "adaptive"])
def test_both_directions_learn(config: BiLM, tokenizer: Tokenizer) -> None:
    terms = fit(build(tokenizer, softmax=config.softmax), batches(config, tokenizer), 200)
    assert terms["forward"] < 0.85 * UNIGRAM_ENTROPY, terms
    assert terms["backward"] < 0.85 * UNIGRAM_ENTROPY, terms
    assert config.softmax == "adaptive" or terms["backward_accuracy"] > 3 / 24, terms


def test_words_are_spelled_as_the_tokenizer_has_them(tokenizer: Tokenizer) -> None:
    words = build(tokenizer).model.backbone.embeddings
    row = words.characters[tokenizer.tokens.index("cc")]
    assert row[1:3].tolist() == [ord("c") + 1] * 2


def test_a_head_of_ones_own_goes_on(tokenizer: Tokenizer) -> None:
    model = tiny_elmo(tokenizer).model_copy(update={"head": BiLMHeadConfig(softmax="adaptive", cutoffs=(3, 11))})
    _, same = BiLM(softmax="adaptive").build(model, tokenizer).export_model()
    assert same.head == model.head
    _, other = BiLM().build(model, tokenizer).export_model()
    assert other.head == BiLMHeadConfig()
    _, chosen = BiLM(softmax="adaptive").build(tiny_elmo(tokenizer), tokenizer).export_model()
    assert chosen.head == BiLMHeadConfig(softmax="adaptive", cutoffs=(tokenizer.vocab_size // 4,))


def test_what_cannot_be_taught_so_is_refused(tokenizer: Tokenizer) -> None:
    elmo = tiny_elmo(tokenizer)
    for objective, model, message in (
        (BiLM(), tiny_recurrent(tokenizer), "independent_directions=true"),
        (BiLM(), tiny_recurrent(tokenizer, bidirectional=True), "set model.bidirectional=true"),
        (BiLM(), tiny_model(tokenizer), "take model.preset=elmo-mini"),
        (BiLM(), tiny_writer(tokenizer), "one stack"),
        (BiLM(softmax="adaptive", cutoffs=(7, 400)), elmo, "below vocab_size=36"),
        (BiLM(softmax="adaptive", cutoffs=(3, 7, 9, 11, 13)), elmo, "change or remove cutoffs"),
        (CausalLM(), elmo, "objective clm .*model.bidirectional=false"),
        (MaskedLM(), elmo, "objective mlm .*objective.kind=elmo"),
    ):
        with pytest.raises(UserError, match=message):
            objective.build(model, tokenizer)
    pieces = Tokenizer.train(["ab abc bcd cdef ab ab"], kind="wordpiece", vocab_size=19)
    with pytest.raises(UserError, match="wordpiece"):
        BiLM().build(tiny_elmo(pieces), pieces)
    with pytest.raises(UserError, match="lowest first"):
        validate(BiLM, {"cutoffs": [11, 7]}, source="test")
    independent_directions = tiny_recurrent(tokenizer, bidirectional=True, independent_directions=True)
    assert isinstance(BiLM().build(independent_directions, tokenizer), nn.Module)  # words may have vectors of their own
