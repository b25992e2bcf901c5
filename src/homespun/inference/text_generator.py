"""Text generation from prompts: full texts, or streamed in pieces."""

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
from homespun.models.generation.settings import GenerationArguments
from homespun.models.generation.write import generate, stream

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from an incomplete character


@dataclass(frozen=True)
class GeneratedText:
    """Generated text without its end, and its number of tokens."""

    text: str
    tokens: int


class TextGenerator:
    """Generates text with a language model.

    A prompt has the special tokens of the tokenizer's template before it, for an encoder also those after it.

    Args:
        bundle: the model and its tokenizer.
        stop: strings that end a text, and are not part of it.

    Raises:
        UserError: an empty stop string.
    """

    def __init__(self, bundle: ModelBundle, *, stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise UserError("a stop string is empty; leave it out")
        self.model, self.tokenizer, self.stop = bundle.model, bundle.tokenizer, tuple(stop)
        self._has_encoder = self.model.backbone.has_decoder

    def generate(
        self, prompts: Iterable[str], *, batch_size: int = 8, **arguments: Unpack[GenerationArguments]
    ) -> Iterator[list[GeneratedText]]:
        """Yield the texts for each prompt, in order: one, or ``num_return_sequences``.

        Raises:
            UserError: as in `homespun.models.model.Model.generate`, or an empty prompt, or a batch size below 1.
        """
        if batch_size < 1:
            raise UserError(f"the batch size must be 1 or more, not {batch_size}")
        numbered = enumerate(prompts, start=1)
        device = next(self.model.parameters()).device
        ends = self._ends if self.stop else None
        while chunk := list(islice(numbered, batch_size)):
            encoded = [self._encoded(prompt, f"prompt {number} is") for number, prompt in chunk]
            batch = pad([Row(np.array(ids)) for ids in encoded], self.tokenizer.pad_id).to(device)
            found = generate(self.model, batch.input_ids, batch.attention_mask, arguments, ends=ends)
            rows = found[:, 1 if self._has_encoder else batch.input_ids.shape[1] :].tolist()
            copies = len(rows) // len(encoded)
            for number, ids in enumerate(encoded):
                yield [
                    self._to_generated_text(ids, row, arguments)
                    for row in rows[number * copies : (number + 1) * copies]
                ]

    def stream(self, prompt: str, **arguments: Unpack[GenerationArguments]) -> Iterator[str]:
        """Yield the text of `generate` for one prompt in pieces.

        A possible beginning of a stop string, or of a character, is held back until the next tokens decide.
        """
        ids = self._encoded(prompt, "the prompt is")
        device = next(self.model.parameters()).device
        given = torch.tensor([ids], device=device)
        return self._pieces(ids, stream(self.model, given, arguments, ends=self._ends if self.stop else None))

    def _pieces(self, ids: list[int], tokens: Iterator[int]) -> Iterator[str]:
        new: list[int] = []
        emitted = ""
        for token in tokens:
            new.append(token)
            text = self._text(ids, new)
            safe = len(text) - max((_overlap(text, string) for string in self.stop), default=0)
            while safe and text[safe - 1] == _UNFINISHED:
                safe -= 1
            if safe > len(emitted) and text.startswith(emitted):
                yield text[len(emitted) : safe]
                emitted = text[:safe]
        text = self._text(ids, new)
        if text.startswith(emitted) and len(text) > len(emitted):
            yield text[len(emitted) :]

    def _encoded(self, prompt: str, what: str) -> list[int]:
        (ids,) = self.tokenizer.encode_batch([prompt])
        if not len(ids):
            raise UserError(f"{what} empty; give the text to {'write of' if self._has_encoder else 'go on with'}")
        begins, ends = self.tokenizer.template
        return [*begins, *ids.tolist(), *(ends if self._has_encoder else [])]

    def _ends(self, new: list[int]) -> bool:
        text = self.tokenizer.decode(new)
        return any(string in text for string in self.stop)

    def _to_generated_text(self, ids: list[int], row: list[int], arguments: GenerationArguments) -> GeneratedText:
        given = arguments.get("eos_token_id", self.model.special_tokens.eos_token_id)
        ends = {given} if isinstance(given, int) else set(given or ())
        length = next((index for index, token in enumerate(row) if token in ends), len(row))
        return GeneratedText(self._text(ids, row[:length]), min(length + 1, len(row)))

    def _text(self, ids: list[int], new: list[int]) -> str:
        """Text of the new tokens after the prompt, up to a stop string."""
        text = self.tokenizer.decode(new)
        if not self._has_encoder:
            before = self.tokenizer.decode(ids)
            full = self.tokenizer.decode([*ids, *new])
            text = full[len(before) :] if full.startswith(before) else text
        positions = [text.find(string) for string in self.stop if string in text]
        return text[: min(positions)] if positions else text


def _overlap(text: str, string: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``string``."""
    return next((size for size in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:size])), 0)
