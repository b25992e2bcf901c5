"""Settings of training, and progress within the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import nn

from homespun.config import Bytes, Config, Count, Duration
from homespun.errors import quantity
from homespun.training.batch_size import BatchSize
from homespun.training.optim import LAST_EARLY_STEP, MAX_SIDE, OneSidedSoap, adamw, has_fused, parameter_groups

Positive = Annotated[Count, Field(gt=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Warmup = Annotated[
    float, Field(ge=0, lt=1, description="share of the budget over which the learning rate rises from zero")
]
Final = Annotated[float, Field(ge=0, le=1, description="final learning rate / peak learning rate")]
LayerDecay = Annotated[
    float, Field(gt=0, le=1, description="learning rate of a layer / learning rate of the layer above; 1: equal")
]


class Budget(Config):
    """Limits of a run. The first limit that is reached ends the run and the learning rate schedule.

    Time is summed over all resumes. It includes data loading, checkpoints and validations, but not preparation, the
    report, or steps lost when the process is killed.
    """

    time: Duration | None = Field(default=None, description="seconds, or 90s, 20m, 2h, 1h30m")
    clock: Literal["wall", "processor"] = Field(
        default="wall",
        description="of all times of training. processor: time of all threads of the process, on a shared machine",
    )
    tokens: Positive | None = Field(default=None, description="tokens seen, padding excluded; 10M, 1.5B")
    steps: Annotated[Count, Field(ge=0)] | None = Field(
        default=None, description="optimizer steps; 0: a model with its initial weights"
    )
    epochs: Annotated[float, Field(gt=0)] | None = Field(default=None, description="passes over the data; may be 0.5")
    memory: Bytes | None = Field(
        default=None,
        description="12GB, 8GiB: the largest micro_batch_size that fits is chosen; a configured one must fit",
    )

    @model_validator(mode="after")
    def _limited(self) -> Budget:
        if self.time is None and self.tokens is None and self.steps is None and self.epochs is None:
            raise ValueError("a budget needs at least one of time, tokens, steps, epochs")
        return self


class LinearSchedule(Config):
    """Linear warmup, then linear decay to the end of the budget."""

    kind: Literal["linear"] = "linear"
    warmup: Warmup = 0.06
    min_lr_ratio: Final = 0.0

    def multiplier(self, share: float) -> float:
        """Learning rate / peak learning rate at the ``share`` (0 to 1) of the budget."""
        return _with_warmup(share, self.warmup, self.min_lr_ratio, _remaining(share, self.warmup))


class CosineSchedule(Config):
    """Linear warmup, then half-cosine decay to the end of the budget (Loshchilov and Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"
    warmup: Warmup = 0.06
    min_lr_ratio: Final = 0.0

    def multiplier(self, share: float) -> float:
        """Learning rate / peak learning rate at the ``share`` (0 to 1) of the budget."""
        decay = 0.5 * (1.0 - math.cos(math.pi * _remaining(share, self.warmup)))
        return _with_warmup(share, self.warmup, self.min_lr_ratio, decay)


class WarmupStableDecaySchedule(Config):
    """Linear warmup, constant, then linear decay to the end of the budget (MiniCPM, Hu et al. 2024)."""

    kind: Literal["warmup_stable_decay"] = "warmup_stable_decay"
    warmup: Warmup = 0.06
    decay: float = Field(default=0.6, gt=0, le=1, description="share of the budget over which the learning rate falls")
    min_lr_ratio: Final = 0.0

    @model_validator(mode="after")
    def _fits(self) -> WarmupStableDecaySchedule:
        if self.warmup + self.decay > 1:
            raise ValueError(f"warmup={self.warmup} + decay={self.decay} must be at most 1; lower one of them")
        return self

    def multiplier(self, share: float) -> float:
        """Learning rate / peak learning rate at the ``share`` (0 to 1) of the budget."""
        return _with_warmup(share, self.warmup, self.min_lr_ratio, min(1.0, max(0.0, 1.0 - share) / self.decay))


class ConstantSchedule(Config):
    """Linear warmup, then a constant learning rate."""

    kind: Literal["constant"] = "constant"
    warmup: Warmup = 0.06

    def multiplier(self, share: float) -> float:
        """Learning rate / peak learning rate at the ``share`` (0 to 1) of the budget."""
        return share / self.warmup if share < self.warmup else 1.0


class InverseSquareRootSchedule(Config):
    """Constant, then decay with the inverse square root of the steps (Raffel et al. 2020, section 3.1.2).

    T5 pretrains at ``1 / sqrt(max(n, 10,000))`` in step n of 524,288: peak 0.01, constant for 2% of the budget.
    """

    kind: Literal["inverse_square_root"] = "inverse_square_root"
    level: float = Field(default=0.02, gt=0, le=1, description="share of the budget before the learning rate falls")

    def multiplier(self, share: float) -> float:
        """Learning rate / peak learning rate at the ``share`` (0 to 1) of the budget."""
        return math.sqrt(self.level / max(share, self.level))


def _remaining(share: float, warmup: float) -> float:
    """Remaining share of the decay, 1 to 0."""
    return max(0.0, 1.0 - share) / (1.0 - warmup)


def _with_warmup(share: float, warmup: float, min_lr_ratio: float, decay: float) -> float:
    """Linear warmup, then ``decay`` from 1 to 0, scaled to 1 to ``min_lr_ratio``."""
    return share / warmup if share < warmup else min_lr_ratio + (1.0 - min_lr_ratio) * decay


Schedule = Annotated[
    LinearSchedule | CosineSchedule | ConstantSchedule | InverseSquareRootSchedule | WarmupStableDecaySchedule,
    Field(discriminator="kind"),
]


class _OptimizerConfig(Config):
    supports_sharding: ClassVar[bool] = False

    def warnings(self, module: nn.Module, steps: int) -> list[str]:
        """Warnings for these parameters and a budget of ``steps`` (0: unknown), one line each."""
        return []


class AdamW(_OptimizerConfig):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019), fused if the device has a kernel."""

    supports_sharding: ClassVar[bool] = True
    kind: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=5e-4, gt=0, description="peak learning rate")
    weight_decay: float = Field(default=0.01, ge=0, description="not applied to biases and norms")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), description="decay of the mean and of the mean square")
    eps: float = Field(default=1e-6, gt=0)
    layer_decay: LayerDecay = 1.0

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer of the trainable parameters; each group has a ``scale`` of the learning rate."""
        groups = parameter_groups(module, weight_decay=self.weight_decay, layer_decay=self.layer_decay)
        return adamw(groups, learning_rate=self.learning_rate, betas=self.betas, eps=self.eps)


