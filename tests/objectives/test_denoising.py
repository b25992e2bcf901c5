"""BART's and T5's batches: what is read and written, by hand; what they refuse; which lengths they make."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tiny_language import TinyCorpus, row_seeds, tiny_tokenizer, tiny_writer

from homespun.data.rows import Row
from homespun.errors import UserError
from homespun.objectives.denoising import Denoising
from homespun.objectives.seq2seq import Seq2SeqObjective
from homespun.objectives.span_corruption import SpanCorruption
from homespun.text.tokenizer import Tokenizer

PAD, CLS, SEP, MASK = 0, 2, 3, 4
ALONE: dict[str, dict[str, Any]] = {
    "text_infilling": {"text_infilling": 0.4},
    "sentence_permutation": {"sentence_permutation": 1.0},
    "token_masking": {"token_masking": 0.25},
    "token_deletion": {"token_deletion": 0.25},
    "document_rotation": {"document_rotation": 1.0},
}


def only(**noises: float) -> Denoising:
    return Denoising(**({"text_infilling": 0.0, "sentence_permutation": 0.0} | noises))


def row(size: int = 20) -> Row:
    ids = np.concatenate([[CLS], 5 + np.arange(size), [SEP]])
    return Row(ids, sentence_ends=np.append(np.arange(5, size, 5), size) + 1)


def source(config: Denoising, tokenizer: Tokenizer, given: Row, index: int) -> np.ndarray:
    batch = config.collate(tokenizer)([given], row_seeds(1, first=index))
    assert batch.labels.tolist() == given.input_ids.tolist()
    assert batch.decoder_input_ids.tolist() == [[SEP, *given.input_ids[:-1].tolist()]]
    ids = batch.input_ids[0].numpy()
    assert (ids[0], ids[-1]) == (CLS, SEP)
    return np.asarray(ids[1:-1])


@pytest.mark.parametrize("name", ALONE)
def test_each_noise_alone_does_its_own_and_nothing_else(name: str, tokenizer: Tokenizer) -> None:
    text = 5 + np.arange(20)
    found = [source(only(**ALONE[name]), tokenizer, row(), index) for index in range(40)]
    changed = sum(not np.array_equal(ids, text) for ids in found)
    assert changed > 30
    for ids in found:
        if name == "text_infilling":
            assert (ids != MASK).sum() == 12
            assert (np.diff(ids[ids != MASK]) > 0).all()
        elif name == "token_masking":
            assert (ids == MASK).sum() == 5
            assert (ids[ids != MASK] == text[ids != MASK]).all()
        elif name == "token_deletion":
            assert len(ids) == 15
            assert (np.diff(ids) > 0).all()
        elif name == "sentence_permutation":
            assert sorted(map(tuple, ids.reshape(4, 5))) == list(map(tuple, text.reshape(4, 5)))
        else:
            assert np.array_equal(np.roll(text, 5 - int(ids[0])), ids)


def test_shares_of_rows_are_shares_of_rows(tokenizer: Tokenizer) -> None:
    text = 5 + np.arange(20)
    config = only(sentence_permutation=0.3)
    moved = sum(not np.array_equal(source(config, tokenizer, row(), index), text) for index in range(800))
    assert moved / 800 == pytest.approx(0.3 * 23 / 24, abs=0.06)  # one order of 24 is the text's own


def test_all_together_lose_nothing_that_they_should_not(tokenizer: Tokenizer) -> None:
    config = Denoising(token_masking=0.2, token_deletion=0.2, document_rotation=1.0)
    for index in range(50):
        ids = source(config, tokenizer, row(), index)
        assert len(ids) <= 20
        kept = ids[ids != MASK]
        assert len(set(kept)) == len(kept)
        assert set(kept) <= set(range(5, 25))
        # 20, of which 4 are masked, then 4 gone, then 30 % of 16 in spans: 4 to 8 of the text's own hidden or gone
        assert 20 - 4 - 4 - 5 <= len(kept) <= 20 - 4 - 5


def test_a_row_without_sentences_is_one_sentence(tokenizer: Tokenizer) -> None:
    given = dataclasses.replace(row(), sentence_ends=None)
    assert np.array_equal(source(only(sentence_permutation=1.0), tokenizer, given, 1), 5 + np.arange(20))


def test_spans_are_written_after_their_sentinels(tokenizer: Tokenizer) -> None:
    config = SpanCorruption(probability=0.3, mean_span=2.0)
    given = Row(np.concatenate([[CLS], 5 + np.arange(20), [SEP]]))
    batch = config.collate(tokenizer)([given, given], row_seeds(2))
    sentinels = tokenizer.sentinel_ids.tolist()
    assert sentinels == list(range(35, 28, -1))
    for number, labels in enumerate(batch.labels.reshape(2, -1).tolist()):
        ids = batch.input_ids[number].tolist()
        assert (ids[0], ids[-1], labels[-1]) == (CLS, SEP, SEP)
        assert len(ids) == 2 + 14 + 3
        assert len(labels) == 6 + 3 + 1
        assert [i for i in ids if i in sentinels] == [i for i in labels if i in sentinels] == sentinels[:3]
        assert batch.decoder_input_ids[number].tolist() == [PAD, *labels[:-1]]
        spans: dict[int, list[int]] = {}
        for token in labels[:-1]:
            if token in sentinels:
                spans[token] = []
            else:
                spans[sentinels[len(spans) - 1]].append(token)
        assert [t for i in ids[1:-1] for t in spans.get(i, [i])] == list(range(5, 25))


def test_lengths_of_sources_and_targets() -> None:
    tokenizer = tiny_tokenizer()
    for length in (8, 13, 24, 31, 97):
        config = SpanCorruption(probability=0.15, mean_span=10.0)
        rows = config.rows(TinyCorpus(tokenizer, [3, 500]), np.arange(2), length=length, seed=1)
        batch = config.collate(tokenizer)([rows[i] for i in range(len(rows))], row_seeds(len(rows)))
        assert batch.input_ids.shape[1] <= length
        assert batch.decoder_input_ids.shape[1] <= config.target_length(length)
    plain = SpanCorruption()
    # the numbers of the authors' own code for 512 tokens
    assert plain._body(512) == 568
    assert plain.target_length(512) == 114


def ids_of(objective: Seq2SeqObjective) -> dict[str, int | None]:
    backbone = objective.export_model()[1].backbone
    dumped = backbone.model_dump()
    return {name.removesuffix("_token_id"): value for name, value in dumped.items() if name.endswith("_token_id")}


def test_what_begins_and_ends_a_text_is_the_tokenizers_and_the_familys(tokenizer: Tokenizer) -> None:
    model = tiny_writer(tokenizer)
    bart = {"decoder_start": SEP, "bos": CLS, "eos": SEP, "forced_bos": None, "forced_eos": SEP}
    assert ids_of(Denoising().build(model, tokenizer)) == bart
    t5 = {"decoder_start": PAD, "bos": None, "eos": SEP, "forced_bos": None, "forced_eos": None}
    assert ids_of(SpanCorruption().build(model, tokenizer)) == t5


def test_what_cannot_be(tokenizer: Tokenizer) -> None:
    plain = Tokenizer.train(["aa bb cc"], kind="words", vocab_size=8)
    for refused in (
        lambda: SpanCorruption().collate(plain),
        lambda: SpanCorruption().rows(TinyCorpus(plain, [20]), np.arange(1), length=16, seed=1),
    ):
        with pytest.raises(UserError, match=r"homespun tokenizer train --sent"):
            refused()
    with pytest.raises(UserError, match=r"data\.max_length=256 .*14 spans.* 7 sentinels"):
        SpanCorruption().rows(TinyCorpus(tokenizer, [20]), np.arange(1), length=256, seed=1)
    without = TinyCorpus(tokenizer, [20])
    without.has_sentences = False
    with pytest.raises(UserError, match=r"--sentences.*objective\.sentence_permutation=0"):
        Denoising().rows(without, np.arange(1), length=16, seed=1)
    assert len(only(text_infilling=0.3).rows(without, np.arange(1), length=16, seed=1)) == 2
    with pytest.raises(ValidationError, match="nothing to learn"):
        only()
