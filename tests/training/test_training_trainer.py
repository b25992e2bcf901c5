import dataclasses
import math
import sys
import time
from contextlib import nullcontext

import psutil
import pytest
import torch
from torch import nn
from training_parts import (
    ROWS,
    Objective,
    TinyRows,
    Watching,
    collate,
    events,
    make_trainer,
    train_config,
    without_clock,
)

from homespun.batch import Loss, Term
from homespun.errors import NotFinite, UserError
from homespun.models.encoder import EncoderConfig
from homespun.training.config import Budget, Limits, LinearSchedule
from homespun.training.devices import PeakMemory, has_lstm, is_worth_compiling, resolve_dtype, trim_malloc
from homespun.training.validation import EvalResult, evaluate_loss

CPU = torch.device("cpu")


def weights(trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.objective.parameters()])


def held_out(trainer):
    """A validation by the loss over all rows."""
    return lambda: evaluate_loss(trainer.objective, trainer.loader.once(), trainer.device)


# the gradient of a step


@pytest.mark.parametrize("size", [1, 2, 4, 7, 11])
def test_the_split_into_micro_batches_does_not_matter(tmp_path, size):
    torch.manual_seed(3)  # with other weights a gradient near 0 may have another sign
    full = make_trainer(tmp_path / "whole", train_config(budget=Budget(steps=3)), objective=Objective())
    split_config = train_config(budget=Budget(steps=3), micro_batch_size=size)
    torch.manual_seed(5)
    split = make_trainer(tmp_path / "split", split_config, objective=Objective())
    split.objective.load_state_dict(full.objective.state_dict())
    for a, b in zip(full, split, strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-6)
        assert b.losses == pytest.approx(a.losses, rel=1e-6)
        assert b.gradient_norm == pytest.approx(a.gradient_norm, rel=1e-6)
        assert (b.tokens, b.learning_rate) == (a.tokens, a.learning_rate)
    torch.testing.assert_close(weights(split), weights(full), rtol=0, atol=1e-6)


def test_the_loss_is_the_weighted_sum_of_the_terms(tmp_path):
    for step in make_trainer(tmp_path, train_config()):
        assert step.loss == pytest.approx(step.losses["token"] + 3 * step.losses["row"], abs=1e-5)
        assert 0 <= step.losses["token_accuracy"] <= 1


def test_a_count_may_be_a_fraction(tmp_path, monkeypatch):
    """As it is of weighted classes."""

    def weighted(rows, row_seeds):
        batch = collate(rows, row_seeds)
        return dataclasses.replace(batch, targets=batch.targets | {"row": 0.2 * batch.targets["row"]})

    class Weighted(Objective):
        def forward(self, batch):
            row = (terms := super().forward(batch).terms)["row"]
            return Loss(terms | {"row": Term(0.2 * row.sum, 0.2 * row.count, weight=row.weight)})

    monkeypatch.setattr("training_parts.collate", weighted)
    for step in make_trainer(tmp_path, train_config(batch_size=1), objective=Weighted()):
        assert step.loss == pytest.approx(step.losses["token"] + 3 * step.losses["row"], abs=1e-5)


def test_tokens_are_counted_without_padding_and_epochs_with_their_parts(tmp_path):
    steps = list(make_trainer(tmp_path, train_config(budget=Budget(epochs=2))))
    assert len(steps) == 8
    assert steps[3].tokens == TinyRows.lengths.sum()
    assert steps[-1].tokens == 2 * TinyRows.lengths.sum()
    assert [step.epoch for step in steps[:4]] == [0.25, 0.5, 0.75, 1.0]


def test_a_term_that_the_batch_does_not_count_is_an_error(tmp_path):
    class Unannounced(Objective):
        def forward(self, batch):
            return Loss(super().forward(batch).terms | {"extra": Term(self.pooler.weight.sum(), 1)})

    with pytest.raises(ValueError, match=r"\['extra'\]"):
        list(make_trainer(tmp_path, train_config(), objective=Unannounced()))


def test_training_learns(tmp_path):
    steps = list(make_trainer(tmp_path, train_config(budget=Budget(steps=60)), objective=Objective()))
    assert steps[-1].losses["token"] < 0.3 * steps[0].losses["token"]


