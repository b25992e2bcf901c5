"""Disk cache of the hidden states of a frozen encoder, shared by epochs, heads and seeds.

A folder has two append-only files: ``vectors``, and ``index`` with a record for each sequence. Several processes may
write at a time: each append is one system call, and at worst a sequence is stored twice. A record is written after its
vectors and has their checksum, so incomplete entries are detected and computed again.
"""

from __future__ import annotations

import hashlib
import os
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from homespun.models.backbone import Backbone
from homespun.models.bundle import fingerprint
from homespun.models.config import BackboneConfig
from homespun.models.heads import Reader

_RECORD = np.dtype([("key", "u1", 16), ("start", "<i8"), ("tokens", "<i4"), ("checksum", "<u4")])


class FeatureCache:
    """Cache of sequences of float16 vectors by key.

    Args:
        folder: created if missing.
        width: width of a vector.
        limit: maximum bytes of all vectors; when reached, or when the disk is full, new vectors are not stored.
    """

    def __init__(self, folder: Path, *, width: int, limit: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.width, self.limit = width, limit
        self._vectors, self._index = (self._open(folder / name) for name in ("vectors", "index"))
        data = os.pread(self._index, os.fstat(self._index).st_size, 0)
        if rest := len(data) % _RECORD.itemsize:  # complete a truncated record
            os.write(self._index, bytes(_RECORD.itemsize - rest))
        records = np.frombuffer(data[: len(data) - rest], dtype=_RECORD)
        keys = [key.tobytes() for key in records["key"]]
        columns = (records[name].tolist() for name in ("start", "tokens", "checksum"))
        self._entries = dict(zip(keys, zip(*columns, strict=True), strict=True))

    def _open(self, path: Path) -> int:
        number = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        weakref.finalize(self, os.close, number)
        return number

    def __len__(self) -> int:
        return len(self._entries)

    def read(self, key: bytes) -> NDArray[np.float16] | None:
        """Return (tokens, width) vectors, or None without a complete entry."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        start, tokens, checksum = entry
        data = os.pread(self._vectors, tokens * self.width * 2, start)
        if zlib.crc32(data) != checksum:
            return None
        return np.frombuffer(data, dtype=np.float16).reshape(tokens, self.width)

    def write(self, key: bytes, vectors: NDArray[np.float16]) -> None:
        """Store ``vectors`` (tokens, width) if they are finite and fit."""
        data = vectors.tobytes()
        full = os.fstat(self._vectors).st_size + len(data) > self.limit
        if full or not np.isfinite(vectors).all():
            return
        try:
            if os.write(self._vectors, data) < len(data):
                self.limit = 0
                return
            start = os.lseek(self._vectors, 0, os.SEEK_CUR) - len(data)  # start of this append, even with other writers
            checksum = zlib.crc32(data)
            record = np.array([(np.frombuffer(key, np.uint8), start, len(vectors), checksum)], dtype=_RECORD).tobytes()
            os.write(self._index, record)
        except OSError:  # the disk is full
            self.limit = 0
            return
        self._entries[key] = (start, len(vectors), checksum)


def to_float16(values: Tensor) -> Tensor:
    """Round to float16; numbers beyond its range, as in layers without a norm, become its largest number."""
    largest = torch.finfo(torch.float16).max
    return values.float().clamp(-largest, largest).half()  # 65504 is not a number of bfloat16


class CachedEncoder:
    """`Reader` that computes only sequences that are not in the cache.

    All vectors are rounded to float16, so that results do not depend on the content of the cache. Vectors of padding
    are zero. The backbone must be frozen and in evaluation mode.
    """

    def __init__(self, reader: Reader, store: FeatureCache) -> None:
        self.reader, self.store = reader, store

    @classmethod
    def of(
        cls, reader: Reader, backbone: Backbone, config: BackboneConfig, folder: str | Path, *, width: int, limit: int
    ) -> CachedEncoder:
        """Build a cached reader of ``backbone`` in a subfolder of ``folder`` named by a digest.

        The digest covers the config and the weights.
        """
        name = fingerprint(backbone, extra=f"{width} {config.model_dump_json()}".encode())
        store = FeatureCache(Path(folder) / name, width=width, limit=limit)
        return cls(reader, store)

    def __call__(self, backbone: Backbone, input_ids: Tensor, **context: Tensor) -> Tensor:
        """Map (batch, seq) ids to (batch, seq, width)."""
        if backbone.training or any(parameter.requires_grad for parameter in backbone.parameters()):
            raise ValueError("CachedEncoder needs a frozen backbone in evaluation mode")
        if context.keys() - {"attention_mask", "token_type_ids"}:
            return to_float16(self.reader(backbone, input_ids, **context)).float()
        keep = context.get("attention_mask", torch.ones_like(input_ids, dtype=torch.bool)).cpu().numpy().astype(bool)
        keys = sequence_keys(input_ids, context.get("attention_mask"), context.get("token_type_ids"))
        found = [self.store.read(key) for key in keys]
        missing = [row for row, vectors in enumerate(found) if vectors is None]
        if missing:
            part = {name: tensor[missing] for name, tensor in context.items()}
            with torch.no_grad():
                computed = to_float16(self.reader(backbone, input_ids[missing], **part)).cpu().numpy()
            for row, padded in zip(missing, computed, strict=True):
                found[row] = vectors = padded[keep[row]]
                self.store.write(keys[row], vectors)
        result = np.zeros((*input_ids.shape, self.store.width), dtype=np.float16)
        for row, vectors in enumerate(found):
            result[row, keep[row]] = vectors
        return torch.from_numpy(result).to(input_ids.device).float()


def sequence_keys(
    input_ids: Tensor,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    texts: Sequence[Sequence[int]] | None = None,
) -> list[bytes]:
    """Compute a digest of each text: tokens, positions and segments of its sequences, dtype and device of the model.

    Args:
        input_ids: (sequences, seq).
        attention_mask: (sequences, seq); None: no padding.
        token_type_ids: (sequences, seq); None: no segments.
        texts: sequences of each text, where negative numbers mean none; None: each sequence is a text.
    """
    device = input_ids.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    ids = input_ids.cpu().numpy()
    keep = np.ones_like(ids, dtype=bool) if attention_mask is None else attention_mask.cpu().numpy().astype(bool)
    segments = np.zeros_like(ids) if token_type_ids is None else token_type_ids.cpu().numpy()
    keys = []
    for sequences in [[row] for row in range(len(ids))] if texts is None else texts:
        digest = hashlib.blake2b(f"{dtype} {device}".encode(), digest_size=16)
        for row in (row for row in sequences if row >= 0):
            parts = [ids[row, keep[row]], np.flatnonzero(keep[row]), segments[row, keep[row]]]
            for part in parts if parts[-1].any() else parts[:-1]:
                digest.update(len(part).to_bytes(8, "little") + part.astype(np.int64).tobytes())
        keys.append(digest.digest())
    return keys
