"""Does the device code of a library serve the capability?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.coverage import Body
from sm121.inspector.rules import Code
from sm121.inspector.words import joined, shown
from sm121.progress import plural
from sm121.target import LoadsAs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.inspector.coverage import KernelCoverage, LibraryCoverage, UnitCoverage
    from sm121.inspector.rules import LibraryRule
    from sm121.target import Capability

_RULES = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities"
_ARCH_SPECIFIC = "https://github.com/vllm-project/vllm/issues/43367"


def judge_library(
    library: LibraryCoverage, rule: LibraryRule | None, capability: Capability, *, ours: bool = True
) -> Iterator[Finding]:
    """All findings on one library's device code.

    `rule` is what its project is known to hold. `ours` is False for a library that merely lies beside the ones in
    question, as in an environment; what it lacks is then a warning.
    """
    facts = library.facts
    if facts.damage:
        yield from (Finding("device.damage", facts.path, Verdict.FAIL, _damaged(text)) for text in facts.damage)
    yield from _notices(library)
    if not facts.format:
        return
    if not library.units:
        if not facts.damage:
            yield _host_only(library, rule)
        return
    yield from _images(library)
    yield from _arch_specific(library, rule, capability)
    yield from _loads(library, rule, capability, ours=ours)
    if facts.looked_into:
        yield from _empty(library)
        yield from _bodies(library, capability)


def _damaged(text: str) -> str:
    """Damage by that name, also where the reader's sentence does not use the word."""
    return text if "damaged" in text or "truncated" in text else f"damaged: {text}"


def _notices(library: LibraryCoverage) -> Iterator[Finding]:
    for text in library.facts.notices:
        yield Finding("device.notice", library.facts.path, Verdict.INFO, text)
    for unit in library.units:
        for entry in unit.facts.unknown:
            grave = Verdict.INFO if unit.loads_as.machine_code else Verdict.UNKNOWN
            got = f"unit {unit.facts.index} holds {entry}, which this program cannot judge"
            yield Finding("device.unknown", library.facts.path, grave, got)


def _host_only(library: LibraryCoverage, rule: LibraryRule | None) -> Finding:
    path = library.facts.path
    if rule is not None and rule.code in {Code.MACHINE, Code.JIT}:
        wanted = f"device code ({rule.code})"
        return Finding("device.loads", path, Verdict.FAIL, "host code only: no device code in it", wanted)
    return Finding("device.loads", path, Verdict.PASS, "host code only, no device code")


def _images(library: LibraryCoverage) -> Iterator[Finding]:
    """Images that could not be read, and cubins whose target is not certain."""
    for unit in library.units:
        for image in unit.facts.images:
            if image.damage:
                got = f"the {image.target} image of unit {unit.facts.index} is damaged: {image.damage}"
                yield Finding("device.damage", library.facts.path, Verdict.FAIL, got)


def _arch_specific(
    library: LibraryCoverage, rule: LibraryRule | None, capability: Capability
) -> Iterator[Finding]:
    """Units made for this generation that do not load all the same: the mistake that costs most time."""
    lost: Counter[str] = Counter()
    for unit in library.counted:
        if unit.loads_as is LoadsAs.NO:
            near = {image.target for image in unit.facts.images if image.arch.major == capability.major}
            lost.update({joined(sorted(near)): 1} if near else {})
    expected = rule is not None and rule.code is Code.NONE
    for targets, count in sorted(lost.items()):
        yield Finding(
            "device.arch-specific", library.facts.path, Verdict.INFO if expected else Verdict.FAIL,
            f"{plural(count, 'unit')} of this generation only as {targets}, which does not load on {capability}",
            f"a cubin of sm_{capability.number}, of its family (f), or a generic one of the same major",
            "" if expected else f"Build with {_advice(capability)}.", _ARCH_SPECIFIC,
        )  # fmt: skip


def _advice(capability: Capability) -> str:
    if capability.major == 12 and capability.minor == 1:
        return "12.0f (CUDA 13) or 12.1a (CUDA 12.9)"
    return f"{capability} or {capability.major}.0f"


