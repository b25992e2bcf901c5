"""The tables themselves: read in both directions, every rule is needed, none covers another's tensors."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hf_peers import DECODER, PROPHETNET, REFORMER, SIZES

from homespun.hf.engine import Rule, Table, Weights, from_hf, hf_name, to_hf
from homespun.hf.families import FAMILIES
from homespun.hf.family import Architecture, Family
from homespun.models.bundle import weights_of
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig

CLASSES = [(family, architecture) for family in FAMILIES for architecture in family.architectures]
NAMES = [architecture.name for _, architecture in CLASSES]


# families whose rules are not all used by one config, or need more than the sizes
_RELATIVE: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 2}
_ROTARY: dict[str, Any] = {"hidden_size": 44, "head_dim": 6}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "bart": [DECODER],
    "led": [DECODER | {"max_decoder_position_embeddings": 23, "attention_window": 4}],
    "pegasus": [DECODER | {"d_model": 22, "decoder_attention_heads": 2}],
    "bigbird_pegasus": [DECODER | {"use_bias": True}, DECODER | {"attention_type": "original_full"}],
    "deberta": [_RELATIVE, _RELATIVE | {"position_biased_input": False}],
    "deberta-v2": [_RELATIVE, _RELATIVE | {"norm_rel_ebd": "layer_norm", "share_att_key": True, "position_buckets": 4}],
    "electra": [{"embedding_size": 21}],
    "eurobert": [_ROTARY | {"classifier_pooling": "mean"}],
    "llama": [_ROTARY, _ROTARY | {"mlp_bias": True, "num_attention_heads": 4, "num_key_value_heads": 2}],
    "modernbert": [_ROTARY, _ROTARY | {"norm_bias": True, "mlp_bias": True, "classifier_bias": True}],
    "nanochat": [_ROTARY | {"final_logit_softcapping": None}],
    "prophetnet": [PROPHETNET],
    "qwen3": [_ROTARY],
    "reformer": [REFORMER, REFORMER | {"axial_pos_embds": False}],
    "t5": [{"d_kv": 5}, {"feed_forward_proj": "gated-gelu"}],
}
_DECODER = {"is_decoder": True}
CAUSAL: dict[str, dict[str, Any]] = {
    "ReformerModelWithLMHead": _DECODER,
    "BigBirdForCausalLM": _DECODER | {"attention_type": "original_full"},
    **dict.fromkeys(("BertLMHeadModel", "RobertaForCausalLM", "ElectraForCausalLM"), _DECODER),
}


def converted(family: Family, architecture: Architecture) -> Iterator[tuple[ModelConfig, Weights, Weights]]:
    """Random models of a class, here and there."""
    for variant in VARIANTS.get(family.model_type, [{}]):
        sizes = {family.key(name): value for name, value in (SIZES | {"pad_token_id": 4}).items()}
        settings = sizes | variant | CAUSAL.get(architecture.name, {})
        settings |= {"architectures": [architecture.name], "id2label": {"0": "a", "1": "b", "2": "c"}}
        config = family.read_as(architecture, settings, source="test")
        ours = weights_of(config.build())
        yield config, ours, to_hf(family.table + architecture.table, ours, config.backbone)


@pytest.mark.parametrize(("family", "architecture"), CLASSES, ids=NAMES)
def test_a_table_is_its_own_inverse(family: Family, architecture: Architecture) -> None:
    table = family.table + architecture.table
    for config, ours, theirs in converted(family, architecture):
        ruled = {hf_name(table, name, config.backbone) for name in ours}
        filled = {
            default.name for default in table.default_tensors if default.make(config.backbone) is not None
        } - ruled
        assert theirs.keys() == ruled | filled
        again, unused_tensors = from_hf(table, theirs, config.backbone, source="test")
        assert {unused.name for unused in unused_tensors} == filled
        assert again.keys() == ours.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in ours.items())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_type)
def test_every_rule_is_used(family: Family) -> None:
    used: set[Rule] = set()
    for architecture in family.architectures:
        rules = (family.table + architecture.table).rules
        names = {name for _, _, theirs in converted(family, architecture) for name in theirs}
        patterns = {rule: re.sub(r"\\\{\w+\\\}", r"\\w+", re.escape(rule.hf_pattern)) for rule in rules}
        found = {rule for rule in rules if any(re.fullmatch(patterns[rule], name) for name in names)}
        assert set(architecture.table.rules) <= found
        used |= found
    assert set(family.table.rules) <= used


@pytest.mark.parametrize(("family", "architecture"), CLASSES, ids=NAMES)
def test_a_config_is_read_as_it_was_written(family: Family, architecture: Architecture) -> None:
    for config, _, _ in converted(family, architecture):
        assert not family.differences(architecture, config)
        again = family.read_as(architecture, family.write_config(architecture, config), source="test")
        assert again == config


def test_positions_that_begin_elsewhere_are_moved() -> None:
    roberta = next(family for family in FAMILIES if family.model_type == "roberta")
    config = EncoderConfig.model_validate(SIZES | {"positions": {"kind": "learned", "offset": 2}, "pad_token_id": 4})
    rows = torch.randn(2 + 29, 33)
    moved = to_hf(roberta.table, {"backbone.embeddings.positions.embedding.weight": rows}, config)
    table = moved["roberta.embeddings.position_embeddings.weight"]
    assert table.shape == (5 + 29, 33)
    assert torch.equal(table[5:], rows[2:])
    assert not table[:5].any()


def test_a_tensor_that_matches_two_rules_is_a_bug() -> None:
    table = Table(rules=(Rule("a.{i}.{p}", "b.{i}.{p}"), Rule("a.1.weight", "c")))
    config = EncoderConfig(vocab_size=7)
    with pytest.raises(RuntimeError, match="2 rules"):
        from_hf(table, {"a.1.weight": torch.ones(2)}, config, source="test")
    with pytest.raises(RuntimeError, match="0 rules"):
        to_hf(table, {"b.x.weight": torch.ones(2)}, config)
    assert to_hf(table, {"b.10.bias": torch.ones(2)}, config).keys() == {"a.10.bias"}
