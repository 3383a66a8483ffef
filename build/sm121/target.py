"""What loads on a compute capability.

Rules (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities and the family-specific
targets of CUDA 12.9): a plain cubin runs on the same major with the same or a higher minor number; an `f` cubin
on its family; an `a` cubin on exactly one chip. PTX is compiled by the driver for any later chip unless it is
arch-specific (`a`) or of another family (`f`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self

from sm121.values import ArchSpec


class LoadsAs(StrEnum):
    """How a device image serves a compute capability, best first."""

    NATIVE = "native"
    """A cubin for exactly this chip: sm_121, sm_121a, sm_121f on 12.1."""
    FAMILY = "family"
    """A family cubin of a lower minor number: sm_120f on 12.1."""
    SAME_MAJOR = "same-major"
    """A generic cubin of the same major: sm_120 on 12.1."""
    JIT = "jit"
    """PTX that the driver may compile when it is loaded."""
    NO = "no"

    @property
    def rank(self) -> int:
        """0 is best."""
        return list(LoadsAs).index(self)

    @property
    def machine_code(self) -> bool:
        """Runs without the driver's compiler."""
        return self in {LoadsAs.NATIVE, LoadsAs.FAMILY, LoadsAs.SAME_MAJOR}


@dataclass(frozen=True, slots=True)
class Capability:
    """A compute capability, e.g. 12.1."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `12.1`, `121` or `sm_121`."""
        spec = ArchSpec.parse(text) if "." in text else ArchSpec.from_sm(text)
        if spec.suffix or spec.ptx:
            raise ValueError(f"a compute capability has no suffix, found {text!r}")
        return cls(spec.major, spec.minor)

    @property
    def number(self) -> int:
        return self.major * 10 + self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


GB10 = Capability(12, 1)

Kind = Literal["cubin", "ptx", "lto"]

# Embedded chips keep to themselves: a desktop cubin of the same major does not load there, nor the reverse
# (https://docs.nvidia.com/cuda/ampere-compatibility-guide/: 8.7 is Orin).
_APART = frozenset({87, 72, 62, 53})


def loads_as(kind: Kind, arch: ArchSpec, capability: Capability) -> LoadsAs:
    """Say how one device image (a cubin or PTX with its target) serves `capability`.

    PTX is judged by its target alone; whether the user's driver is new enough for it is another question.
    """
    if kind == "lto":
        return LoadsAs.NO
    same_chip = arch.number == capability.number
    same_family = arch.major == capability.major and arch.minor <= capability.minor
    if kind == "ptx":
        usable = {
            "a": same_chip,
            "f": same_family,
            "": arch.number <= capability.number,
        }[arch.suffix]
        return LoadsAs.JIT if usable else LoadsAs.NO
    if same_chip:
        return LoadsAs.NATIVE
    if arch.suffix == "a" or not same_family or (_APART & {arch.number, capability.number}):
        return LoadsAs.NO
    return LoadsAs.FAMILY if arch.suffix == "f" else LoadsAs.SAME_MAJOR
