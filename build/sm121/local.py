"""Folders of the user's that take the place of pinned files: what they hold, and what identifies it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from sm121.errors import ArtifactError
from sm121.plan.model import Local
from sm121.sources.tree import tree_digest
from sm121.values import Sha256

if TYPE_CHECKING:
    from pathlib import Path


def local_torch(folder: Path) -> Local:
    """An installed or unpacked torch package. Identified by version.py, which carries its git commit."""
    folder = folder.resolve()
    missing = [
        name for name in ("version.py", "include", "lib", "share/cmake/Torch") if not (folder / name).exists()
    ]
    if missing:
        raise ArtifactError(
            f"{folder} is no torch package: it has no {', '.join(missing)}.",
            do="name the folder `torch` inside site-packages of an environment with torch for the target CPU.",
        )
    text = (folder / "version.py").read_bytes()
    version = next(
        (
            node.value.value
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign)
            and any(isinstance(name, ast.Name) and name.id == "__version__" for name in node.targets)
            and isinstance(node.value, ast.Constant)
        ),
        "unknown",
    )
    return Local(str(folder), str(version), Sha256.of_bytes(text).hex)


def local_cutlass(folder: Path) -> Local:
    """A CUTLASS source folder. Identified by the content of its headers."""
    folder = folder.resolve()
    header = folder / "include" / "cutlass" / "version.h"
    util = folder / "tools" / "util" / "include"
    missing = [str(path) for path in (header, util) if not path.exists()]
    if missing:
        raise ArtifactError(
            f"{folder} is no CUTLASS source folder: {', '.join(missing)} does not exist.",
            do="name a folder with include/ and tools/util/include/.",
        )
    numbers = re.findall(r"^#define CUTLASS_(?:MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text(), re.MULTILINE)
    digest = Sha256.of_bytes(tree_digest(folder / "include").hex.encode() + tree_digest(util).hex.encode())
    return Local(str(folder), ".".join(numbers) or "unknown", digest.hex)
