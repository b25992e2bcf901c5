"""Dropout of attention probabilities: in training only, and right on average."""

from typing import Any

import pytest
import torch
from torch import nn

from homespun.attention.full import DotProduct
from homespun.attention.linformer import Linformer, PooledProjection
from homespun.attention.local import Chunks, LocalAttention
from homespun.attention.lsh import LSH, draw_rotations
from homespun.nn.masks import Mask

BATCH, HEADS, SEQ, HEAD_DIM = 3, 2, 13, 5


def lsh(num_hashes: int) -> LSH:
    rotations = draw_rotations(HEADS, HEAD_DIM, num_hashes, (6,), seed=11)
    return LSH(rotations, num_buckets=(6,), chunks=Chunks(4), dropout=0.5)


KERNELS: dict[str, nn.Module] = {
    "full": DotProduct(dropout=0.5),
    "linformer": Linformer(PooledProjection(1), PooledProjection(1), dropout=0.5),
    "local": LocalAttention(Chunks(4), dropout=0.5),
    "lsh": lsh(1),
    "lsh, two rounds": lsh(2),
}


@pytest.mark.parametrize("name", KERNELS)
def test_dropout_acts_in_training_only(name: str) -> None:
    torch.manual_seed(1)
    kernel: Any = KERNELS[name]
    query, key = torch.randn(2, BATCH, HEADS, SEQ, HEAD_DIM)
    value = torch.ones(BATCH, HEADS, SEQ, HEAD_DIM)  # the probabilities of a query sum to 1, so each value is their sum
    given = (query, value) if name.startswith("lsh") else (query, key, value)
    torch.testing.assert_close(kernel.eval()(*given, Mask()), value)
    sums = torch.stack([kernel.train()(*given, Mask()) for _ in range(50)])
    assert sums.std() > 0.1
    assert abs(float(sums.mean()) - 1) < 0.05
