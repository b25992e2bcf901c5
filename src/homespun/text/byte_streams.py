"""Streams of decompressed and downloaded bytes that raise `EOFError` on truncated data."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from typing import Any, BinaryIO, cast


class _Zstandard(io.RawIOBase):
    """Stream of zstd frames that raises `EOFError` on truncated data, unlike the reader of the library."""

    def __init__(self, stream: BinaryIO) -> None:
        import zstandard

        self._stream = stream
        self._new = zstandard.ZstdDecompressor().decompressobj
        self._error = zstandard.ZstdError
        self._frame = self._new()
        self._started = False
        self._pending = b""

    def readable(self) -> bool:
        return True

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


class _Response(io.RawIOBase):
    """Body of an HTTP response; raises `EOFError` if the connection breaks."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def readable(self) -> bool:
        return True

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
    except urllib.error.HTTPError as error:  # it holds the connection
        error.close()
        raise
    return io.BufferedReader(_Response(response), 1 << 18)


DECOMPRESSORS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda stream: cast(BinaryIO, gzip.GzipFile(fileobj=stream)),
    ".xz": lambda stream: cast(BinaryIO, lzma.LZMAFile(stream)),  # noqa: SIM115 - its caller closes the file below
    ".bz2": lambda stream: cast(BinaryIO, bz2.BZ2File(stream)),
    ".zst": lambda stream: io.BufferedReader(_Zstandard(stream), 1 << 18),
}
