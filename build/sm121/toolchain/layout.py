"""Fix-ups that turn the parts of a toolkit into a CUDA_HOME that torch's CMake module accepts.

Where each one comes from: measured with CUDA 13.0.88 and torch 2.14.0 (docs/toolchain.md).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sm121 import process
from sm121.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Libraries that torch's CMake module names as link targets although nothing compiled here calls them. Real ones
# are 2.5 GB of downloads; an empty library with the right name satisfies the generator, and the linker drops it
# or keeps it exactly as it would the real one, since no symbol of it is used.
_NEVER_CALLED: Mapping[int, Mapping[str, str]] = {
    12: {
        "libcublas.so": "libcublas.so.12", "libcublasLt.so": "libcublasLt.so.12", "libcufft.so": "libcufft.so.11",
        "libcurand.so": "libcurand.so.10", "libcusparse.so": "libcusparse.so.12", "libcufile.so": "libcufile.so.0",
        "libcusolver.so": "libcusolver.so.11", "libcupti.so": "libcupti.so.12",
        "libnvjitlink.so": "libnvJitLink.so.12",
    },
    13: {
        "libcublas.so": "libcublas.so.13", "libcublasLt.so": "libcublasLt.so.13", "libcufft.so": "libcufft.so.12",
        "libcurand.so": "libcurand.so.10", "libcusparse.so": "libcusparse.so.12", "libcufile.so": "libcufile.so.0",
        "libcusolver.so": "libcusolver.so.12", "libcupti.so": "libcupti.so.13",
        "libnvjitlink.so": "libnvJitLink.so.13",
    },
}  # fmt: skip

# nvcc hands cudafe++ the absolute path of the source, and names of internal symbols are made from it: the same
# source compiled in two folders would give two libraries. Paths below the folder that holds the build folder are
# given a fixed beginning.
_CUDAFE_WRAPPER = """\
#!/bin/sh
root=$(cd .. && pwd -P)
previous=
for argument; do
  shift
  case "$previous:$argument" in
    --orig_src_path_name:"$root"/*) argument="/sm121${argument#"$root"}" ;;
  esac
  set -- "$@" "$argument"
  previous=$argument
done
exec "$(dirname "$0")/cudafe++.real" "$@"
"""


_DECLARED_IN = {"libcublas.so": "cublas_v2.h", "libcublasLt.so": "cublasLt.h"}
"""Headers with the functions of a library whose stand-in must define them."""


def fix_up(root: Path, *, cuda_major: int, target_compiler: str, called: Sequence[str] = ()) -> None:
    """Complete the toolkit folder `root` for a target whose C compiler is `target_compiler`.

    `called` are libraries that are called after all: their stand-ins define their functions, so that the linker
    writes down that they are needed, and the loader check finds them.

    Adds: executable bits, `lib64`, unversioned library names, stand-ins for libraries that are only named, the
    driver library's stub (which must define the driver's functions: an empty one is dropped by `--as-needed`,
    and libraries then lack `NEEDED libcuda.so.1`), and the cudafe++ wrapper for builds that do not depend on
    their folder.
    """
    for folder in (root / "bin", root / "nvvm" / "bin"):
        for program in folder.iterdir():
            if program.is_file() and not program.is_symlink():
                program.chmod(program.stat().st_mode | 0o111)
    library = root / "lib"
    if not (root / "lib64").exists():
        (root / "lib64").symlink_to("lib")
    for versioned in sorted(library.glob("lib*.so.*")):
        plain = library / (versioned.name.split(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(versioned.name)
    for name, soname in _NEVER_CALLED[cuda_major].items():
        if not (library / name).exists():
            content = _defined(root / "include", _DECLARED_IN[name], target_compiler) if name in called else ""
            _shared_library(content, library / name, soname, target_compiler)
            if name in called:
                (library / soname).symlink_to(name)
    stubs = library / "stubs"
    stubs.mkdir(exist_ok=True)
    if not (stubs / "libcuda.so").exists():
        functions = driver_functions(root / "include", target_compiler)
        source = "".join(f"void {name}(void) {{}}\n" for name in functions)
        _shared_library(source, stubs / "libcuda.so", "libcuda.so.1", target_compiler)
    real = root / "bin" / "cudafe++.real"
    if not real.exists():
        wrapper = root / "bin" / "cudafe++"
        wrapper.rename(real)
        wrapper.write_text(_CUDAFE_WRAPPER)
        wrapper.chmod(0o755)


def driver_functions(include: Path, compiler: str) -> list[str]:
    """The names of the driver's functions as the linker sees them.

    Read from the preprocessed cuda.h, because the header renames most of them (`cuMemAlloc` is `cuMemAlloc_v2`).
    """
    done = process.run([compiler, "-E", "-P", "-x", "c", "-I", include, include / "cuda.h"])
    names = sorted(set(re.findall(r"\bCUresult\s+(cu[A-Z]\w+)\s*\(", done.stdout)))
    if len(names) < 100:
        raise ToolchainError(
            f"{include / 'cuda.h'} declares {len(names)} driver functions; some hundreds were expected.",
            do="check that the toolkit's runtime headers are complete.",
        )
    return names


def _defined(include: Path, header: str, compiler: str) -> str:
    """C source that defines every function which `header` declares under its library's own prefix."""
    done = process.run([compiler, "-E", "-P", "-x", "c", "-I", include, include / header])
    names = sorted(set(re.findall(r"\b(cublas\w+)\s*\(", done.stdout)))
    if len(names) < 20:
        raise ToolchainError(
            f"{include / header} declares {len(names)} functions; some dozens were expected.",
            do="check that the toolkit's headers are complete.",
        )
    return "".join(f"void {name}(void) {{}}\n" for name in names)


def _shared_library(source: str, path: Path, soname: str, compiler: str) -> None:
    process.run(
        [compiler, "-shared", "-nostdlib", "-fPIC", f"-Wl,-soname,{soname}", "-o", path, "-x", "c", "-"],
        stdin=source,
    )


def header_version(include: Path) -> tuple[int, int]:
    """(major, minor) of CUDA_VERSION in cuda.h."""
    match = re.search(
        r"^#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text(errors="replace"), re.MULTILINE
    )
    if not match:
        raise ToolchainError(f"{include / 'cuda.h'} defines no CUDA_VERSION.")
    return int(match[1]) // 1000, int(match[1]) // 10 % 100
