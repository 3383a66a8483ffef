"""ptxas: which one it is, what it understands, and its results kept by content."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sm121 import process
from sm121.errors import FinishError, ToolchainError
from sm121.sources.disk import completed_file, writing
from sm121.values import CudaVersion, Sha256

if TYPE_CHECKING:
    from sm121.values import ArchSpec

_EMPTY = ".version {major}.{minor}\n.target {target}\n.address_size 64\n"
_UNIT, _RESULT = "unit.ptx", "unit.cubin"
_NUMBER = r"[= ]?\d+"
_CACHING = r"[= ]\w+"
_ALLOWED = re.compile(
    "|".join(
        [
            r"-O[0-4]", rf"--opt-level{_NUMBER}", rf"--?maxrregcount{_NUMBER}", rf"-?-register-usage-level{_NUMBER}",
            rf"-(dlcm|dscm|flcm|fscm){_CACHING}", rf"--(def|force)-(load|store)-cache{_CACHING}",
            r"--?fmad[= ](true|false)", r"-lineinfo", r"--generate-line-info", r"-g", r"--device-debug",
            r"-no-bb-merge", r"--dont-merge-basicblocks", r"-ret-end", r"--return-at-end", r"-v", r"--verbose",
            r"-w", r"--disable-warnings", r"--?warn-[\w-]+", r"--?suppress-[\w-]+",
        ]
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ptxas:
    """A ptxas, named by its version and by its file's digest."""

    path: Path
    version: CudaVersion
    sha256: Sha256

    @classmethod
    def at(cls, path: Path) -> Self:
        """Ask the program itself. ToolchainError if it is no ptxas that runs here."""
        if not path.is_file():
            raise ToolchainError(f"there is no ptxas at {path}.", do="name the ptxas of a CUDA toolkit.")
        said = process.run([path.absolute(), "--version"], check=False).stdout
        release = re.search(r"Ptx optimizing assembler.*\bV(\d+\.\d+\.\d+)", said, re.DOTALL)
        if not release:
            raise ToolchainError(
                f"{path} should be a ptxas, and says {said.strip()[:200]!r}.",
                do="name the ptxas of a CUDA toolkit for this machine.",
            )
        return cls(path.absolute(), CudaVersion.parse(release[1]), Sha256.of_file(path))

    def arguments(self, arch: ArchSpec, options: tuple[str, ...]) -> list[str | Path]:
        """The command, for a folder with the file `unit.ptx`: fixed names, since ptxas may write them down."""
        return [self.path, f"-arch={arch.sm}", "-m64", *options, _UNIT, "-o", _RESULT]

    def refusal(self, version: tuple[int, int], source: ArchSpec, arch: ArchSpec) -> str:
        """Why PTX of this ISA version and target cannot be compiled for `arch`, as a sentence; "" if it can.

        ptxas is asked with an empty program: it knows best, whatever its release.
        """
        text = _EMPTY.format(major=version[0], minor=version[1], target=source.sm)
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / _UNIT).write_text(text)
            done = process.run(self.arguments(arch, ()), cwd=Path(name), check=False)
        if not done.returncode:
            return ""
        said = " ".join((done.stderr or done.stdout).split())
        what = f"PTX {version[0]}.{version[1]} for {source.compute}"
        if "Unsupported .version" in said:
            return f"{what} is newer than ptxas {self.version}, which says: {said}"
        if "not defined for option" in said:
            return f"ptxas {self.version} does not know {arch.sm}, and says: {said}"
        return f"{what} cannot be compiled for {arch.sm} by ptxas {self.version}, which says: {said}"


def ptxas_options(text: str) -> tuple[str, ...]:
    """The options that the maker of a PTX image left for whoever compiles it.

    Raises FinishError for one that is not known to be harmless: the text comes from a file, and ptxas has options
    that read and write other files.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise FinishError(f"the ptxas options {text!r} cannot be read: {error}.") from error
    options: list[str] = []
    for word in words:
        # `-maxrregcount 32`: the value is a word of its own.
        if options and not word.startswith("-") and not _ALLOWED.fullmatch(options[-1]):
            options[-1] += f"={word}"
        else:
            options.append(word)
    unknown = [option for option in options if not _ALLOWED.fullmatch(option)]
    if unknown:
        raise FinishError(f"PTX asks for ptxas options that are not known: {' '.join(unknown)}.")
    return tuple(options)


@dataclass(frozen=True, slots=True)
class Assembled:
    """What ptxas made: the cubin, and the processor time it took in seconds (when it was made)."""

    cubin: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Assembler:
    """ptxas for one target, with its results kept below `cache` by the digests of program, PTX and options."""

    ptxas: Ptxas
    cache: Path

    def assemble(self, ptx: bytes, arch: ArchSpec, options: tuple[str, ...]) -> Assembled:
        """Compile PTX. FinishError with what ptxas says if it refuses."""
        place = self.cache / f"{self._key(ptx, arch, options)}.cubin"
        return _kept(place) or self._make(ptx, arch, options, place)

    def has(self, ptx: bytes, arch: ArchSpec, options: tuple[str, ...]) -> bool:
        """Whether the result is kept already."""
        return (self.cache / f"{self._key(ptx, arch, options)}.cubin").exists()

    def _key(self, ptx: bytes, arch: ArchSpec, options: tuple[str, ...]) -> str:
        read = [self.ptxas.sha256.hex, Sha256.of_bytes(ptx).hex, arch.sm, *options]
        return Sha256.of_bytes(json.dumps(read).encode()).hex

    def _make(self, ptx: bytes, arch: ArchSpec, options: tuple[str, ...], place: Path) -> Assembled:
        with tempfile.TemporaryDirectory() as name, writing(self.cache):
            folder = Path(name)
            (folder / _UNIT).write_bytes(ptx)
            done, seconds = process.measure(self.ptxas.arguments(arch, options), cwd=folder)
            if done.returncode:
                raise FinishError(
                    process.failed(done).problems, do="compile this unit from source, or leave the library out."
                )
            cubin = (folder / _RESULT).read_bytes()
        seconds = round(seconds, 3)
        record = {"sha256": Sha256.of_bytes(cubin).hex, "seconds": seconds}
        for path, data in ((place, cubin), (_record(place), json.dumps(record).encode())):
            with completed_file(path) as file:
                file.write(data)
        return Assembled(cubin, seconds)


def _record(place: Path) -> Path:
    return place.with_suffix(".json")


def _kept(place: Path) -> Assembled | None:
    """A result that was kept, unless it is not what was written."""
    try:
        cubin, record = place.read_bytes(), json.loads(_record(place).read_bytes())
        if record["sha256"] == Sha256.of_bytes(cubin).hex:
            return Assembled(cubin, float(record["seconds"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not there, or broken off: it is made again
    return None
