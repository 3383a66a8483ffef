"""Facts about this machine, and what it lacks for a plan: found before anything is downloaded."""

from __future__ import annotations

import os
import platform
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from sm121 import process
from sm121.errors import PreflightError
from sm121.findings import Verdict
from sm121.plan.model import Cpu, Host
from sm121.plan.steps import COMPILERS
from sm121.resources import judge_disk, read_machine
from sm121.toolchain.examine import examine, installed_toolkits
from sm121.toolchain.from_image import require_fixed
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sm121.plan.model import Plan
    from sm121.progress import Progress


@dataclass(frozen=True, slots=True)
class Lack:
    """Something missing, and the Debian or Ubuntu package that brings it."""

    what: str
    package: str


def read_host(target_cpu: Cpu) -> Host:
    """Read processor, memory, Python and the C++ compiler for `target_cpu`. Raises PreflightError on other systems."""
    machine = platform.machine().replace("arm64", "aarch64").replace("amd64", "x86_64")
    if platform.system() != "Linux" or machine not in get_args(Cpu):
        raise PreflightError(
            f"builds run on Linux on x86_64 or aarch64; this is {platform.system()} on {platform.machine()}.",
            do="use such a machine; `sm121 inspect` runs anywhere.",
        )
    compiler = COMPILERS.get((machine, target_cpu), "g++")
    described = ""
    if process.find(compiler, path=process.SYSTEM_PATH):
        done = process.run([compiler, "-dumpfullversion", "-dumpversion"])
        described = f"{compiler} {done.stdout.strip()}"
    return Host(
        cpu=cast("Cpu", machine), machine=read_machine(), python=platform.python_version(), compiler=described
    )


def lacks(host: Host, target_cpu: Cpu) -> list[Lack]:
    """What the machine lacks to build for `target_cpu`, apart from memory and disk."""
    compiler = COMPILERS[host.cpu, target_cpu]
    found = []
    if not host.compiler:
        package = compiler if compiler == "g++" else "g++-" + compiler.removesuffix("-g++")
        found.append(Lack(f"the C++ compiler {compiler}", package))
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        found.append(Lack(f"Python.h of Python {host.python}", "python3-dev"))
    if host.cpu != target_cpu and not loader_emulator(target_cpu):
        found.append(Lack(f"qemu for {target_cpu}, which runs the target's dynamic loader", "qemu-user-static"))
    if not process.find("git", path=process.SYSTEM_PATH):
        found.append(Lack("git, which applies patches", "git"))
    return found


def loader_emulator(cpu: str) -> str | None:
    """The user-mode emulator for `cpu`, if one is installed."""
    for name in (f"qemu-{cpu}-static", f"qemu-{cpu}"):
        if found := process.find(name, path=process.SYSTEM_PATH):
            return found
    return None


def ensure_packages(host: Host, target_cpu: Cpu, progress: Progress, *, install: bool) -> Host:
    """Make sure that nothing is missing; with `install`, install it where that is possible. Returns the facts anew.

    Raises PreflightError naming all that is missing and the command that installs it.
    """
    missing = lacks(host, target_cpu)
    if not missing:
        return host
    packages = sorted({lack.package for lack in missing})
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if install:
        _install(packages, command, progress)
        host = read_host(target_cpu)
        missing = lacks(host, target_cpu)
    if missing:
        typed = process.quoted(command if os.geteuid() == 0 else ["sudo", *command])
        raise PreflightError(
            [f"{lack.what} is missing." for lack in missing],
            do=f"run `{typed}`" + ("." if install else ", or the same command with --install-missing."),
        )
    return host


def ensure_brought(plans: Sequence[Plan]) -> None:
    """Make sure that what only the user can bring is there and of the planned release, before anything is fetched.

    Raises PreflightError naming all that is missing and how to come by it, ToolchainError for a toolkit of another
    release, or an incomplete one.
    """
    wanted = {each.option: (plan, each) for plan in reversed(plans) for each in plan.brought}
    problems, steps = [], []
    for option, (plan, each) in sorted(wanted.items()):
        if each.path:
            continue
        problems.append(
            f"line {plan.line} needs {each.what}, which no package index has, and {option} names none."
        )
        release = CudaVersion.parse(plan.compiler).release
        here = installed_toolkits() if option == "--cuda-home" else []
        right = next((found for found in here if found.nvcc and found.nvcc.release == release), None)
        if right:
            steps.append(f"the toolkit is on this machine: give --cuda-home {right.home}")
            continue
        if here:
            problems.append(f"on this machine are toolkits of other releases: {', '.join(map(str, here))}.")
        steps.append(f"{each.how}, then give {option} DIR" + (f", or {each.instead}" if each.instead else ""))
    if problems:
        raise PreflightError(problems, do=f"{'; '.join(steps)}. `sm121 lines` shows what every line needs.")
    for plan, each in wanted.values():
        if each.option == "--cuda-image":
            require_fixed(each.path)
        elif each.option == "--cuda-home":
            release = CudaVersion.parse(plan.compiler)
            advice = f"{each.how}, then give --cuda-home DIR, or {each.instead}."
            examine(Path(each.path), release, plan.target_cpu, advice=advice)


def ensure_disk(plans: Iterable[Plan], work: Path, dist: Path) -> None:
    """Raise PreflightError if the folders have not the room that the plans need together."""
    listed = list(plans)
    result = sum(plan.result for plan in listed)
    findings = judge_disk({work: sum(plan.disk for plan in listed) - result, dist: result})
    if problems := [f.message for f in findings if f.verdict is Verdict.FAIL]:
        raise PreflightError(problems, do="free space, or name other folders with --work and --dist.")


def _install(packages: list[str], command: list[str], progress: Progress) -> None:
    if not re.search(r"^ID(_LIKE)?=.*(debian|ubuntu)", _os_release(), re.MULTILINE):
        raise PreflightError(
            f"--install-missing knows Debian and Ubuntu; missing are what their packages {', '.join(packages)} bring.",
            do="install the counterparts with this system's package manager.",
        )
    prefix: list[str] = []
    if os.geteuid() != 0:
        if not process.find("sudo"):
            raise PreflightError(
                "installing packages needs root, and there is no sudo.",
                do=f"run `{process.quoted(command)}` as root.",
            )
        prefix = ["sudo", "-n"]
    env = process.environment({"DEBIAN_FRONTEND": "noninteractive"})
    with progress.step(f"install {', '.join(packages)}"):
        process.run([*prefix, "apt-get", "update", "-qq"], env=env, check=False)
        process.run([*prefix, *command], env=env)


def _os_release() -> str:
    try:
        return Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return ""
