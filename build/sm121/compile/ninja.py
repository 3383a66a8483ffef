"""Makes CMake's ninja files independent of their folder, puts long compiles first and bounds the heavy ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BLOCK = re.compile(r"(?m)^(?=build )")
_OBJECT = re.compile(r"build (\S+\.o):")
# CMake's own edge that runs CMake again when a listed file changed: it would write absolute paths anew. A changed
# input has another step key and is configured anew by us.
_RERUN = re.compile(r"build build\.ninja[^:\n]*: RERUN_CMAKE")


def relative(text: str, tree: str) -> str:
    """Rewrite paths below the build tree as seen from its `obj` folder, plain and as ninja escapes them."""
    escaped = re.sub(r"([$ :])", r"$\1", tree)
    for spelled in dict.fromkeys((escaped, tree)):
        text = text.replace(f"{spelled}/obj/", "").replace(f"{spelled}/", "../")
    return text


def arrange(text: str, *, tree: str, seconds: Mapping[str, float], heavy: frozenset[str], heavy_jobs: int) -> str:
    """Return `build.ninja` with relative paths, objects in order of falling `seconds`, `heavy` ones in a pool.

    Ninja starts ready edges of equal depth in the order of the file
    (https://ninja-build.org/manual.html#_critical_path_scheduling weighs every edge alike), so order decides
    which compile starts first. `seconds` and `heavy` name objects as `object_name` does; an object without an
    entry comes after those known to be long.
    """
    first, *blocks = _BLOCK.split(relative(text, tree))
    blocks = [block for block in blocks if not _RERUN.match(block)]
    objects: list[tuple[float, int, str]] = []
    others: list[str] = []
    for position, block in enumerate(blocks):
        match = _OBJECT.match(block)
        if not match:
            others.append(block)
            continue
        name = object_name(match[1])
        if name in heavy:
            head, _, rest = block.partition("\n")
            block = f"{head}\n  pool = heavy\n{rest}"  # noqa: PLW2901 -- the same block, with its pool
        objects.append((-seconds.get(name, 0.0), position, block))
    if not objects:
        raise CompileError("CMake made no compile command.", do="look into configure.log.")
    pool = f"pool heavy\n  depth = {heavy_jobs}\n\n"
    return first + pool + "".join(block for _, _, block in sorted(objects)) + "".join(others)


def objects(text: str) -> list[str]:
    """The objects of all compile commands of a `build.ninja`, sorted."""
    return sorted({match[1] for match in re.finditer(rf"(?m)^{_OBJECT.pattern}", text)})


def object_name(path: str) -> str:
    """`_C_stable_libtorch/csrc/topk.cu` for `CMakeFiles/_C_stable_libtorch.dir/csrc/topk.cu.o`.

    Sources outside the source folder are recorded by CMake with odd paths; they keep them.
    """
    match = re.fullmatch(r"CMakeFiles/([^/]+)\.dir/(.+)\.o", path)
    return f"{match[1]}/{match[2]}" if match else path


@dataclass(frozen=True, slots=True)
class Unit:
    """One compile command of the build: a translation unit of one extension."""

    name: str
    """As `object_name`."""
    gencodes: tuple[str, ...]
    """`compute_120f/sm_120f` per different -gencode option, in order: upstream gives some twice, nvcc makes one."""


def units(text: str) -> list[Unit]:
    """The translation units of an arranged or original `build.ninja`, with the device code each is asked for."""
    found = []
    for block in _BLOCK.split(text)[1:]:
        match = _OBJECT.match(block)
        if match:
            pairs = re.findall(r"-gencode[ =]arch=([\w]+),code=([\w\[\],]+)", block)
            found.append(
                Unit(object_name(match[1]), tuple(dict.fromkeys(f"{arch}/{code}" for arch, code in pairs)))
            )
    return found
