"""Makes what `finish_fa2.py` needs on a machine with a GPU, small enough to carry there.

`python carry_fa2.py LIBRARY FOLDER --ptxas FILE --target 9.0` takes the official x86_64 library, empties all units but
those of head sizes 64, 128 and 256 (for float16 in pages 128 alone), finishes the rest in both layouts, and keeps an
unfinished one with the PTX of a few units. It costs about ten minutes of processor time.
"""

from __future__ import annotations

import argparse
import lzma
import re
import shutil
import tempfile
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.device import ElfFile, payload, ptx_kernels, read_device_code
from sm121.device.compact import compact
from sm121.device.rewrite import changed, in_place
from sm121.device.write import container, kept_entry
from sm121.finish.library import Settings, finish_library
from sm121.finish.model import Layout
from sm121.progress import Progress, size
from sm121.target import Capability

if TYPE_CHECKING:
    from collections.abc import Callable

FINISHED = re.compile(
    r"flash_fwd_kernelI.*traitsILi(64|128|256)E|"
    r"flash_fwd_splitkv_kernelI.*traitsILi(64|128|256)E.*bfloat16_t|flash_fwd_splitkv_kernelI.*traitsILi128E.*half_t"
)
UNFINISHED = re.compile(r"flash_fwd_(splitkv_)?kernelI.*traitsILi128E.*bfloat16_t")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ptxas", type=Path, required=True)
    parser.add_argument("--target", type=Capability.parse, default=Capability(9, 0))
    parser.add_argument("--jobs", type=int)
    parser.add_argument(
        "--cache", type=Path, default=Path("work/cache/ptxas"), help="what ptxas made, not to be carried"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        scratch = Path(name)
        restricted = scratch / "restricted.so"
        _restrict(given.library, restricted, FINISHED.search, ptx_only=False)
        for layout in Layout.COMPACT, Layout.IN_PLACE:
            settings = Settings(
                target=given.target,
                ptxas=given.ptxas,
                cache=given.cache,
                jobs=given.jobs,
                layout=layout,
            )
            done = finish_library(restricted, scratch / f"{layout}.so", settings, progress)
            progress.say(f"{layout}: {done.seconds:.0f} s of ptxas, {size(done.after.size)}")
            _pack(done.path, given.folder / f"{layout}.so.xz", progress)
        _restrict(given.library, scratch / "unfinished.so", UNFINISHED.search, ptx_only=True)
        _pack(scratch / "unfinished.so", given.folder / "unfinished.so.xz", progress)


def _restrict(library: Path, out: Path, wanted: Callable[[str], re.Match[str] | None], *, ptx_only: bool) -> None:
    """Empty the units whose kernels are not wanted; with `ptx_only` the others keep their PTX alone."""
    with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as buffer:
        code = read_device_code(buffer)
        new = {}
        for unit in code.containers:
            ptx = [image for image in unit.images if image.kind == "ptx"]
            names = [name for image in ptx for name in ptx_kernels(payload(buffer, image))]
            if not any(wanted(name) for name in names):
                new[unit.index] = container([])
            elif ptx_only:
                new[unit.index] = container([kept_entry(buffer, image) for image in ptx])
        changes = (
            compact(ElfFile.parse(buffer), code.containers, new) if ptx_only else in_place(code.containers, new)
        )
        with out.open("wb") as restricted:
            restricted.writelines(changed(buffer, changes))


def _pack(library: Path, out: Path, progress: Progress) -> None:
    with library.open("rb") as file, lzma.open(out, "wb", preset=1) as packed:
        shutil.copyfileobj(file, packed, 1 << 20)
    progress.say(f"{out}: {size(out.stat().st_size)}")


if __name__ == "__main__":
    main()
