"""What a wheel's files are as one digest, which its installed form has too.

Installers rewrite RECORD, INSTALLER, REQUESTED, direct_url.json and scripts; all other files are the wheel's own, byte
for byte. So an image can be compared with a wheel that is not at hand.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.artifact import Distribution

_REWRITTEN = frozenset({"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json"})


def contents_digest(dist: Distribution) -> Sha256:
    """The digest over path and hash of every file that is the wheel's own. Equal for a wheel and what is installed."""
    lines = sorted(f"{path} {digest}\n" for path, digest in _own(dist))
    return Sha256.of_bytes("".join(lines).encode())


def _own(dist: Distribution) -> Iterator[tuple[str, str]]:
    info = posixpath.basename(dist.folder)
    for row in dist.rows:
        path = row.path
        top, _, rest = path.partition("/")
        if top.endswith(".data"):
            scheme, _, path = rest.partition("/")
            if scheme == "scripts":
                continue
        while path.startswith("../"):
            path = path[3:]
        folder, _, name = path.rpartition("/")
        outside = row.path.startswith("../")
        if path.endswith(".pyc") or (folder == info and name in _REWRITTEN):
            continue
        if outside and posixpath.basename(folder) == "bin":
            continue
        yield path, f"{row.algorithm}={row.digest}"
