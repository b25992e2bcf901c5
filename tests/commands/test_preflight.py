"""Checks before a training starts."""

import dataclasses
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from homespun.cli import app
from homespun.commands.machine import Machine
from homespun.commands.plan import plan
from homespun.commands.preflight import check_first_step, export_warning, training_warnings
from homespun.commands.pretrain import pretrain
from homespun.commands.recipe import PretrainRecipe, load_recipe
from homespun.commands.workload import made_up_corpus
from homespun.data.corpus import Corpus
from homespun.errors import StepTooLong, UserError
from homespun.models.config import ModelConfig
from homespun.models.heads import CausalLMHeadConfig, MaskedLMHeadConfig
from homespun.planning.budget import LossForecast
from homespun.planning.rates import Rates
from homespun.report.console import Display
from homespun.training.config import TrainConfig

SMALL = ("model.vocab_size=211", "data.max_length=24", "data.validation_rows=3", "train.batch_size=4")
SLOW = Rates(**{field.name: 1e9 for field in dataclasses.fields(Rates)} | {"call": 1e-6, "base": 1e8})


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Machine(torch.device("cpu"), SLOW)
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls, *, clock="wall": here))
    monkeypatch.setattr(Machine, "timed", classmethod(lambda cls: here))


def recipe(name: str, *changes: str) -> PretrainRecipe:
    found = load_recipe(name, [*SMALL, *changes])
    assert isinstance(found, PretrainRecipe)
    return found


@pytest.fixture(scope="module")
def corpus() -> Iterator[Corpus]:
    with made_up_corpus(recipe("spun-decoder")) as corpus:
        yield corpus


@pytest.fixture
def run(corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Any:
    def trained(name: str, *changes: str, **options: Any) -> tuple[dict[str, Any], list[str]]:
        given = recipe(name, f"data.corpus={corpus.path}", "train.budget.time=null", *changes)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="homespun.commands.pretrain"):
            result = pretrain(given, tmp_path / "run", **options)
        return result, caplog.messages

    return trained


