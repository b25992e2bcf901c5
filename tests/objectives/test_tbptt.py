"""Truncated BPTT: rows that continue each other, and a language model that carries its state."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_language import TinyCorpus, tiny_recurrent

from homespun.data.loader import Loader
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.objectives.tbptt import StatefulCausalLM, StatefulCausalLMObjective, TbpttRows
from homespun.text.tokenizer import Tokenizer
from homespun.training.config import TrainConfig
from homespun.training.run import Run
from homespun.training.trainer import Trainer
from homespun.training.validation import evaluate_loss

STREAMS, LENGTH = 5, 11
LENGTHS = [7, 31, 2, 19, 3, 41, 13, 23, 5, 17, 29, 37]


def rows_of(tokenizer: Tokenizer, *, streams: int = STREAMS, documents: slice = slice(None)) -> TbpttRows:
    corpus = TinyCorpus(tokenizer, LENGTHS)
    return TbpttRows(corpus, np.arange(len(LENGTHS))[documents], length=LENGTH, streams=streams)


def whole_text(tokenizer: Tokenizer) -> np.ndarray:
    corpus = TinyCorpus(tokenizer, LENGTHS)
    return np.concatenate([[tokenizer.cls_id, *corpus.tokens(n), tokenizer.sep_id] for n in range(len(LENGTHS))])


def loader_of(tokenizer: Tokenizer, **settings: int) -> Loader:
    collate = StatefulCausalLM(streams=STREAMS).collate(tokenizer)
    return Loader(rows_of(tokenizer), collate, **({"batch_size": STREAMS, "seed": 1} | settings), order="in_order")


def build(tokenizer: Tokenizer, *, dropout: float = 0.0, cell: str = "lstm") -> StatefulCausalLMObjective:
    torch.manual_seed(1)
    config = tiny_recurrent(tokenizer, hidden_dropout_prob=dropout, cell=cell, max_position_embeddings=97)
    return StatefulCausalLM(streams=STREAMS).build(config, tokenizer)


def test_the_pieces_of_a_stream_are_the_text_in_order(tokenizer: Tokenizer) -> None:
    rows, text = rows_of(tokenizer), whole_text(tokenizer)
    each = (len(text) - 1) // STREAMS
    pieces = len(rows) // STREAMS
    assert len(rows) == pieces * STREAMS
    assert pieces == -(-each // LENGTH)
    for stream in range(STREAMS):
        own = [rows[piece * STREAMS + stream] for piece in range(pieces)]
        assert [row.stream_position for row in own] == [(stream, piece) for piece in range(pieces)]
        read = np.concatenate([row.input_ids[:-1] for row in own])
        assert np.array_equal(read, text[stream * each : (stream + 1) * each])
        labels = np.concatenate([row.input_ids[1:] for row in own])
        assert np.array_equal(labels, text[stream * each + 1 : (stream + 1) * each + 1])
    assert [len(rows[number].input_ids) - 1 for number in range(len(rows))] == rows.lengths.tolist()
    with pytest.raises(IndexError):
        rows[len(rows)]


def test_labels_are_all_tokens_but_first_ones_of_documents(tokenizer: Tokenizer) -> None:
    labels = np.concatenate([batch.labels.numpy() for batch in loader_of(tokenizer).once() if batch.labels is not None])
    text = whole_text(tokenizer)
    expected = text[1 : 1 + (len(text) - 1) // STREAMS * STREAMS]
    assert sorted(labels.tolist()) == sorted(expected[expected != tokenizer.cls_id].tolist())
    assert tokenizer.sep_id in labels  # that a document ends is told


def test_an_epoch_is_the_same_text_again_and_a_step_is_a_piece_of_each_stream(tokenizer: Tokenizer) -> None:
    loader = loader_of(tokenizer)
    for number in range(loader.steps_per_epoch):
        (batch,), (again,) = loader.step(number), loader.step(number + loader.steps_per_epoch)
        assert torch.equal(batch.input_ids, again.input_ids)
        assert batch.stream_positions.tolist() == [[stream, number] for stream in range(STREAMS)]


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_the_state_goes_on_and_an_epoch_begins_anew(cell: str, tokenizer: Tokenizer) -> None:
    objective = build(tokenizer, cell=cell).train()
    text = torch.from_numpy(whole_text(tokenizer))
    each = (len(text) - 1) // STREAMS
    complete = text[: each * STREAMS].view(STREAMS, each)
    hidden = objective.model.backbone(complete)
    loader = loader_of(tokenizer)
    seen: list[torch.Tensor] = []
    objective.model.backbone.layers[-1].register_forward_hook(lambda *call: seen.append(call[2].detach()))
    for _ in range(2):
        seen.clear()
        for number in range(loader.steps_per_epoch):
            for batch in loader.step(number):
                objective(batch)
        torch.testing.assert_close(torch.cat(seen, 1), hidden, rtol=1e-5, atol=1e-5)


def test_no_gradient_goes_back_into_the_piece_before(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer).train()
    first, second = (batch for number in (0, 1) for batch in loader_of(tokenizer).step(number))
    objective(first)
    objective(second).total().backward()
    carried = {name: p.grad.clone() for name, p in objective.named_parameters() if p.grad is not None}
    objective.zero_grad()
    objective(second).total().backward()  # alone, and from the same state: it is the step that is made again
    for name, parameter in objective.named_parameters():
        torch.testing.assert_close(parameter.grad, carried[name], rtol=0, atol=0)


def test_a_step_made_again_in_smaller_parts_begins_where_it_began(tokenizer: Tokenizer) -> None:
    losses = []
    for again in (False, True):
        objective = build(tokenizer).train()
        loader, small = loader_of(tokenizer), loader_of(tokenizer, micro_batch_size=2)
        for number in range(3):
            if again and number == 1:
                objective(small.step(number)[0])  # and then there was no more memory
            parts = (small if again and number else loader).step(number)
            losses.append(sum(objective(part).terms["causal"].sum.item() for part in parts))
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-6)


def test_validation_has_states_of_its_own(tokenizer: Tokenizer) -> None:
    def training(validated: bool) -> tuple[list[float], list[float]]:
        objective, loader, losses, found = build(tokenizer).train(), loader_of(tokenizer), [], []
        for number in range(2 * loader.steps_per_epoch):
            losses += [objective(batch).total().item() for batch in loader.step(number)]
            if validated:
                found.append(evaluate_loss(objective, loader.once(), "cpu").loss)
        return losses, found

    plain, (validated, found) = training(False)[0], training(True)
    assert plain == validated
    assert len(set(found)) == 1  # the weights did not change, and it begins anew
    rows = loader_of(tokenizer)
    steps = rows.steps_per_epoch
    counts = [batch.targets["causal"] for number in range(steps) for batch in rows.step(number)]
    mean = float(np.average(plain[:steps], weights=counts))
    assert found[0] == pytest.approx(mean, rel=1e-6)  # with the state carried, as in training


def trainer_of(tokenizer: Tokenizer, folder: Path, steps: int, *, resume: bool = False) -> Trainer:
    budget = {"steps": steps}
    config = TrainConfig.model_validate({"batch_size": STREAMS, "budget": budget, "seed": 3, "max_grad_norm": 0.25})
    run = Run.create(folder, config, resume=resume)
    return Trainer(build(tokenizer, dropout=0.1), loader_of(tokenizer), config, run)


@pytest.mark.slow
def test_killed_and_resumed_is_never_interrupted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Over the end of an epoch, and from the middle of one."""
    complete = trainer_of(tokenizer, tmp_path / "whole", 13)
    losses = [step.loss for step in complete]
    assert complete.loader.steps_per_epoch < 13
    begun = trainer_of(tokenizer, tmp_path / "killed", 13)
    first = []
    for step in begun:
        first.append(step.loss)
        if step.number == 6:
            break
    resumed = trainer_of(tokenizer, tmp_path / "killed", 13, resume=True)
    assert first + [step.loss for step in resumed] == losses
    for name, tensor in complete.objective.state_dict().items():
        assert torch.equal(tensor, resumed.objective.state_dict()[name]), name


def test_what_cannot_be_is_refused_in_a_line(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"500 streams.*train\.batch_size"):
        rows_of(tokenizer, streams=500)
    with pytest.raises(UserError, match="max_length=3 "):
        TbpttRows(TinyCorpus(tokenizer, [9]), np.arange(1), length=3, streams=1)
    with pytest.raises(UserError, match="number of streams"):
        StatefulCausalLM().build(tiny_recurrent(tokenizer), tokenizer)
    kept: ModelConfig = build(tokenizer).export_model()[1]
    assert kept.head.kind == "causal_lm"
