"""The build host: what it offers, and whether its tools are the planned ones."""

from sm121.resources.jobs import HEAVIEST, LIGHT, Jobs, compile_jobs, job_count
from sm121.resources.machine import GIB, RESERVE, Machine, judge_disk, read_machine

__all__ = [
    "GIB",
    "HEAVIEST",
    "LIGHT",
    "RESERVE",
    "Jobs",
    "Machine",
    "compile_jobs",
    "job_count",
    "judge_disk",
    "read_machine",
]
