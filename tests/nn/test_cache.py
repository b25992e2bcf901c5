"""The key-value cache of texts that join and leave a batch."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from homespun.nn.cache import Cache

OWNER = nn.Identity()


@pytest.fixture
def _filled_memory() -> Iterator[None]:
    """Fill the memory of new tensors with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def text(length: int) -> Cache:
    cache = Cache()
    extend(cache, torch.ones(1, 1, length, 3))
    return cache


def extend(cache: Cache, new: Tensor) -> Tensor:
    cache.start_call()
    keys, _ = cache.extend(OWNER, new, new)
    cache.length += new.shape[2]
    return keys


@pytest.mark.usefixtures("_filled_memory")
def test_shorter_texts_are_padded_with_zeros() -> None:
    cache = text(20)
    cache.join(text(5))
    cache.drop(0)
    cache.trim(5)  # as long as the longest text
    for length in (5, 4, 12):
        cache.join(text(length))
    keys = extend(cache, torch.ones(4, 1, 1, 3))
    lengths = torch.tensor([[5], [5], [4], [12]]) + 1
    expected = (torch.arange(13) >= 13 - lengths).float()
    torch.testing.assert_close(keys, expected[:, None, :, None].expand_as(keys), rtol=0, atol=0)
