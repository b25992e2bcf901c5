"""Training step: gradients over micro-batches and processes, then the optimizer."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from homespun.batch import Batch, Loss, count_tensor
from homespun.errors import NotFinite, UserError, is_out_of_memory
from homespun.models.bundle import load_weights, weights_of
from homespun.nn.torch_private import is_compile_error
from homespun.objectives.adversarial import AdversarialObjective
from homespun.training.checkpoint import Checkpoint, State, load_optimizer, optimizer_tensors
from homespun.training.config import TrainConfig
from homespun.training.devices import has_lstm, resolve_dtype
from homespun.training.optim import set_learning_rate

if TYPE_CHECKING:
    from homespun.training.sharding import ShardedObjective


@dataclass(frozen=True)
class Update:
    """Loss and gradient norm of an optimizer step."""

    loss: float
    losses: dict[str, float]  # mean of each term
    gradient_norm: float  # before clipping


@dataclass(frozen=True)
class Gradients:
    """Loss terms of a step; the gradients are stored in the parameters."""

    names: list[str]
    weights: list[float]
    sums_and_counts: Tensor  # (2 * terms,): sums, then counts


class TrainingStep:
    """Objective with its device, precision and optimizer.

    Args:
        objective: moved to the device and trained in place.
        config: settings.
        accelerator: device and processes.
        compiled: use `torch.compile`.

    Raises:
        UserError: the device lacks the precision, every parameter is frozen, or a parameter cannot be sharded.
    """

    def __init__(self, objective: nn.Module, config: TrainConfig, accelerator: Accelerator, *, compiled: bool) -> None:
        self.objective, self.config, self.accelerator = objective, config, accelerator
        self.device: torch.device = accelerator.device
        self._dtype = resolve_dtype(config.precision, self.device)
        for module in objective.modules():
            if isinstance(module, nn.LSTM) and not has_lstm(self._dtype, self.device):
                raise UserError("torch has no LSTM in bfloat16 on this processor; set train.precision=float32")
        check_sharding(objective, config)
        set_gradient_checkpointing(objective, config.gradient_checkpointing)
        objective.train()
        with warnings.catch_warnings():  # accelerate has no other option for it yet
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            self._sharded = self._shard() if config.parallel == "fsdp" and accelerator.num_processes > 1 else None
            self._parallel: nn.Module = self._sharded or accelerator.prepare_model(objective)
        self._optimizer = config.optimizer.build(objective)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self._dtype == torch.float16)
        compiled = compiled and self._sharded is None
        self._forward: Callable[[Batch], Loss] = torch.compile(self._parallel) if compiled else self._parallel
        if self._sharded is not None:
            self._forward = self._sharded.loss

    def _shard(self) -> ShardedObjective:
        from homespun.training.sharding import ShardedObjective  # imports torch.distributed.tensor for a second

        return ShardedObjective(self.objective, self.device)

    def compute_gradients(self, parts: list[Batch], targets: dict[str, float], *, seed: int) -> Gradients | None:
        """Compute the gradients of a step; ``None`` if a micro-batch does not fit into memory.

        Args:
            parts: micro-batches of this process.
            targets: number of targets of each term, over all micro-batches and processes.
            seed: random seed of dropout.

        Raises:
            UserError: the objective cannot be compiled.
        """
        self._optimizer.zero_grad(set_to_none=True)
        # not `torch.manual_seed`, which spends 0.1 ms on absent devices
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)
        try:
            return self._accumulate(parts, targets)
        except (RuntimeError, MemoryError) as error:
            if is_compile_error(error):
                reason = str(error).strip().splitlines()[0]
                raise UserError(f"torch.compile failed ({reason}); set train.compile=off") from error
            if not is_out_of_memory(error):
                raise
        # outside the handler, whose traceback references every tensor of the step
        self._optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _accumulate(self, parts: list[Batch], targets: dict[str, float]) -> Gradients:
        names: list[str] = []
        weights: list[float] = []
        totals: Tensor | None = None
        # with FSDP every process takes part in every forward pass, even with fewer micro-batches
        idle = 0 if self._sharded is None else self._sharded.most(len(parts)) - len(parts)
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self._parallel):
                with self.autocast():
                    loss = self._forward(part.to(self.device))
                names = list(loss.terms)
                weights = [term.weight for term in loss.terms.values()]
                uncounted = [name for name, term in loss.terms.items() if term.weight and name not in targets]
                if uncounted:
                    raise ValueError(f"Batch.targets {list(targets)} has no count for the loss terms {uncounted}")
                # processes average their gradients; the gradient of the step is their sum
                total = loss.total(targets) * self.accelerator.num_processes
                if self.accelerator.num_processes > 1:  # DDP waits for the gradient of every parameter, used or not
                    total = total + self._zero()
                torch.autograd.backward(self._scaler.scale(total))
            terms = loss.terms.values()
            sums = [term.sum.detach().float() for term in terms]
            counts = [count_tensor(term.count, self.device) for term in terms]
            values = torch.stack(sums + counts)
            totals = values if totals is None else totals + values
        if totals is None:
            raise ValueError("a step needs at least one micro-batch")
        for _ in range(idle):
            with self.autocast():
                loss = self._forward(parts[-1].to(self.device))
            torch.autograd.backward((loss.total(targets) + self._zero()) * 0.0)
        return Gradients(names, weights, totals)

    def _zero(self) -> Tensor:
        """() zero that depends on every trained parameter, except those of sharded layers."""
        trained = [parameter for parameter in self.objective.parameters() if parameter.requires_grad]
        plain = trained if self._sharded is None else self._sharded.plain(trained)
        return torch.stack([parameter.sum() for parameter in plain]).sum() * 0.0 if plain else torch.zeros(())

    def update(self, gradients: Gradients, targets: dict[str, float], *, learning_rate: float) -> Update:
        """Clip the gradients and update the parameters.

        Raises:
            NotFinite: a loss term or gradient is not finite; the parameters are unchanged.
            UserError: out of memory.
        """
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        self._scaler.unscale_(self._optimizer)
        norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        norm = norm if self._sharded is None else self._sharded.full(norm)
        clip_grads_with_norm_(parameters, self.config.max_grad_norm or math.inf, norm)
        totals = self.accelerator.reduce(gradients.sums_and_counts, reduction="sum")
        # one transfer per step, because each one synchronizes a GPU
        *values, norm_value = torch.cat([totals, norm.float()[None]]).tolist()
        sums, counts = values[: len(gradients.names)], values[len(gradients.names) :]
        for name, value in zip(gradients.names, sums, strict=True):
            if not math.isfinite(value):
                raise NotFinite(f"the loss term {name!r} is not finite")
        if not math.isfinite(norm_value) and not self._scaler.is_enabled():  # a scaler skips the step and scales less
            raise NotFinite("the gradient is not finite")
        set_learning_rate(self._optimizer, learning_rate)
        try:
            with self.autocast(enabled=self._dtype == torch.bfloat16):  # for optimizers that multiply matrices
                self._scaler.step(self._optimizer)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise UserError("out of memory in the optimizer step; take a smaller model") from error
        self._scaler.update()
        terms = list(zip(gradients.names, gradients.weights, sums, counts, strict=True))
        loss = math.fsum(weight * value / (targets[name] or 1.0) for name, weight, value, _ in terms if weight)
        means = {name: value / count if count else math.nan for name, _, value, count in terms}
        return Update(loss, means, norm_value)

    def autocast(self, *, enabled: bool = True) -> contextlib.AbstractContextManager[None]:
        """Return the autocast context for calls of the objective."""
        return torch.autocast(self.device.type, dtype=self._dtype, enabled=enabled and self._dtype != torch.float32)

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Return a context for calls of the objective or its submodules between two steps."""
        with self.autocast(), contextlib.nullcontext() if self._sharded is None else self._sharded.gathered():
            yield

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors for a checkpoint."""
        return {"model": weights_of(self.objective), "optimizer": optimizer_tensors(self._optimizer)}

    def shards_writer(self) -> Callable[[Path], None] | None:
        """A function that writes the state of now into a folder, in a thread of every process; None without shards.

        It raises `UserError` if a process could not write.
        """
        if self._sharded is None:
            return None
        return partial(self._sharded.write, {name: self._sharded.copy(group) for name, group in self.tensors().items()})

    def end(self) -> None:
        """Make the objective an ordinary module again, with all weights in the main process."""
        if self._sharded is not None:
            self._optimizer.zero_grad(set_to_none=True)
            self._optimizer.state.clear()
            self._sharded.restore(main=self.accelerator.is_main_process)

    def state(self) -> State:
        """Return the plain values for a checkpoint."""
        return {"scaler": self._scaler.state_dict()}

    def load(self, checkpoint: Checkpoint) -> None:
        """Restore weights, optimizer and gradient scaler.

        Raises:
            UserError: the checkpoint is of another model or optimizer.
        """
        read = checkpoint.tensors if self._sharded is None else partial(self._sharded.read, checkpoint.path)
        load_weights(self.objective, read("model"), source=str(checkpoint.path))
        load_optimizer(self._optimizer, read("optimizer"))
        self._scaler.load_state_dict(checkpoint.state["scaler"])


def check_sharding(objective: nn.Module, config: TrainConfig) -> None:
    """Raise `UserError` if ``train.parallel=fsdp`` cannot train ``objective``."""
    scalars = [name for name, parameter in objective.named_parameters() if not parameter.ndim]
    if config.parallel == "fsdp" and scalars:
        raise UserError(f"train.parallel=fsdp cannot shard {scalars[0]}, a single number; set train.parallel=ddp")
    if config.parallel == "fsdp" and any(isinstance(part, AdversarialObjective) for part in objective.modules()):
        raise UserError(
            "train.parallel=fsdp does not support objective.adversarial, which takes a gradient inside of the forward "
            "pass; set train.parallel=ddp"
        )


def set_gradient_checkpointing(objective: nn.Module, enabled: bool) -> None:
    """Enable or disable gradient checkpointing in every backbone of ``objective``."""
    for module in objective.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = enabled  # type: ignore[assignment]
