"""Answers what upstream's CMake asks of an imported torch, from the target's torch, without importing it.

The torch to link with is the target's: on another CPU it cannot be imported, and on the same CPU an import needs
3 GB of libraries that no compile reads. CMake asks two things: the folder of torch's CMake files, and the nvcc
flags that torch's extension builder uses. Both are read from the unpacked wheel.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from sm121.errors import CompileError

if TYPE_CHECKING:
    from pathlib import Path


def write_answers(torch: Path, into: Path) -> None:
    """Write a package `torch` below `into` that answers from the torch package unpacked at `torch`."""
    flags = _assigned_list(torch / "utils" / "cpp_extension.py", "COMMON_NVCC_FLAGS")
    utils = into / "torch" / "utils"
    utils.mkdir(parents=True, exist_ok=True)
    (into / "torch" / "__init__.py").write_text("from . import utils\n")
    (utils / "__init__.py").write_text(f"cmake_prefix_path = {str(torch / 'share' / 'cmake')!r}\n")
    (utils / "cpp_extension.py").write_text(f"COMMON_NVCC_FLAGS = {flags!r}\n")


def _assigned_list(file: Path, name: str) -> list[str]:
    try:
        module = ast.parse(file.read_text())
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise CompileError(f"{file} cannot be read: {error}.") from error
    for node in module.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(to, ast.Name) and to.id == name for to in node.targets
        ):
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                break
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                return value
    raise CompileError(
        f"{file} assigns no list of strings to {name}, which upstream's CMake asks for.",
        do="this torch is not supported yet; use the pinned one.",
    )