# budgets


def test_a_run_of_steps_ends_annealed(tmp_path):
    config = train_config(budget=Budget(steps=50), schedule=LinearSchedule(warmup=0.1))
    rates = [step.learning_rate for step in make_trainer(tmp_path, config)]
    assert len(rates) == 50
    assert rates[0] > 0
    assert max(rates) == pytest.approx(0.01, rel=0.1)
    assert rates[-1] == pytest.approx(0.01 * 0.01 / 0.9)


def test_a_run_of_no_steps_leaves_the_weights_as_they_were_drawn(tmp_path):
    trainer = make_trainer(tmp_path, train_config(budget=Budget(steps=0, time=60.0)))
    before = {name: tensor.clone() for name, tensor in trainer.objective.state_dict().items()}
    assert list(trainer) == []
    after = trainer.objective.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


class Clock:
    """Time that passes only in forward passes and validations, and not evenly."""

    def __init__(self, validation: float = 0.0) -> None:
        self.now = 1000.0
        self.calls = 0
        self.validation = validation

    def __call__(self) -> float:
        return self.now

    def objective(self) -> nn.Module:
        clock = self

        class Slow(Objective):
            def forward(self, batch):
                clock.calls += 1
                clock.now += 0.8 + 0.4 * (clock.calls % 2)
                return super().forward(batch)

        return Slow()

    def validate(self) -> EvalResult:
        self.now += self.validation
        return EvalResult(1.0, {})


@pytest.mark.parametrize("validation", [0.0, 3.0])
@pytest.mark.parametrize("budget", [57.0, 60.3])
def test_a_run_of_time_ends_annealed_and_within_one_step_of_it(tmp_path, validation, budget):
    clock = Clock(validation)
    config = train_config(budget=Budget(time=budget), validate_every=0.25)
    trainer = make_trainer(
        tmp_path, config, objective=clock.objective(), clock=clock, validate=clock.validate if validation else None
    )
    steps = list(trainer)
    assert abs(clock.now - 1000.0 - budget) <= 1.2
    assert steps[-1].learning_rate < 0.05 * 0.01
    assert trainer.progress.seconds == pytest.approx(clock.now - 1000.0)
    assert [s.validation is not None for s in steps].count(True) == (4 if validation else 0)


def test_slow_validations_leave_most_of_a_budget_of_time_to_training(tmp_path):
    clock = Clock(validation=8.0)
    config = train_config(budget=Budget(time=120.0), validate_every=0.05)  # every 6 s, if they took none
    steps = list(make_trainer(tmp_path, config, objective=clock.objective(), clock=clock, validate=clock.validate))
    validated = [step.validation is not None for step in steps]
    assert sum(step.seconds for step in steps) > 0.7 * 120
    assert validated.count(True) == 4  # the first, two after 32 s of training each, and the last; with no rest: 12
    assert validated[-1]


def test_a_run_of_time_goes_on_with_the_time_it_had_left(tmp_path):
    clock = Clock()
    config = train_config(budget=Budget(time=20.0))
    for step in make_trainer(tmp_path, config, objective=clock.objective(), clock=clock):
        if step.number == 9:
            break
    used = clock.now - 1000.0
    clock.now += 5000.0
    again = list(make_trainer(tmp_path, config, objective=clock.objective(), clock=clock, resume=True))
    assert again[0].number == 10
    assert abs(clock.now - 6000.0 - 20.0) <= 1.2
    assert again[0].eta_seconds == pytest.approx(20.0 - used - again[0].seconds)


def test_a_budget_may_go_by_processor_time(tmp_path):
    class Waiting(Objective):
        def forward(self, batch):
            time.sleep(0.3)
            return super().forward(batch)

    config = train_config(budget=Budget(steps=3, clock="processor"))
    start, waited = time.process_time(), time.monotonic()
    trainer = make_trainer(tmp_path, config, objective=Waiting())
    list(trainer)
    assert trainer.progress.seconds <= time.process_time() - start < time.monotonic() - waited - 0.6


