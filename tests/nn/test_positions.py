"""Positions against the formulas and the peer."""

import math

import pytest
import torch
from torch import nn

from homespun.errors import UserError
from homespun.nn.positions import AxialPositions, LearnedPositions, SinusoidalPositions


def test_sinusoidal_positions_are_the_formula() -> None:
    size = 14
    table = SinusoidalPositions(101, size)(None, 101)[0]
    for place in (0, 1, 2, 50, 100):
        for pair in range(size // 2):
            angle = place / 10000 ** (2 * pair / size)
            assert math.isclose(table[place, 2 * pair], math.sin(angle), abs_tol=1e-5)
            assert math.isclose(table[place, 2 * pair + 1], math.cos(angle), abs_tol=1e-5)


def test_ascending_frequencies_are_the_same_pairs_in_reverse_order() -> None:
    descending, ascending = (SinusoidalPositions(9, 6, ascending=ascending).table for ascending in (False, True))
    torch.testing.assert_close(ascending, descending[:, [4, 5, 2, 3, 0, 1]])


@pytest.mark.parametrize(
    "positions",
    [
        LearnedPositions(13, 6),
        LearnedPositions(13, 6, offset=2),
        SinusoidalPositions(13, 6),
        AxialPositions(13, 6, shape=(5, 3), sizes=(1, 5)),
    ],
)
def test_counted_positions_are_those_given(positions: nn.Module) -> None:
    torch.testing.assert_close(positions(None, 11)[0], positions(torch.arange(11)[None], 11)[0])
    given = torch.tensor([[0, 1, 2, 0, 1], [4, 3, 2, 1, 0]])
    assert positions(given, 5).shape == (2, 5, 6)
    torch.testing.assert_close(positions(given, 5)[0, 3:], positions(None, 2)[0])


@pytest.mark.parametrize(
    "positions",
    [LearnedPositions(13, 6), SinusoidalPositions(13, 6), AxialPositions(13, 6, shape=(5, 3), sizes=(1, 5))],
)
def test_positions_end(positions: nn.Module) -> None:
    assert positions(None, 13).shape == (1, 13, 6)
    with pytest.raises(UserError, match=r" 14 tokens .*max_position_embeddings=13"):
        positions(None, 14)


def test_learned_positions_skip_the_offset() -> None:
    positions = LearnedPositions(13, 6, offset=2)
    assert positions.embedding.weight.shape == (15, 6)
    torch.testing.assert_close(positions(None, 3)[0], positions.embedding.weight[2:5])


@pytest.mark.parametrize("length", [1, 4, 29, 35])
def test_axial_positions_are_those_of_transformers(length: int) -> None:
    reformer = pytest.importorskip("transformers.models.reformer")
    config = reformer.ReformerConfig(
        axial_pos_shape=(7, 5), axial_pos_embds_dim=(3, 8), hidden_size=11, max_position_embeddings=35
    )
    theirs = reformer.modeling_reformer.AxialPositionEmbeddings(config).eval()
    ours = AxialPositions(35, 11, shape=(7, 5), sizes=(3, 8))
    with torch.no_grad():
        for part, weight in zip((ours.row, ours.column), theirs.weights, strict=True):
            weight.copy_(part.weight.view_as(weight))
    ids = torch.randint(35, (2, length), generator=torch.Generator().manual_seed(1))
    assert torch.equal(ours(ids, length), theirs(ids))
    assert torch.equal(ours(None, length), theirs(torch.arange(length)[None]))


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [
        ((4, 3), (2, 5), r"shape=\[4, 3\] .*max_position_embeddings=13.*shape=\[5, 3\]"),
        ((5, 3), (2, 4), r"sizes=\[2, 4\] .*=7.* 6; .*sizes=\[2, 5\]"),
        ((5, 3), (9, 4), r"sizes=\[9, 4\] .*=7.* 13; .*sizes=\[6, 1\]"),
    ],
)
def test_axial_positions_that_do_not_fit(shape: tuple[int, int], sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        AxialPositions(13, 7, shape=shape, sizes=sizes)
