from __future__ import annotations

import re
import string
import tomllib
from pathlib import Path
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm121.compile.logs import LONGEST, MOST, LogReader, kernels, signatures
from sm121.findings import Finding, Verdict, overall
from sm121.target import Capability

CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent.parent / "cases" / "logs.toml").read_text(encoding="utf-8")
)["case"]

# One or more lines of each class, as the tools print them.
EXAMPLES = {
    "arch-suffix-missing": [
        "ptxas q.ptx, line 4; error   : Instruction 'cvt with .e2m1x2' not supported on .target 'sm_120'",
        "ptxas m.ptx, line 9; error   : Feature '.kind::mxf4' not supported on .target 'sm_121'",
        "ptxas m.ptx, line 9; error : Feature '.scale_vec::2X' not supported on .target 'sm_120'",
        "ptxas t.ptx, line 9; error   : Instruction 'tcgen05.alloc' not supported on .target 'sm_100'",
    ],
    "instruction-unknown": [
        "ptxas t.ptx, line 9; error   : Instruction 'tcgen05.alloc' not supported on .target 'sm_120a'",
        "ptxas t.ptx, line 9; error   : Instruction 'wgmma.fence' not supported on .target 'sm_90'",
    ],
    "unsupported-arch": [
        "nvcc fatal   : Unsupported gpu architecture 'compute_121a'",
        "ptxas fatal   : Value 'sm_121' is not defined for option 'gpu-name'",
        "nvrtc: error: invalid value for --gpu-architecture (-arch)",
    ],
    "no-supported-arch": [
        "RuntimeError: No supported CUDA architectures found for major versions [12].",
        "RuntimeError: SM 12.x requires CUDA >= 12.9",
        "RuntimeError: SM 12.1+ requires CUDA >= 12.9",
        "  No supported CUDA architectures; the build would produce a binary",
        "Found Unknown CUDA Architecture Name in CUDA_SELECT_NVCC_ARCH_FLAGS: 121",
    ],
    "toolkit-mixed": [
        "ptxas r.ptx, line 1; fatal   : Unsupported .version 9.1; current version is '9.0'",
        "a.stub.c:1:5: error: '__cudaLaunch' was not declared in this scope",
    ],
    "toolkit-wrong": [
        "The detected CUDA version (11.5) mismatches the version that was used to compile PyTorch (13.0).",
        "  FindCUDA says CUDA version is 12.6 (usually determined by nvcc), but the CUDA headers say the version is 13.0.",
    ],
    "option-unknown": [
        "nvcc fatal   : Unknown option '--compress-mode=size'",
        "nvcc fatal   : Value 'tiny' is not defined for option 'compress-mode'",
    ],
    "out-of-memory": [
        "Killed",
        "/bin/sh: line 1: 4711 Killed                  /usr/bin/nvcc -c a.cu",
        "#12 1713.4 Killed",
        "g++: fatal error: Killed signal terminated program cc1plus",
        "c++: internal compiler error: Killed (program cc1plus)",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "nvcc error   : 'ptxas' died due to signal 9 ",
        "subprocess.CalledProcessError: Command '['ninja']' returned non-zero exit status 9.",
        "subprocess.CalledProcessError: Command 'x' returned non-zero exit status 137.",
        "subprocess.CalledProcessError: Command '['ninja']' died with <Signals.SIGKILL: 9>.",
        "FAILED: [code=137] CMakeFiles/_C.dir/a.cu.o",
        'ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 137',
        "cc1plus: out of memory allocating 65536 bytes after a total of 5 bytes",
        "virtual memory exhausted: Cannot allocate memory",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "ptxas fatal   : Memory allocation failure",
        "LLVM ERROR: out of memory",
        "[Mon] Out of memory: Killed process 4711 (cicc) total-vm:9000kB",
    ],
    "compiler-crash": [
        "nvcc error   : 'ptxas' died due to signal 11 (Invalid memory reference)",
        "nvcc error   : 'cudafe++' died with status 0xC0000005 (ACCESS_VIOLATION)",
        "a.cpp:1:1: internal compiler error: in foo, at bar.c:12",
        "Segmentation fault (core dumped)",
    ],
    "disk-full": [
        "a.cpp:50:1: fatal error: error writing to /tmp/ccJ56T7O.s: No space left on device",
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 122] Disk quota exceeded: '/home/me/x'",
    ],
    "source-fetch": [
        "fatal: unable to access 'https://github.com/nvidia/cutlass.git/': Could not resolve host: github.com",
        "CMake Error at cutlass-populate-gitclone.cmake:39 (message):",
        "  Failed to clone repository: 'https://github.com/vllm-project/FlashMLA'",
        "CMake Error at /x/FetchContent.cmake:1600 (message): Build step for vllm-flash-attn failed: 2",
        "error: RPC failed; curl 56 GnuTLS recv error (-9): A TLS packet with unexpected length was received.",
        "fatal: early EOF",
        "ssh: Could not resolve hostname; fatal: Could not read from remote repository.",
        "curl: (7) Failed to connect to github.com port 443 after 3 ms",
    ],
    "commit-missing": [
        "fatal: reference is not a tree: 8bb4cbe3a1c0d7b1f0c9a1d2e3f405162738495a",
        "fatal: remote error: upload-pack: not our ref 8bb4cbe3a1c0d7b1f0c9a1d2e3f405162738495a",
        "error: Server does not allow request for unadvertised object 8bb4cbe3a1c0d7b1f0c9a1d2e3f405162738495a",
        "fatal: couldn't find remote ref v4.7.9",
        "error: pathspec 'v4.7.9' did not match any file(s) known to git",
        "fatal: Remote branch v4.7.9 not found in upstream origin",
        "fatal: unable to read tree (8bb4cbe3a1c0d7b1f0c9a1d2e3f405162738495a)",
    ],
    "cccl-moved": [
        "fatal error: cuda/std/utility: No such file or directory",
        "a.h:3:10: fatal error: thrust/device_vector.h: No such file or directory",
        'a.cu(3): error: cannot open source file "cub/cub.cuh"',
    ],
    "toolkit-part-missing": [
        "csrc/torch_utils.h:5:10: fatal error: cublas_v2.h: No such file or directory",
        'a.cu(1): error: cannot open source file "curand_kernel.h"',
        "a.cpp:1:10: fatal error: cuda_runtime.h: No such file or directory",
    ],
    "python-headers-missing": [
        "a.cpp:1:10: fatal error: Python.h: No such file or directory",
        "  Could NOT find Python (missing: Python_INCLUDE_DIRS Development.Module)",
    ],
    "library-missing": [
        "/usr/bin/ld: cannot find -lcuda: No such file or directory",
        "a.cpp:(.text+0x5): undefined reference to `cuMemCreate'",
    ],
    "host-compiler": [
        "host_config.h:160:2: error: #error -- unsupported GNU version! gcc versions later than 15 are not supported!",
        "host_config.h:160:2: error: #error -- unsupported clang version! clang version must be less than 21",
        "  GCC >= 13 is required to build vLLM with CUDA (found 12.2.0).",
        "a.hpp:1:10: fatal error: format: No such file or directory",
    ],
    "link-too-large": [
        "a.o: in function `f': relocation truncated to fit: R_AARCH64_ADR_PREL_PG_HI21 against `.nv_fatbin'",
        "ld.lld: error: a.o:(.eh_frame+0x20): relocation R_X86_64_PC32 out of range: 2147483700 is not in [..]",
        "mold: error: relocation R_X86_64_PC32 against .eh_frame out of range",
    ],
    "cache-failure": [
        "ccache: error: Failed to create temporary file for /run/user/0/ccache-tmp/x: Permission denied",
        "sccache: error: Timed out waiting for server startup",
        'sccache: caused by: Missing "cubin" file output',
    ],
    "cache-warning": ["sccache: warning: The server looks like it shut down unexpectedly, compiling locally instead"],
    "patch-failed": [
        "error: patch failed: CMakeLists.txt:12",
        "Hunk #1 FAILED at 12.",
        "error: CMakeLists.txt: patch does not apply",
    ],
    "no-kernel-image": ["RuntimeError: CUDA error: no kernel image is available for execution on the device"],
    "driver-too-old": ["CUDA error: the provided PTX was compiled with an unsupported toolchain."],
    "kernel-not-compiled": [
        "No compiled nvfp4 mm kernel for SM 121",
        "This kernel only supports sm120.",
        "RuntimeError: Failed to run cutlass FP4 gemm on sm120. Error: Error Internal",
    ],
}  # fmt: skip

