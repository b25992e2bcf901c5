"""Teacher models: loaded once and evaluated without gradients, with a cache of their logits.

A teacher is not a submodule of the objective, so checkpoints and optimizer do not contain it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from homespun.batch import Batch
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle, fingerprint, load_model
from homespun.models.feature_cache import FeatureCache, sequence_keys, to_float16
from homespun.models.model import Model
from homespun.nn.torch_private import disable_dispatch_modes
from homespun.text.tokenizer import Tokenizer

_FILE = "homespun.json"


class Teacher:
    """Trained model in evaluation mode; ``source`` is its name in messages."""

    def __init__(self, stored: ModelBundle, source: str) -> None:
        self.stored, self.source = stored, source
        stored.model.requires_grad_(False).eval()

    @classmethod
    def open(cls, source: str, tokenizer: Tokenizer) -> Teacher:
        """Load a run or a ``model/`` folder as teacher of a student with ``tokenizer``.

        Raises:
            UserError: ``source`` is empty, cannot be loaded, or has another tokenizer.
        """
        if not source:
            raise UserError("teacher.source is empty; give `homespun distill ... --teacher RUN`, or set it to a run")
        folder = teacher_folder(source)
        stored = _open(folder, (folder / _FILE).stat().st_mtime_ns)
        if stored.tokenizer.fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"teacher {source} has tokenizer {stored.tokenizer.fingerprint}, and the student "
                f"{tokenizer.fingerprint}; take a teacher and a student with one tokenizer"
            )
        return cls(stored, source)

    def model(self, device: torch.device) -> Model:
        """Move the model to the device of the student."""
        model = self.stored.model
        if next(model.parameters()).device != device:
            model.to(device)
        return model

    def check_length(self, length: int) -> None:
        """Raise `UserError` if rows of ``length`` exceed the teacher's limit."""
        limit = self.stored.config.backbone.max_position_embeddings
        if length > limit:
            raise UserError(
                f"the teacher {self.source} reads at most {limit} tokens, and a row has {length}; set "
                f"data.max_length={limit}"
            )

    @torch.no_grad()
    def read(self, batch: Batch) -> Tensor:
        """Compute the (sequences, seq, hidden) hidden states that the head reads."""
        self.check_length(batch.input_ids.shape[1])
        model = self.model(batch.input_ids.device)
        return model.read(batch.input_ids, for_segments_of(model, batch).context)

    @torch.no_grad()
    def logits(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        """Compute (texts, labels) float32 logits, from ``hidden`` if given."""
        head = self.model(batch.input_ids.device).head
        assert head is not None
        hidden = self.read(batch) if hidden is None else hidden
        return head(hidden, batch.attention_mask, batch.chunks).float()


def for_segments_of(model: Model, batch: Batch) -> Batch:
    """Return the batch without token types if the model has fewer than two segments."""
    segments = model.backbone.stacks[0].embeddings.segments
    known = segments is not None and segments.num_embeddings > 1
    return batch if known else replace(batch, token_type_ids=None)


class LogitCache:
    """Cache of a teacher's logits on disk, by the tokens of each text; computed in the first epoch only.

    Logits are always rounded to float16, so that they do not depend on the content of the cache. Each teacher has a
    subfolder of ``folder``, of at most ``limit`` bytes.
    """

    def __init__(self, teacher: Teacher, folder: str | Path, *, labels: int, limit: int) -> None:
        name = fingerprint(teacher.stored.model, extra=teacher.stored.config.model_dump_json().encode())
        self.teacher = teacher
        self.store = FeatureCache(Path(folder) / name, width=labels, limit=limit)

    def __call__(self, batch: Batch) -> Tensor:
        """Return (texts, labels) float32 logits."""
        with disable_dispatch_modes():  # cached logits have values even if the step is only planned
            return self._look_up(batch)

    def _look_up(self, batch: Batch) -> Tensor:
        texts = None if batch.chunks is None else batch.chunks.tolist()
        keys = sequence_keys(batch.input_ids, batch.attention_mask, batch.token_type_ids, texts)
        cached = [self.store.read(key) for key in keys]
        if any(logits is None for logits in cached):
            # compute the complete batch: other padding would round differently
            computed = to_float16(self.teacher.logits(batch)).cpu().numpy()
            for row, (key, logits) in enumerate(zip(keys, cached, strict=True)):
                if logits is None:
                    self.store.write(key, computed[row : row + 1])
                    cached[row] = computed[row : row + 1]
        table = np.concatenate([logits for logits in cached if logits is not None])
        return torch.from_numpy(table).to(batch.input_ids.device).float()


def teacher_folder(source: str | Path) -> Path:
    """Return the ``model/`` folder of a run, or the folder itself. Raises `UserError` for other folders."""
    folder = Path(source).expanduser()
    for candidate in (folder, folder / "model"):
        if (candidate / _FILE).is_file():
            return candidate
    raise UserError(f"{source} is no run or model/ folder; open it by `homespun distill ... --teacher {source}`")


@functools.lru_cache(maxsize=1)  # for all seeds, folds and plans
def _open(folder: Path, stamp: int) -> ModelBundle:
    with disable_dispatch_modes():  # load real values even if the step is only planned
        return load_model(folder)
