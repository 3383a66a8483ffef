"""How many compile jobs fit: memory decides, not the number of processors."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import floor
from typing import TYPE_CHECKING, Any

from sm121.errors import PlanError
from sm121.findings import Finding, Verdict
from sm121.resources.machine import GIB, Machine, gib

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class JobCost:
    """Peak bytes of one job of each weight."""

    heavy: int
    light: int

    @classmethod
    def of(cls, project: str) -> JobCost:
        """The measured costs of `project` ("vllm", "flashinfer")."""
        for row in _data()["cost"]:
            if row["project"] == project:
                return cls(round(row["heavy_gib"] * GIB), round(row["light_gib"] * GIB))
        known = ", ".join(row["project"] for row in _data()["cost"])
        raise PlanError(f"no job costs are known for {project!r}; known are {known}.")


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs at a time: `total` of any weight, of which at most `heavy` heavy ones."""

    total: int
    heavy: int
    findings: tuple[Finding, ...] = ()


def job_count(*, cpus: int, memory: float, reserve: float, per_job: float) -> int:
    """Jobs that fit: at least one, at most `cpus`. Memory in any one unit."""
    return max(1, min(cpus, floor((memory - reserve) / per_job)))


def default_reserve(memory_total: int) -> int:
    """Bytes to leave to everything that is not a compiler."""
    usual = round(float(_data()["reserve"]["gib"]) * GIB)
    return min(usual, memory_total // 8)


def plan_jobs(
    machine: Machine, cost: JobCost, *, reserve: int | None = None, requested: int | None = None
) -> Jobs:
    """Share `machine` between heavy and light jobs, or judge the number that the user asks for.

    Light jobs take what the heavy ones leave. `reserve` is in bytes.
    """
    if requested is not None and requested < 1:
        raise PlanError(f"at least one job must run at a time, {requested} were asked for.")
    if machine.memory_available is None or machine.memory_total is None:
        total = requested or 1
        unread = _finding(Verdict.UNKNOWN, "the free memory could not be read", f"Running {total} at a time.")
        return Jobs(total, 1, (unread,))
    kept = default_reserve(machine.memory_total) if reserve is None else reserve
    free = machine.memory_available
    heavy = job_count(cpus=machine.cpus, memory=free, reserve=kept, per_job=cost.heavy)
    rest = free - kept - heavy * cost.heavy
    fitting = min(machine.cpus, heavy + max(0, rest // cost.light))
    shown = (
        f"{machine.cpus} processors ({machine.cpu_origin}), {gib(free)} free ({machine.memory_origin}), "
        f"{gib(kept)} kept back"
    )
    findings = []
    if free - kept < cost.heavy:
        advice = "Free memory or add swap space, else the compiler may be ended for want of memory."
        findings.append(_finding(Verdict.WARN, f"{shown}: not one heavy job of {gib(cost.heavy)} fits", advice))
    if requested is None:
        findings.append(_finding(Verdict.INFO, f"{shown}: {fitting} jobs, {heavy} of them heavy"))
        return Jobs(fitting, heavy, tuple(findings))
    if requested > fitting:
        got = f"{requested} jobs asked for, {fitting} fit: {shown}"
        findings.append(_finding(Verdict.WARN, got, f"Ask for {fitting} or leave the number out."))
    return Jobs(requested, min(heavy, requested), tuple(findings))


def _finding(verdict: Verdict, got: str, advice: str = "") -> Finding:
    return Finding("resources.jobs", "compile jobs", verdict, got, advice=advice)


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(files("sm121.resources").joinpath("jobs.toml").read_text(encoding="utf-8"))
