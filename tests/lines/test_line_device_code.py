"""Real device code of CUDA 12.9 without nvcc: NVRTC, nvFatbin and nvJitLink of the pinned wheels, read by our readers.

The libraries run in a process of their own. What they make is also put into an aarch64 library as nvcc's host code would,
linked against the CUDA runtime of 12.9 and inspected with that of 12.8: line cu128 in small.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from pinned_wheels import TOOLKITS, fetched, file_of, run_python, unpacked
from sm121 import cli
from sm121.device import payload, read_cubin, read_device_code
from sm121.errors import VerdictFail
from sm121.target import GB10, LoadsAs, loads_as

pytestmark = pytest.mark.network

KERNEL = """
__device__ float helper(float x) { return x * 3.f; }
extern "C" __global__ void scale(float *p) { p[threadIdx.x] = helper(p[threadIdx.x]); }
extern "C" __global__ void shift(float *p, int n) { for (int i = 0; i < n; i++) p[i] += blockIdx.x; }
"""
HOST_CODE = """
extern void **__cudaRegisterFatBinary(void *);
extern void __cudaRegisterFatBinaryEnd(void **);
extern int cudaMalloc(void **, unsigned long);
extern int cudaLaunchKernel(const void *, long, long, void **, unsigned long, void *);
__asm__(".section .nv_fatbin, \\"a\\"\\n.balign 8\\nimages:\\n.incbin \\"{fatbin}\\"\\n.previous\\n");
extern const char images[] __attribute__((visibility("hidden")));
struct wrapper {{ int magic, version; const void *data; void *more; }};
static const struct wrapper segment __attribute__((section(".nvFatBinSegment"), used)) = {{0x466243B1, 1, images, 0}};
void *use(void) {{
  void *p = 0;
  __cudaRegisterFatBinaryEnd(__cudaRegisterFatBinary((void *)&segment));
  cudaMalloc(&p, 4);
  cudaLaunchKernel(&p, 1, 1, 0, 0, 0);
  return p;
}}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cubins and fatbins of CUDA 12.9."""
    folder = tmp_path_factory.mktemp("cuda12.9")
    kit = TOOLKITS["12.9"]
    names = {
        "nvidia-cuda-nvrtc": "libnvrtc.so.12",
        "nvidia-nvfatbin": "libnvfatbin.so.12",
        "nvidia-nvjitlink": "libnvJitLink.so.12",
    }
    libraries = []
    for name, library in names.items():
        (found,) = unpacked(folder / name, file_of(kit, name)).rglob(library)
        libraries.append(found)
    (folder / "k.cu").write_text(KERNEL)
    run_python(Path(__file__).with_name("make_cuda12.py"), *libraries, folder, folder / "k.cu")
    return folder


ARCHES = ["121a", "121", "121f", "120f", "120a", "120", "90a", "80"]


@pytest.mark.parametrize("arch", ARCHES)
def test_cubins_of_nvrtc_12_9_are_read(made: Path, arch: str) -> None:
    cubin = read_cubin((made / f"{arch}.cubin").read_bytes())
    assert not cubin.damage
    assert {kernel.name for kernel in cubin.kernels} == {"scale", "shift"}
    assert all(kernel.size > 0 for kernel in cubin.kernels)
    if int(arch.rstrip("af")) >= 100:
        assert cubin.toolkit is not None
        assert cubin.toolkit.version.startswith("12.9")


def test_all_targets_in_one_fatbin_of_nvfatbin_12_9(made: Path) -> None:
    data = (made / "all.fatbin").read_bytes()
    code = read_device_code(data)
    (container,) = code.containers
    assert not code.damage
    assert sorted(image.target for image in container.images) == sorted(
        [*(f"sm_{arch}" for arch in ARCHES), "compute_121a", "compute_120f", "compute_80"]
    )
    ways = {image.target: loads_as(image.kind, image.arch, GB10) for image in container.images}
    assert ways["sm_121a"] is ways["sm_121"] is ways["sm_121f"] is LoadsAs.NATIVE
    assert ways["sm_120f"] is LoadsAs.FAMILY
    assert ways["sm_120"] is LoadsAs.SAME_MAJOR
    assert ways["sm_120a"] is ways["sm_90a"] is ways["sm_80"] is LoadsAs.NO
    assert ways["compute_80"] is ways["compute_120f"] is ways["compute_121a"] is LoadsAs.JIT
    versions = {image.version for image in container.images if image.kind == "ptx"}
    assert versions == {(8, 8)}
    for image in container.images:
        if image.kind == "cubin":
            assert {kernel.name for kernel in read_cubin(payload(data, image)).kernels} == {"scale", "shift"}


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("native", {"sm_121a"}),
        ("small", {"sm_121a"}),
        ("wrong", {"sm_120a", "sm_90a"}),
        ("jit", {"compute_80"}),
        ("lto", {"lto_121a"}),
    ],
)
def test_fatbins_of_every_kind(made: Path, name: str, targets: set[str]) -> None:
    code = read_device_code((made / f"{name}.fatbin").read_bytes())
    assert not code.damage
    assert {image.target for image in code.images} == targets


def test_what_nvjitlink_12_9_links_is_read(made: Path) -> None:
    cubin = read_cubin((made / "jitlink.cubin").read_bytes())
    assert {kernel.name for kernel in cubin.kernels} == {"scale", "shift"}
    assert cubin.toolkit is not None
    assert cubin.toolkit.version.startswith("12.9")


@pytest.mark.parametrize(
    ("name", "status"), [("native", 0), ("all", 0), ("small", 0), ("jit", 0), ("wrong", VerdictFail.exit_code)]
)
def test_the_inspectors_verdict(made: Path, name: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["inspect", str(made / f"{name}.fatbin")]) == status
    assert "12.1" in capsys.readouterr().out


@pytest.fixture(scope="module")
def runtimes() -> dict[str, Path]:
    """The runtime wheels of the lines, for aarch64."""
    files = {
        release: file_of(TOOLKITS[release], "nvidia-cuda-runtime", "aarch64") for release in ("12.8", "12.9")
    }
    found = fetched(*files.values())
    return {release: found[file.filename] for release, file in files.items()}


def link(fatbin: Path, runtime: Path, into: Path, more: str = "") -> Path:
    """An aarch64 library with these images, as nvcc's host code registers them."""
    source = HOST_CODE.format(fatbin=fatbin) + more
    library = into / "_C.abi3.so"
    subprocess.run(
        ["aarch64-linux-gnu-gcc", "-shared", "-fPIC", "-o", library, "-x", "c", "-", "-x", "none", runtime],
        input=source, text=True, check=True,
    )  # fmt: skip
    return library


