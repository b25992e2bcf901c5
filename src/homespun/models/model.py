"""`Model`: a backbone and its head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Unpack

import torch
from torch import Tensor, nn

from homespun.errors import UserError
from homespun.models.backbone import Backbone
from homespun.models.generation.settings import GenerationArguments, SpecialTokens
from homespun.models.heads import LanguageModelHead, Reader, last_layer


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout or gradients; afterwards every module is in its former mode."""
    modes = [(module, module.training) for module in model.modules() if module.training]
    model.eval()
    try:
        # not inference_mode: a tensor that some part keeps for later could then never take part in training
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


class Model(nn.Module):
    """A backbone and its head, as `homespun.load` returns it; `generate` needs the special tokens."""

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
        """The head, which predicts tokens.

        Raises:
            UserError: there is none, or another.
        """
        if isinstance(self.head, LanguageModelHead):
            return self.head
        kind = "no head" if self.head is None else f"the head {type(self.head).__name__}"
        raise UserError(f"this model has {kind} and predicts no tokens; take one of a pretraining objective")

    def freeze(self, part: nn.Module) -> None:
        """Exclude the weights of a part from training and keep its dropout off."""
        self._frozen = (*self._frozen, part.requires_grad_(False).eval())

    def train(self, mode: bool = True) -> Model:
        """Training mode, except for frozen parts."""
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
        """The head's logits, or the hidden states (batch, seq, hidden) without a head.

        An encoder-decoder gives logits of ``decoder_input_ids`` (batch, target), or of the text itself. With ``chunks``
        (`Batch.chunks`) a head over whole texts gives logits (texts, labels).

        Positions are those of the columns by default, on whichever side a text is padded. For a RoBERTa or Longformer
        with padding on the left, as in transformers, give ``position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0)``.

        Raises:
            UserError: a text is too long, context has another shape, or a segment is unknown.
        """
        self._check_segments(token_type_ids)
        given = {
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "documents": documents,
            "global_attention_mask": global_attention_mask,
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": decoder_attention_mask,
        }
        hidden = self.read(input_ids, given)
        if self.head is None:
            return hidden
        of_texts = () if chunks is None else (chunks,)  # token heads know of none
        real = attention_mask if decoder_input_ids is None else decoder_attention_mask
        logits: Tensor = self.head(hidden, None if real is None else real.bool(), *of_texts)
        return logits

    def read(self, input_ids: Tensor, context: Mapping[str, Tensor | None]) -> Tensor:
        """(batch, seq) ids and what goes with them (`Batch.context`) -> the vectors that the head is given."""
        # each backbone takes what it knows of, and refuses the rest by name
        return self.reader(self.backbone, input_ids, **{name: t for name, t in context.items() if t is not None})

    def _check_segments(self, token_type_ids: Tensor | None) -> None:
        segments = self.backbone.stacks[0].embeddings.segments
        known = 0 if segments is None else segments.num_embeddings
        if token_type_ids is not None and known < 2 and bool(token_type_ids.any()):
            raise UserError(
                f"token_type_ids has a {int(token_type_ids.max())}, and this model tells no segments apart "
                f"(type_vocab_size={known}); leave token_type_ids out"
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
        """Continue texts, or write a target for each with an encoder-decoder.

        Args:
            input_ids, attention_mask: (batch, seq) ids of texts, padded on either side.
            token_type_ids, position_ids, documents, global_attention_mask: for an encoder-decoder.
            **arguments: those of `GenerationConfig`, named as in `transformers`.

        Returns:
            (batch * num_return_sequences, seq + new) ids: the prompt, or the start of the decoder, and the new tokens,
                padded on the right.

        Raises:
            UserError: the model cannot generate, an argument is unknown, a prompt is empty or too long, or a segment is
                unknown.
        """
        from homespun.models.generation.write import generate  # which is about models

        self._check_segments(token_type_ids)
        context = {
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "documents": documents,
            "global_attention_mask": global_attention_mask,
        }
        return generate(self, input_ids, attention_mask, arguments, context=context)
