"""Can what an image compiles at run time be compiled there? ptxas, nvcc, headers, CUDA_HOME."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.findings import Finding, Verdict
from sm121.inspector.judge.line import cuda_of
from sm121.inspector.words import joined, listed, shown
from sm121.values import CudaVersion, parsed_version, public_version

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from sm121.inspector.container_rules import ContainerRules
    from sm121.target import Capability

_OLD_PTXAS = "https://github.com/triton-lang/triton/issues/8539"
_NO_MODULES = "https://github.com/flashinfer-ai/flashinfer/issues/4110"
_NO_HEADERS = "https://github.com/vllm-project/vllm/issues/27890"
_NO_HOME = "https://github.com/flashinfer-ai/flashinfer/issues/1781"
_CACHE = "flashinfer-jit-cache"
_SPLIT = Version("0.7")
_GATE = "VLLM_HAS_FLASHINFER_CUBIN"
_GATE_SOURCE = "https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/utils/flashinfer.py"
_PREBUILT = "Install flashinfer-jit-cache (the prebuilt modules) of the same version"


def judge_ptxas(
    ptxas: Mapping[str, str],
    env: Mapping[str, str],
    capability: Capability,
    rules: ContainerRules,
    *,
    triton: bool = True,
) -> Iterator[Finding]:
    """The ptxas that Triton takes for the capability, and the others; `ptxas` maps paths to versions.

    Triton takes `ptxas-blackwell` (or TRITON_PTXAS_BLACKWELL_PATH) from compute capability 10.0 on where it brings
    one, else `ptxas` (or TRITON_PTXAS_PATH).
    """  # fmt: skip
    own = {match[1]: path for path in sorted(ptxas) if (match := rules.triton.search(path))}
    needed = rules.ptxas.get(str(capability))
    blackwell = capability.major >= 10 and "ptxas-blackwell" in own
    variable = "TRITON_PTXAS_BLACKWELL_PATH" if blackwell else "TRITON_PTXAS_PATH"
    path = env.get(variable, "") or own.get("ptxas-blackwell" if blackwell else "ptxas", "")
    if path:
        where = f"{variable}={path}" if env.get(variable) else path
        yield _of_triton(shown(where), ptxas.get(path), needed, capability)
    elif triton and not own:
        got = "Triton is here, and no ptxas of its own"
        wanted = "triton/backends/nvidia/bin/ptxas, or TRITON_PTXAS_PATH"
        yield Finding("image.ptxas", "Triton", Verdict.WARN, got, wanted, source=_OLD_PTXAS)
    others = sorted(other for other in ptxas if other != path and other.lstrip("/") != path.lstrip("/"))
    for other in others:
        got = f"is ptxas {ptxas[other] or 'of a version that its bytes do not name'}; Triton does not take it"
        yield Finding("image.ptxas", shown(other), Verdict.INFO, got)


def _of_triton(where: str, version: str | None, needed: CudaVersion | None, capability: Capability) -> Finding:
    wanted = f"ptxas of CUDA {needed} or later" if needed else f"a ptxas that knows {capability}"
    advice = (
        "Point TRITON_PTXAS_PATH at a newer ptxas (with a ptxas-blackwell beside it: TRITON_PTXAS_BLACKWELL_PATH), "
        "or install a Triton that brings one."
    )
    if version is None:
        got = "is what Triton would start, and it is not in the image"
        return Finding("image.ptxas", where, Verdict.FAIL, got, wanted, advice, _OLD_PTXAS)
    found = _version(version)
    if found is None or needed is None:
        got = "is Triton's, and its bytes name no version" if found is None else f"is Triton's, of CUDA {found}"
        return Finding("image.ptxas", where, Verdict.UNKNOWN, got, wanted, source=_OLD_PTXAS)
    if found < needed:
        got = f"is Triton's, of CUDA {found}, which knows no sm_{capability.major}{capability.minor}"
        return Finding("image.ptxas", where, Verdict.FAIL, got, wanted, advice, _OLD_PTXAS)
    return Finding(
        "image.ptxas", where, Verdict.PASS, f"is Triton's, of CUDA {found}, which makes code for {capability}"
    )


def judge_flashinfer(
    installed: Mapping[str, str],
    nvcc: Mapping[str, str],
    capability: Capability,
    rules: ContainerRules,
    modules: int | None = None,
) -> Iterator[Finding]:
    """Whether FlashInfer has its modules prebuilt, or can compile them; `nvcc` maps paths to versions.

    Versions are compared without their local part: `0.7.2+cu130` is the cache of 0.7.2. `modules` is the number of
    prebuilt libraries that were seen, None if nobody looked.
    """  # fmt: skip
    version = installed.get("flashinfer-python", "")
    caches = {name: text for name, text in installed.items() if name.startswith(_CACHE)}
    fitting = {name for name, text in caches.items() if public_version(text) == public_version(version)}
    for name in sorted(caches.keys() - fitting):
        # Before 0.7 the import fails; since then the cache is left aside, and modules are compiled.
        verdict = Verdict.WARN if modules_are_split(version) else Verdict.FAIL
        got = f"{name} {shown(caches[name])} stands beside flashinfer-python {shown(version)}, which does not take it"
        yield Finding("image.flashinfer", name, verdict, got, "one version of both", f"{_PREBUILT}.", _NO_MODULES)
    subject = f"flashinfer-python {shown(version)}"
    lack = ""
    if not fitting or (modules_are_split(version) and _CACHE not in fitting):
        lack = f"no {_CACHE}"
    elif modules == 0:
        lack = f"{', '.join(sorted(fitting))}, and no module in it"
    if not lack:
        got = f"finds its modules prebuilt in {joined(sorted(fitting))}"
        yield Finding("image.flashinfer", subject, Verdict.PASS, got)
        return
    needed = rules.ptxas.get(str(capability))
    usable = [path for path, text in sorted(nvcc.items()) if _makes(text, needed)]
    if usable:
        got = (
            f"has no prebuilt modules ({lack}): it compiles them (JIT) with {listed(usable, 2)} at the first start, for "
            "many minutes and with many gigabytes of memory, in every new container"
        )
        yield Finding(
            "image.flashinfer", subject, Verdict.WARN, got, "prebuilt modules", f"{_PREBUILT}.", _NO_MODULES
        )
        return
    if nvcc:
        old = joined([f"{path} {text}" for path, text in sorted(nvcc.items())])
        got = f"has no prebuilt modules ({lack}), and nvcc is too old for {capability}: {old}"
    else:
        got = f"has no prebuilt modules ({lack}), and there is no nvcc to compile them"
    yield Finding(
        "image.flashinfer", subject, Verdict.FAIL, got, "prebuilt modules or an nvcc",
        f"{_PREBUILT}, or a CUDA toolkit with nvcc.", _NO_MODULES,
    )  # fmt: skip


def judge_gate(
    installed: Mapping[str, str], nvcc: Mapping[str, str], env: Mapping[str, str]
) -> Iterator[Finding]:
    """Whether vLLM uses FlashInfer at all: it wants flashinfer-cubin, a variable, or an nvcc that it finds."""
    if not {"vllm", "flashinfer-python"} <= installed.keys():
        return
    homes = [env[name] for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    folders = {*env.get("PATH", "").split(":"), *(f"{home}/bin" for home in homes), "/usr/local/cuda/bin"}
    found = [
        path for path in nvcc if f"/{posixpath.dirname(path).lstrip('/')}" in folders or "usr/local/cuda" in path
    ]
    if "flashinfer-cubin" in installed or env.get(_GATE) == "1" or found:
        yield Finding("image.flashinfer-used", "vLLM", Verdict.PASS, "uses FlashInfer")
        return
    got = f"leaves all of FlashInfer off: no flashinfer-cubin, no nvcc where it looks, and {_GATE} is not 1"
    advice = f"Set {_GATE}=1 where the modules are prebuilt, or point CUDA_HOME at a toolkit."
    yield Finding("image.flashinfer-used", "vLLM", Verdict.WARN, got, "FlashInfer in use", advice, _GATE_SOURCE)


def modules_are_split(version: str) -> bool:
    """Whether modules lie in a package for each target and a small one finds them: from 0.7 on."""
    known = parsed_version(version)
    return known is not None and known >= _SPLIT


def nvcc_of_base(base: str, rules: ContainerRules) -> dict[str, str] | None:
    """What the name of a CUDA base image says of nvcc: path to version, {} for none; None if it says nothing."""
    tag = base.rpartition(":")[2] if ":" in base.rpartition("/")[2] else ""
    words = tag.split("-")
    has = next((rules.flavours[word] for word in words[1:] if word in rules.flavours), None)
    if has is None or not re.match(r"\d+\.\d+", words[0]):
        return None
    return {"usr/local/cuda/bin/nvcc": words[0]} if has else {}


def judge_headers(
    python: str, headers: Collection[str], *, compiler: bool | None, triton: bool
) -> Iterator[Finding]:
    """Python.h and a C compiler: Triton compiles a launcher for each kernel. `python` is such as 3.12, "" unknown."""
    if not triton:
        return
    wanted = f"include/python{python or '3.*'}/Python.h"
    fitting = [
        path for path in headers if not python or f"python{python}/" in path or f"python{python}t/" in path
    ]
    if fitting:
        yield Finding("image.headers", "Triton", Verdict.PASS, f"finds {listed(sorted(fitting), 1)}")
    else:
        got = f"there is no Python.h of Python {python or 'any version'}: Triton's first kernel fails to compile"
        there = f" (there is {listed(sorted(headers), 2)})" if headers else ""
        advice = "Install the Python's development package (python3-dev)."
        yield Finding("image.headers", "Triton", Verdict.WARN, got + there, wanted, advice, _NO_HEADERS)
    if compiler is False:
        got = "there is no C compiler: Triton's first kernel fails to compile"
        yield Finding("image.headers", "Triton", Verdict.WARN, got, "gcc or clang, or CC", source=_NO_HEADERS)


def judge_cuda_home(
    env: Mapping[str, str], homes: Mapping[str, bool] | None, torch: str = ""
) -> Iterator[Finding]:
    """CUDA_HOME and its like name one absolute folder that exists, of torch's major; `homes` says which exist."""
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        if name not in env:
            continue
        value = env[name]
        fault = _home_fault(value)
        if value.strip() and not fault and homes is not None and not homes.get(name, True):
            fault = "does not exist in the image"
        line, named = cuda_of(torch), re.search(r"cuda-(\d+)\.\d", value)
        if not fault and line and named and int(named[1]) != line[0]:
            got = f"{name}={shown(value)}, and torch is of CUDA {line[0]}"
            yield Finding("image.cuda-home", name, Verdict.WARN, got, "one CUDA major", source=_NO_HOME)
        elif not value.strip():
            got = "is set and empty: programs differ in what they take that for"
            yield Finding("image.cuda-home", name, Verdict.WARN, got, "a folder, or no variable", source=_NO_HOME)
        elif fault:
            advice = f"Set {name} to the toolkit's folder, or unset it."
            yield Finding(
                "image.cuda-home", name, Verdict.FAIL, f"{name}={shown(value)!r} {fault}", "one absolute folder",
                advice, _NO_HOME,
            )  # fmt: skip
        else:
            yield Finding("image.cuda-home", name, Verdict.PASS, f"is {shown(value)}")


def _home_fault(value: str) -> str:
    if ":" in value:
        return "is a list of folders, as if it were a search path"
    if value != value.strip() or any(character in value for character in "\"'"):
        return "has quotes or spaces around it"
    if "$" in value:
        return "holds a variable that nobody replaces"
    return "" if posixpath.isabs(value) else "is no absolute path"


def _makes(version: str, needed: CudaVersion | None) -> bool:
    """Whether an nvcc of this version compiles for the capability; one of unknown version is taken to."""
    found = _version(version)
    return found is None or needed is None or found >= needed


def _version(text: str) -> CudaVersion | None:
    try:
        return CudaVersion.parse(text)
    except ValueError:
        return None
