"""`Model.generate`, and generation of one text token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from homespun.attention.full import DotProduct
from homespun.errors import TooLong, UserError
from homespun.models.backbone import Backbone
from homespun.models.generation.search import BeamSearch, Ends, GenerationTask, sample, uniforms
from homespun.models.generation.settings import GenerationConfig, SpecialTokens
from homespun.models.generation.steps import Prompt, Writer, start
from homespun.models.heads import LanguageModelHead
from homespun.nn.eval_mode import eval_mode


class GenerativeModel(Protocol):
    """Parts of `homespun.models.model.Model` that generation uses."""

    backbone: Backbone
    head: nn.Module | None
    special_tokens: SpecialTokens


def generate(
    model: GenerativeModel,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    arguments: Mapping[str, object],
    *,
    context: Mapping[str, Tensor | None] | None = None,
    ends: Ends | None = None,
) -> Tensor:
    """Implement `Model.generate`, which has the shapes; ``ends``: see `Ends`."""
    present = {name: tensor for name, tensor in (context or {}).items() if tensor is not None}
    job = _prepare(model, input_ids, attention_mask, arguments, present, ends)
    config = job.config
    with eval_mode(job.backbone, job.head):
        parts = [(rows, _generate_rows(job, rows)) for rows in job.parts()]
    longest = max(tokens.shape[1] for _, tokens in parts)
    new = input_ids.new_full((len(input_ids), config.num_return_sequences, longest), config.pad_token_id)
    for rows, tokens in parts:
        new[rows, :, : tokens.shape[1]] = tokens.view(len(rows), config.num_return_sequences, -1)
    prompt = job.prefix.repeat_interleave(config.num_return_sequences, 0)
    return torch.cat([prompt, new.flatten(0, 1)], 1)


def stream(model: GenerativeModel, input_ids: Tensor, arguments: Mapping[str, object]) -> Iterator[int]:
    """Yield the new tokens of one text, (1, seq) ids.

    Raises:
        UserError: as in `Model.generate`; several texts or beams.
    """
    return _stream_tokens(prepare_one(model, input_ids, arguments))


def prepare_one(model: GenerativeModel, input_ids: Tensor, arguments: Mapping[str, object]) -> GenerationJob:
    """Validate the inputs of token-by-token generation of one text, (1, seq) ids; raises as `stream`."""
    job = _prepare(model, input_ids, None, arguments, {}, None)
    if job.config.num_beams > 1 or job.config.num_return_sequences > 1 or len(input_ids) > 1:
        raise UserError("streaming needs one text and no beams; remove num_beams and num_return_sequences")
    return job


@dataclass(frozen=True, eq=False)
class GenerationJob:
    """Validated inputs of a generation.

    Args:
        keep: (batch, seq) bool; None without padding.
        prefix: (batch, columns) ids before the new tokens in the result.
        max_new_tokens, min_new_tokens: maximum and minimum number of new tokens.
    """

    backbone: Backbone
    head: LanguageModelHead
    input_ids: Tensor
    keep: Tensor | None
    prefix: Tensor
    config: GenerationConfig
    context: dict[str, Tensor]
    ends: Ends | None
    max_new_tokens: int
    min_new_tokens: int

    def parts(self) -> list[Tensor]:
        """Return the (n,) rows that are generated together: all, or rows of equal length if positions are absolute."""
        rows = torch.arange(len(self.input_ids), device=self.input_ids.device)
        if self.keep is None or self.backbone.has_decoder or only_distances(self.backbone):
            return [rows]
        lengths = self.keep.sum(1)
        return [rows[lengths == length] for length in sorted(set(lengths.tolist()))]

    def prompt(self, rows: Tensor) -> Prompt:
        """Build the prompts of rows; an encoder reads its texts."""
        ids, keep = self.input_ids[rows], None if self.keep is None else self.keep[rows]
        if not self.backbone.has_decoder:
            return _pad_left(ids, keep)
        context = {name: tensor[rows] for name, tensor in self.context.items()}
        return Prompt(self.prefix[rows], source=self.backbone.encode(ids, attention_mask=keep, **context))

    def task(self, prompt: Prompt) -> GenerationTask:
        """Build the search for the continuations of prompts."""
        written = prompt.input_ids if prompt.keep is None else prompt.input_ids.where(prompt.keep, -1)
        return GenerationTask(self.config, written, self.max_new_tokens, self.min_new_tokens, self.ends)

    def uniforms(self, rows: Tensor) -> Tensor | None:
        """Draw (rows * num_return_sequences, most) random numbers; None: greedy."""
        if not self.config.do_sample:
            return None
        keep = torch.ones_like(self.input_ids, dtype=torch.bool) if self.keep is None else self.keep
        texts = [ids[real].tolist() for ids, real in zip(self.input_ids[rows], keep[rows], strict=True)]
        return uniforms(self.config.seed, texts, self.config.num_return_sequences, self.max_new_tokens)


def _prepare(
    model: GenerativeModel,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    arguments: Mapping[str, object],
    context: dict[str, Tensor],
    ends: Ends | None,
) -> GenerationJob:
    backbone, head = model.backbone, model.head
    if not isinstance(head, LanguageModelHead) or not (backbone.has_decoder or backbone.causal):
        raise UserError(
            f"this model cannot generate: it is {_describe(backbone, head)}; use a model of objective clm or an "
            f"encoder-decoder, or homespun predict for a classifier"
        )
    # tokenizers give zeros as token_type_ids
    unused = [name for name, value in context.items() if name != "token_type_ids" or bool(value.any())]
    if unused and not backbone.has_decoder:
        raise UserError(f"a causal model does not use {', '.join(unused)} in generation; leave it out")
    vocab_size = backbone.embeddings.vocab_size
    config = GenerationConfig.of(arguments, model.special_tokens, vocab_size)
    keep = _find_padding(input_ids, attention_mask, vocab_size)
    prefix = input_ids
    if backbone.has_decoder:
        prefix = input_ids[:, :1].new_full((len(input_ids), 1), config.decoder_start_token_id)
    longest = input_ids.shape[1] if keep is None else int(keep.sum(1).max())
    most, least = _count_new_tokens(config, backbone, prefix.shape[1], longest)
    return GenerationJob(backbone, head, input_ids, keep, prefix, config, context, ends, most, least)


def _find_padding(input_ids: Tensor, attention_mask: Tensor | None, vocab_size: int) -> Tensor | None:
    """Validate prompts and return their (batch, seq) bool mask, False at padding; None without padding."""
    keep = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    if input_ids.dim() != 2 or keep.shape != input_ids.shape:
        raise UserError(
            f"input_ids and attention_mask must be (batch, seq), not {tuple(input_ids.shape)} and {tuple(keep.shape)}"
        )
    if not input_ids.numel() or not bool(keep.any(1).all()):
        raise UserError("a prompt is empty; each prompt needs at least one token")
    lowest, highest = (int(id_) for id_ in input_ids.aminmax())
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise UserError(f"input_ids has {wrong}, which is not in a vocabulary of vocab_size={vocab_size}")
    return None if bool(keep.all()) else keep


def _count_new_tokens(config: GenerationConfig, backbone: Backbone, columns: int, longest: int) -> tuple[int, int]:
    """Return the maximum and minimum number of new tokens after ``columns`` ids; the longest prompt has ``longest``.

    Raises:
        UserError: the prompt is too long, or the requested number does not fit into the model.
    """
    limit = backbone.stacks[0].embeddings.max_position_embeddings
    if longest > limit:
        raise TooLong(
            f"a prompt of {longest} tokens exceeds max_position_embeddings={limit}; shorten it or extend the model"
        )
    most, least = config.steps(columns)
    start = 1 if backbone.has_decoder else longest
    room = backbone.embeddings.max_position_embeddings + 1 - start  # the last token is not read
    limited = config.max_new_tokens is not None or config.max_length is not None
    name, needed = ("max_new_tokens", most) if limited else ("min_new_tokens", least)
    if needed > room:
        raise UserError(
            f"{needed} new tokens exceed the {room} that the model can add to a prompt of {start} tokens; set "
            f"{name}={room}"
        )
    return min(most, room), least


def _describe(backbone: Backbone, head: nn.Module | None) -> str:
    stack = "a causal stack" if backbone.causal else "a bidirectional encoder"
    if backbone.has_decoder:
        stack = "an encoder-decoder"
    return f"{stack} with {'no head' if head is None else f'the head {type(head).__name__}'}"


def only_distances(stack: Backbone) -> bool:
    """True if attention patterns depend on distances only, so that prompts can be padded on the left."""
    sparse = [part.sparse for part in stack.modules() if isinstance(part, DotProduct)]
    return all(each.global_tokens is None and all(pattern.is_relative for pattern in each.patterns) for each in sparse)


def _pad_left(ids: Tensor, keep: Tensor | None) -> Prompt:
    """Move padding to the left and drop columns of padding."""
    if keep is None:
        return Prompt(ids)
    longest = int(keep.sum(1).max())
    order = keep.int().argsort(dim=1, stable=True)[:, -longest:]  # real tokens last
    keep = keep.gather(1, order)
    return Prompt(ids.gather(1, order), None if bool(keep.all()) else keep)


def _generate_rows(job: GenerationJob, rows: Tensor) -> Tensor:
    """Generate (rows * num_return_sequences, new) ids."""
    if job.config.num_beams == 1:
        return torch.stack(list(_sample_rows(job, rows)), 1)
    writer, prompt = Writer(job.backbone, job.head, steps=job.max_new_tokens), job.prompt(rows)
    with writer.packed():
        steps, logits = start(writer, prompt, use_cache=job.config.use_cache)
        return BeamSearch(job.task(prompt), len(rows), logits.shape[1], logits.device).run(steps, logits)


def _sample_rows(job: GenerationJob, rows: Tensor) -> Iterator[Tensor]:
    """Yield (rows * num_return_sequences,) ids of each step."""
    writer, prompt = Writer(job.backbone, job.head, steps=job.max_new_tokens), job.prompt(rows)
    with writer.packed():
        steps, logits = start(writer, prompt, use_cache=job.config.use_cache)
        yield from sample(job.task(prompt), steps, logits, job.uniforms(rows))


def _stream_tokens(job: GenerationJob) -> Iterator[int]:
    steps = _sample_rows(job, torch.arange(1, device=job.input_ids.device))
    while True:
        with eval_mode(job.backbone, job.head):  # not while the caller runs
            tokens = next(steps, None)
        if tokens is None:
            return
        yield int(tokens)