def test_every_process_goes_by_the_clock_of_the_main_one(tmp_path, monkeypatch):
    broadcast = []  # by the main process, in turn

    def of_the_main_one(values):
        broadcast.append(values)
        return values

    def steps(rank):
        clock = Clock(validation=3.0 + rank)
        clock.calls = rank  # slow where the other is fast
        config = train_config(budget=Budget(time=57.0), validate_every=0.25)
        trainer = make_trainer(
            tmp_path / str(rank), config, objective=clock.objective(), clock=clock, validate=clock.validate
        )
        trainer.rank, trainer.world_size = rank, 2
        monkeypatch.setattr(trainer, "_sum", of_the_main_one if rank == 0 else lambda values: broadcast.pop(0))
        return [(step.number, step.learning_rate, step.seconds, step.eta_seconds) for step in trainer]

    assert steps(0) == steps(1)
    assert not broadcast


def test_time_budget_below_one_step_is_refused(tmp_path):
    clock = Clock()
    config = train_config(budget=Budget(time=0.5))
    with pytest.raises(UserError, match=r"=0\.5 s .* 1\.2 s"):
        list(make_trainer(tmp_path, config, objective=clock.objective(), clock=clock))


def test_a_budget_of_tokens_below_one_step_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"=7 .* \d\d tokens"):
        list(make_trainer(tmp_path, train_config(budget=Budget(tokens=7))))


def test_a_budget_of_tokens_is_used_to_half_a_step(tmp_path):
    *_, last = make_trainer(tmp_path, train_config(budget=Budget(tokens=1000)))
    assert abs(last.tokens - 1000) <= 0.5 * 11 * 11


# resuming


@pytest.mark.parametrize("budget", [Budget(steps=9), Budget(tokens=700), Budget(epochs=2.2)], ids=repr)
@pytest.mark.parametrize("micro_batch_size", [None, 4])
def test_stopped_and_resumed_is_never_stopped_to_the_bit(tmp_path, budget, micro_batch_size):
    config = train_config(budget=budget, micro_batch_size=micro_batch_size)
    full = make_trainer(tmp_path / "whole", config)
    list(full)
    for stop in (2, 3, 6):
        torch.manual_seed(stop)
        for step in make_trainer(tmp_path / "parts", config, resume=True):
            if step.number == stop:
                break
    parts = make_trainer(tmp_path / "parts", config, resume=True)
    list(parts)
    assert torch.equal(weights(parts), weights(full))
    steps = [without_clock(events(tmp_path / name, "step")) for name in ("whole", "parts")]
    assert steps[0] == steps[1]
    assert len(steps[0]) == len(events(tmp_path / "whole", "step"))
    assert [line["step"] for line in events(tmp_path / "parts", "resume")] == [2, 3, 6]


def test_neither_validation_nor_the_callers_drawing_changes_training(tmp_path):
    plain = make_trainer(tmp_path / "plain", train_config())
    list(plain)
    watched = make_trainer(tmp_path / "watched", train_config(validate_every=0.3))
    watched._validate = held_out(watched)
    for _ in watched:
        torch.rand(3)
        assert watched.objective.training
    assert torch.equal(weights(watched), weights(plain))
    assert len(events(tmp_path / "watched", "validation")) == 3


def test_a_finished_run_that_is_resumed_makes_no_step(tmp_path):
    config = train_config()
    list(make_trainer(tmp_path, config))
    before = without_clock(events(tmp_path))
    again = make_trainer(tmp_path, config, resume=True)
    assert list(again) == []
    after = [line for line in without_clock(events(tmp_path)) if line["event"] != "resume"]
    assert [line["event"] for line in after] == [line["event"] for line in before]
    assert again.progress.steps == 7


def test_a_run_given_a_larger_budget_goes_on_and_validates_in_its_shares(tmp_path):
    for steps, expected in [(5, [3, 5]), (20, [10, 20])]:
        config = train_config(budget=Budget(steps=steps), validate_every=0.5)
        trainer = make_trainer(tmp_path, config, validate=lambda: EvalResult(1.0, {}), resume=True)
        assert [step.number for step in trainer if step.validation] == expected
    assert [line["step"] for line in events(tmp_path, "step")] == list(range(1, 21))


def test_checkpoints_are_written_by_the_clock(tmp_path):
    clock = Clock()
    config = train_config(budget=Budget(steps=13), checkpoint_every=4.0, keep_checkpoints=50)
    list(make_trainer(tmp_path, config, objective=clock.objective(), clock=clock))
    found = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoints").iterdir())
    assert found == [4, 8, 12, 13]


