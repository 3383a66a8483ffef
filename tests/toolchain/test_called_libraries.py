"""Stand-ins for libraries that FlashInfer's modules call: the linker must write down that they are needed."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from sm121.errors import ToolchainError
from sm121.plan.flashinfer_steps import CALLED
from sm121.toolchain.layout import fix_up

if TYPE_CHECKING:
    from pathlib import Path


def toolkit(tmp_path: Path, functions: int = 30) -> Path:
    root = tmp_path / "cuda"
    for folder in ("bin", "nvvm/bin", "include", "lib"):
        (root / folder).mkdir(parents=True)
    (root / "bin" / "cudafe++").write_text("#!/bin/sh\n")
    driver = "".join(f"CUresult cuFunction{n}(int);\n" for n in range(150))
    (root / "include" / "cuda.h").write_text(f"typedef int CUresult;\n{driver}")
    for header, prefix in (("cublas_v2.h", "cublas"), ("cublasLt.h", "cublasLt")):
        text = "typedef int cublasStatus_t;\ntypedef void (*cublasLogCallback)(const char *);\n"
        text += f"#define {prefix}Gemm {prefix}Gemm_v2\ncublasStatus_t {prefix}Gemm(int);\n"
        text += "".join(f"cublasStatus_t {prefix}Function{n}(int);\n" for n in range(functions))
        (root / "include" / header).write_text(text)
    return root


def needed(library: Path) -> str:
    return subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout


@pytest.mark.programs
def test_a_library_that_calls_them_needs_them_and_one_that_does_not_does_not(tmp_path: Path) -> None:
    root = toolkit(tmp_path)
    fix_up(root, cuda_major=13, target_compiler="gcc", called=CALLED)
    for name, call in (
        ("calls", "int cublasLtGemm_v2(int); int f(void) { return cublasLtGemm_v2(1); }"),
        ("not", "int f;"),
    ):
        source = tmp_path / f"{name}.c"
        source.write_text(call)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wl,--as-needed", source, f"-L{root / 'lib'}", "-lcublas", "-lcublasLt",
             "-o", tmp_path / f"{name}.so"], check=True,
        )  # fmt: skip
    assert "libcublasLt.so.13" in needed(tmp_path / "calls.so")
    assert "libcublas.so.13" not in needed(tmp_path / "calls.so")
    assert "libcublas" not in needed(tmp_path / "not.so")
    assert (root / "lib" / "libcublasLt.so.13").resolve() == root / "lib" / "libcublasLt.so"


@pytest.mark.programs
def test_without_a_call_the_stand_ins_are_empty(tmp_path: Path) -> None:
    root = toolkit(tmp_path)
    fix_up(root, cuda_major=13, target_compiler="gcc")
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", root / "lib" / "libcublas.so"], capture_output=True, text=True, check=True
    ).stdout
    assert "cublas" not in symbols
    assert not (root / "lib" / "libcublas.so.13").exists()


@pytest.mark.programs
def test_headers_that_declare_next_to_nothing_are_no_headers(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="some dozens were expected"):
        fix_up(toolkit(tmp_path, functions=3), cuda_major=13, target_compiler="gcc", called=CALLED)
