"""Folders of the user's that take the place of pinned files: what they hold, and what identifies it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from sm121.device import ElfFile
from sm121.errors import ArtifactError, DamagedError
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
    try:
        values = _constants(ast.parse(text))
    except (SyntaxError, ValueError) as error:
        raise ArtifactError(
            f"{folder / 'version.py'} is no Python: {error}.",
            do="install that torch anew, or name another folder.",
        ) from error
    return Local(
        str(folder), values.get("__version__", "unknown"), Sha256.of_bytes(text).hex, values.get("cuda", ""),
        _machine(folder / "lib" / "libc10.so"),
    )  # fmt: skip


def _constants(module: ast.Module) -> dict[str, str]:
    """Texts that a module assigns to names, with or without a type."""
    found = {}
    for node in module.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found.update({name.id: value.value for name in targets if isinstance(name, ast.Name)})
    return found


def _machine(library: Path) -> str:
    try:
        return ElfFile.parse(library.read_bytes()).machine
    except (OSError, DamagedError):
        return ""


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
