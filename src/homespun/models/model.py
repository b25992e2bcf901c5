"""`Model`: a backbone and its head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from torch import Tensor, nn

from homespun.errors import UserError
from homespun.models.backbone import Backbone
from homespun.models.generation.settings import GenerationArguments, SpecialTokens
from homespun.models.generation.write import generate
from homespun.models.heads import LanguageModelHead, Reader, last_layer


class Model(nn.Module):
    """Backbone and head, as returned by `homespun.load`.

    Args:
        backbone: computes hidden states.
        head: computes logits; None: `forward` returns hidden states.
        reader: selects the hidden states that the head reads.
        special_tokens: defaults of `generate`.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: nn.Module | None = None,
        *,
        reader: Reader = last_layer,
        special_tokens: SpecialTokens | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.reader = reader
        self.special_tokens = special_tokens or SpecialTokens()
        self._frozen: tuple[nn.Module, ...] = ()

    @property
    def lm_head(self) -> LanguageModelHead:
        """Head that predicts tokens. Raises `UserError` if the model has another head."""
        if isinstance(self.head, LanguageModelHead):
            return self.head
        kind = "no head" if self.head is None else f"the head {type(self.head).__name__}"
        raise UserError(f"this model has {kind} and does not predict tokens; use a pretrained language model")

    def freeze(self, part: nn.Module) -> None:
        """Freeze the weights of a part and keep it in evaluation mode."""
        self._frozen = (*self._frozen, part.requires_grad_(False).eval())

    def train(self, mode: bool = True) -> Model:
        """Set training mode, except for frozen parts."""
        super().train(mode)
        for part in self._frozen:
            part.eval()
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        documents: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        chunks: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits of the head, or (batch, seq, hidden) hidden states without a head.

        The hidden states of padding are undefined; without gradients on a CPU, full attention leaves them zero.

        Args:
            input_ids: (batch, seq) int64.
            attention_mask: (batch, seq); 0 at padding.
            token_type_ids: (batch, seq) segment of each token, 0 or 1.
            position_ids: (batch, seq); default: columns. With padding on the left, `transformers` gives RoBERTa and
                Longformer ``(attention_mask.cumsum(1) - 1).clamp(min=0)``.
            documents: (batch, seq) number of the document of each token; tokens attend within their document.
            global_attention_mask: (batch, seq); 1 at global tokens.
            decoder_input_ids: (batch, target) for an encoder-decoder; default: the shifted ``input_ids``.
            decoder_attention_mask: (batch, target); 0 at padding.
            chunks: `Batch.chunks` for sequence heads, which then return (texts, labels).

        Raises:
            UserError: the sequence is too long, context has another shape than the ids, or a segment is unknown.
        """
        self._check_segments(token_type_ids)
        context = {
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "documents": documents,
            "global_attention_mask": global_attention_mask,
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": decoder_attention_mask,
        }
        if self.reader is last_layer and getattr(self.head, "reads_first_token", False):
            given = {name: tensor for name, tensor in context.items() if tensor is not None}
            hidden = self.backbone.first_token(input_ids, **given)
        else:
            hidden = self.read(input_ids, context)
        if self.head is None:
            return hidden
        mask = attention_mask if decoder_input_ids is None else decoder_attention_mask
        inputs = (hidden, None if mask is None else mask.bool())
        return self.head(*inputs) if chunks is None else self.head(*inputs, chunks)

    def read(self, input_ids: Tensor, context: Mapping[str, Tensor | None]) -> Tensor:
        """Compute the hidden states for the head from (batch, seq) ids and context (`Batch.context`)."""
        return self.reader(self.backbone, input_ids, **{name: t for name, t in context.items() if t is not None})

    def _check_segments(self, token_type_ids: Tensor | None) -> None:
        segments = self.backbone.stacks[0].embeddings.segments
        count = 0 if segments is None else segments.num_embeddings
        if token_type_ids is not None and count < 2 and bool(token_type_ids.any()):
            raise UserError(
                f"token_type_ids has segment {int(token_type_ids.max())}, but the model has type_vocab_size={count}; "
                f"remove token_type_ids"
            )

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        documents: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
        **arguments: Unpack[GenerationArguments],
    ) -> Tensor:
        """Continue texts, or generate targets with an encoder-decoder.

        Args:
            input_ids: (batch, seq) ids of texts, padded on either side.
            attention_mask: (batch, seq); 0 at padding.
            token_type_ids: as for `forward`, for an encoder-decoder; a causal model accepts zeros.
            position_ids: as for `forward`, for an encoder-decoder.
            documents: as for `forward`, for an encoder-decoder.
            global_attention_mask: as for `forward`, for an encoder-decoder.
            **arguments: see `GenerationConfig`, named as in `transformers`.

        Returns:
            (batch * num_return_sequences, seq + new) ids: prompt or decoder start token, and new tokens, padded on the
                right.

        Raises:
            UserError: the model cannot generate, an argument is unknown or would be ignored, a prompt is empty or too
                long, or a segment is unknown.
        """
        self._check_segments(token_type_ids)
        context = {
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "documents": documents,
            "global_attention_mask": global_attention_mask,
        }
        return generate(self, input_ids, attention_mask, arguments, context=context)
