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
    from collections.abc import Iterable

    from sm121.pack.stamp import Stamp
    from sm121.values import Sha256

GENERATOR = f"sm121 ({__version__})"


def stamped_metadata(data: bytes, stamp: Stamp) -> bytes:
    """METADATA with our version; nothing else changes."""
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
    result = b"\n".join(lines) + blank + body
    assert parse_email(result)[0].get("version") == stamp.version
    return result


def wheel_text(tags: Iterable[str]) -> bytes:
    """The WHEEL file of a platform wheel with these tags."""
    lines = ["Wheel-Version: 1.0", f"Generator: {GENERATOR}", "Root-Is-Purelib: false"]
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