INNOCENT = """\
-- Performing Test CMAKE_HAVE_LIBC_PTHREAD - Failed
-- Found CUDA: /usr/local/cuda (found version "13.0")
-- CUDA target architectures: 12.1a
-- CUDA supported target architectures: 12.0
-- Building Marlin kernels for archs: 8.0+PTX
-- Enabling cumem allocator extension.
-- Could NOT find Doxygen (missing: DOXYGEN_EXECUTABLE)
CMake Warning at torch/share/cmake/Torch/TorchConfig.cmake:22 (message):
  library kineto not found.
[12/118] Building CUDA object CMakeFiles/_C_stable_libtorch.dir/csrc/sampler.cu.o
ptxas warning : Registers are spilled to local memory in function '_Z1k', 8 bytes spill stores
ptxas info    : 0 bytes gmem
nvcc warning : Support for offline compilation for architectures prior to '<compute/sm/lto>_75' will be removed
/x/cutlass/include/a.hpp(12): warning #177-D: variable "out_of_memory" was declared but never referenced
csrc/killed.cu(3): note: Killed is a name
fatal: not a git repository (or any of the parent directories): .git
a.cu(3): warning: relocation of the buffer is slow
checking for exit status 90... ok
Signal 9 channels of 12
INFO 11-29 Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends
"""


