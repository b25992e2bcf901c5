"""Random order without a table: numbers that are functions of a seed and an index, alike on every machine."""

from __future__ import annotations

import hashlib

import numpy as np

_ROUNDS = 6


def keys(*parts: int, count: int = 1) -> np.ndarray:
    """(count,) uint64 drawn from a tuple of integers."""
    name = "/".join(str(part) for part in parts)
    return np.array([_digest(f"{name}#{i}") for i in range(count)], dtype=np.uint64)


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def splitmix64(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """uint64 that look random: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) over ``values`` and a key."""
    x = values.astype(np.uint64) ^ key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def feistel_shuffle(positions: np.ndarray, count: int, *, key: tuple[int, ...]) -> np.ndarray:
    """(positions,) int64: what stands at ``positions`` of the random order of ``range(count)`` named ``key``.

    A Feistel network is a bijection of the numbers of an even count of bits; what falls outside ``range(count)`` is
    sent through again until it is inside ("cycle walking", Black and Rogaway, 2002), which keeps it one. So no
    permutation is stored, and any part of an epoch's order costs only itself.
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
            left, right = right, left ^ (splitmix64(right, round_key) & mask)
        values[outside] = (left << bits) | right
        outside = outside[values[outside] >= count]
    return values.astype(np.int64)
