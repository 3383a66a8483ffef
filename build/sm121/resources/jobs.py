"""How many compile jobs fit: memory decides, not the number of processors."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from sm121.errors import PlanError
from sm121.findings import Finding, Verdict
from sm121.resources.machine import GIB, gib

HEAVIEST = 9 * GIB
"""Peak of a file that instantiates CUTLASS collectives (vLLM 0.33.0, nvcc 13.0.88: 8.8 GB, 2026-11-29)."""
LIGHT = GIB
"""Peak of any other file (the same build: Marlin and MoE files reach 1.0 GB)."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs at a time: `total` of any weight, of which at most `heavy` heavy ones."""

    total: int
    heavy: int
    findings: tuple[Finding, ...] = ()


def job_count(*, cpus: int, memory: float, reserve: float, per_job: float) -> int:
    """Jobs that fit: at least one, at most `cpus`. Memory in any one unit."""
    return max(1, min(cpus, floor((memory - reserve) / per_job)))


def compile_jobs(
    *, cores: int, memory: int, heaviest: int = HEAVIEST, light: int = LIGHT, heavy_share: float = 0.5,
    wanted: int | None = None,
) -> Jobs:  # fmt: skip
    """Share `memory` (bytes, what is kept back already taken off) between heavy and light jobs.

    Of all ways that fit, the one that ends first if heavy files take `heavy_share` of the CPU time, and the most heavy ones
    among equals. The number that a user wants is granted, with a warning where it does not fit. Raises PlanError if that is
    less than one.
    """
    if wanted is not None and wanted < 1:
        raise PlanError(f"at least one job must run at a time, {wanted} were asked for.")
    cores = max(1, cores)
    most = job_count(cpus=cores, memory=memory, reserve=0, per_job=heaviest)
    totals = {
        heavy: min(cores, heavy + max(0, memory - heavy * heaviest) // light) for heavy in range(1, most + 1)
    }
    heavy = min(totals, key=lambda count: (max(heavy_share / count, 1 / totals[count]), -count))
    fitting = totals[heavy]
    machine = f"{cores} processors and {gib(memory)} of memory"
    findings = []
    if memory < heaviest:
        findings.append(
            _finding(
                Verdict.WARN,
                f"{machine}: the heaviest file takes {gib(heaviest)}",
                "Free memory or add swap space, else the compiler may be ended for want of memory.",
            )
        )
    if wanted is not None and wanted > fitting:
        got = f"{wanted} jobs were asked for, {fitting} fit {machine}"
        findings.append(_finding(Verdict.WARN, got, f"Ask for {fitting} or leave the number out."))
    if not findings:
        findings.append(_finding(Verdict.INFO, f"{machine}: {fitting} jobs fit, {heavy} of them heavy"))
    total = fitting if wanted is None else wanted
    return Jobs(total, min(heavy, total), tuple(findings))


def _finding(verdict: Verdict, got: str, advice: str = "") -> Finding:
    return Finding("resources.jobs", "compile jobs", verdict, got, advice=advice)
