"""The build host: what it offers, and whether its tools and sources are the planned ones."""

from sm121.resources.caches import judge_cache
from sm121.resources.folders import empty_folders, judge_cutlass, judge_source_folders, judge_submodules
from sm121.resources.jobs import HEAVIEST, LIGHT, Jobs, compile_jobs, job_count
from sm121.resources.machine import GIB, RESERVE, Machine, judge_disk, read_machine
from sm121.resources.nvcc import judge_nvcc_flags, judge_toolkit

__all__ = [
    "GIB",
    "HEAVIEST",
    "LIGHT",
    "RESERVE",
    "Jobs",
    "Machine",
    "compile_jobs",
    "empty_folders",
    "job_count",
    "judge_cache",
    "judge_cutlass",
    "judge_disk",
    "judge_nvcc_flags",
    "judge_source_folders",
    "judge_submodules",
    "judge_toolkit",
    "read_machine",
]
