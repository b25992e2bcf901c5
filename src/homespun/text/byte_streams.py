"""Streams of decompressed and downloaded bytes, which raise `EOFError` on truncated data."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Self, cast

from homespun.errors import UserError


class _Readable(io.RawIOBase):
    def readable(self) -> bool:
        return True


class _Zstandard(_Readable):
    """Stream of zstd frames that raises `EOFError` on truncated data, unlike the reader of the library."""

    def __init__(self, stream: BinaryIO) -> None:
        import zstandard

        self._stream = stream
        self._new = zstandard.ZstdDecompressor().decompressobj
        self._error = zstandard.ZstdError
        self._frame = self._new()
        self._started = False
        self._pending = b""

    def readinto(self, buffer: Any) -> int:
        while not self._pending:
            chunk = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._started = self._new(), False
            chunk = chunk or self._stream.read(1 << 13)  # small: a bomb expands ten thousand times
            if not chunk:
                if self._started:
                    raise EOFError("the last compressed frame is incomplete")
                return 0
            self._started = True
            try:
                self._pending = self._frame.decompress(chunk)
            except self._error as error:
                raise EOFError(str(error)) from error
        size = min(len(buffer), len(self._pending))
        buffer[:size], self._pending = self._pending[:size], self._pending[size:]
        return size


class _Response(_Readable):
    """Body of an HTTP response; raises `EOFError` if the connection breaks."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def readinto(self, buffer: Any) -> int:
        count = int(self._response.readinto(buffer))
        if count == 0 and len(buffer) and self._response.length:
            raise EOFError(f"the connection closed with {self._response.length:,} bytes missing")
        return count

    def close(self) -> None:
        self._response.close()
        super().close()


def download(url: str) -> BinaryIO:
    """Stream the body of a URL."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, headers={"User-Agent": "homespun"})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:  # the error holds the connection
        error.close()
        raise
    return io.BufferedReader(_Response(response), 1 << 18)


class CompleteTar(tarfile.TarInfo):
    """Tar archive that raises an error without the end block, which `tarfile` accepts.

    An archive written without an end block cannot be distinguished from a truncated one and is refused too.
    """

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # missing in typeshed
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} instead of a file or the end of the archive") from error


FREE_BYTES, MAX_RATIO = 64_000_000, 250
"""From 64 MB on, a stream has at most 250 times the bytes it is compressed to; text has 2 to 20 times."""


def check_ratio(size: int, compressed: int) -> None:
    """Raise an error if ``compressed`` bytes decompress to too many (``size``) bytes.

    Raises:
        UserError: the ratio is above `MAX_RATIO`.
    """
    if size > FREE_BYTES and size > MAX_RATIO * compressed:
        raise UserError(
            f"a compressed file grows more than {MAX_RATIO} times, from {compressed:,} to {size:,} bytes; text does "
            f"not; unpack the file yourself if you trust it"
        )


class _Counted:
    """Stream of compressed bytes that counts the bytes read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.count = stream, 0

    def read(self, size: int = -1) -> bytes:
        chunk = self._stream.read(size)
        self.count += len(chunk)
        return chunk


class _Limited(_Readable):
    """Stream of decompressed bytes that raises `UserError` if they are too many, see `check_ratio`."""

    def __init__(self, stream: BinaryIO, decompress: Callable[[BinaryIO], BinaryIO]) -> None:
        self._compressed, self._size = _Counted(stream), 0
        self._stream = decompress(cast(BinaryIO, self._compressed))

    def readinto(self, buffer: Any) -> int:
        chunk = self._stream.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self._size += len(chunk)
        check_ratio(self._size, self._compressed.count)
        return len(chunk)


def _limited(decompress: Callable[[BinaryIO], BinaryIO]) -> Callable[[BinaryIO], BinaryIO]:
    return lambda stream: io.BufferedReader(_Limited(stream, decompress), 1 << 18)


DAMAGE = (
    *(EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError),
    *(struct.error, ValueError, OverflowError, RuntimeError),  # zipfile and tarfile: fields that contradict each other
)
"""Errors of damaged compressed files and archives."""

DECOMPRESSORS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": _limited(lambda stream: cast(BinaryIO, gzip.GzipFile(fileobj=stream))),
    ".xz": _limited(lambda stream: cast(BinaryIO, lzma.LZMAFile(stream))),  # noqa: SIM115 - its caller closes the file below
    ".bz2": _limited(lambda stream: cast(BinaryIO, bz2.BZ2File(stream))),
    ".zst": _limited(lambda stream: cast(BinaryIO, _Zstandard(stream))),
}
