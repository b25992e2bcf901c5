"""The tables themselves: read in both directions, every rule is needed, none covers another's tensors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hf_peers import SIZES

from homespun.hf.convert import Rule, Table, their_name, to_ours, to_theirs
from homespun.hf.families import FAMILIES
from homespun.hf.family import Architecture, Family
from homespun.models.config import EncoderConfig
from homespun.models.store import weights_of

CLASSES = [(family, architecture) for family in FAMILIES for architecture in family.architectures]
NAMES = [architecture.name for _, architecture in CLASSES]


@pytest.mark.parametrize(("family", "architecture"), CLASSES, ids=NAMES)
def test_a_table_is_its_own_inverse_and_every_rule_is_used(family: Family, architecture: Architecture) -> None:
    narrow = {"embedding_size": 21} if "embedding_size" in family.defaults else {}
    sizes = SIZES | narrow | {"pad_token_id": 4}
    settings: dict[str, Any] = {family.key(name): value for name, value in sizes.items()}
    settings |= {"embd_pdrop": 0.0, "architectures": [architecture.name], "id2label": {"0": "a", "1": "b", "2": "c"}}
    _, config = family.read_config(settings, source="test")
    table = family.table + architecture.table
    ours = weights_of(config.build())
    theirs = to_theirs(table, ours, config.backbone)
    filled = {fill.name for fill in table.fills if fill.make(config.backbone) is not None}
    assert theirs.keys() == {their_name(table, name) for name in ours} | filled
    again, leftovers = to_ours(table, theirs, config.backbone, source="test")
    assert {leftover.name for leftover in leftovers} == filled
    assert again.keys() == ours.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.items())
    for rule in table.rules:
        assert any(re.fullmatch(re.sub(r"\\\{\w+\\\}", r"\\w+", re.escape(rule.theirs)), name) for name in theirs), rule


def test_positions_that_begin_elsewhere_are_moved() -> None:
    roberta = next(family for family in FAMILIES if family.model_type == "roberta")
    config = EncoderConfig.model_validate(SIZES | {"positions": {"kind": "learned", "offset": 2}, "pad_token_id": 4})
    rows = torch.randn(2 + 29, 33)
    moved = to_theirs(roberta.table, {"backbone.embeddings.positions.embedding.weight": rows}, config)
    table = moved["roberta.embeddings.position_embeddings.weight"]
    assert table.shape == (5 + 29, 33)
    assert torch.equal(table[5:], rows[2:])
    assert not table[:5].any()


def test_a_table_that_says_two_things_of_one_tensor_is_a_bug() -> None:
    table = Table(rules=(Rule("a.{i}.{p}", "b.{i}.{p}"), Rule("a.1.weight", "c")))
    config = EncoderConfig(vocab_size=7)
    with pytest.raises(RuntimeError, match="2 rules"):
        to_ours(table, {"a.1.weight": torch.ones(2)}, config, source="test")
    with pytest.raises(RuntimeError, match="0 rules"):
        to_theirs(table, {"b.x.weight": torch.ones(2)}, config)
    assert to_theirs(table, {"b.10.bias": torch.ones(2)}, config).keys() == {"a.10.bias"}
