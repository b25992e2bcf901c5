"""The vocabulary projection in chunks: loss, gradients and samples equal those of all logits at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from homespun.nn import vocabulary_loss
from homespun.nn.vocabulary_loss import predict_tokens

LAST = 1 - 2**-24  # the largest uniform that float32 has below one


def given(targets: int, size: int, vocab: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(targets, size, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocab, size, generator=generator, dtype=dtype, requires_grad=True)
    bias = torch.randn(vocab, generator=generator, dtype=dtype, requires_grad=True)
    return hidden, weight, bias, torch.randint(vocab, (targets,), generator=generator)


def from_probabilities(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Samples where the softmax is ``probabilities`` in every row."""
    vocab = len(probabilities)
    prediction = predict_tokens(
        torch.zeros(len(uniforms), 1),
        torch.zeros(vocab, 1),
        probabilities.log(),
        torch.zeros(len(uniforms), dtype=torch.int64),
        uniforms=uniforms,
    )
    return prediction.samples


@pytest.mark.parametrize("chunk", [1, 53, 3 * 53, 7 * 53 + 5, 10**6], ids=lambda c: f"chunk{c}")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("unlabelled", [[], [0, 1, 2, 7, 16]], ids=["all", "some"])
def test_loss_and_gradients_are_those_of_cross_entropy(
    unlabelled: list[int], smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary_loss, "_CHUNK", chunk)
    hidden, weight, bias, labels = given(17, 5, 53)
    labels[unlabelled] = -1
    prediction = predict_tokens(hidden, weight, bias, labels, label_smoothing=smoothing)
    logits = F.linear(hidden, weight, bias)
    expected = F.cross_entropy(logits, labels, ignore_index=-1, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(prediction.loss, expected)
    assert int(prediction.correct) == int((logits.argmax(-1) == labels).sum())
    assert prediction.samples is None
    scale = 0.37  # what comes from above is not one: the loss is divided by its count and weighted
    ours = torch.autograd.grad(scale * prediction.loss, (hidden, weight, bias))
    theirs = torch.autograd.grad(scale * expected, (hidden, weight, bias))
    for gradient, truth in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, truth)


def test_gradients_of_a_part_of_the_inputs() -> None:
    hidden, weight, bias, labels = given(17, 5, 53)
    predict_tokens(hidden, weight, bias.detach(), labels).loss.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    (alone,) = torch.autograd.grad(predict_tokens(hidden.detach(), weight, bias.detach(), labels).loss, weight)
    torch.testing.assert_close(alone, weight.grad)


def test_samples_do_not_change_loss_or_gradients() -> None:
    hidden, weight, bias, labels = given(17, 5, 331)
    plain = predict_tokens(hidden, weight, bias, labels)
    sampling = predict_tokens(hidden, weight, bias, labels, uniforms=torch.rand(17))
    assert torch.equal(plain.loss, sampling.loss)
    for one, other in zip(
        torch.autograd.grad(plain.loss, (hidden, weight, bias)),
        torch.autograd.grad(sampling.loss, (hidden, weight, bias)),
        strict=True,
    ):
        assert torch.equal(one, other)
    assert not sampling.samples.requires_grad


def test_large_logits_do_not_overflow() -> None:
    hidden, weight, bias, labels = given(17, 5, 53, torch.float32)
    big = hidden.detach() * 1e4
    prediction = predict_tokens(big, weight, bias, labels, uniforms=torch.rand(17))
    torch.testing.assert_close(prediction.loss, F.cross_entropy(F.linear(big, weight, bias), labels, reduction="sum"))
    assert prediction.loss.isfinite()


def test_no_targets() -> None:
    hidden, weight, bias, labels = given(0, 5, 53)
    prediction = predict_tokens(hidden, weight, bias, labels, uniforms=torch.rand(0))
    assert float(prediction.loss.detach()) == 0
    prediction.loss.backward()
    assert not weight.grad.any()
    assert prediction.samples.shape == (0,)


