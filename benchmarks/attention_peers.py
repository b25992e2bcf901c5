"""Peers of the attention benchmark with default settings: modules from ids (or vectors) to hidden states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Peer = tuple[nn.Module, Callable[[Tensor], Tensor]]
VOCAB_SIZE, WINDOW, BLOCK = 1000, 512, 64


class Sizes(Protocol):
    """Sizes of the model that a peer is compared with."""

    @property
    def length(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...


def _full(sizes: Sizes) -> Peer:
    from transformers import BertConfig, BertModel

    return _transformers(BertModel(BertConfig(**_fields(sizes)), add_pooling_layer=False))


def _longformer(sizes: Sizes) -> Peer:
    from transformers import LongformerConfig, LongformerModel

    fields = _fields(sizes) | {"max_position_embeddings": sizes.length + 2}  # the first two are not for positions
    model = LongformerModel(LongformerConfig(attention_window=WINDOW, **fields), add_pooling_layer=False)

    def forward(ids: Tensor) -> Tensor:
        chosen = torch.zeros_like(ids)
        chosen[:, 0] = 1
        return model(input_ids=ids, global_attention_mask=chosen).last_hidden_state

    return model, forward


def _bigbird(sizes: Sizes) -> Peer:
    from transformers import BigBirdConfig, BigBirdModel

    config = BigBirdConfig(block_size=BLOCK, num_random_blocks=3, use_cache=False, **_fields(sizes))
    return _transformers(BigBirdModel(config, add_pooling_layer=False))


def _reformer(sizes: Sizes) -> Peer:
    from transformers import ReformerConfig, ReformerModel

    config = ReformerConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=sizes.hidden_size,
        attn_layers=["lsh"] * sizes.layers,
        num_attention_heads=sizes.heads,
        attention_head_size=sizes.hidden_size // sizes.heads,
        feed_forward_size=4 * sizes.hidden_size,
        lsh_attn_chunk_length=64,
        num_hashes=1,
        axial_pos_embds=False,
        max_position_embeddings=sizes.length,
        use_cache=False,
    )
    return _transformers(ReformerModel(config))


def _linformer(sizes: Sizes) -> Peer:
    from linformer import Linformer

    words = nn.Embedding(VOCAB_SIZE, sizes.hidden_size)
    layers = Linformer(
        dim=sizes.hidden_size, seq_len=sizes.length, depth=sizes.layers, k=min(256, sizes.length), heads=sizes.heads
    )
    model = nn.Sequential(words, layers)
    return model, model


def _performer(sizes: Sizes) -> Peer:
    from performer_pytorch import Performer

    words = nn.Embedding(VOCAB_SIZE, sizes.hidden_size)
    layers = Performer(
        dim=sizes.hidden_size,
        depth=sizes.layers,
        heads=sizes.heads,
        dim_head=sizes.hidden_size // sizes.heads,
        nb_features=256,
    )
    model = nn.Sequential(words, layers)
    return model, model


def _longformer_alone(sizes: Sizes) -> Peer:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    attention = LongformerSelfAttention(LongformerConfig(attention_window=[WINDOW], **_fields(sizes)), 0)

    def forward(hidden: Tensor) -> Tensor:
        chosen = torch.zeros(hidden.shape[:2], device=hidden.device)
        chosen[:, 0] = 10_000.0  # positive: a global token
        mixed: Tensor = attention(
            hidden,
            attention_mask=chosen,
            is_index_masked=chosen < 0,
            is_index_global_attn=chosen > 0,
            is_global_attn=True,
        )[0]
        return mixed

    return attention, forward


def _bigbird_alone(sizes: Sizes) -> Peer:
    from transformers import BigBirdConfig, BigBirdModel
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = BigBirdConfig(block_size=BLOCK, num_random_blocks=3, **_fields(sizes))
    attention = BigBirdBlockSparseAttention(config, seed=0)

    def forward(hidden: Tensor) -> Tensor:
        ones = torch.ones(hidden.shape[:2], device=hidden.device)
        blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(ones, BLOCK)
        return attention(hidden, band, rows, columns, blocked, blocked)[0]

    return attention, forward


def _transformers(model: Any) -> Peer:
    def forward(ids: Tensor) -> Tensor:
        return model(input_ids=ids).last_hidden_state

    return model, forward


def _fields(sizes: Sizes) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": sizes.hidden_size,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": 4 * sizes.hidden_size,
        "max_position_embeddings": sizes.length,
    }


PEERS: dict[str, Callable[[Sizes], Peer]] = {
    "full": _full,
    "longformer": _longformer,
    "bigbird": _bigbird,
    "reformer": _reformer,
    "linformer": _linformer,
    "performer": _performer,
}
ALONE: dict[str, Callable[[Sizes], Peer]] = {"longformer": _longformer_alone, "bigbird": _bigbird_alone}