class Soap(_OptimizerConfig):
    """One-sided SOAP (Vyas et al. 2025), see `homespun.training.optim.OneSidedSoap`.

    Reaches a lower pretraining loss than AdamW on the same tokens. AdamW trains norms, biases, and matrices with more
    than 1,024 rows and columns.
    """

    kind: Literal["soap"] = "soap"
    learning_rate: float = Field(default=5e-3, gt=0, description="peak learning rate of matrices")
    others: float = Field(
        default=0.4, gt=0, description="learning rate of norms, biases and wide matrices / learning_rate"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="not applied to biases and norms")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.95), description="decay of the mean and of the mean square")
    shampoo_beta: Beta = Field(default=0.95, description="decay of the covariance of gradients")
    frequency: int = Field(default=10, ge=1, description="steps between two eigendecompositions")
    eps: float = Field(default=1e-8, gt=0)
    layer_decay: LayerDecay = 1.0

    def warnings(self, module: nn.Module, steps: int) -> list[str]:
        shapes = [parameter.shape for parameter in module.parameters() if parameter.requires_grad]
        if not any(len(shape) == 2 and min(shape) <= MAX_SIDE for shape in shapes):
            return [
                f"train.optimizer.kind=soap rotates matrices with a side of at most {MAX_SIDE:,}, and this model "
                f"has none: AdamW trains all of it, at {self.others:g} times train.optimizer.learning_rate; "
                f"set train.optimizer.kind=adamw"
            ]
        if 0 < steps < LAST_EARLY_STEP:
            return [
                f"train.optimizer.kind=soap computes its first eigenvectors in steps 1 to {LAST_EARLY_STEP}, and the "
                f"budget is {quantity(steps, 'step')}; give more (homespun fit: raise --time), or set "
                f"train.optimizer.kind=adamw"
            ]
        return []

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer of the trainable parameters; each group has a ``scale`` of the learning rate."""
        groups = parameter_groups(
            module, weight_decay=self.weight_decay, layer_decay=self.layer_decay, others=self.others, widest=MAX_SIDE
        )
        return OneSidedSoap(
            groups,
            learning_rate=self.learning_rate,
            betas=self.betas,
            eps=self.eps,
            shampoo_beta=self.shampoo_beta,
            frequency=self.frequency,
            fused=has_fused(groups),
        )


class Adafactor(_OptimizerConfig):
    """Adafactor (Shazeer and Stern 2018): Adam with second moments factored into row and column means.

    The learning rate, at most ``1 / sqrt(step)``, is multiplied by the root mean square of the parameter, at least by
    the second ``eps``. As in T5, there is no momentum and no weight decay.
    """

    kind: Literal["adafactor"] = "adafactor"
    learning_rate: float = Field(default=0.01, gt=0, description="peak learning rate, relative")
    weight_decay: float = Field(default=0.0, ge=0, description="not applied to biases and norms")
    beta2_decay: float = Field(default=-0.8, le=0, description="mean squares decay by 1 - step^this")
    clip_threshold: float = Field(default=1.0, ge=1, description="maximum root mean square of an update")
    eps: tuple[float, float] = Field(
        default=(1e-18, 1e-3),
        description="minimum root of a mean square of gradients, and minimum root mean square of a parameter",
    )
    layer_decay: LayerDecay = 1.0

    @model_validator(mode="after")
    def _large_enough(self) -> Adafactor:
        # torch takes the root of its square in float32: at zero, weights without a gradient become NaN
        if self.eps[0] < 1e-18 or self.eps[1] < 0:
            raise ValueError(f"eps must be at least [1e-18, 0], not {list(self.eps)}")
        return self

    def build(self, module: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer of the trainable parameters; each group has a ``scale`` of the learning rate."""
        groups = parameter_groups(module, weight_decay=self.weight_decay, layer_decay=self.layer_decay)
        return torch.optim.Adafactor(
            groups, lr=self.learning_rate, beta2_decay=self.beta2_decay, eps=self.eps, d=self.clip_threshold
        )


