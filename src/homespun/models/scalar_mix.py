"""Heads that read a weighted sum of all the layers of a stack, whose weights the task learns (Peters et al. 2018).

``gamma * sum_j softmax(s)_j h_j`` over what enters the layers and what each of them gives: of an ELMo the words made of
their characters and both layers, of a BERT its embeddings and its layers. The weights are part of the head, and so they
learn where the backbone is frozen, and the layers of a frozen one may be kept on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from homespun.config import Config, Tree
from homespun.errors import UserError
from homespun.models.backbone import Backbone, Encoder
from homespun.models.chunk_pool import ChunkPoolHeadConfig
from homespun.models.last_layers import LastLayersHeadConfig
from homespun.models.sequence_heads import FeedForwardHeadConfig, SequenceHeadConfig
from homespun.models.token_heads import TokenTaskHeadConfig

Layers = Annotated[
    Literal["last", "mix", "normalised_mix"],
    Field(description="the head reads the last layer, or a sum of all whose weights it learns; normalised before that"),
]


class ScalarMix(nn.Module):
    """``gamma * sum_j softmax(s)_j h_j``; all weigh the same at first, and gamma is 1.

    Args:
        count: vectors that are mixed.
        norm: of each vector before.
    """

    def __init__(self, count: int, norm: nn.Module) -> None:
        super().__init__()
        self.scalars, self.gamma = nn.Parameter(torch.zeros(count)), nn.Parameter(torch.ones(()))
        self.norm = norm

    @property
    def weights(self) -> Tensor:
        """(count,), which sum to 1."""
        return self.scalars.softmax(0)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., count * size), side by side -> (..., size)."""
        layers = self.norm(hidden.view(*hidden.shape[:-1], len(self.scalars), -1))
        return self.gamma * torch.einsum("j,...jh->...h", self.weights.to(layers.dtype), layers)


class MixedHead(nn.Module):
    """A head on the mixed layers."""

    def __init__(self, mix: ScalarMix, head: nn.Module) -> None:
        super().__init__()
        self.mix, self.head = mix, head

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None, *chunks: Tensor | None) -> Tensor:
        """(..., count * size) -> what the head gives of (..., size)."""
        result: Tensor = self.head(self.mix(hidden), attention_mask, *chunks)
        return result


@dataclass(frozen=True)
class AllLayers:
    """A `homespun.models.model.Reader`: (batch, seq, count * hidden), what enters the layers first.

    That is left out where it is of another width: a recurrent stack may have narrower words.
    """

    def __call__(self, backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
        stack = _one_stack(backbone)
        return stack.last_layers(num_mixed_layers(stack), input_ids, **context)


def num_mixed_layers(backbone: Backbone) -> int:
    """Number of layer outputs that are mixed.

    Raises:
        UserError: the backbone is not one stack.
    """
    stack = _one_stack(backbone)
    return len(stack.layers) + (stack.entering_size == stack.hidden_size)


class ScalarMixHeadConfig(Config):
    """A head on mixed layers; fine-tuning makes it of `objective.layers` and the head that was asked for."""

    kind: Literal["scalar_mix"] = "scalar_mix"
    normalised: bool = Field(default=False, description="each layer's vectors are normalised first, without weights")
    head: Annotated[SequenceHeadConfig | ChunkPoolHeadConfig | TokenTaskHeadConfig, Field(discriminator="kind")] = (
        FeedForwardHeadConfig()
    )

    def build(self, backbone: Backbone) -> MixedHead:
        """The head; which vectors it is given is for the `AllLayers` of the model.

        Raises:
            UserError: the backbone is not one stack.
        """
        size, eps = backbone.hidden_size, backbone.layer_norm_eps
        norm = nn.LayerNorm(size, eps=eps, elementwise_affine=False) if self.normalised else nn.Identity()
        return MixedHead(ScalarMix(num_mixed_layers(backbone), norm), self.head.build(backbone))


def on_layers(head: Any, layers: Layers, last_layers: int = 1) -> Any:
    """The config of a head that reads the layers which an objective asks for.

    Raises:
        UserError: both a mix and the last layers side by side.
    """
    if layers == "last":
        return head if last_layers == 1 else LastLayersHeadConfig(layers=last_layers, head=head)
    if last_layers > 1:
        raise UserError(
            f"objective.layers={layers} reads all layers as a sum, and objective.last_layers={last_layers} some of "
            f"them side by side; leave one of them out"
        )
    return ScalarMixHeadConfig(normalised=layers == "normalised_mix", head=head)


def kind_of_head(head: Any) -> str:
    """The kind of a head's config, or of the one that reads the mix."""
    kind: str = (head.head if isinstance(head, ScalarMixHeadConfig) else head).kind
    return kind


def summarize_mix(head: nn.Module | None) -> Tree:
    """For result files: ``layers`` {weights, gamma}, where a head reads a mix, else nothing."""
    if not isinstance(head, MixedHead):
        return {}
    return {"layers": {"weights": head.mix.weights.tolist(), "gamma": head.mix.gamma.item()}}


def _one_stack(backbone: Backbone) -> Encoder:
    if backbone.has_decoder:
        raise UserError(
            "a mix of layers is of one stack, and this model is an encoder with a decoder; set objective.layers=last"
        )
    return backbone.stacks[0]
