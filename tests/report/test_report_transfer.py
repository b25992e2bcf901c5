"""Tables of adapted and converted models: each number once, many tensors in few rows, and none lost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homespun.report.records import read_run
from homespun.report.transfer import adaptation, conversion_tables
from homespun.results import RunResult

ONE = {"mlm": 6.5, "mlm_accuracy": 0.031}
TWO = {"generator": 4.25, "generator_accuracy": 0.17, "discriminator": 0.5}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (ONE, {"mlm": 2.5, "mlm_accuracy": 0.479}, [("loss", "6.500", "2.500"), ("mlm accuracy", "3.1 %", "47.9 %")]),
        (
            TWO,
            {"generator": 3.5, "generator_accuracy": 0.29, "discriminator": 0.25},
            [
                ("loss", "6.500", "2.500"),
                ("generator", "4.250", "3.500"),
                ("generator accuracy", "17.0 %", "29.0 %"),
                ("discriminator", "0.500", "0.250"),
            ],
        ),
    ],
    ids=["one term", "two terms"],
)
def test_losses_stand_once_and_shares_are_shares(
    pretraining: Callable[..., Path],
    tmp_path: Path,
    before: dict[str, float],
    after: dict[str, float],
    expected: list[tuple[str, str, str]],
) -> None:
    values: dict[str, Any] = {"loss": 6.5, "losses": before, "start_from": "runs/base"}
    result: dict[str, Any] = {"adaptation": values, "validation": {"loss": 2.5, "losses": after}}
    record = replace(read_run(pretraining(tmp_path / "run")), result=RunResult(**result), validation={})
    held_out, when = "held-out ", ", before and after training"
    rows = [row for row in adaptation(record)[0].cells() if row[0].startswith(held_out)]
    assert all(name.endswith(when) for name, *_ in rows)
    assert [(name.removeprefix(held_out).removesuffix(when), *values) for name, *values in rows] == expected


def test_layers_weights_and_biases_share_a_row() -> None:
    names = {
        "bert.words.weight": ("words.weight",),
        **{f"bert.layer.{i}.query.{end}": (f"layers.{i}.query.{end}",) for i in range(3) for end in ("bias", "weight")},
        "bert.layer.0.attn.weight": ("layers.0.key.weight", "layers.0.value.weight"),
        "cls.bias": ("head.bias",),
        "bert.table": ("table",),
        "bert.scale.bias": ("scale.weight",),
    }
    mapped, dropped = conversion_tables({"mapped": names, "dropped": {"pooler.weight": "not used"}, "new": {}})
    assert set(mapped.rows) == {
        ("bert.words.weight", "words.weight", 1),
        ("bert.layer.{0-2}.query.{weight,bias}", "layers.{0-2}.query.{weight,bias}", 6),
        ("bert.layer.0.attn.weight", "layers.0.key.weight + layers.0.value.weight", 1),
        ("cls.bias", "head.bias", 1),
        ("bert.table", "table", 1),
        ("bert.scale.bias", "scale.weight", 1),
    }
    assert sum(row[-1] for row in mapped.rows) == len(names)
    assert dropped.rows == (("pooler.weight", "not used", 1),)
