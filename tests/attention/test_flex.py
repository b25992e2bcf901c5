"""FlexAttention equals the dense reference under every pattern and every kind of mask; other devices do without it."""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_blocked import BATCH, CHOSEN, DOCUMENTS, HEADS, KEEP, LENGTH, SPARSE, outcome, permuted
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import flex_attention as torch_flex

from homespun.attention import flex
from homespun.attention.blocked import Blocked
from homespun.attention.full import DotProduct
from homespun.nn.masks import Mask
from homespun.nn.patterns import Band, Blocks, BlockTable, Global, Sparse, Window

CPU = torch.device("cpu")
LONG = 1531  # twelve blocks of 128
# blocks that neither divide 128 nor are divided by it, and windows and tables wider than it
WIDE = SPARSE | {
    "wide window": Sparse((Window(211),)),
    "wide dilated": Sparse((Window(53, (1, 2, 5)),)),
    "wide band": Sparse((Band(300),)),
    "blocks of 24": Sparse((Blocks(24, before=3, after=0),)),
    "blocks of 256": Sparse((Blocks(256, before=0, after=1),)),
    "random of 64": Sparse(
        (BlockTable.draw(size=64, count=2, blocks=24, heads=HEADS, away=2, seed=1),), Global(block=64)
    ),
    "parts of 383": Sparse((permuted(383, ((0, 1, 2, 3), (1, 2, 3, 0), (3, 2, 1, 0))),)),
}


def masks(sparse: Sparse) -> Iterator[Mask]:
    for causal, keep, documents, batch_global_mask in itertools.product(
        (False, True), (None, KEEP), (None, DOCUMENTS), (None, CHOSEN)
    ):
        if batch_global_mask is None or sparse.global_tokens is not None:
            yield Mask(keep, causal=causal, documents=documents, batch_global_mask=batch_global_mask)


def in_blocks(table: Tensor) -> Tensor:
    """(..., blocks, blocks) bool: whether anything is allowed there, of (..., seq, seq)."""
    missing = -table.shape[-1] % flex.SIZE
    table = F.pad(table, (0, missing, 0, missing))
    return table.unflatten(-1, (-1, flex.SIZE)).unflatten(-3, (-1, flex.SIZE)).any(-1).any(-2)


@pytest.mark.parametrize("sparse", SPARSE.values(), ids=SPARSE)
def test_the_rule_is_the_dense_table_and_no_block_is_missing(sparse: Sparse) -> None:
    shape = (BATCH, HEADS, LENGTH, LENGTH)
    indices = [torch.arange(n).view(*[1] * axis, -1, *[1] * (3 - axis)) for axis, n in enumerate(shape)]
    for mask in masks(sparse):
        table = mask.dense(sparse, LENGTH, LENGTH, CPU)
        blocks = flex.make_block_mask(sparse, mask, BATCH, LENGTH, CPU)
        assert torch.equal(blocks.mask_mod(*indices).expand(shape), table.expand(shape))
        assert not (in_blocks(table) & ~blocks.to_dense().bool()).any()


@pytest.mark.parametrize("sparse", WIDE.values(), ids=WIDE)
def test_the_blocks_of_patterns_are_those_with_something_allowed(sparse: Sparse) -> None:
    place = torch.arange(LONG)
    table = sparse.allowed(place[None, :, None], place[None, None, :])
    assert torch.equal(flex.pattern_blocks(sparse, LONG, CPU), in_blocks(table))


