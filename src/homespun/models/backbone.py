"""Backbones, which are models without heads: the interface `Backbone`, `Encoder` and `EncoderDecoder`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from homespun.errors import UserError
from homespun.models.embeddings import CharacterEmbeddings, Embeddings, NgramStreams
from homespun.nn.cache import Cache
from homespun.nn.layers import LayerStack
from homespun.nn.masks import Mask, Source, unpad


class Context(TypedDict, total=False):
    """Optional inputs of an encoder, each with the shape of ``input_ids``."""

    attention_mask: Tensor | None  # (batch, seq); 0 at padding
    token_type_ids: Tensor | None  # (batch, seq) int64 segments
    position_ids: Tensor | None  # (batch, seq) int64; by default from 0
    documents: Tensor | None  # (batch, seq) int64 numbers; tokens see their own document only
    global_attention_mask: Tensor | None  # (batch, seq); nonzero at global tokens, for attention that has them


class DecoderInputs(TypedDict, total=False):
    """Optional inputs of a decoder."""

    attention_mask: Tensor | None  # (batch, cached + seq); 0 at padding
    position_ids: Tensor | None  # (batch, seq) int64; by default from the length of the cache
    cache: Cache | None  # earlier tokens; extended by the call


def _to_bool(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.bool()


class Backbone(nn.Module):
    """Interface of backbones for heads, objectives and generation.

    Attributes:
        embeddings: embeddings of the last stack.
        hidden_size: width of the hidden states of the last stack.
        layer_norm_eps: epsilon of the norms of the last stack.
        causal: decoder-only model; no token attends to a later one.
        has_decoder: encoder-decoder model.
        decoder_start_token_id: first input token of the decoder.
        ngram: number of prediction streams of the decoder (`NgramStreams`); 0: none.
        gradient_checkpointing: recompute layers in the backward pass; reversible layers always do.
    """

    embeddings: Embeddings | CharacterEmbeddings
    hidden_size: int
    layer_norm_eps: float
    causal: bool
    has_decoder: bool
    decoder_start_token_id: int = 0
    ngram: int = 0
    gradient_checkpointing: bool

    @property
    def stacks(self) -> tuple[Encoder, ...]:
        """One stack, or encoder and decoder; the first reads ``input_ids``, heads read the last."""
        raise NotImplementedError

    def encode(self, input_ids: Tensor, **context: Unpack[Context]) -> Source:
        """Compute hidden states and padding mask of the first stack for (batch, seq) ids."""
        return Source(self.stacks[0](input_ids, **context), Mask(_to_bool(context.get("attention_mask"))))

    def first_token(self, input_ids: Tensor, **inputs: Tensor) -> Tensor:
        """Map (batch, seq) ids to (batch, 1, hidden) of the first token; inputs as in `forward`."""
        return self(input_ids, **inputs)[:, :1]

    def decode(self, input_ids: Tensor, source: Source | None = None, **inputs: Unpack[DecoderInputs]) -> Tensor:
        """Map (batch, seq) ids to (batch, seq, hidden) of the last stack; see `Encoder.decode`."""
        raise NotImplementedError

    def ngram_streams(self, input_ids: Tensor, source: Source, *, attention_mask: Tensor | None = None) -> Tensor:
        """Map (batch, seq) ids to (batch, ngram, seq, hidden) of the prediction streams (`NgramStreams`).

        The first stream equals `decode`.

        Raises:
            UserError: the decoder has no prediction streams.
        """
        raise UserError("ngram=0: the decoder has no prediction streams; set model.ngram=2")


class Encoder(Backbone):
    """Stack of embeddings, a projection if they are narrower than the layers, layers, and a final norm.

    Args:
        embeddings: token embeddings.
        layers: modules ``(hidden, mask) -> hidden``.
        input_size: width of the input of the layers.
        layer_stack: runs the layers.
        final_norm: norm after the last layer.
        layer_norm_eps: epsilon of norms, for heads.
        causal: no token attends to a later one.
        reads_context: layers read keys and values from `Mask.context`.
        reads_unpadded: layers read the texts of `Mask.lengths`.

    Attributes:
        entering_size: width of the input of the first layer; differs from ``hidden_size`` in some recurrent stacks.
    """

    has_decoder = False

    def __init__(
        self,
        embeddings: Embeddings | CharacterEmbeddings,
        layers: Sequence[nn.Module],
        *,
        input_size: int,
        layer_stack: LayerStack,
        final_norm: nn.Module,
        layer_norm_eps: float,
        causal: bool = False,
        reads_context: bool = False,
        reads_unpadded: bool = False,
    ) -> None:
        super().__init__()
        self.hidden_size = self.entering_size = input_size * layer_stack.copies
        self.layer_norm_eps = layer_norm_eps
        self.causal = causal
        self.reads_context = reads_context
        self.reads_unpadded = reads_unpadded
        self.gradient_checkpointing = False
        self.embeddings = embeddings
        narrow = embeddings.embedding_size != input_size
        self.projection = nn.Linear(embeddings.embedding_size, input_size) if narrow else nn.Identity()
        self.layer_stack = layer_stack
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm

    @property
    def stacks(self) -> tuple[Encoder, ...]:
        return (self,)

    def forward(self, input_ids: Tensor, **context: Unpack[Context]) -> Tensor:
        """Map (batch, seq) ids to (batch, seq, hidden).

        Raises:
            UserError: the sequence exceeds ``max_position_embeddings``, or context differs from the ids in shape.
        """
        return self.final_norm(self._run(self.layers, *self._prepare(input_ids, **context)))

    def _run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask) -> Tensor:
        recompute = self.gradient_checkpointing and self.training and mask.cache is None
        unpadded = unpad(hidden, mask) if self.reads_unpadded else None
        if unpadded is None:
            return self.layer_stack.run(layers, hidden, mask, recompute=recompute)
        outputs = self.layer_stack.run(layers, *unpadded, recompute=False)
        padded = outputs.new_zeros(*hidden.shape[:2], outputs.shape[-1])
        assert mask.keep is not None
        padded[mask.keep] = outputs[0, : int(mask.keep.sum())]
        return padded

    def first_token(self, input_ids: Tensor, **inputs: Tensor) -> Tensor:
        """Map (batch, seq) ids to (batch, 1, hidden) of the first token.

        If the layers read a context, the last layer computes keys and values of all tokens and nothing else for the
        other tokens.
        """
        if not self.reads_context:
            return super().first_token(input_ids, **inputs)
        hidden, mask = self._prepare(input_ids, **inputs)
        hidden = self._run(self.layers[:-1], hidden, mask)
        return self.final_norm(self._run(self.layers[-1:], hidden[:, :1], replace(mask, context=hidden)))

    def last_layers(self, layers: int, input_ids: Tensor, **context: Unpack[Context]) -> Tensor:
        """Compute the concatenated outputs of the last layers, (batch, seq, layers * hidden), for (batch, seq) ids.

        ``len(self.layers) + 1`` includes the input of the first layer. The final norm applies to the last layer only,
        as in ``hidden_states`` of `transformers`.
        """
        hidden, mask = self._prepare(input_ids, **context)
        first = len(self.layers) - layers + 1
        states = [self._run(self.layers[:first], hidden, mask)]
        for layer in self.layers[first:]:
            states.append(self._run([layer], states[-1], mask))
        return torch.cat([*states[:-1], self.final_norm(states[-1])], dim=-1)

    def decode_masked(self, input_ids: Tensor, **context: Unpack[Context]) -> Tensor:
        """Map (batch, seq) ids to (batch, seq, hidden) of the enhanced mask decoder (He et al. 2021, section 3.2).

        Late positions are added to the queries of the last layer, which runs twice with the keys and values of the
        layer before, as in the authors' code. Without late positions this is `forward`.
        """
        if self.embeddings.late is None:
            return self.forward(input_ids, **context)
        hidden, mask = self._prepare(input_ids, **context)
        last = self.layers[-1]
        hidden = self._run(self.layers[:-1], hidden, mask)
        positions = self.projection(self.embeddings.late(context.get("position_ids"), input_ids.shape[1]))
        return self.final_norm(self._run((last, last), hidden + positions, replace(mask, context=hidden)))

    def hidden_states(self, input_ids: Tensor, **context: Unpack[Context]) -> Iterator[Tensor]:
        """Yield the input of the first layer and the output of each layer, (batch, seq, hidden)."""
        hidden, mask = self._prepare(input_ids, **context)
        yield hidden
        for layer in self.layers:
            hidden = layer(hidden, mask)
            yield hidden

    def _prepare(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        documents: Tensor | None = None,
        global_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Mask]:
        context = (attention_mask, token_type_ids, position_ids, documents, global_attention_mask)
        for name, tensor in zip(Context.__annotations__, context, strict=True):
            if tensor is not None and tensor.shape != input_ids.shape:
                raise UserError(
                    f"{name} has shape {tuple(tensor.shape)}, but must have the shape of input_ids, "
                    f"{tuple(input_ids.shape)}"
                )
        mask = Mask(
            _to_bool(attention_mask),
            causal=self.causal,
            documents=documents,
            batch_global_mask=_to_bool(global_attention_mask),
            position_ids=position_ids,
        )
        vectors = self.embeddings(input_ids, token_type_ids=token_type_ids, position_ids=position_ids)
        return self.layer_stack.expand(self.projection(vectors)), mask

    def decode(self, input_ids: Tensor, source: Source | None = None, **inputs: Unpack[DecoderInputs]) -> Tensor:
        """Map (batch, seq) ids to (batch, seq, hidden), with cross-attention to a source and a cache of earlier tokens.

        Raises:
            UserError: the sequence exceeds ``max_position_embeddings``.
        """
        cache = inputs.get("cache")
        start = 0 if cache is None else cache.length
        vectors = self.embeddings(input_ids, position_ids=inputs.get("position_ids"), start=start)
        return self.decode_vectors(vectors, source, **inputs)

    def decode_vectors(
        self,
        vectors: Tensor,
        source: Source | None,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Apply `decode` to embeddings, (batch, seq, embedding) or (batch, streams, seq, embedding)."""
        start = 0 if cache is None else cache.length
        if cache is not None:
            if not self.causal:
                raise UserError("a cache needs a causal stack; this stack is bidirectional")
            cache.start_call()
        keep = _to_bool(attention_mask)
        if keep is not None and keep.shape[-1] != start + vectors.shape[-2]:
            raise UserError(
                f"attention_mask has {keep.shape[-1]} tokens, but must cover the {start} in the cache and the "
                f"{vectors.shape[-2]} new tokens"
            )
        mask = Mask(keep, causal=self.causal, start=start, source=source, cache=cache, position_ids=position_ids)
        hidden = self.layer_stack.expand(self.projection(vectors))
        result: Tensor = self.final_norm(self._run(self.layers, hidden, mask))
        if cache is not None:
            cache.length = start + vectors.shape[-2]
        return result


