"""Sizes of attentions against the longest input: clamped or refused."""

from typing import Any

import pytest
import torch
from small_models import SIZES, kept, some_ids

from homespun.errors import UserError
from homespun.models.backbone import Encoder
from homespun.models.encoder import EncoderConfig

MAXIMUM, HUGE = 37, 10**30


def build(attention: dict[str, Any], **fields: Any) -> Encoder:
    torch.manual_seed(1)
    tree = SIZES | {"max_position_embeddings": MAXIMUM, "attention": attention} | fields
    encoder: Encoder = EncoderConfig.model_validate(tree).build()
    return encoder.double().eval()


def sparse(*patterns: dict[str, Any], **everywhere: int) -> dict[str, Any]:
    return {"kind": "sparse", "patterns": list(patterns)} | ({"global_tokens": everywhere} if everywhere else {})


BLOCKS = {"kind": "blocks", "size": 3}
DILATED = {"kind": "window", "dilation": [[1, 3], 2]}
LSH = {"kind": "lsh", "num_hashes": 3, "num_chunks_after": 1}


@pytest.mark.parametrize(
    ("longer", "complete"),
    [
        (sparse({"kind": "window", "radius": HUGE}), {"kind": "full"}),
        (sparse(DILATED | {"radius": HUGE}), sparse(DILATED | {"radius": MAXIMUM})),
        (sparse({"kind": "band", "width": HUGE}), sparse({"kind": "band", "width": MAXIMUM})),
        (sparse({"kind": "blocks", "size": HUGE}), {"kind": "full"}),
        (sparse(BLOCKS | {"before": HUGE, "after": HUGE}), {"kind": "full"}),
        (sparse(BLOCKS, first=0, block=HUGE), {"kind": "full"}),
        (sparse(BLOCKS, {"kind": "random_blocks", "size": HUGE, "count": HUGE}), sparse(BLOCKS)),
        (LSH | {"chunk_length": HUGE}, LSH | {"chunk_length": MAXIMUM}),
        ({"kind": "lsh", "chunk_length": HUGE}, {"kind": "lsh", "chunk_length": MAXIMUM}),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_what_is_longer_than_the_text_is_all_of_it(
    longer: dict[str, Any], complete: dict[str, Any], causal: bool
) -> None:
    ids = some_ids(3, 29)
    keep = kept(29, 29, 17, 1)
    found, expected = (build(kind, causal=causal)(ids, attention_mask=keep) for kind in (longer, complete))
    torch.testing.assert_close(found[keep], expected[keep])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("after", [0, 1])
def test_a_chunk_longer_than_the_text_is_full_attention(causal: bool, after: int) -> None:
    ids = some_ids(2, 29)
    local = build({"kind": "local", "chunk_length": HUGE, "num_chunks_after": after}, causal=causal)
    full = build({"kind": "full"}, causal=causal, attention_bias=False)
    full.load_state_dict(local.state_dict())
    torch.testing.assert_close(local(ids), full(ids))


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        (sparse({"kind": "window", "dilation": 9999999999999}), r"dilation=9999999999999 .*=37"),
        (sparse({"kind": "window", "dilation": [[2, 37], 1]}), "dilation=37 "),
        (sparse({"kind": "permuted_blocks", "blocks": 38}), r"blocks=38 .* 37"),
        (sparse({"kind": "random_blocks", "size": 19}), "neighbours.* 18 "),
        (sparse({"kind": "random_blocks", "size": HUGE}), "random_blocks "),
        (sparse({"kind": "window"}, first=38), r"global_tokens\.first=38 .* 37"),
        (sparse({"kind": "window"}, positions=[3, 37, 99]), r"positions=\[37, 99\] .*=37.* 36"),
        ({"kind": "local", "chunk_length": 13, "num_chunks_before": 4}, "3 chunks .*=37.* 3"),
        ({"kind": "lsh", "chunk_length": 13, "num_chunks_after": 4}, "num_chunks_after=4.* 3"),
    ],
)
def test_what_means_nothing_is_refused(attention: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        build(attention)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "attention",
    [
        sparse({"kind": "window", "dilation": [[2, 36], 1]}),
        sparse({"kind": "permuted_blocks", "blocks": 37}),
        sparse({"kind": "random_blocks", "size": 18}),
        sparse({"kind": "random_blocks", "size": 19}, first=1),
        sparse({"kind": "window"}, first=37),
        sparse({"kind": "window"}, positions=[0, 36]),
        {"kind": "local", "chunk_length": 13, "num_chunks_before": 3},
        {"kind": "lsh", "chunk_length": 37},
    ],
)
def test_what_just_fits_is_built(attention: dict[str, Any]) -> None:
    for length in (1, MAXIMUM):
        assert build(attention)(some_ids(1, length)).isfinite().all()
