"""The projection to the vocabulary, its cross entropy, and a sample from it, without ever holding all the logits.

A vocabulary of 30,522 and 600 targets are 75 MB of logits, and plain autograd holds about four such tables. Here the
targets are worked through in chunks, and the gradient of each chunk is formed while its probabilities are at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from homespun.nn.torch_private import FunctionContext

_CHUNK = 12 * 2**20  # logits held at once: 48 MB in float32
_ROWS = 256  # of targets, at once on a CPU: more leave its cache between two passes, fewer make the products slower
_BLOCK = 512  # of the vocabulary, in one product on a CPU: a product as wide as all of it takes 1.6 times as long

repeat_context: ContextVar[Callable[[int], AbstractContextManager[None]] | None] = ContextVar(
    "repeat_context", default=None
)
"""Set while `homespun.planning.tracer.StepTracer` is active, whose tensors have no values: of n equal iterations one
runs, in ``repeat_context.get()(n)``, which counts it n times."""


@dataclass(frozen=True)
class TokenPrediction:
    """Results of a projection to the vocabulary at its targets."""

    loss: Tensor  # () sum of the cross entropies, differentiable
    correct: Tensor  # () how many targets have the highest logit
    samples: Tensor | None  # (targets,) token ids drawn from the softmax, where uniforms were given


def predict_tokens(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    *,
    uniforms: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> TokenPrediction:
    """Cross entropy of ``softmax(hidden weight^T + bias)`` against ``labels``, summed, in bounded memory.

    Args:
        hidden: (targets, size); only rows that have a label.
        weight: (vocab, size).
        bias: (vocab,).
        labels: (targets,) int64; one below 0 is none, and counts for nothing.
        uniforms: (targets,) in [0, 1); where given, one token a target is drawn by inverting the distribution
            function: the law of `torch.multinomial` for one random number a row instead of one a logit.
        label_smoothing: share of the truth that is spread evenly over the vocabulary, as in
            `torch.nn.functional.cross_entropy` (Szegedy et al. 2016).
    """
    hidden = as_in_autocast(hidden)
    enabled = torch.is_grad_enabled()  # inside the function it is always off, and what is needed never says so
    loss, correct, samples = _PredictTokens.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, labels, uniforms, label_smoothing, enabled
    )
    return TokenPrediction(loss, correct, None if uniforms is None else samples)


class _PredictTokens(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionContext,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        uniforms: Tensor | None,
        smoothing: float,
        enabled: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs_gradient = enabled and any(ctx.needs_input_grad[:3])
        loss = torch.zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        samples = torch.empty_like(labels)
        grad_hidden = torch.empty_like(hidden) if needs_gradient else None
        grad_weight = torch.zeros_like(weight) if needs_gradient else None
        grad_bias = torch.zeros_like(bias) if needs_gradient else None
        narrow_weight, narrow_bias = weight.to(hidden.dtype), bias.to(hidden.dtype)
        rows = max(1, _CHUNK // len(weight))
        if hidden.device.type == "cpu":
            rows = min(rows, _ROWS)
        for start in _iterations(range(0, len(labels), rows)):
            part = slice(start, start + rows)
            chunk, truth = hidden[part], labels[part][:, None]
            labelled, truth = truth >= 0, truth.clamp(min=0)
            logits = logits_of(chunk, narrow_weight, narrow_bias).to(loss.dtype)  # (rows, vocab)
            top = logits.amax(-1, keepdim=True)
            label_logit = logits.gather(-1, truth)
            wanted_logit = label_logit
            if smoothing:
                wanted_logit = torch.lerp(label_logit, logits.mean(-1, keepdim=True), smoothing)
            exponentials = logits.sub_(top).exp_()
            total = exponentials.sum(-1, keepdim=True)
            loss += torch.where(labelled, total.log() + top - wanted_logit, 0.0).sum()
            correct += (labelled & (label_logit >= top)).sum()
            if uniforms is not None:
                samples[part] = _invert(exponentials, uniforms[part][:, None])
            if grad_hidden is not None and grad_weight is not None and grad_bias is not None:
                # d loss / d logits = probabilities - one-hot labels; without a label that over infinity is zero
                gradient = exponentials.div_(torch.where(labelled, total, torch.inf))
                share = labelled.to(gradient.dtype)
                if smoothing:
                    gradient.sub_(share, alpha=smoothing / gradient.shape[-1])
                gradient.scatter_add_(-1, truth, share * (smoothing - 1))
                grad_bias += gradient.sum(0)
                gradient = gradient.to(chunk.dtype)
                grad_hidden[part] = gradient @ narrow_weight
                add_product(grad_weight, gradient, chunk)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(correct, samples)
        return loss, correct, samples

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        hidden, weight, bias = ctx.saved_tensors
        return (
            hidden * scale.to(hidden.dtype) if ctx.needs_input_grad[0] else None,
            weight * scale.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            bias * scale.to(bias.dtype) if ctx.needs_input_grad[2] else None,
            None,
            None,
            None,
            None,
        )


def _iterations(starts: range) -> Iterable[int]:
    """``starts``; while a step is traced the first, the second for all that equal it, and the last."""
    repeat = None if torch.compiler.is_compiling() else repeat_context.get()  # a context variable breaks the graph
    return starts if repeat is None or len(starts) < 4 else _distinct(starts, repeat)


def _distinct(starts: range, repeat: Callable[[int], AbstractContextManager[None]]) -> Iterator[int]:
    yield starts[0]
    with repeat(len(starts) - 2):
        yield starts[1]
    yield starts[-1]


def as_in_autocast(hidden: Tensor) -> Tensor:
    """Cast as autocast does for a linear layer, if to bfloat16: custom functions are outside of autocast.

    What comes out of a norm, or of a sum with the embeddings, is float32 otherwise. Float16 is left alone, whose range
    small gradients leave.
    """
    device = hidden.device.type
    narrow = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
    return hidden.bfloat16() if narrow and hidden.dtype == torch.float32 else hidden


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """``total += left^T right``, in bfloat16 where both are: each product is rounded, as in autocast, their sum is not.

    What is narrower in any other way is multiplied in the type of ``total``.
    """
    if left.dtype == torch.bfloat16:
        total += left.T @ right
    else:
        total.addmm_(left.to(total.dtype).T, right.to(total.dtype))


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(rows, size) -> (rows, vocab), in the type of ``hidden``."""
    weight, bias = weight.to(hidden.dtype), bias.to(hidden.dtype)
    if hidden.device.type != "cpu":
        return F.linear(hidden, weight, bias)
    logits = hidden.new_empty(len(hidden), len(weight))
    for start in _iterations(range(0, len(weight), _BLOCK)):
        block = slice(start, start + _BLOCK)
        torch.addmm(bias[block], hidden, weight[block].T, out=logits[:, block])
    return logits


