"""Do the pinned versions fit together? Asked before anything is compiled, answered with both owners of a conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.pins.cuda_parts import toolkit_parts
from sm121.pins.environment import known_bad, known_collisions
from sm121.pins.flashinfer_set import flashinfer_set
from sm121.pins.torch_family import torch_build, torch_family

if TYPE_CHECKING:
    from sm121.findings import Finding
    from sm121.pins.environment import Environment


def judge(environment: Environment) -> list[Finding]:
    """Everything that versions alone tell about an environment. Pure."""
    return [
        finding
        for check in (torch_build, torch_family, flashinfer_set, toolkit_parts, known_bad, known_collisions)
        for finding in check(environment)
    ]
