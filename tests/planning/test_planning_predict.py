from typing import Any

import pytest

from homespun.errors import UserError
from homespun.planning.predict import Memory, Prediction, Workload, choose
from homespun.training.config import Budget, TrainConfig


def workload(**train: Any) -> Workload:
    config = TrainConfig(budget=Budget(steps=1), batch_size=12, **train)
    return Workload(build=lambda: pytest.fail("not built"), batches=lambda rows: pytest.fail("no batch"), train=config)


def predict(work: Workload, rows: int, accumulate: bool) -> Prediction:
    """100 bytes and 10 a row; half of that and a third more time where layers are computed again."""
    again = work.train.gradient_checkpointing
    peak = 100 + (5 if again else 10) * rows
    memory = Memory(0, 0, 0, 0, {}, 0, peak)
    return Prediction(rows, {}, memory, 7.0, 0.0, 0.0, (1.3 if again else 1.0) * rows + 0.5, 0.0)


@pytest.mark.parametrize(
    ("memory", "rows", "parts", "again"), [(220, 12, 1, False), (165, 6, 2, False), (108, 1, 12, True)]
)
def test_less_memory_takes_smaller_parts_and_then_computes_layers_again(
    memory: int, rows: int, parts: int, again: bool
) -> None:
    choice = choose(workload(), memory=memory, predict=predict)
    assert (choice.rows, choice.accumulation) == (rows, parts)
    assert choice.workload.train.gradient_checkpointing == again
    assert choice.prediction.memory.peak <= memory
    with pytest.raises(UserError, match=r" 90 bytes.* 105 bytes"):
        choose(workload(), memory=90, predict=predict)


def test_a_given_micro_batch_is_kept() -> None:
    assert choose(workload(micro_batch_size=3), memory=None, predict=predict).rows == 3
    assert choose(workload(micro_batch_size=3), memory=116, predict=predict).workload.train.gradient_checkpointing
