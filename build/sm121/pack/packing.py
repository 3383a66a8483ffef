"""Members of a wheel on their way into a new one: copied as they lie, or deflated anew.

Members that do not change are copied compressed, as upstream packed them; ours are deflated at a fixed level, so that
their bytes follow the zlib of this machine.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from sm121.pack.archive import DEFLATED, ArchiveWriter, Entry
from sm121.pack.metadata import record_text
from sm121.pack.official import PLAIN
from sm121.pack.storage import pieces
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from sm121.pack.official import Content, OfficialWheel

LEVEL = 6
_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Member:
    """One file of the assembled wheel, content digest and size in bytes."""

    path: str
    sha256: Sha256
    size: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A member ready to be written; `data` opens the bytes as they will lie in the archive."""

    entry: Entry
    sha256: Sha256
    data: Callable[[], Iterator[bytes]]


def inflated_contents(wheel: OfficialWheel) -> dict[str, Content]:
    """Inflate and hash every member; the largest first, so that no worker ends long after the others."""
    names = sorted(wheel.infos, key=lambda name: wheel.infos[name].file_size, reverse=True)
    with ThreadPoolExecutor(_workers()) as pool:
        return dict(zip(names, pool.map(wheel.content, names), strict=True))


def _workers() -> int:
    return min(_WORKERS, len(os.sched_getaffinity(0)))


def copied(name: str, wheel: OfficialWheel, dist_info: str, digest: Sha256) -> Packed:
    """A member whose compressed bytes are copied; the folders that carry the version get that of `dist_info`."""
    top, slash, rest = name.partition("/")
    for suffix in (".dist-info", ".data"):
        if top == wheel.dist_info.removesuffix(".dist-info") + suffix:
            top = dist_info.removesuffix(".dist-info") + suffix
    return Packed(wheel.entry(name, top + slash + rest), digest, lambda: wheel.raw(name))


def packed_text(name: str, data: bytes) -> Packed:
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    stored = deflater.compress(data) + deflater.flush()
    entry = Entry(name, zlib.crc32(data), len(data), len(stored), DEFLATED, PLAIN)
    return Packed(entry, Sha256.of_bytes(data), lambda: iter([stored]))


def packed_files(files: Mapping[str, Path], mode: Callable[[str], int], scratch: Path) -> dict[str, Packed]:
    """Deflate our libraries side by side (zlib lets go of the interpreter's lock), into files in `scratch`.

    `mode` says the permissions of each member.
    """
    with ThreadPoolExecutor(_workers()) as pool:
        running = {
            name: pool.submit(_packed_file, name, path, mode(name), scratch / str(number))
            for number, (name, path) in enumerate(files.items())
        }
        return {name: future.result() for name, future in running.items()}


def _packed_file(name: str, path: Path, mode: int, into: Path) -> Packed:
    deflater = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    digest, crc, size, stored = hashlib.sha256(), 0, 0, 0
    with into.open("wb") as packed:
        for piece in pieces(path):
            digest.update(piece)
            crc = zlib.crc32(piece, crc)
            size += len(piece)
            stored += packed.write(deflater.compress(piece))
        stored += packed.write(deflater.flush())
    entry = Entry(name, crc, size, stored, DEFLATED, mode)
    return Packed(entry, Sha256(digest.hexdigest()), lambda: pieces(into))


def write_members(
    file: IO[bytes], packed: list[Packed], dist_info: str, epoch: int
) -> tuple[int, Sha256, tuple[Member, ...]]:
    """Write all members sorted, the dist-info last and RECORD at its end, as the wheel format asks."""
    record = f"{dist_info}/RECORD"
    rows = [(each.entry.name, each.sha256, each.entry.size) for each in packed]
    last = packed_text(record, record_text(rows, record))
    packed = sorted(packed, key=lambda each: (each.entry.name.startswith(f"{dist_info}/"), each.entry.name))
    writer = ArchiveWriter(file, epoch)
    for each in [*packed, last]:
        writer.add(each.entry, each.data())
    size, digest = writer.finish()
    members = (Member(each.entry.name, each.sha256, each.entry.size) for each in [*packed, last])
    return size, digest, tuple(members)
