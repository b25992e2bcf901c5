"""Checkpoint in the shape of BERT-base with random weights, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch

from homespun.hf.export import export_huggingface
from homespun.models.bundle import ModelBundle
from homespun.models.config import ModelConfig
from homespun.text.tokenizer import Tokenizer

VOCAB_SIZE = 30_522
_WORDS = "the a of in and was with for new old after before more less said today very all"


def write_bert_base(folder: Path, *, layers: int = 12, head: str | None = None) -> int:
    """Write the checkpoint with a small tokenizer; returns its number of parameters."""
    tokenizer = Tokenizer.train([_WORDS] * 50, kind="words", vocab_size=len(_WORDS.split()) + 5)
    sizes = {"preset": "bert-base", "vocab_size": VOCAB_SIZE, "num_hidden_layers": layers}
    config = ModelConfig.model_validate({"backbone": sizes, "head": None if head is None else {"kind": head}})
    torch.manual_seed(0)
    model = config.build()
    export_huggingface(folder, ModelBundle(model, config, tokenizer))
    return sum(parameter.numel() for parameter in model.parameters())
