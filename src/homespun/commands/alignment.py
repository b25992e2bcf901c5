"""Alignment of target tokens with source tokens: weights of additive attention (Bahdanau et al. 2015)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from homespun.attention.additive import AdditiveAttention
from homespun.data.source_target import SourceTargetTemplate
from homespun.errors import UserError
from homespun.hf.open import open_model
from homespun.inference.text_generator import TextGenerator
from homespun.io.atomic import write_bytes
from homespun.models.backbone import EncoderDecoder
from homespun.models.bundle import ModelBundle
from homespun.models.encoder_decoder import EncoderDecoderConfig
from homespun.report.attention import draw_alignment
from homespun.text.tokenizer import Tokenizer

_MOST = 64  # tokens that a model writes where no target is given


def show_alignment(
    run: str, *, source: str, target: str | None = None, out: str | Path | None = None
) -> dict[str, Any]:
    """Draw the alignment of a pair of texts by a model that writes through additive attention.

    Args:
        run: a run or a model.
        source: the text to be read.
        target: what is written of it; what the model itself writes where not given.
        out: a .svg or .png file to write; none where not given.

    Returns:
        ``source`` and ``target``, the tokens; ``alignment``, for each of the target's the weights of the source's,
        which sum to 1; ``written`` (the text, where the model wrote it) and ``out``.

    Raises:
        UserError: a model that has no such attention, a text without tokens, another suffix.
    """
    path = None if out is None else Path(out)
    if path is not None and path.suffix not in (".svg", ".png"):
        raise UserError(f"--out must end in .svg or .png, not {path.name!r}")
    stored = open_model(run)
    attention = _attention(stored, run)
    read, written = _ids(stored, source, "--source"), None
    if target is None:
        (texts,) = TextGenerator(stored).generate([source], max_new_tokens=_MOST)
        target = written = texts[0].text
    target_ids = _ids(stored, target, "--target")
    weights = _weights(stored, attention, read, target_ids)
    tokens, words = _character_ids(stored.tokenizer, read), _character_ids(stored.tokenizer, target_ids)
    if path is not None:
        plot = draw_alignment(tokens, words, weights.numpy())
        write_bytes(path, plot.svg if path.suffix == ".svg" else plot.png)
    return {
        "source": tokens,
        "target": words,
        "alignment": [[round(weight, 6) for weight in row] for row in weights.tolist()],
        "written": written,
        "out": None if path is None else str(path),
    }


def _attention(stored: ModelBundle, run: str) -> AdditiveAttention:
    found = [module for module in stored.model.modules() if isinstance(module, AdditiveAttention)]
    if not found:
        raise UserError(
            f"{run} aligns no texts: it has no decoder with additive attention; take one such as a run of recipe "
            f"rnn-seq2seq-mini"
        )
    return found[0]


def _ids(stored: ModelBundle, text: str, option: str) -> list[int]:
    """Ids of a text in the template of training."""
    backbone = stored.config.backbone
    assert isinstance(backbone, EncoderDecoderConfig)
    template = SourceTargetTemplate.for_encoder_decoder(
        stored.tokenizer, bos_id=backbone.bos_token_id, eos_id=backbone.eos_token_id
    )
    (ids,) = stored.tokenizer.encode_batch([text])
    if not len(ids):
        raise UserError(f"{option} is empty; give a text")
    return [*template.before, *ids.tolist(), *template.after_source]


@torch.no_grad()
def _weights(stored: ModelBundle, attention: AdditiveAttention, source: list[int], target: list[int]) -> Tensor:
    """Attention weights of each target token, (target, source)."""
    backbone = stored.model.eval().backbone
    assert isinstance(backbone, EncoderDecoder)
    given = torch.tensor([[backbone.decoder_start_token_id, *target[:-1]]])
    rows: list[Tensor] = []
    hook = attention.register_forward_hook(lambda module, arguments, result: rows.append(result[1][0]))
    try:
        backbone.decode(given, backbone.encode(torch.tensor([source])))
    finally:
        hook.remove()
    return torch.stack(rows).float()


def _character_ids(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    names = tokenizer.tokens
    return [tokenizer.decode([i], skip_special_tokens=False).strip() or names[i] for i in ids]
