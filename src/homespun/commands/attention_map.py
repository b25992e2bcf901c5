"""Attention patterns of each layer, and the receptive field through depth, as arrays for plots.

The pattern of exact attention follows from its config; low-rank attention attends to all tokens. Other kernels are
measured: their output is linear in the values, so unit vectors as values give the attention matrix.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from homespun.models.encoder import EncoderConfig
from homespun.models.model import Model
from homespun.nn.masks import Mask
from homespun.nn.patterns import FULL, Sparse
from homespun.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
_CELLS = 128  # maximum number on a side of a panel


class MultiHead(Protocol):
    """Attention with projections, mostly around a kernel: ``(hidden, mask) -> hidden``."""

    output: nn.Linear

    def __call__(self, hidden: Tensor, mask: Mask) -> Tensor: ...


@dataclasses.dataclass(frozen=True)
class AttentionMap:
    """Attention pattern of one layer; lists have an entry for each head, or one if all heads are equal."""

    shares: list[float]  # of all pairs of tokens
    # a name of `homespun.report.attention.PARTS` -> (cells, cells) float, the share of the pairs in each cell
    parts: list[dict[str, np.ndarray]]
    union: np.ndarray  # (length, length / 8) uint8, packed bits: pairs that any head sees
    through: str  # through what low-rank attention sees everything; empty for other attention
    order: str = ""  # of the tokens in `parts`, if they are not in the order of the text


def build_attentions(config: EncoderConfig) -> list[MultiHead]:
    """Build the attention of each layer of a model with this config."""
    # what a token sees needs no vocabulary and no feed-forward
    small = {"vocab_size": config.pad_token_id + 1, "intermediate_size": 1}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.seed)
        layers: Any = config.model_copy(update=small).build().eval().layers
    return [layer.attention.sublayer for layer in layers]


def compute_attention_map(attention: MultiHead, length: int, config: EncoderConfig) -> AttentionMap:
    """Compute the attention pattern of one layer for a text of ``length`` tokens."""
    sparse, through = _sparse(attention), _through(attention, length)
    if sparse is not None or through:
        parts = _exact(sparse or FULL, length, causal=config.causal, full="compressed" if through else "full")
        return _pooled(parts, length, through)
    table = probe_attention(attention, length, config)
    if not hasattr(_kernel(attention), "hash_order"):
        return _pooled(_pieces(table, "near"), length)
    # in the order of the text it would be noise
    order = _order_by_bucket(attention, length, config)[..., None]
    sorted_table = table.gather(1, order.expand_as(table)).gather(2, order.mT.expand_as(table))
    seen = _pooled(_pieces(sorted_table, "content"), length)
    union = np.packbits(table.any(0).numpy(), axis=1)
    return dataclasses.replace(seen, union=union, order="by bucket")


def receptive_field(unions: Sequence[np.ndarray], length: int) -> tuple[list[float], np.ndarray]:
    """Compute the receptive field after each layer; the residual connection includes the token itself.

    Args:
        unions: for each layer (length, length / 8) uint8, packed bits: which keys each query sees.

    Returns:
        The share of pairs reached after each layer, and (length, length) uint8: after how many; 0 for never.
    """
    own = np.packbits(np.eye(length, dtype=bool), axis=1)
    before, depth, reached = own, np.zeros((length, length), np.uint8), []
    for number, union in enumerate(unions, start=1):
        after = np.empty_like(before)
        for query, row in enumerate(union | own):
            keys = np.flatnonzero(np.unpackbits(row, count=length))
            after[query] = np.bitwise_or.reduce(before[keys], axis=0)
            here = np.unpackbits(after[query], count=length).astype(bool)
            depth[query][here & (depth[query] == 0)] = number
        before = after
        reached.append(float((depth > 0).mean()))
    return reached, depth


def needs_probe(attention: MultiHead) -> bool:
    """True if the pattern is measured with random inputs."""
    return _sparse(attention) is None and not _through(attention, 1)


def shows_structure(attention: MultiHead, length: int, config: EncoderConfig) -> bool:
    """True if a token attends to at most a third of a text of this length, or if the attention is full by design."""
    kernel, sparse = _kernel(attention), _sparse(attention)
    if hasattr(kernel, "hash_order"):  # chunks are the structure of hashed attention
        return bool(length >= 8 * kernel.chunks.length)
    if needs_probe(attention):
        table = probe_attention(attention, length, config)
    elif sparse is None or not sparse.patterns:
        return True
    else:
        queries = torch.linspace(0, length - 1, 64).long()
        allowed = sparse.allowed(queries[None, :, None], torch.arange(length)[None, None, :])
        assert allowed is not None
        table = allowed
    shares = table.float().mean(-1)  # (heads, queries)
    return bool((shares.mean(-1) <= 1 / 3).all() and (shares > 0).all())


def cell_size(length: int) -> int:
    """Width and height of a plotted cell in tokens."""
    return -(-length // _CELLS)


def pool_depth(depth: np.ndarray) -> np.ndarray:
    """(length, length) uint8 -> (cells, cells): smallest depth in each cell; 0: never reached."""
    starts = np.arange(0, len(depth), cell_size(len(depth)))
    never = np.where(depth == 0, 255, depth)
    least = np.minimum.reduceat(np.minimum.reduceat(never, starts, axis=0), starts, axis=1)
    return np.where(least == 255, 0, least)


def _kernel(attention: MultiHead) -> Any:
    """Module that mixes tokens; n-gram attention has no separate kernel."""
    return getattr(attention, "kernel", attention)


def _sparse(attention: MultiHead) -> Sparse | None:
    """Patterns of exact attention; None for other attentions."""
    return getattr(_kernel(attention), "sparse", None)


def _through(attention: MultiHead, length: int) -> str:
    module = next((each for each in (attention, _kernel(attention)) if hasattr(each, "bottleneck")), None)
    return "" if module is None else str(module.bottleneck(length))


def _pooled(tables: Iterable[dict[str, Tensor]], length: int, through: str = "") -> AttentionMap:
    """Pool tables of a few rows each to cells, shares of all pairs, and packed bits."""
    pooled: dict[str, list[np.ndarray]] = {}
    unions, counts = [], []
    for parts in tables:
        together = torch.stack(list(parts.values())).any(0)  # (heads, rows, length)
        unions.append(np.packbits(together.any(0).numpy(), axis=1))
        counts.append(together.sum((-1, -2)))
        for name, part in parts.items():
            pooled.setdefault(name, []).append(_mean_of_cells(part.numpy(), cell_size(length)))
    shares = (torch.stack(counts).sum(0) / length**2).tolist()
    joined = {name: np.concatenate(pieces, axis=1) for name, pieces in pooled.items()}
    of_heads = [{name: part[head] for name, part in joined.items() if part[head].any()} for head in range(len(shares))]
    return AttentionMap(shares, of_heads, np.concatenate(unions), through)


def _rows(length: int) -> int:
    """Number of table rows per step: a multiple of the cell size."""
    return max(256 // cell_size(length), 1) * cell_size(length)


def _pieces(table: Tensor, name: str) -> Iterator[dict[str, Tensor]]:
    return ({name: piece} for piece in torch.split(table, _rows(table.shape[-1]), dim=1))


def _exact(sparse: Sparse, length: int, *, causal: bool, full: str) -> Iterator[dict[str, Tensor]]:
    """Blocks of rows of the dense table, by part of the pattern: name -> (heads, rows, length) bool."""
    if sparse.global_tokens is not None:  # another module may compute the rows of these tokens; they see all keys
        sparse = dataclasses.replace(sparse, global_tokens=dataclasses.replace(sparse.global_tokens, queries=True))
    key = torch.arange(length)[None, None, :]
    for start in range(0, length, _rows(length)):
        query = torch.arange(start, min(start + _rows(length), length))[None, :, None]
        mask = Mask(causal=causal, start=start)
        table = mask.dense(sparse, query.shape[1], length, CPU)
        seen = torch.ones(1, 1, length, dtype=torch.bool) if table is None else table[0]
        seen = seen.expand(-1, query.shape[1], -1)
        if not sparse.patterns:
            yield {full: seen}
            continue
        parts = {"near": torch.zeros_like(seen), "random": torch.zeros_like(seen)}
        for pattern in sparse.patterns:
            name = "random" if pattern.is_random else "near"
            parts[name] = parts[name] | (pattern.allowed(query, key) & seen)
        parts["random"] = parts["random"] & ~parts["near"]
        if sparse.global_tokens is not None:
            members = mask.global_mask(sparse.global_tokens, length, CPU)[0]
            lines = seen & (members | members[query[0]])
            parts = {name: part & ~lines for name, part in parts.items()} | {"global": lines}
        yield parts


def probe_attention(attention: MultiHead, length: int, config: EncoderConfig) -> Tensor:
    """(heads, length, length) bool: the keys that influence the output of each query, for one random text."""
    return _measure_kernel(attention, length, config, _kernel_weights)[0] != 0


def _kernel_weights(kernel: nn.Module, given: Any) -> Tensor:
    """(batch, heads, queries, keys) weights of a kernel: its output for unit vectors in place of the values.

    The output is linear in the values, whatever the kernel. A head has fewer dimensions than unit vectors, so the
    kernel is called several times.
    """
    *vectors, value, mask = given  # queries and keys are one tensor, or two
    length, width = value.shape[-2:]
    pieces = []
    for start in range(0, length, width):
        units = value.new_zeros(length, width)
        units.diagonal(-start).fill_(1)
        pieces.append(kernel.forward(*vectors, units.expand_as(value), mask))
    return torch.cat(pieces, dim=-1)[..., :length]


def weighted_attentions(model: Model) -> list[MultiHead]:
    """The attention of each layer of the first stack; empty if a layer has no weight of each query and key.

    Recurrent layers have none, low-rank attention mixes the keys first, and the global tokens of Longformer attend
    through projections outside the kernel.
    """
    layers = model.backbone.stacks[0].layers
    found: list[Any] = [getattr(getattr(layer, "attention", None), "sublayer", None) for layer in layers]
    for attention in found:
        if not hasattr(attention, "kernel") or hasattr(attention, "query_global") or _through(attention, 1):
            return []
    return found


def attention_weights(model: Model, layer: int, input_ids: Tensor, context: Mapping[str, Tensor | None]) -> Tensor:
    """(heads, queries, keys) attention weights of one row in a layer, from 0, of `weighted_attentions`.

    Args:
        model: in evaluation mode.
        layer: index of the layer.
        input_ids: (1, seq) int64.
        context: as of `homespun.models.model.Model.read`.
    """
    found: list[Tensor] = []
    thread = threading.get_ident()

    def measure(kernel: nn.Module, given: Any, values: Tensor) -> None:
        if threading.get_ident() != thread:  # another text in the same model
            return
        found.append(_kernel_weights(kernel, given)[0])

    attentions = weighted_attentions(model)
    hook = _kernel(attentions[layer]).register_forward_hook(measure)
    try:
        with torch.no_grad():
            model.read(input_ids, context)
    finally:
        hook.remove()
    return found[attentions[:layer].count(attentions[layer])]  # layers may share their weights


def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token, or its name in the vocabulary if the text is blank."""
    return [tokenizer.decode([i], skip_special_tokens=False).strip() or tokenizer.tokens[i] for i in ids]


