"""Cached features of a frozen encoder equal computed ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from homespun.data.labels import Labels
from homespun.models.config import ModelConfig
from homespun.models.encoder import EncoderConfig
from homespun.models.feature_cache import CachedEncoder, FeatureCache
from homespun.models.heads import last_layer
from homespun.models.sequence_heads import MeanHeadConfig
from homespun.tasks.classification import Classification, ClassificationLoss

HIDDEN = 14
LABELS = Labels(("a", "b", "c"))
CONFIG = ModelConfig(
    backbone=EncoderConfig(
        vocab_size=53,
        max_position_embeddings=31,
        hidden_size=HIDDEN,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=17,
    )
)


class Counting:
    """A reader that tells how many sequences were computed."""

    def __init__(self) -> None:
        self.sequences = 0

    def __call__(self, backbone: Any, input_ids: Tensor, **context: Tensor) -> Tensor:
        self.sequences += len(input_ids)
        return last_layer(backbone, input_ids, **context)


def frozen() -> Any:
    torch.manual_seed(1)
    return CONFIG.build().backbone.eval().requires_grad_(False)


def batch(rows: int = 5, seed: int = 3) -> tuple[Tensor, Tensor]:
    ids = torch.randint(5, 53, (rows, 11), generator=torch.Generator().manual_seed(seed))
    return ids, torch.arange(11)[None] < torch.tensor([11, 7, 2, 5, 3])[:rows, None]


def remembered(
    folder: Path, backbone: Any, *, limit: int = 10**6, width: int = HIDDEN
) -> tuple[CachedEncoder, Counting]:
    reader = Counting()
    return CachedEncoder.of(reader, backbone, CONFIG.backbone, folder, width=width, limit=limit), reader


def test_it_is_what_the_encoder_computes_and_is_computed_once(tmp_path: Path) -> None:
    backbone, (ids, keep) = frozen(), batch()
    expected = backbone(ids, attention_mask=keep)
    reads, reader = remembered(tmp_path, backbone)
    first = reads(backbone, ids, attention_mask=keep)
    assert first.dtype == torch.float32
    torch.testing.assert_close(first[keep], expected[keep], atol=2e-3, rtol=1e-3)  # float16: 11 bits
    assert (first[~keep] == 0).all()
    order = torch.tensor([3, 0, 4])
    again = reads(backbone, ids[order, :11], attention_mask=keep[order])
    assert (again == first[order]).all()
    assert reader.sequences == 5
    # a shorter padding is the same sequence, and one token more is another
    assert (reads(backbone, ids[1:3, :7], attention_mask=keep[1:3, :7]) == first[1:3, :7]).all()
    assert reader.sequences == 5
    reads(backbone, ids[4:, :4])
    assert reader.sequences == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cached", [True, False])
def test_numbers_beyond_float16_stay_finite(tmp_path: Path, cached: bool, dtype: torch.dtype) -> None:
    """Layers of a pre-norm stack have no norm, and an infinite feature would make the loss NaN."""

    def reader(backbone: Any, input_ids: Tensor, **context: Tensor) -> Tensor:
        return (1e5 * last_layer(backbone, input_ids, **context)).to(dtype)

    backbone, (ids, _) = frozen(), batch()
    reads = CachedEncoder.of(reader, backbone, CONFIG.backbone, tmp_path, width=HIDDEN, limit=10**6)
    context = {} if cached else {"position_ids": torch.arange(11).expand(5, 11)}  # only plain inputs are cached
    vectors = reads(backbone, ids, **context)
    assert vectors.abs().max() == 65504
    assert len(reads.store) == 5 * cached


def test_another_process_reads_what_one_has_written_and_another_encoder_does_not(tmp_path: Path) -> None:
    backbone, (ids, keep) = frozen(), batch()
    first = remembered(tmp_path, backbone)[0](backbone, ids, attention_mask=keep)
    reads, reader = remembered(tmp_path, backbone)
    assert (reads(backbone, ids, attention_mask=keep) == first).all()
    assert reader.sequences == 0
    next(backbone.parameters()).mul_(1.01)
    reads, reader = remembered(tmp_path, backbone)
    assert (reads(backbone, ids, attention_mask=keep) != first).any()
    assert reader.sequences == 5


def test_segments_and_dtypes_have_their_own_keys(tmp_path: Path) -> None:
    backbone, (ids, _) = frozen(), batch()
    reads, reader = remembered(tmp_path, backbone)
    plain = reads(backbone, ids)
    assert (reads(backbone, ids, token_type_ids=torch.zeros_like(ids)) == plain).all()
    assert reader.sequences == 5
    assert (reads(backbone, ids, token_type_ids=torch.ones_like(ids)) != plain).any()
    assert reader.sequences == 10
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (reads(backbone, ids) != plain).any()
    assert reader.sequences == 15


def test_two_stores_may_write_into_one_folder_at_a_time(tmp_path: Path) -> None:
    stores = [FeatureCache(tmp_path, width=3, limit=10**6) for _ in range(2)]
    for number in range(10):
        stores[number % 2].write(bytes([number] * 16), np.full((number, 3), number, np.float16))
    found = FeatureCache(tmp_path, width=3, limit=10**6)
    assert len(found) == 10
    for number in range(10):
        vectors = found.read(bytes([number] * 16))
        assert vectors.shape == (number, 3)
        assert (vectors == number).all()


@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_incomplete_vectors_are_computed_again(tmp_path: Path, damage: str) -> None:
    store = FeatureCache(tmp_path, width=3, limit=10**6)
    for number in (1, 2):
        store.write(bytes([number] * 16), np.full((5, 3), number, np.float16))
    with (tmp_path / "vectors").open("r+b") as file:
        if damage == "cut":
            file.truncate(5 * 3 * 2 + 7)
        else:
            file.seek(5 * 3 * 2)
            file.write(bytes(30))
    with (tmp_path / "index").open("ab") as file:
        file.write(b"half a record")
    again = FeatureCache(tmp_path, width=3, limit=10**6)
    assert again.read(bytes([1] * 16)) is not None
    assert again.read(bytes([2] * 16)) is None
    again.write(bytes([2] * 16), np.full((5, 3), 2, np.float16))
    again.write(bytes([3] * 16), np.full((4, 3), 3, np.float16))
    last = FeatureCache(tmp_path, width=3, limit=10**6)
    for number in (1, 2, 3):
        vectors = last.read(bytes([number] * 16))
        assert vectors is not None
        assert (vectors == number).all()


def test_no_more_is_kept_than_the_limit_allows_nor_what_is_no_number(tmp_path: Path) -> None:
    store = FeatureCache(tmp_path, width=3, limit=100)
    for number, value in enumerate([1.0, float("inf"), float("nan"), 2.0, 3.0, 4.0]):
        store.write(bytes([number] * 16), np.full((6, 3), value, np.float16))  # 36 bytes each
    assert len(store) == 2
    assert (tmp_path / "vectors").stat().st_size == 72
    backbone, (ids, keep) = frozen(), batch()
    reads, reader = remembered(tmp_path, backbone, limit=0)
    for _ in range(2):
        assert reads(backbone, ids, attention_mask=keep).isfinite().all()
    assert reader.sequences == 10


def test_only_a_frozen_encoder_is_remembered(tmp_path: Path) -> None:
    backbone, (ids, _) = frozen(), batch()
    reads, _ = remembered(tmp_path, backbone)
    for spoil in (lambda: backbone.train(), lambda: backbone.eval().requires_grad_(True)):
        spoil()
        with pytest.raises(ValueError, match="frozen backbone"):
            reads(backbone, ids)
    with pytest.raises(ValidationError, match="frozen"):
        Classification(cache=str(tmp_path))


def trained(**fields: Any) -> ClassificationLoss:
    torch.manual_seed(2)
    model = CONFIG.build()
    return Classification(head=MeanHeadConfig(), frozen=True, **fields).build(model, CONFIG, LABELS)


@pytest.mark.parametrize("last_layers", [1, 2])
def test_a_head_learns_the_same_from_it(tmp_path: Path, last_layers: int) -> None:
    ids, keep = batch()
    module = trained(cache=str(tmp_path), cache_size="2M", last_layers=last_layers)
    bare = trained(last_layers=last_layers)
    assert isinstance(module.model.reader, CachedEncoder)
    gradients = []
    for objective in (bare, module, module):
        objective.eval()
        objective.zero_grad()
        objective.model(ids, keep).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in objective.model.head.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0], atol=3e-3, rtol=3e-3)
    for first, second in zip(gradients[1], gradients[2], strict=True):
        assert (first == second).all()
    product = module.export_model()[0]
    assert product.reader == bare.model.reader
    assert product.state_dict().keys() == bare.model.state_dict().keys()
