"""Names of a checkpoint's modules, out of `model.safetensors.index.json`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from sm121.audit.loose import Loose, load_json
from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path


class Role(StrEnum):
    """A kind of linear layer, as far as kernels care."""

    ATTENTION = "attention projections"
    DENSE = "dense MLP"
    EXPERTS = "MoE experts"
    SHARED = "shared expert"
    MAMBA = "linear-attention projections"
    MTP = "MTP head"
    HEAD = "lm_head"


_ROLES = (
    (Role.MTP, re.compile(r"(^|\.)mtp\.|\.nextn\.|eagle")),
    (Role.SHARED, re.compile(r"\.shared_experts?\.")),
    (Role.EXPERTS, re.compile(r"\.experts(\.|$)")),
    (Role.ATTENTION, re.compile(r"(self_attn|attention|attn|mixer)\.(q|k|v|qkv|o|kv_a|kv_b|q_a|q_b|c_attn)\w*$")),
    (Role.MAMBA, re.compile(r"(linear_attn|mamba|mixer)\.(in|out|x|dt)_proj\w*$")),
    (Role.DENSE, re.compile(r"(mlp|feed_forward|mixer|ffn)\.(gate|up|down|gate_up|w[123]|fc[12])(_proj)?$")),
)
# What quantizers store beside, or instead of, a layer's `weight`.
_QUANTIZED = {
    "weight_packed", "weight_scale", "weight_scale_inv", "weight_scale_2", "weight_global_scale", "qweight",
    "weight_zero_point", "qzeros", "scales", "blocks",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Modules:
    """Linear modules by name, with the kinds of tensors that each has. Empty where there is no index."""

    tensors: dict[str, frozenset[str]] = field(default_factory=dict)
    total_bytes: int | None = None
    """What the index says of the size of all tensors."""

    def of(self, role: Role) -> list[str]:
        """Names of the modules of one role that hold weights; norms and routers are not among them."""
        return [name for name in self.tensors if _role(name) is role]

    def quantized(self, name: str) -> bool | None:
        """Whether the tensors of a module (or of one whose name ends so) are those of a quantized one."""
        found = [kinds for module, kinds in self.tensors.items() if module.rsplit(".", 1)[-1] == name]
        if not found:
            return None
        return any(kinds & _QUANTIZED for kinds in found)


def _role(name: str) -> Role | None:
    if name.rsplit(".", 1)[-1] == "lm_head":
        return Role.HEAD
    return next((role for role, pattern in _ROLES if pattern.search(name)), None)


def read_modules(folder: Path, problems: list[str]) -> Modules:
    """Read the index beside a configuration; without one the answer is empty."""
    path = folder / "model.safetensors.index.json"
    if not path.is_file():
        return Modules()
    try:
        index = Loose.of(load_json(path), path.name, problems)
    except ArtifactError as error:
        problems.extend(error.problems)
        return Modules()
    names = index.table("weight_map")
    found: dict[str, set[str]] = {}
    for tensor in names.members if names else ():
        module, dot, kind = tensor.rpartition(".")
        if dot and ("weight" in kind or "scale" in kind or kind in _QUANTIZED):
            found.setdefault(module, set()).add(kind)
    about = index.table("metadata")
    total = about.count("total_size") if about else None
    return Modules({module: frozenset(kinds) for module, kinds in found.items()}, total)


_SMALLEST = 1024
"""Bytes: a smaller file is a pointer to one that was not downloaded."""


def stored_bytes(folder: Path) -> int | None:
    """The size of the weight files in a folder, None if there are none or some were not downloaded."""
    try:
        sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    except OSError:
        return None
    return sum(sizes) if sizes and min(sizes) >= _SMALLEST else None
