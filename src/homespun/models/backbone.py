"""`Backbone`, the interface of models without their heads: `Encoder`, and `EncoderDecoder` with cross-attention."""

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
from homespun.nn.masks import Mask, Source


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


class DecoderInputs(TypedDict, total=False):
    """Optional inputs of a decoder besides its ids."""

    attention_mask: Tensor | None
    """(batch, cached + seq); nonzero takes part."""
    position_ids: Tensor | None
    """(batch, seq) int64; counted on from the cache if not given."""
    cache: Cache | None
    """Keys and values of earlier tokens, to which those of this call are added."""


class Backbone(nn.Module):
    """Interface of all backbones; heads, objectives and generation use nothing else.

    Attributes:
        embeddings: tokens to vectors, in the stack that heads read.
        hidden_size: width of the hidden states that heads read.
        layer_norm_eps: epsilon of the norms of those layers, for heads that have one.
        causal: no token attends to a later one, so that a decoder-only language model can be built on it.
        has_decoder: a decoder attends to the hidden states of the encoder.
        decoder_start_token_id: token that the decoder reads before the first one.
        ngram: prediction streams of the decoder (`NgramStreams`); 0: none.
        gradient_checkpointing: in training, compute layers again in the backward pass; reversible ones always are.
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
        """The only stack, or encoder and decoder: the first reads ``input_ids``, heads read the last."""
        raise NotImplementedError

    def encode(self, input_ids: Tensor, **context: Unpack[Context]) -> Source:
        """(batch, seq) ids -> hidden states of the first stack, with their padding."""
        attention_mask = context.get("attention_mask")
        return Source(
            self.stacks[0](input_ids, **context), Mask(None if attention_mask is None else attention_mask.bool())
        )

    def decode(self, input_ids: Tensor, source: Source | None = None, **inputs: Unpack[DecoderInputs]) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden) of the last stack; see `Encoder.decode`."""
        raise NotImplementedError

    def ngram_streams(self, input_ids: Tensor, source: Source, *, attention_mask: Tensor | None = None) -> Tensor:
        """(batch, seq) ids -> (batch, ngram, seq, hidden): hidden states from which each stream predicts its token.

        The first stream is that of `decode`; see `NgramStreams`.

        Raises:
            UserError: the backbone has no such streams.
        """
        raise UserError("this decoder has no streams that predict several tokens ahead; give the model ngram: 2")


