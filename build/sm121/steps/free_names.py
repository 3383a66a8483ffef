"""Whether a build may publish under the names of its plan: told before the work, and by a dry run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.errors import PackError
from sm121.findings import Finding, Verdict
from sm121.manifest import Manifest
from sm121.steps.delivery import stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sm121.plan.model import Plan

_DO = "move it away, name another folder with --dist, or give --replace; its copy by digest stays."


def taken_names(plan: Plan, dist: Path) -> list[str]:
    """The wheels in `dist` that have the version of this plan and are of another."""
    name = stamp_of(plan).distribution
    return [
        wheel
        for file in sorted(dist.glob(f"{name}-{plan.stamped}-*.whl.manifest.json"))
        if plan.target_cpu in (wheel := file.name.removesuffix(".manifest.json"))
        and Manifest.from_json(file.read_bytes(), file.name).plan != plan.digest
    ]


def require_free_names(plans: Iterable[Plan], dist: Path) -> None:
    """Refuse before the work what publishing would refuse after it: a wheel of this version from another plan."""
    problems = [
        f"{dist} holds {wheel}, made by another plan." for plan in plans for wheel in taken_names(plan, dist)
    ]
    if problems:
        raise PackError(problems, do=_DO)


def judge_names(plan: Plan, dist: Path) -> list[Finding]:
    """The same for a plan that is only shown."""
    return [
        Finding(
            "plan.name", str(dist), Verdict.WARN,
            f"holds {wheel}, made by another plan, and a build that would take its place is refused",
            advice=f"{_DO[0].upper()}{_DO[1:]}",
        )
        for wheel in taken_names(plan, dist)
    ]  # fmt: skip