# below one block of the search, one block, a whole number of blocks, and between
@pytest.mark.parametrize("vocab", [2, 11, 127, 128, 129, 256, 300])
def test_samples_follow_the_softmax(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    draws = 100 * vocab + 2000
    probabilities = torch.softmax(0.7 * torch.randn(vocab, generator=generator, dtype=torch.float64), -1)
    uniforms = torch.rand(draws, generator=generator)
    samples = from_probabilities(probabilities.float(), uniforms)
    counts = np.bincount(samples.numpy(), minlength=vocab)
    assert chisquare(counts, draws * probabilities.numpy()).pvalue > 1e-3
    # and draw for draw it is the inverse of the distribution function
    ends = probabilities.cumsum(0)
    assert bool((uniforms < ends[samples] + 1e-5).all())
    assert bool((uniforms > ends[samples] - probabilities[samples] - 1e-5).all())


@pytest.mark.parametrize("vocab", [5, 127, 128, 129, 256, 300, 640])
@pytest.mark.parametrize("impossible", ["first", "last", "even", "all but one"])
def test_impossible_tokens_are_never_drawn(vocab: int, impossible: str) -> None:
    places = torch.arange(vocab)
    none = {
        "first": places < vocab // 2,
        "last": places > vocab // 2,
        "even": places % 2 == 0,
        "all but one": places != vocab // 2,
    }[impossible]
    probabilities = torch.where(none, 0.0, torch.rand(vocab, generator=torch.Generator().manual_seed(vocab)) + 1e-6)
    uniforms = torch.cat([torch.tensor([0.0, 2**-24, 0.5, LAST, LAST - 2**-24]), torch.linspace(0, LAST, 997)])
    samples = from_probabilities(probabilities, uniforms)
    assert not none[samples].any()
    possible = places[~none]
    assert int(samples[0]) == int(possible[0])
    assert int(samples[3]) == int(possible[-1])


def test_rows_sample_from_their_own_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_loss, "_CHUNK", 7 * 331)  # several chunks
    labels = torch.randperm(331)[:101]
    hidden = F.one_hot(labels, 331) * 50.0  # each row knows its token
    prediction = predict_tokens(hidden, torch.eye(331), torch.zeros(331), labels, uniforms=torch.rand(101))
    assert torch.equal(prediction.samples, labels)
    assert int(prediction.correct) == 101


class Largest(TorchDispatchMode):
    """Record the number of elements of the largest new tensor of any operation."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.elements = max(self.elements, tensor.numel())
        return result


def test_memory_is_bounded() -> None:
    targets, vocab = 2003, 30_011
    hidden, weight, bias, labels = given(targets, 7, vocab, torch.float32)
    with Largest() as spy:
        predict_tokens(hidden, weight, bias, labels, uniforms=torch.rand(targets)).loss.backward()
    assert spy.elements <= vocabulary_loss._CHUNK < targets * vocab / 4


def test_nothing_is_spent_on_gradients_in_evaluation() -> None:
    hidden, weight, bias, labels = given(3, 401, 53)
    with torch.no_grad(), Largest() as spy:
        loss = predict_tokens(hidden, weight, bias, labels).loss
    assert spy.elements < weight.numel()
    torch.testing.assert_close(loss, predict_tokens(hidden, weight, bias, labels).loss.detach())


def test_under_autocast() -> None:
    hidden, weight, bias, labels = given(101, 16, 331, torch.float32)
    exact = predict_tokens(hidden, weight, bias, labels)
    truth = torch.autograd.grad(exact.loss, (hidden, weight, bias))
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", torch.bfloat16):
            prediction = predict_tokens(hidden.to(dtype), weight, bias, labels, uniforms=torch.rand(101))
        assert prediction.loss.dtype == torch.float32
        torch.testing.assert_close(prediction.loss, exact.loss, rtol=0.01, atol=0)
        gradients = torch.autograd.grad(prediction.loss, (hidden, weight, bias))
        for gradient, expected in zip(gradients, truth, strict=True):
            assert gradient.dtype == torch.float32
            assert float((gradient - expected).norm() / expected.norm()) < 0.03


class Products(TorchDispatchMode):
    """Remembers the types that matrices were multiplied in."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.split(".")[0] in ("mm", "addmm", "addmm_"):
            self.types |= {tensor.dtype for tensor in args if isinstance(tensor, Tensor)}
        return func(*args, **(kwargs or {}))


def test_autocast_reaches_every_product() -> None:
    hidden, weight, bias, labels = given(11, 16, 53, torch.float32)
    with Products() as spy, torch.autocast("cpu", torch.bfloat16):
        predict_tokens(hidden, weight, bias, labels).loss.backward()
    assert spy.types == {torch.bfloat16}


def test_what_many_chunks_give_in_bfloat16_is_summed_in_float32() -> None:
    """4,096 targets of one token, each of which pulls alike: in bfloat16 a sum stops growing at 256 of its parts."""
    targets = 16 * vocabulary_loss._ROWS
    hidden, labels = torch.ones(targets, 4, dtype=torch.bfloat16), torch.zeros(targets, dtype=torch.int64)
    weight, bias = torch.zeros(64, 4, requires_grad=True), torch.zeros(64, requires_grad=True)
    predict_tokens(hidden, weight, bias, labels).loss.backward()
    torch.testing.assert_close(weight.grad[0], torch.full((4,), -targets * 63 / 64), rtol=1e-3, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # hidden by torch, but for pytest
def test_one_compilation_is_for_any_number_of_labels() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    hidden, weight, bias, labels = given(29, 5, 7)

    def loss_of(positions: Tensor) -> Tensor:
        return predict_tokens((hidden * 2)[positions], weight, bias, labels[positions]).loss

    compiled = torch.compile(loss_of, backend=backend)
    for count in (7, 3, 11, 2, 13):
        positions = torch.randint(29, (count,))
        gradients = [
            torch.autograd.grad(function(positions), (hidden, weight, bias)) for function in (compiled, loss_of)
        ]
        torch.testing.assert_close(*gradients)
    assert len(graphs) <= 2  # for the first number, and for all others
