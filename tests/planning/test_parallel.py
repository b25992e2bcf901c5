"""Plans for several devices against the bytes that processes hold and send."""

from pathlib import Path

import pytest
from benchmarks.scaling import losses

from homespun.planning.parallel import Kind, WeightBytes, communicated_bytes, device_memory
from homespun.planning.predict import Memory


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("none", 1), ("ddp", 2), ("fsdp", 4)])
def test_plans_are_what_processes_hold_and_send(tmp_path: Path, kind: Kind, count: int) -> None:
    losses.start(count, str(tmp_path), "fsdp" if kind == "fsdp" else "ddp", 2)
    measured = losses.processes(tmp_path)
    assert len(measured) == count
    planned = losses.planned(kind, count)
    # the trace counts the headers of malloc too
    assert max(process["held"] for process in measured) == pytest.approx(planned["held"], rel=5e-3)
    if kind == "fsdp":
        assert measured[0]["sent"] == pytest.approx(planned["sent"], rel=1e-3)


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
