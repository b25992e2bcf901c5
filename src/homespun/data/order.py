"""Random order without a table: functions of a seed and an index, equal on every machine."""

from __future__ import annotations

import hashlib

import numpy as np

from homespun.text.clean import splitmix64

_ROUNDS = 6


def keys(*parts: int, count: int = 1) -> np.ndarray:
    """(count,) uint64 drawn from a tuple of integers."""
    name = "/".join(str(part) for part in parts)
    return np.array([_digest(f"{name}#{i}") for i in range(count)], dtype=np.uint64)


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def feistel_shuffle(positions: np.ndarray, count: int, *, key: tuple[int, ...]) -> np.ndarray:
    """(positions,) int64: elements at ``positions`` of the random permutation of ``range(count)`` named ``key``.

    A Feistel network is a bijection of numbers of an even count of bits; results outside ``range(count)`` pass through
    it again ("cycle walking", Black and Rogaway 2002). No permutation is stored.
    """
    half = max(
        (max(count - 1, 1).bit_length() + 1) // 2, 1
    )  # 4 ** half < 4 * count: four walks at the most, on average
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    round_keys = keys(*key, count=_ROUNDS)
    values = positions.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        left, right = values[outside] >> bits, values[outside] & mask
        for round_key in round_keys:
            left, right = right, left ^ (splitmix64(right ^ round_key) & mask)
        values[outside] = (left << bits) | right
        outside = outside[values[outside] >= count]
    return values.astype(np.int64)
