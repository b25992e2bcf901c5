"""Masked language modelling: what is masked with what, when it repeats, and the sparse head."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_language import row_seeds, some_pairs, some_rows, tiny_model
from torch.nn import functional as F

from homespun.batch import Batch
from homespun.data.corpus_build import build_corpus
from homespun.data.document_set import DocumentSet
from homespun.data.packed_rows import PackedRows
from homespun.errors import UserError
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.objectives.clm import CausalLM
from homespun.objectives.electra import Electra
from homespun.objectives.mlm import MaskedLM, MaskedLMObjective
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer


def masked(config: Any, tokenizer: Tokenizer, *, epoch: int = 0, count: int = 300) -> Batch:
    rows = some_rows(tokenizer, [29, 17] * (count // 2))
    return config.collate(tokenizer)(rows, row_seeds(len(rows), epoch=epoch))


def original(tokenizer: Tokenizer, batch: Batch) -> torch.Tensor:
    """The text before corruption, padded as ``batch`` is."""
    rows = some_rows(tokenizer, [29, 17] * (len(batch.input_ids) // 2))
    ids = torch.full_like(batch.input_ids, tokenizer.pad_id)
    for place, row in zip(ids, rows, strict=True):
        place[: len(row.input_ids)] = torch.from_numpy(row.input_ids)
    return ids


def test_labels_are_the_originals_and_nothing_else_changes(tokenizer: Tokenizer) -> None:
    batch = masked(MaskedLM(), tokenizer)
    before = original(tokenizer, batch).flatten()
    assert torch.equal(batch.labels, before[batch.positions])
    elsewhere = torch.ones_like(before, dtype=torch.bool)
    elsewhere[batch.positions] = False
    assert torch.equal(batch.input_ids.flatten()[elsewhere], before[elsewhere])
    assert bool((batch.labels >= 5).all())  # never a special token
    assert len(batch.positions.unique()) == len(batch.positions)
    # 15% of 27 and of 15 ordinary tokens, exactly
    assert len(batch.positions) == 150 * (round(0.15 * 27) + round(0.15 * 15))


@pytest.mark.parametrize(
    ("config", "mask_share", "random_share"), [(MaskedLM(), 0.8, 0.1), (Electra(), 0.85, 0.0)], ids=["mlm", "electra"]
)
def test_shares_of_masked_and_random_tokens(
    config: Any, mask_share: float, random_share: float, tokenizer: Tokenizer
) -> None:
    batch = masked(config, tokenizer, count=3000)
    now = batch.input_ids.flatten()[batch.positions]
    changed = random_share * (1 - 1 / (tokenizer.vocab_size - 5))  # a random token may be the old one
    is_masked = now == tokenizer.mask_id
    for found, share in ((is_masked, mask_share), (~is_masked & (now != batch.labels), changed)):
        assert abs(int(found.sum()) - share * len(now)) <= 4.5 * math.sqrt(len(now) * share * (1 - share))


def test_static_masks_go_round_and_dynamic_ones_do_not(tokenizer: Tokenizer) -> None:
    static, dynamic = MaskedLM(masking="static", duplicates=3), MaskedLM()

    def same(config: MaskedLM, one: int, other: int) -> bool:
        first, second = masked(config, tokenizer, epoch=one), masked(config, tokenizer, epoch=other)
        return torch.equal(first.input_ids, second.input_ids)

    assert same(static, 0, 3)
    assert same(static, 2, 5)
    assert not any(same(static, *pair) for pair in [(0, 1), (0, 2), (1, 2)])
    assert not any(same(dynamic, *pair) for pair in [(0, 1), (0, 3), (0, 10)])


def test_whole_words(tokenizer: Tokenizer) -> None:
    """Words of a first piece with an even id and the pieces with odd ids after it."""
    starts = np.arange(tokenizer.vocab_size) % 2 == 0
    collate = dataclasses.replace(
        MaskedLM(whole_words=True, mask_share=1.0, random_share=0.0).collate(tokenizer), word_starts=starts
    )
    rows = some_rows(tokenizer, [29] * 50)
    batch = collate(rows, row_seeds(50))
    for row, corrupted in zip(rows, batch.input_ids.numpy(), strict=True):
        begins = starts[row.input_ids] | (row.input_ids < 5)
        begins[1] = True  # after [CLS]
        words = np.cumsum(begins)
        hidden = corrupted == tokenizer.mask_id
        assert hidden.any()
        assert not np.isin(words[~hidden], words[hidden]).any()


def test_whole_words_come_from_the_tokenizer() -> None:
    texts = ["unhappiness unhappily happiness happy untied tied untie happen happening", "un happy tie"] * 3
    tokenizer = Tokenizer.train(texts, kind="wordpiece", vocab_size=45)
    assert MaskedLM().collate(tokenizer).word_starts is None
    starts = MaskedLM(whole_words=True).collate(tokenizer).word_starts
    assert np.array_equal(starts, tokenizer.word_starts)
    assert not starts.all()


@pytest.mark.parametrize("wrong", [{"mask_share": 0.95}, {"mask_share": 0.5, "random_share": 0.6}])
def test_shares_sum_to_at_most_one(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=r"mask_share=.*random_share="):
        MaskedLM.model_validate(wrong)


def build(config: MaskedLM, tokenizer: Tokenizer) -> MaskedLMObjective:
    torch.manual_seed(1)
    return config.build(tiny_model(tokenizer), tokenizer)


def test_sparse_head_is_the_dense_head(tokenizer: Tokenizer) -> None:
    objective = build(MaskedLM(), tokenizer)
    batch = masked(MaskedLM(), tokenizer, count=10)
    logits = objective.model(batch.input_ids, batch.attention_mask)
    labels = torch.full_like(batch.input_ids, -100).flatten().index_copy(0, batch.positions, batch.labels)
    dense = F.cross_entropy(logits.flatten(0, 1), labels)
    loss = objective(batch)
    torch.testing.assert_close(loss.total(), dense)
    accuracy = loss.terms["mlm_accuracy"]
    right = (logits.flatten(0, 1).argmax(-1) == labels).sum()
    assert int(accuracy.sum) == int(right)
    parameters = list(objective.parameters())
    for sparse, truth in zip(
        torch.autograd.grad(loss.total(), parameters), torch.autograd.grad(dense, parameters), strict=True
    ):
        torch.testing.assert_close(sparse, truth, rtol=1e-4, atol=1e-6)


def test_next_sentence_prediction(tokenizer: Tokenizer) -> None:
    config = MaskedLM(next_sentence=True)
    objective = build(config, tokenizer)
    batch = config.collate(tokenizer)(some_pairs(tokenizer, 7), row_seeds(7))
    assert batch.pair_labels.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert batch.targets["next_sentence"] == batch.targets["next_sentence_accuracy"] == 7
    assert batch.targets["mlm"] == 7 * round(0.15 * 11)
    hidden = objective.model.backbone(batch.input_ids, token_type_ids=batch.token_type_ids)
    logits = objective.next_sentence(hidden)
    assert logits.shape == (7, 2)
    terms = objective(batch).terms
    torch.testing.assert_close(terms["next_sentence"].sum, F.cross_entropy(logits, batch.pair_labels, reduction="sum"))
    assert int(terms["next_sentence_accuracy"].sum) == int((logits.argmax(-1) == batch.pair_labels).sum())
    # both tasks weigh the same, as in BERT
    complete = terms["mlm"].sum / batch.targets["mlm"] + terms["next_sentence"].sum / 7
    torch.testing.assert_close(objective(batch).total(batch.targets), complete)


def test_next_sentence_prediction_needs_segments(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"type_vocab_size=1"):
        MaskedLM(next_sentence=True).build(tiny_model(tokenizer, type_vocab_size=1), tokenizer)


def test_rows_of_a_corpus(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    texts = [" ".join(["Aa bb cc dd ee ff. Gg hh ii jj."] * repeats) for repeats in (3, 5, 7)]
    corpus = build_corpus([Document(text) for text in texts], tokenizer, folder / "corpus", workers=1, sentences=True)
    documents = DocumentSet.all(3)
    assert isinstance(MaskedLM().rows(corpus, documents, length=16, seed=1), PackedRows)
    config = MaskedLM(next_sentence=True)
    rows = config.rows(corpus, documents, length=16, seed=1)
    batch = config.collate(tokenizer)([rows[0], rows[1]], row_seeds(2))
    assert build(config, tokenizer)(batch).total(batch.targets).isfinite()


def test_a_new_head_has_the_biases_of_its_layers(tokenizer: Tokenizer) -> None:
    sizes: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "hidden_size": 12, "num_attention_heads": 2}
    plain = EncoderConfig.model_validate(sizes | {"mlp_bias": False, "norm_bias": False})
    biases = []
    for backbone in (EncoderConfig.model_validate(sizes), plain):
        model, _ = MaskedLM().build(ModelConfig(backbone=backbone), tokenizer).export_model()
        biases.append({name for name in model.head.state_dict() if name.endswith("bias")})
    assert biases == [{"transform.bias", "norm.bias", "bias"}, {"bias"}]
    narrow = plain.model_copy(update={"embedding_size": 6, "causal": True})
    head = CausalLM().build(ModelConfig(backbone=narrow), tokenizer).export_model()[0].head
    assert {*head.state_dict()} == {"transform.weight", "words.weight"}