def read(text: str, status: int | None = None, capability: str = "12.1") -> list[Finding]:
    reader = LogReader(Capability.parse(capability))
    for line in text.splitlines():
        reader.feed(line)
    return reader.diagnoses(status)


def classes(findings: list[Finding]) -> set[str]:
    return {finding.check.removeprefix("log.") for finding in findings}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    given_, expect = case["given"], case["expect"]
    findings = read(given_["log"], given_.get("rc"), given_.get("target", "12.1"))
    verdict = overall(findings) if findings else Verdict.PASS
    said = "\n".join(finding.message for finding in findings)
    assert verdict.upper() in {expect["verdict"], *expect.get("accept", [])}, said
    if "word" in expect:
        assert any(word.lower() in said.lower() for word in expect["word"])
    for word in expect.get("all_words", []):
        assert word.lower() in said.lower()
    if "class" in expect:
        assert expect["class"] in classes(findings)
    if "suggest" in expect:
        assert any(word in finding.advice for finding in findings for word in expect["suggest"])
    failing = "\n".join(f.message for f in findings if f.verdict is Verdict.FAIL)
    mentioned = "\n".join(f.message for f in findings if f.verdict is Verdict.INFO)
    for name in expect.get("fail_on", []):
        assert name in failing
    for name in expect.get("info_on", []):
        assert name in mentioned
        assert name not in failing


def test_every_case_is_here_once() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 11


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in EXAMPLES.items() for line in lines])
def test_example(name: str, line: str) -> None:
    findings = read(line)
    assert name in classes(findings)
    assert classes(findings) - {name} <= {"source-fetch"}
    assert all(finding.got and finding.advice and finding.source for finding in findings)
    assert "{" not in "".join(finding.message for finding in findings).replace(line, "")


def test_every_class_has_examples() -> None:
    assert {signature.name for signature in signatures()} == set(EXAMPLES)


def test_innocent_lines_mean_nothing() -> None:
    assert read(INNOCENT) == []


@given(st.text(max_size=300))
def test_no_text_hurts(text: str) -> None:
    reader = LogReader()
    reader.feed(text)
    reader.diagnoses(1)


def test_the_first_line_of_a_kind_is_named_and_repeats_are_not() -> None:
    line = EXAMPLES["unsupported-arch"][0]
    (finding,) = read("\n".join(["start", line, line, line]))
    assert finding.subject == "log line 2"
    assert "compute_121a" in finding.got


def test_a_log_with_countless_faults_stays_short() -> None:
    text = "\n".join(f"ld: undefined reference to `f{number}'" for number in range(10 * MOST))
    assert len(read(text)) == MOST


def test_a_fault_at_the_end_of_an_endless_line_is_seen() -> None:
    command = "nvcc " + "-I/x " * LONGEST
    assert classes(read(f"{command} nvcc fatal   : Unsupported gpu architecture 'compute_121a'")) == {
        "unsupported-arch"
    }


def test_colours_and_the_prefix_of_image_builds_are_passed_over() -> None:
    assert classes(read("\x1b[31mKilled\x1b[0m")) == {"out-of-memory"}
    assert classes(read("#9 12.34 Killed")) == {"out-of-memory"}


def test_reading_goes_on_after_a_look() -> None:
    reader = LogReader()
    reader.feed("Killed")
    assert len(reader.diagnoses()) == 1
    reader.feed(EXAMPLES["disk-full"][0])
    assert len(reader.diagnoses()) == 2


@pytest.mark.parametrize("status", [137, -9])
def test_a_kill_without_a_line_is_out_of_memory(status: int) -> None:
    findings = read("[1/2] Building", status)
    assert classes(findings) == {"out-of-memory"}
    assert overall(findings) is Verdict.FAIL


def test_a_failure_without_a_known_line_is_unknown() -> None:
    findings = read(INNOCENT, 1)
    assert classes(findings) == {"unexplained"}
    assert overall(findings) is Verdict.UNKNOWN


def test_a_fault_that_was_survived_is_a_warning() -> None:
    assert overall(read("Killed", 0)) is Verdict.WARN
    assert overall(read("Killed", 2)) is Verdict.FAIL
    assert read(INNOCENT, 0) == []


SKIP = "-- Not building {} as no compatible archs found in CUDA target architectures"


