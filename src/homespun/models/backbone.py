"""Backbones: stacks of layers over embeddings. `Model` is a backbone and the head that stands on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from homespun.models.embeddings import Embeddings
from homespun.nn.masks import Mask


class Encoder(nn.Module):
    """Embeddings, a projection where they are narrower than the stream, layers, a last norm where layers are pre-norm.

    ``causal=True`` makes it the stack of a decoder-only language model.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        layers: Sequence[nn.Module],
        *,
        hidden_size: int,
        final_norm: nn.Module,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.causal = causal
        self.gradient_checkpointing = False
        self.embeddings = embeddings
        narrow = embeddings.embedding_size != hidden_size
        self.projection = nn.Linear(embeddings.embedding_size, hidden_size) if narrow else nn.Identity()
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm

    @property
    def layer_norm_eps(self) -> float:
        """The epsilon of its norms, for heads that have one."""
        return float(self.embeddings.norm.eps)

    def forward(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        documents: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden).

        Args:
            input_ids: (batch, seq) int64.
            attention_mask: (batch, seq); nonzero takes part.
            token_type_ids: (batch, seq) int64 segments.
            position_ids: (batch, seq) int64; counted from 0 where not given.
            documents: (batch, seq) int64; tokens see those of the same number only.
            global_attention_mask: (batch, seq); nonzero sees all and is seen by all, where the attention has such
                tokens.

        Raises:
            UserError: a sequence longer than ``max_position_embeddings``.
        """
        hidden = None
        for hidden in self.hidden_states(  # noqa: B007  the last is the result
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            documents=documents,
            global_attention_mask=global_attention_mask,
        ):
            pass
        result: Tensor = self.final_norm(hidden)
        return result

    def hidden_states(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        documents: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """The stream after the embeddings and after every layer, each (batch, seq, hidden), as they are made."""
        keep = None if attention_mask is None else attention_mask.bool()
        chosen = None if global_attention_mask is None else global_attention_mask.bool()
        mask = Mask(keep, causal=self.causal, documents=documents, chosen=chosen)
        vectors = self.embeddings(input_ids, token_type_ids=token_type_ids, position_ids=position_ids)
        hidden: Tensor = self.projection(vectors)
        yield hidden
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                hidden = checkpoint(layer, hidden, mask, use_reentrant=False)
            else:
                hidden = layer(hidden, mask)
            yield hidden


class Model(nn.Module):
    """A backbone and its head: what training leaves, what `homespun.load` returns."""

    def __init__(self, backbone: Encoder, head: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        documents: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """The head's logits, or the hidden states (batch, seq, hidden) where there is no head."""
        hidden: Tensor = self.backbone(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            documents=documents,
            global_attention_mask=global_attention_mask,
        )
        if self.head is None:
            return hidden
        logits: Tensor = self.head(hidden, attention_mask)
        return logits
