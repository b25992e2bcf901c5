"""Hostile values, and mutations of trees and bytes, for `benchmarks.fuzz_inputs`."""

from __future__ import annotations

import copy
import random
from typing import Any

ESCAPES = "\x1b[31m\r\n\u202e\u2028\x07\x9b"
PAYLOAD = "open('executed', 'w')"  # in the working directory
YAML_PAYLOAD = f'!!python/object/apply:builtins.eval ["{PAYLOAD}"]'


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def hostile(rng: random.Random) -> Any:
    """Return a value that a reader may not expect."""
    return rng.choice(
        [
            *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1e308, -0.5, float("nan"), float("inf")),
            *("", "x" * 5000, ESCAPES, "\ud800", "\0", "../../etc/passwd", "/dev/zero", "[UNK]", "a" * 40 + "!"),
            *([], {}, [[]], [None], {"": None}, {"kind": "x"}, {"kind": ["x"]}, ["a", 1, {}], "(a+)+$", "(a|a)*$"),
            *(_nested(60), {ESCAPES: 1}, {"x" * 5000: 1}, 10**400, [0] * 3000, "1" * 5000, YAML_PAYLOAD),
        ]
    )


def _nodes(tree: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of all values."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    for node in waiting:
        items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))[:50]
        for key, child in items:
            found.append((node, key))
            if isinstance(child, dict | list):
                waiting.append(child)
    return found


def mutate_tree(rng: random.Random, tree: Any) -> Any:
    """Replace, delete, rename, repeat or exchange some values of a tree."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        nodes = _nodes(tree)
        if not nodes or rng.random() < 0.02:
            return hostile(rng)
        node, key = rng.choice(nodes)
        match rng.randrange(6):
            case 0 | 1:
                node[key] = hostile(rng)
            case 2:
                del node[key]
            case 3 if isinstance(node, dict):
                node[rng.choice(["kind", ESCAPES, "x" * 600, "content", "", key + "_"])] = node.pop(key)
            case 4:
                other, place = rng.choice(nodes)
                if key in node if isinstance(node, dict) else key < len(node):
                    value = copy.deepcopy(node[key])
                    if place in other if isinstance(other, dict) else place < len(other):
                        other[place] = value
            case _:
                value = node[key]
                if isinstance(value, bool) or not isinstance(value, int | float):
                    node[key] = [value, copy.deepcopy(value)]
                else:
                    node[key] = rng.choice(
                        [
                            -value,
                            value + 1,
                            value * 1000,
                            str(value),
                            value / 3 if abs(value) < 10**300 else 0.1,
                            1 - value,
                        ]
                    )
    return tree


def mutate_bytes(rng: random.Random, content: bytes) -> bytes:
    """Change, insert, repeat, cut or exchange some bytes."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 2, 4, 8, 64]))
        match rng.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at:at] = (
                    rng.choice([b"\0", b"\xff", b"\x1b[31m", b"\n", b'"', b"[", b"{", b"\xed\xa0\x80", b","]) * 3
                )
            case 2:
                del data[at:end]
            case 3:
                data[at:end] = bytes([rng.choice([0, 1, 127, 128, 255])]) * (end - at)
            case 4:
                data[at:at] = data[at : at + rng.choice([1, 100, 1000])] * rng.choice([1, 2, 50])
            case 5:
                del data[at:]
            case _:
                data[at:end] = rng.randbytes(end - at)
    return bytes(data)
