"""Exact versions with hashes: what a line is made of, and whether its parts fit together.

`load` reads the folder `pins/` of the repository; nothing without a hash gets in. `Pins.line` and `Pins.vllm`
give the views that a build needs.
"""

from sm121.pins.loading import load
from sm121.pins.model import (
    Component,
    Cpu,
    FilePin,
    Line,
    Origin,
    Package,
    Pins,
    Release,
    Role,
    ToolchainKind,
    Toolkit,
)

__all__ = [
    "Component",
    "Cpu",
    "FilePin",
    "Line",
    "Origin",
    "Package",
    "Pins",
    "Release",
    "Role",
    "ToolchainKind",
    "Toolkit",
    "load",
]