def test_a_loader_of_another_process_is_refused(tmp_path):
    with pytest.raises(ValueError, match="rank 0 of 2"):
        make_trainer(tmp_path, train_config(), world_size=2)


# validation


def test_validation_is_the_exact_mean_whatever_the_batches(tmp_path):
    trainer = make_trainer(tmp_path, train_config())
    full = evaluate_loss(trainer.objective, trainer.loader.with_micro_batch_size(ROWS).once(), CPU)
    parts = evaluate_loss(trainer.objective, trainer.loader.with_micro_batch_size(3).once(), "cpu")
    assert parts.losses == pytest.approx(full.losses, abs=1e-6)
    assert parts.loss == pytest.approx(full.losses["token"] + 3 * full.losses["row"], abs=1e-5)
    with pytest.raises(UserError, match="nothing to validate"):
        evaluate_loss(trainer.objective, [], CPU)


def test_validation_draws_the_same_every_time_and_leaves_no_trace():
    class Sampling(nn.Module):
        def forward(self, batch):
            assert not self.training
            assert not torch.is_grad_enabled()
            return Loss({"a": Term(torch.rand(()), 1), "never": Term(torch.zeros(()), 0)})

    module = Sampling()
    batch = dataclasses.make_dataclass("Anything", [])()
    batch.to = lambda device: batch
    state = torch.get_rng_state()
    first, second = (evaluate_loss(module, [batch, batch], CPU) for _ in range(2))
    assert first.losses["a"] == second.losses["a"] == first.loss
    assert math.isnan(first.losses["never"])
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training


def scripted(values, metric="loss"):
    script = iter(values)

    def validate() -> EvalResult:
        value = next(script)
        return EvalResult(value, {}) if metric == "loss" else EvalResult(0.0, {}, {metric: value, "table": {}})

    return validate


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [("loss", [3.0, 1.0, 2.0, 2.5, 0.5], 2), ("accuracy", [0.3, 0.9, 0.1, 0.9, 0.1], 2), ("loss", [5, 4, 3, 2, 1], 5)],
)
def test_early_stopping_and_the_best_checkpoint(tmp_path, metric, values, best):
    config = train_config(budget=Budget(steps=5), validate_every=0.2, early_stopping=2, best_metric=metric)
    trainer = make_trainer(tmp_path, config, validate=scripted(values, metric))
    steps = list(trainer)
    assert len(steps) == (5 if best == 5 else 4)
    assert events(tmp_path, "end")[0]["reason"] == ("budget" if best == 5 else "early_stopping")
    assert trainer.run.best_checkpoint().step == best
    again = make_trainer(tmp_path, config, validate=scripted([], metric), resume=True)
    assert list(again) == []


def test_an_unknown_metric_lists_the_known_ones(tmp_path):
    config = train_config(best_metric="acuracy", validate_every=0.5)
    with pytest.raises(UserError, match=r"best_metric='acuracy' .*'accuracy'"):
        list(make_trainer(tmp_path, config, validate=scripted([0.5], "accuracy")))


def test_a_validation_that_is_not_a_number_is_never_the_best():
    assert EvalResult(math.nan, {}).score("loss") == -math.inf
    assert EvalResult(0.0, {}, {"log_loss": 2.0}).score("log_loss") == -2.0
    assert EvalResult(0.0, {}, {"macro_f1": 0.5}).score("macro_f1") == 0.5


# what goes wrong


class Greedy(Objective):
    """Runs out of memory on more than ``limit`` rows, in the second half of a step."""

    def __init__(self, limit: int, error: Exception) -> None:
        super().__init__(dropout=0.2)
        self.limit, self.error = limit, error

    def forward(self, batch):
        loss = super().forward(batch)
        if len(batch.input_ids) > self.limit:
            raise self.error
        return loss


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_out_of_memory_halves_the_micro_batch_and_makes_the_same_step_again(tmp_path, error):
    torch.manual_seed(5)
    small = make_trainer(tmp_path / "small", train_config(micro_batch_size=2), objective=Greedy(2, error))
    list(small)
    torch.manual_seed(5)
    halved = make_trainer(tmp_path / "halved", train_config(), objective=Greedy(2, error))
    steps = list(halved)
    assert [step.number for step in steps] == list(range(1, 8))
    lines = events(tmp_path / "halved", "micro_batch")
    assert [(line["step"], line["micro_batch_size"]) for line in lines] == [(1, 5), (1, 2)]
    assert torch.equal(weights(halved), weights(small))


