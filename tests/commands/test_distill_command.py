"""`homespun distill`: pretraining and fine-tuning with a teacher, from the command line to the report."""

import itertools
import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands_world import TINY, World, assert_refused, run

from homespun.commands import distill as distillation
from homespun.commands import pretrain as pretraining
from homespun.commands.distill import compare_speed, with_teacher
from homespun.commands.provenance import InitialWeights
from homespun.commands.recipe import PretrainRecipe, pretrain_recipe
from homespun.commands.workload import pretraining_work
from homespun.data.corpus import Corpus
from homespun.hf.open import open_model
from homespun.models.bundle import weights_of
from homespun.objectives import teacher as objective
from homespun.planning.tracer import StepTracer
from homespun.training.devices import DistributedContext

QUICK = ("data.max_length=32", "train.batch_size=7", "train.validate_every=1.0")


@pytest.fixture(autouse=True)
def a_glance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed is measured by the fewest turns."""
    monkeypatch.setattr(distillation, "_PASSES", distillation._PASSES._replace(seconds=0.0))


@pytest.fixture(scope="module")
def teacher(world: World) -> Path:
    """Four layers that fill places."""
    out = world.runs / "teacher"
    run(
        *("pretrain", "bert-mini", f"data.corpus={world.corpus}", *QUICK, *TINY, "model.num_hidden_layers=4"),
        *("objective.next_sentence=false", "objective.masking=dynamic", "train.budget.steps=30", "--out", out),
    )
    return out


def words_of(world: World, teacher: Path, out: str, *words: str) -> list[Any]:
    given = ["distill", "pretrain", "distil-mini", f"data.corpus={world.corpus}", *QUICK]
    return [*given, "--teacher", teacher, "--out", world.runs / out, *words]


def distil(*arguments: Any) -> dict[str, Any]:
    return run(*words_of(*arguments))


@pytest.mark.slow
def test_a_student_of_every_second_layer(world: World, teacher: Path) -> None:
    result = distil(world, teacher, "half", "train.budget.steps=12")
    output = result["distillation"]
    assert output["layers"] == [0, 3]
    student = open_model(world.runs / "half")
    backbone = student.config.one_stack("a test")
    assert (backbone.num_hidden_layers, backbone.type_vocab_size) == (2, 0)
    parameters = output["parameters"]
    assert parameters["student"] == sum(p.numel() for p in student.model.parameters()) < parameters["teacher"]
    assert {"mlm", "soft", "cosine"} <= result["validation"]["losses"].keys()
    assert result["validation"]["losses"]["mlm"] == pytest.approx(output["quality"]["mlm_loss"]["student"], rel=1e-4)
    assert [row["batch_size"] for row in output["speed"]] == [1, 32]
    page = (world.runs / "half" / "report" / "index.html").read_text(encoding="utf-8")
    assert "Teacher and student" in page
    assert "smaller" in page
    assert (world.runs / "half" / "report" / "tables" / "distillation.csv").is_file()


@pytest.mark.slow
def test_given_layers_and_another_attention(world: World, teacher: Path) -> None:
    words = ("--layers", "3,1", "model.attention.kind=linformer", "model.attention.k=8", "train.budget.steps=3")
    assert distil(world, teacher, "linformer", *words)["distillation"]["layers"] == [3, 1]
    student = open_model(world.runs / "linformer").config.one_stack("a test")
    assert student.attention.kind == "linformer"


@pytest.mark.slow
def test_a_student_of_another_width(world: World, teacher: Path) -> None:
    words = ("--from-scratch", *TINY, "model.hidden_size=24", "model.num_hidden_layers=1", "train.budget.steps=3")
    output = distil(world, teacher, "narrow", *words)["distillation"]
    assert output["layers"] is None
    assert open_model(world.runs / "narrow").config.one_stack("a test").hidden_size == 24


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_weights(world: World, teacher: Path) -> None:
    runs = world.runs
    uninterrupted = distil(world, teacher, "whole", "train.budget.steps=8", "train.schedule.kind=constant")
    distil(world, teacher, "parts", "train.budget.steps=5", "train.schedule.kind=constant")
    student = state_of(runs / "parts-student")
    parts = distil(world, teacher, "parts", "train.budget.steps=8", "train.schedule.kind=constant", "--resume")
    assert state_of(runs / "parts-student") == student
    assert parts["steps"] == uninterrupted["steps"] == 8
    first, second = (weights_of(open_model(runs / name).model) for name in ("whole", "parts"))
    for name, tensor in first.items():
        assert np.array_equal(tensor.numpy(), second[name].numpy()), name


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """What a folder that is written anew would not keep."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def test_a_student_goes_on_as_it_was_made(world: World, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*given: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr(pretraining, "watch", killed)
    out, folder = world.runs / "held", world.runs / "held-student"
    words = words_of(world, teacher, "held", "train.budget.steps=1")
    with pytest.raises(InterruptedError):
        run(*words)
    before = state_of(out), state_of(folder)
    assert_refused("--resume", *words, "--layers", "1,0")
    assert_refused("--layers 0,3.*--layers 1,0", *words, "--layers", "1,0", "--resume")
    assert_refused("changes .*linformer", *words, "model.attention.kind=linformer", "--resume")
    assert (state_of(out), state_of(folder)) == before
    (folder / "inputs.json").unlink()  # as students were before
    del before[1]["inputs.json"]
    other = {"--layers": InitialWeights(name="1,0", fingerprint="1,0")}
    distillation._save_initial_models(out, {folder: (open_model(teacher), other)}, resume=True)
    assert state_of(folder) == before[1]


