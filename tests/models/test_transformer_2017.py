"""The Transformer of 2017 against `torch.nn.Transformer`, with the same weights: values and gradients, with padding."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homespun.models.backbone import EncoderDecoder
from homespun.models.config import ModelConfig

LAYERS, HIDDEN, HEADS, INNER, WORDS = 3, 20, 4, 28, 31
SOURCE, TARGET = (2, 11), (2, 7)
# ours to theirs, of a layer; the last norm's number depends on the side
PARTS = {
    "attention.sublayer.output": "self_attn.out_proj",
    "attention.norm": "norm1",
    "cross_attention.sublayer.output": "multihead_attn.out_proj",
    "cross_attention.norm": "norm2",
    "feedforward.sublayer.inner": "linear1",
    "feedforward.sublayer.outer": "linear2",
}
MIXING = {"attention": "self_attn", "cross_attention": "multihead_attn"}


@pytest.mark.parametrize("padded", [False, True])
def test_the_transformer_is_that_of_pytorch(padded: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = _ours(), _theirs()
    theirs.load_state_dict(_as_pytorch(dict(ours.named_parameters())))
    source, target = torch.randint(1, WORDS, SOURCE), torch.randint(1, WORDS, TARGET)
    keep = torch.ones(SOURCE, dtype=torch.bool)
    if padded:
        keep[1, 8:] = False
    given = ours(source, decoder_input_ids=target, attention_mask=keep)
    weights = torch.randn_like(given)
    (given * weights).sum().backward()
    gradients = _gradients(ours)
    ours.zero_grad()

    # the embeddings are ours on both sides: the words of both stacks, scaled, with sinusoids
    expected = theirs(
        ours.encoder.embeddings(source),
        ours.decoder.embeddings(target),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(TARGET[1], dtype=torch.float64),
        src_key_padding_mask=~keep,
        memory_key_padding_mask=~keep,
        tgt_is_causal=True,
    )
    torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)
    (expected * weights).sum().backward()
    for name, gradient in (_gradients(theirs) | {"words": ours.encoder.embeddings.words.weight.grad}).items():
        ours_there = gradients["encoder.embeddings.words.weight"] if name == "words" else _as_pytorch(gradients)[name]
        torch.testing.assert_close(ours_there, gradient, rtol=1e-8, atol=1e-9, msg=name)


def _ours() -> EncoderDecoder:
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    encoder = {**sizes, "vocab_size": WORDS, "intermediate_size": INNER, "hidden_dropout_prob": 0.0}
    tree: dict[str, Any] = {"preset": "transformer-base", "encoder": encoder}
    backbone = ModelConfig.model_validate({"backbone": tree}).backbone.build()
    with torch.no_grad():
        for parameter in backbone.parameters():  # norms and biases other than they begin
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return backbone.double()


def _theirs() -> nn.Transformer:
    theirs = nn.Transformer(HIDDEN, HEADS, LAYERS, LAYERS, INNER, dropout=0.0, batch_first=True)
    theirs.encoder.norm = theirs.decoder.norm = None  # the paper has none after the last layer
    return theirs.double()


def _as_pytorch(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert our tensors to their names, without the embeddings."""
    found: dict[str, Tensor] = {}
    for side in ("encoder", "decoder"):
        parts = PARTS | {"feedforward.norm": "norm3" if side == "decoder" else "norm2"}
        for layer in range(LAYERS):
            ours, theirs = f"{side}.layers.{layer}", f"{side}.layers.{layer}"
            for kind in ("weight", "bias"):
                for name, there in parts.items():
                    if f"{ours}.{name}.{kind}" in tensors:
                        found[f"{theirs}.{there}.{kind}"] = tensors[f"{ours}.{name}.{kind}"]
                for name, there in MIXING.items():
                    three = [f"{ours}.{name}.sublayer.{part}.{kind}" for part in ("query", "key", "value")]
                    if three[0] in tensors:
                        found[f"{theirs}.{there}.in_proj_{kind}"] = torch.cat([tensors[one] for one in three])
    of_layers = sum(tensor.numel() for name, tensor in tensors.items() if ".embeddings." not in name)
    assert sum(tensor.numel() for tensor in found.values()) == of_layers  # nothing of ours is without a place
    return found


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
