"""A plan for people (tables) and for programs (stable JSON)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from sm121.plan.model import PLAN_VERSION
from sm121.progress import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sm121.plan.model import Group, Plan

_NUMBERS = frozenset({"modules", "units", "CPU time", "peak"})
_NAMES, _SHORT = 2, 60
_TITLES = {"vllm": "vLLM", "flashinfer": "FlashInfer's modules"}


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-able data; equal requests on equal machines give equal data."""
    return {
        "version": PLAN_VERSION,
        "digest": str(plan.digest),
        "project": {
            "name": plan.project, "version": plan.version, "stamped": plan.stamped, "part": plan.part,
            "requirements": dict(plan.requirements),
        },
        "line": plan.line,
        "cuda": {"line": plan.cuda, "compiler": plan.compiler, "toolchain": plan.toolchain},
        "target": {"capability": "12.1", "cpu": plan.target_cpu},
        "host": {
            "cpu": plan.host.cpu, "cores": plan.host.machine.cpus, "memory": plan.host.machine.memory_available,
            "python": plan.host.python, "compiler": plan.host.compiler,
        },
        "arch_list": {"requested": plan.arch_list, **{name: list(archs) for name, archs in plan.archs.items()}},
        "cutlass": plan.cutlass,
        "brought": [
            {"what": b.what, "option": b.option, "path": b.path, "how": b.how, "instead": b.instead}
            for b in plan.brought
        ],
        "extensions": [
            {"name": e.name, "path": e.path, "origin": e.origin, "reason": e.reason, "images": dict(e.images)}
            for e in plan.extensions
        ],
        "downloads": [
            {
                "project": d.pin.name, "version": d.pin.version, "filename": d.pin.filename, "size": d.pin.size,
                "sha256": d.pin.sha256.hex, "role": d.role,
            }
            for d in plan.downloads
        ],
        "steps": [
            {
                "name": step.name, "title": step.title, "key": step.key, "needs": dict(step.needs),
                "inputs": dict(step.inputs), "argv": list(step.argv), "env": dict(step.env),
            }
            for step in plan.steps
        ],
        "findings": [
            {
                "check": f.check, "subject": f.subject, "verdict": f.verdict, "got": f.got, "wanted": f.wanted,
                "advice": f.advice,
            }
            for f in plan.findings
        ],
        "needs": {
            "jobs": plan.jobs, "heavy_jobs": plan.heavy_jobs, "disk": plan.disk, "memory": plan.memory,
            "seconds": round(plan.seconds), "finishing": round(plan.finishing),
            "download": sum(d.pin.size for d in plan.downloads),
        },
        "cache": plan.cache,
        **_modules_json(plan),
    }  # fmt: skip


def _modules_json(plan: Plan) -> dict[str, Any]:
    """What only FlashInfer's plans have."""
    if not plan.sets:
        return {}
    return {
        "set": plan.chosen,
        **{
            key: [
                {
                    "name": group.name, "modules": group.libraries, "units": group.units, "seconds": round(group.seconds),
                    "peak": group.peak, "why": group.why,
                }
                for group in groups
            ]
            for key, groups in (("families", plan.groups), ("sets", plan.sets))
        },
    }  # fmt: skip


def show_plan(plan: Plan, console: Console) -> None:
    """Print the plan in one screen."""
    console.print(
        f"[bold]{_TITLES[plan.project]} {plan.version}[/] as [bold]{plan.stamped}[/] for compute capability 12.1, "
        f"{plan.target_cpu}, "
        f"line {plan.line}"
    )
    cross = "" if plan.host.cpu == plan.target_cpu else f", cross-compiled on {plan.host.cpu}"
    archs = "; ".join(f"{name} {', '.join(archs)}" for name, archs in plan.archs.items())
    facts = {
        "compiler": f"nvcc {plan.compiler} ({plan.toolchain}), {plan.host.compiler or 'no C++ compiler found'}{cross}",
        "arch list": f"{plan.arch_list} -> {archs}",
        "CUTLASS": plan.cutlass,
        "jobs": f"{plan.jobs}, of them at most {plan.heavy_jobs} with a heavy file; cache: {plan.cache}",
        "needs": f"{size(sum(d.pin.size for d in plan.downloads))} of downloads, {size(plan.disk)} of disk, "
        f"{size(plan.memory)} of memory, {_about(plan.seconds)} of compiling"
        f"{f' and {duration(plan.finishing)} of finishing' if plan.finishing else ''} without a cache",
    }  # fmt: skip
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(f"[dim]{name}[/]", value)
    console.print(grid)
    if plan.sets:
        console.print(_groups("Sets", "set", plan.sets, plan.chosen))
        console.print(_groups(f"Modules of this build ({plan.chosen})", "family", plan.groups))
    else:
        console.print(_extensions(plan))
    console.print(_steps(plan))
    for each in plan.brought:
        there = f"{each.option} {each.path}" if each.path else f"not named yet ({each.option} DIR): {each.how}"
        console.print(f"yours: {each.what}, {there}.", markup=False, soft_wrap=True)
    for finding in plan.findings:
        console.print(f"{finding.verdict}: {finding.message}", markup=False)


def _about(seconds: float) -> str:
    """A wall time; costs were measured of device code alone, so a short one says little."""
    return f"about {duration(seconds)}" if seconds >= _SHORT else "less than a minute"


def _table(title: str, *headings: str, right: frozenset[str] = frozenset()) -> Table:
    """A table whose first two columns are names: one that is broken in two cannot be copied."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for number, heading in enumerate(headings):
        whole = number < _NAMES or heading in right
        table.add_column(heading, overflow="fold", no_wrap=whole, justify="right" if heading in right else "left")
    return table


def _groups(title: str, heading: str, groups: Sequence[Group], chosen: str = "") -> Table:
    table = _table(title, heading, "modules", "units", "CPU time", "peak", "why", right=_NUMBERS)
    for group in groups:
        table.add_row(
            group.name, str(group.libraries), str(group.units), duration(group.seconds), size(group.peak), group.why,
            style="bold" if group.name == chosen else "",
        )  # fmt: skip
    return table


def _extensions(plan: Plan) -> Table:
    table = _table("Extensions", "extension", "origin", "promised device images", "why")
    for extension in plan.extensions:
        images = ", ".join(f"{count} x {target}" for target, count in extension.images.items())
        table.add_row(extension.name, extension.origin, images or "-", extension.reason)
    return table


def _steps(plan: Plan) -> Table:
    table = _table("Steps", "step", "key", "what")
    for step in plan.steps:
        table.add_row(step.name, step.key, step.title)
    return table
