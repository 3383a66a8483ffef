"""Decompresses layers while they stream, and hashes both sides."""

from __future__ import annotations

import hashlib
import io
from typing import BinaryIO

import zstandard
from zlib_ng import zlib_ng

from sm121.artifact.member import CHUNK, RawReader
from sm121.errors import ArtifactError
from sm121.values import Sha256

_GZIP = b"\x1f\x8b"
_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + n]) + b"\x2a\x4d\x18" for n in range(16)))
"""The frame, and the skippable frames that zstd:chunked and estargz writers put around it."""
_XZ, _BZIP2 = b"\xfd7zXZ\0", b"BZh"
_PIECE = 1 << 18
_WINDOW = 1 << 27


class Hashed(RawReader):
    """Passes a stream on, counting and hashing it; raises ArtifactError when more than `most` bytes come."""

    def __init__(self, stream: BinaryIO, most: int | None = None, *, hashing: bool = True) -> None:
        self._stream = stream
        self._most = most
        self._hashing = hashing
        self._hash = hashlib.sha256()
        self.count = 0

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        count: int = self._stream.readinto(target)  # type: ignore[attr-defined]
        if self._hashing:
            self._hash.update(target[:count])
        self.count += count
        if self._most is not None and self.count > self._most:
            raise ArtifactError(f"it is longer than {self._most} bytes")
        return count

    @property
    def digest(self) -> Sha256:
        """Of what was read so far."""
        return Sha256(self._hash.hexdigest())

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Gunzip(RawReader):
    """Inflates gzip members one after the other, at most as much as is asked for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = zlib_ng.decompressobj(16 + zlib_ng.MAX_WBITS)
        self._held = b""

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        while len(target):
            if not self._held:
                self._held = self._stream.read(_PIECE)
                if not self._held and self._decoder.eof:
                    return 0
            elif self._decoder.eof:
                self._next_member()
                continue
            ended = not self._held
            if piece := self._step(min(len(target), CHUNK)):
                target[: len(piece)] = piece
                return len(piece)
            if ended:
                raise ArtifactError("its gzip data ends in the middle")
        return 0

    def _next_member(self) -> None:
        """Members may follow each other, with zeros between and behind them."""
        self._held = self._held.lstrip(b"\0")
        if self._held:
            self._decoder = zlib_ng.decompressobj(16 + zlib_ng.MAX_WBITS)

    def _step(self, most: int) -> bytes:
        try:
            piece = self._decoder.decompress(self._held, most)
        except zlib_ng.error as error:  # type: ignore[misc]  # the stub calls it an instance
            raise ArtifactError(f"its gzip data is damaged ({error})") from error
        self._held = self._decoder.unused_data if self._decoder.eof else self._decoder.unconsumed_tail
        return piece

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Unzstd(RawReader):
    """Decompresses zstd frames. A stream that breaks off ends early: the digest of the content tells."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        decoder = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        self._reader = decoder.stream_reader(stream, read_size=_PIECE, read_across_frames=True)

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        try:
            return int(self._reader.readinto(target))
        except zstandard.ZstdError as error:
            raise ArtifactError(f"its zstd data is damaged ({error})") from error

    def close(self) -> None:
        self._stream.close()
        super().close()


def decompressed(stream: io.RawIOBase) -> tuple[BinaryIO, str]:
    """The plain content of a layer, and its compression: "gzip", "zstd" or "".

    The first bytes decide, as in container engines; media types are often wrong.
    """
    peeking = io.BufferedReader(stream, _PIECE)
    first = peeking.peek(8)[:8]
    if first.startswith(_GZIP):
        return io.BufferedReader(_Gunzip(peeking), CHUNK), "gzip"
    if first.startswith(_ZSTD):
        return io.BufferedReader(_Unzstd(peeking), CHUNK), "zstd"
    if first.startswith((_XZ, _BZIP2)):
        raise ArtifactError("it is compressed with xz or bzip2, which layers of container images are not")
    return peeking, ""