def _order_by_bucket(attention: MultiHead, length: int, config: EncoderConfig) -> Tensor:
    """(heads, length) int64: tokens in the order of the buckets of the first hashing round."""

    def hash_order(kernel: Any, given: tuple[Tensor, Tensor, Mask]) -> Tensor:
        vectors, _, mask = given
        return kernel.hash_order(vectors, mask)

    return _measure_kernel(attention, length, config, hash_order)


@torch.no_grad()
def _measure_kernel(
    attention: MultiHead, length: int, config: EncoderConfig, measure: Callable[[nn.Module, Any], Tensor]
) -> Tensor:
    """Return ``measure(kernel, inputs)`` with the inputs of the kernel for one random text, the same at every call."""
    found: list[Tensor] = []
    hidden = torch.randn(1, length, attention.output.out_features, generator=torch.Generator().manual_seed(0))
    hook = _kernel(attention).register_forward_pre_hook(lambda kernel, given: found.append(measure(kernel, given)))
    attention(hidden, Mask(causal=config.causal))
    hook.remove()
    return found[0]


def _mean_of_cells(table: np.ndarray, cell: int) -> np.ndarray:
    """(heads, rows, columns) bool -> the share in each cell; cells at the ends may be smaller."""
    rows, columns = (np.arange(0, size, cell) for size in table.shape[1:])
    sums = np.add.reduceat(np.add.reduceat(table, rows, axis=1, dtype=np.float32), columns, axis=2)
    sizes = (np.diff([*starts, size]) for starts, size in zip((rows, columns), table.shape[1:], strict=True))
    return sums / np.outer(*sizes)
