"""Plans against built models, and refusals of impossible limits."""

import dataclasses
import io
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands_world import World, assert_refused, write_table

import homespun
from homespun.cli import app
from homespun.commands import machine, parallel, probe_process
from homespun.commands.parallel import Cluster
from homespun.commands.plan import plan
from homespun.commands.pretrain import pretrain
from homespun.commands.probe import LinearFit, ProbeJob, ProbeResult, probe_sizes
from homespun.commands.recipe import PretrainRecipe, load_recipe
from homespun.commands.workload import Work, made_up_corpus, pretraining_work
from homespun.config import parse_bytes
from homespun.errors import UserError
from homespun.models.bundle import weights_of
from homespun.planning.budget import DatasetSize
from homespun.planning.predict import Memory, Prediction, Workload
from homespun.planning.rates import Rates
from homespun.report.console import Display
from homespun.training import precision
from homespun.training.config import Soap

RATES = Rates(**{field.name: 1e9 for field in dataclasses.fields(Rates)} | {"call": 1e-6, "base": 1e8})
CPU = torch.device("cpu")
TINY = ["model.vocab_size=499", "data.max_length=31", "train.batch_size=4"]


@pytest.fixture(scope="module", autouse=True)
def rates() -> Iterator[None]:
    here = machine.Machine(CPU, RATES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine.Machine, "here", classmethod(lambda cls, *, clock="wall": here))
        yield


def recipe(name: str = "electra-tiny", *changes: str) -> PretrainRecipe:
    found = load_recipe(name, [*TINY, "train.budget.steps=11", *changes])
    assert isinstance(found, PretrainRecipe)
    return found


def pretrain_with(memory: int, given: PretrainRecipe, out: Path, **options: Any) -> dict[str, Any]:
    """A pretraining on made-up text within a limit of memory."""
    budget = given.train.budget.model_copy(update={"memory": memory})
    with made_up_corpus(given) as corpus:
        data = given.data.model_copy(update={"corpus": str(corpus.path), "validation_rows": 3})
        train = given.train.model_copy(update={"budget": budget})
        return pretrain(given.model_copy(update={"data": data, "train": train}), out, **options)


def test_a_plan_warns_of_attention_between_documents_of_a_row() -> None:
    for name, expected in (("electra-tiny", 0), ("performer-mini", 1)):
        warnings = plan(recipe(name, "model.num_hidden_layers=1"))["warnings"]
        assert sum("packed documents" in warning for warning in warnings) == expected


@pytest.mark.slow
def test_soap_keeps_more_than_adam() -> None:
    changes = ("model.preset=spun-encoder-tiny", "objective={kind: mlm}")
    sizes = {
        kind: plan(recipe("roberta-mini", *changes, f"train.optimizer={{kind: {kind}}}"))["memory"]["optimizer"]
        for kind in ("adamw", "soap")
    }
    assert sizes["soap"] > sizes["adamw"]


def test_plan_of_a_recipe() -> None:
    passes: list[tuple[float, str]] = []

    class Seen(Display):
        def task(self, *arguments: Any, **options: Any) -> Any:
            return SimpleNamespace(update=lambda done, *, note="": passes.append((done, note)))

    given = recipe()
    planned = plan(given, steps=23, display=Seen(json=True))
    assert passes == [(number, "of 4 rows") for number in range(1, 7)]  # three steps, forward and backward
    with made_up_corpus(given) as corpus:
        built = pretraining_work(given, corpus, None).workload.build()
    assert planned["parameters"]["total"] == sum(p.numel() for p in built.parameters())
    assert planned["memory"]["weights"] >= 4 * planned["parameters"]["total"]
    assert planned["memory"]["optimizer"] >= 8 * planned["parameters"]["total"]
    assert planned["memory"]["gradients"] == 4 * planned["parameters"]["total"]
    assert planned["made_up_text"]
    assert planned["expected"]["steps"] == 23
    assert planned["expected"]["limit"] == "steps"
    assert planned["expected"]["tokens"] == round(23 * 4 * planned["tokens_per_row"])


@pytest.mark.slow
def test_checkpointing_keeps_less_and_computes_more() -> None:
    plain, again = (plan(recipe("electra-tiny", f"train.gradient_checkpointing={on}")) for on in ("false", "true"))
    assert again["memory"]["activations"] < plain["memory"]["activations"]
    assert again["flops_per_token"]["backward"] > plain["flops_per_token"]["backward"]


