"""What an architecture list becomes with a given release and toolkit, before anything runs.

Everything here is pure: rules are dated data (vllm.toml, flashinfer.toml), results are values.
"""

from sm121.arch_lists.guards import judge_source
from sm121.arch_lists.intersect import Intersection, Matching, loose_intersection
from sm121.arch_lists.judge import judge_arch_list
from sm121.arch_lists.parse import ArchList, parse_arch_list
from sm121.arch_lists.targets import GroupTargets, Targets, effective, expected_images

__all__ = [
    "ArchList",
    "GroupTargets",
    "Intersection",
    "Matching",
    "Targets",
    "effective",
    "expected_images",
    "judge_arch_list",
    "judge_source",
    "loose_intersection",
    "parse_arch_list",
]
