"""Adversarial fine-tuning by perturbed embeddings: scale-invariant (SiFT) or plain (Miyato et al. 2017).

A first pass finds the perturbation that increases the loss most, and a second pass trains on it. Both use the dropout
mask of the pass without a perturbation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from homespun.batch import Batch, Loss, Term
from homespun.config import Config
from homespun.models.embeddings import CharacterEmbeddings, Embeddings
from homespun.nn.torch_private import disable_compile
from homespun.nn.vocabulary_loss import binary_log_probs
from homespun.objectives.protocol import ClassifierOutput, HasLogits, WrappedClassifier

TERM = "adversarial"
Distance = Callable[[Tensor, Tensor], Tensor]
"""(texts, labels) logits with and without a perturbation -> (texts,)."""
SumAndCount = tuple[Tensor, Tensor | float]
"""Sum of a loss, and the number of targets."""


def symmetric_kl(perturbed: Tensor, clean: Tensor) -> Tensor:
    """Compute the (texts,) ``KL(p || q) + KL(q || p)`` of two (texts, classes) logits.

    As in the released code, no gradient flows through the first argument of each divergence.
    """
    first, second = (F.log_softmax(logits.float(), dim=-1) for logits in (perturbed, clean))
    forth = first.detach().exp() * (first.detach() - second)
    back = second.detach().exp() * (second.detach() - first)
    return (forth + back).sum(-1)


def binary_symmetric_kl(perturbed: Tensor, clean: Tensor) -> Tensor:
    """Compute the (texts,) `symmetric_kl` of multi-label logits, the mean over the labels."""
    return symmetric_kl(binary_log_probs(perturbed), binary_log_probs(clean)).mean(-1)


def squared_error(perturbed: Tensor, clean: Tensor) -> Tensor:
    """Compute the (texts,) mean squared error of two (texts, numbers) predictions."""
    return (perturbed.float() - clean.float()).square().flatten(1).mean(-1)


class SiftConfig(Config):
    """Scale-invariant fine-tuning (He et al. 2021, DeBERTa, section 5; Jiang et al. 2020).

    The loss is the distance between predictions with and without a perturbation of the embeddings. These are first
    normalised to mean 0 and deviation 1, so that long and short vectors are perturbed equally. The defaults, and the
    missing gradient of the embeddings in the perturbed pass, follow the released code.
    """

    kind: Literal["sift"] = "sift"
    like: ClassVar[str | None] = None  # term with the same number of targets; None: the texts
    alpha: float = Field(default=5.0, gt=0, description="weight of the term")
    init_perturbation: float = Field(default=1e-2, gt=0, description="deviation of the initial perturbation")
    step_size: float = Field(default=1e-4, gt=0, description="size of the ascent step; the maximum of each token")

    def init(self, vectors: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the initial perturbation of (batch, seq, embedding) vectors."""
        drawn = torch.randn(vectors.shape, generator=generator).to(vectors.device)
        return drawn.clamp_(-2, 2) * self.init_perturbation

    def step(self, delta: Tensor, gradient: Tensor) -> Tensor:
        """Take a gradient-ascent step on the (batch, seq, embedding) perturbation."""
        return delta + self.step_size * gradient / (1e-6 + gradient.abs().amax(-1, keepdim=True))

    def perturb(self, vectors: Tensor, delta: Tensor) -> Tensor:
        """Perturb the normalised (batch, seq, embedding) vectors, and return to the original scale."""
        vectors = vectors.detach()
        deviation = vectors.float().std(-1, correction=0, keepdim=True)
        return vectors + (delta * deviation).to(vectors.dtype)

    def adversarial_loss(self, objective: HasLogits, batch: Batch, clean: Tensor, distance: Distance) -> SumAndCount:
        """Sum the distances from the ``clean`` predictions, and count the texts."""
        return distance(objective.logits(batch), clean).sum(), float(batch.num_rows)


