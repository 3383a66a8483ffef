"""An official library beside its finished form, unit by unit: SM121_OFFICIAL_LIBRARY and SM121_FINISHED_LIBRARY."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sm121 import process
from sm121.device import payload, ptx_kernels, read_cubin, read_device_code, read_mark
from sm121.device.signature import cubin_signatures, ptx_signatures
from sm121.finish.proof import host_differences
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.device import Container

pytestmark = pytest.mark.real

RESERVED = 1024
"""Static shared memory that the system takes of a kernel from sm_90 on."""


def named(variable: str) -> Path:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} names no library")
    return Path(path)


@contextmanager
def opened(path: Path) -> Iterator[mmap]:
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as buffer:
        yield buffer


def test_host_code_is_the_same() -> None:
    with opened(named("SM121_OFFICIAL_LIBRARY")) as old, opened(named("SM121_FINISHED_LIBRARY")) as new:
        before, after = read_device_code(old), read_device_code(new)
        assert not after.damage
        assert not after.notices
        assert host_differences(old, new, before, after) == []


def test_kernels_parameters_and_shared_memory_are_the_same_unit_by_unit() -> None:
    compared = 0
    with opened(named("SM121_OFFICIAL_LIBRARY")) as old, opened(named("SM121_FINISHED_LIBRARY")) as new:
        made = {mark.image.container: mark for mark in read_mark(new)}
        for unit in read_device_code(old).containers:
            if mark := made.get(unit.index):
                _compare(old, unit, payload(new, mark.image), mark.ptx)
                compared += 1
        assert compared == len(made) > 0


def _compare(old: mmap, unit: Container, cubin: bytes, digest: str) -> None:
    texts = [(image, payload(old, image).rstrip(b"\0")) for image in unit.images if image.kind == "ptx"]
    (source, ptx) = next((image, text) for image, text in texts if Sha256.of_bytes(text).hex.startswith(digest))
    assert cubin_signatures(cubin) == ptx_signatures(ptx)
    kernels = {kernel.name: kernel for kernel in read_cubin(cubin).kernels}
    assert {*kernels} == {*ptx_kernels(ptx)}
    for image in unit.images:
        if image.kind == "cubin" and image.arch == source.arch:
            dead = {kernel.name: kernel.shared for kernel in read_cubin(payload(old, image)).kernels}
            alive = {name: max(0, kernel.shared - RESERVED) for name, kernel in kernels.items()}
            assert dead == alive, unit.index


def test_cuobjdump_and_nvdisasm_read_it(tmp_path: Path) -> None:
    finished = named("SM121_FINISHED_LIBRARY")
    cuobjdump, nvdisasm = shutil.which("cuobjdump"), shutil.which("nvdisasm")
    if not cuobjdump or not nvdisasm:
        pytest.skip("there is no cuobjdump or no nvdisasm on PATH")
    with opened(finished) as buffer:
        images = read_device_code(buffer).images
        listed = process.run([cuobjdump, "-all", "-lelf", "-lptx", finished]).stdout
        assert sorted(re.findall(r"\.(sm_\d+)a?\.cubin$", listed, re.MULTILINE)) == sorted(
            f"sm_{image.arch.number}" for image in images if image.kind == "cubin"
        )
        for mark in read_mark(buffer):
            cubin = tmp_path / "unit.cubin"
            cubin.write_bytes(payload(buffer, mark.image))
            text = process.run([nvdisasm, "-c", cubin]).stdout
            assert text.count(".text.") >= len(read_cubin(cubin.read_bytes(), bodies=False).kernels)
