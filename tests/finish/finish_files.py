"""Fixtures to finish, and a ptxas that is none: it hands out what the real one made of the same PTX."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.finish.library import Settings
from sm121.finish.model import Layout
from sm121.process import Completed
from sm121.target import GB10

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FIXTURES = Path(__file__).parent / "fixtures"
LIBRARIES = ("x86_64.so", "aarch64.so", "ptx_120f.so")


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def copy(name: str, into: Path) -> Path:
    """A fixture of the tests' own, to be changed."""
    return Path(shutil.copy(FIXTURES / name, into))


class RecordedPtxas:
    """Stands in for `sm121.process`: version 13.0.88, PTX up to 9.0, the cubins of the fixtures."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ptxas"
        self.path.write_bytes(b"a program")
        self.compiled: list[str] = []
        self.says = "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release 13.0, V13.0.88\n"
        self.fail = ""

    def run(self, argv: Sequence[str | Path], *, cwd: Path | None = None, check: bool = True) -> Completed:
        words = tuple(str(word) for word in argv)
        if words[1:] == ("--version",):
            return Completed(words, 0, self.says, "")
        assert cwd is not None
        assert not check
        text = (cwd / "unit.ptx").read_text()
        version, target = re.findall(r"\.version (\S+)|\.target (\S+)", text)
        if float(version[0]) > 9.0:
            said = (
                f"ptxas unit.ptx, line 1; fatal   : Unsupported .version {version[0]}; current version is '9.0'"
            )
            return Completed(words, 255, "", said)
        if target[1].endswith("a"):
            return Completed(words, 255, "", f"Program with .target '{target[1]}' cannot be compiled")
        return Completed(words, 0, "", "")

    def measure(
        self, argv: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None
    ) -> tuple[Completed, float]:
        words = tuple(str(word) for word in argv)
        assert words[0] == str(self.path.absolute())
        assert words[-3:] == ("unit.ptx", "-o", "unit.cubin")
        digest = hashlib.sha256((cwd / "unit.ptx").read_bytes()).hexdigest()[:16]
        if self.fail == digest or not (found := self.cubin(digest, words[1].removeprefix("-arch="))).exists():
            return Completed(words, 255, "", f"ptxas fatal : {digest} was never seen"), 0.1
        shutil.copy(found, cwd / "unit.cubin")
        self.compiled.append(digest)
        return Completed(words, 0, "", ""), 0.5

    @staticmethod
    def cubin(digest: str, arch: str) -> Path:
        return FIXTURES / "cubins" / f"{digest}.{arch}.cubin"

    def settings(self, folder: Path, *, layout: Layout = Layout.COMPACT, keep_ptx: bool = False) -> Settings:
        return Settings(
            target=GB10, ptxas=self.path, cache=folder / "cache", jobs=2, layout=layout, keep_ptx=keep_ptx
        )
