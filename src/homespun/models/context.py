"""Optional inputs of an encoder."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor


class Context(TypedDict, total=False):
    """Optional inputs of an encoder besides ``input_ids``."""

    attention_mask: Tensor | None
    """(batch, seq); nonzero takes part."""
    token_type_ids: Tensor | None
    """(batch, seq) int64 segments."""
    position_ids: Tensor | None
    """(batch, seq) int64; counted from 0 where not given."""
    documents: Tensor | None
    """(batch, seq) int64; tokens see those of the same number only."""
    global_attention_mask: Tensor | None
    """(batch, seq); nonzero sees all and is seen by all, where the attention has such tokens."""
