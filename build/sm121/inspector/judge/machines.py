"""Is everything in an image for its CPU, and will the loader find one of each thing?"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.words import joined, listed, shown
from sm121.progress import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from sm121.artifact import Distribution
    from sm121.inspector.container_rules import ContainerRules
    from sm121.values import CudaVersion

_COMPAT = "https://github.com/vllm-project/vllm/pull/33992"
_CPUS = frozenset({"aarch64", "x86_64", "i386", "arm", "ppc64", "s390", "riscv"})
_PLATFORM = "https://docs.docker.com/build/building/multi-platform/"


def judge_machines(machines: Mapping[str, str], cpu: str, own: Collection[str]) -> Iterator[Finding]:
    """Every ELF file is for the image's CPU. `machines` maps paths to machines, `own` are paths of what matters.

    Foreign files of other packages are seldom started, and a warning.
    """
    wanted = [path for path, machine in machines.items() if machine in _CPUS]
    foreign: dict[str, list[str]] = defaultdict(list)
    for path in wanted:
        if machines[path] != cpu:
            foreign[machines[path]].append(path)
    mine = set(own)
    for machine, paths in sorted(foreign.items()):
        grave = [path for path in paths if path in mine]
        rest = [path for path in paths if path not in mine]
        for group, verdict in ((grave, Verdict.FAIL), (rest, Verdict.WARN)):
            if group:
                got = f"{plural(len(group), 'file')} for {machine} in an image for {cpu}: {listed(sorted(group), 3)}"
                advice = "Build with --platform of the target, and install wheels of its CPU."
                yield Finding("image.machine", machine, verdict, got, f"files for {cpu}", advice, _PLATFORM)
    if wanted and not foreign:
        yield Finding("image.machine", "ELF files", Verdict.PASS, f"{plural(len(wanted), 'file')}, all for {cpu}")


def judge_compat(
    loader: Mapping[str, str],
    env: Mapping[str, str],
    paths: Collection[str] | None,
    *,
    driver: CudaVersion | None,
    cuda: str,
) -> Iterator[Finding]:
    """cuda-compat in front of the driver's own libcuda, by the loader's configuration or LD_LIBRARY_PATH."""  # fmt: skip
    sources = [(name, line.strip()) for name, text in loader.items() for line in text.splitlines()]
    sources += [("LD_LIBRARY_PATH", part) for part in env.get("LD_LIBRARY_PATH", "").split(":")]
    found = [
        (name, folder)
        for name, folder in sources
        if re.search(r"(^|/)compat/?$", folder) and not folder.startswith("#")
    ]
    for name, folder in found:
        inside = folder.strip("/") + "/libcuda.so"
        # The usual folder is reached through a link (cuda -> cuda-13.0), so any compat folder counts.
        if paths is not None and not any(
            path.startswith(inside) or "/compat/libcuda.so" in path for path in paths
        ):
            got = f"names {shown(folder)}, which holds no libcuda"
            yield Finding("image.compat", shown(name), Verdict.INFO, got, source=_COMPAT)
            continue
        against = f"; the image is for CUDA {cuda}" if cuda else ""
        against += f", the driver of CUDA {driver}" if driver else ""
        got = f"puts cuda-compat ({shown(folder)}) on the loader's path, before the driver's own libcuda{against}"
        advice = (
            "Remove it where the driver is as new as the image; consumer chips and GB10 do not support it at all."
        )
        yield Finding("image.compat", shown(name), Verdict.WARN, got, "the driver's libcuda", advice, _COMPAT)
    if not found:
        yield Finding("image.compat", "loader", Verdict.PASS, "no cuda-compat folder is on the loader's path")


def driver_cuda(driver: str, rules: ContainerRules) -> CudaVersion | None:
    """The CUDA version of a driver such as 580.95, None if its branch is not known."""
    return rules.drivers.get(driver.partition(".")[0])


def judge_environments(
    distributions: Sequence[Distribution], watched: Callable[[str], bool], paths: Collection[str]
) -> Iterator[Finding]:
    """Several Pythons: where the projects of interest stand, and whether each place has its interpreter."""
    sites: dict[str, list[Distribution]] = defaultdict(list)
    for item in distributions:
        if not item.vendored:
            sites[item.site].append(item)
    places: dict[str, dict[str, str]] = defaultdict(dict)
    for site, items in sites.items():
        for item in items:
            if watched(item.key):
                places[item.key][site] = item.version
    for name, found in sorted(places.items()):
        if len(found) > 1:
            said = joined([f"{shown(version)} in {shown(site)}" for site, version in sorted(found.items())])
            same = len(set(found.values())) == 1
            got = f"stands in {len(found)} environments: {said}; which one runs depends on PATH"
            verdict = Verdict.WARN if same else Verdict.FAIL
            yield Finding("image.environment", name, verdict, got, "one environment", "Keep one environment.")
    used = sorted({site for found in places.values() for site in found})
    if len(used) > 1:
        got = f"the projects of interest are spread over {listed(used)}"
        yield Finding("image.environment", "environments", Verdict.WARN, got, "one environment")
    elif used:
        got = f"all that matters is in {shown(used[0])}"
        rest = sorted(set(sites) - set(used))
        got += f"; other places: {listed(rest, 3)}" if rest else ""
        yield Finding("image.environment", "environments", Verdict.PASS, got)
    programs = {path.rpartition("/")[2] for path in paths if "/bin/" in f"/{path}"}
    for site in used:
        python = next((item.python for item in sites[site]), "")
        if python.count(".") == 1 and f"python{python}" not in programs:
            got = f"is for Python {python}, and no python{python} is in the image"
            yield Finding("image.environment", shown(site), Verdict.FAIL, got, "its interpreter")
