"""Fragments are masked and generated; each stream attends to its own past; the loss is the paper's."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_language import row_seeds, some_words, tiny_writer
from torch.nn import functional as F

from homespun.batch import Batch
from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.objectives.future_ngrams import FutureNgrams, choose_fragments
from homespun.objectives.seq2seq import Seq2SeqObjective, StreamWeights
from homespun.text.tokenizer import Tokenizer


def rows(*lengths: int) -> list[Row]:
    random = np.random.default_rng(1)
    return [Row(np.concatenate([[2], some_words(length, random), [3]])) for length in lengths]


def built(tokenizer: Tokenizer, config: FutureNgrams | None = None, ngram: int = 3) -> Seq2SeqObjective:
    torch.manual_seed(1)
    return (config or FutureNgrams()).build(tiny_writer(tokenizer, ngram=ngram), tokenizer).eval()


def batch_of(tokenizer: Tokenizer, *lengths: int, probability: float = 0.4) -> Batch:
    given = rows(*lengths)
    return FutureNgrams(probability=probability, every=11).collate(tokenizer)(given, row_seeds(len(given)))


def stream_logits(objective: Seq2SeqObjective, batch: Batch) -> torch.Tensor:
    """(batch, ngram, seq, vocab)."""
    backbone, head = objective.model.backbone, objective.model.head
    source = backbone.encode(batch.input_ids, **batch.context)
    keep = batch.decoder_attention_mask
    return head(backbone.ngram_streams(batch.decoder_input_ids, source, attention_mask=keep))


@pytest.mark.parametrize("length", [1, 2, 7, 63, 64, 65, 127, 511])
def test_fragments_are_runs_one_in_every_block(length: int) -> None:
    for seed in range(20):
        chosen = choose_fragments(length, torch.Generator().manual_seed(seed), probability=0.15, every=64)
        assert len(chosen) == max(round(0.15 * length), 1)
        assert (np.diff(chosen) > 0).all()
        assert chosen[0] >= 0
        assert chosen[-1] < length
        for start in range(0, length, 64):
            inside = chosen[(chosen >= start) & (chosen < start + 64)]
            assert (np.diff(inside) == 1).all()
            if length - start >= 64:
                assert len(inside) in (9, 10)


def test_fragments_may_begin_anywhere() -> None:
    counts = np.zeros(64)
    for seed in range(4000):
        chosen = choose_fragments(64, torch.Generator().manual_seed(seed), probability=0.15, every=64)
        counts[chosen[0]] += 1
    assert not counts[55:].any()
    assert abs(counts[:55] / 4000 - 1 / 55).max() < 0.01


def test_of_no_tokens_none_is_chosen() -> None:
    assert len(choose_fragments(0, torch.Generator(), probability=0.15, every=64)) == 0


def test_the_target_is_what_was_masked(tokenizer: Tokenizer) -> None:
    row = rows(150)[0]
    collate = FutureNgrams(mask_share=1, random_share=0).collate(tokenizer)
    batch = collate([row], row_seeds(1))
    source = batch.input_ids[0]
    hidden = source == tokenizer.mask_id
    assert int(hidden.sum()) == round(0.15 * 150)
    assert batch.labels[-1] == source[-1] == tokenizer.sep_id
    source[hidden] = batch.labels[:-1]
    assert source.tolist() == row.input_ids.tolist()
    assert batch.decoder_input_ids[0, 0] == tokenizer.sep_id
    assert torch.equal(batch.decoder_input_ids[0, 1:], batch.labels[:-1])


def test_shares_of_masked_random_and_left(tokenizer: Tokenizer) -> None:
    collate = FutureNgrams().collate(tokenizer)
    masked = other = total = 0
    for number in range(200):
        row = rows(128)[0]
        batch = collate([row], row_seeds(1, first=number))
        changed = batch.input_ids[0].numpy() != row.input_ids
        masked += int((batch.input_ids == tokenizer.mask_id).sum())
        other += int(changed.sum())
        total += round(0.15 * 128)
    assert abs(masked / total - 0.8) < 0.02
    assert abs((other - masked) / total - 0.1 * 23 / 24) < 0.02


def test_the_loss_is_the_papers(tokenizer: Tokenizer) -> None:
    weights = (0.7, 0.2, 0.4)
    objective = built(tokenizer, FutureNgrams(streams=StreamWeights(weights=weights)))
    batch = batch_of(tokenizer, 29, 5, 17)
    logits = stream_logits(objective, batch)
    width = logits.shape[2]
    expected, firsts = 0.0, []
    for stream, weight in enumerate(weights):
        rows_, places = batch.positions // width, batch.positions % width
        kept = places >= stream
        losses = F.cross_entropy(logits[rows_, stream, places][kept], batch.labels[kept], reduction="sum")
        firsts.append((losses, int(kept.sum())))
        expected = expected + weight * losses
    loss = objective(batch)
    torch.testing.assert_close(loss.terms["seq2seq"].sum, expected)
    assert loss.terms["seq2seq"].count == len(batch.labels) == batch.targets["seq2seq"]
    for name, (total, count) in zip(("next_token", "ngram_2", "ngram_3"), firsts, strict=True):
        torch.testing.assert_close(loss.terms[name].sum, total)
        assert loss.terms[name].count == count
        assert not loss.terms[name].weight
    assert firsts[2][1] < firsts[1][1] < firsts[0][1]
    right = logits[batch.positions // width, 0, batch.positions % width].argmax(-1) == batch.labels
    assert loss.terms["seq2seq_accuracy"].sum == right.sum()


def test_equal_shares_and_every_label(tokenizer: Tokenizer) -> None:
    objective = built(tokenizer, FutureNgrams(streams=StreamWeights(unseen="predicted")))
    batch = batch_of(tokenizer, 29, 5, 17)
    logits = stream_logits(objective, batch).transpose(1, 2).flatten(0, 1)[batch.positions]  # (targets, ngram, vocab)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.labels.repeat_interleave(3))
    torch.testing.assert_close(objective(batch).total(batch.targets), expected)


def test_the_next_token_alone(tokenizer: Tokenizer) -> None:
    """Without the other streams nothing of them is computed, and their vectors do not learn."""
    objective = built(tokenizer, FutureNgrams(streams=StreamWeights(weights=(1, 0, 0))))
    batch = batch_of(tokenizer, 29, 17)
    loss = objective(batch)
    assert set(loss.terms) == {"seq2seq", "seq2seq_accuracy"}
    logits = stream_logits(objective, batch)[:, 0].flatten(0, 1)[batch.positions]
    torch.testing.assert_close(loss.total(), F.cross_entropy(logits, batch.labels))
    loss.total().backward()
    backbone = objective.model.backbone
    gradient = backbone.predicting.embedding.weight.grad
    assert gradient[0].any()
    assert not gradient[1:].any()


def test_one_stream_is_an_ordinary_decoder(tokenizer: Tokenizer) -> None:
    objective = built(tokenizer, ngram=1)
    assert set(objective(batch_of(tokenizer, 29)).terms) == {"seq2seq", "seq2seq_accuracy"}


def test_bad_input(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"model\.ngram=2"):
        FutureNgrams().build(tiny_writer(tokenizer), tokenizer)
    with pytest.raises(UserError, match=r"2 stream weights .*ngram=3"):
        FutureNgrams(streams=StreamWeights(weights=(1, 1))).build(tiny_writer(tokenizer, ngram=3), tokenizer)
    with pytest.raises(UserError, match="next token"):
        FutureNgrams(streams=StreamWeights(weights=(0, 1, 1))).build(tiny_writer(tokenizer, ngram=3), tokenizer)
    negative: Any = (1, -1, 1)
    with pytest.raises(ValidationError):
        StreamWeights(weights=negative)
    with pytest.raises(ValidationError, match="more than 1 together"):
        FutureNgrams(mask_share=0.8, random_share=0.3)
