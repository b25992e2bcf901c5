"""Fully sharded data parallel training (ZeRO stage 3, Rajbhandari et al. 2020) by `torch.distributed.fsdp.fully_shard`.

Each process holds a shard of every weight, gradient and optimizer state, and gathers the weights of a layer for its
forward and backward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from homespun.batch import Batch, Loss, Term
from homespun.errors import UserError
from homespun.nn.torch_private import remove_sharding


class ShardedObjective(nn.Module):
    """Shard the parameters of an objective in place over all processes, layer by layer where possible.

    Stacks that do not call their layers, such as reversible stacks, are gathered completely.

    Args:
        objective: objective with equal weights in all processes.
        device: device of this process.
    """

    def __init__(self, objective: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.objective, self._device = objective, device
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        for layer in sharded_layers(objective):
            fully_shard(layer, mesh=mesh)
        fully_shard(self, mesh=mesh)
        self._writing = torch.distributed.new_group(backend="gloo")  # group of the threads that write during training

    def forward(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor | float, float]]:
        """Compute the loss terms as tuples: the hooks of FSDP find tensors only in built-in containers."""
        loss: Loss = self.objective(batch)
        return {name: (term.sum, term.count, term.weight) for name, term in loss.terms.items()}

    def loss(self, batch: Batch) -> Loss:
        """Compute the loss of the objective."""
        with warnings.catch_warnings():  # torch warns of layers that return views; no stack changes them in place
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
            return Loss({name: Term(*fields) for name, fields in self(batch).items()})

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Gather the weights outside of layers, so that submodules of the objective can be called."""
        assert isinstance(self, FSDPModule)
        self.unshard()
        try:
            yield
        finally:
            self.reshard()

    def restore(self, *, main: bool) -> None:
        """Restore an unsharded module; its weights are on the ``meta`` device unless ``main``."""
        full: dict[Tensor, nn.Parameter] = {}
        for parameter in self.objective.parameters():
            tensor = self.full(parameter.detach())
            full[parameter] = nn.Parameter(tensor if main else tensor.to("meta"), parameter.requires_grad)
        remove_sharding(self)
        for module in self.objective.modules():
            for name, value in module.named_parameters(recurse=False, remove_duplicate=False):
                setattr(module, name, full[value])

    def plain(self, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        """Return the parameters that are currently not sharded."""
        return [parameter for parameter in parameters if not isinstance(parameter, DTensor)]

    def full(self, tensor: Tensor) -> Tensor:
        """Gather a sharded tensor. All processes must call this."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy the parts of this process to memory of the CPU, to write them while training goes on."""
        plain = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        copied = DefaultStager(plain).stage(dict(tensors))
        assert isinstance(copied, dict)
        return copied

    def write(self, groups: Mapping[str, Mapping[str, Tensor]], folder: Path) -> None:
        """Write the shards of this process into ``folder/<group>``. All processes must call this, in a thread or not.

        Raises:
            UserError: a process could not write.
        """
        for name, tensors in groups.items():
            writer = HuggingFaceStorageWriter(str(folder / name), save_distributed=True)
            try:
                save(dict(tensors), storage_writer=writer, process_group=self._writing)
            except CheckpointException as error:
                causes = "; ".join(str(cause) for cause, _ in error.failures.values())
                raise UserError(
                    f"cannot write the checkpoint {folder}: {causes}; free disk space, then --resume"
                ) from None

    def read(self, folder: Path, name: str) -> dict[str, Tensor]:
        """Read the shards of this process of the ``model`` or ``optimizer`` of a checkpoint in either format."""
        return read_tensors(folder, name, dict(self.objective.named_parameters()))

    def most(self, count: int) -> int:
        """Maximum of ``count`` over all processes."""
        counts = torch.tensor(count, device=self._device)
        torch.distributed.all_reduce(counts, torch.distributed.ReduceOp.MAX)
        return int(counts)


def read_tensors(folder: Path, name: str, parameters: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Read the ``model`` or ``optimizer`` of a checkpoint, completely or as shards for ``parameters``.

    The files are not pickled: each is a safetensors file with the offsets of its shards in JSON.
    """
    reader = HuggingFaceStorageReader(str(folder / name if (folder / name).is_dir() else folder))
    tensors: dict[str, Tensor] = {}
    for path, found in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(found, TensorStorageMetadata)
        if ("/" in path) == (name == "optimizer"):  # one folder has both in the format of one process
            like = (parameters or {}).get(path.rpartition("/")[2])
            sharded = isinstance(like, DTensor) and like.shape == found.size
            shape = torch.empty_like(like) if sharded else torch.empty(found.size)  # type: ignore[arg-type]
            tensors[path] = shape.to(found.properties.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # each process reads for itself
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def sharded_layers(objective: nn.Module) -> list[nn.Module]:
    """Find the layers that their stack calls and that share no parameter with the rest of the objective."""
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
