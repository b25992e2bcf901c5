"""Disentangled attention: separate scores for content and position (He et al. 2021, DeBERTa, section 3.1)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal, cast

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from homespun.attention.full import attend
from homespun.attention.multi_head import AttentionSettings, AttentionSpec, inner_size, split_heads
from homespun.errors import UserError
from homespun.nn.layers import Dropout
from homespun.nn.masks import Mask, additive_mask, zero_fully_masked
from homespun.nn.patterns import FULL, Sparse
from homespun.nn.torch_private import FunctionContext


def log_buckets(distance: Tensor, *, buckets: int, maximum: int) -> Tensor:
    """Compute the signed bucket of each distance: exact up to ``buckets / 2``, then logarithmically wider buckets.

    Args:
        distance: int64 query position minus key position, any shape.
        buckets: number of buckets on each side (DeBERTa V2: 256).
        maximum: distance at which the last bucket is reached.
    """
    near = buckets // 2
    size = distance.abs().clamp(min=near)
    # float32, as in training of the released checkpoints: the edges of buckets depend on rounding
    share = torch.log(size / near) / torch.log(torch.tensor((maximum - 1) / near, device=distance.device))
    far = torch.ceil(share * (near - 1)).long() + near
    return torch.where(distance.abs() <= near, distance, far * distance.sign())


class RelativeEmbeddings(nn.Module):
    """Learned embedding of each distance between two tokens, shared by all layers.

    Args:
        hidden_size: width of an embedding.
        max_position_embeddings: maximum sequence length.
        span: distances or buckets on each side; greater distances share the last.
        maximum: distance at which the last bucket is reached; 0: no buckets.
        norm: norm of the embeddings.
    """

    rows: Tensor

    def __init__(
        self, hidden_size: int, max_position_embeddings: int, *, span: int, maximum: int, norm: nn.Module
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * span, hidden_size)
        self.norm = norm
        self.max_position_embeddings = max_position_embeddings
        distance = torch.arange(-max_position_embeddings, max_position_embeddings, device="cpu")
        bucket = log_buckets(distance, buckets=span, maximum=maximum) if maximum else distance
        rows = (bucket + span).clamp(0, 2 * span - 1)
        self._rows: list[int] = rows.tolist()
        self.register_buffer("rows", rows.to(self.embedding.weight.device), persistent=False)

    def forward(self, queries: int, keys: int, start: int) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the distances between queries from ``start`` and keys from 0.

        Returns:
            (distinct, hidden) embeddings and (queries + keys,) int64 indices into them, for distances from
            ``start - keys``.
        """
        first = self.max_position_embeddings + start - keys
        last = first + queries + keys
        if torch.compiler.is_compiling():  # all embeddings, so that one graph serves every length
            vectors: Tensor = self.norm(self.embedding.weight)
            return vectors, self.rows[first:last]
        low, high = self._rows[first], self._rows[last - 1]  # rows are sorted
        vectors = self.norm(self.embedding.weight[low : high + 1])
        return vectors, self.rows[first:last] - low


