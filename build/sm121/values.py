"""Small values that check themselves: digests, commits, versions, architectures."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import total_ordering
from typing import TYPE_CHECKING, Self

from packaging.version import Version

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 1 << 20


def parsed_version(text: str) -> Version | None:
    """A version by PEP 440, None for anything else: for more digits than a number may have too."""
    try:
        return Version(text)
    except ValueError:  # InvalidVersion is one
        return None


def public_version(text: str) -> str:
    """A version without its local part; what is no version stays as it is."""
    version = parsed_version(text)
    return version.public if version else text


def whole_number(text: str, most: int = 10**18 - 1) -> int | None:
    """The number that plain digits write, None if `text` is anything else or more than `most`.

    More digits than `most` has are never converted: there is no bound to what others send.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)) or int(text) > most:
        return None
    return int(text)


@dataclass(frozen=True, slots=True, order=True)
class Sha256:
    """A sha256 digest, 64 lower-case hexadecimal digits."""

    hex: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.hex):
            raise ValueError(f"a sha256 is 64 lower-case hexadecimal digits, found {self.hex!r}")

    @classmethod
    def of_bytes(cls, data: bytes) -> Self:
        return cls(hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> Self:
        with path.open("rb") as file:
            return cls(hashlib.file_digest(file, "sha256").hexdigest())

    @property
    def short(self) -> str:
        return self.hex[:12]

    def __str__(self) -> str:
        return f"sha256:{self.hex}"


@dataclass(frozen=True, slots=True)
class GitCommit:
    """A full git commit, 40 lower-case hexadecimal digits."""

    hex: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{40}", self.hex):
            raise ValueError(f"a commit is 40 lower-case hexadecimal digits, found {self.hex!r}")

    def __str__(self) -> str:
        return self.hex


@dataclass(frozen=True, slots=True, order=True)
class CudaVersion:
    """A CUDA version: `13.0`, or with a build number `13.0.88`."""

    major: int
    minor: int
    build: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        match = re.fullmatch(r"V?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?:\.\d+)*", text.strip())
        if not match:
            raise ValueError(f"a CUDA version looks like 13.0 or 13.0.88, found {text!r}")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    @property
    def release(self) -> CudaVersion:
        """The release without the build number."""
        return CudaVersion(self.major, self.minor)

    @property
    def local(self) -> str:
        """As wheels write it: `cu130`."""
        return f"cu{self.major}{self.minor}"

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + (f".{self.build}" if self.build else "")


@total_ordering
@dataclass(frozen=True, slots=True)
class ArchSpec:
    """One entry of an architecture list: `12.1`, `12.1a`, `12.0f`, `8.0+PTX`.

    `suffix` is "" (generic), "a" (this one chip) or "f" (the chip's family).
    """

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one entry, strictly: what nvcc's projects would misread is refused."""
        match = re.fullmatch(r"(\d{1,2})\.(\d)([af]?)(\+PTX)?", text)
        if not match:
            raise ValueError(f"an architecture looks like 12.1, 12.1a, 12.0f or 8.0+PTX, found {text!r}")
        return cls(int(match[1]), int(match[2]), match[3], bool(match[4]))

    @classmethod
    def from_sm(cls, text: str) -> Self:
        """Read `sm_121a`, `compute_120f` or `121a`."""
        match = re.fullmatch(r"(?:sm_|compute_|lto_)?(\d{1,2})(\d)([af]?)", text)
        if not match:
            raise ValueError(f"a device target looks like sm_121a or compute_120f, found {text!r}")
        return cls(int(match[1]), int(match[2]), match[3])

    @property
    def number(self) -> int:
        """121 for 12.1."""
        return self.major * 10 + self.minor

    @property
    def sm(self) -> str:
        return f"sm_{self.number}{self.suffix}"

    @property
    def compute(self) -> str:
        return f"compute_{self.number}{self.suffix}"

    def __lt__(self, other: ArchSpec) -> bool:
        return (self.number, self.suffix, self.ptx) < (other.number, other.suffix, other.ptx)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}" + ("+PTX" if self.ptx else "")