def _invert(exponentials: Tensor, uniforms: Tensor) -> Tensor:
    """(rows,) ids: the first place where the running sum passes ``uniforms * total``; found by block, then inside it.

    The two steps read the table once and write only its block sums, where a running sum over all would write a second
    table.
    """
    vocab = exponentials.shape[1]
    width = 128
    blocks = vocab // width
    sums = exponentials[:, : blocks * width].reshape(len(exponentials), blocks, width).sum(-1)  # (rows, blocks)
    sums = torch.cat([sums, exponentials[:, blocks * width :].sum(-1, keepdim=True)], dim=-1)
    running = sums.cumsum(-1)
    threshold = uniforms.to(running.dtype) * running[:, -1:]
    block = torch.searchsorted(running, threshold, right=True).clamp_(max=blocks)
    rest = threshold - torch.where(block > 0, running.gather(-1, (block - 1).clamp(min=0)), 0.0)
    positions = block * width + torch.arange(width, device=block.device)  # (rows, width); beyond the end: no mass
    inside = torch.where(positions < vocab, exponentials.gather(-1, positions.clamp(max=vocab - 1)), 0.0).cumsum(-1)
    offset = torch.searchsorted(inside, rest.clamp(min=0.0), right=True)
    # rounding may leave `rest` at or past the block's end: then the last place there that has any mass
    last = (inside < inside[:, -1:]).sum(-1, keepdim=True)
    return (block * width + torch.minimum(offset, last)).clamp_(max=vocab - 1).squeeze(-1)


