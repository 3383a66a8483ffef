"""Finds guards in CUDA sources that keep code away from a chip that the build is for.

A 12.0 or 12.0f compile has __CUDA_ARCH__ 1200 and a 12.1* compile 1210. Code under `== 1210` is left out of the
former; code under `== 1200` traps or is empty in the latter
(https://github.com/Avarok-Cybersecurity/dgx-vllm/issues/9).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.target import loads_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sm121.target import Capability
    from sm121.values import ArchSpec

_SOURCE = "https://github.com/Avarok-Cybersecurity/dgx-vllm/issues/9"
_GUARD = re.compile(
    r"\benable_sm(\d{2,3})_only\b|__CUDA_ARCH__\s*==\s*(\d{3,4})\b|\b(\d{3,4})\s*==\s*__CUDA_ARCH__"
)


def judge_source(name: str, text: str, targets: Iterable[ArchSpec], capability: Capability) -> list[Finding]:
    """Judge the guards in one source file that is compiled for `targets` and shall run on `capability`."""
    compiled = _compiled_as(targets, capability)
    if compiled is None:
        return []
    ours = compiled.number * 10
    # A family's first chip and the chip itself: code for others is meant to be left out.
    watched = {capability.major * 100, capability.number * 10} - {ours}
    lines = list(_logical_lines(text))
    elsewhere = any(ours in _tested(line) for _, line in lines)
    findings = []
    for number, line in lines:
        tested = _tested(line)
        if ours in tested:
            continue
        for chip in sorted(tested & watched):
            guard = f"{line.strip()[:100]!r} is for __CUDA_ARCH__ {chip}"
            got = f"{guard}; what runs on {capability} is compiled for {ours}"
            findings.append(
                Finding(
                    "arch-list.source-guard",
                    f"{name}:{number}",
                    Verdict.INFO if elsewhere else Verdict.WARN,
                    got,
                    wanted="code for the whole family",
                    advice=_advice(chip, compiled),
                    source=_SOURCE,
                )
            )
    return findings


def _compiled_as(targets: Iterable[ArchSpec], capability: Capability) -> ArchSpec | None:
    """The target whose machine code the driver takes on `capability`."""
    usable = [target for target in targets if loads_as("cubin", target, capability).machine_code]
    return max(
        usable,
        key=lambda target: (-loads_as("cubin", target, capability).rank, target.number),
        default=None,
    )


def _advice(chip: int, compiled: ArchSpec) -> str:
    if chip < compiled.number * 10:
        return f"Compile this file for {chip // 100}.{chip // 10 % 10}f, or patch the guard to the family."
    return f"Compile this file for {chip // 100}.{chip // 10 % 10}a, or patch the guard to the family."


def _tested(line: str) -> set[int]:
    """The values of __CUDA_ARCH__ that a line asks for exactly; the definition of a guard asks for nothing."""
    if re.search(r"\b(struct|class|namespace|using)\s+enable_sm", line):
        return set()
    return {int(word) * 10 if word else int(left or right) for word, left, right in _GUARD.findall(line)}


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, continued ones joined, with the number of their first line."""
    held, start = "", 1
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split("//", 1)[0].rstrip()
        if not held:
            start = number
        held += line.removesuffix("\\") + " "
        if line.endswith("\\"):
            continue
        yield start, held
        held = ""
    if held:
        yield start, held
