"""The texts in a wheel's dist-info that follow from its version, its tags and its members."""

from __future__ import annotations

import base64
import csv
import io
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

from sm121 import __version__
from sm121.errors import PackError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sm121.pack.stamp import Stamp
    from sm121.values import Sha256

GENERATOR = f"sm121 ({__version__})"


def stamped_metadata(data: bytes, stamp: Stamp, requirements: Mapping[str, str] | None = None) -> bytes:
    """METADATA with our version and, where `requirements` says so, other requirements; nothing else changes.

    Each key of `requirements` is how exactly one Requires-Dist value begins (`nvidia-cutlass-dsl[cu13]`), its value what
    stands there instead.
    """
    head, blank, body = data.partition(b"\n\n")
    lines = head.split(b"\n")
    found = [index for index, line in enumerate(lines) if line.lower().startswith(b"version:")]
    raw, _ = parse_email(data)
    name, version = raw.get("name", ""), raw.get("version", "")
    if (
        len(found) != 1
        or version != str(stamp.base)
        or canonicalize_name(name) != canonicalize_name(stamp.project)
    ):
        raise PackError(
            f"METADATA should be of {stamp.project} {stamp.base} with one Version line, found "
            f"{name or 'no name'} {version or 'no version'} with {len(found)} Version lines.",
            do="take the official wheel of the pinned version.",
        )
    lines[found[0]] = f"Version: {stamp.version}".encode()
    _change_requirements(lines, requirements or {})
    result = b"\n".join(lines) + blank + body
    assert parse_email(result)[0].get("version") == stamp.version
    return result


def _change_requirements(lines: list[bytes], requirements: Mapping[str, str]) -> None:
    field = b"requires-dist:"
    problems = []
    for begins, becomes in requirements.items():
        wanted = begins.encode()
        found = [
            index
            for index, line in enumerate(lines)
            if line.lower().startswith(field) and line[len(field) :].strip().startswith(wanted)
        ]
        if len(found) != 1:
            problems.append(
                f"one requirement of the official wheel should begin with {begins}, found {len(found)}."
            )
            continue
        rest = lines[found[0]][len(field) :].strip().removeprefix(wanted)
        lines[found[0]] = b"Requires-Dist: " + becomes.encode() + rest
    if problems:
        raise PackError(problems, do="compare plan/requirements.toml with this version's setup.py.")


def wheel_text(tags: Iterable[str], *, pure: bool = False) -> bytes:
    """The WHEEL file of a wheel with these tags; `pure` for one without libraries."""
    lines = ["Wheel-Version: 1.0", f"Generator: {GENERATOR}", f"Root-Is-Purelib: {str(pure).lower()}"]
    return "\n".join([*lines, *(f"Tag: {tag}" for tag in sorted(tags)), ""]).encode()


def record_text(rows: Iterable[tuple[str, Sha256, int]], record: str) -> bytes:
    """RECORD over all members (path, digest, size in bytes), sorted; its own line is last and has no digest."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for path, digest, size in sorted(rows):
        encoded = base64.urlsafe_b64encode(bytes.fromhex(digest.hex)).rstrip(b"=").decode()
        writer.writerow((path, f"sha256={encoded}", size))
    writer.writerow((record, "", ""))
    return out.getvalue().encode()
