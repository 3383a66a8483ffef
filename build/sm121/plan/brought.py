"""What a plan needs that no index has, and whether what a user named for it fits. Pure."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from sm121.findings import Finding, Verdict
from sm121.pins import ToolchainKind
from sm121.plan.model import Brought
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm121.pins import Line, Release
    from sm121.plan.model import Cpu, Local, Request


def brought(
    request: Request, line: Line, release: Release, host: Cpu, *, torch: bool = True
) -> tuple[Brought, ...]:
    """The toolkit and, if it is compiled against, the torch that the user brings, named or not yet."""
    found = []
    if own_toolkit(request) or line.toolchain is ToolchainKind.INSTALLED:
        what = f"the CUDA {line.compiler.release} toolkit"
        instead = _told(
            "toolkit",
            "instead" if line.toolchain is ToolchainKind.INSTALLED else "wheels",
            line,
            release,
            request.cpu,
        )
        found.append(
            Brought(
                what=what, option="--cuda-image" if request.cuda_image else "--cuda-home", path=own_toolkit(request),
                how=_told("toolkit", _way(request.cpu, host), line, release, request.cpu),
                instead=instead,
            )
        )  # fmt: skip
    if torch and (request.torch_home or not has_torch(line, release)):
        found.append(
            Brought(
                what=f"torch {release.torch}+{line.cuda.local}", option="--torch-home",
                path=request.torch_home.path if request.torch_home else "",
                how=_told("torch", _way(request.cpu, host), line, release, request.cpu),
            )
        )  # fmt: skip
    return tuple(found)


def own_toolkit(request: Request) -> str:
    """Where the toolkit is that the user named, "" if none was."""
    return request.cuda_image or request.cuda_home or ""


def toolchain_of(request: Request, line: Line) -> str:
    """Where the compiler comes from, in words."""
    if request.cuda_image:
        return f"out of {request.cuda_image}"
    if request.cuda_home:
        return f"installed at {request.cuda_home}"
    return "installed, not named yet" if line.toolchain is ToolchainKind.INSTALLED else str(line.toolchain)


def has_torch(line: Line, release: Release) -> bool:
    """Whether the torch that `release` demands is pinned for this line."""
    return any(torch.version == release.torch for torch in line.torches)


def judge_torch(torch: Local, line: Line, release: Release, cpu: Cpu) -> Iterator[Finding]:
    """Does a user's torch fit the line? Another CUDA major or processor fails; another version is a warning.

    vLLM's extensions use torch's stable interface, so another version may do; libraries of another CUDA major never do.
    """
    subject, wanted = f"torch at {torch.path}", f"torch {release.torch}+{line.cuda.local} for {cpu}"
    if torch.cpu and torch.cpu != cpu:
        yield Finding("plan.torch", subject, Verdict.FAIL, f"its libraries are for {torch.cpu}", wanted)
    try:
        cuda = CudaVersion.parse(torch.cuda).release if torch.cuda else None
    except ValueError:
        cuda = None
    if cuda is None:
        got = f"{torch.version} does not tell its CUDA release"
        yield Finding("plan.torch", subject, Verdict.WARN, got, wanted)
    elif cuda.major != line.cuda.major:
        yield Finding("plan.torch", subject, Verdict.FAIL, f"{torch.version} is of CUDA {cuda}", wanted)
    elif cuda != line.cuda.release:
        yield Finding("plan.torch", subject, Verdict.WARN, f"{torch.version} is of CUDA {cuda}", wanted)
    if torch.version.partition("+")[0] != release.torch:
        got = f"is {torch.version}, which vLLM {release.version} does not ask for"
        yield Finding("plan.torch", subject, Verdict.WARN, got, wanted)


def _way(target: Cpu, host: Cpu) -> str:
    return "native" if host == target else "cross"


def _told(what: str, key: str, line: Line, release: Release, target: Cpu) -> str:
    version = str(line.compiler.release)
    text: str = _data()[what][key]
    return text.format(
        release=version, dashed=version.replace(".", "-"), torch=f"{release.torch}+{line.cuda.local}",
        index=line.cuda.local, cpu=target,
    )  # fmt: skip


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("brought.toml").read_text(encoding="utf-8"))
