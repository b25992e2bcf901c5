from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from homespun.batch import Batch, Loss, Term
from homespun.planning.rates import FlopCounter, flops, flops_per_token
from homespun.planning.tracer import Operation, StepTracer


class Objective(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(23, 13)
        self.inner = nn.Linear(13, 17)
        self.outer = nn.Linear(17, 3)

    def forward(self, batch: Batch) -> Loss:
        logits: Tensor = self.outer(nn.functional.dropout(self.inner(self.words(batch.input_ids)), 0.5))
        return Loss({"loss": Term(logits.sum(), 1.0)})


def test_products_forward_and_backward_by_real_tokens_and_nothing_is_left() -> None:
    objective = Objective()
    keep = torch.tensor([[True] * 5 + [False] * 2])
    batch = Batch(torch.ones(1, 7, dtype=torch.int64), attention_mask=keep, targets={"loss": 1.0})
    before = torch.get_rng_state()
    # both layers learn, and the gradient goes on through them to the words: three times the products
    assert flops_per_token(objective, batch) == 3 * 2 * 7 * (13 * 17 + 17 * 3) / 5
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in objective.parameters())


def executed(step: Callable[[], Any]) -> float:
    with FlopCounter() as counter:
        step()
    return counter.total


def traced(step: Callable[[], Any]) -> float:
    with StepTracer() as tracer, tracer.span("step"):
        step()
    return tracer.sum("step", flops)


LENGTHS, ENTERING, SIZE = (7, 5, 2), 5, 11
PROJECTED = {"proj_size": 3, "bidirectional": True}


@pytest.mark.filterwarnings("ignore:.*proj")
@pytest.mark.parametrize("counted", [executed, traced])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("cell", "options"),
    [
        *[(cell, options) for cell in (nn.RNN, nn.LSTM, nn.GRU) for options in ({}, {"bidirectional": True})],
        (nn.LSTM, PROJECTED),
        (nn.LSTM, {"bias": False}),
    ],
)
def test_every_token_goes_through_every_matrix_of_a_recurrent_network(
    cell: Callable[..., nn.RNNBase], options: dict[str, Any], packed: bool, counted: Callable[..., float]
) -> None:
    weights: dict[str, int] = {}

    def step() -> None:
        network = cell(ENTERING, SIZE, 2, batch_first=True, **options)
        weights.update((name, weight.numel()) for name, weight in network.named_parameters() if weight.dim() == 2)
        given: Tensor | PackedSequence = torch.zeros(len(LENGTHS), max(LENGTHS), ENTERING, requires_grad=True)
        if packed:
            sizes = torch.tensor([sum(length > place for length in LENGTHS) for place in range(max(LENGTHS))])
            given = PackedSequence(torch.zeros(sum(LENGTHS), ENTERING, requires_grad=True), sizes)
        made = network(given)[0]
        (made.data if packed else made).sum().backward()

    total = counted(step)
    tokens = sum(LENGTHS) if packed else len(LENGTHS) * max(LENGTHS)
    full = 3 * 2 * tokens * sum(weights.values())
    # where PyTorch goes from token to token, the state before the first has no gradient
    first = 2 * len(LENGTHS) * sum(size for name, size in weights.items() if name.startswith("weight_hh"))
    assert full - first <= total <= full


def test_cells_that_are_called_token_by_token() -> None:
    def step() -> None:
        cell = nn.LSTMCell(ENTERING, SIZE)
        state: Any = None
        for _ in range(7):
            state = cell(torch.zeros(3, ENTERING), state)
        state[0].sum().backward()

    matrices, first = 4 * SIZE * (ENTERING + SIZE), 4 * SIZE * SIZE
    # the tokens do not learn, nor does the first state; and both ways count alike
    assert executed(step) == traced(step)
    assert executed(step) == 2 * 3 * (7 * matrices + 7 * matrices + 6 * first)


W1, W2, BIAS, STATE = (44, 5), (44, 11), (44,), (1, 3, 11)
FULL = 2 * 7 * 3 * 44 * (5 + 11)
CUDNN = [(21, 5), W1, W2, BIAS, BIAS, (900,), STATE, STATE]


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("_cudnn_rnn", [(7, 3, 5), W1, W2, BIAS, BIAS, (900,), STATE, STATE], FULL),
        ("_cudnn_rnn", [(21, 5), W1, W2, BIAS, BIAS, STATE, STATE], FULL),
        ("_cudnn_rnn_backward", [*CUDNN, (21, 11), (21, 11), STATE, (4000,)], 2 * FULL),
        ("_lstm_mps", [(7, 3, 5), STATE, STATE, W1, W2, BIAS, BIAS], FULL),
        ("lstm_mps_backward", [(7, 3, 11), (1, 7, 3, 44), (1, 7, 3, 11), (7, 3, 5), STATE, W1, W2, BIAS], 2 * FULL),
    ],
)
def test_recurrent_layers_of_other_devices(name: str, inputs: list[tuple[int, ...]], expected: float) -> None:
    assert flops(Operation(name, tuple(inputs), ((7, 3, 11),), 1, torch.float32)) == expected


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("counted", [executed, traced])
def test_filters_over_characters(learns: bool, counted: Callable[..., float]) -> None:
    def step() -> None:
        filters = nn.Conv1d(3, 5, 2)
        filters(torch.zeros(7, 3, 11, requires_grad=learns)).sum().backward()

    assert counted(step) == (2 + learns) * 2 * 7 * 5 * (11 - 2 + 1) * 3 * 2
