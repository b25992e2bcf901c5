"""Plans for several devices against the bytes that processes hold and send."""

from pathlib import Path

import pytest
import torch
from benchmarks.scaling import losses

from homespun.batch import Batch
from homespun.data.loader import Loader
from homespun.objectives.clm import ClmCollator
from homespun.planning.parallel import Kind, WeightBytes, communicated_bytes, device_memory, share_of_rows
from homespun.planning.predict import Memory, Workload, predict
from homespun.planning.rates import Rates
from homespun.training.config import Budget, TrainConfig


def alone() -> Memory:
    """Memory of one process, by the trace of a plan."""

    def batches(size: int, count: int) -> list[Batch]:
        rows = losses.RandomRows()
        return Loader(rows, ClmCollator(0), batch_size=losses.BATCH, micro_batch_size=size, seed=0).step(0)[:count]

    config = TrainConfig(batch_size=losses.BATCH, budget=Budget(steps=2), precision="float32")
    rates = Rates(**dict.fromkeys(Rates.__dataclass_fields__, 1.0))
    work = Workload(losses.build, batches, config)
    return predict(work, 1, rates, device=torch.device("cpu"), accumulate=True).memory


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("none", 1), ("ddp", 2), ("fsdp", 4)])
def test_plans_are_what_processes_hold_and_send(tmp_path: Path, kind: Kind, count: int) -> None:
    losses.start(count, str(tmp_path), "fsdp" if kind == "fsdp" else "ddp", 2)
    measured = losses.processes(tmp_path)
    assert len(measured) == count
    weights = WeightBytes.of(losses.build(), count)
    memory = device_memory(kind, alone(), weights, accumulate=True)
    planned = memory.weights + memory.gradients + memory.optimizer
    # the trace counts the headers of malloc too
    assert max(process["held"] for process in measured) == pytest.approx(planned, rel=5e-3)
    if kind == "fsdp":
        micro_batches = share_of_rows(losses.BATCH, count)
        sent = communicated_bytes(kind, weights, devices=count, micro_batches=micro_batches)
        assert measured[0]["sent"] == pytest.approx(sent, rel=1e-3)


def test_a_device_holds_a_part_and_sends_what_a_ring_does() -> None:
    weights = WeightBytes(total=1000, trained=800, shard=260, rest=100, layer=300)
    one = Memory(1000, 800, 1600, 77, {}, 13, 5000)
    ddp, fsdp = (device_memory(kind, one, weights, accumulate=True) for kind in ("ddp", "fsdp"))
    assert (ddp.weights, ddp.gradients, ddp.optimizer, ddp.buffers, ddp.peak) == (1000, 800, 1600, 800, 5800)
    assert (fsdp.weights, fsdp.gradients, fsdp.optimizer) == (260, 208, 416)
    assert fsdp.peak == 5000 - 3400 + 884 + 2 * 100 + 3 * 300
    without_gradients = device_memory("fsdp", one, weights, accumulate=False)  # at the peak, before the backward pass
    assert without_gradients.peak == fsdp.peak + 800 - 208
    sent = {kind: communicated_bytes(kind, weights, devices=4, micro_batches=2) for kind in ("none", "ddp", "fsdp")}
    assert sent == {"none": 0, "ddp": 1200, "fsdp": 4050}
