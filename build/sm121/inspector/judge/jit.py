"""What the driver must compile, which driver can, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.words import joined, span
from sm121.progress import plural, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sm121.inspector.coverage import LibraryCoverage
    from sm121.inspector.rules import Drivers
    from sm121.values import CudaVersion

_EAGER = (
    "Compile it ahead of time with `sm121 finish`, or give CUDA_CACHE_PATH a place that lasts, of several GB."
)
_REFUSAL = "https://docs.nvidia.com/cuda/parallel-thread-execution/"


@dataclass(frozen=True, slots=True)
class JitCost:
    """PTX that must be compiled when it is first used.

    `text` is bytes of PTX, `seconds` the least and the most one core would take, `needs` the oldest CUDA version
    whose driver reads all of it, `unknown` the ISA versions that no rule knows, `libraries` bytes per library.
    """

    units: int
    text: int
    seconds: tuple[float, float]
    needs: CudaVersion | None
    isa: tuple[str, ...]
    unknown: tuple[str, ...]
    libraries: tuple[tuple[str, int], ...]


def jit_cost(libraries: Sequence[LibraryCoverage], drivers: Drivers) -> JitCost:
    """Add up the PTX of all libraries."""
    images = [image for library in libraries for image in library.jit]
    text = sum(image.size for image in images)
    versions = sorted({image.isa for image in images})
    needs = {f"{major}.{minor}": drivers.needs((major, minor)) for major, minor in versions}
    least, most = (text / 1e6 * rate for rate in drivers.seconds_per_mb)
    per_library = ((library.facts.path, sum(image.size for image in library.jit)) for library in libraries)
    return JitCost(
        len(images), text, (least, most), max(filter(None, needs.values()), default=None), tuple(needs),
        tuple(version for version, need in needs.items() if need is None),
        tuple(item for item in per_library if item[1]),
    )  # fmt: skip


def judge_jit(
    cost: JitCost, libraries: Sequence[LibraryCoverage], drivers: Drivers, driver: CudaVersion | None
) -> Iterator[Finding]:
    """Findings on the weight of PTX and on the driver that it asks for."""
    yield from _refused(libraries, driver)
    if not cost.units:
        if any(library.units for library in libraries):
            yield Finding("jit.cost", "PTX", Verdict.PASS, "nothing is left to the driver's compiler (JIT)")
        return
    for version in cost.unknown:
        yield Finding(
            "jit.driver", "PTX", Verdict.UNKNOWN, f"ISA {version} belongs to no toolkit that is known here",
            "an ISA with a known driver", "Update this program.", _REFUSAL,
        )  # fmt: skip
    heavy = cost.text > drivers.warn_mb * 1e6
    where = joined([f"{path} ({size(count)})" for path, count in cost.libraries])
    yield Finding(
        "jit.cost", "PTX", Verdict.WARN if heavy else Verdict.INFO,
        f"{size(cost.text)} of PTX in {plural(cost.units, 'unit')} must be compiled by the driver (JIT) when "
        f"first used: {where}; {span(*cost.seconds)} on one core of a server of 2026, then kept in its cache",
        "machine code for every unit" if heavy else "",
        _EAGER if heavy else "",
    )  # fmt: skip
    if cost.needs is None:
        return
    if driver is None:
        got = f"made by CUDA {cost.needs}'s compiler: a driver of CUDA {cost.needs} or later is needed"
        yield Finding("jit.driver", "PTX", Verdict.INFO, got, source=_REFUSAL)
    else:
        got = f"needs a driver of CUDA {cost.needs}; {driver} will do"
        yield Finding("jit.driver", "PTX", Verdict.PASS, got, source=_REFUSAL)


def _refused(libraries: Sequence[LibraryCoverage], driver: CudaVersion | None) -> Iterator[Finding]:
    for library in libraries:
        units = [unit for unit in library.units if unit.refused]
        if units:
            yield Finding(
                "jit.driver", library.facts.path, Verdict.FAIL,
                f"{plural(len(units), 'unit')} of PTX that a driver of CUDA {driver} cannot read (it says: the "
                "provided PTX was compiled with an unsupported toolchain)",
                "PTX of the driver's own CUDA version or older",
                "Update the driver, or compile the PTX ahead of time.", _REFUSAL,
            )  # fmt: skip
