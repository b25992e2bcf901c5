"""``train.parallel=fsdp`` in the commands: two processes have the losses of one, also after a restart."""

from pathlib import Path

import psutil
import pytest
from benchmarks.scaling import kills
from commands_world import TINY, World, assert_refused, read_lines
from pydantic import ValidationError

from homespun.data import corpus_build as store
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.models.bundle import weights_of

pytestmark = pytest.mark.slow
TWO = ("train.processes=2", "train.parallel=fsdp")


@pytest.fixture(scope="module")
def base(world: World) -> Path:
    """A pretrained encoder of four layers without dropout, which would differ between processes."""
    out = world.runs / "without-dropout"
    words = ("pretrain", "bert-mini", f"data.corpus={world.corpus}", *TINY, "model.num_hidden_layers=4")
    more = ("objective.next_sentence=false", "model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0")
    world.run(*words, *more, "data.max_length=32", "train.batch_size=7", "train.budget.steps=4", "--out", out)
    return out


@pytest.fixture(scope="module")
def classifier(world: World, base: Path) -> Path:
    out = world.runs / "without-dropout-classifier"
    world.run(*finetuning(world), "--from", base, "--out", out)
    return out


def labelled(world: World) -> list[str]:
    steps = ["baselines=false", "train.budget.steps=5", "train.batch_size=6", "train.precision=float32"]
    return [*world.labelled, f"data.test={world.test}", *steps, "objective.head.dropout=0"]


def finetuning(world: World) -> list[str]:
    return ["finetune", "classify", *labelled(world)]


def check_two_processes(world: World, out: Path, *words: str | Path) -> None:
    """Train in one process and, sharded, in two; compare losses and weights."""
    one, two = (world.run(*words, *more, "--out", out / name) for name, more in (("one", ()), ("two", TWO)))
    expected, found = (losses(out / name) for name in ("one", "two"))
    assert len(found) == 5
    assert found == pytest.approx(expected, rel=1e-5)
    assert two["validation"]["loss"] == pytest.approx(one["validation"]["loss"], rel=1e-5)
    weights, sharded = (weights_of(open_model(out / name).model) for name in ("one", "two"))
    assert sharded.keys() == weights.keys()
    assert max(float((sharded[name] - weights[name]).abs().max()) for name in weights) < 1e-4


def losses(run: Path) -> list[float]:
    return [line["loss/total"] for line in read_lines(run / "metrics.jsonl") if line["event"] == "step"]


@pytest.mark.parametrize("checkpointing", ["false", "true"])
def test_fine_tuning(world: World, base: Path, tmp_path: Path, checkpointing: str) -> None:
    words = [*finetuning(world), f"train.gradient_checkpointing={checkpointing}", "--from", str(base)]
    check_two_processes(world, tmp_path, *words)


def test_pretraining_with_gradient_checkpointing(world: World, tmp_path: Path) -> None:
    words = ["pretrain", "causal-mini", f"data.corpus={world.corpus}", "data.max_length=32", "model.hidden_size=32"]
    words += ["model.num_hidden_layers=3", "model.hidden_dropout_prob=0", "train.gradient_checkpointing=true"]
    words += ["train.batch_size=6", "train.micro_batch_size=2", "train.budget.steps=5", "train.precision=float32"]
    check_two_processes(world, tmp_path, *words)


def test_distillation_of_a_pretrained_model(world: World, base: Path, tmp_path: Path) -> None:
    words = ["distill", "pretrain", "distil-mini", f"data.corpus={world.corpus}", "data.max_length=32"]
    words += ["train.batch_size=6", "train.budget.steps=5", "train.precision=float32", "--teacher", str(base)]
    check_two_processes(world, tmp_path, *words)


def test_distillation_of_a_classifier(world: World, classifier: Path, tmp_path: Path) -> None:
    words = ["distill", "finetune", "distil-classify", *labelled(world), "--teacher", str(classifier)]
    check_two_processes(world, tmp_path, *words)


@pytest.mark.parametrize("kind", ["soap", "adafactor"])
def test_optimizers_of_complete_matrices_are_refused(world: World, tmp_path: Path, kind: str) -> None:
    words = ["pretrain", "causal-mini", f"data.corpus={world.corpus}", *TWO, f"train.optimizer.kind={kind}"]
    with pytest.raises((UserError, ValidationError)) as refused:
        world.run(*words, "--out", tmp_path / "run")
    assert f"optimizer.kind={kind}" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_pretraining_on_a_stream(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD_TOKENS", 999)
    build = ("corpus", "build", "--input", world.train, "--text-field", "sentence")
    world.run(*build, "--tokenizer", world.tokenizer, "--out", tmp_path / "corpus")
    words = ["pretrain", "causal-mini", f"data.corpus={tmp_path / 'corpus'}", "data.packing=stream"]
    words += ["data.max_length=32", "model.hidden_size=32", "model.num_hidden_layers=1", "train.budget.steps=3"]
    result = world.run(*words, "--out", tmp_path / "run")
    assert result["tokens"] == 3 * 8 * 32
    assert_refused("packing=documents", *words, "objective={kind: span_corruption}", "--out", tmp_path / "other")


def test_torchrun_restarts_after_a_killed_worker(world: World, tmp_path: Path) -> None:
    agent = kills.start(world.corpus, tmp_path / "killed", 12, *kills.PAIR)
    kills.wait_for_step(tmp_path / "killed", 4, [agent])
    kills.kill(max(psutil.Process(agent.pid).children(), key=lambda worker: worker.pid), tree=False)
    found = kills.finish(agent, tmp_path / "killed", 12)
    steps = [line["step"] for line in kills.events(tmp_path / "killed") if line["event"] == "resume"]
    assert len(steps) == 1
    words = ("pretrain", *kills.RECIPE, f"data.corpus={world.corpus}", "train.budget.steps=12")
    world.run(*words, "--out", tmp_path / "one")
    assert found == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