@pytest.mark.slow
def test_plan_of_several_devices() -> None:
    given = recipe("electra-tiny", "train.batch_size=16")
    planned = plan(given, steps=3, cluster=Cluster(2, 4, "h100"), memory="11MB")["parallel"]
    ddp, fsdp = (planned["kinds"][kind] for kind in ("ddp", "fsdp"))
    assert planned["chosen"] == "fsdp"
    assert ddp["weights"] + ddp["gradients"] + ddp["optimizer"] > 11e6 > fsdp["peak"]
    assert (ddp["fits"], fsdp["fits"]) == (False, True)
    assert ddp["weights"] > 7 * fsdp["weights"]
    assert ddp["micro_batch_size"] * ddp["accumulation"] == 2  # rows of each device
    assert ddp["seconds"]["communication"] == ddp["communicated_bytes"] / 50e9
    assert ddp["training_seconds"] == 3 * ddp["seconds_per_step"]


@pytest.mark.parametrize(("available", "chosen"), [(1e9, "ddp"), (3e8, "fsdp")])
def test_the_kind_follows_from_memory(monkeypatch: pytest.MonkeyPatch, available: float, chosen: str) -> None:
    peak = Memory(10**8, 10**8, 2 * 10**8, 10**7, {}, 0, 4 * 10**8)
    monkeypatch.setattr(parallel, "predict", lambda *given, **more: Prediction(1, {}, peak, 9.0, 0.0, 0.0, 1.0, 0.0))
    monkeypatch.setattr(parallel, "available_bytes", lambda device, processes: available)
    several = SimpleNamespace(world_size=2, is_main=True, device=CPU)
    monkeypatch.setattr(parallel.DistributedContext, "join", lambda: several)
    config = recipe("electra-tiny", "train.parallel=auto").train
    work = Work(Workload(torch.nn.Sequential, lambda rows: pytest.fail("no batch"), config), DatasetSize(1, 1), 9.0)
    assert parallel.choose_parallel(config, lambda: work) == chosen
    with_soap = config.model_copy(update={"optimizer": Soap()})
    assert parallel.choose_parallel(with_soap, lambda: work) == "ddp"


def test_time_and_cost_of_a_training() -> None:
    step = {"seconds_per_step": 9.0}
    planned = {"chosen": "ddp", "kinds": {"none": step, "ddp": step}}
    found = parallel.training_totals(planned, Cluster(2, 5, "h100", price=3.0), 800)["kinds"]
    assert found["none"] == {"seconds_per_step": 9.0, "training_seconds": 7200.0, "device_hours": 2.0, "cost": 6.0}
    assert found["ddp"] == {"seconds_per_step": 9.0, "training_seconds": 7200.0, "device_hours": 20.0, "cost": 60.0}
    without = parallel.training_totals(planned, Cluster(2, 5, "h100"), 800)["kinds"]["ddp"]
    assert (without["device_hours"], without["cost"]) == (20.0, None)


def test_impossible_clusters_are_refused() -> None:
    prices = (lambda: Cluster(1, 1, price=0.0), lambda: Cluster(1, 1, price=math.nan))
    for cluster in (lambda: Cluster(0, 2), lambda: Cluster(2, -1), lambda: Cluster(1, 1, "z80"), *prices):
        with pytest.raises(UserError, match=r"--(nodes=0|gpus=-1|device=z80|price=0|price=nan) "):
            cluster()
    with pytest.raises(UserError, match=r"batch_size=4 .*8 devices"):
        plan(recipe(), cluster=Cluster(2, 4))


@pytest.mark.parametrize(
    "limits",
    [{"memory": "lots"}, {"memory": "0GB"}, {"memory": "-3GB"}, {"time": "soon"}, {"tokens": "many"}, {"steps": "1.5"}],
)
def test_nonsense_names_the_option(limits: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(limits))}"):
        plan(recipe(), **limits)


def test_a_plan_that_cannot_be_made_names_what_is_missing() -> None:
    with pytest.raises(UserError, match="max_position_embeddings"):
        plan(recipe("electra-tiny", "data.max_length=4096"))
    with pytest.raises(UserError, match="--from"):
        plan(load_recipe("classify"))


