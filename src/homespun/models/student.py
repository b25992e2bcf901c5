"""A student made of its teacher: every second layer, no segments, no pooler (Sanh et al. 2019, section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from homespun.errors import UserError
from homespun.models.bundle import ModelBundle
from homespun.models.config import MaskedLMHeadConfig
from homespun.models.model import Model
from homespun.models.weight_transfer import TransferReport, change_backbone, layers_of, transfer_weights


def build_student(
    teacher: ModelBundle, *, layers: Sequence[int] | None = None, changes: Mapping[str, Any] | None = None
) -> tuple[ModelBundle, TransferReport]:
    """The student, and where its tensors came from. It fills places where its teacher does, and has no head else.

    What its teacher adds to every token for the first segment becomes part of its learned positions.

    Args:
        teacher: of one stack.
        layers: of the teacher, which become the student's; by default every second, see `alternate_layers`.
        changes: to the backbone, of what `homespun.models.weight_transfer.CHANGEABLE` names, such as another attention.

    Raises:
        UserError: two stacks, a layer that is not there, changes that cannot be made.
    """
    before = teacher.config.one_stack("a student")
    chosen = alternate_layers(before.num_hidden_layers) if layers is None else tuple(layers)
    if not chosen or any(not 0 <= number < before.num_hidden_layers for number in chosen):
        raise UserError(
            f"--layers {','.join(map(str, chosen))}: the teacher's {before.num_hidden_layers} layers are 0 to "
            f"{before.num_hidden_layers - 1}; name some of them"
        )
    given = dict(changes or {}) | {"num_hidden_layers": len(chosen)}
    backbone = change_backbone(before, given).model_copy(update={"type_vocab_size": 0})
    head = teacher.config.head if isinstance(teacher.config.head, MaskedLMHeadConfig) else None
    config = teacher.config.model_copy(update={"backbone": backbone, "head": head})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(backbone.seed)
        model = config.build().eval()
    origins = transfer_weights(teacher, model, config, layers=chosen)
    _take_first_segment(teacher.model, model)
    return ModelBundle(model, config, teacher.tokenizer), origins


def alternate_layers(layers: int) -> tuple[int, ...]:
    """Half of the layers, first and last among them: of twelve 0, 2, 4, 7, 9 and 11, as in the released code."""
    return layers_of(layers, max(1, layers // 2))


@torch.no_grad()
def _take_first_segment(teacher: Model, student: Model) -> None:
    segments = teacher.backbone.embeddings.segments
    positions = dict(student.backbone.embeddings.positions.named_parameters()).get("embedding.weight")
    if segments is not None and student.backbone.embeddings.segments is None and positions is not None:
        positions.add_(segments.weight[0])
