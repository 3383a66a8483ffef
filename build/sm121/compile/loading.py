"""Asks the target's own dynamic loader whether the compiled libraries resolve.

The loader traces a library (ld.so(8), LD_TRACE_LOADED_OBJECTS with LD_WARN and LD_BIND_NOW) against the torch and the CUDA
runtime it was linked with; for another CPU it runs under qemu's user mode. No code of the library runs, no GPU is needed.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LOADERS = {"aarch64": "ld-linux-aarch64.so.1", "x86_64": "ld-linux-x86-64.so.2"}
_OF_THE_INTERPRETER = re.compile(r"_?Py[A-Z_]")


def unresolved(
    libraries: Iterable[Path],
    *,
    search: Sequence[Path],
    cpu: str,
    compiler: str,
    emulator: str | None,
    preloaded: Sequence[Path] = (),
    uncalled: Callable[[str], bool] = lambda _: False,
) -> list[str]:
    """One sentence per symbol or library that the loader cannot find for one of `libraries`.

    `search` are folders with torch's libraries, the CUDA runtime and the driver's stub; what torch itself misses
    there is not our libraries' fault and not reported. Python's own symbols come from the interpreter. `preloaded` are
    libraries that the process has loaded before and that none of `libraries` names. A function that is `uncalled` may be
    missing where the library loads without it, as calls are looked up when they are first made (dlopen(3), RTLD_LAZY).
    Raises CompileError if the loader does not run.
    """
    loader = Path(process.run([compiler, f"-print-file-name={_LOADERS[cpu]}"]).stdout.strip())
    if not loader.is_absolute() or not loader.exists():
        raise CompileError(
            f"{compiler} knows no dynamic loader {_LOADERS[cpu]} for {cpu}.",
            do="install the C library for that CPU.",
        )
    faults = []
    with tempfile.TemporaryDirectory(prefix="sm121-loader-") as folder:
        driver = next(
            (path / "stubs" / "libcuda.so" for path in search if (path / "stubs" / "libcuda.so").exists()), None
        )
        if driver:
            (Path(folder) / "libcuda.so.1").symlink_to(driver)
        path = ":".join(map(str, [folder, *search]))
        wanted = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "yes", "LD_LIBRARY_PATH": path}
        for library in preloaded:
            # The loader takes blanks for ends of names there, as well as colons.
            (Path(folder) / library.name).symlink_to(library)
        if preloaded:
            wanted["LD_PRELOAD"] = ":".join(f"{folder}/{library.name}" for library in preloaded)
        for library in libraries:
            missing = _missing(library, loader, {**wanted, "LD_BIND_NOW": "yes"}, emulator)
            if spared := {symbol for symbol in missing if uncalled(symbol)}:
                missing -= spared - _missing(library, loader, wanted, emulator)
            faults += [
                f"{library.name} wants the symbol {symbol}, which nothing it is linked with defines."
                for symbol in sorted(missing)
            ]
    return faults


def _missing(library: Path, loader: Path, wanted: dict[str, str], emulator: str | None) -> set[str]:
    if emulator:
        root = loader.resolve().parent.parent
        variables = [word for name, value in wanted.items() for word in ("-E", f"{name}={value}")]
        done = process.run([emulator, "-L", root, *variables, loader, library], check=False)
    else:
        done = process.run([loader, library], env=process.environment(wanted), check=False)
    said = done.stdout + done.stderr
    if "libc.so.6" not in said:
        raise CompileError(
            f"the dynamic loader did not trace {library.name}: {said.strip()[:300] or f'status {done.returncode}'}.",
            do="check the library with `file` and `readelf -d`.",
        )
    # Torch's own dependencies (cuBLAS and others) are not laid out for a build; what they define, torch brings.
    absent = tuple(match[1].lower() for match in re.finditer(r"lib(\w+)\.so\S* => not found", said))
    own = re.compile(rf"undefined symbol: (\S+?),?\s.*\({re.escape(str(library))}\)")
    return {
        symbol
        for symbol in own.findall(said)
        if not _OF_THE_INTERPRETER.match(symbol) and not symbol.lower().startswith(absent)
    }
