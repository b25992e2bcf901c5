"""A resumed run needs the initial weights and settings of its start."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands_world import WORDS, World, assert_refused

from homespun.commands import pretrain as pretraining
from homespun.commands import trial_training
from homespun.commands.provenance import FILE, InitialWeights, check_inputs, create_run, write_inputs
from homespun.commands.recipe import FinetuneRecipe
from homespun.config import validate
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.models.bundle import save_model
from homespun.vectors.store import save_vectors
from homespun.vectors.word_vectors import WordVectors


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first step."""

    def end(*given: Any) -> None:
        raise InterruptedError

    for job in (pretraining, trial_training):
        monkeypatch.setattr(job, "watch", end)


@pytest.fixture(scope="module")
def other(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model like `World.base`, of other weights."""
    folder = tmp_path_factory.mktemp("models") / "other"
    stored = open_model(world.base)
    with torch.no_grad():
        next(stored.model.parameters()).add_(1.0)
    save_model(folder, stored.model, stored.config, stored.tokenizer)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("killed")
def test_trials_are_not_of_two_models(world: World, other: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = (*world.finetuning, f"data.test={world.test}", "seeds=3", "baselines=false", "--out", run, "--from")
    with pytest.raises(InterruptedError):
        world.run(*words, world.base)
    assert_refused(r"--from \S+base.*--from \S+other", *words, other, "--resume")
    moved = shutil.copytree(world.base, tmp_path / "moved")
    for source in (moved, moved / "model", moved / "hf"):  # the same model, wherever it lies and in whatever form
        with pytest.raises(InterruptedError):
            world.run(*words, source, "--resume")
    (run / FILE).unlink()  # as runs were before
    with pytest.raises(InterruptedError):
        world.run(*words, other, "--resume")
    assert_refused(r"--from \S+other.*--from \S+base", *words, world.base, "--resume")


@pytest.mark.usefixtures("killed")
def test_a_pretraining_goes_on_with_its_word_vectors(world: World, tmp_path: Path) -> None:
    names = [word for topic in WORDS.values() for word in topic]
    drawn = np.random.default_rng(0).normal(size=(len(names), 16)).astype(np.float32)
    save_vectors(WordVectors(names, drawn), tmp_path / "folder")
    save_vectors(WordVectors(names, drawn), tmp_path / "file.txt")
    save_vectors(WordVectors(names, drawn + 1), tmp_path / "others")
    words = (*world.pretraining, "train.batch_size=7", "train.budget.steps=3", "--out", tmp_path / "run")
    with pytest.raises(InterruptedError):
        world.run(*words, "--vectors", tmp_path / "folder")
    assert_refused(r"--vectors \S+folder.* without --vectors", *words, "--resume")
    assert_refused(r"--vectors \S+others", *words, "--resume", "--vectors", tmp_path / "others")
    with pytest.raises(InterruptedError):
        world.run(*words, "--resume", "--vectors", tmp_path / "file.txt")


@pytest.mark.slow
@pytest.mark.usefixtures("killed")
def test_a_fine_tuning_goes_on_with_its_examples(world: World, tmp_path: Path) -> None:
    files = {part: Path(shutil.copy(getattr(world, part), tmp_path)) for part in ("train", "test")}
    words = (*world.finetuning, *(f"data.{part}={file}" for part, file in files.items()), "--from", world.base)
    words = (*words, "baselines=false", "--out", tmp_path / "run")
    with pytest.raises(InterruptedError):
        world.run(*words)
    with pytest.raises(InterruptedError):
        world.run(*words, "--resume")
    for file in files.values():
        kept = file.read_bytes()
        file.write_bytes(kept.replace(b"food", b"sport", 1))
        assert_refused("other examples", *words, "--resume")
        file.write_bytes(kept)
    inputs = json.loads((tmp_path / "run" / FILE).read_text())
    del inputs["examples"]  # as runs of early versions
    (tmp_path / "run" / FILE).write_text(json.dumps(inputs))
    with pytest.raises(InterruptedError):
        world.run(*words, "--resume")


@pytest.mark.usefixtures("killed")
def test_an_adapted_run_goes_on_with_its_changes(world: World, tmp_path: Path) -> None:
    recipe = ("pretrain", "electra-tiny", f"data.corpus={world.corpus}", "data.max_length=32", "train.budget.steps=3")
    words = (*recipe, "--from", world.base, "--out", tmp_path / "run")
    with pytest.raises(InterruptedError):
        world.run(*words, "model.num_hidden_layers=2")
    assert_refused(r"model\.num_hidden_layers .*2 .*1", *words, "--resume")


def test_error_names_both_inputs(tmp_path: Path) -> None:
    def weights(name: str, fingerprint: str) -> InitialWeights:
        return InitialWeights(name=name, fingerprint=fingerprint)

    inputs = {"--from": weights("a", "3"), "--generator": weights("g", "5")}
    write_inputs(tmp_path, inputs)
    check_inputs(tmp_path, inputs | {"--generator": weights("elsewhere/g", "5"), "--vectors": None})
    for generator, message in (
        (None, "--generator g, not without --generator"),
        (weights("h", "7"), "--generator g, not with --generator h"),
        (weights("g", "7"), "--generator g, whose weights have changed"),
    ):
        with pytest.raises(UserError, match=message):
            check_inputs(tmp_path, inputs | {"--generator": generator})


def test_only_the_main_process_writes_and_nothing_is_written_into_what_is_refused(tmp_path: Path) -> None:
    tree = {"kind": "finetune", "train": {"budget": {"steps": 1}}}
    recipe = validate(FinetuneRecipe, tree, source="test")
    one, two = ({"--from": InitialWeights(name=name, fingerprint=name)} for name in ("one", "two"))
    create_run(tmp_path / "run", recipe, one, resume=True, main=False)
    assert not (tmp_path / "run").exists()
    create_run(tmp_path / "run", recipe, one, resume=True)
    assert json.loads((tmp_path / "run" / FILE).read_text()) == {"--from": {"name": "one", "fingerprint": "one"}}
    (tmp_path / "run" / "result.json").write_text("{}")
    more = validate(FinetuneRecipe, tree | {"train": {"budget": {"steps": 2}}}, source="test")
    with pytest.raises(UserError, match=r"--from one.*--from two"):
        create_run(tmp_path / "run", more, two, resume=True)
    assert (tmp_path / "run" / "result.json").is_file()
    create_run(tmp_path / "run", more, one, resume=True)
    assert not (tmp_path / "run" / "result.json").exists()
    (tmp_path / "run" / FILE).write_text('{"--from": "one"}')
    with pytest.raises(UserError, match=FILE):
        create_run(tmp_path / "run", more, one, resume=True)
