"""Causal language modelling: every label is the next token of the same document."""

import dataclasses

import torch
from tiny_language import row_seeds, some_rows, tiny_model
from torch.nn import functional as F

from homespun.objectives.clm import CausalLM
from homespun.text.tokenizer import Tokenizer


def test_labels_are_the_next_tokens_of_the_same_document(tokenizer: Tokenizer) -> None:
    rows = [*some_rows(tokenizer, [13]), *some_rows(tokenizer, [24, 3, 19], packed=True)]
    batch = CausalLM().collate(tokenizer)(rows, row_seeds(4))
    expected = []
    for number, row in enumerate(rows):
        documents = [0] * 24 if row.documents is None else row.documents
        expected += [
            (number * 24 + place, int(row.input_ids[place + 1]))
            for place in range(len(row.input_ids) - 1)
            if documents[place] == documents[place + 1]
        ]
    assert list(zip(batch.positions.tolist(), batch.labels.tolist(), strict=True)) == expected
    # one less than the tokens of each of the six documents
    assert batch.targets == {"causal": 59 - 6, "causal_accuracy": 59 - 6}


def test_the_end_of_a_row_inside_a_document_is_no_label(tokenizer: Tokenizer) -> None:
    rows = [*some_rows(tokenizer, [13]), *some_rows(tokenizer, [24, 19], packed=True)]
    complete = CausalLM().collate(tokenizer)(rows, row_seeds(3))
    cut = [dataclasses.replace(row, cut=(True, number != 1)) for number, row in enumerate(rows)]
    batch = CausalLM().collate(tokenizer)(cut, row_seeds(3))
    assert set(complete.positions.tolist()) - set(batch.positions.tolist()) == {11, 2 * 24 + 17}
    assert set(batch.positions.tolist()) <= set(complete.positions.tolist())
    assert batch.targets["causal"] == complete.targets["causal"] - 2


def test_one_complete_row(tokenizer: Tokenizer) -> None:
    (row,) = some_rows(tokenizer, [13])
    batch = CausalLM().collate(tokenizer)([row], row_seeds(1))
    assert batch.attention_mask is None
    assert batch.labels.tolist() == row.input_ids[1:].tolist()


def test_loss_is_that_of_shifted_logits(tokenizer: Tokenizer) -> None:
    torch.manual_seed(1)
    objective = CausalLM().build(tiny_model(tokenizer, causal=True), tokenizer)
    batch = CausalLM().collate(tokenizer)(some_rows(tokenizer, [13] * 5), row_seeds(5))
    logits = objective.model(batch.input_ids)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.input_ids[:, 1:].flatten())
    torch.testing.assert_close(objective(batch).total(batch.targets), expected)
