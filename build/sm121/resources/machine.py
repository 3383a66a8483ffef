"""What this machine offers a build: processors, memory, disk space.

A container sees the host's /proc/meminfo and every processor; its real limits stand in its control group. Both
are read, and the tightest limit counts.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

GIB = 1 << 30
RESERVE = 16 * GIB
"""Left to all that is no compiler: a GB10 shares its memory between processor and GPU (operators keep 16)."""

# Version 1 writes "no limit" as the largest page-aligned number; no machine has half of it.
_UNLIMITED = 1 << 60


def gib(count: float) -> str:
    """Bytes as `8.8 GiB`."""
    return f"{count / GIB:.1f} GiB"


@dataclass(frozen=True, slots=True)
class Limit:
    """One ceiling on the machine, with the place it was read from."""

    value: float
    origin: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Processors that may be used and memory in bytes; memory is None where it could not be read."""

    cpus: int
    memory_total: int | None
    memory_available: int | None
    cpu_origin: str = ""
    memory_origin: str = ""

    def memory_for_builds(self, reserve: int | None = None) -> int:
        """Bytes that compilers may take: what is available less `reserve`; 0 if the memory could not be read.

        The usual reserve is RESERVE, on a small machine an eighth of its memory.
        """
        if self.memory_available is None or self.memory_total is None:
            return 0
        kept = min(RESERVE, self.memory_total // 8) if reserve is None else reserve
        return max(0, self.memory_available - kept)


def read_machine(root: Path = Path("/"), *, affinity: int | None = None) -> Machine:
    """Read /proc and the control groups (version 1, 2 or both) below `root`.

    `affinity` is the number of processors that the scheduler allows; asked from the system if not given.
    """
    if affinity is None:
        affinity = len(os.sched_getaffinity(0))
    groups = list(_own_groups(root))
    cpu = min(
        [Limit(affinity, "processor affinity"), *_cpu_limits(groups)],
        key=lambda limit: limit.value,
    )
    meminfo = _meminfo(root)
    total = [Limit(meminfo["MemTotal"], "MemTotal")] if "MemTotal" in meminfo else []
    available = [Limit(meminfo["MemAvailable"], "MemAvailable")] if "MemAvailable" in meminfo else []
    for ceiling, free in _memory_limits(groups):
        total.append(ceiling)
        available.append(free)
    tightest = min(available, key=lambda limit: limit.value, default=None)
    return Machine(
        cpus=max(1, int(cpu.value)),
        memory_total=int(min(limit.value for limit in total)) if total else None,
        memory_available=int(tightest.value) if tightest else None,
        cpu_origin=cpu.origin,
        memory_origin=tightest.origin if tightest else "",
    )


def judge_disk(needed: Mapping[Path, int]) -> list[Finding]:
    """Compare the bytes that each folder will receive with the free space below it.

    Folders on one file system share its space. A folder need not exist yet.
    """
    by_device: dict[int, list[tuple[Path, int]]] = {}
    places: dict[int, Path] = {}
    findings = []
    for folder, count in needed.items():
        place = _existing(folder)
        try:
            device = place.stat().st_dev
        except OSError as error:
            findings.append(Finding("resources.disk", str(folder), Verdict.UNKNOWN, f"{error.strerror}"))
            continue
        by_device.setdefault(device, []).append((folder, count))
        places.setdefault(device, place)
    for device, wanted in by_device.items():
        free = shutil.disk_usage(places[device]).free
        total = sum(count for _, count in wanted)
        enough = free >= total
        findings.append(
            Finding(
                "resources.disk",
                ", ".join(str(folder) for folder, _ in wanted),
                Verdict.PASS if enough else Verdict.FAIL,
                f"{gib(free)} free",
                wanted=f"{gib(total)}",
                advice="" if enough else f"Free {gib(total - free)} or give a folder on another disk.",
            )
        )
    return findings


def _existing(folder: Path) -> Path:
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _meminfo(root: Path) -> dict[str, int]:
    found = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            found[name] = int(number[0]) << 10
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    folder: Path
    version: int
    name: str


def _own_groups(root: Path) -> Iterator[_Group]:
    """Yield the control groups that hold this process and all their parents."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if controllers:
            bases = [mount / controller for controller in {controllers, *controllers.split(",")}]
            version = 1
        else:
            bases = [mount, mount / "unified"]
            version = 2
        # A path with ".." means that the group lies outside what this container may see.
        parts = [] if ".." in Path(path).parts else [part for part in path.split("/") if part]
        for base in bases:
            for depth in range(len(parts), -1, -1):
                folder = base.joinpath(*parts[:depth])
                if folder.is_dir():
                    yield _Group(folder, version, "/" + "/".join(parts[:depth]))


def _cpu_limits(groups: Iterable[_Group]) -> Iterator[Limit]:
    for group in groups:
        if group.version == 2:
            quota, _, period = _read(group.folder / "cpu.max").strip().partition(" ")
        else:
            quota = _read(group.folder / "cpu.cfs_quota_us").strip()
            period = _read(group.folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            yield Limit(int(quota) / int(period), f"processor quota of control group {group.name}")


def _memory_limits(groups: Iterable[_Group]) -> Iterator[tuple[Limit, Limit]]:
    """Yield the ceiling of each group and what is left of it; clean page cache counts as free."""
    for group in groups:
        if group.version == 2:
            ceilings = [_number(group.folder / "memory.max"), _number(group.folder / "memory.high")]
            used = _number(group.folder / "memory.current")
            cache_name = "inactive_file"
        else:
            ceilings = [_number(group.folder / "memory.limit_in_bytes")]
            used = _number(group.folder / "memory.usage_in_bytes")
            cache_name = "total_inactive_file"
        real = [ceiling for ceiling in ceilings if ceiling is not None and ceiling < _UNLIMITED]
        if not real:
            continue
        cache = _statistic(group.folder / "memory.stat", cache_name)
        left = max(0, min(real) - max(0, (used or 0) - cache))
        origin = f"memory limit of control group {group.name}"
        yield Limit(min(real), origin), Limit(left, origin)


def _statistic(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
