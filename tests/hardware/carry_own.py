"""Builds a small library from vLLM's own sources and finishes it, to be run on a machine with a GPU.

`python carry_own.py VLLM_SOURCE TORCH CUDA FOLDER --target 9.0` compiles three of vLLM's files whose upstream
list is PTX (both Marlin repacks and the Hadamard transform) for x86_64, links
them with the few lines of bindings that they need, and finishes the result in both layouts. TORCH is the folder
`torch` of an installation or an unpacked wheel, CUDA a toolkit with nvcc. `own_cases.py` runs what comes out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from sm121 import process
from sm121.finish.library import Settings, finish_library
from sm121.finish.model import Layout
from sm121.progress import Progress
from sm121.target import Capability

FILES = {
    "quantization/marlin/gptq_marlin_repack.cu": ("arch=compute_80,code=[sm_80,compute_80]",),
    "quantization/marlin/awq_marlin_repack.cu": ("arch=compute_80,code=[sm_80,compute_80]",),
    "quantization/hadamard/hadacore/hadamard_transform_cuda.cu": (
        "arch=compute_80,code=sm_80",
        "arch=compute_90,code=compute_90",
    ),
}
"""Each with upstream's targets, less the transform's machine code for 9.0, which would run on a 9.0 as it is."""
BINDINGS = """
#include <torch/csrc/stable/library.h>
STABLE_TORCH_LIBRARY(_C, m) {
  m.def("gptq_marlin_repack(Tensor b_q_weight, SymInt size_k, SymInt size_n, int num_bits,"
        " bool is_a_8bit) -> Tensor");
  m.def("awq_marlin_repack(Tensor b_q_weight, SymInt size_k, SymInt size_n, int num_bits, bool is_a_8bit) -> Tensor");
  m.def("hadacore_transform(Tensor! x, bool inplace) -> Tensor");
}
"""
FLAGS = (
    "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020B000000000000ULL", "-DTORCH_EXTENSION_NAME=own", "--expt-relaxed-constexpr",
    "--expt-extended-lambda", "-O3", "-DNDEBUG", "-std=c++20", "-Xcompiler=-fPIC", "--compress-mode=size",
    "-static-global-template-stub=false",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("torch", type=Path)
    parser.add_argument("cuda", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", type=Capability.parse, default=Capability(9, 0))
    parser.add_argument("--compiler", default="g++", help="x86_64 C++ compiler")
    parser.add_argument(
        "--include", type=Path, action="append", default=[], help="where cublas_v2.h is, if elsewhere"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        unfinished = given.folder / "unfinished.so"
        _build(given, scratch, unfinished, progress)
        for layout in Layout.COMPACT, Layout.IN_PLACE:
            settings = Settings(
                target=given.target, ptxas=given.cuda / "bin/ptxas", cache=scratch / "ptxas", layout=layout
            )
            done = finish_library(unfinished, given.folder / f"{layout}.so", settings, progress)
            progress.say(f"{layout}: {done.before.size} -> {done.after.size} bytes")


def _build(given: argparse.Namespace, scratch: Path, library: Path, progress: Progress) -> None:
    includes = [
        f"-I{given.source / 'csrc'}",
        *(f"-isystem={given.torch / 'include' / part}" for part in (".", "torch/csrc/api/include")),
        *(f"-isystem={folder}" for folder in (given.cuda / "include", *given.include)),
    ]
    objects = []
    for file, targets in FILES.items():
        objects.append(scratch / f"{Path(file).stem}.o")
        progress.say(f"nvcc {file}")
        gencode = [f"-gencode={target}" for target in targets]
        nvcc = [given.cuda / "bin/nvcc", f"-ccbin={given.compiler}", *FLAGS, *gencode, *includes]
        process.run([*nvcc, "-c", given.source / "csrc" / file, "-o", objects[-1]], timeout=3600)
    bindings = scratch / "bindings.cpp"
    bindings.write_text(BINDINGS)
    plain = [flag.replace("-isystem=", "-isystem") for flag in includes]
    command = [
        given.compiler,
        "-std=c++20",
        "-O2",
        "-fPIC",
        "-shared",
        "-DUSE_CUDA",
        *FLAGS[1:3],
        *plain,
        bindings,
    ]
    libraries = ["-Wl,--no-as-needed", f"-L{given.torch / 'lib'}", "-ltorch", "-ltorch_cpu", "-ltorch_cuda", "-lc10",
                 f"-L{given.cuda / 'lib64'}", "-lcudart"]  # fmt: skip
    process.run([*command, *objects, *libraries, "-o", library], timeout=3600)


if __name__ == "__main__":
    main()
