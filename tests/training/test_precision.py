"""Which precision ``train.precision=auto`` chooses, and what of a run keeps it."""

import json
import math

import pytest
import torch
from torch import nn
from training_parts import Watching, events, make_trainer, train_config

from homespun.training import precision
from homespun.training.checkpoint import read_state, write_checkpoint
from homespun.training.config import Budget, Limits
from homespun.training.precision import MIN_SPEEDUP, Precision, choose_precision, product_rates

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """Sets whether the processor has bfloat16 instructions and how fast they are; counts measurements."""

    def set_to(*, has=True, ratio=2.0):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has}, raising=False)

        def measured(threads):
            set_to.measured += 1
            return ratio

        monkeypatch.setattr(precision, "_bf16_speedup", measured)

    set_to.measured = 0
    set_to()
    return set_to


def chosen(name="auto", objective=None, **limits):
    objective = nn.Linear(999, 1000) if objective is None else objective
    return choose_precision(name, CPU, objective=objective, limits=Limits(**limits), batch_size=10, row_tokens=50.0)


@pytest.mark.parametrize(("ratio", "name"), [(MIN_SPEEDUP, "bf16"), (2.3, "bf16"), (MIN_SPEEDUP - 0.01, "float32")])
def test_auto_is_bf16_where_its_products_are_clearly_faster(machine, ratio, name):
    machine(ratio=ratio)
    found = chosen(seconds=60.0)
    assert found.name == name
    assert f"{ratio:.1f} times" in found.reason


@pytest.mark.parametrize(
    ("limits", "long"),
    [
        ({}, True),
        ({"seconds": 20.0}, True),
        ({"seconds": 19.0}, False),
        ({"steps": 167}, True),  # 6 FLOPs x 10^6 parameters x 500 tokens a step
        ({"steps": 166}, False),
        ({"tokens": 83_400}, True),
        ({"tokens": 83_300}, False),
        ({"tokens": 83_400, "steps": 166}, False),
        ({"steps": 0}, False),
    ],
)
def test_a_short_training_is_float32_and_nothing_is_measured(machine, limits, long):
    assert chosen(**limits).name == ("bf16" if long else "float32")
    assert machine.measured == int(long)


def test_without_instructions_nothing_is_measured(machine, monkeypatch):
    machine(has=False)
    assert chosen().name == "float32"
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # not known
    assert chosen().name == "float32"
    assert machine.measured == 0


def test_a_precision_that_is_set_is_taken(machine):
    assert chosen("float32") == Precision("float32", "train.precision=float32")
    assert chosen("bf16", steps=1) == Precision("bf16", "train.precision=bf16")
    assert machine.measured == 0


def test_an_lstm_is_float32_where_torch_has_none_in_bf16(machine, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert chosen(objective=nn.Sequential(nn.LSTM(400, 400))).name == "float32"
    assert chosen().name == "bf16"


@pytest.mark.parametrize("dtypes", [[torch.float32], [torch.float32, torch.bfloat16]])
def test_rates_are_measured_in_all_types(dtypes):
    rates = product_rates(dtypes, size=16, seconds=0.01)
    assert len(rates) == len(dtypes)
    assert all(rate > 0 and math.isfinite(rate) for rate in rates)


@pytest.fixture
def long(monkeypatch):
    monkeypatch.setattr(precision, "_MIN_FLOPS", 0.0)


@pytest.mark.usefixtures("long")
def test_a_training_in_the_chosen_precision_records_it(tmp_path, machine):
    trainer = make_trainer(tmp_path, train_config(), objective=Watching())
    list(trainer)
    assert trainer.objective.dtypes == {torch.bfloat16}
    assert [line["precision"] for line in events(tmp_path, "start")] == ["bf16"]
    assert trainer.precision.name == "bf16"


@pytest.mark.slow
@pytest.mark.usefixtures("long")
@pytest.mark.parametrize("ratio", [1.0, 3.0])
def test_a_resumed_run_keeps_its_precision(tmp_path, machine, ratio):
    machine(ratio=ratio)
    first = make_trainer(tmp_path, train_config())
    list(first)
    machine(ratio=4.0 - ratio)
    resumed = make_trainer(tmp_path, train_config(budget=Budget(steps=9)), resume=True)
    assert resumed.precision == first.precision
    assert [step.number for step in resumed] == [8, 9]
    assert make_trainer(tmp_path / "new", train_config()).precision.name != first.precision.name


@pytest.mark.usefixtures("long")
def test_a_run_of_before_auto_measured_goes_on_in_float32(tmp_path, machine):
    machine(ratio=1.0)
    list(make_trainer(tmp_path, train_config()))
    (folder,) = (tmp_path / "checkpoints").iterdir()
    state, _ = read_state(folder)
    tensors = make_trainer(tmp_path, train_config(), resume=True).run.latest_checkpoint()
    kept = {name: tensors.tensors(name) for name in ("model", "optimizer")}
    old = folder.rename(tmp_path / "old")
    write_checkpoint(folder, kept, {name: value for name, value in state.items() if name != "precision"})
    assert "precision" not in json.loads((folder / "state.json").read_text())["state"]
    assert old.is_dir()
    machine(ratio=3.0)
    assert make_trainer(tmp_path, train_config(), resume=True).precision.name == "float32"


def test_bf16_without_instructions_is_a_warning(tmp_path, machine, caplog):
    for name, has, warned in [("bf16", True, False), ("float32", False, False), ("auto", False, False)]:
        machine(has=has)
        make_trainer(tmp_path / f"{name}-{has}", train_config(precision=name))
        assert ("slower than float32" in caplog.text) is warned
    make_trainer(tmp_path / "slow", train_config(precision="bf16"))
    assert "slower than float32" in caplog.text
