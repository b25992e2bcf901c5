"""Fully sharded data parallel training (ZeRO stage 3, Rajbhandari et al. 2020) by `torch.distributed.fsdp.fully_shard`.

Each process holds a part of every weight, gradient and optimizer state, and gathers the weights of a layer to compute
with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from homespun.batch import Batch, Loss, Term
from homespun.nn.torch_private import remove_sharding


class ShardedObjective(nn.Module):
    """An objective whose parameters are sharded in place over all processes, by layer where that is possible.

    Stacks that do not call their layers, such as reversible ones, are gathered as a whole.

    Args:
        objective: with equal weights in all processes.
        device: device of this process.
    """

    def __init__(self, objective: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.objective, self._device = objective, device
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        for layer in _layers(objective):
            fully_shard(layer, mesh=mesh)
        self._root = fully_shard(self, mesh=mesh)

    def forward(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor | float, float]]:
        """Fields of the terms of the loss; the hooks of FSDP find tensors only in built-in containers."""
        loss: Loss = self.objective(batch)
        return {name: (term.sum, term.count, term.weight) for name, term in loss.terms.items()}

    def loss(self, batch: Batch) -> Loss:
        """Loss of the objective."""
        with warnings.catch_warnings():  # of layers that return views, which no stack changes in place
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
            return Loss({name: Term(*fields) for name, fields in self(batch).items()})

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather the weights outside of layers, so that parts of the objective can be called."""
        self._root.unshard()
        try:
            yield
        finally:
            self._root.reshard()

    def restore(self, *, main: bool) -> None:
        """Turn the objective back into an ordinary module; its weights are on the device ``meta`` unless ``main``."""
        full: dict[Tensor, nn.Parameter] = {}
        for parameter in self.objective.parameters():
            tensor = self.full(parameter.detach())
            full[parameter] = nn.Parameter(tensor if main else tensor.to("meta"), parameter.requires_grad)
        remove_sharding(self)
        for module in self.objective.modules():
            for name, value in module.named_parameters(recurse=False, remove_duplicate=False):
                setattr(module, name, full[value])

    def plain(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters that are not sharded at present."""
        return [parameter for parameter in parameters if not isinstance(parameter, DTensor)]

    def full(self, tensor: Tensor) -> Tensor:
        """Gather a sharded tensor; called by all processes."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def gather(self, tensors: Mapping[str, Tensor], *, main: bool) -> dict[str, Tensor]:
        """Gather tensors one by one to the CPU of the main process; called by all processes, empty in the others."""
        gathered = {}
        for name, tensor in tensors.items():
            full = self.full(tensor)
            if main:
                gathered[name] = full.cpu()
        return gathered

    def scatter(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parts of this process of weights, or of optimizer state ``<state>/<parameter>``."""
        parameters, parts = dict(self.objective.named_parameters()), {}
        for path, tensor in tensors.items():
            like = parameters.get(path.rpartition("/")[2])
            if isinstance(like, DTensor) and tensor.ndim:
                mesh, placements = like.device_mesh, like.placements
                tensor = distribute_tensor(tensor.to(like.device), mesh, placements, src_data_rank=None)
            parts[path] = tensor
        return parts

    def most(self, count: int) -> int:
        """The largest ``count`` of all processes."""
        counts = torch.tensor(count, device=self._device)
        torch.distributed.all_reduce(counts, torch.distributed.ReduceOp.MAX)
        return int(counts)


def _layers(objective: nn.Module) -> list[nn.Module]:
    """Layers that their stack calls, and that share no parameter with the rest of the objective."""
    layers: dict[nn.Module, None] = {}
    for module in objective.modules():
        stack = getattr(module, "layer_stack", None)
        if stack is not None and stack.calls_layers:
            layers |= dict.fromkeys(module.layers)  # type: ignore[arg-type]  # a ModuleList
    inside = {id(part) for layer in layers for part in layer.modules()}
    owners: dict[nn.Parameter, set[int]] = {}
    for module in objective.modules():
        if id(module) not in inside:
            for parameter in module.parameters(recurse=False):
                owners.setdefault(parameter, set()).add(id(objective))
    for layer in layers:
        for parameter in layer.parameters():
            owners.setdefault(parameter, set()).add(id(layer))
    return [layer for layer in layers if all(len(owners[parameter]) == 1 for parameter in layer.parameters())]