def test_line_cu128_in_small(
    made: Path, runtimes: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code of 12.9 for 12.1, linked against the runtime of 12.9, meets the runtime of 12.8: everything is there."""
    (cudart,) = unpacked(tmp_path / "rt", file_of(TOOLKITS["12.9"], "nvidia-cuda-runtime", "aarch64")).rglob(
        "libcudart.so.12"
    )
    library = link(made / "native.fatbin", cudart, tmp_path)
    arguments = [
        "inspect",
        str(library),
        "--runtime",
        str(runtimes["12.8"]),
        "--line",
        "12.8",
        "--torch",
        "2.14.0+cu128",
    ]
    assert cli.run([*arguments, "-vv"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "sm_121a" in said
    assert "exports all 4 runtime symbols" in said
    assert "12.8.90" in said
    code = read_device_code(library.read_bytes())
    assert (code.machine, code.damage) == ("aarch64", ())
    # The same library, asking for one symbol that only a later runtime has.
    stub = _runtime_with(tmp_path, "cudaOfTomorrow")
    more = "extern int cudaOfTomorrow(void);\nint later(void) { return cudaOfTomorrow(); }\n"
    library = link(made / "native.fatbin", stub, tmp_path, more)
    for release in ("12.8", "12.9"):
        assert cli.run(["inspect", str(library), "--runtime", str(runtimes[release])]) == VerdictFail.exit_code
        assert "cudaOfTomorrow" in capsys.readouterr().out
    assert cli.run(["inspect", str(library), "--runtime", str(stub)]) == 0


def _runtime_with(folder: Path, symbol: str) -> Path:
    """A runtime that exports what the library asks for, and one symbol more."""
    path = folder / "stub" / "libcudart.so.12"
    path.parent.mkdir()
    names = [symbol, "__cudaRegisterFatBinary", "__cudaRegisterFatBinaryEnd", "cudaMalloc", "cudaLaunchKernel"]
    (folder / "stub.map").write_text("libcudart.so.12 { global: *; };\n")
    subprocess.run(
        ["aarch64-linux-gnu-gcc", "-shared", "-nostdlib", "-fPIC", "-Wl,-soname,libcudart.so.12",
         f"-Wl,--version-script={folder / 'stub.map'}", "-o", path, "-x", "c", "-"],
        input="".join(f"void {name}(void) {{}}\n" for name in names), text=True, check=True,
    )  # fmt: skip
    return path


def test_wrappers_are_as_many_as_containers(made: Path, runtimes: dict[str, Path], tmp_path: Path) -> None:
    """The made library is as nvcc would have made it: one wrapper, with the magic word, for one container."""
    (cudart,) = unpacked(tmp_path / "rt", file_of(TOOLKITS["12.9"], "nvidia-cuda-runtime", "aarch64")).rglob(
        "libcudart.so.12"
    )
    data = link(made / "all.fatbin", cudart, tmp_path).read_bytes()
    assert data.count(struct.pack("<II", 0x466243B1, 1)) == 1
    code = read_device_code(data)
    assert len(code.containers) == 1
    assert not code.notices
