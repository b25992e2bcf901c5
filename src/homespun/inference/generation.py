"""Text generation: complete texts or streamed pieces from prompts, and batches of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Unpack

import numpy as np
import torch

from homespun.data.rows import Row, pad
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.models.generation.search import Ends
from homespun.models.generation.settings import GenerationArguments, TextGenerationConfig
from homespun.models.generation.write import generate, stream
from homespun.models.model import Model
from homespun.text.tokenizer import Tokenizer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from an incomplete character
_KEPT = 4  # tokens of a text that are kept for its next ones
_CONTEXT = 16  # tokens that are decoded before new ones, for white space and characters at their end


@dataclass(frozen=True)
class GeneratedText:
    """Generated text without the end token and stop string, and its number of tokens."""

    text: str
    tokens: int


class TextPieces:
    """Text of new tokens in pieces, up to a stop string.

    A possible prefix of a stop string, or an incomplete character, is held back until the next tokens. The tokens
    continue the ids of ``prompt``; if it is empty, they are a text without the prompt.

    Attributes:
        stopped: True after a stop string.

    Raises:
        UserError: an empty stop string.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str]) -> None:
        _check_stop(stop)
        self.tokenizer, self.stop, self.stopped = tokenizer, tuple(stop), False
        self._before = prompt  # tokens before `_new`
        self._new: list[int] = []  # tokens whose text may change with the next token
        self._held = ""  # text before `_new` that was not returned
        self._returned = 0  # characters of `_held` and of the text of `_new` that were returned

    def add(self, token: int) -> str:
        """Add a token and return the next piece, which may be empty."""
        self._new.append(token)
        new = _decode_after(self.tokenizer, self._before, self._new)
        text = self._held + new
        end = _find_stop(text, self.stop)
        self.stopped = end is not None
        if end is None:
            finished = text.rstrip(_UNFINISHED)  # an unfinished character may continue a stop string
            end = len(finished) - max((_overlap(finished, string) for string in self.stop), default=0)
        piece, self._returned = text[self._returned : end], max(self._returned, end)
        if self.stopped:
            self._held, self._new, self._returned = "", [], 0
        elif new and new[-1] != _UNFINISHED:  # the text is final, so that each token is decoded once
            self._before = [*self._before, *self._new][-_KEPT:]
            self._held, self._new, self._returned = text[self._returned :], [], 0
        return piece

    def rest(self) -> str:
        """Return the text that was held back, at the end."""
        return (self._held + _decode_after(self.tokenizer, self._before, self._new))[self._returned :]


def _decode_after(tokenizer: Tokenizer, before: Sequence[int], new: Sequence[int]) -> str:
    """Decode ``new`` tokens with the white space and the characters that the tokens ``before`` require."""
    context = list(before[-_CONTEXT:])
    if context:
        known, full = tokenizer.decode(context), tokenizer.decode([*context, *new])
        if full.startswith(known):
            return full[len(known) :]
    return tokenizer.decode(new)


def _check_stop(stop: Sequence[str]) -> None:
    """Raise `UserError` for an empty stop string."""
    if "" in stop:
        raise UserError("a stop string is empty; remove it")


def _find_stop(text: str, stop: Sequence[str]) -> int | None:
    """Return the position of the first stop string; None without one."""
    return min((text.find(string) for string in stop if string in text), default=None)


def encode_prompt(model: Model, tokenizer: Tokenizer, prompt: str, *, subject: str = "the prompt is") -> list[int]:
    """Encode a prompt with the special tokens before it, for an encoder also after it.

    Raises:
        UserError: the prompt has no tokens.
    """
    has_encoder = model.backbone.has_decoder
    (ids,) = tokenizer.encode_batch([prompt])
    if not len(ids):
        raise UserError(f"{subject} empty; give the text to {'transform' if has_encoder else 'continue'}")
    begins, ends = tokenizer.template
    return [*begins, *ids.tolist(), *(ends if has_encoder else [])]


def _stop_condition(tokenizer: Tokenizer, stop: Sequence[str], *, has_encoder: bool) -> Ends | None:
    """Build a condition that the last new tokens contain a stop string; None without stop strings."""
    _check_stop(stop)
    if not stop:
        return None
    size = 4 * max(map(len, stop)) + _CONTEXT  # tokens of a byte each, and some without text

    def ends(prompt: list[int], new: list[int]) -> bool:
        before = [] if has_encoder else prompt
        text = _decode_after(tokenizer, [*before, *new[:-size]], new[-size:])
        return _find_stop(text, stop) is not None

    return ends


