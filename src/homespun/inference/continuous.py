"""Continuous batching: texts of many requests are generated together, and join and leave between steps.

Texts of a causal model with a cache share each step: one product of the weights with a row for each text. Other models
(encoder-decoders, attention without a cache, patterns of absolute positions) advance one text at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from homespun.errors import UserError
from homespun.inference.generation import GeneratedText, TextPieces, encode_prompt
from homespun.models.bundle import ModelBundle
from homespun.models.generation.settings import GenerationArguments
from homespun.models.generation.steps import CachedSteps, Prompt, RaggedSteps, Steps, Writer, start
from homespun.models.generation.write import only_distances, prepare_one
from homespun.nn.eval_mode import eval_mode

_PROMPT_TOKENS = 256  # read between two steps, so that a long prompt does not delay other texts
_MANY_STEPS = 2**31  # packing always pays

Finish = Literal["stop", "length", "cancelled"]


class GenerationRequest:
    """Text to generate, made by `ContinuousGenerator.request`.

    Attributes:
        prompt_tokens: number of tokens of the prompt.
        ids: (1, maximum length) int64; the first ``tokens`` are the new tokens.
        tokens: number of new tokens.
        finish_reason: "stop" at an end token or a stop string, "length" at the maximum length, "cancelled"; None: not
            finished.
    """

    def __init__(self, bundle: ModelBundle, prompt: str, stop: Sequence[str], arguments: GenerationArguments) -> None:
        ids = encode_prompt(bundle.model, bundle.tokenizer, prompt)
        input_ids = torch.tensor([ids], device=next(bundle.model.parameters()).device)
        self.job = prepare_one(bundle.model, input_ids, arguments)
        self.prompt_tokens, self.tokens = len(ids), 0
        self.finish_reason: Finish | None = None
        row = torch.zeros(1, dtype=torch.int64, device=input_ids.device)
        self._task = self.job.task(Prompt(self.job.prefix))
        self._uniforms = self.job.uniforms(row)
        self.ids = input_ids.new_empty(1, self.job.max_new_tokens)
        self._pieces = TextPieces(bundle.tokenizer, [] if self.job.backbone.has_decoder else ids, stop)

    def prompt(self) -> Prompt:
        """Prompt; an encoder reads its text."""
        return self.job.prompt(torch.zeros(1, dtype=torch.int64, device=self.ids.device))

    @property
    def last(self) -> Tensor:
        """(1,) last new token."""
        return self.ids[0, self.tokens - 1 : self.tokens]

    def take(self, logits: Tensor) -> str:
        """Choose the next token from (1, vocab) logits and return the new piece of text, which may be empty."""
        uniforms = None if self._uniforms is None else self._uniforms[:, self.tokens]
        token = int(self._task.choose(logits, self.ids[:, : self.tokens], uniforms))
        self.ids[:, self.tokens] = token
        self.tokens += 1
        ended = token in self.job.config.eos_token_id
        piece = "" if ended else self._pieces.add(token)
        if ended or self._pieces.stopped:
            self.finish_reason = "stop"
        elif self.tokens == self.job.max_new_tokens:
            self.finish_reason = "length"
        return piece if self.finish_reason is None else piece + self._pieces.rest()

    def end(self, reason: Finish) -> str:
        """End the text before its next token, and return the text that was held back."""
        if self.finish_reason is not None:
            return ""
        self.finish_reason = reason
        return self._pieces.rest()


class ContinuousGenerator:
    """Generator of many concurrent texts with a language model, for one thread.

    A request has the same text as with `homespun.inference.generation.TextGenerator`, whichever requests run with it.
    Packs the weights of linear layers for a CPU until `close`, which stores a second copy of them. A step has at most
    ``max_rows`` texts.

    Raises:
        UserError: the model cannot generate; ``max_rows`` is below 1.

    Example:
        >>> generator = ContinuousGenerator(bundle)
        >>> generator.add(generator.request("Revenue rose", max_new_tokens=20))
        >>> while generator.requests:
        ...     for request, piece in generator.step():
        ...         print(piece, end="")
    """

    def __init__(self, bundle: ModelBundle, *, max_rows: int = 16) -> None:
        if max_rows < 1:
            raise UserError(f"max_rows={max_rows} must be at least 1")
        self.bundle, self.max_rows, model = bundle, max_rows, bundle.model
        self._device = next(model.parameters()).device
        self._waiting: deque[GenerationRequest] = deque()
        self._reading: _Reading | None = None
        self._read_last = False
        self._rows: list[GenerationRequest] = []  # requests of the shared steps
        self._single: dict[GenerationRequest, Steps] = {}  # requests with separate steps
        job = prepare_one(model, torch.zeros(1, 1, dtype=torch.int64, device=self._device), {})
        self._writer = Writer(job.backbone, job.head, steps=_MANY_STEPS)
        self._packed = ExitStack()
        self._packed.enter_context(self._writer.packed())
        with eval_mode(model):
            steps, _ = start(
                self._writer, job.prompt(torch.zeros(1, dtype=torch.int64, device=self._device)), use_cache=True
            )
        self._use_cache = isinstance(steps, CachedSteps)
        self._is_shared = self._use_cache and not job.backbone.has_decoder and only_distances(job.backbone)
        self._steps = RaggedSteps(self._writer)

    def close(self) -> None:
        """Remove the packed weights."""
        self._packed.close()

    @property
    def requests(self) -> list[GenerationRequest]:
        """Unfinished requests."""
        reading = [] if self._reading is None else self._reading.requests
        return [*self._rows, *self._single, *reading, *self._waiting]

    def request(
        self, prompt: str, *, stop: Sequence[str] = (), **arguments: Unpack[GenerationArguments]
    ) -> GenerationRequest:
        """Validate a request; callable from any thread.

        Raises:
            UserError: as in `homespun.inference.generation.TextGenerator.stream`.
        """
        return GenerationRequest(self.bundle, prompt, stop, arguments)

    def add(self, request: GenerationRequest) -> None:
        """Start a request at one of the next steps."""
        self._waiting.append(request)

    def generate(
        self,
        prompts: Iterable[str],
        *,
        stop: Sequence[str] = (),
        first: int = 1,
        **arguments: Unpack[GenerationArguments],
    ) -> Iterator[GeneratedText]:
        """Yield a text for each prompt, in order; texts run together, and ``2 max_rows`` prompts are read ahead.

        Texts end before a string of ``stop``. Errors number prompts from ``first``.

        Raises:
            UserError: as in `request`.
        """
        pieces: dict[GenerationRequest, list[str]] = {}

        def advance(most: int) -> Iterator[GeneratedText]:
            while len(self.requests) > most:
                for request, piece in self.step():
                    pieces[request].append(piece)
            while pieces and (oldest := next(iter(pieces))).finish_reason is not None:
                yield GeneratedText("".join(pieces.pop(oldest)), oldest.tokens)

        try:
            for number, prompt in enumerate(prompts, first):
                try:
                    request = self.request(prompt, stop=stop, **arguments)
                except UserError as error:
                    raise UserError(f"prompt {number}: {error}") from error
                pieces[request] = []
                self.add(request)
                yield from advance(2 * self.max_rows)
            yield from advance(0)
        finally:  # the caller may stop early, and a prompt may be invalid
            for request in pieces:
                request.end("cancelled")

    def step(self) -> list[tuple[GenerationRequest, str]]:
        """Read prompts, or add a token to each text.

        Removes requests that ended, by a token, by their length or by `GenerationRequest.end`.

        Returns:
            The requests that advanced, and their new pieces of text.
        """
        self._waiting = deque(request for request in self._waiting if request.finish_reason is None)
        self._leave()
        with eval_mode(self.bundle.model):
            running = len(self._rows) + len(self._single)
            can_read = self._reading is not None or (self._waiting and running < self.max_rows)
            self._read_last = bool(can_read and not (running and self._read_last))
            pieces = (self._read() if self._is_shared else self._start()) if self._read_last else self._advance()
        self._leave()
        return pieces

    def _read(self) -> list[tuple[GenerationRequest, str]]:
        """Read tokens of prompts; returns the prompts that are complete, with their first new tokens."""
        if self._reading is None:
            requests = [self._waiting.popleft()]
            longest = requests[0].prompt_tokens
            while self._waiting and len(requests) + len(self._rows) < self.max_rows:
                longest = max(longest, self._waiting[0].prompt_tokens)
                if longest * (len(requests) + 1) > _PROMPT_TOKENS:
                    break
                requests.append(self._waiting.popleft())
            self._reading = _Reading(requests, RaggedSteps(self._writer))
        reading, self._reading = self._reading, None  # a failure removes its prompts
        hidden = reading.read(_PROMPT_TOKENS)
        if hidden is None:
            self._reading = reading
            return []
        self._steps.join(reading.steps)
        self._rows += reading.requests
        return _take(reading.requests, self._writer.logits(hidden))

    def _start(self) -> list[tuple[GenerationRequest, str]]:
        request = self._waiting.popleft()
        self._single[request], logits = start(self._writer, request.prompt(), use_cache=self._use_cache)
        return _take([request], logits)

    def _advance(self) -> list[tuple[GenerationRequest, str]]:
        pieces: list[tuple[GenerationRequest, str]] = []
        if self._rows:
            pieces += _take(self._rows, self._steps.advance(torch.cat([request.last for request in self._rows])))
        for request, steps in self._single.items():
            pieces += _take([request], steps.advance(request.last, None))
        return pieces

    def _leave(self) -> None:
        """Remove requests that ended."""
        for row in range(len(self._rows) - 1, -1, -1):
            if self._rows[row].finish_reason is not None:
                self._steps.drop(row)
                self._rows[row] = self._rows[-1]
                self._rows.pop()
        self._single = {request: steps for request, steps in self._single.items() if request.finish_reason is None}
        if self._reading is not None and all(request.finish_reason for request in self._reading.requests):
            self._reading = None


@dataclass
class _Reading:
    """Prompts that are read together, padded on the left."""

    requests: list[GenerationRequest]
    steps: RaggedSteps

    def read(self, tokens: int) -> Tensor | None:
        """Read at most ``tokens`` tokens of each prompt; return the last hidden states, (rows, hidden), at the end."""
        ids = pad_sequence([each.job.input_ids[0] for each in self.requests], batch_first=True, padding_side="left")
        lengths = torch.tensor([each.prompt_tokens for each in self.requests], device=ids.device)
        start = self.steps.cache.length
        rest = max(ids.shape[1] - start - tokens, 0)
        hidden = self.steps.read(ids[:, start : ids.shape[1] - rest], (lengths - rest).clamp(min=0))
        return None if rest else hidden


def _take(requests: Sequence[GenerationRequest], logits: Tensor) -> list[tuple[GenerationRequest, str]]:
    """Choose the next pieces of running requests from (requests, vocab) logits."""
    pairs = zip(requests, logits[:, None], strict=True)
    return [(request, request.take(row)) for request, row in pairs if request.finish_reason is None]
