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


def library(folder: Path, name: str, source: str, *flags: str) -> Path:
    folder.mkdir(exist_ok=True)
    made = folder / f"{name}.so"
    command = ["gcc", "-shared", "-fPIC", *flags, "-x", "c", "-", "-o", str(made)]
    subprocess.run(command, input=source, text=True, check=True)
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


@pytest.mark.programs
@pytest.mark.skipif(CPU not in {"x86_64", "aarch64"}, reason=f"the loader of {CPU} is not known")
@pytest.mark.parametrize(
    ("source", "flag", "loads"),
    [
        ("void f(int n) { if (n == 7) never(); }", "-Wl,-z,lazy", True),
        ("void f(int n) { if (n == 7) never(); }", "-Wl,-z,now", False),
        ("void (*pointer)(void) = never;", "-Wl,-z,lazy", False),
        ("void f(int n) { if (n == 7) other(); }", "-Wl,-z,lazy", False),
    ],
)
def test_a_function_that_nobody_calls_may_be_missing_where_calls_are_looked_up_late(
    tmp_path: Path, source: str, flag: str, *, loads: bool
) -> None:
    text = f'#include <stdio.h>\nvoid never(void); void other(void); {source} void g(void) {{ puts(""); }}'
    module = library(tmp_path, "module", text, flag)
    found = unresolved(
        [module], search=[], cpu=CPU, compiler="gcc", emulator=None, uncalled=lambda symbol: symbol == "never"
    )
    symbol = "other" if "other()" in source else "never"
    said = f"module.so wants the symbol {symbol}, which nothing it is linked with defines."
    assert found == ([] if loads else [said])