Optimizer = Annotated[
    AdamW | Adafactor | Soap,
    Field(discriminator="kind"),
    BeforeValidator(lambda tree: {"kind": "adamw"} | tree if isinstance(tree, dict) else tree),
]


class TrainConfig(Config):
    """Settings of the training loop."""

    seed: int = Field(
        default=0, ge=0, description="random seed of the order and corruption of the data, and of dropout"
    )
    batch_size: BatchSize = Field(
        default=32,
        description="rows of an optimizer step, over all processes; auto: 16 on a CPU, 64 on a GPU",
    )
    micro_batch_size: int | None = Field(
        default=None, ge=1, description="rows of a forward pass of one process; changes memory, not the result"
    )
    budget: Budget = Budget(time=3600.0)
    optimizer: Optimizer = AdamW()
    schedule: Schedule = LinearSchedule()
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="maximum norm of the gradient, by clipping")
    precision: Literal["auto", "float32", "bf16", "fp16"] = Field(
        default="auto",
        description="auto: bf16 on a GPU that supports it, or on a CPU where it is measured to be faster (not for "
        "short trainings), else float32",
    )
    compile: bool | Literal["auto"] = Field(
        default="auto", description="torch.compile; auto: for a long run on a GPU, if a compiler is installed"
    )
    gradient_checkpointing: bool = Field(
        default=False, description="recompute layers in the backward pass: less memory, a third more time"
    )
    validate_every: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="share of the budget between validations; between the first and the last they take at most a fifth "
        "of a time budget",
    )
    checkpoint_every: Duration = Field(default=600.0, description="seconds, or 10m, between checkpoints")
    keep_checkpoints: int = Field(default=2, ge=1, description="last checkpoints kept, besides the best")
    best_metric: str = Field(
        default="loss",
        description="metric of the validation that selects the best checkpoint: `loss`, or another such as `accuracy`",
    )
    early_stopping: int | None = Field(
        default=None, ge=1, description="validations without an improvement of best_metric after which the run ends"
    )
    processes: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default=1,
        description="CPU processes that share every step and the cores of this machine; auto: the number measured to "
        "be fastest, which is 1",
    )
    parallel: Literal["ddp", "fsdp", "auto"] = Field(
        default="ddp",
        description="with several processes, ddp: each has the complete model; fsdp: weights, gradients and optimizer "
        "state are sharded over them; auto: fsdp if ddp does not fit into memory",
    )
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        default="auto",
        description="processes that prepare batches during training; auto: none on a CPU, on a GPU one for four "
        "threads, at most 4",
    )
    tensorboard: bool = Field(default=False, description="write a TensorBoard log; needs homespun[track]")

    @model_validator(mode="after")
    def _check_parallel(self) -> TrainConfig:
        if self.processes != "auto" and self.processes > self.batch_size:
            raise ValueError(
                f"processes={self.processes} must be at most batch_size={self.batch_size}; lower processes or raise "
                f"batch_size"
            )
        if self.parallel == "fsdp" and self.unshardable is not None:
            raise ValueError(self.unshardable)
        return self

    @property
    def unshardable(self) -> str | None:
        """Reason why ``parallel=fsdp`` conflicts with other settings, or None."""
        if not self.optimizer.supports_sharding:
            return (
                f"parallel=fsdp cannot shard the state of optimizer.kind={self.optimizer.kind}; set it to adamw, or "
                f"set parallel=ddp"
            )
        if self.precision == "fp16":
            return "parallel=fsdp trains in bf16 or float32, not in fp16; set precision=bf16"
        if self.compile is True:
            return "parallel=fsdp trains without torch.compile; leave compile out"
        return None


