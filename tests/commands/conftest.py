import os
import shutil

import pytest
from commands_world import World, run, write_table
from filelock import FileLock

from figures import stop_drawing


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Built once per run of pytest: its workers share the folder, so a test writes only to names of its own in it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = World(shared / "world", run)
    with FileLock(shared / "world.lock"):
        if not (shared / "world.done").exists():
            shutil.rmtree(made.folder, ignore_errors=True)  # of a worker that failed
            with pytest.MonkeyPatch.context() as patch:
                stop_drawing(patch)
                build(made)
            (shared / "world.done").touch()
    return made


def build(made: World) -> None:
    folder = made.folder
    folder.mkdir()
    write_table(made.train, 240, seed=1)
    write_table(made.test, 61, seed=2)
    run(
        *("tokenizer", "train", "--input", made.train, "--text-field", "sentence"),
        *("--vocab-size", "400", "--out", made.tokenizer),
    )
    run(
        *("corpus", "build", "--input", made.train, "--text-field", "sentence"),
        *("--tokenizer", made.tokenizer, "--out", made.corpus),
    )
    run(*made.pretraining, "train.budget.steps=12", "train.batch_size=7", "--out", made.base)
    run(
        *(*made.finetuning, f"data.test={made.test}", "train.budget.epochs=6", "train.optimizer.learning_rate=5e-3"),
        *("train.optimizer.layer_decay=1.0", "--from", made.base, "--out", made.classifier),
    )
