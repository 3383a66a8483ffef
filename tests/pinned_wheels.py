"""Pinned files for tests that are marked `network`: fetched by hash, unpacked, their programs run."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import pins, process
from sm121.progress import Progress
from sm121.sources.fetch import fetch
from sm121.sources.unpack import unpack

if TYPE_CHECKING:
    from sm121.pins import FilePin, Pins, Toolkit

ROOT = Path(__file__).resolve().parents[1]
PINS: Pins = pins.load(ROOT / "pins")
STORE = ROOT / "work" / "files"
"""Downloads are kept between runs, with those of builds."""
HOST = {"arm64": "aarch64", "aarch64": "aarch64"}.get(platform.machine(), "x86_64")
TOOLKITS = {str(kit.cuda): kit for kit in PINS.toolkits}


def file_of(kit: Toolkit, name: str, cpu: str = HOST) -> FilePin:
    """The pinned wheel of a part, whose name may have the suffix of a major."""
    (part,) = (part for part in kit.parts if part.name in {name, f"{name}-cu{kit.cuda.major}"})
    return part.file(cpu)


def fetched(*files: FilePin) -> dict[str, Path]:
    """File name to path."""
    STORE.mkdir(parents=True, exist_ok=True)
    return fetch(files, STORE, progress=Progress(quiet=True))


def unpacked(into: Path, *files: FilePin) -> Path:
    """Fetch wheels by hash and unpack each into a folder of its own."""
    found = fetched(*files)
    for number, file in enumerate(files):
        unpack(found[file.filename], into / str(number), executable=lambda name: "/bin/" in name)
    return into


def ptxas_of(release: str, into: Path) -> Path:
    """The assembler of a CUDA release."""
    folder = unpacked(into, file_of(TOOLKITS[release], "nvidia-cuda-nvcc"))
    (program,) = folder.rglob("bin/ptxas")
    return program


def inspection_program(name: str, into: Path) -> Path:
    """cuobjdump or nvdisasm, as a build has it look at its result."""
    (file,) = (file for file in PINS.line("").inspect_tools(HOST) if name in file.filename)
    (program,) = unpacked(into, file).rglob(f"bin/{name}")
    return program


def run_python(script: Path, *arguments: Path) -> str:
    """Run a script in a process of its own: a library that crashes takes only that down."""
    return process.run([sys.executable, script, *arguments], timeout=300).stdout