_SOFT_CHUNK = 4 * 2**20  # logits held at once, of each of three tables


@dataclass(frozen=True)
class VocabLogits:
    """A projection to the vocabulary, and what goes into it.

    Attributes:
        features: (targets, size).
        weight: (vocab, size).
        bias: (vocab,).
    """

    features: Tensor
    weight: Tensor
    bias: Tensor

    def first(self, words: int) -> VocabLogits:
        """Logits of the first words alone: released vocabularies are padded to different round numbers."""
        return VocabLogits(self.features, self.weight[:words], self.bias[:words])


def soft_token_loss(student: VocabLogits, teacher: VocabLogits, *, temperature: float) -> Tensor:
    """() sum over the targets of ``T^2 KL(teacher || student)``, both at the temperature ``T``.

    The factor keeps the gradient as large at every temperature. It is 0 where both have the same logits.
    """
    words = min(len(student.weight), len(teacher.weight))
    student, teacher = student.first(words), teacher.first(words)
    enabled = torch.is_grad_enabled()  # inside the function it is always off
    loss: Tensor = _SoftTokens.apply(  # type: ignore[no-untyped-call]
        *(as_in_autocast(student.features), student.weight, student.bias),
        *(as_in_autocast(teacher.features.detach()), teacher.weight.detach(), teacher.bias.detach()),
        temperature,
        enabled,
    )
    return loss


def soft_label_loss(logits: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
    """(texts, classes) of each -> (texts,) ``T^2 KL(teacher || student)``."""
    student, target = (F.log_softmax(values.float() / temperature, dim=-1) for values in (logits, teacher.detach()))
    return F.kl_div(student, target, log_target=True, reduction="none").sum(-1) * temperature**2


def binary_log_probs(logits: Tensor) -> Tensor:
    """(texts, labels) logits of labels that do not exclude each other -> (texts, labels, 2) of no and yes."""
    return torch.stack([torch.zeros_like(logits), logits], dim=-1)


class _SoftTokens(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionContext,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        teacher_bias: Tensor,
        temperature: float,
        enabled: bool,
    ) -> Tensor:
        needs_gradient = enabled and any(ctx.needs_input_grad[:3])
        kind = torch.promote_types(hidden.dtype, torch.float32)
        loss = torch.zeros((), dtype=kind, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if needs_gradient else None
        grad_weight = torch.zeros_like(weight) if needs_gradient else None
        grad_bias = torch.zeros_like(bias) if needs_gradient else None
        narrow_weight, narrow_bias = weight.to(hidden.dtype), bias.to(hidden.dtype)
        rows = max(1, _SOFT_CHUNK // len(weight))
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            chunk = hidden[part]
            student = logits_of(chunk, narrow_weight, narrow_bias).to(kind).div_(temperature)  # (rows, vocab)
            student = _log_softmax(student)
            truth = logits_of(teacher_hidden[part], teacher_weight, teacher_bias).to(kind).div_(temperature)
            truth = _log_softmax(truth)
            share = truth.exp()
            loss += torch.dot(share.flatten(), truth.sub_(student).flatten()) * temperature**2
            if grad_hidden is not None and grad_weight is not None and grad_bias is not None:
                # d loss / d logits = T (student's probabilities - teacher's)
                gradient = student.exp_().sub_(share).mul_(temperature)
                grad_bias += gradient.sum(0)
                gradient = gradient.to(chunk.dtype)
                grad_hidden[part] = gradient @ narrow_weight
                add_product(grad_weight, gradient, chunk)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return loss

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        made = [
            gradient * scale.to(gradient.dtype) if needed else None
            for gradient, needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        ]
        return (*made, None, None, None, None, None)


def _log_softmax(logits: Tensor) -> Tensor:
    """In place."""
    return logits.sub_(logits.logsumexp(-1, keepdim=True))