class Encoder(Backbone):
    """Embeddings, a projection if they are narrower than the layers, layers, a last norm.

    Args:
        embeddings: tokens to vectors.
        layers: ``(hidden, mask) -> hidden``, each.
        input_size: width of the input of the layers.
        layer_stack: expands the input and runs the layers.
        final_norm: after the last layer.
        layer_norm_eps: of its norms, for heads that have one.
        causal: no token sees a later one; for a decoder-only language model.

    Attributes:
        entering_size: width of the stream before the layers, which may be another in a recurrent stack.
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
    ) -> None:
        super().__init__()
        self.hidden_size = self.entering_size = input_size * layer_stack.copies
        self.layer_norm_eps = layer_norm_eps
        self.causal = causal
        self.gradient_checkpointing = False
        self.embeddings = embeddings
        narrow = embeddings.embedding_size != input_size
        self.projection = nn.Linear(embeddings.embedding_size, input_size) if narrow else nn.Identity()
        self.layer_stack = layer_stack
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm

    @property
    def stacks(self) -> tuple[Encoder, ...]:
        """Only stack."""
        return (self,)

    def forward(self, input_ids: Tensor, **context: Unpack[Context]) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden).

        Raises:
            UserError: a sequence longer than ``max_position_embeddings``, or context of another shape than the ids.
        """
        result: Tensor = self.final_norm(self._run(self.layers, *self._prepare(input_ids, **context)))
        return result

    def _run(self, layers: Iterable[nn.Module], hidden: Tensor, mask: Mask) -> Tensor:
        recompute = self.gradient_checkpointing and self.training and mask.cache is None
        return self.layer_stack.run(layers, hidden, mask, recompute=recompute)

    def last_layers(self, layers: int, input_ids: Tensor, **context: Unpack[Context]) -> Tensor:
        """(batch, seq) ids -> (batch, seq, layers * hidden): the vectors of the last layers, the last at the end.

        One more than there are layers includes the input of the layers. As in ``hidden_states`` of `transformers`, the
        last norm of a pre-norm stack applies to the last layer alone.
        """
        hidden, mask = self._prepare(input_ids, **context)
        first = len(self.layers) - layers + 1
        states = [self._run(self.layers[:first], hidden, mask)]
        for layer in self.layers[first:]:
            states.append(self._run([layer], states[-1], mask))
        return torch.cat([*states[:-1], self.final_norm(states[-1])], dim=-1)

    def decode_masked(self, input_ids: Tensor, **context: Unpack[Context]) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden) for masked tokens (He et al. 2021, section 3.2, enhanced mask
        decoder).

        Late positions are added to the queries of the last layer, which runs twice on the keys and values of the layer
        before, as in the authors' code. Without late positions this is `forward`.
        """
        if self.embeddings.late is None:
            return self.forward(input_ids, **context)
        hidden, mask = self._prepare(input_ids, **context)
        last = self.layers[-1]
        hidden = self._run(self.layers[:-1], hidden, mask)
        positions = self.projection(self.embeddings.late(context.get("position_ids"), input_ids.shape[1]))
        result: Tensor = self.final_norm(self._run((last, last), hidden + positions, replace(mask, context=hidden)))
        return result

    def hidden_states(self, input_ids: Tensor, **context: Unpack[Context]) -> Iterator[Tensor]:
        """The stream before the layers and after each, (batch, seq, hidden), as they are computed."""
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
        given = (attention_mask, token_type_ids, position_ids, documents, global_attention_mask)
        for name, tensor in zip(Context.__annotations__, given, strict=True):
            if tensor is not None and tensor.shape != input_ids.shape:
                raise UserError(
                    f"{name} has shape {tuple(tensor.shape)}, and input_ids {tuple(input_ids.shape)}; "
                    f"it says something of each token, so the two must be alike"
                )
        keep = None if attention_mask is None else attention_mask.bool()
        batch_global_mask = None if global_attention_mask is None else global_attention_mask.bool()
        mask = Mask(
            keep,
            causal=self.causal,
            documents=documents,
            batch_global_mask=batch_global_mask,
            position_ids=position_ids,
        )
        vectors = self.embeddings(input_ids, token_type_ids=token_type_ids, position_ids=position_ids)
        return self.layer_stack.expand(self.projection(vectors)), mask

    def decode(self, input_ids: Tensor, source: Source | None = None, **inputs: Unpack[DecoderInputs]) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden), attending to a source, or continuing the tokens in a cache.

        Raises:
            UserError: more tokens than ``max_position_embeddings``.
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
        """(batch, seq, embedding) of tokens -> (batch, seq, hidden): `decode` without its embeddings.

        Also for prediction streams, (batch, streams, seq, embedding).
        """
        start = 0 if cache is None else cache.length
        if cache is not None:
            if not self.causal:
                raise UserError("only a causal stack can go on from a cache: in this one tokens see later ones")
            cache.start_call()
        keep = None if attention_mask is None else attention_mask.bool()
        if keep is not None and keep.shape[-1] != start + vectors.shape[-2]:
            raise UserError(
                f"the attention_mask is of {keep.shape[-1]} tokens, and there are {start} in the cache and "
                f"{vectors.shape[-2]} new ones; give one of all of them"
            )
        mask = Mask(keep, causal=self.causal, start=start, source=source, cache=cache, position_ids=position_ids)
        hidden = self.layer_stack.expand(self.projection(vectors))
        result: Tensor = self.final_norm(self._run(self.layers, hidden, mask))
        if cache is not None:
            cache.length = start + vectors.shape[-2]
        return result


class EncoderDecoder(Backbone):
    """An encoder, and a decoder that attends to its hidden states (Vaswani et al. 2017).

    Args:
        decoder_start_token_id: token that the decoder reads before the first one.
        predicting: prediction streams of the decoder, of which the first gives its hidden states (ProphetNet).
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
        """Encoder and decoder."""
        return self.encoder, self.decoder

    @property
    def embeddings(self) -> Embeddings | CharacterEmbeddings:  # type: ignore[override]  # read-only here
        """The decoder's, whose words are the encoder's too."""
        return self.decoder.embeddings

    @property
    def gradient_checkpointing(self) -> bool:
        """True if both stacks recompute layers in the backward pass."""
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.encoder.gradient_checkpointing = self.decoder.gradient_checkpointing = on

    def decode(self, input_ids: Tensor, source: Source | None = None, **inputs: Unpack[DecoderInputs]) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden); see `Encoder.decode`. Streams ignore ``position_ids``."""
        if self.predicting is None:
            return self.decoder.decode(input_ids, source, **inputs)
        return self._run_streams(1, input_ids, source, inputs.get("attention_mask"), inputs.get("cache"))[:, 0]

    def ngram_streams(self, input_ids: Tensor, source: Source, *, attention_mask: Tensor | None = None) -> Tensor:
        """(batch, seq) ids -> (batch, ngram, seq, hidden); see `Backbone.ngram_streams`."""
        if self.predicting is None:
            return super().ngram_streams(input_ids, source)
        return self._run_streams(self.ngram, input_ids, source, attention_mask, None)

    def _run_streams(
        self,
        streams: int,
        input_ids: Tensor,
        source: Source | None,
        attention_mask: Tensor | None,
        cache: Cache | None,
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
        """(batch, source) and (batch, seq) ids -> (batch, seq, hidden) of the decoder.

        Without ``decoder_input_ids`` the decoder reads the encoder's text, shifted right, as BART does to classify.
        """
        if decoder_input_ids is None:
            decoder_input_ids = input_ids.roll(1, dims=1)
            decoder_input_ids[:, 0] = self.decoder_start_token_id
            decoder_attention_mask = context.get("attention_mask")
        return self.decode(decoder_input_ids, self.encode(input_ids, **context), attention_mask=decoder_attention_mask)