def _loads(
    library: LibraryCoverage, rule: LibraryRule | None, capability: Capability, *, ours: bool
) -> Iterator[Finding]:
    facts, how = library.facts, library.loads_as
    got = describe(library, capability)
    if how is LoadsAs.NO:
        refused = sorted({target for unit in library.units for target in unit.refused})
        if rule is not None and rule.code is Code.NONE:
            yield Finding("device.loads", facts.path, Verdict.INFO, f"{got}, as expected: {rule.why}")
        elif refused:
            got = f"only {joined(refused)} PTX would do, and the driver is too old for it ({got})"
            yield Finding("device.loads", facts.path, Verdict.FAIL, got)
        elif library.counted:
            grave = Verdict.FAIL if ours else Verdict.WARN
            yield Finding(
                "device.loads", facts.path, grave, got, f"code that loads on {capability}", source=_RULES
            )
        else:
            got = "only images that nvlink adds, without a kernel in them"
            yield Finding("device.loads", facts.path, Verdict.INFO, got)
    elif how is LoadsAs.JIT and rule is not None and rule.code is Code.MACHINE:
        yield Finding("device.loads", facts.path, Verdict.FAIL, got, "machine code, as this version has it")
    else:
        verdict = Verdict.INFO if how is LoadsAs.JIT else Verdict.PASS
        yield Finding("device.loads", facts.path, verdict, got)


def describe(library: LibraryCoverage, capability: Capability) -> str:
    """How the units load, in a phrase: `50 of 111 units load as sm_120, 35 as sm_120f, 6 by JIT from PTX ...`."""
    counted = library.counted
    targets = Counter((unit.loads_as, unit.target) for unit in counted if unit.loads_as is not LoadsAs.NO)
    if not targets:
        held = facts_targets(counted)
        return f"none of {plural(len(counted), 'unit')} loads on {capability}; they hold {held}"
    parts = []
    for (how, target), count in sorted(targets.items(), key=lambda item: (item[0][0].rank, item[0][1])):
        parts.append(f"{count} by JIT from PTX {target}" if how is LoadsAs.JIT else f"{count} as {target}")
    rest = sum(1 for unit in counted if unit.loads_as is LoadsAs.NO)
    text = f"of {plural(len(counted), 'unit')} {joined(parts)}" + (
        f"; {rest} are for other chips" if rest else ""
    )
    exact = any(how is LoadsAs.NATIVE for how, _ in targets)
    machine = any(how.machine_code for how, _ in targets)
    if machine and not exact:
        text += f" (no sm_{capability.number} among them, and none is needed)"
    return text


def facts_targets(units: tuple[UnitCoverage, ...]) -> str:
    """The targets of units with their numbers: `sm_90a (53), sm_100f (53)`."""
    counts = Counter(image.target for unit in units for image in unit.facts.images)
    return ", ".join(f"{target} ({count})" for target, count in sorted(counts.items())) or "no image"


def _empty(library: LibraryCoverage) -> Iterator[Finding]:
    """Units whose image for this chip holds no kernel although others do: a target in the list proves nothing."""
    for unit in library.counted:
        others = max((image.kernels or 0 for image in unit.facts.images), default=0)
        if unit.empty and others:
            got = (
                f"the {unit.target} image of unit {unit.facts.index} holds no kernel; another one holds {others}"
            )
            yield Finding(
                "device.empty", library.facts.path, Verdict.WARN, got, "kernels in the image that loads"
            )


def _bodies(library: LibraryCoverage, capability: Capability) -> Iterator[Finding]:
    for body, check, what in (
        (Body.STUB, "device.stub", "write nothing: empty bodies, or such as only report the wrong chip"),
        (Body.FOREIGN, "device.foreign", "hold the main loop of another chip and trap when they are launched"),
        (Body.SMALL, "device.small", "are far smaller than for another target, which alone proves nothing"),
    ):
        kernels = [kernel for kernel in library.kernels if kernel.body is body]
        if kernels:
            got = f"{plural(len(kernels), 'kernel')} for {capability} {what}: {_examples(kernels)}"
            yield Finding(check, library.facts.path, Verdict.INFO, got)


def _examples(kernels: list[KernelCoverage], most: int = 2) -> str:
    names = [shown(kernel.name, 60) for kernel in kernels[:most]]
    return ", ".join(dict.fromkeys(names)) + (f" and {len(kernels) - most} more" if len(kernels) > most else "")
