"""Embeddings from co-occurrences: tokens of like contexts have like vectors."""

import numpy as np
import pytest
import torch
from torch import nn

from homespun.data.corpus import Corpus
from homespun.data.corpus_build import build_corpus
from homespun.data.document_set import DocumentSet
from homespun.errors import UserError
from homespun.models.encoder import EncoderConfig
from homespun.text.sources import Document
from homespun.text.tokenizer import Tokenizer
from homespun.vectors.embedding_init import cooccurrence_vectors, init_embeddings_from_cooccurrence

ANIMALS, VERBS, PLACES = ("cat", "dog", "horse"), ("sleeps", "eats"), ("barn", "house")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    generator = np.random.default_rng(0)
    texts = [
        " ".join(["the", generator.choice(ANIMALS), generator.choice(VERBS), "in", "a", generator.choice(PLACES)])
        for _ in range(400)
    ]
    tokenizer = Tokenizer.train([*texts, "unseen"], kind="words", vocab_size=16)
    folder = tmp_path_factory.mktemp("spectral") / "corpus"
    return build_corpus([Document(text) for text in texts], tokenizer, folder)


def _ids(corpus: Corpus, *words: str) -> list[int]:
    return [corpus.tokenizer.tokens.index(word) for word in words]


def test_tokens_of_one_context_are_near(corpus: Corpus) -> None:
    vectors, occurs = cooccurrence_vectors(corpus, DocumentSet.all(400), 13, seed=0)
    assert vectors.shape == (corpus.tokenizer.vocab_size, 13)
    torch.testing.assert_close(vectors[occurs].norm(dim=-1), torch.ones(int(occurs.sum())))
    cosines = vectors @ vectors.T
    for words, others in ((ANIMALS, VERBS), (VERBS, PLACES), (PLACES, ANIMALS)):
        own, other = _ids(corpus, *words), _ids(corpus, *others)
        assert cosines[own][:, own].min() > 0.8
        assert cosines[own][:, other].max() < 0.5
    assert not occurs[_ids(corpus, "unseen")].any()


def test_the_seed_decides(corpus: Corpus) -> None:
    first, other, again = (cooccurrence_vectors(corpus, DocumentSet.all(400), 13, seed=seed)[0] for seed in (0, 1, 0))
    assert cooccurrence_vectors(corpus, DocumentSet.all(400), 13, seed=0)[0] is again  # the last result is kept
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert (first - other).abs().max() > 0.1


def test_documents_that_are_not_named_are_not_counted(corpus: Corpus) -> None:
    _, occurs = cooccurrence_vectors(corpus, DocumentSet.all(1), 5, seed=0)
    assert occurs.sum() == 7  # six words and the separator


def test_embeddings_keep_their_length_and_unseen_tokens(corpus: Corpus) -> None:
    torch.manual_seed(0)
    model = EncoderConfig(vocab_size=corpus.tokenizer.vocab_size + 3, hidden_size=16, num_hidden_layers=1).build()
    table = model.embeddings.words.weight
    before = table.detach().clone()
    init_embeddings_from_cooccurrence(model, corpus, DocumentSet.all(400), seed=0)
    unseen = [*_ids(corpus, "unseen"), len(before) - 1]
    assert torch.equal(table[unseen], before[unseen])
    (cat,) = _ids(corpus, "cat")
    torch.testing.assert_close(table[cat].norm(), before.norm(dim=-1).mean())


def test_a_model_without_embeddings(corpus: Corpus) -> None:
    with pytest.raises(UserError, match="embeddings=random"):
        init_embeddings_from_cooccurrence(nn.Linear(2, 2), corpus, DocumentSet.all(4), seed=0)