@pytest.mark.slow
def test_a_limit_below_the_minimum_names_both() -> None:
    for memory, message in (("10MB", r"0\.01 GB.* 0\.\d\d GB"), ("12", " 12 bytes")):
        with pytest.raises(UserError, match=message):
            plan(recipe(), memory=memory)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model nothing is predicted but its parameters."""

    def predicted(workload: Workload, rows: int, accumulate: bool) -> Prediction:
        total = sum(p.numel() for p in workload.build().parameters())
        parameters = {"total": total, "trained": total, "embeddings": 0}
        return Prediction(rows, parameters, Memory(0, 0, 0, 0, {}, 100, 100 + rows), 29.0, 5.0, 5.0, 1.0, 1.0)

    monkeypatch.setattr(machine.Machine, "predict", lambda self: predicted)


def words_of(world: World, *words: str) -> list[Any]:
    given = ["plan", "roberta-mini", f"data.corpus={world.corpus}", "data.max_length=32"]
    return [*given, "--from", world.base, *words]


@pytest.mark.usefixtures("counted")
def test_changes_to_a_checkpoint_are_planned(world: World) -> None:
    before, after = (world.run(*words_of(world, *more)) for more in ((), ("model.num_hidden_layers=3",)))
    layer = sum(t.numel() for name, t in weights_of(homespun.load(world.base)).items() if ".layers.0." in name)
    assert after["parameters"]["total"] == before["parameters"]["total"] + 2 * layer
    assert_refused(r"model\.hidden_size .*checkpoint", *words_of(world, "model.hidden_size=64"))
    assert_refused(r"model\.KEY=VALUE", "plan", "classify", "--from", world.base, "model.num_hidden_layers=3")
    with pytest.raises(UserError, match="need --from"):
        plan(recipe(), changes={"num_hidden_layers": 3})


@pytest.mark.usefixtures("counted")
def test_a_probe_is_of_the_changed_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs: list[ProbeJob] = []

    def result(rows: int) -> ProbeResult:
        return ProbeResult(rows=rows, peak_bytes=10**9, seconds=0.1, update_seconds=0.05)

    def run(job: ProbeJob) -> ProbeResult:
        jobs.append(job)
        return result(job.rows)

    monkeypatch.setattr("homespun.commands.plan.run_probe", run)
    world.run(*words_of(world, "model.num_hidden_layers=3", "--probe"))
    assert [job.changes for job in jobs] == [{"num_hidden_layers": 3}] * 2
    built: list[Any] = []

    def measured(workload: Workload, rows: int, **options: Any) -> ProbeResult:
        built.append(workload.build())
        return result(rows)

    monkeypatch.setattr(probe_process, "measure", measured)
    monkeypatch.setattr(sys, "stdin", io.StringIO(jobs[0].model_dump_json()))
    capsys.readouterr()
    assert probe_process.main() == 0
    assert json.loads(capsys.readouterr().out)["rows"] == jobs[0].rows
    assert len(built[0].export_model()[0].backbone.layers) == 3


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ((), [3]),
        (("folds=3", "seeds=2"), [2] * 6),
        (("train_sizes=[5,17,all]", "seeds=2"), [1, 1, 3, 3, 3, 3]),
    ],
)
def test_plan_counts_all_trainings(
    settings: tuple[str, ...], steps: list[int], world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(world.folder / "few.csv", 27, seed=5)
    words = ["classify", "--from", world.base, f"data.train={table}", "data.text=sentence", "data.label=label"]
    words += ["data.validation=0.25", "train.batch_size=8", "train.budget.epochs=1", *settings]
    planned = world.run("plan", *words)
    assert planned["trainings"]["count"] == len(steps)
    assert planned["trainings"]["steps"] == sum(steps)
    assert planned["trainings"]["seconds"] == pytest.approx(sum(steps) * planned["seconds_per_step"])
    assert planned["expected"]["steps"] == max(steps)
    capsys.readouterr()
    app(["plan", *map(str, words)], standalone_mode=False)
    assert (f"all {len(steps)} trainings" in capsys.readouterr().out) == (len(steps) > 1)


def test_sizes_of_memory() -> None:
    sizes = {"12GB": 12 * 10**9, "8GiB": 8 * 2**30, "1.5 MB": 1_500_000, 4096: 4096}
    assert {size: parse_bytes(size) for size in sizes} == sizes
    for size in ("", "0", "-1", "inf", "1e400", "1e308GB"):
        with pytest.raises(ValueError, match="not a size of memory"):
            parse_bytes(size)


@pytest.mark.slow
def test_memory_limit_of_the_recipe_is_kept_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = recipe("electra-tiny", "train.batch_size=8", "train.budget.steps=2", "train.budget.tokens=50k")
    full = plan(given)["memory"]["peak"]
    part = plan(recipe("electra-tiny", "train.batch_size=8", "train.micro_batch_size=4"))["memory"]["peak"]
    assert part < full
    result = pretrain_with((part + full) // 2, given, tmp_path / "run")
    assert result["plan"]["micro_batch_size"] == 4
    assert result["plan"]["accumulation"] == 2
    assert result["steps"] == 2
    assert "epochs" in caplog.text
    assert result["flops_per_token"] == pytest.approx(plan(given)["flops_per_token"]["total"], rel=0.1)


@pytest.mark.slow
def test_a_micro_batch_that_is_given_must_fit(tmp_path: Path) -> None:
    given = recipe("electra-tiny", "train.batch_size=8", "train.micro_batch_size=2", "train.precision=float32")
    with pytest.raises(UserError, match=r"micro-batches of 2 .* 0\.\d\d GB.*train\.micro_batch_size"):
        pretrain_with(10**6, given, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    result = pretrain_with(10**11, given, tmp_path / "run")
    assert (result["plan"]["micro_batch_size"], result["plan"]["accumulation"]) == (2, 4)


def test_a_probe_corrects_memory_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes that find everything twice as large beside the process, and a tenth of a second a row."""
    given = recipe("electra-tiny", "train.batch_size=8")

    def predicted(workload: Workload, rows: int, accumulate: bool) -> Prediction:
        again = workload.train.gradient_checkpointing
        kept = Memory(0, 0, 0, 0, {}, 100, 100 + (7 if again else 11) * rows)
        return Prediction(rows, {"total": 3}, kept, 29.0, 5.0, 5.0, (2.0 if again else 1.0) * rows, 1.0)

    def probed(job: ProbeJob) -> ProbeResult:
        rows = job.rows
        return ProbeResult(rows=rows, peak_bytes=100 + 22 * rows, seconds=0.1 * rows, update_seconds=0.05)

    monkeypatch.setattr(machine.Machine, "predict", lambda self: predicted)
    monkeypatch.setattr("homespun.commands.plan.run_probe", probed)
    corrected = plan(given, probe=True)
    assert corrected["memory"]["peak"] == 100 + 22 * 8
    assert corrected["seconds_per_step"] == pytest.approx(0.85)
    assert corrected["probe"]["peak_before"] == 100 + 11 * 8
    assert [point["rows"] for point in corrected["probe"]["points"]] == [2, 4]
    smaller = plan(given, memory=200, probe=True)
    assert smaller["probe"]["peak_before"] == 100 + 11 * 8
    assert (smaller["memory"]["peak"], smaller["chosen"]["micro_batch_size"]) == (188, 4)
    assert not smaller["chosen"]["gradient_checkpointing"]
    with pytest.raises(UserError, match="nothing fits"):
        plan(given, memory=113, probe=True)


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "name"), [(2.0, "bf16"), (1.0, "float32")])
def test_a_plan_has_the_precision_that_its_training_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ratio: float, name: str
) -> None:
    given = recipe("electra-tiny", "train.batch_size=8", "train.budget.steps=2")
    short = plan(given)
    assert short["chosen"]["precision"] == "float32"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(precision, "_MIN_FLOPS", 0.0)
    monkeypatch.setattr(precision, "_bf16_speedup", lambda threads: ratio)
    planned = plan(given)
    assert planned["chosen"]["precision"] == name
    assert (planned["memory"]["activations"] < short["memory"]["activations"]) is (name == "bf16")
    lines = io.StringIO()
    result = pretrain_with(10**11, given, tmp_path / "run", display=Display(stream=lines))
    assert result["plan"]["precision"] == name
    assert result["precision"]["name"] == name
    assert f"{ratio} times" in result["precision"]["reason"]
    assert f"{name}: {result['precision']['reason']}" in lines.getvalue()


@pytest.mark.slow
def test_a_precision_narrowed_to_fit_is_trained_in(tmp_path: Path) -> None:
    settings = ("train.batch_size=8", "train.micro_batch_size=8", "train.gradient_checkpointing=true")
    given = recipe("electra-tiny", *settings, "train.budget.steps=2")
    float32, bf16 = (
        plan(recipe("electra-tiny", *settings, f"train.precision={name}"))["memory"]["peak"]
        for name in ("float32", "bf16")
    )
    assert bf16 < float32
    result = pretrain_with((float32 + bf16) // 2, given, tmp_path / "run")
    assert result["plan"]["precision"] == result["precision"]["name"] == "bf16"


def test_a_line_is_never_below_zero() -> None:
    assert LinearFit.through([2, 4], [30.0, 50.0]).at(8) == pytest.approx(90.0)
    assert LinearFit.through([2, 4], [10.0, 40.0]).at(8) == pytest.approx(80.0)
    assert LinearFit.through([1], [7.0]).at(3) == pytest.approx(21.0)
    assert [probe_sizes(rows) for rows in (1, 2, 3, 8, 32)] == [[1], [1, 2], [1, 2], [2, 4], [8, 16]]
