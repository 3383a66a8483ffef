"""The readers against NVIDIA's own tool, on every fixture."""

from __future__ import annotations

import platform
import re
import sys
import zipfile
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from device_files import FIXTURES, fixture, fixtures

from sm121.device import payload, read_cubin, read_device_code
from sm121.process import run

if TYPE_CHECKING:
    from pathlib import Path

REQUIREMENT = (
    "nvidia-cuda-cuobjdump==13.5.37 "
    "--hash=sha256:38780fee50863252a0b8926357faa91615ca1c8346490563f33a06100cd73f58\n"
)
WITH_CODE = [name for name in fixtures() if read_device_code(fixture(name)).has_device_code]

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the pinned cuobjdump is for x86_64"),
]


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuobjdump")
    (folder / "requirements.txt").write_text(REQUIREMENT)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--dest",
        str(folder),
    ]
    run([*pip, "-r", str(folder / "requirements.txt")], env=None)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        program = folder / archive.extract("nvidia/cu13/bin/cuobjdump", folder)
    program.chmod(0o755)
    return program


def said(cuobjdump: Path, *options: str) -> str:
    return run([str(cuobjdump), *options], check=False).stdout


@pytest.mark.parametrize("name", WITH_CODE)
def test_list_of_images(cuobjdump: Path, name: str) -> None:
    """It prints no `f` for cubins, and PTX as `sm_`; LTO-IR it does not list."""
    images = read_device_code(fixture(name)).images
    path = str(FIXTURES / name)
    cubins = re.findall(r"^ELF file .*\.(sm_\w+)\.cubin$", said(cuobjdump, "-all", "-lelf", path), re.MULTILINE)
    ptx = re.findall(r"^PTX file .*\.sm_(\w+)\.ptx$", said(cuobjdump, "-all", "-lptx", path), re.MULTILINE)
    bare = name.endswith(".cubin")
    assert bare or Counter(cubins) == Counter(
        image.target.removesuffix("f") for image in images if image.kind == "cubin"
    )
    assert Counter(ptx) == Counter(
        image.target.removeprefix("compute_") for image in images if image.kind == "ptx"
    )


@pytest.mark.parametrize("name", [name for name in WITH_CODE if not name.endswith(".cubin")])
def test_targets_of_cubins_with_their_suffix(cuobjdump: Path, name: str) -> None:
    text = said(cuobjdump, "-all", "-symbols", str(FIXTURES / name))
    targets = re.findall(r"^Fatbin elf code:\n=+\narch = (sm_\w+)$", text, re.MULTILINE)
    images = read_device_code(fixture(name)).images
    assert Counter(targets) == Counter(image.target for image in images if image.kind == "cubin")


@pytest.mark.parametrize("name", WITH_CODE)
def test_kernels_registers_and_shared_memory(cuobjdump: Path, name: str) -> None:
    text = said(cuobjdump, "-all", "-res-usage", str(FIXTURES / name))
    told = re.findall(r"^ *Function (\S+):\s+REG:(\d+) .*?SHARED:(\d+)", text, re.MULTILINE)
    data = fixture(name)
    read = [
        (kernel.name, str(kernel.registers), str(kernel.shared))
        for image in read_device_code(data).images
        if image.kind == "cubin"
        for kernel in read_cubin(payload(data, image)).kernels
    ]
    functions = Counter(told)
    assert not Counter(read) - functions
