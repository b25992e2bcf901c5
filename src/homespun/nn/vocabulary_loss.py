"""Cross-entropy, samples and distillation loss of a projection to the vocabulary, in bounded memory.

The logits of 600 targets and 30,522 tokens take 75 MB, and autograd stores about four such tables. Here targets are
processed in chunks, and the gradient of each chunk is computed in the forward pass. `torch.compile` would recompile the
loop for each number of targets, so it is disabled here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from homespun.nn.torch_private import FunctionContext, disable_compile

_CHUNK = 12 * 2**20  # logits in memory at once: 48 MB in float32
_GPU_CHUNK = 64 * 2**20  # bytes on a GPU; smaller chunks leave it waiting for the CPU
_ROWS = 256  # targets at once on a CPU: more exceed its cache, fewer make products slower
_BLOCK = 512  # tokens of the vocabulary in one product on a CPU: one product for all takes 1.6 times as long

repeat_context: ContextVar[Callable[[int], AbstractContextManager[None]] | None] = ContextVar(
    "repeat_context", default=None
)
"""Set by `homespun.planning.tracer.StepTracer`: of n equal iterations one runs, in ``repeat_context.get()(n)``, which
counts it n times."""


@dataclass(frozen=True)
class TokenPrediction:
    """Result of `predict_tokens`."""

    loss: Tensor  # () sum of the cross entropies
    correct: Tensor  # () int64 number of labels with the highest logit
    samples: Tensor | None  # (targets,) token ids drawn from the softmax if uniforms are given


@disable_compile
def predict_tokens(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    *,
    uniforms: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> TokenPrediction:
    """Compute the sum of the cross-entropies of ``softmax(hidden weight^T + bias)`` and ``labels``.

    Memory is bounded.

    Args:
        hidden: (targets, size).
        weight: (vocab, size).
        bias: (vocab,).
        labels: (targets,) int64; negative labels are ignored.
        uniforms: (targets,) in [0, 1) to draw one token a target by inverting the distribution function.
        label_smoothing: as in `torch.nn.functional.cross_entropy` (Szegedy et al. 2016).
    """
    hidden = as_in_autocast(hidden)
    enabled = torch.is_grad_enabled()  # always off inside the function
    loss, correct, samples = _PredictTokens.apply(hidden, weight, bias, labels, uniforms, label_smoothing, enabled)
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
        gradients = _new_gradients(ctx, enabled, hidden, weight, bias)
        loss = torch.zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        samples = torch.empty_like(labels)
        narrow_weight, narrow_bias = weight.to(hidden.dtype), bias.to(hidden.dtype)
        on_cpu = hidden.device.type == "cpu"
        rows = max(1, (_CHUNK if on_cpu else _GPU_CHUNK) // len(weight))
        if on_cpu:
            rows = min(rows, _ROWS)
        for start in _iterations(range(0, len(labels), rows)):
            part = slice(start, start + rows)
            chunk, truth = hidden[part], labels[part][:, None]
            labelled, truth = truth >= 0, truth.clamp(min=0)
            logits = logits_of(chunk, narrow_weight, narrow_bias).to(loss.dtype)  # (rows, vocab)
            top = logits.amax(-1, keepdim=True)
            label_logit = logits.gather(-1, truth)
            target_logit = label_logit
            if smoothing:
                target_logit = torch.lerp(label_logit, logits.mean(-1, keepdim=True), smoothing)
            exponentials = logits.sub_(top).exp_()
            total = exponentials.sum(-1, keepdim=True)
            loss += torch.where(labelled, total.log() + top - target_logit, 0.0).sum()
            correct += (labelled & (label_logit >= top)).sum()
            if uniforms is not None:
                samples[part] = _invert(exponentials, uniforms[part][:, None])
            if gradients is not None:
                # d loss / d logits = probabilities - one-hot labels; divided by infinity, it is zero without a label
                gradient = exponentials.div_(torch.where(labelled, total, torch.inf))
                share = labelled.to(gradient.dtype)
                if smoothing:
                    gradient.sub_(share, alpha=smoothing / gradient.shape[-1])
                gradient.scatter_add_(-1, truth, share * (smoothing - 1))
                _add_gradients(gradients, part, gradient, chunk, narrow_weight)
        ctx.save_for_backward(*(gradients or ()))
        ctx.mark_non_differentiable(correct, samples)
        return loss, correct, samples

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled_gradients(ctx, gradients[0]), None, None, None, None


def _new_gradients(
    ctx: FunctionContext, enabled: bool, hidden: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    if not enabled or not any(ctx.needs_input_grad[:3]):
        return None
    return torch.empty_like(hidden), torch.zeros_like(weight), torch.zeros_like(bias)


def _add_gradients(
    gradients: tuple[Tensor, Tensor, Tensor], part: slice, d_logits: Tensor, chunk: Tensor, weight: Tensor
) -> None:
    """Add the gradients of a chunk of targets, given ``d_logits`` (rows, vocab)."""
    d_hidden, d_weight, d_bias = gradients
    d_bias += d_logits.sum(0)
    d_logits = d_logits.to(chunk.dtype)
    d_hidden[part] = d_logits @ weight
    add_product(d_weight, d_logits, chunk)


def _scaled_gradients(ctx: FunctionContext, scale: Tensor) -> list[Tensor | None]:
    return [
        gradient * scale.to(gradient.dtype) if needed else None
        for gradient, needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
    ]


def _iterations(starts: range) -> Iterator[int]:
    """Yield ``starts``; while a step is traced, only the first, the second for all equal iterations, and the last."""
    repeat = repeat_context.get()
    if repeat is None or len(starts) < 4:
        yield from starts
        return
    yield starts[0]
    with repeat(len(starts) - 2):
        yield starts[1]
    yield starts[-1]


def as_in_autocast(hidden: Tensor) -> Tensor:
    """Cast float32 to bfloat16 if autocast would do so for a linear layer.

    Autocast does not apply to custom functions. Does not cast to float16, whose range is too small for the gradients.
    """
    device = hidden.device.type
    narrow = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
    return hidden.bfloat16() if narrow and hidden.dtype == torch.float32 else hidden


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``left^T right`` to ``total``; bfloat16 factors are multiplied in bfloat16, others as ``total``."""
    if left.dtype == torch.bfloat16:
        total += left.T @ right
    else:
        total.addmm_(left.to(total.dtype).T, right.to(total.dtype))


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Map (rows, size) to (rows, vocab) in the dtype of ``hidden``."""
    weight, bias = weight.to(hidden.dtype), bias.to(hidden.dtype)
    if hidden.device.type != "cpu":
        return F.linear(hidden, weight, bias)
    logits = hidden.new_empty(len(hidden), len(weight))
    for start in _iterations(range(0, len(weight), _BLOCK)):
        block = slice(start, start + _BLOCK)
        torch.addmm(bias[block], hidden, weight[block].T, out=logits[:, block])
    return logits


def _invert(exponentials: Tensor, uniforms: Tensor) -> Tensor:
    """Return (rows,) ids: the first index where the running sum exceeds ``uniforms * total``.

    Computed by blocks of 128 tokens: only their sums are written, where a running sum over all tokens would write a
    second table.
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
    # after rounding, `rest` may reach the end of the block: take the last token with any mass
    last = (inside < inside[:, -1:]).sum(-1, keepdim=True)
    return (block * width + torch.minimum(offset, last)).clamp_(max=vocab - 1).squeeze(-1)


