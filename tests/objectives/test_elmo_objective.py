"""Independent forward and backward language models: labels, leakage, refusals."""

import dataclasses
from pathlib import Path
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
from homespun.data.loader import Loader
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.models.elmo import BiLMHeadConfig
from homespun.objectives.clm import CausalLM
from homespun.objectives.elmo import BiLM, BiLMObjective
from homespun.objectives.mlm import MaskedLM
from homespun.text.tokenizer import Tokenizer
from homespun.training.config import TrainConfig
from homespun.training.run import Run
from homespun.training.trainer import Trainer


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


def test_labels_are_not_visible(tokenizer: Tokenizer) -> None:
    """Neither direction's loss at a place has a gradient in the word that it tells, or in any beyond."""
    objective = build(tokenizer).double()
    (row,) = some_rows(tokenizer, [13])
    ids = torch.from_numpy(row.input_ids)[None]
    words: list[torch.Tensor] = []
    objective.model.backbone.embeddings.register_forward_hook(
        lambda *call: words.append(call[2].detach().requires_grad_()) or words[-1]
    )
    scores = objective.model(ids).log_softmax(-1)
    for place in range(12):
        (onwards,) = torch.autograd.grad(scores[0, place, 0, ids[0, place + 1]], words[-1], retain_graph=True)
        assert onwards[0].any(-1).tolist() == [number <= place for number in range(13)]
        (back,) = torch.autograd.grad(scores[0, place + 1, 1, ids[0, place]], words[-1], retain_graph=True)
        assert back[0].any(-1).tolist() == [number > place for number in range(13)]


@pytest.mark.slow
def test_an_adaptive_softmax_learns_in_both_directions(tokenizer: Tokenizer) -> None:
    config = BiLM(softmax="adaptive", cutoffs=(7, 19))
    terms = fit(build(tokenizer, softmax="adaptive"), batches(config, tokenizer), 200)
    assert set(terms) == {"forward", "backward"}
    assert terms["forward"] < 0.85 * UNIGRAM_ENTROPY, terms
    assert terms["backward"] < 0.85 * UNIGRAM_ENTROPY, terms


@pytest.mark.slow
def test_the_full_softmax_learns_backwards_too(tokenizer: Tokenizer) -> None:
    terms = fit(build(tokenizer), batches(BiLM(), tokenizer), 200)
    assert terms["backward"] < 0.85 * UNIGRAM_ENTROPY, terms
    assert terms["backward_accuracy"] > 3 / 24, terms


def test_words_are_spelled_as_the_tokenizer_has_them(tokenizer: Tokenizer) -> None:
    words = build(tokenizer).model.backbone.embeddings
    row = words.characters[tokenizer.tokens.index("cc")]
    assert row[1:3].tolist() == [ord("c") + 1] * 2


def trainer_of(tokenizer: Tokenizer, folder: Path, *, resume: bool = False) -> Trainer:
    rows = SomeRows(some_rows(tokenizer, [13, 17, 24, 7, 19, 11, 23, 5], packed=True))
    config = TrainConfig.model_validate({"batch_size": 3, "budget": {"steps": 7}, "seed": 1})
    loader = Loader(rows, BiLM().collate(tokenizer), batch_size=3, seed=1)
    run = Run.create(folder, config, resume=resume)
    return Trainer(build(tokenizer, hidden_dropout_prob=0.1), loader, config, run)


class SomeRows:
    """Rows in a list."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.lengths = np.array([len(row.input_ids) for row in rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]


def test_killed_and_resumed_is_never_interrupted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    complete = trainer_of(tokenizer, tmp_path / "whole")
    losses = [step.loss for step in complete]
    begun = trainer_of(tokenizer, tmp_path / "killed")
    first = []
    for step in begun:
        first.append(step.loss)
        if step.number == 4:
            break
    again = trainer_of(tokenizer, tmp_path / "killed", resume=True)
    assert first + [step.loss for step in again] == losses
    for (name, one), other in zip(
        complete.objective.state_dict().items(), again.objective.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name


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
