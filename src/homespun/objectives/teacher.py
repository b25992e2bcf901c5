"""A model that teaches another: opened once, asked without gradients, its logits kept on disk where they stay the same.

It is not a part of the objective, whose checkpoints and optimizer it would otherwise be in.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from homespun.batch import Batch
from homespun.errors import UserError
from homespun.models.bundle import ModelBundle, fingerprint, load_model
from homespun.models.feature_cache import FeatureCache
from homespun.models.model import Model
from homespun.nn.torch_private import disable_dispatch_modes
from homespun.text.tokenizer import Tokenizer

_FILE = "homespun.json"


class Teacher:
    """A trained model, in evaluation mode.

    Args:
        stored: the model.
        source: how messages name it.
    """

    def __init__(self, stored: ModelBundle, source: str) -> None:
        self.stored, self.source = stored, source
        stored.model.requires_grad_(False).eval()

    @classmethod
    def open(cls, source: str, tokenizer: Tokenizer) -> Teacher:
        """The teacher in a run or a ``model/`` folder, for a student of this tokenizer.

        Raises:
            UserError: none is named, it cannot be opened, or it reads another tokenizer's tokens.
        """
        if not source:
            raise UserError("which teacher? give `homespun distill ... --teacher RUN`, or objective.teacher.source=RUN")
        folder = teacher_folder(source)
        stored = _open(folder, (folder / _FILE).stat().st_mtime_ns)
        if stored.tokenizer.fingerprint != tokenizer.fingerprint:
            raise UserError(
                f"teacher {source} has tokenizer {stored.tokenizer.fingerprint} and the student "
                f"{tokenizer.fingerprint}: what it says of its tokens says nothing of others; take a teacher and a "
                f"student of one tokenizer"
            )
        return cls(stored, source)

    def model(self, device: torch.device) -> Model:
        """On the student's device."""
        model = self.stored.model
        if next(model.parameters()).device != device:
            model.to(device)
        return model

    def check_length(self, length: int) -> None:
        """Refuse rows that it cannot read.

        Raises:
            UserError: they are longer.
        """
        limit = self.stored.config.backbone.max_position_embeddings
        if length > limit:
            raise UserError(
                f"the teacher {self.source} reads {limit} tokens at most, and this batch has {length}; lower "
                f"data.max_length to {limit}"
            )

    @torch.no_grad()
    def read(self, batch: Batch) -> Tensor:
        """(sequences, seq, hidden) vectors that its head is given."""
        self.check_length(batch.input_ids.shape[1])
        return self.model(batch.input_ids.device).read(batch.input_ids, batch.context)

    @torch.no_grad()
    def logits(self, batch: Batch, hidden: Tensor | None = None) -> Tensor:
        """(texts, labels) float32, from its vectors where these are at hand."""
        head = self.model(batch.input_ids.device).head
        assert head is not None
        given = self.read(batch) if hidden is None else hidden
        logits: Tensor = head(given, batch.attention_mask, batch.chunks).float()
        return logits


class LogitCache:
    """A teacher's logits of texts, kept on disk by the tokens of each text: computed in the first epoch only.

    They are rounded to float16, as what is kept is, whether they come from the disk or not.

    Args:
        teacher: asked for what is not there.
        folder: of the store; every teacher has its own place in it.
        labels: logits a text.
        limit: bytes that they may take.
    """

    def __init__(self, teacher: Teacher, folder: str | Path, *, labels: int, limit: int) -> None:
        own = fingerprint(teacher.stored.model, extra=teacher.stored.config.model_dump_json().encode())
        self.teacher = teacher
        self.store = FeatureCache(Path(folder) / own, width=labels, limit=limit)

    def __call__(self, batch: Batch) -> Tensor:
        """(texts, labels) float32."""
        with disable_dispatch_modes():  # where a step is only planned, what is kept has values all the same
            return self._look_up(batch)

    def _look_up(self, batch: Batch) -> Tensor:
        keys = _keys(batch)
        found = [self.store.read(key) for key in keys]
        if any(logits is None for logits in found):
            # all of the batch: what is asked for alone would be padded to another width, and round otherwise
            computed = self.teacher.logits(batch).half().cpu().numpy()
            for row, (key, logits) in enumerate(zip(keys, found, strict=True)):
                if logits is None:
                    self.store.write(key, computed[row : row + 1])
                    found[row] = computed[row : row + 1]
        table = np.concatenate([logits for logits in found if logits is not None])
        return torch.from_numpy(table).to(batch.input_ids.device).float()


def teacher_folder(source: str | Path) -> Path:
    """The ``model/`` folder of a run, or that folder itself.

    Raises:
        UserError: it is neither.
    """
    folder = Path(source).expanduser()
    for candidate in (folder, folder / "model"):
        if (candidate / _FILE).is_file():
            return candidate
    raise UserError(
        f"{source} is neither a finished run nor a model/ folder, which a teacher is read from; "
        f"`homespun distill ... --teacher {source}` opens others too"
    )


@functools.lru_cache(maxsize=1)  # of all seeds, folds and plans: it never changes
def _open(folder: Path, stamp: int) -> ModelBundle:
    with disable_dispatch_modes():  # a step that is only planned has no values, and a teacher's come from the disk
        return load_model(folder)


def _keys(batch: Batch) -> list[bytes]:
    """Of each text: the tokens, places and segments of its sequences, and the type of numbers of the teacher."""
    device = batch.input_ids.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    ids = batch.input_ids.cpu().numpy()
    real = np.ones_like(ids, dtype=bool) if batch.attention_mask is None else batch.attention_mask.cpu().numpy()
    segments = None if batch.token_type_ids is None else batch.token_type_ids.cpu().numpy()
    sequences = [[row] for row in range(len(ids))] if batch.chunks is None else batch.chunks.tolist()
    keys = []
    for rows in sequences:
        digest = hashlib.blake2b(f"{kind} {device}".encode(), digest_size=16)
        for row in rows:
            if row >= 0:
                keep = real[row].astype(bool)
                parts = [ids[row, keep], np.flatnonzero(keep)]
                parts += [] if segments is None or not segments[row, keep].any() else [segments[row, keep]]
                for part in parts:
                    digest.update(len(part).to_bytes(8, "little") + part.astype(np.int64).tobytes())
        keys.append(digest.digest())
    return keys
