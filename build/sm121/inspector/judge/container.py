"""All rules for images, applied to what was read of one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.container_rules import container_rules
from sm121.inspector.judge.leftovers import judge_caches, judge_files, judge_secrets, judge_waste, judge_wheels
from sm121.inspector.judge.line import cuda_of
from sm121.inspector.judge.machines import judge_compat, judge_environments, judge_machines
from sm121.inspector.judge.naming import judge_cuda_claims, judge_labels, judge_reference
from sm121.inspector.judge.tools import (
    judge_cuda_home,
    judge_flashinfer,
    judge_gate,
    judge_headers,
    judge_ptxas,
    nvcc_of_base,
)
from sm121.inspector.words import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sm121.artifact import Distribution
    from sm121.inspector.container import Container
    from sm121.target import Capability
    from sm121.values import CudaVersion

_MODULE = re.compile(r"/jit_cache/([^/]+)/\1\.so$")
WATCHED = ("vllm", "torch", "triton", "flashinfer-python", "flashinfer-jit-cache", "flashinfer-cubin")
"""Projects that must stand in one environment."""


def watched(name: str) -> bool:
    """Whether a project is one of these: `flashinfer-jit-cache-sm121a` goes with `flashinfer-jit-cache`."""
    return name in WATCHED or name.startswith("flashinfer-jit-cache-")


def judge_container(
    container: Container,
    installed: Mapping[str, str],
    *,
    capability: Capability,
    python: str = "",
    driver: CudaVersion | None = None,
    torch: str = "",
    paths: Collection[str] | None = None,
) -> Iterator[Finding]:
    """What can be said without looking into files. `installed` maps normalised names to versions.

    `paths` are all regular files, None if they are not known; `python` is that of torch's environment.
    """
    rules = container_rules()
    env, labels = container.env, container.labels
    triton = "triton" in installed
    torch = torch or installed.get("torch", "")
    yield from judge_reference(container.reference, pinned=container.pinned, digest=container.digest)
    yield from judge_cuda_claims(container.reference, env, torch, labels)
    yield from judge_labels(labels, env, {name: text for name, text in installed.items() if watched(name)})
    if container.ptxas is not None and (triton or container.ptxas):
        yield from judge_ptxas(container.ptxas, env, capability, rules, triton=triton)
    nvcc = container.nvcc if container.nvcc is not None else nvcc_of_base(container.base, rules)
    if "flashinfer-python" in installed:
        if nvcc is None:
            got = "whether nvcc is in the image is not known"
            yield Finding(
                "image.flashinfer", "flashinfer-python", Verdict.UNKNOWN, got, "prebuilt modules or an nvcc"
            )
        else:
            modules = None if paths is None else sum(1 for path in paths if _MODULE.search(path))
            yield from judge_flashinfer(installed, nvcc, capability, rules, modules)
            yield from judge_gate(installed, nvcc, env)
    if container.headers is not None:
        yield from judge_headers(python, container.headers, compiler=container.compiler, triton=triton)
    yield from judge_cuda_home(env, container.homes, torch)
    if container.loader is not None or "LD_LIBRARY_PATH" in env:
        cuda = env.get("CUDA_VERSION", "") or ".".join(map(str, cuda_of(torch) or ()))
        yield from judge_compat(container.loader or {}, env, paths, driver=driver, cuda=cuda)
    if env or labels or container.history:
        yield from judge_secrets(env, labels, container.history, rules)
    if paths is not None:
        yield from judge_files(paths, container.hidden, rules)
        yield from judge_caches(paths, rules)
        yield from judge_wheels(paths, container.hidden, rules)
    if container.hidden is not None:
        yield from judge_waste(container.hidden)
    yield from _run(container)


def judge_contents(
    container: Container,
    distributions: Sequence[Distribution],
    machines: Mapping[str, str],
    paths: Collection[str],
) -> Iterator[Finding]:
    """What needs the files: one CPU, one environment. `machines` maps ELF files to their machine."""
    own = {
        path for item in distributions if watched(item.key) for row in item.rows if (path := item.where(row.path))
    }
    own |= {path for path in machines if path.startswith(("usr/bin/", "bin/", "usr/local/bin/"))}
    if container.cpu:
        yield from judge_machines(machines, container.cpu, own)
    yield from judge_environments(distributions, watched, paths)


def _run(container: Container) -> Iterator[Finding]:
    """How the image starts, for those who did not make it."""
    if container.user is None:
        return
    user = container.user or "root"
    root = user.partition(":")[0] in {"root", "0"}
    start = shown(" ".join(container.entrypoint or ())) or "nothing by itself"
    got = f"runs as {shown(user)} and starts {start}"
    yield Finding("image.run", "configuration", Verdict.INFO if root else Verdict.PASS, got)
