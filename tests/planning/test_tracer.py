"""A traced step has the bytes and FLOPs of the real one, and no values."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from homespun.nn import vocabulary_loss
from homespun.nn.vocabulary_loss import predict_tokens, repeat_context
from homespun.planning.rates import flops
from homespun.planning.tracer import StepTracer
from homespun.training.devices import has_lstm


def test_bytes_are_those_of_the_tensors() -> None:
    with StepTracer() as tracer:
        weights = torch.zeros(101, 103)
        before = tracer.allocator.live
        sums = weights + weights
        assert 4 * 101 * 103 <= tracer.allocator.live - before < 4 * 101 * 103 + 64
        view = sums.view(-1)
        assert tracer.allocator.live - before < 4 * 101 * 103 + 64
        del sums, view
        assert tracer.allocator.live == before


def test_integers_keep_their_values() -> None:
    with StepTracer():
        places = torch.arange(7)
        assert (places * 2).tolist() == [0, 2, 4, 6, 8, 10, 12]
        assert bool((places[None] <= places[:, None]).any())
        assert torch.zeros(3, 5)[torch.tensor([0, 2])].shape == (2, 5)


def test_flops_are_counted_forward_and_backward() -> None:
    with StepTracer() as tracer:
        layer = nn.Linear(13, 17)
        values = torch.zeros(11, 13)
        with tracer.span("forward"):
            total = layer(values).sum()
        with tracer.span("backward"):
            total.backward()
    assert tracer.sum("forward", flops) == 2 * 11 * 13 * 17
    assert tracer.sum("backward", flops) == 2 * 11 * 13 * 17  # of the weights alone: the input has no gradient


def test_where_a_tensor_is_takes_no_time() -> None:
    with StepTracer() as tracer:
        values = torch.zeros(3)
        with tracer.span("step"):
            values[:1].sum()
    assert {operation.name for operation in tracer.spans["step"]} == {"slice", "sum"}


def test_no_memory_is_taken_for_what_is_large() -> None:
    with StepTracer() as tracer:
        huge = torch.zeros(2**20, 2**20)
        assert (huge @ huge).shape == (2**20, 2**20)
    assert tracer.allocator.peak_live >= 2 * 4 * 2**40


def test_where_a_result_goes_is_no_factor() -> None:
    with StepTracer() as tracer:
        bias, left, right, out = torch.zeros(7), torch.zeros(3, 5), torch.zeros(5, 7), torch.zeros(3, 7)
        with tracer.span("products"):
            torch.addmm(bias, left, right, out=out)
            left[None].expand(2, -1, -1) @ right[None].expand(2, -1, -1)
            out.addmm_(left, right)
    assert tracer.sum("products", flops) == 4 * (2 * 3 * 5 * 7)


@pytest.mark.parametrize("targets", [1, 37, 211])
def test_equal_iterations_are_counted_and_not_run(targets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_loss, "_CHUNK", 13 * 1009)  # 13 rows
    monkeypatch.setattr(vocabulary_loss, "_BLOCK", 101)
    found = []
    for shorter in (False, True):
        calls = 0

        class WithTargetCounts(StepTracer):
            def __torch_dispatch__(self, *arguments: Any) -> Any:
                nonlocal calls
                calls += 1
                return super().__torch_dispatch__(*arguments)

        with WithTargetCounts() as tracer:
            if not shorter:
                repeat_context.set(None)
            hidden, weight = torch.zeros(targets, 7, requires_grad=True), torch.zeros(1009, 7, requires_grad=True)
            with tracer.span("step"):
                output = predict_tokens(hidden, weight, torch.zeros(1009), torch.zeros(targets, dtype=torch.int64))
                output.loss.backward()
        found.append((tracer.spans["step"], tracer.allocator.peak_live, calls))
    (full, *most, every), (short, *least, few) = found
    assert (full, most) == (short, least)
    assert few < every
    # the logits, and the gradients of the vectors and of the vocabulary
    assert sum(flops(operation) * count for operation, count in full.items()) == 3 * (2 * targets * 7 * 1009)


class Kept(TorchDispatchMode):
    """What the LSTMs in here keep, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "mkldnn_rnn_layer":
            self.bytes.append(result[-1].nbytes)
        return result


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("seq", "rows", "entering", "size"), [(7, 3, 5, 11), (13, 17, 128, 256), (9, 31, 300, 64)])
def test_lstm_workspace_is_that_of_onednn(seq: int, rows: int, entering: int, size: int, dtype: torch.dtype) -> None:
    if not has_lstm(dtype, torch.device("cpu")):
        pytest.skip("this processor has no LSTM in bfloat16")
    found = []
    for mode in (nullcontext(), StepTracer()):
        with mode, torch.autocast("cpu", dtype=dtype, enabled=dtype == torch.bfloat16), Kept() as kept:
            nn.LSTM(entering, size, 2, bidirectional=True)(torch.zeros(seq, rows, entering))
        found.append(kept.bytes)
    assert len(found[0]) == 4
    assert found[0] == found[1]
