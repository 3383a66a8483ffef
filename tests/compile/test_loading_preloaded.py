"""Symbols that a library takes from one that the process has loaded before, as FlashInfer's modules do from tvm-ffi."""

from __future__ import annotations

import platform
import subprocess
from typing import TYPE_CHECKING

import pytest

from sm121.compile.loading import unresolved

if TYPE_CHECKING:
    from pathlib import Path

CPU = platform.machine()


def library(folder: Path, name: str, source: str) -> Path:
    folder.mkdir(exist_ok=True)
    made = folder / f"{name}.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", made], input=source, text=True, check=True)
    return made


@pytest.mark.programs
@pytest.mark.skipif(CPU not in {"x86_64", "aarch64"}, reason=f"the loader of {CPU} is not known")
def test_what_is_loaded_before_defines_symbols_wherever_it_lies(tmp_path: Path) -> None:
    module = library(
        tmp_path / "modules",
        "module",
        '#include <stdio.h>\nint ffi_call(void); void f(void) { printf("%d", ffi_call()); }',
    )
    before = library(tmp_path / "a folder with blanks", "libffi", "int ffi_call(void) { return 1; }")
    assert unresolved([module], search=[], cpu=CPU, compiler="gcc", emulator=None) == [
        "module.so wants the symbol ffi_call, which nothing it is linked with defines."
    ]
    assert unresolved([module], search=[], preloaded=[before], cpu=CPU, compiler="gcc", emulator=None) == []
