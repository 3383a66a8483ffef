"""Can programs of another CPU run where an image is built?

The kernel of the engine's machine decides: it must have an interpreter registered for that CPU's programs, opened at
registration (flag F), so that it is there inside of containers too.
Format: https://docs.kernel.org/admin-guide/binfmt-misc.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sm121.artifact import Platform

BINFMT = Path("/proc/sys/fs/binfmt_misc")
CPUS = {"arm64": "aarch64", "amd64": "x86_64"}
"""CPUs as platforms name them -> as kernels do."""
_MACHINES = {"b700": "aarch64", "3e00": "x86_64"}
_ELF = "7f454c46"
_GUIDE = "https://docs.docker.com/build/building/multi-platform/"
_SLOW = "https://github.com/docker/buildx/issues/3170"


class Emulation(StrEnum):
    """What the machine does with programs of the target's CPU."""

    NATIVE = "native"
    REGISTERED = "registered"
    OUTSIDE = "registered, but not for containers (no flag F)"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Registration:
    """An interpreter that the kernel starts for programs of `cpu` ("" for other kinds of files)."""

    name: str
    cpu: str
    enabled: bool
    fixed: bool
    """Opened at registration: flag F."""

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """Read an entry as the kernel shows it."""
        flags = re.search(r"^flags: *(\w*)", text, re.MULTILINE)
        magic = re.search(r"^magic ([0-9a-f]+)", text, re.MULTILINE)
        pattern = magic[1] if magic else ""
        machine = pattern[36:40] if pattern.startswith(_ELF) else ""
        return cls(
            name, _MACHINES.get(machine, ""), text.startswith("enabled"), "F" in (flags[1] if flags else "")
        )


def registrations(folder: Path = BINFMT) -> tuple[Registration, ...]:
    """What this machine's kernel has registered; empty if it does not tell."""
    try:
        paths = [path for path in sorted(folder.iterdir()) if path.name not in {"register", "status"}]
        texts = [(path.name, path.read_text(encoding="ascii", errors="replace")) for path in paths]
    except OSError:
        return ()
    return tuple(Registration.parse(name, text) for name, text in texts)


def emulation(host: str, target: str, known: Iterable[Registration]) -> Emulation:
    """What `host` (a CPU) does with programs for `target`, by what its kernel has registered."""
    if host == target:
        return Emulation.NATIVE
    fitting = [each for each in known if each.cpu == target and each.enabled]
    if any(each.fixed for each in fitting):
        return Emulation.REGISTERED
    return Emulation.OUTSIDE if fitting else Emulation.ABSENT


def judge_emulation(host: str, platform: Platform, builder: str, state: Emulation | None = None) -> Finding:
    """Whether `builder` can build for `platform` on `host`; without a `state`, nothing is registered."""
    target = CPUS.get(platform.architecture, platform.architecture)
    subject = f"build for {platform}"
    if builder != "docker":
        return Finding(
            "image.emulation", subject, Verdict.PASS, f"the builder {builder} runs no program of {target}"
        )
    if host == target:
        return Finding("image.emulation", subject, Verdict.PASS, f"{host} is native")
    state = state or Emulation.ABSENT
    native = f"build on a native {target} machine (DOCKER_HOST, or a buildx builder there), or with --builder oci"
    if state is Emulation.REGISTERED:
        got = f"programs for {target} are emulated by qemu on {host}: correct, and some ten times slower than native"
        return Finding("image.emulation", subject, Verdict.WARN, got, "", f"For speed, {native}.", _SLOW)
    if state is Emulation.UNKNOWN:
        got = f"whether {host} runs programs for {target} is not known"
        return Finding(
            "image.emulation", subject, Verdict.UNKNOWN, got, "a native machine or qemu", source=_GUIDE
        )
    got = f"{host} cannot run programs for {target}: emulation by qemu is {state}"
    advice = f"Install qemu-user-static and binfmt-support (Debian, Ubuntu; registered with flag F), or {native}."
    return Finding("image.emulation", subject, Verdict.FAIL, got, "a native machine, or qemu", advice, _GUIDE)
