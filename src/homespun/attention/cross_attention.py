"""Attention from a decoder to what its encoder has read (Vaswani et al. 2017, section 3.2.3)."""

from __future__ import annotations

from torch import Tensor, nn

from homespun.attention.multi_head import inner_size, split_heads
from homespun.nn.masks import Mask


class CrossAttention(nn.Module):
    """Queries from the stream, keys and values from `Mask.source`; with a cache those are projected once.

    Args:
        hidden_size: width of the stream.
        source_size: width of the encoder's vectors.
        num_attention_heads: heads.
        kernel: `homespun.nn.attention.Kernel`.
        head_size: width of a head; 0: ``hidden_size / num_attention_heads``.
        bias: whether the projections have biases.

    Raises:
        UserError: ``hidden_size`` is not a multiple of ``num_attention_heads``, and no ``head_size`` is given.
        ValueError: in `forward`, there is no source.
    """

    def __init__(
        self,
        hidden_size: int,
        source_size: int,
        num_attention_heads: int,
        kernel: nn.Module,
        *,
        head_size: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_attention_heads = num_attention_heads
        width = inner_size(hidden_size, num_attention_heads, head_size)
        self.query = nn.Linear(hidden_size, width, bias=bias)
        self.key = nn.Linear(source_size, width, bias=bias)
        self.value = nn.Linear(source_size, width, bias=bias)
        self.output = nn.Linear(width, hidden_size, bias=bias)
        self.kernel = kernel

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """(batch, seq, hidden) -> (batch, seq, hidden); of streams, (batch, streams, seq, hidden), each looks.

        There may be several rows to a row of the source, beside each other: the beams of a text. The keys are then not
        copied, the rows ask together.
        """
        source = mask.source
        if source is None:
            raise ValueError("cross-attention without a source: the mask of a decoder has one")
        # (batch, seq, width), or (sources, beams * streams * seq, width)
        asking = self.query(hidden).reshape(source.hidden.shape[0], -1, self.query.out_features)
        query = split_heads(asking, self.num_attention_heads)

        def project() -> tuple[Tensor, Tensor]:
            key, value = (split_heads(part(source.hidden), self.num_attention_heads) for part in (self.key, self.value))
            return key, value

        key, value = project() if mask.cache is None else mask.cache.once(self, project)
        values: Tensor = self.kernel(query, key, value, source.mask)  # (batch, heads, seq, head_dim)
        mixed: Tensor = self.output(values.transpose(1, 2).flatten(2))  # (sources, beams * streams * seq, hidden)
        return mixed.view_as(hidden)
