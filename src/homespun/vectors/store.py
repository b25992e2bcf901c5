"""Word vectors on disk: a folder, or a file in the text or binary format of word2vec, as read by gensim.

The folder has ``vectors.safetensors`` and ``words.json``, which is written last and has a digest of the former. Files
are not trusted: sizes are checked before memory is allocated, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from homespun.errors import UserError
from homespun.io.atomic import atomic_path, entries, write_bytes
from homespun.vectors.word_vectors import WordVectors

FORMAT = 1
DESCRIPTION = "words.json"
TENSORS = "vectors.safetensors"
_TEXT = (".txt", ".vec")
_BINARY = (".bin",)
_MAX_LENGTH = 10_000  # bytes of a word


def save_vectors(vectors: WordVectors, path: str | Path) -> None:
    """Write vectors in the text format of word2vec (.txt, .vec), in its binary format (.bin), or as a folder.

    Raises:
        UserError: ``path`` has other content, or the format of word2vec cannot store a word.
    """
    path = Path(path)
    check_output_path(path)
    if path.suffix in (*_TEXT, *_BINARY):
        _save_file(vectors, path, _write_text if path.suffix in _TEXT else _write_binary)
    else:
        _save_folder(vectors, path)


def check_output_path(path: str | Path) -> None:
    """Check the path of `save_vectors` before training.

    Raises:
        UserError: ``path`` has other content.
    """
    path = Path(path)
    if path.suffix in (*_TEXT, *_BINARY):
        if path.is_dir():
            raise UserError(f"{path} is a folder; give a file, or a folder without the suffix {path.suffix}")
    elif path.is_file():
        raise UserError(f"{path} is a file; vectors are written to a folder, or to a .txt, .vec or .bin file")
    elif path.is_dir() and entries(path) and not any((path / name).exists() for name in (DESCRIPTION, TENSORS)):
        raise UserError(f"{path} holds other files; set --out to a new or empty folder")


def open_vectors(path: str | Path) -> WordVectors:
    """Read word vectors of `save_vectors`, in the text or binary format of word2vec, or in the text format of GloVe.

    Raises:
        UserError: a file is missing, truncated, altered or of another format, or has a duplicate word or a value that
            is not finite.
    """
    path = Path(path)
    if path.is_dir():
        return _checked(path, _open_folder)
    if not path.is_file():
        raise UserError(f"{path} does not exist; train word vectors with `homespun vectors train`")
    if path.suffix in _BINARY:
        return _checked(path, _read_binary)
    if path.suffix in _TEXT:
        return _checked(path, _read_text)
    raise UserError(
        f"{path} must be a folder of homespun, or a .txt, .vec or .bin file of word2vec; gensim writes these with "
        f"save_word2vec_format (pickled files are not read)"
    )


def _checked(path: Path, read: Callable[[Path], WordVectors]) -> WordVectors:
    try:
        return read(path)
    except UserError as error:
        message = str(error)
        raise error if message.startswith(str(path)) else UserError(f"{path}: {message}") from error


def _save_folder(vectors: WordVectors, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = folder / TENSORS
    with atomic_path(tensors) as temporary:
        save_file({"vectors": np.ascontiguousarray(vectors.vectors, np.float32)}, temporary)
    counts = None if vectors.counts is None else vectors.counts.tolist()
    description = {
        "format": FORMAT,
        "size": vectors.size,
        "digest": _digest(tensors),
        "about": vectors.about,
        "words": list(vectors.words),
        "counts": counts,
    }
    write_bytes(folder / DESCRIPTION, json.dumps(description, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _open_folder(folder: Path) -> WordVectors:
    path = folder / DESCRIPTION
    try:
        description: object = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
    except FileNotFoundError as error:
        raise UserError(f"{folder} holds no word vectors: {DESCRIPTION} is missing") from error
    except ValueError as error:
        raise UserError(f"{path} was cut short or altered; train or convert the vectors again") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UserError(f"{path} is not of format {FORMAT}; train or convert the vectors again")
    words, counts, about = (description.get(key) for key in ("words", "counts", "about"))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words) or not isinstance(about, dict):
        raise UserError(f"{path} was altered: it has no list of words; train or convert the vectors again")
    if counts is not None and not (isinstance(counts, list) and all(type(count) is int for count in counts)):
        raise UserError(f"{path} was altered: its counts are not integers; train or convert the vectors again")
    tensors = folder / TENSORS
    if not tensors.is_file() or _digest(tensors) != description.get("digest"):
        raise UserError(f"{tensors} is missing or was altered; train or convert the vectors again")
    try:
        values = load_file(tensors).get("vectors")
    except SafetensorError as error:
        raise UserError(f"{tensors} cannot be read: {error}") from error
    if values is None or values.dtype != np.float32:
        raise UserError(f"{tensors} has no float32 tensor 'vectors'; train or convert the vectors again")
    return WordVectors(words, values, None if counts is None else np.array(counts, np.int64), about)


def _save_file(vectors: WordVectors, path: Path, write: Callable[[WordVectors, IO[bytes]], None]) -> None:
    # gensim splits text at white space, and reads binary words up to a space
    broken = next((word for word in vectors.words if len(word.split()) != 1 or word != word.strip()), None)
    if broken is not None:
        raise UserError(
            f"{path}: the formats of word2vec cannot store {broken!r}, which is empty or has white space; save to a "
            f"folder"
        )
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        write(vectors, stream)


def _write_text(vectors: WordVectors, stream: IO[bytes]) -> None:
    stream.write(f"{len(vectors)} {vectors.size}\n".encode())
    for word, vector in zip(vectors.words, vectors.vectors, strict=True):
        # nine digits are exact for float32
        stream.write(f"{word} {' '.join(f'{value:.9g}' for value in vector.tolist())}\n".encode())


def _write_binary(vectors: WordVectors, stream: IO[bytes]) -> None:
    stream.write(f"{len(vectors)} {vectors.size}\n".encode())
    values = np.ascontiguousarray(vectors.vectors, "<f4")
    for word, vector in zip(vectors.words, values, strict=True):
        stream.write(word.encode() + b" " + vector.tobytes() + b"\n")


def _header(line: bytes, *, bytes_a_value: float, file_bytes: int) -> tuple[int, int] | None:
    """Parse the number of words and dimensions in the first line of a file; None if it is not a header."""
    fields = line.split()
    if len(fields) != 2 or not all(part.isdigit() and len(part) < 12 for part in fields):
        return None
    count, size = int(fields[0]), int(fields[1])
    if not count or not size:
        raise UserError("the header has zero vectors or dimensions")
    if count * (size * bytes_a_value + 2) > file_bytes:
        raise UserError(f"cut short: the header has {count:,} vectors of {size} values, more than the file holds")
    return count, size


def _read_text(path: Path) -> WordVectors:
    words: list[str] = []
    values = bytearray()
    with path.open("rb") as stream:
        header = _header(stream.readline(_MAX_LENGTH), bytes_a_value=2, file_bytes=path.stat().st_size)
        if header is None:
            stream.seek(0)
        size = None if header is None else header[1]
        for number, line in enumerate(stream, 1 if header is None else 2):
            word, vector = _parse(line, size, number)
            size = len(vector)
            words.append(word)
            values += vector.tobytes()
    if header is not None and len(words) != header[0]:
        raise UserError(f"cut short or altered: {len(words):,} vectors, but {header[0]:,} in the header")
    return WordVectors(words, np.frombuffer(values, np.float32).reshape(-1, size or 1))


def _parse(line: bytes, size: int | None, number: int) -> tuple[str, NDArray[np.float32]]:
    try:
        fields = line.decode("utf-8").rstrip("\n\r ").split(" ")
        word, values = fields[0], fields[1:]
        if size is not None and len(values) > size:  # large files of GloVe have words with spaces
            word, values = " ".join(fields[:-size]), fields[-size:]
        vector = np.array(values, dtype=np.float32)
    except ValueError as error:
        raise UserError(f"line {number} must be a word and numbers, separated by spaces") from error
    if not len(vector) or (size is not None and len(vector) != size):
        expected = "at least 1" if size is None else size
        raise UserError(f"line {number} has {len(vector)} numbers, not {expected}: cut short or altered")
    return word, vector


def _read_binary(path: Path) -> WordVectors:
    words: list[str] = []
    with path.open("rb") as stream:
        header = _header(stream.readline(64), bytes_a_value=4, file_bytes=path.stat().st_size)
        if header is None:
            raise UserError(
                "not in the binary format of word2vec: the first line must have the number of vectors and of dimensions"
            )
        count, size = header
        values = np.empty((count, size), np.float32)
        start = stream.tell()
        with mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
            for number in range(count):
                space = content.find(b" ", start, start + _MAX_LENGTH)
                end = space + 1 + 4 * size
                if space < 0 and len(content) - start > _MAX_LENGTH:
                    raise UserError(f"not in the binary format of word2vec: vector {number + 1} has no word")
                if space < 0 or end > len(content):
                    raise UserError(f"cut short: it ends in vector {number + 1} of {count:,}")
                try:
                    words.append(content[start:space].lstrip(b"\n").decode("utf-8"))
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"altered, or not in the format of word2vec: word {number + 1} is not UTF-8"
                    ) from error
                values[number] = np.frombuffer(content[space + 1 : end], "<f4")
                start = end
            if content[start : start + _MAX_LENGTH].strip():
                raise UserError(f"altered: data after the {count:,} vectors of the header")
    return WordVectors(words, values)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
