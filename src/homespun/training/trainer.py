"""Training loop as an iterator of steps: observers are code in a for loop, not callbacks."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType
from torch import nn

from homespun.attention.performer import redraw
from homespun.batch import Batch
from homespun.data.loader import Loader
from homespun.errors import NotFinite, StepTooLong, UserError, quantity
from homespun.training.checkpoint import Background, State
from homespun.training.config import Limits, Progress, TrainConfig
from homespun.training.devices import DistributedContext, PeakMemory, disable_malloc_trim, is_worth_compiling
from homespun.training.precision import PRECISIONS, Precision, choose_precision, recorded_precision
from homespun.training.processes import Interruption
from homespun.training.run import Run
from homespun.training.step import TrainingStep, Update
from homespun.training.step_log import StepResult, TensorBoard, by_term
from homespun.training.validation import EvalResult

logger = logging.getLogger(__name__)

_RECENT = 20  # steps whose median time is the expected time of a step
_REST = 4  # time budgets: minimum time between validations / time of the last one
_CLOCKS = {"wall": time.monotonic, "processor": time.process_time}
_LOGGED = ("epoch", "tokens", "share", "learning_rate", "seconds", "gradient_norm")  # fields of a `StepResult`


class Interrupted(UserError):
    """Ctrl-C or SIGTERM stopped the training, with a checkpoint of the last complete step."""


class Trainer:
    """Train ``objective`` on ``loader`` within the budget of ``config``, and log to ``run``.

    A run with checkpoints resumes from the last one. Each step is a function of the weights and of (seed, step,
    process). A resumed run is therefore bit-identical to an uninterrupted one under budgets of steps, tokens or epochs,
    and code between two steps does not change the training. The gradient of a step is the gradient of `Loss.total` over
    all its targets, for any split into micro-batches and processes. Leaving the loop early saves a checkpoint.

    Args:
        objective: maps a batch to its `Loss`; moved to the device and trained in place.
        loader: batches of this process.
        config: settings.
        run: folder to write.
        validate: called every ``validate_every`` of the budget and at the end, in every process.
        clock: returns seconds, for tests; default: ``budget.clock``.

    Raises:
        UserError: in the constructor, the device lacks the precision or all parameters are frozen; in the loop, the
            budget is too small for one step, one row does not fit into memory, another process ended, or the checkpoint
            is of another run.
        NotFinite: in the loop, a loss or gradient is not finite, and the weights are those before the step; or a
            validation is not finite.
        Interrupted: in the loop, Ctrl-C or SIGTERM.

    Example:
        ``for step in Trainer(objective, loader, config, run): print(step.number, step.loss)``
    """

    def __init__(
        self,
        objective: nn.Module,
        loader: Loader,
        config: TrainConfig,
        run: Run,
        *,
        validate: Callable[[], EvalResult] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        context = DistributedContext.join()
        if (loader.rank, loader.world_size) != (context.rank, context.world_size):
            raise ValueError(f"the loader has rank {loader.rank} of {loader.world_size}, but this process is {context}")
        # `TrainingStep` applies autocast: the precision of an accelerator would persist in this process
        handler = DistributedDataParallelKwargs(broadcast_buffers=False)
        self.accelerator = Accelerator(mixed_precision="no", kwargs_handlers=[handler])
        if self.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
            raise UserError("turn FSDP and DeepSpeed off in accelerate; train.parallel=fsdp shards a training")
        self.device, self.rank, self.world_size = context.device, context.rank, context.world_size
        if self.device.type == "cpu":
            disable_malloc_trim()
        self.objective, self.loader, self.config, self.run = objective, loader, config, run
        self.progress = Progress()
        self.limits = Limits.of(config.budget, steps_per_epoch=loader.steps_per_epoch)
        self.peak_bytes = 0  # over all resumes
        self._memory = PeakMemory(self.device)
        self._validate, self._clock = validate, clock or _CLOCKS[config.budget.clock]
        compiled = is_worth_compiling(self.device, self.limits) if config.compile == "auto" else config.compile
        self.precision = self._choose_precision()
        chosen = config.model_copy(update={"precision": self.precision.name})
        self._training_step = TrainingStep(objective, chosen, self.accelerator, compiled=compiled)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._best: float | None = None
        self._since_best = 0
        self._validations = 0  # number due so far
        self._validated = 0.0  # end of the last one
        self._score: float | None = None  # score of the validation at the last step, if any
        self._started = self._saved = 0.0
        self._saving = Background()

    def __iter__(self) -> Iterator[StepResult]:
        """Yield steps until the budget is used or ``early_stopping`` applies."""
        with Interruption() as interruption, PeakMemory(self.device) as self._memory:
            board = self._begin()
            loader, batches = self.loader, self.loader.steps(self.progress.steps)
            reason: str | None = None
            try:
                while True:
                    if any(self._sum([float(interruption.requested)])):
                        raise Interrupted(
                            f"stopped at step {self.progress.steps}; continue {self.run.path} with --resume"
                        )
                    if (reason := self._reason_to_end()) is not None:
                        break
                    step = self._step(batches)
                    if board is not None:
                        board.write(step)
                    yield step
                    if self.loader is not loader:  # out of memory: smaller micro-batches
                        loader, batches = self.loader, self.loader.steps(self.progress.steps)
                self._saving.wait()
                self._training_step.end()
            except NotFinite:
                reason = "not_finite"
                raise
            except (Interrupted, GeneratorExit):
                reason = "interrupted"
                self._save()
                self._saving.wait()
                self._training_step.end()
                raise
            except RuntimeError as error:
                if self.world_size > 1 and (interruption.requested or "by peer" in str(error)):
                    raise UserError(
                        f"another process ended at step {self.progress.steps}; continue {self.run.path} with --resume"
                    ) from error
                raise
            finally:
                self._update_peak()
                if reason is not None:
                    self._end(reason)
                if board is not None:
                    board.close()

    def _choose_precision(self) -> Precision:
        config, auto = self.config, self.config.precision == "auto"
        chosen = recorded_precision(self.run.latest_state(), self.device) if auto else None
        chosen = chosen or choose_precision(
            config.precision,
            self.device,
            objective=self.objective,
            limits=self.limits,
            batch_size=config.batch_size,
            row_tokens=float(self.loader.rows.lengths.mean()),
        )
        if auto and self.world_size > 1:  # measurements may differ
            chosen = Precision(PRECISIONS[round(self._broadcast(PRECISIONS.index(chosen.name))[0])], chosen.reason)
        return chosen

    def _begin(self) -> TensorBoard | None:
        checkpoint = self.run.latest_checkpoint()
        self.accelerator.wait_for_everyone()  # before the main process removes what the others read
        self.run.rewind(checkpoint, keep=self.config.keep_checkpoints)
        if checkpoint is not None:
            state = checkpoint.state
            self._training_step.load(checkpoint)
            self.progress = Progress(**state["progress"])
            self._best, self._since_best, self._score = state["best"], state["since_best"], state["score"]
            self._validations, self._validated = self._validations_due(), self.progress.seconds
            self.peak_bytes = max(self.peak_bytes, state.get("peak_bytes", 0))  # not in older checkpoints
            rows, processes = state["micro_batch_size"], state.get("processes", 1)  # not in older checkpoints
            if rows is None and self.world_size < processes:  # a larger share, in the same memory
                rows = -(-self.config.batch_size // processes)
            if rows != self.loader.micro_batch_size:
                self.loader = self.loader.with_micro_batch_size(rows)
        self._started = self._clock() - self.progress.seconds
        self._saved = self.progress.seconds
        self.run.log(
            "start" if checkpoint is None else "resume",
            time=self.progress.seconds,
            step=self.progress.steps,
            parameters=sum(parameter.numel() for parameter in self._training_step.objective.parameters()),
            precision=self.precision.name,
            processes=self.world_size,
        )
        if not (self.config.tensorboard and self.run.main):
            return None
        return TensorBoard(self.run.path / "tensorboard", step=self.progress.steps)

    def _step(self, batches: Iterator[list[Batch]]) -> StepResult:
        start = self._seconds()
        number = self.progress.steps + 1
        parts = next(batches)
        targets, tokens = self._step_targets(parts)
        if number == 1 and tokens > self.limits.tokens:
            raise UserError(
                f"train.budget.tokens={self.limits.tokens} is less than one step of {tokens} tokens; raise it or lower "
                f"train.batch_size"
            )
        multiplier = self.config.schedule.multiplier(self.limits.share_at_mid_step(self.progress))
        learning_rate = self.config.optimizer.learning_rate * multiplier
        update = self._update(number, parts, targets, learning_rate)
        ended, seconds = self._time(start)
        if number == 1 and ended > self.limits.seconds:
            raise StepTooLong(
                f"train.budget.time={self.limits.seconds:g} s is less than one step of {seconds:.3g} s; raise it or "
                f"lower train.batch_size"
            )
        self._recent.append(seconds)
        self.progress = dataclasses.replace(
            self.progress,
            steps=number,
            tokens=self.progress.tokens + tokens,
            seconds=ended,
            step_seconds=statistics.median(self._recent),
        )
        step = StepResult(
            number=number,
            epoch=number / self.loader.steps_per_epoch,
            tokens=self.progress.tokens,
            share=self.limits.share(self.progress),
            learning_rate=learning_rate,
            seconds=seconds,
            loss=update.loss,
            losses=update.losses,
            gradient_norm=update.gradient_norm,
            validation=None,
            tokens_per_second=tokens / max(seconds, 1e-9),
            eta_seconds=self.limits.seconds_left(self.progress),
        )
        logged = {name: getattr(step, name) for name in _LOGGED}
        self.run.log("step", time=ended, step=number, **logged, **by_term(step))
        validation = self._validation()
        due = self.progress.seconds - self._saved >= self.config.checkpoint_every
        improved = validation is not None and self._since_best == 0
        if improved or due or self._reason_to_end() is not None:
            self._save()
        return dataclasses.replace(step, validation=validation)

    def _update(self, number: int, parts: list[Batch], targets: dict[str, float], learning_rate: float) -> Update:
        redraw(self.objective, number - 1)
        seed = _step_seed(self.config.seed, number, self.rank)
        while (gradients := self._training_step.compute_gradients(parts, targets, seed=seed)) is None:
            parts = self._halve_micro_batches(number, parts)
        try:
            return self._training_step.update(gradients, targets, learning_rate=learning_rate)
        except NotFinite as error:
            raise self._not_finite(str(error), number) from error

    def _not_finite(self, problem: str, step: int) -> NotFinite:
        self._saving.wait()
        checkpoint = self.run.latest_checkpoint()
        last = "no checkpoint was written" if checkpoint is None else f"the last checkpoint is {checkpoint.path}"
        return NotFinite(
            f"{problem} at step {step}; {last}; lower train.optimizer.learning_rate or train.max_grad_norm"
        )

    def _step_targets(self, parts: list[Batch]) -> tuple[dict[str, float], int]:
        """Count the targets of each term and the tokens, over micro-batches and processes."""
        names = sorted({name for part in parts for name in part.targets})
        values = [sum(part.targets.get(name, 0.0) for part in parts) for name in names]
        *values, total = self._sum([*values, float(sum(part.real_tokens for part in parts))])
        return dict(zip(names, values, strict=True)), round(total)

    def _halve_micro_batches(self, number: int, parts: list[Batch]) -> list[Batch]:
        """Halve the micro-batch size, and return the micro-batches of this step."""
        size = max(part.num_rows for part in parts)
        if self.world_size > 1:  # the other processes wait for the gradients of this one
            raise UserError(
                f"out of memory with micro-batches of {quantity(size, 'row')}; lower train.micro_batch_size"
            )
        if size == 1:
            raise UserError(
                "out of memory with micro-batches of 1 row; lower data.max_length, set "
                "train.gradient_checkpointing=true, or take a smaller model"
            )
        self.loader = self.loader.with_micro_batch_size(size // 2)
        logger.warning("out of memory with micro-batches of %d rows; continuing with %d", size, size // 2)
        self.run.log("micro_batch", time=self._seconds(), step=number, micro_batch_size=size // 2)
        return self.loader.step(number - 1)

    def _validations_due(self) -> int:
        return math.floor(self.limits.share(self.progress) / self.config.validate_every + 1e-9)

    def _too_soon(self) -> bool:
        """True if the minimum time since the last validation has not passed."""
        since = self.progress.seconds - self._validated
        return math.isfinite(self.limits.seconds) and since < _REST * self.progress.closing_seconds

    def _validation(self) -> EvalResult | None:
        """Validate after each multiple of ``validate_every``, and after the last step."""
        self._score = None
        number = self._validations_due()
        due = number > self._validations and not self._too_soon()
        if self._validate is None or not (due or self.limits.is_over(self.progress)):
            return None
        self._validations = max(number, self._validations)
        start = self._seconds()
        try:
            with self._training_step.evaluation():
                evaluation = self._validate()
        except NotFinite as error:
            raise self._not_finite("the validation is not finite", self.progress.steps) from error
        self._score = self._broadcast(evaluation.score(self.config.best_metric))[0]
        if self._best is None or self._score > self._best:
            self._best, self._since_best = self._score, 0
        else:
            self._since_best += 1
        ended, seconds = self._time(start)
        self.progress = dataclasses.replace(self.progress, seconds=ended, closing_seconds=seconds)
        self._validated = ended
        self.run.log(
            "validation",
            time=ended,
            step=self.progress.steps,
            tokens=self.progress.tokens,
            **by_term(evaluation),
            metrics=evaluation.metrics,
        )
        return evaluation

    def _save(self) -> None:
        if not self.progress.steps:
            return
        self._saving.wait()
        self._update_peak()
        state = self._training_step.state() | {
            "step": self.progress.steps,
            "seed": self.config.seed,
            "progress": dataclasses.asdict(self.progress),
            "micro_batch_size": self.loader.micro_batch_size,
            "processes": self.world_size,
            "precision": dataclasses.asdict(self.precision),
            "best": self._best,
            "since_best": self._since_best,
            "score": self._score,
            "peak_bytes": self.peak_bytes,
            "metrics_bytes": self.run.sync_metrics(),
        }
        write, keep = self._training_step.shards_writer(), self.config.keep_checkpoints
        if write is None:
            self.run.save_checkpoint(self._training_step.tensors(), state, keep=keep)
        else:
            self._saving.start(lambda: self._save_shards(write, state))
        self._saved = self.progress.seconds

    def _save_shards(self, write: Callable[[Path], None], state: State) -> None:
        shards = self.run.shards_folder(state["step"])
        write(shards)
        self.run.save_checkpoint({}, state, keep=self.config.keep_checkpoints, shards=shards)

    def _update_peak(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self._memory.peak_bytes)

    def _end(self, reason: str) -> None:
        step, seconds = self.progress.steps, self.progress.seconds
        self.run.log("memory", time=seconds, step=step, peak_bytes=self.peak_bytes, device=self.device.type)
        self.run.log("end", time=seconds, step=step, tokens=self.progress.tokens, reason=reason)

    def _reason_to_end(self) -> str | None:
        patience = self.config.early_stopping
        if patience is not None and self._since_best >= patience:
            return "early_stopping"
        return "budget" if self.limits.is_over(self.progress) else None

    def _seconds(self) -> float:
        """Seconds of training so far, over all resumes."""
        return self._clock() - self._started

    def _time(self, start: float) -> tuple[float, float]:
        """Seconds of training so far, and since ``start``, by the clock of the main process."""
        end = self._seconds()
        end, seconds = self._broadcast(end, end - start)
        return end, seconds

    def _broadcast(self, *values: float) -> list[float]:
        """Send the values of the main process to all processes."""
        return self._sum([value if self.rank == 0 else 0.0 for value in values])

    def _sum(self, values: list[float]) -> list[float]:
        if self.world_size == 1:
            return values
        summed = self.accelerator.reduce(torch.tensor(values, dtype=torch.float64, device=self.device), reduction="sum")
        return [float(value) for value in summed.tolist()]


def _step_seed(seed: int, step: int, rank: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{step}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
