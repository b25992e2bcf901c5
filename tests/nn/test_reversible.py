"""Reversible layers against plain autograd on the same layers: values, gradients, random state, memory."""

import multiprocessing
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from homespun.attention.full import DotProduct
from homespun.attention.local import Chunks
from homespun.attention.lsh import LSH, SharedQueryKeyAttention, draw_rotations
from homespun.attention.multi_head import MultiHeadAttention
from homespun.nn.layers import Dropout, FeedForward
from homespun.nn.masks import Mask
from homespun.nn.reversible import ReversibleLayer, ReversibleStack, ReversibleSublayer, record_choice

BATCH, SEQ, WIDTH, HEADS, INNER, LAYERS = 3, 7, 22, 2, 19, 5
MASK = Mask(torch.arange(SEQ) < torch.tensor([[SEQ], [5], [1]]), documents=torch.arange(SEQ).expand(BATCH, -1) // 3)


class Stack(nn.Module):
    """Layers and a way to run them, as an encoder has."""

    def __init__(self, layers: list[ReversibleLayer], *, copies: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.streams = ReversibleStack(copies)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        return self.streams.run(self.layers, self.streams.expand(hidden), mask, recompute=False)

    def plain(self, hidden: Tensor, mask: Mask) -> Tensor:
        hidden = self.streams.expand(hidden)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


def branch(sublayer: nn.Module, dropout: float) -> ReversibleSublayer:
    return ReversibleSublayer(sublayer, nn.LayerNorm(WIDTH), Dropout(dropout))


def layer(dropout: float) -> ReversibleLayer:
    attention = MultiHeadAttention(WIDTH, HEADS, DotProduct(dropout=dropout))
    return ReversibleLayer(branch(attention, dropout), branch(FeedForward(WIDTH, INNER, nn.GELU()), dropout))


def stack(layers: int = LAYERS, *, dropout: float = 0.0, copies: int = 1) -> Stack:
    torch.manual_seed(1)
    made = Stack([layer(dropout) for _ in range(layers)], copies=copies).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


def some_hidden(copies: int = 1, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, SEQ, 2 * WIDTH // copies, dtype=torch.float64, generator=generator).requires_grad_()


def outcome(run: Callable[..., Tensor], model: nn.Module, *hiddens: Tensor, mask: Mask = MASK) -> list[Tensor | None]:
    """Values, gradients summed over the backward passes, and the random state that is left."""
    model.zero_grad()
    torch.manual_seed(3)
    values = []
    for hidden in hiddens:
        hidden.grad = None
        values.append(run(hidden, mask))
        weights = torch.linspace(-1, 1, values[-1].numel(), dtype=values[-1].dtype).view_as(values[-1])
        (weights * values[-1].square()).sum().backward()
    inputs = [hidden.grad for hidden in hiddens]
    return [*(v.detach() for v in values), *inputs, *(p.grad for p in model.parameters()), torch.rand(5)]


def assert_same(found: list[Any], expected: list[Any], tolerance: float = 1e-10) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("copies", [1, 2], ids=["split", "copy"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", [Mask(), MASK, Mask(causal=True)], ids=["everything", "masked", "causal"])
def test_values_gradients_and_random_state_are_those_of_plain_autograd(mask: Mask, dropout: float, copies: int) -> None:
    model = stack(dropout=dropout, copies=copies).train()
    hidden = some_hidden(copies)
    expected = outcome(model.plain, model, hidden, mask=mask)
    found = outcome(model, model, hidden, mask=mask)
    assert_same(found, expected)
    assert torch.equal(found[0], expected[0])
    if dropout:
        assert not torch.equal(model(hidden, mask), found[0])


def test_gradients_add_up_over_micro_batches() -> None:
    model = stack(dropout=0.3).train()
    hiddens = some_hidden(), some_hidden(seed=4)
    assert_same(outcome(model, model, *hiddens), outcome(model.plain, model, *hiddens))


def test_both_passes_first_and_then_both_backward_passes() -> None:
    """Each pass has its own random states, whatever is drawn in between."""
    model, hiddens = stack(dropout=0.3).train(), (some_hidden(), some_hidden(seed=4))
    gradients = []
    for run in (model.plain, model):
        torch.manual_seed(3)
        results = [(hidden, run(hidden, MASK)) for hidden in hiddens]
        torch.rand(7)
        gradients.append([torch.autograd.grad(result.square().sum(), hidden)[0] for hidden, result in results])
    assert_same(*gradients)


def test_the_backward_pass_can_be_made_twice() -> None:
    model, hidden = stack(dropout=0.3).train(), some_hidden()
    result = model(hidden, MASK).square().sum()
    first, second = (torch.autograd.grad(result, [hidden, *model.parameters()], retain_graph=True) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_layers_that_are_one_layer() -> None:
    """Their gradients are summed."""
    one, other = layer(0.2), layer(0.2)
    model = Stack([one, other, one, one]).double().train()
    assert_same(outcome(model, model, some_hidden()), outcome(model.plain, model, some_hidden()))


def test_frozen_and_unused_parameters_have_no_gradient() -> None:
    model = stack(dropout=0.3).train()
    model.layers[1].requires_grad_(False)
    model.layers[2].attention.sublayer.never = nn.Linear(2, 3)  # what no input of this batch reaches
    for hidden in (some_hidden(), some_hidden().detach()):
        expected = outcome(model.plain, model, hidden)
        assert sum(gradient is None for gradient in expected) >= 18
        assert_same(outcome(model, model, hidden), expected)


def test_parameters_changed_before_the_backward_pass_are_an_error() -> None:
    model = stack()
    result = model(some_hidden(), MASK).sum()
    with torch.no_grad():
        model.layers[0].feedforward.sublayer.inner.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_without_gradients_every_layer_runs_once() -> None:
    model, calls = stack(dropout=0.3).eval(), []
    for one in model.layers:
        one.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        result = model(some_hidden(), MASK)
    assert len(calls) == LAYERS
    assert torch.equal(result, model(some_hidden(), MASK))


class Buckets(nn.Module):
    """Sublayer whose output depends on a choice that recomputation would change."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.times = 0

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        def choose() -> Tensor:
            self.times += 1
            return torch.arange(SEQ) % (2 + self.times)

        bucket = record_choice(choose)
        return self.inner(hidden) * (1 + bucket)[:, None] + record_choice(choose)[:, None]


def test_choices_are_made_once() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        layers = [ReversibleLayer(branch(Buckets(), 0.2), layer(0.2).feedforward) for _ in range(LAYERS)]
        models.append(Stack(layers).double().train())
    hidden = some_hidden()
    assert_same(outcome(models[0], models[0], hidden), outcome(models[1].plain, models[1], hidden))
    assert [one.attention.sublayer.times for one in models[0].layers] == [2] * LAYERS
    assert torch.equal(record_choice(lambda: torch.arange(3)), torch.arange(3))  # outside of any layer


@pytest.mark.parametrize("seed", [1, 2])
def test_tokens_keep_their_buckets(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(seed)
    kernel = LSH(
        draw_rotations(HEADS, WIDTH // HEADS, 2, (4,), seed=seed), num_buckets=(4,), chunks=Chunks(2, before=1, after=0)
    )
    attention = SharedQueryKeyAttention(WIDTH, HEADS, kernel)
    model = Stack([ReversibleLayer(branch(attention, 0.2), layer(0.2).feedforward)]).double().train()
    expected = outcome(model.plain, model, some_hidden())
    buckets, calls = kernel.buckets, []
    monkeypatch.setattr(kernel, "buckets", lambda *given: calls.append(1) or buckets(*given))
    assert_same(outcome(model, model, some_hidden()), expected)
    assert len(calls) == 1


class Live(TorchDispatchMode):
    """Bytes of the tensors that are made inside and alive, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves(args) if isinstance(tensor, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (key := tensor.untyped_storage()._cdata) not in self._known | given:
                self._known.add(key)
                weakref.finalize(tensor.untyped_storage(), self._free, key, tensor.untyped_storage().nbytes())
                self.now += tensor.untyped_storage().nbytes()
                self.peak = max(self.peak, self.now)
        return result

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def kept_and_peak(run: Callable[..., Tensor], model: Stack) -> tuple[int, int]:
    """Bytes between the passes and at most, where gradients are added to those that are there."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with Live() as live:
        result = run(some_hidden(), MASK)
        kept = live.now
        result.sum().backward()
    return kept, live.peak


def test_memory_does_not_grow_with_depth() -> None:
    shallow, deep = (stack(layers, dropout=0.3).train() for layers in (6, 24))
    for at_6, at_24 in zip(kept_and_peak(shallow, shallow), kept_and_peak(deep, deep), strict=True):
        assert 0 < at_24 <= 1.01 * at_6
    plain = [kept_and_peak(model.plain, model)[0] for model in (shallow, deep)]
    assert plain[1] > 3.5 * plain[0]


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """The relative difference of two lists of tensors, by the norm of all."""
    one, other = (torch.cat([tensor.flatten().double() for tensor in tensors]) for tensors in (found, expected))
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("inside", [False, True], ids=["backward outside", "backward inside"])
def test_under_autocast(inside: bool) -> None:
    """Gradients equal plain autograd in the same precision; casts without a graph are not reused."""
    model, hidden = stack(24, dropout=0.3).float().train(), some_hidden().detach().bfloat16().requires_grad_()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.2)

    def gradients(run: Callable[..., Tensor]) -> list[Tensor]:
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16):
            result = run(hidden, MASK)
            assert result.dtype == torch.float32
            loss = result.square().sum()
            if inside:
                return list(torch.autograd.grad(loss, [hidden, *model.parameters()]))
        return list(torch.autograd.grad(loss, [hidden, *model.parameters()]))

    expected, found = gradients(model.plain), gradients(model)
    assert distance(found, expected) < 1e-5  # of bfloat16 and float32 it is 0.003


def test_copied_streams_are_the_input_twice() -> None:
    hidden = torch.randn(2, 3, 5)
    assert torch.equal(ReversibleStack(2).expand(hidden), torch.cat([hidden, hidden], -1))
    assert torch.equal(ReversibleStack(1).expand(hidden), hidden)


def one_process(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    model = stack(dropout=0.3).train()
    parallel = DistributedDataParallel(model)
    for _ in range(2):  # the second raises where the first left gradients behind
        parallel.zero_grad()
        torch.manual_seed(rank)
        parallel(some_hidden(seed=rank), Mask()).square().sum().backward()
    torch.save([p.grad for p in model.parameters()], folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_average_their_gradients(tmp_path: Path) -> None:
    processes = [
        multiprocessing.get_context("spawn").Process(target=one_process, args=(rank, tmp_path)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    model = stack(dropout=0.3).train()
    for rank in range(2):
        torch.manual_seed(rank)
        (model.plain(some_hidden(seed=rank), Mask()).square().sum() / 2).backward()
    expected = [p.grad for p in model.parameters()]
    for rank in range(2):
        assert_same(torch.load(tmp_path / f"{rank}.pt"), expected)