def test_a_folder_with_a_run_is_refused_before_the_checks(run: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("kind: pretrain\n", encoding="utf-8")
    with pytest.raises(UserError, match="--resume"):
        run("spun-decoder", "data.corpus=missing", "train.budget.steps=2")


def train(**tree: Any) -> TrainConfig:
    return TrainConfig.model_validate(tree)


@pytest.mark.parametrize(("steps", "named"), [(3, 1), (16, 1), (17, 0), (100, 0), (0, 0)])
def test_a_warmup_of_less_than_a_step_is_named(steps: int, named: int) -> None:
    found = training_warnings(train(schedule={"kind": "linear", "warmup": 0.06}), nn.Linear(3, 5), steps)
    assert len(found) == named
    assert all("train.schedule.warmup=0.06" in warning and "17" in warning for warning in found)


@pytest.mark.parametrize("schedule", [{"kind": "linear", "warmup": 0}, {"kind": "inverse_square_root"}])
def test_a_schedule_without_a_warmup_has_none_to_name(schedule: dict[str, Any]) -> None:
    assert not training_warnings(train(schedule=schedule), nn.Linear(3, 5), 3)


@pytest.mark.parametrize(
    ("kind", "steps", "sides", "named"),
    [
        ("soap", 15, (3, 5), "15"),
        ("soap", 16, (3, 5), ""),
        ("soap", 0, (3, 5), ""),
        ("soap", 500, (1025, 1100), "1,024"),
        ("soap", 500, (1024, 1100), ""),
        ("adamw", 15, (1025, 1100), ""),
    ],
)
def test_soap_that_cannot_do_its_work_is_named(kind: str, steps: int, sides: tuple[int, int], named: str) -> None:
    config = train(optimizer={"kind": kind}, schedule={"kind": "constant", "warmup": 0})
    with torch.device("meta"):
        found = training_warnings(config, nn.Linear(*sides), steps)
    assert len(found) == bool(named)
    assert all("train.optimizer.kind=soap" in warning and named in warning for warning in found)


@pytest.mark.parametrize(
    ("name", "head", "named"),
    [
        ("spun-decoder", CausalLMHeadConfig(transform_bias=False), None),
        ("causal-mini", CausalLMHeadConfig(), None),
        ("performer-mini", MaskedLMHeadConfig(), "attention.kind"),
        ("linformer-mini", MaskedLMHeadConfig(), "attention.kind"),
        ("bilstm-mini", MaskedLMHeadConfig(), "recurrent"),
    ],
)
def test_what_no_hugging_face_family_has_follows_from_the_config(name: str, head: Any, named: str | None) -> None:
    backbone = recipe(name, "model.size=mini").backbone.with_tokens(211, 0)
    found = export_warning(ModelConfig(backbone=backbone, head=head))
    assert (found is None) == (named is None)
    assert named is None or named in str(found)


def test_a_step_beyond_the_budget_is_refused() -> None:
    check_first_step(100.0, 60.0)  # a prediction may be off
    with pytest.raises(StepTooLong, match=r"train\.budget\.time=60"):  # `homespun fit` skips the candidate
        check_first_step(120.0, 60.0)


@pytest.mark.slow
def test_a_budget_that_holds_no_step_exits_with_2(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slowest = dataclasses.replace(SLOW, call=10.0)
    monkeypatch.setattr(Machine, "timed", classmethod(lambda cls: Machine(torch.device("cpu"), slowest)))
    words = ["pretrain", "spun-decoder", f"data.corpus={corpus.path}", *SMALL, "train.budget.time=70s"]
    with pytest.raises(UserError, match=r"train\.budget\.time=70 s"):
        app([*words, "--out", str(tmp_path / "run")], standalone_mode=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_pretraining_names_what_does_not_suit_it_before_its_first_step(run: Any) -> None:
    result, warnings = run("performer-mini", "model.num_hidden_layers=1", "train.budget.steps=3")
    assert result["export"]["architecture"] == "HomespunForMaskedLM"
    for named in ("attention.kind", "train.schedule.warmup", "per parameter", "--from"):
        assert sum(named in warning for warning in warnings) == 1, named
    assert all("\n" not in warning for warning in warnings)
    assert result["forecast"]["below_threshold"]


def test_warnings_can_be_turned_off(run: Any) -> None:
    result, warnings = run("performer-mini", "model.num_hidden_layers=1", "train.budget.steps=1", preflight=False)
    assert not warnings
    assert "forecast" not in result


def test_too_large_model_warns_with_a_size(run: Any) -> None:
    result, warnings = run("spun-decoder", "model.size=mini", "train.budget.steps=1")
    assert result["parameters"] > 3_000_000
    (found,) = [warning for warning in warnings if "model.size=auto" in warning]
    assert "tiny" in found


@pytest.mark.slow
def test_the_forecast_is_a_line_without_progress(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossForecast, "summary", lambda self: "loss of 2.7")
    out = io.StringIO()
    run("spun-decoder", "model.size=mini", "train.budget.steps=1", display=Display(stream=out))
    assert "forecast: loss of 2.7" in out.getvalue().splitlines()


@pytest.mark.slow
def test_auto_is_written_out_and_kept_by_a_resumed_run(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, warnings = run("spun-decoder", "train.budget.steps=2")
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert (config["model"]["num_hidden_layers"], config["model"]["hidden_size"]) == (2, 128)
    assert config["model"]["kind"] == "encoder"
    assert "size" not in config["model"]
    assert result["size"]["name"] == "tiny"
    assert result["size"]["parameters"] == result["parameters"]
    assert not [warning for warning in warnings if "model.size=auto" in warning]
    monkeypatch.setattr("homespun.commands.machine.size_for", lambda *arguments: pytest.fail("chosen again"))
    more, _ = run("spun-decoder", "train.budget.steps=3", resume=True)
    assert more["steps"] == 3
    assert "size" not in more


@pytest.mark.slow
def test_another_size_is_another_run(run: Any) -> None:
    run("spun-decoder", "train.budget.steps=1")
    with pytest.raises(UserError, match=r"model\.hidden_size .*128 .*256"):
        run("spun-decoder", "model.size=mini", "train.budget.steps=2", resume=True)
    with pytest.raises(UserError, match=r"model\.hidden_act "):
        run("spun-decoder", "model.hidden_act=gelu", "train.budget.steps=2", resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["spun-decoder", "spun-encoder"])
def test_a_plan_has_the_size_and_the_forecast(family: str, corpus: Corpus) -> None:
    given = recipe(family, f"data.corpus={corpus.path}")
    planned = plan(given, time="2m")
    assert planned["size"]["name"] == "tiny"
    assert planned["size"]["expected"] == planned["expected"]
    assert planned["size"]["parameters"] == planned["parameters"]["total"]
    assert planned["forecast"]["tokens"] == planned["expected"]["tokens"]
    assert planned["forecast"]["below_threshold"]
    json.dumps(planned)
    assert plan(recipe(family, "model.size=tiny"), time="2m")["size"] is None


def test_a_plan_on_made_up_text_has_no_epochs_to_size_by() -> None:
    with pytest.raises(UserError, match=r"data\.corpus"):
        plan(recipe("spun-decoder", "train.budget={epochs: 2}"))


@pytest.mark.slow
def test_the_command_shows_the_size_and_the_forecast(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "spun-decoder", f"data.corpus={corpus.path}", *SMALL[1:], "--time", "2m"]
    app(words, standalone_mode=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "size tiny: 2 layers of 128" in shown
    assert "--from" in shown
