"""Every family of encoders with a decoder learns the language's words under each objective that its recipes name."""

from typing import Any

import pytest
import torch
from tiny_language import UNIGRAM_ENTROPY, batches, fit

from homespun.commands.recipe import load_recipe
from homespun.models.config import ModelConfig
from homespun.text.tokenizer import Tokenizer

TINY = {  # by preset: the recipe
    "transformer-tiny": "transformer-mini",
    "bart-tiny": "bart-mini",
    "t5-tiny": "t5-mini",
    "t5-v1.1-tiny": "t5-mini",
    "led-tiny": "led-mini",
    "bigbird-pegasus-tiny": "pegasus-mini",
    "pegasus-tiny": "pegasus-mini",
    "prophetnet-tiny": "prophetnet-mini",
    "hierarchical-tiny": "hierarchical-mini",
}
NARROW: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "initializer_range": 0.1,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_it_beats_the_unigram_entropy(name: str, tokenizer: Tokenizer) -> None:
    recipe = load_recipe(TINY[name], [f"model={{preset: {name}}}"])
    backbone = recipe.model
    narrow = {stack: getattr(backbone, stack).model_copy(update=NARROW) for stack in ("encoder", "decoder")}
    backbone = backbone.model_copy(update=narrow).with_tokens(tokenizer.vocab_size, tokenizer.pad_id)
    torch.manual_seed(1)
    objective = recipe.objective.build(ModelConfig(backbone=backbone), tokenizer)
    terms = fit(objective, batches(recipe.objective, tokenizer), 120)
    assert terms["seq2seq"] < 0.85 * UNIGRAM_ENTROPY, terms
