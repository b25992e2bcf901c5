"""Distillation loss over a vocabulary in bounded memory (Hinton et al. 2015).

Two tables of logits over 30,522 words are twice what `homespun.nn.vocabulary_loss` keeps from being held. Here too the
targets are worked through in chunks, and the gradient of each is formed while both tables are at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from homespun.nn.vocabulary_loss import add_product, as_in_autocast, logits_of

_CHUNK = 4 * 2**20  # logits held at once, of each of three tables


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
        ctx: Any,
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
        rows = max(1, _CHUNK // len(weight))
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
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        made = [
            gradient * scale.to(gradient.dtype) if needed else None
            for gradient, needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        ]
        return (*made, None, None, None, None, None)


def _log_softmax(logits: Tensor) -> Tensor:
    """In place."""
    return logits.sub_(logits.logsumexp(-1, keepdim=True))
