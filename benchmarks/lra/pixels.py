"""Images as texts, one character per pixel, row by row, for a text classifier."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homespun.errors import UserError

INTENSITIES = [chr(intensity) for intensity in range(256)]
"""The character of each intensity; its code point is the intensity."""

_LUMA = np.array([0.2989, 0.5870, 0.1140])  # ITU-R BT.601, as in the Long Range Arena
_CIFAR10_ROW = 1 + 3 * 32 * 32  # bytes: label, red, green and blue plane


def read_images(paths: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Read images as texts of height x width characters, and their labels.

    A file is an ``.npz`` with ``images``, (n, height, width) uint8 or (n, height, width, 3), and ``labels``, (n,)
    integers or strings; or a ``.bin`` of CIFAR-10's binary version. Colour images become grey.

    Raises:
        UserError: another kind of file (pickles can run code and are never loaded), or arrays of other shapes.
    """
    texts: list[str] = []
    labels: list[str] = []
    for path in paths:
        readers = {".npz": _read_npz, ".bin": _read_cifar10}
        if path.suffix not in readers:
            raise UserError(
                f"{path} is neither .npz nor .bin; save arrays `images` (n, height, width) uint8 and `labels` (n,) "
                f"with numpy.savez, or get CIFAR-10's binary version: its python version is a pickle, never loaded"
            )
        images, names = readers[path.suffix](path)
        texts += [image.tobytes().decode("latin-1") for image in _grey(images)]
        labels += [str(name) for name in names.tolist()]
    return texts, labels


def _read_npz(path: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is no .npz file, or is cut short; write it with numpy.savez")
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            missing = {"images", "labels"} - set(arrays.files)
            if missing:
                raise UserError(
                    f"{path} has no array {missing.pop()!r}; there are: {', '.join(arrays.files) or 'none'}"
                )
            images, labels = arrays["images"], arrays["labels"]
    # ValueError: an array of pickled objects
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"cannot read {path}: {error}") from error
    if images.dtype != np.uint8 or not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)):
        raise UserError(
            f"{path}: images must be (n, height, width) or (n, height, width, 3) uint8, "
            f"not {images.shape} {images.dtype}"
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iuU":
        raise UserError(
            f"{path}: labels must be ({len(images)},) integers or strings, not {labels.shape} {labels.dtype}"
        )
    return images, labels


def _read_cifar10(path: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if not len(content) or len(content) % _CIFAR10_ROW:
        raise UserError(
            f"{path} is no file of CIFAR-10's binary version, or is cut short: "
            f"{len(content)} bytes are no multiple of {_CIFAR10_ROW}"
        )
    rows = content.reshape(-1, _CIFAR10_ROW)
    return rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0]  # (n, height, width, 3)


def _grey(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if images.ndim == 3:
        return images
    grey: NDArray[np.uint8] = np.empty(images.shape[:3], np.uint8)  # (n, height, width)
    for out, image in zip(grey, images, strict=True):  # one at a time: all of them as float64 would be large
        out[:] = (image @ _LUMA).round()
    return grey
