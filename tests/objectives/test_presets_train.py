"""Every preset for long inputs learns under ELECTRA and under masked language modelling: one line is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_language import row_seeds, some_rows

from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.presets import PRESETS
from homespun.objectives.electra import Electra
from homespun.objectives.mlm import MaskedLM
from homespun.text.tokenizer import Tokenizer

LONG = sorted(
    name
    for name, fields in PRESETS.items()
    if "attention" in fields and not name.endswith("-base") and not fields.get("causal")
)
CASES: dict[str, dict[str, Any]] = {name: {"preset": name} for name in LONG} | {
    "relative-bias": {"attention": {"kind": "relative_bias"}, "positions": {"kind": "none"}}
}
NARROW = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}


@pytest.mark.parametrize("objective", [Electra(), MaskedLM()], ids=["electra", "mlm"])
@pytest.mark.parametrize("name", CASES)
def test_it_learns(name: str, objective: Any, tokenizer: Tokenizer) -> None:
    torch.manual_seed(1)
    fields = CASES[name] | {"vocab_size": tokenizer.vocab_size, "pad_token_id": tokenizer.pad_id}
    backbone = EncoderConfig.model_validate(fields | NARROW)
    packed = backbone.attention.supports_packing
    rows = some_rows(tokenizer, [113, 128, 101], packed=packed)
    batch = objective.collate(tokenizer)(rows, row_seeds(len(rows)))
    model = objective.build(ModelConfig(backbone=backbone), tokenizer).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        loss = model(batch).total(batch.targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0], losses