_SOFT_CHUNK = 4 * 2**20  # logits in memory at once, in each of three tables


@dataclass(frozen=True)
class VocabLogits:
    """Factors of logits ``features weight^T + bias``.

    Attributes:
        features: (targets, size).
        weight: (vocab, size).
        bias: (vocab,).
    """

    features: Tensor
    weight: Tensor
    bias: Tensor

    def first(self, words: int) -> VocabLogits:
        """Restrict the logits to the first words, since released vocabularies are padded to different sizes."""
        return VocabLogits(self.features, self.weight[:words], self.bias[:words])


@disable_compile
def soft_token_loss(student: VocabLogits, teacher: VocabLogits, *, temperature: float) -> Tensor:
    """Sum ``T^2 KL(teacher || student)`` at temperature ``T`` over the targets (Hinton et al. 2015, section 2)."""
    words = min(len(student.weight), len(teacher.weight))
    student, teacher = student.first(words), teacher.first(words)
    enabled = torch.is_grad_enabled()  # always off inside the function
    return _SoftTokens.apply(
        *(as_in_autocast(student.features), student.weight, student.bias),
        *(as_in_autocast(teacher.features.detach()), teacher.weight.detach(), teacher.bias.detach()),
        temperature,
        enabled,
    )


def soft_label_loss(logits: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
    """Compute the (texts,) ``T^2 KL(teacher || student)`` of two (texts, classes) logits."""
    student, target = (F.log_softmax(values.float() / temperature, dim=-1) for values in (logits, teacher.detach()))
    return F.kl_div(student, target, log_target=True, reduction="none").sum(-1) * temperature**2


def binary_log_probs(logits: Tensor) -> Tensor:
    """Map (texts, labels) multi-label logits to (texts, labels, 2) logits of no and yes."""
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
        gradients = _new_gradients(ctx, enabled, hidden, weight, bias)
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        loss = torch.zeros((), dtype=dtype, device=hidden.device)
        narrow_weight, narrow_bias = weight.to(hidden.dtype), bias.to(hidden.dtype)
        rows = max(1, _SOFT_CHUNK // len(weight))
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            chunk = hidden[part]
            student = _log_softmax(logits_of(chunk, narrow_weight, narrow_bias).to(dtype), temperature)  # (rows, vocab)
            teacher = _log_softmax(logits_of(teacher_hidden[part], teacher_weight, teacher_bias).to(dtype), temperature)
            target = teacher.exp()
            loss += torch.dot(target.flatten(), teacher.sub_(student).flatten()) * temperature**2
            if gradients is not None:
                # d loss / d logits = T (probabilities of the student - probabilities of the teacher)
                gradient = student.exp_().sub_(target).mul_(temperature)
                _add_gradients(gradients, part, gradient, chunk, narrow_weight)
        ctx.save_for_backward(*(gradients or ()))
        return loss

    @staticmethod
    def backward(ctx: FunctionContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled_gradients(ctx, gradients[0]), None, None, None, None, None


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    logits = logits.div_(temperature)
    return logits.sub_(logits.logsumexp(-1, keepdim=True))
