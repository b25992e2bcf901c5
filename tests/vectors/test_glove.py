"""GloVe: steps equal autograd of the loss, and vectors of neighbours in the text are similar."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_corpus import ANIMALS, OF_ANIMALS, OF_TOOLS, TOOLS, corpus_of, two_topics

from homespun.vectors.cooccurrence import Cooccurrence, count_pairs
from homespun.vectors.training import Glove, GloveConfig
from homespun.vectors.word_file import WordFile, WordsConfig, write_words
from homespun.vectors.word_vectors import WordVectors


def counted(tmp_path: Path, window: int = 3) -> tuple[WordFile, Cooccurrence]:
    text = write_words(corpus_of(two_topics(83), tmp_path / "corpus"), tmp_path / "words", WordsConfig(min_count=2))
    (tmp_path / "matrix").mkdir()
    return text, count_pairs(text, tmp_path / "matrix", window=window)


def dense(matrix: Cooccurrence) -> torch.Tensor:
    full = torch.zeros(matrix.words, matrix.words)
    for number in range(matrix.blocks):
        block = matrix.block(number)
        rows = np.repeat(np.arange(matrix.words), np.diff(block.row_starts))
        full[rows, block.words[block.columns]] = torch.from_numpy(np.array(block.weights))
    return full


def test_steps_are_adagrads_on_the_weighted_squares(tmp_path: Path) -> None:
    """Equation 8 written out as dense tables and differentiated by autograd, block after block."""
    _, matrix = counted(tmp_path)
    full = dense(matrix)
    glove = Glove(matrix, GloveConfig(size=7, learning_rate=0.1, x_max=11.0, alpha=0.6), seed=3)
    order = np.random.default_rng(3)
    sides = [[s.values[:, :7].clone(), s.values[:, b].clone()] for s, b in ((glove.words, 7), (glove.contexts, 8))]
    squares = [[torch.zeros_like(t) for t in side] for side in sides]
    cells = total = 0.0
    for block in order.permutation(matrix.blocks):
        here = torch.arange(int(block), matrix.words, matrix.blocks)
        part = full[:, here]
        for learning, other in ((0, 1), (1, 0)):
            vectors, biases = (t.clone().requires_grad_() for t in sides[learning])
            products = vectors @ sides[other][0][here].T + biases[:, None] + sides[other][1][here]
            weights = torch.where(part > 0, (part / 11.0).clamp(max=1.0) ** 0.6, 0.0)
            loss = (weights * (products - part.clamp(min=1e-9).log()) ** 2).sum() / 2
            loss.backward()
            total += loss.item() / 2
            for tensor, square, grad in zip(
                sides[learning], squares[learning], (vectors.grad, biases.grad), strict=True
            ):
                square += grad**2
                tensor -= 0.1 * grad / (square.sqrt() + 1e-8)
        cells += float((part > 0).sum())
    *_, last = glove.epochs(1)
    assert last.share == 1
    # the program's loss has each cell's error squared once for each side, halved
    assert last.loss == pytest.approx(2 * total / cells, rel=1e-4)
    np.testing.assert_allclose(glove.vectors, (sides[0][0] + sides[1][0]).numpy(), atol=2e-4)
    assert (glove.words.values[:, 8] == 1).all()
    assert (glove.contexts.values[:, 7] == 1).all()


def test_the_loss_falls_and_topics_come_together(tmp_path: Path) -> None:
    text, matrix = counted(tmp_path)
    glove = Glove(matrix, GloveConfig(size=5, learning_rate=0.1), seed=1)
    losses = [epoch.loss for epoch in glove.epochs(25) if epoch.share * 25 % 1 < 1e-9]
    assert losses[-1] < 0.2 * losses[0]
    vectors = WordVectors(text.words, glove.vectors)
    for topic in ({*ANIMALS, *OF_ANIMALS}, {*TOOLS, *OF_TOOLS}):
        for word in topic:
            near = {other for other, _ in vectors.similar(word, 5)}
            assert near <= topic, (word, near)


def test_a_seed_repeats_to_the_bit(tmp_path: Path) -> None:
    _, matrix = counted(tmp_path)

    def trained(seed: int) -> np.ndarray:
        glove = Glove(matrix, GloveConfig(size=5, learning_rate=0.1), seed=seed)
        assert len(list(glove.epochs(2))) == 2 * matrix.blocks
        return glove.vectors

    assert np.array_equal(trained(2), trained(2))
    assert not np.array_equal(trained(2), trained(3))
