"""Each private name of PyTorch exists and does what its module says; no other module uses one."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from homespun.nn import torch_private

SOURCE = Path(torch_private.__file__).parents[1]
PRIVATE = re.compile(r"\btorch(?:\.\w+)*\._[a-z]|\bfrom torch(?:\.\w+)*\._|\b_cdata\b")


def test_no_other_module_uses_private_names() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "torch_private.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)


def test_fake_tensors_have_shapes_and_no_values() -> None:
    with torch_private.FakeTensorMode() as mode:
        product = torch.ones(3, 5) @ torch.ones(5, 7)
    assert isinstance(product, torch_private.FakeTensor)
    assert product.shape == (3, 7)
    assert mode is product.fake_mode


def test_dispatch_mode_sees_operations_unless_disabled() -> None:
    seen: list[str] = []

    class Recorder(torch_private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            assert isinstance(func, torch_private.OpOverload)
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Recorder():
        torch.zeros(2) + 1
        with torch_private.disable_dispatch_modes():
            torch.zeros(2) * 3
    assert "aten.add.Tensor" in seen
    assert "aten.mul.Tensor" not in seen


def test_tree_leaves() -> None:
    assert torch_private.tree_leaves({"a": [1, (2, 3)], "b": 5}) == [1, 2, 3, 5]


def test_flash_attention_and_its_gradients() -> None:
    torch.manual_seed(0)
    parts = [torch.randn(2, 3, 7, 8, requires_grad=True) for _ in range(3)]
    expected = F.scaled_dot_product_attention(*parts)
    values, logsumexp = torch_private.flash_attention_cpu(*parts)
    scores = parts[0] @ parts[1].transpose(-1, -2) / 8**0.5
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(logsumexp, scores.logsumexp(-1))
    gradient = torch.randn_like(values)
    found = torch_private.flash_attention_cpu_backward(
        gradient, *(part.detach() for part in parts), values.detach(), logsumexp.detach(), 0.0, False
    )
    for ours, truth in zip(found, torch.autograd.grad(expected, parts, gradient), strict=True):
        torch.testing.assert_close(ours, truth)


def test_packed_linear_ops() -> None:
    operations = torch_private.packed_linear_ops()
    if operations is None:
        pytest.skip("this build of PyTorch has no oneDNN")
    reorder, multiply = operations
    weight, values = torch.randn(11, 13), torch.randn(5, 13)
    found = multiply(values, reorder(weight, 5), None, "none", [], "")
    torch.testing.assert_close(found, F.linear(values, weight))


def test_mkldnn_has_bf16() -> None:
    assert torch_private.mkldnn_has_bf16() in (True, False)


def test_storage_id_is_shared_by_views_alone() -> None:
    tensor = torch.zeros(6)
    assert torch_private.storage_id(tensor) == torch_private.storage_id(tensor.view(2, 3)[1])
    assert torch_private.storage_id(tensor) != torch_private.storage_id(tensor.clone())


def test_disabled_function_returns_the_same() -> None:
    assert torch_private.disable_compile(lambda x: x + 1)(2) == 3


def test_compile_errors_are_recognized() -> None:
    assert not torch_private.is_compile_error(RuntimeError("another"))
    with torch_private.recompile_limit(64):
        assert torch._dynamo.config.recompile_limit == 64
    assert "torch._dynamo" in sys.modules
    assert torch_private.is_compile_error(torch._dynamo.exc.Unsupported("x"))


def test_sharding_is_removed(tmp_path: Path) -> None:
    from torch import distributed as dist
    from torch.distributed.fsdp import FSDPModule, fully_shard

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh())
        fully_shard(model[0])
        fully_shard(model)
        model(torch.ones(2, 3))
        assert isinstance(model[0], FSDPModule)
        torch_private.remove_sharding(model)
        assert [type(part) for part in model.modules()] == [torch.nn.Sequential, torch.nn.Linear, torch.nn.Tanh]
        for name, parameter in list(model[0].named_parameters()):
            setattr(model[0], name, torch.nn.Parameter(parameter.full_tensor()))
        assert model(torch.ones(2, 3)).shape == (2, 5)
        assert {type(value) for value in model.state_dict().values()} == {torch.Tensor}
    finally:
        dist.destroy_process_group()