def test_the_smaller_micro_batch_is_kept_when_resumed(tmp_path):
    config = train_config()
    for step in make_trainer(tmp_path, config, objective=Greedy(3, MemoryError())):
        if step.number == 2:
            break
    list(make_trainer(tmp_path, config, objective=Greedy(3, MemoryError()), resume=True))
    assert [line["step"] for line in events(tmp_path, "micro_batch")] == [1, 1]


def test_out_of_memory_with_one_row_names_what_to_lower(tmp_path):
    with pytest.raises(UserError, match=r"data\.max_length.*train\.gradient_checkpointing=true"):
        list(make_trainer(tmp_path, train_config(), objective=Greedy(0, MemoryError())))


def test_other_errors_of_the_objective_pass_through(tmp_path):
    with pytest.raises(RuntimeError, match="shapes"):
        list(make_trainer(tmp_path, train_config(), objective=Greedy(0, RuntimeError("shapes"))))


class Exploding(Objective):
    """One term is NaN from the fifth forward pass on."""

    calls = 0

    def forward(self, batch):
        terms = super().forward(batch).terms
        self.calls += 1
        if self.calls >= 5:
            terms = terms | {"row": dataclasses.replace(terms["row"], sum=terms["row"].sum * math.nan)}
        return Loss(terms)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    config = train_config(checkpoint_every=1e-9)
    trainer = make_trainer(tmp_path, config, objective=Exploding())
    before = []
    with pytest.raises(NotFinite, match=r"loss term 'row' .*step 5; .*step-4;"):
        before.extend(weights(trainer) for _ in trainer)
    assert torch.equal(weights(trainer), before[-1])
    assert events(tmp_path, "end")[0]["reason"] == "not_finite"
    assert trainer.run.latest_checkpoint().step == 4


def test_a_gradient_that_is_not_finite_stops_too(tmp_path):
    class Steep(Objective):
        def forward(self, batch):
            root = (self.pooler.weight * 0.0).abs().sqrt().sum()  # zero, with an infinite slope
            terms = super().forward(batch).terms
            return Loss(terms | {"row": dataclasses.replace(terms["row"], sum=terms["row"].sum + root)})

    with pytest.raises(NotFinite, match=r"gradient .*step 1; no checkpoint"):
        list(make_trainer(tmp_path, train_config(), objective=Steep()))


class Broken(Objective):
    """Its updates leave weights of which evaluation makes no number, from the third step on."""

    def forward(self, batch):
        terms = super().forward(batch).terms
        if not self.training and self.updates >= 3:
            terms = terms | {"row": dataclasses.replace(terms["row"], sum=terms["row"].sum * self.wrong)}
        return Loss(terms)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_validation_that_is_not_finite_stops_before_its_weights_are_kept(tmp_path, wrong):
    objective = Broken()
    objective.updates, objective.wrong = 0, wrong
    trainer = make_trainer(tmp_path, train_config(budget=Budget(steps=5), validate_every=0.2), objective=objective)
    trainer._validate = held_out(trainer)
    with pytest.raises(NotFinite, match=r"validation .*step 3; .*step-2;"):
        for objective.updates, _ in enumerate(trainer, 2):
            pass
    assert events(tmp_path, "end")[0]["reason"] == "not_finite"
    assert len(events(tmp_path, "validation")) == 2
    assert trainer.run.latest_checkpoint().step == 2
    with pytest.raises(NotFinite, match=r"loss term 'row' .*validation"):
        evaluate_loss(objective, trainer.loader.once(), CPU)


def test_a_compiler_that_fails_is_one_line(tmp_path, monkeypatch):
    def broken(module):
        def call(batch):
            raise torch._dynamo.exc.TorchDynamoException("no compiler here\nand a page of text")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(UserError, match=r"\(no compiler here\).*train\.compile=off"):
        list(make_trainer(tmp_path, train_config(compile=True)))


