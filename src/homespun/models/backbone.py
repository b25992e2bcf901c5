"""Backbones: stacks of layers over embeddings, and two stacks of which one reads what the other has read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn

from homespun.errors import UserError
from homespun.models.characters import CharacterEmbeddings
from homespun.models.context import Context
from homespun.models.embeddings import Embeddings
from homespun.models.prophet import NgramStreams
from homespun.nn.cache import Cache
from homespun.nn.masks import Mask, Source
from homespun.nn.residual import LayerStack


class Encoder(nn.Module):
    """Embeddings, a projection where they are narrower than the layers, layers, a last norm where these want one.

    Args:
        embeddings: tokens to vectors.
        layers: ``(hidden, mask) -> hidden``, each.
        input_size: width of what enters the layers.
        layer_stack: how the layers are entered and run.
        final_norm: after the last layer.
        layer_norm_eps: the epsilon of its norms, for heads that have one.
        causal: no token sees a later one; this makes it the stack of a decoder-only language model.

    Attributes:
        hidden_size: width of what comes out, which heads are built for.
        entering_size: width of the stream before the layers, which may be another in a recurrent stack.
        gradient_checkpointing: in training, compute layers again in the backward pass; reversible ones always are.
    """

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

    def forward(self, input_ids: Tensor, **context: Unpack[Context]) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden).

        Raises:
            UserError: a sequence longer than ``max_position_embeddings``, or context of another shape than the ids.
        """
        hidden, mask = self._prepare(input_ids, **context)
        recompute = self.gradient_checkpointing and self.training
        result: Tensor = self.final_norm(self.layer_stack.run(self.layers, hidden, mask, recompute=recompute))
        return result

    def last_layers(self, layers: int, input_ids: Tensor, **context: Unpack[Context]) -> Tensor:
        """(batch, seq) ids -> (batch, seq, layers * hidden): the last layers' vectors, the last at the end.

        One more than there are layers has what enters them too, as wide as that is. As in ``hidden_states`` of
        `transformers`, the last norm of a pre-norm stack is on the last layer's alone.
        """
        hidden, mask = self._prepare(input_ids, **context)
        recompute = self.gradient_checkpointing and self.training
        first = len(self.layers) - layers + 1
        states = [self.layer_stack.run(self.layers[:first], hidden, mask, recompute=recompute)]
        for layer in self.layers[first:]:
            states.append(self.layer_stack.run([layer], states[-1], mask, recompute=recompute))
        return torch.cat([*states[:-1], self.final_norm(states[-1])], dim=-1)

    def decode_masked(self, input_ids: Tensor, **context: Unpack[Context]) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden): what masked tokens are told from (He et al. 2021, section 3.2).

        Where the embeddings have positions for it, these are added before the last layer, to its queries alone, and it
        runs twice, as in the authors' code: both times its keys and values are those of the layer before, and the
        second time its queries are what it gave. Else this is `forward`.
        """
        if self.embeddings.late is None:
            return self.forward(input_ids, **context)
        hidden, mask = self._prepare(input_ids, **context)
        recompute = self.gradient_checkpointing and self.training
        last = self.layers[-1]
        hidden = self.layer_stack.run(self.layers[:-1], hidden, mask, recompute=recompute)
        positions = self.projection(self.embeddings.late(context.get("position_ids"), input_ids.shape[1]))
        around = replace(mask, context=hidden)
        decoded = self.layer_stack.run((last, last), hidden + positions, around, recompute=recompute)
        result: Tensor = self.final_norm(decoded)
        return result

    def hidden_states(self, input_ids: Tensor, **context: Unpack[Context]) -> Iterator[Tensor]:
        """The stream before the layers and after every one, each (batch, seq, hidden), as they are made."""
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

    def decode(
        self,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        source: Source | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden), reading a source, or going on from the tokens in a cache.

        With a cache, ``attention_mask`` is of all tokens so far, (batch, cached + seq). Where ``position_ids``, (batch,
        seq), are not given, they count on.

        Raises:
            UserError: more tokens than ``max_position_embeddings``.
        """
        start = 0 if cache is None else cache.length
        vectors = self.embeddings(input_ids, position_ids=position_ids, start=start)
        return self.decode_vectors(
            vectors, attention_mask=attention_mask, position_ids=position_ids, source=source, cache=cache
        )

    def decode_vectors(
        self,
        vectors: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        source: Source | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(batch, seq, embedding) of tokens -> (batch, seq, hidden): what `decode` does after its embeddings.

        Layers whose attention has streams take (batch, streams, seq, embedding) likewise.
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
        recompute = self.gradient_checkpointing and self.training and cache is None
        result: Tensor = self.final_norm(self.layer_stack.run(self.layers, hidden, mask, recompute=recompute))
        if cache is not None:
            cache.length = start + vectors.shape[-2]
        return result


class EncoderDecoder(nn.Module):
    """An encoder, and a decoder that reads its vectors through cross-attention (Vaswani et al. 2017).

    Args:
        decoder_start_token_id: what the decoder reads before the first token.
        predicting: streams beside that of the decoder, of which the first is then what it gives (ProphetNet).

    Attributes:
        hidden_size: width of the decoder's vectors, which heads are built for.
        layer_norm_eps: the epsilon of the decoder's norms.
    """

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
        self.decoder_start_token_id = decoder_start_token_id
        self.hidden_size, self.layer_norm_eps = decoder.hidden_size, decoder.layer_norm_eps
        self.causal = False

    @property
    def embeddings(self) -> Embeddings | CharacterEmbeddings:
        """The decoder's, whose words are the encoder's too."""
        return self.decoder.embeddings

    @property
    def gradient_checkpointing(self) -> bool:
        """True if both stacks recompute layers in the backward pass."""
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.encoder.gradient_checkpointing = self.decoder.gradient_checkpointing = on

    def encode(self, input_ids: Tensor, **context: Unpack[Context]) -> Source:
        """(batch, source) ids -> what the decoder reads."""
        attention_mask = context.get("attention_mask")
        keep = None if attention_mask is None else attention_mask.bool()
        return Source(self.encoder(input_ids, **context), Mask(keep))

    def decode(
        self,
        decoder_input_ids: Tensor,
        source: Source,
        *,
        decoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(batch, seq) ids -> (batch, seq, hidden); see `Encoder.decode`."""
        if self.predicting is not None:
            return self._run_streams(self.predicting, 1, decoder_input_ids, source, decoder_attention_mask, cache)[:, 0]
        return self.decoder.decode(decoder_input_ids, attention_mask=decoder_attention_mask, source=source, cache=cache)

    def ngram_streams(
        self, decoder_input_ids: Tensor, source: Source, *, decoder_attention_mask: Tensor | None = None
    ) -> Tensor:
        """(batch, seq) ids -> (batch, ngram, seq, hidden): what each stream predicts the next token from.

        The first are those of `decode`; see `NgramStreams`.

        Raises:
            UserError: the decoder has no such streams.
        """
        if self.predicting is None:
            raise UserError("this decoder has no streams that predict several tokens ahead; give the model ngram: 2")
        return self._run_streams(
            self.predicting, self.predicting.ngram, decoder_input_ids, source, decoder_attention_mask, None
        )

    def _run_streams(
        self,
        predicting: NgramStreams,
        streams: int,
        input_ids: Tensor,
        source: Source,
        attention_mask: Tensor | None,
        cache: Cache | None,
    ) -> Tensor:
        start = 0 if cache is None else cache.length
        vectors = predicting(self.decoder.embeddings, input_ids, streams=streams, start=start)
        hidden = self.decoder.decode_vectors(vectors, attention_mask=attention_mask, source=source, cache=cache)
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

        Where the decoder is given nothing, it reads the same text as the encoder, one place later: so BART classifies
        (Lewis et al. 2020, section 3.1).
        """
        if decoder_input_ids is None:
            decoder_input_ids = input_ids.roll(1, dims=1)
            decoder_input_ids[:, 0] = self.decoder_start_token_id
            decoder_attention_mask = context.get("attention_mask")
        return self.decode(
            decoder_input_ids, self.encode(input_ids, **context), decoder_attention_mask=decoder_attention_mask
        )


Backbone = Encoder | EncoderDecoder
