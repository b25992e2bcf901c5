"""Comparison of a changed checkpoint with the original before training, for ``adaptation.json`` and the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from homespun.commands.adaptation import Start
from homespun.config import Tree
from homespun.data.corpus import Corpus
from homespun.data.rows import Row, Rows, pad
from homespun.io.json import read_object, write_json
from homespun.models.backbone import Backbone
from homespun.models.config import BackboneConfig, ModelConfig
from homespun.models.embeddings import fill_character_table
from homespun.models.encoder import EncoderConfig
from homespun.models.model import Model
from homespun.models.recurrent import RecurrentConfig
from homespun.models.weight_transfer import TransferReport, transfer_weights
from homespun.nn.eval_mode import eval_mode
from homespun.text.tokenizer import Tokenizer
from homespun.text.vocabulary_extension import AddedTokens
from homespun.training.validation import EvalResult

FILE = "adaptation.json"
_ROWS = 16  # held-out rows to compare hidden states on: 16 of 512 tokens fix a mean cosine to three digits
_BATCH_SIZE = 4


def measure_adaptation(
    path: Path,
    start: Start,
    transfer: TransferReport,
    *,
    evaluate: Callable[[], EvalResult],
    held_out: Rows,
    corpus: Corpus,
    model: Model,
) -> Tree:
    """Measure the held-out loss of a changed checkpoint and the distance of its hidden states from the original.

    Returns the content of ``adaptation.json``, which is written into the run folder ``path``; a run that has it is not
    measured again. ``evaluate`` returns the held-out loss of the changed ``model``; hidden states are compared on
    ``held_out``, tokens per word are those of ``corpus``.
    """
    file = path / FILE
    if file.is_file():
        return read_object(file)
    before = start.stored.config.backbone
    loss = evaluate()
    result = {
        "start_from": start.source,
        "loss": loss.loss,
        "losses": loss.losses,
        "vocabulary": _pair(before.vocab_size, start.backbone.vocab_size) | {"new_words": len(start.words.pieces)},
        "tokens_per_word": _tokens_per_word(corpus, start.words),
        "layers": list(transfer.layers),
        **_shapes(before, start.backbone),
        "moved": _compare_hidden_states(start, model.backbone, held_out, corpus.tokenizer),
        "tensors": {  # number of the copied ones, and names of the others by origin
            "copied": len(transfer.copied),
            "changed": dict(transfer.changed),
            "fresh": list(transfer.initialized),
            "left": list(transfer.unused),
        },
    }
    write_json(file, result)
    return result


def _pair(before: float | str, after: float | str) -> Tree:
    return {"before": before, "after": after}


def _tokens_per_word(corpus: Corpus, words: AddedTokens) -> Tree | None:
    """Tokens per word of the corpus, before and after tokens were added; None without a count of words."""
    if not corpus.num_words:
        return None
    saved = 0
    if words.pieces:
        more = np.array([len(pieces) - 1 for pieces in words.pieces])
        saved = int(more @ corpus.counts(words.first))
    return _pair((corpus.num_tokens + saved) / corpus.num_words, corpus.num_tokens / corpus.num_words)


def _shapes(before: BackboneConfig, after: BackboneConfig) -> Tree:
    """Depth, length and attention before and after the change, of the encoder and, if both have one, of the decoder."""
    result = _shape(before.stacks[0], after.stacks[0])
    if len(before.stacks) == len(after.stacks) == 2:
        result["decoder"] = _shape(before.stacks[-1], after.stacks[-1])
    return result


def _shape(before: EncoderConfig | RecurrentConfig, after: EncoderConfig | RecurrentConfig) -> Tree:
    return {
        "num_hidden_layers": _pair(before.num_hidden_layers, after.num_hidden_layers),
        "max_position_embeddings": _pair(before.max_position_embeddings, after.max_position_embeddings),
        "attention": _pair(before.attention.kind, after.attention.kind),
    }


def _compare_hidden_states(start: Start, after: Backbone, held_out: Rows, tokenizer: Tokenizer) -> list[Tree]:
    """Compare the hidden states with the checkpoint's, at the length of the checkpoint and at the new length.

    At the new length, the checkpoint encodes consecutive pieces. Decoders are compared on the input of the encoder.
    The result is empty if only the vocabulary changed.
    """
    checkpoint, changed = start.stored.config.backbone, start.backbone
    if changed.with_tokens(checkpoint.vocab_size, checkpoint.pad_token_id) == checkpoint:
        return []
    # the checkpoint has no embeddings of the added tokens: they are added to it too
    config = ModelConfig(backbone=checkpoint.with_tokens(changed.vocab_size, changed.pad_token_id))
    with torch.random.fork_rng(devices=[]):
        before = config.build()
    fill_character_table(before, tokenizer)
    transfer_weights(start.stored, before, config, words=start.words)
    old, new = checkpoint.stacks[0], changed.stacks[0]
    packed = old.attention.supports_packing and new.attention.supports_packing
    rows = [held_out[index] for index in range(min(_ROWS, len(held_out)))]
    if not packed:
        rows = [dataclasses.replace(row, documents=None) for row in rows]
    lengths = old.max_position_embeddings, new.max_position_embeddings
    result = _distances(before.backbone.stacks[0], after.stacks[0], rows, *lengths)
    if len(checkpoint.stacks) == 1 or len(changed.stacks) == 1:
        return result
    limits = [min(stack.max_position_embeddings for stack in backbone.stacks) for backbone in (checkpoint, changed)]
    decoders = _distances(before.backbone, after, rows, *limits)
    return [{"stack": "encoder"} | row for row in result] + [{"stack": "decoder"} | row for row in decoders]


def _distances(before: Backbone, after: Backbone, rows: Sequence[Row], old: int, new: int) -> list[Tree]:
    """Distances at the longest input of both models (``old`` and ``new`` tokens), and at that of ``after``."""
    longest = max(len(row.input_ids) for row in rows)
    result = []
    for length in sorted({min(longest, old, new), min(longest, new)}):
        piece = min(length, old)
        result.append({"tokens": length, "pieces": -(-length // piece)} | _distance(before, after, rows, length, piece))
    return result


def _distance(before: Backbone, after: Backbone, rows: Sequence[Row], length: int, piece: int) -> Tree:
    """Mean cosine and relative distance per token; ``before`` encodes pieces of ``piece`` tokens."""
    device = next(after.parameters()).device
    before.to(device)
    cosine = distance = 0.0
    tokens = 0
    with eval_mode(before, after):
        for first in range(0, len(rows), _BATCH_SIZE):
            selected = [_cut(row, 0, length) for row in rows[first : first + _BATCH_SIZE]]
            for row, changed in zip(selected, _hidden_states(after, selected, device), strict=True):
                parts = [_cut(row, at, at + piece) for at in range(0, len(row.input_ids), piece)]
                original = torch.cat([_hidden_states(before, [part], device)[0] for part in parts])
                cosine += float(torch.cosine_similarity(changed, original, dim=-1).sum())
                distance += float(((changed - original).norm(dim=-1) / original.norm(dim=-1).clamp(min=1e-12)).sum())
                tokens += len(changed)
    return {"cosine": cosine / tokens, "relative_distance": distance / tokens, "rows": len(rows)}


def _cut(row: Row, start: int, end: int) -> Row:
    documents, segments = row.documents, row.token_type_ids
    return dataclasses.replace(
        row,
        input_ids=row.input_ids[start:end],
        documents=None if documents is None else documents[start:end] - documents[start],
        token_type_ids=None if segments is None else segments[start:end],
    )


def _hidden_states(backbone: Backbone, rows: Sequence[Row], device: torch.device) -> list[Tensor]:
    """Hidden states of each row, (tokens, hidden)."""
    batch = pad(rows, 0).to(device)
    hidden = backbone(batch.input_ids, **batch.context).double()
    return [vectors[: len(row.input_ids)] for vectors, row in zip(hidden, rows, strict=True)]
