"""The build host: what it offers, and whether its tools are the planned ones."""

from sm121.resources.jobs import JobCost, Jobs, default_reserve, job_count, plan_jobs
from sm121.resources.machine import GIB, Machine, judge_disk, read_machine

__all__ = [
    "GIB",
    "JobCost",
    "Jobs",
    "Machine",
    "default_reserve",
    "job_count",
    "judge_disk",
    "plan_jobs",
    "read_machine",
]
