"""The FLOPs of training, counted on one row as it is really worked through."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from homespun.batch import Batch
from homespun.planning.rates import flops
from homespun.planning.trace import operation


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: float = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given, made = (
            [leaf for leaf in tree_leaves(part) if isinstance(leaf, Tensor)] for part in ((args, kwargs), result)
        )
        self.total += flops(operation(func, func.overloadpacket.__name__, given, made, 0))
        return result


def flops_per_token(objective: nn.Module, batch: Batch) -> float:
    """FLOPs of training on one token that is not padding, forward and backward, of matrix products and attention.

    ``objective`` is left as it was: without gradients. A batch of one row is enough, and costs little.
    """
    device = next(objective.parameters()).device
    with torch.random.fork_rng(devices=[]), _Counter() as counter:
        torch.autograd.backward(objective(batch.to(device)).total(batch.targets))
    objective.zero_grad(set_to_none=True)
    total: float = counter.total
    return total / max(batch.real_tokens, 1)