class EncoderDecoder(Backbone):
    """Encoder and decoder with cross-attention (Vaswani et al. 2017).

    Args:
        decoder_start_token_id: first input token of the decoder.
        predicting: prediction streams of the decoder (ProphetNet); the first gives its hidden states.
    """

    has_decoder = True

    def __init__(
        self,
        encoder: Encoder,
        decoder: Encoder,
        *,
        decoder_start_token_id: int = 0,
        predicting: NgramStreams | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.predicting = encoder, decoder, predicting
        self.ngram = 0 if predicting is None else predicting.ngram
        self.decoder_start_token_id = decoder_start_token_id
        self.hidden_size, self.layer_norm_eps = decoder.hidden_size, decoder.layer_norm_eps
        self.causal = False

    @property
    def stacks(self) -> tuple[Encoder, ...]:
        return self.encoder, self.decoder

    @property
    def embeddings(self) -> Embeddings | CharacterEmbeddings:  # type: ignore[override]  # read-only here
        """Embeddings of the decoder."""
        return self.decoder.embeddings

    @property
    def gradient_checkpointing(self) -> bool:
        """Recompute layers of both stacks in the backward pass."""
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self.encoder.gradient_checkpointing = self.decoder.gradient_checkpointing = value

    def decode(self, input_ids: Tensor, source: Source | None = None, **inputs: Unpack[DecoderInputs]) -> Tensor:
        """Map (batch, seq) ids to (batch, seq, hidden); see `Encoder.decode`. Streams ignore ``position_ids``."""
        if self.predicting is None:
            return self.decoder.decode(input_ids, source, **inputs)
        return self._run_streams(1, input_ids, source, inputs.get("attention_mask"), inputs.get("cache"))[:, 0]

    def ngram_streams(self, input_ids: Tensor, source: Source, *, attention_mask: Tensor | None = None) -> Tensor:
        """Map (batch, seq) ids to (batch, ngram, seq, hidden); see `Backbone.ngram_streams`."""
        if self.predicting is None:
            return super().ngram_streams(input_ids, source)
        return self._run_streams(self.ngram, input_ids, source, attention_mask, None)

    def _run_streams(
        self, streams: int, input_ids: Tensor, source: Source | None, attention_mask: Tensor | None, cache: Cache | None
    ) -> Tensor:
        assert self.predicting is not None
        start = 0 if cache is None else cache.length
        vectors = self.predicting(self.decoder.embeddings, input_ids, streams=streams, start=start)
        hidden = self.decoder.decode_vectors(vectors, source, attention_mask=attention_mask, cache=cache)
        return hidden[:, 1:]

    def forward(
        self,
        input_ids: Tensor,
        *,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        **context: Unpack[Context],
    ) -> Tensor:
        """Map (batch, source) and (batch, seq) ids to (batch, seq, hidden) of the decoder.

        By default ``decoder_input_ids`` are ``input_ids`` shifted right, as in BART's classification.
        """
        if decoder_input_ids is None:
            decoder_input_ids = input_ids.roll(1, dims=1)
            decoder_input_ids[:, 0] = self.decoder_start_token_id
            decoder_attention_mask = context.get("attention_mask")
        return self.decode(decoder_input_ids, self.encode(input_ids, **context), attention_mask=decoder_attention_mask)