@pytest.mark.parametrize(
    "name",
    ["NVFP4", "SM12x NVFP4", "scaled_mm_c3x_120", "scaled_mm_c3x_sm120", "Marlin kernels", "Marlin MOE kernels",
     "moe_data", "dsv3_fused_a_gemm", "fp32_router_gemm", "DSV3 router GEMM kernels", "SM120 MXFP8 GEMM"],
)  # fmt: skip
def test_skips_that_matter(name: str) -> None:
    findings = read(SKIP.format(name), 0)
    assert overall(findings) is Verdict.FAIL
    assert name in findings[0].message
    assert overall(read(SKIP.format(name), 0, capability="9.0")) is Verdict.INFO


@pytest.mark.parametrize(
    "line",
    [
        *[
            SKIP.format(name)
            for name in ("Machete kernels", "scaled_mm_c3x_sm90", "scaled_mm_c3x_100", "grouped_mm_c3x", "W4A8 kernels",
                         "CUTLASS MLA", "SM10x/11x NVFP4/MXFP4", "AllSpark kernels", "ES MXFP8 grouped kernels", "new")
        ],
        "-- Not building scaled_mm_c2x as all archs are already built for and covered by scaled_mm_c3x",
        "-- FlashMLA will not compile: unsupported CUDA architecture 12.0",
        "-- DeepSelect will not compile: unsupported CUDA architecture 12.0",
        "-- [QUTLASS] Skipping build: no supported arch (12.0f / 10.0f) found in CUDA_ARCHS='9.0'.",
    ],
)  # fmt: skip
def test_skips_that_are_normal(line: str) -> None:
    assert overall(read(line, 0)) is Verdict.INFO


def test_an_old_tree_prints_one_name_for_two_families() -> None:
    text = "-- Building NVFP4 for archs: 12.0f\n-- Not building NVFP4 as no compatible archs were found.\n"
    assert read(text, 0) == []
    other = text.replace("12.0f", "10.0f")
    assert overall(read(other, 0)) is Verdict.FAIL


def test_kernels_built_for_another_chip_of_the_family() -> None:
    text = "-- Building SM12x NVFP4 for archs: 12.0a\n-- Building Marlin kernels for archs: 8.0+PTX\n"
    findings = read(text, 0)
    assert classes(findings) == {"kernels-other-chip"}
    assert "12.0a" in findings[0].message
    assert read(text, 0, capability="12.0") == []
    assert read(text.replace("12.0a", "12.0a;12.1a"), 0) == []


def test_skips_for_want_of_a_newer_toolkit() -> None:
    text = "-- Not building scaled_mm_c3x_sm120 as CUDA Compiler version is not >= 12.8, we recommend upgrading"
    assert overall(read(text, 0)) is Verdict.FAIL


def _repeats(parsed: Any, inside: bool = False) -> list[str]:
    """Repeats that could take for ever: one without a bound, or one within another."""
    found = []
    for operator, argument in parsed:
        name = str(operator)
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            low, high, body = argument
            if high > LONGEST:
                found.append(f"no bound: {name} {low}")
            many = high > 1
            if inside and many:
                found.append("a repeat within a repeat")
            found += _repeats(body, inside or many)
        elif name == "SUBPATTERN":
            found += _repeats(argument[-1], inside)
        elif name == "BRANCH":
            for branch in argument[1]:
                found += _repeats(branch, inside)
        elif name in {"ASSERT", "ASSERT_NOT"}:
            found += _repeats(argument[1], inside)
    return found


@pytest.mark.parametrize(
    "pattern",
    [pattern for signature in signatures() for pattern in signature.patterns],
    ids=lambda pattern: pattern.pattern[:40],
)
def test_no_pattern_can_take_for_ever(pattern: re.Pattern[str]) -> None:
    unbounded = _repeats(sre_parser.parse(pattern.pattern))
    assert [fault for fault in unbounded if "no bound" not in fault] == []
    # `^\s*` and the like start at one place only.
    assert len(unbounded) <= 1
    for filler in ("a", " ", "'", "/", "1", ":", "relocation ", "No such file "):
        pattern.search(filler * LONGEST)


def test_every_pattern_names_what_its_message_shows() -> None:
    for signature in signatures():
        fields = {
            name
            for text in (signature.says, signature.advice)
            for _, name, _, _ in string.Formatter().parse(text)
            if name
        }
        for pattern in signature.patterns:
            if fields:
                assert fields <= set(pattern.groupindex), f"{signature.name}: {pattern.pattern}"


def test_the_names_of_kernels_do_not_overlap() -> None:
    names = [
        "NVFP4",
        "SM12x NVFP4",
        "SM10x/11x NVFP4/MXFP4",
        "Marlin kernels",
        "Marlin MOE kernels",
        "moe_data",
        "W4A8",
    ]
    for name in names:
        assert sum(bool(kernel.names.fullmatch(name)) for kernel in kernels()) == 1