@dataclass(frozen=True)
class Progress:
    """Totals of a run, over all resumes."""

    steps: int = 0
    tokens: int = 0  # tokens, padding excluded
    seconds: float = 0.0  # seconds of training, by the clock of the budget
    step_seconds: float = 0.0  # recent time of a step; 0 before the first
    closing_seconds: float = 0.0  # expected time of the last validation; 0 before the first


def steps_of_epochs(epochs: float, steps_per_epoch: int) -> int:
    """Return the number of steps, rounded up."""
    return math.ceil(Fraction(str(epochs)) * steps_per_epoch)  # not the float: 1.1 * 10 is above 11


@dataclass(frozen=True)
class Limits:
    """A budget in the units of `Progress`."""

    seconds: float = math.inf
    tokens: float = math.inf
    steps: float = math.inf

    @classmethod
    def of(cls, budget: Budget, *, steps_per_epoch: int) -> Limits:
        """Convert ``budget``; epochs become steps, rounded up."""
        steps = math.inf if budget.steps is None else budget.steps
        if budget.epochs is not None:
            steps = min(steps, steps_of_epochs(budget.epochs, steps_per_epoch))
        return cls(budget.time or math.inf, budget.tokens or math.inf, steps)

    def share(self, progress: Progress) -> float:
        """Used share of the budget, 0 to 1: the maximum over its limits."""
        return min(1.0, self._share(progress, ahead=0.0))

    def share_at_mid_step(self, progress: Progress) -> float:
        """Used share of the budget at the middle of the next step, which sets its learning rate.

        Under a budget of steps the learning rate of the first warmup step is therefore above zero; the time and the
        tokens of the first step are unknown, and count as 0.
        """
        return min(1.0, self._share(progress, ahead=0.5))

    def is_over(self, progress: Progress) -> bool:
        """True if the middle of the next step is beyond the budget."""
        return self._share(progress, ahead=0.5) >= 1.0

    def seconds_left(self, progress: Progress) -> float | None:
        """Remaining seconds at the speed so far; ``None`` before the first step."""
        share = self.share(progress)
        return progress.seconds * (1.0 - share) / share if share and progress.steps else None

    def _share(self, progress: Progress, *, ahead: float) -> float:
        if not self.steps:
            return 1.0
        tokens_per_step = progress.tokens / progress.steps if progress.steps else 0.0
        # time for the last validation is reserved, at most half of the budget
        seconds = self.seconds - min(progress.closing_seconds, 0.5 * self.seconds)
        return max(
            (progress.steps + ahead) / self.steps,
            (progress.tokens + ahead * tokens_per_step) / self.tokens,
            (progress.seconds + ahead * progress.step_seconds) / seconds,
        )