class PlainAdversarialConfig(Config):
    """Adversarial training (Miyato et al. 2017): the classification loss on perturbed embeddings."""

    kind: Literal["plain"] = "plain"
    like: ClassVar[str | None] = "loss"  # see `SiftConfig`
    alpha: float = Field(default=1.0, gt=0, description="weight of the term")
    epsilon: float = Field(default=1.0, gt=0, description="L2 norm of the perturbation of a sequence")

    def init(self, vectors: Tensor, generator: torch.Generator) -> Tensor:
        """Return a zero perturbation of (batch, seq, embedding) vectors."""
        return torch.zeros(vectors.shape, device=vectors.device)

    def step(self, delta: Tensor, gradient: Tensor) -> Tensor:
        """Return the perturbation of norm ``epsilon`` along the (batch, seq, embedding) gradient."""
        norm: Tensor = gradient.flatten(1).norm(dim=1)[:, None, None]
        return self.epsilon * gradient / (1e-12 + norm)

    def perturb(self, vectors: Tensor, delta: Tensor) -> Tensor:
        """Add the perturbation to the (batch, seq, embedding) vectors."""
        return vectors + delta.to(vectors.dtype)

    def adversarial_loss(self, objective: HasLogits, batch: Batch, clean: Tensor, distance: Distance) -> SumAndCount:
        """Compute the loss on the labels, and count its targets."""
        term = objective.output(batch).loss.terms["loss"]
        return term.sum, term.count


Adversary = Annotated[SiftConfig | PlainAdversarialConfig, Field(discriminator="kind")]


def check_not_frozen(adversary: SiftConfig | PlainAdversarialConfig | None, *, frozen: bool) -> None:
    """Raise `ValueError` for adversarial training of a frozen encoder."""
    if adversary is not None and frozen:
        raise ValueError("adversarial trains the encoder, which is frozen; set frozen=false, or leave adversarial out")


class AdversarialObjective(WrappedClassifier):
    """Add the term ``adversarial`` in training.

    ``distance`` is that of predictions in SiFT: `symmetric_kl`, or `squared_error` for regression.
    """

    def __init__(
        self, objective: HasLogits, adversary: SiftConfig | PlainAdversarialConfig, distance: Distance
    ) -> None:
        super().__init__(objective)
        self.adversary, self.distance = adversary, distance

    def output(self, batch: Batch) -> ClassifierOutput:
        """Compute the output without a perturbation; the loss has ``adversarial`` if gradients are enabled."""
        if not (self.training and torch.is_grad_enabled()):
            return self.objective.output(batch)
        seed = int(torch.randint(2**62, ()))
        device = batch.input_ids.device
        with _seeded_dropout(seed, device):
            clean = self.objective.output(batch)
        term = self._term(batch, clean.logits, seed)
        return ClassifierOutput(clean.hidden, clean.logits, Loss(clean.loss.terms | {TERM: term}))

    @disable_compile  # a gradient is taken inside
    def _term(self, batch: Batch, clean: Tensor, seed: int) -> Term:
        device = batch.input_ids.device
        perturbation = _EmbeddingPerturbation(self.adversary, torch.Generator().manual_seed(seed))
        with perturbation.inside(self.model.backbone.stacks[0].embeddings):
            with _seeded_dropout(seed, device):
                adversarial_loss, _ = self.adversary.adversarial_loss(
                    self.objective, batch, clean.detach(), self.distance
                )
            perturbation.ascend(adversarial_loss)
            with _seeded_dropout(seed, device):
                adversarial_loss, count = self.adversary.adversarial_loss(self.objective, batch, clean, self.distance)
        return Term(adversarial_loss, count, weight=self.adversary.alpha)


class _EmbeddingPerturbation:
    """Hook that adds the perturbation to the input of the embedding norm."""

    def __init__(self, adversary: SiftConfig | PlainAdversarialConfig, generator: torch.Generator) -> None:
        self.adversary, self.generator = adversary, generator
        self.delta: Tensor | None = None

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...]) -> Tensor:
        vectors: Tensor = arguments[0]
        if self.delta is None:
            self.delta = self.adversary.init(vectors, self.generator).requires_grad_()
        return self.adversary.perturb(vectors, self.delta)

    @contextlib.contextmanager
    def inside(self, embeddings: Embeddings | CharacterEmbeddings) -> Iterator[None]:
        handle = embeddings.norm.register_forward_pre_hook(self)
        try:
            yield
        finally:
            handle.remove()

    def ascend(self, adversarial_loss: Tensor) -> None:
        """Step along the gradient, unless it is not finite, as may happen in half precision."""
        assert self.delta is not None
        (gradient,) = torch.autograd.grad(adversarial_loss, self.delta)
        delta = self.adversary.step(self.delta, gradient).detach()
        self.delta = torch.where(gradient.isfinite().all(), delta, self.delta.detach())


@contextlib.contextmanager
def _seeded_dropout(seed: int, device: torch.device) -> Iterator[None]:
    """Context in which dropout is drawn from ``seed``."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