def test_what_lies_where_a_student_would_is_never_touched(world: World, teacher: Path) -> None:
    taken = shutil.copytree(teacher, world.runs / "taken-student")
    mine = shutil.copytree(teacher / "model", world.runs / "mine-student")
    for found, out, given in ((taken, "taken", taken), (mine, "mine", teacher), (mine, "mine", mine)):
        before = state_of(found)
        assert_refused(f"{found.name}.*--out", *words_of(world, given, out, "train.budget.steps=1"))
        assert state_of(found) == before
        assert not (world.runs / out).exists()


def labelled(world: World) -> tuple[str, ...]:
    data = (*world.labelled, f"data.test={world.test}")
    return (*data, "train.budget.epochs=3", "train.optimizer.learning_rate=3e-3", "baselines=false")


@pytest.mark.slow
def test_a_classifier_of_half_the_depth(world: World) -> None:
    out = world.runs / "small-classifier"
    cache = world.folder / "logits"
    result = run(
        *("distill", "finetune", "distil-classify", *labelled(world), f"objective.teacher.cache={cache}"),
        *("objective.adversarial.kind=sift", "--teacher", world.classifier, "--out", out),
    )
    output = result["distillation"]
    teacher = json.loads((world.classifier / "result.json").read_text(encoding="utf-8"))
    assert output["quality"]["accuracy"]["teacher"] == pytest.approx(teacher["test"]["accuracy"])
    assert output["quality"]["accuracy"]["student"] == pytest.approx(result["test"]["accuracy"])
    assert result["test"]["accuracy"] > 0.5
    assert {"loss", "soft", "adversarial"} <= result["train"].keys()
    kept = [path.stat().st_size for path in cache.rglob("vectors")]
    assert kept == [result["rows"]["train"] * 3 * 2]  # each text once, three classes, two bytes
    assert run("predict", out, "--input", world.test, "--out", world.folder / "said.jsonl")["rows"] == 61
    shutil.rmtree(cache)


@pytest.mark.slow
def test_the_quality_of_several_students_is_their_mean(world: World) -> None:
    out = world.runs / "students"
    given = (*labelled(world), "seeds=3", "train.optimizer.learning_rate=1e-3", "train.batch_size=90")
    result = run("distill", "finetune", "distil-classify", *given, "--teacher", world.classifier, "--out", out)
    for measure, pair in result["distillation"]["quality"].items():
        values = [seed[measure] for seed in result["seeds"]]
        assert pair["student"] == pytest.approx(statistics.fmean(values))
        assert pair["std"] == pytest.approx(statistics.stdev(values))
    assert result["distillation"]["quality"]["log_loss"]["std"] > 0
    assert "quality_why" not in result["distillation"]
    page = (out / "report" / "report.md").read_text(encoding="utf-8")
    assert " ± " in next(line for line in page.splitlines() if line.startswith("| log loss |"))


@pytest.mark.parametrize(
    ("more", "message"), [(("folds=2",), "every fold, .*data.test"), ((), "chose the student")], ids=["folds", "split"]
)
def test_quality_needs_unseen_examples(
    world: World, more: tuple[str, ...], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("distill", "finetune", "distil-classify", *world.labelled, "baselines=false", *more)
    words += ("train.budget.steps=1", "--teacher", world.classifier)
    output = run(*words, "--out", tmp_path / "run")["distillation"]
    assert output["quality"] == {}
    assert re.search(message, output["quality_why"])
    assert output["quality_why"] in (tmp_path / "run" / "report" / "report.md").read_text(encoding="utf-8")
    assert output["quality_why"] in caplog.text


@pytest.mark.slow
def test_a_teacher_in_the_form_of_another_library(world: World, teacher: Path) -> None:
    output = distil(world, teacher / "hf", "foreign", "train.budget.steps=2")
    assert output["distillation"]["layers"] == [0, 3]
    assert (world.runs / "foreign-teacher" / "homespun.json").is_file()


def test_a_plan_has_a_teacher(world: World, teacher: Path) -> None:
    overrides = [f"data.corpus={world.corpus}", *QUICK, *TINY]
    recipe = with_teacher(pretrain_recipe("distil-mini", overrides), str(teacher))
    objective._open.cache_clear()  # also where the plan is the first to open it
    with StepTracer() as tracer:
        assert isinstance(recipe, PretrainRecipe)
        work = pretraining_work(recipe, Corpus.open(world.corpus), None).workload
        model = work.build()
        batch, _ = work.batches(7)
        with tracer.span("step"):
            model(batch).total(batch.targets).backward()
    inner = [
        count for done, count in tracer.spans["step"].items() if done.name == "addmm" and done.outputs[0][-1:] == (48,)
    ]
    assert sum(inner) == 1 + 4  # layers of the student and of the teacher


def test_what_does_not_go_together(world: World, teacher: Path) -> None:
    for message, *words in (
        ("--from-scratch .*--layers", "--from-scratch", "--layers", "0"),
        ("whole numbers", "--layers", "a"),
        (" 0 to 3", "--layers", "4"),
        ("--from .*--layers", "--from", world.base, "--layers", "0"),
    ):
        assert_refused(message, *words_of(world, teacher, "no", *words))
    assert_refused("no masked LM head", *words_of(world, world.classifier, "no", "train.budget.steps=2"))
    assert_refused("teacher", "distill", *world.pretraining, "--teacher", teacher, "--out", world.runs / "no")
    assert not (world.runs / "no").exists()


def test_both_take_turns(teacher: Path) -> None:
    ticks, stored, device = itertools.count(), open_model(teacher), DistributedContext.join().device
    clock = lambda: float(next(ticks))  # noqa: E731
    output = compare_speed(stored, stored, length=9, device=device, clock=clock)
    assert output == [{"length": 9, "batch_size": size, "teacher": 1 / size, "student": 1 / size} for size in (1, 32)]
