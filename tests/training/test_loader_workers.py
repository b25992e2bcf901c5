import pytest
import torch

from homespun.training.devices import loader_workers


@pytest.mark.parametrize(("threads", "workers"), [(1, 0), (8, 2), (64, 4)])
def test_workers_on_a_gpu_have_their_share_of_the_threads(
    threads: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert loader_workers("auto", torch.device("cuda")) == workers
    assert loader_workers("auto", torch.device("cpu")) == 0
    assert loader_workers(3, torch.device("cpu")) == 3
