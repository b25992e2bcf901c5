"""Gap sentence generation: the target is the removed text, for every selection."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_language import row_seeds, tiny_writer
from torch.nn import functional as F

from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.objectives.gap_selection import select_lead
from homespun.objectives.gap_sentences import GapSentenceCollator, GapSentenceGeneration, multi_sentence_rows
from homespun.text.tokenizer import Tokenizer

ROW = Row(np.array([2, 9, 9, 5, 5, 6, 10, 11, 5, 7, 8, 6, 12, 12, 12, 3]), sentence_ends=np.array([3, 6, 8, 12, 15]))


def of_sentences(sizes: Sequence[int], *, seed: int = 1) -> Row:
    random = np.random.default_rng(seed)
    return Row(np.concatenate([[2], random.integers(5, 29, sum(sizes)), [3]]), sentence_ends=1 + np.cumsum(sizes))


def source_and_target(collate: GapSentenceCollator, row: Row, number: int = 0) -> tuple[list[int], list[int]]:
    batch = collate([row], row_seeds(1, first=number))
    return batch.input_ids[0].tolist(), batch.labels.tolist()


def check_nothing_is_lost(source: list[int], target: list[int], row: Row, gap_id: int) -> None:
    """Where no sentence is in both, the gaps are the sentences of the target, one after the other."""
    assert source[0] == row.input_ids[0]
    read, written = 1, 0
    for sentence in np.split(row.input_ids[1:-1], row.sentence_ends[:-1] - 1):
        size = len(sentence)
        if source[read] == gap_id:
            assert target[written : written + size] == sentence.tolist()
            read, written = read + 1, written + size
        else:
            assert source[read : read + size] == sentence.tolist()
            read += size
    assert source[read:] == target[written:] == row.input_ids[-1:].tolist()


def test_the_first_sentences(tokenizer: Tokenizer) -> None:
    collate = GapSentenceCollator(0, 4, 1, select_lead, (0.4, 0.4), 0.0)
    source, target = source_and_target(collate, ROW)
    assert source == [2, 4, 4, 10, 11, 5, 7, 8, 6, 12, 12, 12, 3]
    assert target == [9, 9, 5, 5, 6, 3]


def test_the_most_telling_sentence(tokenizer: Tokenizer) -> None:
    """5 5 6 and 5 7 8 6 have two words in the rest each, counted as often as they are in both: the earlier is taken."""
    config = GapSentenceGeneration(ratio=0.2)
    gap = int(tokenizer.sentinel_ids[0])
    source, target = source_and_target(config.collate(tokenizer), ROW)
    assert target == [5, 5, 6, 3]
    assert source == [2, 9, 9, gap, 10, 11, 5, 7, 8, 6, 12, 12, 12, 3]


def test_the_decoder_begins_with_padding_and_the_end_ends_both(tokenizer: Tokenizer) -> None:
    batch = GapSentenceGeneration().collate(tokenizer)([ROW, of_sentences([3, 5, 7])], row_seeds(2))
    assert batch.decoder_input_ids[:, 0].tolist() == [tokenizer.pad_id] * 2
    for row, keep in zip(batch.input_ids, batch.attention_mask, strict=True):
        assert row[keep][-1] == tokenizer.sep_id
    assert int((batch.labels == tokenizer.sep_id).sum()) == 2


@pytest.mark.parametrize("selection", ["independent", "sequential", "lead", "random"])
@pytest.mark.parametrize("rouge", ["original", "unique"])
def test_nothing_is_lost(selection: Any, rouge: Any, tokenizer: Tokenizer) -> None:
    collate = GapSentenceGeneration(selection=selection, rouge=rouge).collate(tokenizer)
    gap = int(tokenizer.sentinel_ids[0])
    for number in range(30):
        row = of_sentences(np.random.default_rng(number).integers(2, 9, 2 + number % 9).tolist(), seed=number)
        source, target = source_and_target(collate, row, number)
        assert source.count(gap) == max(round(0.3 * len(row.sentence_ends)), 1)
        check_nothing_is_lost(source, target, row, gap)


def test_some_of_the_chosen_stay_and_are_written_all_the_same(tokenizer: Tokenizer) -> None:
    collate = GapSentenceGeneration(ratio=0.45, intact=0.2, selection="random").collate(tokenizer)
    gap = int(tokenizer.sentinel_ids[0])
    row = of_sentences([3] * 20)
    gone = written = 0
    for number in range(400):
        source, target = source_and_target(collate, row, number)
        assert len(target) == 9 * 3 + 1
        gone += source.count(gap)
        written += 9
        assert len(source) == 62 - 2 * source.count(gap)
    assert abs(gone / written - 0.8) < 0.02


def test_the_share_is_drawn_for_every_row(tokenizer: Tokenizer) -> None:
    collate = GapSentenceGeneration(ratio=0.15, highest_ratio=0.45, selection="random").collate(tokenizer)
    gap = int(tokenizer.sentinel_ids[0])
    counts = [source_and_target(collate, of_sentences([2] * 100), number)[0].count(gap) for number in range(600)]
    assert min(counts) in (15, 16)
    assert max(counts) in (44, 45)
    assert abs(np.mean(counts) - 30) < 1.2  # over three deviations of the mean


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.99])
def test_some_sentences_are_masked_and_others_stay(ratio: float, tokenizer: Tokenizer) -> None:
    collate = GapSentenceGeneration(ratio=ratio).collate(tokenizer)
    gap = int(tokenizer.sentinel_ids[0])
    for sentences in (2, 3, 11):
        source, target = source_and_target(collate, of_sentences([3] * sentences))
        assert 1 <= source.count(gap) <= sentences - 1
        assert len(source) > source.count(gap) + 2
        assert len(target) == 3 * source.count(gap) + 1


@pytest.mark.parametrize("row", [of_sentences([7]), Row(np.array([2, 5, 6, 7, 3])), Row(np.array([2, 3]))])
def test_of_one_sentence_nothing_is_taken(row: Row, tokenizer: Tokenizer) -> None:
    for mlm in (0.0, 0.15):
        batch = GapSentenceGeneration(mlm=mlm, mask_share=0, random_share=0).collate(tokenizer)([row], row_seeds(1))
        assert batch.input_ids[0].tolist() == row.input_ids.tolist()
        assert batch.labels.tolist() == [3]


def test_masked_tokens_are_of_the_other_sentences(tokenizer: Tokenizer) -> None:
    config = GapSentenceGeneration(mlm=0.15, ratio=0.3, intact=0.3, selection="random")
    collate = config.collate(tokenizer)
    gap, mask = int(tokenizer.sentinel_ids[0]), tokenizer.mask_id
    row = of_sentences([5] * 20)
    sentences = {tuple(part.tolist()) for part in np.split(row.input_ids[1:-1], 20)}
    assert len(sentences) == 20
    masked = swapped = total = 0
    for number in range(200):
        batch = collate([row], row_seeds(1, first=number))
        source = batch.input_ids[0]
        given = source[batch.source_positions]
        assert len(given) == round(0.15 * 70) == batch.targets["mlm"]
        assert int((source == mask).sum()) == int((given == mask).sum())
        assert not (given == gap).any()
        restored = source.clone()
        restored[batch.source_positions] = batch.source_labels
        target = {tuple(part.tolist()) for part in batch.labels[:-1].split(5)}
        # what is restored are the sentences that are not written, and those written ones that stayed
        position = 1
        while restored[position] != 3:
            if restored[position] == gap:
                position += 1
                continue
            assert tuple(restored[position : position + 5].tolist()) in sentences
            at_risk = (batch.source_positions >= position) & (batch.source_positions < position + 5)
            assert not (tuple(restored[position : position + 5].tolist()) in target and at_risk.any())
            position += 5
        masked += int((given == mask).sum())
        swapped += int(((given != mask) & (given != batch.source_labels)).sum())
        total += len(given)
    assert abs(masked / total - 0.8) < 0.03
    assert abs(swapped / total - 0.1 * 23 / 24) < 0.02


def test_the_encoder_predicts_masked_tokens_through_the_word_embeddings(tokenizer: Tokenizer) -> None:
    torch.manual_seed(1)
    objective = GapSentenceGeneration(mlm=0.3).build(tiny_writer(tokenizer), tokenizer).eval()
    backbone = objective.model.backbone
    batch = GapSentenceGeneration(mlm=0.3).collate(tokenizer)([ROW, of_sentences([3, 5, 7])], row_seeds(2))
    terms = objective(batch).terms
    hidden = backbone.encode(batch.input_ids, **batch.context).hidden.flatten(0, 1)[batch.source_positions]
    logits = hidden @ backbone.encoder.embeddings.words.weight.T
    torch.testing.assert_close(terms["mlm"].sum, F.cross_entropy(logits, batch.source_labels, reduction="sum"))
    plain = GapSentenceGeneration().build(tiny_writer(tokenizer), tokenizer)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in objective.parameters())


def test_narrow_embeddings_have_a_projection_that_is_not_kept(tokenizer: Tokenizer) -> None:
    objective = GapSentenceGeneration(mlm=0.3).build(tiny_writer(tokenizer, embedding_size=17), tokenizer)
    assert objective(GapSentenceGeneration(mlm=0.3).collate(tokenizer)([ROW], row_seeds(1))).total().isfinite()
    kept = sum(p.numel() for p in objective.export_model()[0].parameters())
    assert sum(p.numel() for p in objective.parameters()) == kept + 32 * 17 + 17


def test_a_token_of_its_own_stands_for_a_sentence_where_there_is_one(tokenizer: Tokenizer) -> None:
    bare = Tokenizer.train(["aa bb cc"], kind="words", vocab_size=8)
    assert GapSentenceGeneration().collate(bare).gap_id == bare.mask_id
    assert GapSentenceGeneration().collate(tokenizer).gap_id == tokenizer.sentinel_ids[0]
    content = bare.content.replace('"[UNK]"', '"<mask_1>"')
    released = Tokenizer(content, bare.roles | {"unk": "<mask_1>"})
    assert GapSentenceGeneration(mlm=0.1).collate(released).gap_id == 1
    with pytest.raises(UserError, match=r"--sentinels 1"):
        GapSentenceGeneration(mlm=0.1).collate(bare)


class Sentences:
    """Rows with so many sentences each."""

    def __init__(self, counts: list[int]) -> None:
        self.rows = [of_sentences([2] * count) for count in counts]
        self.sentences = np.array(counts)
        self.lengths = np.array([len(row.input_ids) for row in self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]


def test_rows_of_one_sentence_are_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rows: Any = Sentences([1, 3, 2, 1])
    with caplog.at_level(logging.WARNING):
        gaps = multi_sentence_rows(rows)
    assert "2 of 4 rows" in caplog.text
    assert gaps.lengths.tolist() == [8, 6]
    assert [len(gaps[index].input_ids) for index in range(len(gaps))] == [8, 6]


def test_bad_input() -> None:
    one: Any = Sentences([1, 1])
    with pytest.raises(UserError, match=r" 2 rows .*data\.max_length"):
        multi_sentence_rows(one)

    class Bare:
        has_sentences = False
        path = "here"

    corpus: Any = Bare()
    with pytest.raises(UserError, match="homespun corpus build --sentences"):
        GapSentenceGeneration().rows(corpus, np.array([0]), length=64, seed=1)
    with pytest.raises(ValidationError, match=r"ratio=0\.3"):
        GapSentenceGeneration(highest_ratio=0.2)
    with pytest.raises(ValidationError, match="more than 1 together"):
        GapSentenceGeneration(mask_share=0.8, random_share=0.3)
    for ratio in (0.0, 1.0):
        with pytest.raises(ValidationError):
            GapSentenceGeneration(ratio=ratio)
