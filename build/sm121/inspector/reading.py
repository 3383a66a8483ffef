"""Reads one file into facts: device code in a forward pass, then what the host part says."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sm121.device import DamagedError, ptx_kernels, read_host
from sm121.errors import ArtifactError
from sm121.inspector.facts import ImageFacts, LibraryFacts, PlainFacts, UnitFacts, UnitKernel
from sm121.inspector.forward import CHUNK, read_buffer, read_forward, sha256_of
from sm121.inspector.looker import Looker
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from typing import BinaryIO

    from sm121.artifact import Member
    from sm121.device import Container
    from sm121.inspector.forward import Pass
    from sm121.inspector.looker import UnitLook
    from sm121.target import Capability

_PUT_ASIDE = re.compile(r"(?:.*/)?[^/]+\.dist-info/sm121-overlay/before/\d+", re.DOTALL)
_LIBRARY = re.compile(r".*\.(so(\.[0-9]+)*|a|o|cubin|fatbin)", re.DOTALL)
_TEXTS = (b"/* GNU ld script", b"INPUT(", b"INPUT (", b"GROUP(", b"GROUP (", b"OUTPUT_FORMAT(")
_HEAD = 64
LARGEST_PTX = 256 << 20


@dataclass(frozen=True, slots=True)
class Depth:
    """How deep to look: at kernels or headers only, with a digest or without, at the host's symbols or not."""

    capability: Capability
    kernels: bool = True
    digest: bool = True
    symbols: bool = True


def may_hold_code(path: str, *, executable: bool) -> bool:
    """Whether a file is to be looked at: a library, object, archive, cubin, fatbin or PTX by name, or a program.

    What an overlay has put aside is none: nothing loads it.
    """
    if _PUT_ASIDE.fullmatch(path):
        return False
    return executable or path.endswith(".ptx") or bool(_LIBRARY.fullmatch(path))


def read_library(member: Member, depth: Depth) -> LibraryFacts | PlainFacts:
    """Read a member; PlainFacts if it is an executable that is no program, or a script for the linker.

    A file that cannot be read as what its name says is a library of no format, with the reason in `damage`.
    """
    try:
        if member.size and member.content.mapped() is not None:
            with member.buffer() as buffer:
                if _is_plain(member, bytes(buffer[:_HEAD])):
                    return PlainFacts(sha256_of(buffer) if depth.digest else "")
                if member.path.endswith(".ptx"):
                    return _ptx(member, bytes(buffer[:LARGEST_PTX]), depth)
                look = Looker(depth.capability, depth.kernels)
                return _facts(member, read_buffer(buffer, look, digest=depth.digest), depth)
        with member.open() as file:
            return _streamed(member, file, depth)
    except (DamagedError, ArtifactError) as error:
        return LibraryFacts(member.path, member.size, "", "", damage=tuple(error.problems))


def _streamed(member: Member, file: BinaryIO, depth: Depth) -> LibraryFacts | PlainFacts:
    """Read a member that can be had only from its start to its end, once."""
    head = file.read(_HEAD)
    if _is_plain(member, head):
        return PlainFacts(_sha256(head, file) if depth.digest else "")
    if member.path.endswith(".ptx"):
        return _ptx(member, head + file.read(LARGEST_PTX), depth)
    look = Looker(depth.capability, depth.kernels)
    with read_forward(member, head, file, look, digest=depth.digest) as done:
        return _facts(member, done, depth)


def _is_plain(member: Member, head: bytes) -> bool:
    """Whether a file that was looked at for its name or its mode can hold no device code."""
    named = may_hold_code(member.path, executable=False)
    return head.startswith(_TEXTS) or (not named and not head.startswith(b"\x7fELF"))


def _sha256(head: bytes, rest: BinaryIO) -> str:
    hasher = hashlib.sha256(head)
    while chunk := rest.read(CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


def _facts(member: Member, done: Pass[UnitLook], depth: Depth) -> LibraryFacts:
    code = done.code
    host = read_host(done.buffer) if code.format == "elf" else None
    damage = dict.fromkeys((*code.damage, *(host.damage if host else ())))
    if host is not None and not depth.symbols:
        host = replace(host, defined=frozenset(), undefined=frozenset(), bound={}, lazy=frozenset())
    units = tuple(_unit(container, seen) for container, seen in zip(code.containers, done.seen, strict=True))
    return LibraryFacts(
        member.path, member.size, code.format, code.machine, units, tuple(damage), tuple(code.notices), host,
        done.sha256, looked_into=depth.kernels,
    )  # fmt: skip


def _unit(container: Container, seen: UnitLook) -> UnitFacts:
    return UnitFacts(
        container.section, container.index, seen.images, seen.kernels, container.offset, container.size, container.member,
        tuple(f"an image for sm_{entry.sm} that cannot be read ({entry.why})" for entry in container.unknown),
    )  # fmt: skip


def _ptx(member: Member, text: bytes, depth: Depth) -> LibraryFacts:
    """A file of PTX text: one unit with one image."""
    version = re.search(rb"^\s*\.version\s+(\d+)\.(\d+)", text, re.MULTILINE)
    target = re.search(rb"^\s*\.target\s+(sm_\d{2,3}[af]?)\b", text, re.MULTILINE)
    if version is None or target is None:
        raise DamagedError("no PTX: it lacks a .version or a .target line.")
    names = ptx_kernels(text) if depth.kernels else ()
    image = ImageFacts(
        "ptx", ArchSpec.from_sm(target[1].decode()), member.size, member.size, "", (int(version[1]), int(version[2])),
        kernels=len(names) if depth.kernels else None,
    )  # fmt: skip
    unit = UnitFacts("", 0, (image,), tuple(UnitKernel(name, (0,)) for name in names), size=member.size)
    digest = hashlib.sha256(text).hexdigest() if depth.digest else ""
    return LibraryFacts(member.path, member.size, "ptx", "", (unit,), sha256=digest, looked_into=depth.kernels)