class AddedScores(nn.Module):
    """Attention ``softmax(scale * query key^T + added) value``; zeros for queries that see no key.

    Args:
        scale: factor of the products.
        dropout: dropout probability of the attention probabilities, in training.
    """

    sparse: Sparse = FULL

    def __init__(self, *, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout

    def forward(self, query: Tensor, key: Tensor, added: Tensor, value: Tensor, mask: Mask) -> Tensor:
        """Return (batch, heads, queries, head_dim); ``added`` is (batch, heads, queries, keys)."""
        table = mask.dense(self.sparse, query.shape[-2], key.shape[-2], query.device)
        dropout = self.dropout if self.training else 0.0
        if table is not None:
            added = added + additive_mask(table, added.dtype)
        values = attend(query, key, value, table=added, dropout=dropout, scale=self.scale)
        return zero_fully_masked(values, table)

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"


class DisentangledAttention(nn.Module):
    """Attention with scores of content and relative position (He et al. 2021, equations 2 to 4).

    ``softmax((content to content + content to position + position to content) / sqrt(terms * head_size)) value``

    Args:
        relative: `RelativeEmbeddings`, shared by all layers.
        pos_att_type: ``c2p`` (query content, key distance), ``p2c`` (query distance, key content) or both.
        share_att_key: project distances by the projections of the content (V2); otherwise by separate ones.
        key_bias: projections of keys have biases if ``bias`` is set; False in V1.
        relative_dropout: dropout module of the distance embeddings.

    Other arguments as in `MultiHeadAttention`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        relative: RelativeEmbeddings,
        *,
        pos_att_type: tuple[str, ...] = ("c2p", "p2c"),
        share_att_key: bool = False,
        head_size: int = 0,
        bias: bool = True,
        key_bias: bool = True,
        scaled: bool = True,
        dropout: float = 0.0,
        relative_dropout: nn.Module,
    ) -> None:
        super().__init__()
        self.num_attention_heads = num_attention_heads
        width = inner_size(hidden_size, num_attention_heads, head_size)
        self.query = nn.Linear(hidden_size, width, bias=bias)
        self.key = nn.Linear(hidden_size, width, bias=bias and key_bias)
        self.value = nn.Linear(hidden_size, width, bias=bias)
        self.output = nn.Linear(width, hidden_size, bias=bias)
        self.relative = relative
        self.relative_dropout = relative_dropout
        self.position_key = self.position_query = None
        if "c2p" in pos_att_type:
            self.position_key = self.key if share_att_key else nn.Linear(hidden_size, width, bias=bias and key_bias)
        if "p2c" in pos_att_type:
            self.position_query = self.query if share_att_key else nn.Linear(hidden_size, width, bias=bias)
        terms = 1 + len(pos_att_type)
        self.scale = 1 / math.sqrt(width // num_attention_heads * terms) if scaled else 1.0
        self.kernel = AddedScores(scale=self.scale, dropout=dropout)

    def forward(self, hidden: Tensor, mask: Mask) -> Tensor:
        """Transform (batch, seq, hidden); keys and values are projected from ``mask.context`` if given."""
        context = hidden if mask.context is None else mask.context
        query, key, value = (
            split_heads(part(vectors), self.num_attention_heads)
            for part, vectors in ((self.query, hidden), (self.key, context), (self.value, context))
        )
        if mask.cache is not None:
            key, value = mask.cache.extend(self, key, value)
        added = self._position_scores(query, key, mask.start)
        values: Tensor = self.kernel(query, key, added, value, mask)  # (batch, heads, seq, head_dim)
        return self.output(values.transpose(1, 2).flatten(2))  # (batch, seq, hidden)

    def _position_scores(self, query: Tensor, key: Tensor, start: int) -> Tensor:
        """Return (batch, heads, queries, keys) scaled scores of content to position and position to content."""
        queries, keys = query.shape[-2], key.shape[-2]
        vectors, index = self.relative(queries, keys, start)
        vectors = self.relative_dropout(vectors)
        terms = []
        if self.position_key is not None:  # distances decrease along the keys
            against = self._at(self.position_key(vectors), index.flip(0))
            terms.append(skewed(query @ against, first=queries - 1, length=keys))
        if self.position_query is not None:  # and increase along the queries
            against = self._at(self.position_query(vectors), index)
            terms.append(skewed(key @ against, first=keys, length=queries).transpose(-1, -2))
        return terms[0] + terms[1] if len(terms) == 2 else terms[0]

    def _at(self, projected: Tensor, index: Tensor) -> Tensor:
        """Map (distinct, width) to (heads, head_size, distances), scaled."""
        heads = (projected * self.scale).view(projected.shape[0], self.num_attention_heads, -1)
        return heads.index_select(0, index).permute(1, 2, 0)


def skewed(scores: Tensor, *, first: int, length: int) -> Tensor:
    """View (..., rows, length + rows) scores of distances as (..., rows, length) scores of tokens.

    Row ``i`` starts at column ``first - i``.
    """
    return _Skew.apply(scores, first, length)


def _view(scores: Tensor, first: int, length: int) -> Tensor:
    rows, width = scores.shape[-2:]
    # rows of one column less shift each row by one column
    flat = scores.flatten(-2)[..., first : first + rows * (width - 1)]
    return flat.view(*scores.shape[:-2], rows, width - 1)[..., :length]


class _Skew(torch.autograd.Function):
    """`_view` with one write of the gradient; autograd would fill and copy it for each of the two slices."""

    @staticmethod
    def forward(ctx: FunctionContext, scores: Tensor, first: int, length: int) -> Tensor:
        ctx.shape, ctx.first, ctx.length = scores.shape, first, length
        return _view(scores, first, length)

    @staticmethod
    def backward(ctx: FunctionContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        total = gradient.new_zeros(ctx.shape)
        _view(total, ctx.first, ctx.length).copy_(gradient)
        return total, None, None


def check_buckets(buckets: int, maximum: int, longest: int) -> None:
    """Raise `UserError` if distances up to ``longest - 1`` exceed both the exact buckets and ``maximum``."""
    near = buckets // 2
    if longest - 1 > near and maximum - 1 <= near:
        raise UserError(
            f"max_relative_positions={maximum} must be at least {near + 2} with position_buckets={buckets}; increase "
            f"it or decrease position_buckets"
        )


_MAX_LENGTH = 2**20  # rows of the table of distances


def _in_order(terms: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(terms)) < len(terms):
        raise ValueError(f"pos_att_type={[*terms]} must not repeat a term; remove one")
    return tuple(sorted(terms))


class DisentangledAttentionConfig(AttentionSettings):
    """Config of full attention with scores of content and relative position (He et al. 2021).

    DeBERTa V1: ``key_bias: false``. V2 and V3: ``position_buckets: 256``, ``share_att_key: true``, ``norm_rel_ebd:
    layer_norm``. Time and memory are quadratic in the sequence length.
    """

    kind: Literal["disentangled"] = "disentangled"
    pos_att_type: Annotated[tuple[Literal["c2p", "p2c"], ...], Field(min_length=1), AfterValidator(_in_order)] = Field(
        default=("c2p", "p2c"), description="content to position, position to content"
    )
    max_relative_positions: int = Field(
        default=0, ge=0, description="greatest distance with its own embedding; 0: max_position_embeddings"
    )
    position_buckets: int = Field(
        default=0, ge=0, description="logarithmic buckets of distances on each side; 0: one embedding a distance"
    )
    share_att_key: bool = Field(default=False, description="project distances by the projections of the content")
    norm_rel_ebd: Literal["none", "layer_norm"] = Field(default="none", description="norm of distance embeddings")
    key_bias: bool = Field(default=True, description="projections of keys have biases (not in V1)")
    is_positional: ClassVar[bool] = True
    reads_context: ClassVar[bool] = True

    def fixed_length_setting(self, max_position_embeddings: int) -> str | None:
        return f"model.attention.max_relative_positions={self.max_relative_positions or max_position_embeddings}"

    def build(self, spec: AttentionSpec) -> nn.Module:
        spec.check_own_projections("disentangled")
        return DisentangledAttention(
            spec.hidden_size,
            spec.num_attention_heads,
            self._relative(spec),
            pos_att_type=self.pos_att_type,
            share_att_key=self.share_att_key,
            head_size=spec.head_size,
            bias=spec.bias,
            key_bias=self.key_bias,
            scaled=spec.scaled,
            dropout=spec.dropout,
            relative_dropout=Dropout(spec.hidden_dropout),
        )

    def _relative(self, spec: AttentionSpec) -> RelativeEmbeddings:
        if spec.shared_with is not None:
            return cast(RelativeEmbeddings, spec.shared_with.get_submodule("relative"))
        longest = spec.max_position_embeddings
        if longest > _MAX_LENGTH:
            raise UserError(
                f"max_position_embeddings={longest} must be at most {_MAX_LENGTH} for disentangled attention"
            )
        maximum = self.max_relative_positions or longest
        if self.position_buckets == 1:
            raise UserError("position_buckets=1 must be at least 2, or 0 for one embedding a distance")
        if self.position_buckets:
            check_buckets(self.position_buckets, maximum, longest)
        norm = nn.LayerNorm(spec.hidden_size, eps=spec.layer_norm_eps)
        return RelativeEmbeddings(
            spec.hidden_size,
            longest,
            span=self.position_buckets or maximum,
            maximum=maximum if self.position_buckets else 0,
            norm=norm if self.norm_rel_ebd == "layer_norm" else nn.Identity(),
        )