# settings


def test_precision_is_what_the_device_can_do():
    assert resolve_dtype("auto", CPU) is torch.float32
    assert resolve_dtype("bf16", CPU) is torch.bfloat16
    with pytest.raises(UserError, match=r"fp16 .*cpu"):
        resolve_dtype("fp16", CPU)


def test_bf16_trains_float32_weights(tmp_path):
    trainer = make_trainer(tmp_path, train_config(precision="bf16", validate_every=1.0), objective=Watching())
    trainer._validate = held_out(trainer)
    list(trainer)
    assert trainer.objective.dtypes == {torch.bfloat16}
    assert {p.dtype for p in trainer.objective.parameters()} == {torch.float32}


def test_an_lstm_in_bf16_is_refused_where_torch_has_none(tmp_path, monkeypatch):
    def trained(name):
        objective = Objective()
        objective.lstm = nn.LSTM(4, 4)
        return make_trainer(tmp_path / name, train_config(precision="bf16"), objective=objective)

    with torch.autocast("cpu", dtype=torch.bfloat16), nullcontext() if has_lstm(torch.bfloat16, CPU) else refused():
        nn.LSTM(4, 4)(torch.zeros(2, 3, 4))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    trained("known")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert has_lstm(torch.float32, CPU)
    with pytest.raises(UserError, match=r"LSTM .*bfloat16.*train\.precision=float32"):
        trained("unknown")


def refused():
    return pytest.raises(RuntimeError, match="LSTM")


def test_long_runs_on_a_gpu_are_worth_compiling_for(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setattr("shutil.which", lambda name: name)
    gpu = torch.device("cuda")
    assert is_worth_compiling(gpu, Limits(seconds=3600))
    assert not is_worth_compiling(gpu, Limits(seconds=60))
    assert not is_worth_compiling(gpu, Limits(steps=500))
    assert not is_worth_compiling(gpu, Limits(tokens=4e6))
    assert not is_worth_compiling(CPU, Limits(seconds=3600))


def test_gradient_checkpointing_reaches_every_encoder(tmp_path):
    class Wrapped(Objective):
        def __init__(self):
            super().__init__()
            self.encoder = EncoderConfig(
                vocab_size=5, hidden_size=4, intermediate_size=3, num_attention_heads=2, num_hidden_layers=1
            ).build()

    for on in (True, False):
        config = train_config(gradient_checkpointing=on)
        trainer = make_trainer(tmp_path / str(on), config, objective=Wrapped())
        assert trainer.objective.encoder.gradient_checkpointing is on


def test_the_peak_of_memory_is_that_of_the_training(tmp_path):
    class Wide(Objective):
        def forward(self, batch):
            torch.full((2**24,), 1.0)  # 64 MiB, given back at once
            held = torch.full((2**24,), 1.0)
            held.exp_()
            return super().forward(batch)

    trainer = make_trainer(tmp_path, train_config(budget=Budget(steps=9)), objective=Wide())
    trim_malloc()
    before = psutil.Process().memory_info().rss
    list(trainer)
    assert 2**25 < trainer.peak_bytes - before < 2**28
    assert events(tmp_path, "memory")[0]["peak_bytes"] == trainer.peak_bytes


def test_the_peak_of_memory_is_that_of_all_resumes(tmp_path, monkeypatch):
    for peak, stop in [(700, 3), (300, 5), (400, None)]:
        monkeypatch.setattr(PeakMemory, "peak_bytes", peak)
        trainer = make_trainer(tmp_path, train_config(), resume=True)
        for step in trainer:
            if step.number == stop:
                break
    assert trainer.peak_bytes == 700
    assert [line["peak_bytes"] for line in events(tmp_path, "memory")] == [700]


def test_tensorboard_is_written_where_asked(tmp_path):
    config = train_config(tensorboard=True, validate_every=0.5)
    list(make_trainer(tmp_path, config, validate=scripted([1.0, 2.0])))
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"validation/loss/total" in file.read_bytes()


def test_tensorboard_that_is_not_installed_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"'homespun\[track\]'"):
        list(make_trainer(tmp_path, train_config(tensorboard=True)))