class TextGenerator:
    """Text generation with a language model.

    The special tokens of the tokenizer's template are added before a prompt, for an encoder also after it. Strings of
    ``stop`` end a text and are removed from it.

    Raises:
        UserError: an empty stop string.
    """

    def __init__(self, bundle: ModelBundle, *, stop: Sequence[str] = ()) -> None:
        self.model, self.tokenizer, self.stop = bundle.model, bundle.tokenizer, tuple(stop)
        self._has_encoder = self.model.backbone.has_decoder
        self._ends = _stop_condition(self.tokenizer, self.stop, has_encoder=self._has_encoder)

    def generate(
        self, prompts: Iterable[str], *, batch_size: int = 8, first: int = 1, **arguments: Unpack[GenerationArguments]
    ) -> Iterator[list[GeneratedText]]:
        """Yield one text or ``num_return_sequences`` texts for each prompt, in order; ``first`` is a number in errors.

        Raises:
            UserError: as in `homespun.models.model.Model.generate`; a prompt is empty; the batch size is below 1.
        """
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1")
        numbered = enumerate(prompts, first)
        device = next(self.model.parameters()).device
        while chunk := list(islice(numbered, batch_size)):
            encoded = [self._encode(prompt, f"prompt {number} is") for number, prompt in chunk]
            batch = pad([Row(np.array(ids)) for ids in encoded], self.tokenizer.pad_id).to(device)
            generated = generate(self.model, batch.input_ids, batch.attention_mask, arguments, ends=self._ends)
            rows = generated[:, 1 if self._has_encoder else batch.input_ids.shape[1] :].tolist()
            copies = len(rows) // len(encoded)
            for number, ids in enumerate(encoded):
                texts = rows[number * copies : (number + 1) * copies]
                yield [self._to_generated_text(ids, row, arguments) for row in texts]

    def stream(self, prompt: str, **arguments: Unpack[GenerationArguments]) -> Iterator[str]:
        """Yield the text of `generate` for one prompt in pieces.

        A possible prefix of a stop string, or an incomplete character, is held back until the next tokens.
        """
        ids = self._encode(prompt, "the prompt is")
        input_ids = torch.tensor([ids], device=next(self.model.parameters()).device)
        pieces = TextPieces(self.tokenizer, self._prompt(ids), self.stop)
        return self._stream_pieces(pieces, stream(self.model, input_ids, arguments), self._end_tokens(arguments))

    def _stream_pieces(self, pieces: TextPieces, tokens: Iterator[int], end_tokens: set[int]) -> Iterator[str]:
        for token in tokens:
            if token in end_tokens:
                break
            if piece := pieces.add(token):
                yield piece
            if pieces.stopped:
                return
        if rest := pieces.rest():
            yield rest

    def _encode(self, prompt: str, subject: str) -> list[int]:
        return encode_prompt(self.model, self.tokenizer, prompt, subject=subject)

    def _prompt(self, ids: list[int]) -> list[int]:
        """Return the tokens that a text continues."""
        return [] if self._has_encoder else ids

    def _end_tokens(self, arguments: GenerationArguments) -> set[int]:
        eos = arguments.get("eos_token_id", self.model.special_tokens.eos_token_id)
        return {eos} if isinstance(eos, int) else set(eos or ())

    def _to_generated_text(self, ids: list[int], row: list[int], arguments: GenerationArguments) -> GeneratedText:
        ends = self._end_tokens(arguments)
        length = next((index for index, token in enumerate(row) if token in ends), len(row))
        text, tokens = _decode_after(self.tokenizer, self._prompt(ids), row[:length]), min(length + 1, len(row))
        end = _find_stop(text, self.stop)
        if end is not None and self._ends is not None:  # padding follows
            tokens = next((size for size in range(1, length) if self._ends(ids, row[:size])), length)
        return GeneratedText(text[:end], tokens)


def _overlap(text: str, string: str) -> int:
    """Return the length of the longest suffix of ``text`` that is a proper prefix of ``string``."""
    return next((size for size in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:size])), 0)


def generate_batch(
    model: Model,
    sources: Sequence[Row],
    tokenizer: Tokenizer,
    *,
    end_id: int,
    max_new_tokens: int,
    generation: TextGenerationConfig,
    batch_size: int = 32,
) -> list[str]:
    """Generate a text for each of ``sources``, token ids with special tokens, in order.

    A text ends at ``end_id`` or at ``max_new_tokens``. Batches have ``batch_size`` sources, the longest first.
    """
    device = next(model.parameters()).device
    arguments: GenerationArguments = {
        "max_new_tokens": max_new_tokens,
        "eos_token_id": end_id,
        "pad_token_id": tokenizer.pad_id,
        "num_beams": generation.num_beams,
        "no_repeat_ngram_size": generation.no_repeat_ngram_size,
        "min_new_tokens": generation.min_new_tokens,
    }
    if generation.num_beams > 1:
        arguments["length_penalty"] = generation.length_penalty
    order = sorted(range(len(sources)), key=lambda index: -len(sources[index].input_ids))
    texts = [""] * len(sources)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        batch = pad([sources[index] for index in chosen], tokenizer.pad_id).to(device)
        ids = model.generate(
            batch.input_ids,
            batch.attention_mask,
            documents=batch.documents,
            position_ids=batch.position_ids,
            **arguments,
        )
        shown = 1 if model.backbone.has_decoder else batch.input_ids.shape[1]
        for index, row in zip(chosen, ids[:, shown:].tolist(), strict=True):
            texts[index] = tokenizer.decode(row).strip()
    return texts