def test_blocks_of_other_documents_are_left_out() -> None:
    documents = (torch.arange(LONG) // 256)[None]  # two blocks each, and the last of them not full
    sparse = Sparse((Window(211),), Global(first=1))
    mask = Mask(documents=documents)
    blocks = flex.make_block_mask(sparse, mask, 1, LONG, CPU).to_dense().bool()
    table = mask.dense(sparse, LONG, LONG, CPU)
    assert torch.equal(blocks, in_blocks(table))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not compiled, and with gradients on a CPU, which the kernel does not have and its reference does."""
    monkeypatch.setattr(flex, "compiled", lambda attention: attention)
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *parts: None)


# what is not compiled warns that it makes the table of all scores, which here it may
disable_compile = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@pytest.mark.slow
@disable_compile
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", ["dilated per head", "big bird"])
def test_values_and_gradients_are_dense(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "is_usable", lambda *call: True)
    mask = Mask(KEEP, documents=DOCUMENTS)  # padding is a document of its own: its queries see nothing
    found = outcome(Blocked(SPARSE[name]), mask)
    assert any(key[0] == "flex" for key in mask._built)
    torch.testing.assert_close(found, outcome(DotProduct(SPARSE[name]), mask))


def test_a_cpu_goes_the_way_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "attend", lambda *call: pytest.fail("FlexAttention cannot train on a CPU"))
    part = torch.randn(1, 1, LONG, 16)
    assert not flex.is_usable(SPARSE["window"], part, part, Mask(), 0.0)
    Blocked(SPARSE["window"])(part, part, part, Mask())


class OnGpu:
    """As much of a tensor as the choice looks at."""

    device = torch.device("cuda", 0)

    def __init__(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.shape, self.dtype = shape, dtype


@pytest.mark.parametrize(
    ("given", "usable"),
    [
        ({}, True),
        ({"dtype": torch.float32, "head_dim": 80}, True),
        ({"sparse": Sparse()}, False),
        ({"dropout": 0.1}, False),
        ({"length": flex.SHORTEST - 1}, False),
        ({"keys": 2048 + 1}, False),
        ({"mask": Mask(start=3)}, False),
        ({"head_dim": 8}, False),
        ({"head_dim": 512}, False),
        ({"dtype": torch.float64}, False),
        ({"works": False}, False),
    ],
    ids=str,
)
def test_what_is_computed_by_it(given: dict[str, Any], usable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case: dict[str, Any] = {"sparse": SPARSE["window"], "length": 2048, "head_dim": 64, "dtype": torch.bfloat16}
    case |= {"mask": Mask(), "dropout": 0.0, "works": True} | given
    monkeypatch.setattr(flex, "works", lambda *call: case["works"])
    query = OnGpu(2, 3, case["length"], case["head_dim"], dtype=case["dtype"])
    key = OnGpu(2, 3, case.get("keys", case["length"]), case["head_dim"], dtype=case["dtype"])
    assert flex.is_usable(case["sparse"], query, key, case["mask"], case["dropout"]) == usable


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate a machine that supports the kernel, without cached results of earlier checks."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    flex.works.__wrapped__.cache_clear()
    yield
    flex.works.__wrapped__.cache_clear()


def trial(name: str) -> bool:
    return bool(flex.works(SPARSE[name], HEADS, 16, False, torch.float32, CPU))


@pytest.mark.slow
@disable_compile
@pytest.mark.usefixtures("gpu", "eager")
@torch.no_grad()
def test_the_trial_passes_without_gradients_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    assert trial("big bird")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("gpu")
def test_a_kernel_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(*call: object, **named: object) -> Tensor:
        raise RuntimeError("out of resource: shared memory\nand more")

    monkeypatch.setattr(flex, "compiled", lambda attention: fails)
    assert not trial("window")
    assert not trial("window")
    (message,) = caplog.messages
    assert re.search(r"FlexAttention .*cpu \(out of resource: shared memory\)", message)


@pytest.mark.usefixtures("gpu")
def test_a_kernel_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def everything(query: Tensor, key: Tensor, value: Tensor, block_mask: object) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value)

    monkeypatch.setattr(flex, "compiled", lambda attention: everything)
    assert not trial("window")
    assert "differs" in caplog.text


@pytest.mark.usefixtures("gpu")
def test_no_memory_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*call: object, **named: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(flex, "compiled", lambda attention: full)
    with pytest.raises(torch.OutOfMemoryError):
        trial("window")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("missing", ["capability", "triton"])
def test_old_gpus_and_no_triton(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_relative_error", lambda *call: 0.0)
    assert trial("window")
    flex.works.__wrapped__.cache_clear()
    if missing == "capability":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not trial("window")


@pytest.mark.slow  # compiles a kernel for each pattern and length
@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention is for GPUs, and there is none")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sparse", WIDE.values(), ids=WIDE)
def test_on_a_gpu_it_is_dense(sparse: Sparse, dtype: torch.dtype) -> None:
    device = torch.device("cuda", 0)
    torch.manual_seed(1)
    for length in (LONG, 2 * LONG):  # the second time compiled for any length
        keep = torch.arange(length, device=device) < torch.tensor([[length], [length - 83]], device=device)
        documents = torch.where(keep, torch.arange(length, device=device) // 89, -1)
        for given in (Mask(), Mask(keep), Mask(keep, causal=True), Mask(keep, documents=documents)):
            parts = [torch.randn(BATCH, HEADS, length, 64, device=device).to(dtype).requires_grad_() for _ in range(3)]
            assert flex.is_usable(sparse, parts[0], parts[1], given, 0.0)
            upstream = torch.randn(BATCH, HEADS, length, 64, device=device)
            values = Blocked(sparse)(*parts, given)
            assert any(key[0] == "flex" for key in given._built)
            ours = [values, *torch.autograd.grad(values, parts, upstream.to(dtype))]
            exact = [part.detach().double().requires_grad_() for part in parts]
            values = DotProduct(sparse)(*exact, given)
            truth = [values, *torch.autograd.grad(values, exact, upstream.double())]
            for one, other in zip(ours, truth, strict=True):
                difference = float((one.detach().double() - other.detach()).norm() / other.detach().norm())
                assert difference < {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
