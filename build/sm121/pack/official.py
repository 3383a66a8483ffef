"""The official wheel of the same version, as a source of parts.

Members are read where they lie: each is inflated once to check it against its CRC and the wheel's own RECORD, and
the compressed bytes can then be copied as they are.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import struct
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from sm121.errors import PackError
from sm121.pack.archive import DEFLATED, STORED, Entry
from sm121.sources import members
from sm121.values import CHUNK, Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from packaging.tags import Tag
    from packaging.version import Version

ELF_MAGIC = b"\x7fELF"
EXECUTABLE = 0o100755
PLAIN = 0o100644
_LOCAL = struct.Struct("<4s22x2H")
_UNPACKED_LIMIT = 16 << 30
_MEMBER_LIMIT = 100_000


@dataclass(frozen=True, slots=True)
class Content:
    """What a member holds once inflated: `start` are its first 20 bytes, enough to tell an ELF file and CPU."""

    sha256: Sha256
    size: int
    start: bytes

    @property
    def is_elf(self) -> bool:
        return self.start[:4] == ELF_MAGIC


class OfficialWheel:
    """An open wheel: name, version, tags, and its members by path."""

    def __init__(self, path: Path, descriptor: int, infos: dict[str, zipfile.ZipInfo]) -> None:
        self.path = path
        self.infos = infos
        self._descriptor = descriptor
        self.distribution, self.version, self.tags = _parsed_name(path.name)
        self.dist_info = self._only_dist_info()
        self.record = self._read_record()

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open a wheel whose digest was checked before.

        Raises UnpackError or PackError when it is no usable wheel.
        """
        with members.open_archive(path, limit=_UNPACKED_LIMIT, member_limit=_MEMBER_LIMIT) as archive:
            taken = members.judge(archive)
        with path.open("rb") as file, members.damage(path.name), zipfile.ZipFile(file) as archive_file:
            all_infos = archive_file.infolist()
            infos = {member.path: all_infos[member.index] for member in taken if member.kind is members.Kind.FILE}
            problems = [
                f"{path.name}: the link {member.name} cannot be part of a wheel."
                for member in taken
                if member.kind is members.Kind.LINK
            ]
            problems += [
                f"{path.name}: {name} is compressed by method {info.compress_type}; wheels store or deflate."
                for name, info in infos.items()
                if info.compress_type not in {STORED, DEFLATED}
            ]
            if problems:
                raise PackError(problems, do="take the wheel that the pins name.")
            yield cls(path, file.fileno(), infos)

    @property
    def abi(self) -> str:
        """Interpreter and ABI as the file name has them: `cp38-abi3`."""
        return "-".join(self.path.name.removesuffix(".whl").split("-")[2:4])

    def mode(self, name: str) -> int:
        """The permissions a member gets in our wheel: 0755 for what may be run, else 0644."""
        return EXECUTABLE if self.infos[name].external_attr >> 16 & 0o111 else PLAIN

    def raw(self, name: str) -> Iterator[bytes]:
        """The member as it lies in the archive."""
        info = self.infos[name]
        offset, left = self._data_offset(info), info.compress_size
        while left:
            chunk = os.pread(self._descriptor, min(CHUNK, left), offset)
            if not chunk:
                raise PackError(f"{self.path.name} breaks off inside {name}.", do="fetch it again.")
            yield chunk
            offset += len(chunk)
            left -= len(chunk)

    def inflated(self, name: str) -> Iterator[bytes]:
        """The member's content, in pieces of bounded size, checked against CRC and size at its end."""
        info = self.infos[name]
        crc, size = 0, 0
        with members.damage(f"{self.path.name}: {name}"):
            for piece in self._pieces(name, info):
                crc = zlib.crc32(piece, crc)
                size += len(piece)
                if size > info.file_size:
                    break
                yield piece
        if (crc, size) != (info.CRC, info.file_size):
            raise PackError(
                f"{self.path.name}: {name} should be {info.file_size} bytes with CRC {info.CRC:08x}, "
                f"found {size} bytes with CRC {crc:08x}.",
                do="fetch the wheel again.",
            )

    def read(self, name: str) -> bytes:
        """A small member as a whole."""
        if name not in self.infos:
            raise PackError(f"{self.path.name} has no {name}.", do="take the wheel that the pins name.")
        return b"".join(self.inflated(name))

    def content(self, name: str) -> Content:
        """Inflate a member and describe it. Raises PackError if it is not what the wheel's RECORD says."""
        digest, size, start = hashlib.sha256(), 0, b""
        for piece in self.inflated(name):
            digest.update(piece)
            size += len(piece)
            if len(start) < 20:
                start += piece[: 20 - len(start)]
        content = Content(Sha256(digest.hexdigest()), size, start)
        recorded = self.record.get(name)
        if not name.startswith(f"{self.dist_info}/RECORD") and recorded != (content.sha256, size):
            said = f"{recorded[0]} and {recorded[1]} bytes" if recorded else "nothing"
            raise PackError(
                f"{self.path.name}: {name} is {content.sha256} with {size} bytes, its RECORD says {said}.",
                do="take the wheel that the pins name; this one was changed after it was made.",
            )
        return content

    def entry(self, name: str, as_name: str) -> Entry:
        """How the member stands in a new archive when its bytes are copied as they are."""
        info = self.infos[name]
        return Entry(as_name, info.CRC, info.file_size, info.compress_size, info.compress_type, self.mode(name))

    def _pieces(self, name: str, info: zipfile.ZipInfo) -> Iterator[bytes]:
        if info.compress_type == STORED:
            yield from self.raw(name)
            return
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        for chunk in self.raw(name):
            data = chunk
            while data and not inflater.eof:
                yield inflater.decompress(data, CHUNK)
                data = inflater.unconsumed_tail
        yield inflater.flush()
        if not inflater.eof or inflater.unused_data:
            raise zlib.error("the compressed data does not end where it should")

    def _data_offset(self, info: zipfile.ZipInfo) -> int:
        header = os.pread(self._descriptor, _LOCAL.size, info.header_offset)
        if len(header) != _LOCAL.size or header[:4] != b"PK\3\4":
            raise PackError(
                f"{self.path.name}: {info.filename} does not begin where the directory says.",
                do="fetch the wheel again.",
            )
        _, name_length, extra_length = _LOCAL.unpack(header)
        return info.header_offset + _LOCAL.size + int(name_length) + int(extra_length)

    def _only_dist_info(self) -> str:
        found = sorted({name.split("/")[0] for name in self.infos if name.split("/")[0].endswith(".dist-info")})
        wanted = f"{self.distribution}-{self.version}.dist-info"
        if found != [wanted]:
            raise PackError(
                f"{self.path.name} should hold one folder {wanted}, found {', '.join(found) or 'none'}.",
                do="take the wheel that the pins name.",
            )
        return wanted

    def _read_record(self) -> dict[str, tuple[Sha256, int]]:
        text = self.read(f"{self.dist_info}/RECORD").decode("utf-8", "replace")
        record = {}
        try:
            for path, digest, size in csv.reader(text.splitlines()):
                if digest:
                    value = digest.removeprefix("sha256=")
                    record[path] = Sha256(base64.urlsafe_b64decode(f"{value}==").hex()), int(size)
        except (ValueError, csv.Error) as error:
            raise PackError(f"the RECORD of {self.path.name} cannot be read: {error}.") from error
        return record


def _parsed_name(filename: str) -> tuple[str, Version, frozenset[Tag]]:
    try:
        name, version, build, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        raise PackError(f"{filename} is no wheel's file name: {error}.") from error
    if build:
        raise PackError(f"{filename} has a build number; a wheel without one was wanted.")
    return name.replace("-", "_"), version, tags
