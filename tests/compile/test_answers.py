from __future__ import annotations

import runpy
from typing import TYPE_CHECKING

import pytest

from sm121.compile.answers import write_answers
from sm121.errors import CompileError

if TYPE_CHECKING:
    from pathlib import Path


def torch_with(tmp_path: Path, text: str) -> Path:
    torch = tmp_path / "torch"
    (torch / "utils").mkdir(parents=True)
    (torch / "utils" / "cpp_extension.py").write_text(text)
    return torch


def test_flags_are_read_without_importing(tmp_path: Path) -> None:
    torch = torch_with(
        tmp_path, "import does_not_exist\nCOMMON_NVCC_FLAGS = ['-D__X__', '--expt-relaxed-constexpr']\n"
    )
    write_answers(torch, tmp_path / "answers")
    told = runpy.run_path(str(tmp_path / "answers" / "torch" / "utils" / "cpp_extension.py"))
    assert told["COMMON_NVCC_FLAGS"] == ["-D__X__", "--expt-relaxed-constexpr"]
    where = runpy.run_path(str(tmp_path / "answers" / "torch" / "utils" / "__init__.py"))
    assert where["cmake_prefix_path"] == str(torch / "share" / "cmake")


@pytest.mark.parametrize("text", ["", "COMMON_NVCC_FLAGS = flags()\n", "COMMON_NVCC_FLAGS = [1]\n", "def (:\n"])
def test_an_unknown_shape_is_refused(tmp_path: Path, text: str) -> None:
    torch = torch_with(tmp_path, text)
    with pytest.raises(CompileError, match=r"cpp_extension\.py"):
        write_answers(torch, tmp_path / "answers")
