"""The one check every toolkit passes before it is used: its own word, its headers, and a compiled kernel."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process
from sm121.device import read_device_code
from sm121.errors import ProgramError, ToolchainError
from sm121.toolchain import Toolkit
from sm121.toolchain.layout import header_version
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from sm121.values import ArchSpec

_KERNEL = "__global__ void probe(float *p) { p[threadIdx.x] *= 2.f; }\n"


def check(root: Path, *, wanted: CudaVersion, arch: ArchSpec, host_compiler: str, machine: str) -> Toolkit:
    """Prove that the nvcc under `root` is of release `wanted` and makes `arch` code for `machine` objects.

    Raises ToolchainError naming what was planned and what was found.
    """
    nvcc = root / "bin" / "nvcc"
    said = process.run([nvcc, "--version"]).stdout
    match = re.search(r"V(\d+\.\d+\.\d+)", said)
    if not match:
        raise ToolchainError(f"{nvcc} does not tell its version; it says: {said.strip()[:200]!r}.")
    found = CudaVersion.parse(match[1])
    problems = []
    if found.release != wanted.release:
        problems.append(f"the plan wants nvcc {wanted.release}, {nvcc} is {found}.")
    headers = header_version(root / "include")
    if headers != (wanted.major, wanted.minor):
        problems.append(f"the plan wants CUDA {wanted.release} headers, cuda.h is of {headers[0]}.{headers[1]}.")
    if problems:
        raise ToolchainError(problems, do="name the toolkit of the planned release with --cuda-home.")
    version = process.run([host_compiler, "-dumpfullversion"]).stdout.strip()
    _compile_probe(nvcc, arch, host_compiler, machine)
    return Toolkit(root, found, host_compiler, version)


def _compile_probe(nvcc: Path, arch: ArchSpec, host_compiler: str, machine: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sm121-probe-") as folder:
        source = Path(folder) / "src" / "probe.cu"
        source.parent.mkdir()
        source.write_text(_KERNEL)
        build = Path(folder) / "obj"
        build.mkdir()
        code = f"arch={arch.compute},code={arch.sm}"
        try:
            process.run(
                [nvcc, f"-ccbin={host_compiler}", "-gencode", code, "-c", "../src/probe.cu", "-o", "probe.o"],
                cwd=build, env=process.environment(path=f"{nvcc.parent}:{process.SYSTEM_PATH}"),
            )  # fmt: skip
        except ProgramError as error:
            raise ToolchainError(
                [f"the toolkit does not compile a one-line kernel for {arch.sm}:", *error.problems],
                do="check the host compiler against the range that this CUDA release supports.",
            ) from error
        code_found = read_device_code((build / "probe.o").read_bytes())
    targets = {image.target for container in code_found.containers for image in container.images}
    if targets != {arch.sm} or code_found.machine != machine:
        raise ToolchainError(
            f"a probe compiled for {arch.sm} on {machine} holds {sorted(targets)} on {code_found.machine}.",
            do="this nvcc does not do what it is told; use another toolkit.",
        )
