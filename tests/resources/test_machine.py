from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm121.errors import PlanError
from sm121.findings import Verdict, overall
from sm121.resources import (
    GIB,
    HEAVIEST,
    LIGHT,
    Machine,
    compile_jobs,
    job_count,
    judge_disk,
    read_machine,
)

if TYPE_CHECKING:
    from pathlib import Path

MEMINFO = "MemTotal: 125829120 kB\nMemFree: 1 kB\nMemAvailable: 104857600 kB\n"  # 120 GiB, 100 GiB available


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_limits_the_machine_itself_counts(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": ""})
    machine = read_machine(root, affinity=20)
    assert (machine.cpus, machine.memory_total, machine.memory_available) == (20, 120 * GIB, 100 * GIB)
    assert machine.memory_origin == "MemAvailable"


def test_version_2_limits_of_a_parent_group_count(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/memory.max": f"{32 * GIB}\n",
            "sys/fs/cgroup/job/memory.high": "max\n",
            "sys/fs/cgroup/job/memory.current": f"{12 * GIB}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {2 * GIB}\n",
            "sys/fs/cgroup/job/cpu.max": "350000 100000\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
        },
    )
    machine = read_machine(root, affinity=20)
    assert machine.cpus == 3
    assert machine.cpu_origin == "processor quota of control group /job"
    assert machine.memory_total == 32 * GIB
    assert machine.memory_available == 22 * GIB  # clean page cache is given back on demand
    assert machine.memory_origin == "memory limit of control group /job"


def test_version_1_limits_count(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{8 * GIB}\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 0\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
        },
    )
    machine = read_machine(root, affinity=4)
    assert machine.cpus == 1  # half a processor is still one job
    assert machine.memory_available == 7 * GIB


def test_a_group_outside_the_namespace_falls_back_to_the_mount(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/../other\n",
            "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.current": "0\n",
            "sys/fs/other/memory.max": "1\n",
        },
    )
    assert read_machine(root, affinity=4).memory_available == 4 * GIB


@pytest.mark.parametrize("text", ["", "MemTotal: many kB\n", "garbage\n"])
def test_unreadable_memory_is_unknown_and_not_zero(tmp_path: Path, text: str) -> None:
    machine = read_machine(write(tmp_path, {"proc/meminfo": text}), affinity=8)
    assert machine.memory_available is None
    assert machine.memory_for_builds() == 0


def test_this_machine_can_be_read() -> None:
    machine = read_machine()
    assert machine.cpus >= 1
    assert machine.memory_available is None or machine.memory_available > 0


@pytest.mark.parametrize(
    ("cpus", "memory", "expected"),
    [(20, 121, 13), (16, 61, 5), (8, 8, 1), (1, 1000, 1), (64, 16, 1), (64, 24, 1), (64, 32, 2), (4, 31.99, 1)],
)
def test_job_count(cpus: int, memory: float, expected: int) -> None:
    assert job_count(cpus=cpus, memory=memory, reserve=16, per_job=8) == expected


def test_heavy_jobs_leave_memory_for_every_processor() -> None:
    jobs = compile_jobs(cores=20, memory=105 * GIB)
    assert (jobs.heavy, jobs.total) == (10, 20)  # 10 x 9 + 10 x 1; 11 heavy ones would leave 3 processors idle
    assert jobs.heavy * HEAVIEST + (jobs.total - jobs.heavy) * LIGHT <= 105 * GIB
    assert overall(jobs.findings) is Verdict.INFO


@pytest.mark.parametrize(("share", "heavy", "total"), [(0.02, 1, 56), (0.3, 5, 24), (0.95, 7, 8)])
def test_where_memory_is_short_the_share_of_heavy_files_decides(share: float, heavy: int, total: int) -> None:
    jobs = compile_jobs(cores=128, memory=64 * GIB, heavy_share=share)
    assert (jobs.heavy, jobs.total) == (heavy, total)
    assert jobs.heavy * HEAVIEST + (jobs.total - jobs.heavy) * LIGHT <= 64 * GIB


def test_a_machine_that_tells_no_processors_has_one() -> None:
    jobs = compile_jobs(cores=0, memory=64 * GIB)
    assert (jobs.heavy, jobs.total) == (1, 1)


def test_all_processors_work_when_memory_allows() -> None:
    jobs = compile_jobs(cores=4, memory=256 * GIB)
    assert (jobs.heavy, jobs.total) == (4, 4)


def test_a_lighter_heaviest_file_lets_more_run() -> None:
    assert compile_jobs(cores=8, memory=24 * GIB, heaviest=4 * GIB).heavy == 5


@pytest.mark.parametrize("memory", [0, 6 * GIB])
def test_a_small_machine_is_warned_and_still_builds(memory: int) -> None:
    jobs = compile_jobs(cores=8, memory=memory)
    assert (jobs.heavy, jobs.total) == (1, 1)
    assert overall(jobs.findings) is Verdict.WARN
    assert "9.0 GiB" in jobs.findings[0].message


def test_a_wish_beyond_memory_is_granted_with_a_warning() -> None:
    jobs = compile_jobs(cores=20, memory=22 * GIB, wanted=20)
    assert (jobs.total, jobs.heavy) == (20, 2)
    assert overall(jobs.findings) is Verdict.WARN
    assert "20 jobs were asked for, 6 fit" in jobs.findings[0].message


def test_a_modest_wish_is_no_matter() -> None:
    jobs = compile_jobs(cores=20, memory=105 * GIB, wanted=2)
    assert (jobs.total, jobs.heavy) == (2, 2)
    assert overall(jobs.findings) is Verdict.INFO


@pytest.mark.parametrize("wanted", [0, -3])
def test_no_job_at_all_is_refused(wanted: int) -> None:
    with pytest.raises(PlanError, match="at least one job"):
        compile_jobs(cores=4, memory=GIB, wanted=wanted)


def test_the_reserve_shrinks_with_the_machine() -> None:
    assert Machine(20, 128 * GIB, 100 * GIB).memory_for_builds() == 84 * GIB
    assert Machine(20, 24 * GIB, 20 * GIB).memory_for_builds() == 17 * GIB
    assert Machine(20, 24 * GIB, 2 * GIB).memory_for_builds() == 0
    assert Machine(20, 24 * GIB, 20 * GIB).memory_for_builds(reserve=0) == 20 * GIB


def test_disk_space_of_folders_on_one_file_system_is_added(tmp_path: Path) -> None:
    small = judge_disk({tmp_path / "work" / "deep": 1, tmp_path / "dist": 1})
    assert [finding.verdict for finding in small] == [Verdict.PASS]
    huge = judge_disk({tmp_path / "work": 1 << 61, tmp_path / "dist": 1 << 61})
    assert [finding.verdict for finding in huge] == [Verdict.FAIL]
    assert "work" in huge[0].subject
    assert "dist" in huge[0].subject
