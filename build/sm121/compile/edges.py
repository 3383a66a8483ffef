"""The compile commands of a configured build as ninja's files have them, and what ninja knows each one reads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sm121.compile.ninja import object_name
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.values import ArchSpec

SOURCE = "../source/"
"""How a path in the source folder is spelled from the build folder."""
_EDGE = re.compile(r"(?m)^build (\S+\.o): (\w+_COMPILER__\w+) (\S+)([^\n]*)\n((?:  [^\n]*\n)*)")
_GENCODE = re.compile(r"-gencode[ =]arch=[\w,=\[\]]+")
_DEPS = re.compile(r"(\S+): #deps \d+, deps mtime \d+ \((VALID|STALE)\)")
_TOLD = ("DEFINES", "FLAGS", "INCLUDES")
_BESIDE_OUTPUTS = ("DEP_FILE", "OBJECT_DIR", "OBJECT_FILE_DIR", "TARGET_COMPILE_PDB", "TARGET_PDB")


@dataclass(frozen=True, slots=True)
class Edge:
    """One compile command: `name` as `object_name` gives it, its object, rule and source, and its variables."""

    name: str
    object: str
    rule: str
    source: str
    """As ninja's file spells it, seen from the build folder."""
    tail: str
    variables: Mapping[str, str]

    @property
    def extension(self) -> str:
        return self.name.partition("/")[0]

    @property
    def cuda(self) -> bool:
        return self.rule.startswith("CUDA")

    @property
    def path(self) -> str:
        """The source's path in the source folder; as spelled if it is not in it."""
        return self.source.removeprefix(SOURCE)

    @property
    def command(self) -> Sha256:
        """Digest of what the compiler is told. CMake's other variables come and go from one run to the next."""
        told = [f"{name}={self.variables.get(name, '')}" for name in _TOLD]
        return Sha256.of_bytes("\n".join([self.rule, self.source, *told]).encode())

    def beside(self, arch: ArchSpec) -> Self:
        """The same command for another target, its object in a folder of its own."""
        folder = f"beside/{arch.sm}"
        flags = _GENCODE.sub("", self.variables["FLAGS"]).rstrip()
        number = f"{arch.number}{arch.suffix}"
        variables = {
            name: f"{folder}/{value}" if name in _BESIDE_OUTPUTS else value
            for name, value in self.variables.items()
        }
        variables["FLAGS"] = f"{flags} -gencode arch=compute_{number},code=sm_{number}"
        return type(self)(
            f"{folder}/{self.name}", f"{folder}/{self.object}", self.rule, self.source, "", variables
        )

    @property
    def statement(self) -> str:
        """The build statement."""
        lines = [f"build {self.object}: {self.rule} {self.source}{self.tail}"]
        return "\n".join([*lines, *(f"  {name} = {value}" for name, value in self.variables.items()), "", ""])


def edges(text: str) -> list[Edge]:
    """The compile commands of a `build.ninja`, in its order."""
    found = []
    for match in _EDGE.finditer(text):
        rows = [row.lstrip().partition(" = ") for row in match[5].splitlines()]
        variables = {name: value for name, _, value in rows}
        found.append(Edge(object_name(match[1]), match[1], match[2], match[3], match[4], variables))
    return found


def recorded(listing: str) -> dict[str, frozenset[str]]:
    """Object -> paths in the source folder that it was made from, of `ninja -t deps`; stale records are left out."""
    found: dict[str, frozenset[str]] = {}
    for block in listing.split("\n\n"):
        head, _, rest = block.strip("\n").partition("\n")
        match = _DEPS.match(head)
        if match and match[2] == "VALID":
            found[match[1]] = frozenset(
                line.removeprefix(f"    {SOURCE}")
                for line in rest.splitlines()
                if line.startswith(f"    {SOURCE}")
            )
    return found
