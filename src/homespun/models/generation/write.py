"""From texts to what a model writes of them or after them: `Model.generate`, and the same token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from homespun.attention.full import DotProduct
from homespun.errors import UserError
from homespun.models.backbone import Backbone
from homespun.models.generation.search import Beams, Ends, GenerationTask, one_by_one, uniforms
from homespun.models.generation.settings import GENERATION_TOKENS, GenerationConfig, check_beams
from homespun.models.generation.steps import Prompt, Writer, start
from homespun.models.heads import LanguageModelHead
from homespun.models.model import Model, eval_mode


def generate(
    model: Model,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    arguments: Mapping[str, object],
    *,
    context: Mapping[str, Tensor | None] | None = None,
    ends: Ends | None = None,
) -> Tensor:
    """See `Model.generate`. ``ends``: whether a text ends with these new tokens."""
    given = {name: tensor for name, tensor in (context or {}).items() if tensor is not None}
    job = _checked(model, input_ids, attention_mask, arguments, given, ends)
    config = job.config
    with eval_mode(model):
        parts = [(rows, _generate_rows(job, rows)) for rows in job.parts()]
    longest = max(tokens.shape[1] for _, tokens in parts)
    found = input_ids.new_full((len(input_ids), config.num_return_sequences, longest), config.pad_token_id)
    for rows, tokens in parts:
        found[rows, :, : tokens.shape[1]] = tokens.view(len(rows), config.num_return_sequences, -1)
    prompt = job.shown.repeat_interleave(config.num_return_sequences, 0)
    return torch.cat([prompt, found.flatten(0, 1)], 1)


def stream(
    model: Model,
    input_ids: Tensor,
    arguments: Mapping[str, object],
    *,
    ends: Ends | None = None,
) -> Iterator[int]:
    """The new tokens of one text, (1, seq) ids, one after the other as they are chosen.

    Raises:
        UserError: as in `Model.generate`; several texts, or beams, of which none is known before the end.
    """
    job = _checked(model, input_ids, None, arguments, {}, ends)
    if job.config.num_beams > 1 or job.config.num_return_sequences > 1 or len(input_ids) > 1:
        raise UserError("one text is streamed, and beams are compared at the end; leave out what makes several")
    return _streamed(job)


@dataclass(frozen=True, eq=False)
class _Job:
    """A checked call.

    Args:
        keep: (batch, seq) bool; None where nothing is padded.
        shown: (batch, columns) ids: the prompt as it comes back.
        most, least: new tokens.
    """

    model: Model
    backbone: Backbone
    head: LanguageModelHead
    input_ids: Tensor
    keep: Tensor | None
    shown: Tensor
    config: GenerationConfig
    context: dict[str, Tensor]
    ends: Ends | None
    most: int
    least: int

    def parts(self) -> list[Tensor]:
        """Numbers of the texts that are written together: all, or those of one length where places are absolute."""
        every = torch.arange(len(self.input_ids), device=self.input_ids.device)
        if self.keep is None or self.backbone.has_decoder or _only_distances(self.backbone):
            return [every]
        lengths = self.keep.sum(1)
        return [every[lengths == length] for length in sorted(set(lengths.tolist()))]


def _checked(
    model: Model,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    arguments: Mapping[str, object],
    context: dict[str, Tensor],
    ends: Ends | None,
) -> _Job:
    backbone, head = model.backbone, model.head
    if not isinstance(head, LanguageModelHead) or not (backbone.has_decoder or backbone.causal):
        raise UserError(
            f"this model does not write: it is {_kind(model)}; take one of objective clm or of an encoder with a "
            f"decoder, or homespun predict for a classifier"
        )
    config = GenerationConfig.of(arguments, model.special_tokens)
    keep = None if attention_mask is None else attention_mask.bool()
    if input_ids.dim() != 2 or (keep is not None and keep.shape != input_ids.shape):
        raise UserError(
            f"input_ids are (batch, seq) and attention_mask alike, not {tuple(input_ids.shape)} and "
            f"{None if keep is None else tuple(keep.shape)}"
        )
    if not input_ids.numel() or (keep is not None and not bool(keep.any(1).all())):
        raise UserError("a prompt is empty: give each at least one token, such as that which begins a text")
    vocab_size = backbone.embeddings.words.num_embeddings
    for name in arguments.keys() & GENERATION_TOKENS:
        given_ids = getattr(config, name)
        for token in given_ids if isinstance(given_ids, tuple) else (given_ids,):
            if token is not None and token >= vocab_size:
                raise UserError(f"{name}={token} is not in a vocabulary of vocab_size={vocab_size}")
    # a checkpoint may name an end that its vocabulary has not; then nothing but the length ends a text
    config = config.model_copy(update={"eos_token_id": tuple(t for t in config.eos_token_id if t < vocab_size)})
    least_id, most_id = (int(id_) for id_ in input_ids.aminmax())
    if least_id < 0 or most_id >= vocab_size:
        wrong = least_id if least_id < 0 else most_id
        raise UserError(f"input_ids has {wrong}, which is not in a vocabulary of vocab_size={vocab_size}")
    check_beams(config.num_beams, vocab_size)
    if keep is not None and bool(keep.all()):
        keep = None
    shown = input_ids
    if backbone.has_decoder:
        shown = input_ids[:, :1].new_full((len(input_ids), 1), config.decoder_start_token_id)
    most, least = config.steps(shown.shape[1])
    given = config.max_new_tokens is not None or config.max_length is not None
    most = _with_room(backbone, input_ids.shape[1] if keep is None else int(keep.sum(1).max()), most, given=given)
    return _Job(model, backbone, head, input_ids, keep, shown, config, context, ends, most, least)


def _with_room(backbone: Backbone, longest: int, most: int, *, given: bool) -> int:
    """Number of new tokens: the requested number, or as many as fit."""
    reach = backbone.stacks[0].embeddings.max_position_embeddings
    if longest > reach:
        raise UserError(
            f"a prompt of {longest} tokens is longer than the model, which reads max_position_embeddings={reach}; "
            f"shorten it, or stretch the model"
        )
    # what is written last is never read
    start = 1 if backbone.has_decoder else longest
    room = backbone.embeddings.max_position_embeddings + 1 - start
    if most > room and given:
        raise UserError(
            f"{most} new tokens were asked for, and the model has room for {room} after a prompt of "
            f"{start}; ask for at most max_new_tokens={room}"
        )
    return min(most, room)


def _kind(model: Model) -> str:
    """Name of the kind of a model that cannot generate."""
    backbone = model.backbone
    stack = "a causal stack" if backbone.causal else "an encoder whose tokens see later ones"
    if backbone.has_decoder:
        stack = "two stacks"
    return f"{stack} with {'no head' if model.head is None else f'the head {type(model.head).__name__}'}"


def _only_distances(stack: Backbone) -> bool:
    """True if attention uses relative positions only, so that prompts may be padded on the left."""
    sparse = [part.sparse for part in stack.modules() if isinstance(part, DotProduct)]
    return all(each.global_tokens is None and all(pattern.is_relative for pattern in each.patterns) for each in sparse)


def _prepare(job: _Job, rows: Tensor) -> tuple[GenerationTask, Writer, Prompt]:
    """Prepare prompts, steps and limits of these texts."""
    config = job.config
    ids, keep = job.input_ids[rows], None if job.keep is None else job.keep[rows]
    many = len(rows) * max(config.num_beams, config.num_return_sequences)
    writer = Writer(job.backbone, job.head, rows=many, steps=job.most)
    if job.backbone.has_decoder:
        context = {name: tensor[rows] for name, tensor in job.context.items()}
        prompt = Prompt(job.shown[rows], source=job.backbone.encode(ids, attention_mask=keep, **context))
    else:
        prompt = _on_the_right(ids, keep)
    written = prompt.input_ids if prompt.keep is None else prompt.input_ids.where(prompt.keep, -1)
    return GenerationTask(config, written, job.most, job.least, job.ends), writer, prompt


def _on_the_right(ids: Tensor, keep: Tensor | None) -> Prompt:
    """The texts with their padding before them, in as many columns as the longest has tokens."""
    if keep is None:
        return Prompt(ids)
    longest = int(keep.sum(1).max())
    order = keep.int().argsort(dim=1, stable=True)[:, -longest:]  # real tokens last
    keep = keep.gather(1, order)
    return Prompt(ids.gather(1, order), None if bool(keep.all()) else keep)


def _generate_rows(job: _Job, rows: Tensor) -> Tensor:
    """(rows * num_return_sequences, new) ids."""
    if job.config.num_beams == 1:
        return torch.stack(list(_one_by_one(job, rows)), 1)
    task, writer, prompt = _prepare(job, rows)
    with writer.lean():
        steps, logits = start(writer, prompt, use_cache=job.config.use_cache)
        return Beams(task, len(rows), logits.shape[1], logits.device).run(steps, logits)


def _one_by_one(job: _Job, rows: Tensor) -> Iterator[Tensor]:
    """(rows * num_return_sequences,) ids, step after step."""
    config = job.config
    task, writer, prompt = _prepare(job, rows)
    drawn = None
    if config.do_sample:
        keep = torch.ones_like(job.input_ids, dtype=torch.bool) if job.keep is None else job.keep
        texts = [ids[real].tolist() for ids, real in zip(job.input_ids[rows], keep[rows], strict=True)]
        drawn = uniforms(config.seed, texts, config.num_return_sequences, job.most)
    with writer.lean():
        steps, logits = start(writer, prompt, use_cache=config.use_cache)
        yield from one_by_one(task, steps, logits, drawn)


def _streamed(job: _Job) -> Iterator[int]:
    steps = _one_by_one(job, torch.arange(1, device=job.input_ids.device))
    while True:
        with eval_mode(job.model):  # not while the caller has the word
            tokens = next(steps, None)
        if tokens is None:
            return
        yield int(tokens)
