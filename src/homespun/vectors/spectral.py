"""Embeddings from a corpus: singular vectors of co-occurrence counts of tokens.

Counting takes seconds, and a language model with this initialisation needs fewer tokens: a fifth fewer after a million
(results/efficiency.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from homespun.data.corpus import DESCRIPTION, Corpus
from homespun.errors import UserError
from homespun.vectors.embedding_init import word_tables

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

OFFSETS = (1, 2)
"""Distances of co-occurrences, with one matrix for each distance and side."""
MOST_TOKENS = 50_000_000
"""Approximate limit of counted tokens; more change little and take longer."""
SMOOTHING = 0.75
"""Exponent of the frequencies of contexts, which lowers the weight of rare ones (Levy et al. 2015, section 3.2)."""
_AT_ONCE = 4_000_000  # tokens whose pairs are sorted at a time


@torch.no_grad()
def init_embeddings_from_cooccurrence(model: nn.Module, corpus: Corpus, documents: np.ndarray, *, seed: int) -> None:
    """Initialise the word embeddings of ``model`` from co-occurrences, with the mean norm of the present ones.

    Tokens that do not occur keep their vectors.

    Args:
        model: a module with `homespun.models.embeddings.Embeddings`; tied weights change too.
        corpus: of the model's tokenizer.
        documents: (n,) indices of the documents to count.
        seed: of the singular value decomposition.

    Raises:
        UserError: ``model`` has no word embeddings.
    """
    tables = word_tables(model)
    if not tables:
        raise UserError("embeddings=cooccurrence needs a model with embeddings of tokens; set embeddings=random")
    for table in tables:
        vectors, occurs = cooccurrence_vectors(corpus, documents, table.embedding_dim, seed=seed)
        rows = torch.from_numpy(np.flatnonzero(occurs)).to(table.weight.device)
        length = table.weight.norm(dim=-1).mean()
        table.weight[rows] = vectors[occurs].to(table.weight) * length


def cooccurrence_vectors(corpus: Corpus, documents: np.ndarray, size: int, *, seed: int) -> tuple[Tensor, np.ndarray]:
    """Unit vectors of tokens, by singular value decomposition of their co-occurrences.

    The positive pointwise mutual information of each token with the tokens at `OFFSETS` before and after it is
    decomposed, with singular values to the power 1/2 (Levy et al. 2015). The mean over the text is subtracted, which a
    softmax ignores, and the axes are rotated at random, so that no component is larger than another. The last result is
    cached, for further models of the same size on the same corpus.

    Args:
        corpus: the text.
        documents: (n,) indices of the documents to count, in this order, up to about `MOST_TOKENS`.
        size: components; those beyond the size of the vocabulary are zero before the rotation.
        seed: of the decomposition and the rotation.

    Returns:
        (vocab, size) float32 vectors, and (vocab,) bool, true for tokens that occur.
    """
    state = (corpus.path / DESCRIPTION).read_bytes()  # with a checksum of each shard
    return _decomposed(corpus.path, state, np.asarray(documents, np.int64).tobytes(), size, seed)


@lru_cache(maxsize=1)
def _decomposed(folder: Path, _state: bytes, documents: bytes, size: int, seed: int) -> tuple[Tensor, np.ndarray]:
    from scipy.sparse import csr_matrix, hstack
    from sklearn.utils.extmath import randomized_svd

    corpus = Corpus.open(folder)
    vocab = corpus.tokenizer.vocab_size
    counts = [csr_matrix((vocab, vocab), dtype=np.float32) for _ in OFFSETS]
    for ids in _pieces(corpus, np.frombuffer(documents, np.int64)):
        for number, offset in enumerate(OFFSETS):
            counts[number] += _pairs(ids, offset, vocab)
    associations = [_mutual_information(found) for found in counts]
    table = hstack([side for found in associations for side in (found, found.T)], format="csr", dtype=np.float32)
    found = min(size, vocab - 1)
    left, values, _ = randomized_svd(table, found, n_iter=2, random_state=seed)
    vectors = torch.zeros(vocab, size)
    vectors[:, :found] = torch.from_numpy(np.ascontiguousarray(left * np.sqrt(values), dtype=np.float32))
    pairs = np.asarray(counts[0].sum(1)) + np.asarray(counts[0].sum(0)).T  # (vocab, 1)
    frequencies = torch.from_numpy(pairs.astype(np.float32))
    vectors -= (vectors * frequencies).sum(0) / frequencies.sum().clamp(min=1)
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    return nn.functional.normalize(vectors @ rotation, dim=-1), frequencies[:, 0].numpy() > 0


def _pieces(corpus: Corpus, documents: np.ndarray) -> Iterator[np.ndarray]:
    """Token ids of several documents at a time, with a separator after each."""
    end = np.array([corpus.tokenizer.sep_id], np.int64)
    held: list[np.ndarray] = []
    waiting = total = 0
    for index in documents:
        if total >= MOST_TOKENS:
            break
        ids = corpus.tokens(int(index)).astype(np.int64)
        held += [ids, end]
        waiting, total = waiting + len(ids), total + len(ids)
        if waiting >= _AT_ONCE:
            yield np.concatenate(held)
            held, waiting = [], 0
    if held:
        yield np.concatenate(held)


def _pairs(ids: np.ndarray, offset: int, vocab: int) -> csr_matrix:
    """Counts (vocab, vocab): the column's token follows the row's at this distance."""
    from scipy.sparse import coo_matrix

    keys, counts = np.unique(ids[:-offset] * vocab + ids[offset:], return_counts=True)
    rows, columns = np.divmod(keys, vocab)
    return coo_matrix((counts.astype(np.float32), (rows, columns)), shape=(vocab, vocab)).tocsr()


def _mutual_information(counts: csr_matrix) -> csr_matrix:
    """Positive pointwise mutual information, ``max(0, log p(row, column) / (p(row) p'(column)))``, with `SMOOTHING`."""
    from scipy.sparse import csr_matrix

    pairs = counts.tocoo()
    rows = np.asarray(counts.sum(1), dtype=np.float64)[:, 0]
    columns = np.asarray(counts.sum(0), dtype=np.float64)[0] ** SMOOTHING
    expected = rows[pairs.row] * columns[pairs.col] / columns.sum()
    values = np.maximum(np.log(pairs.data / expected), 0).astype(np.float32)
    table = csr_matrix((values, (pairs.row, pairs.col)), shape=counts.shape)
    table.eliminate_zeros()
    return table
