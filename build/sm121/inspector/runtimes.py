"""A CUDA runtime in hand, for the comparison: read from its wheel, its library, or a folder that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.artifact import Kind, WheelName, open_artifact
from sm121.device import read_host
from sm121.errors import ArtifactError, UsageError
from sm121.inspector.judge.runtime import LIBRARY, runtime_of

if TYPE_CHECKING:
    from sm121.artifact import Artifact
    from sm121.inspector.rules import Runtime

_WANTED = (
    "name a wheel of nvidia-cuda-runtime (nvidia-cuda-runtime-cu12 for CUDA 12), or a libcudart.so.12 or .13."
)


def read_runtime(reference: str) -> Runtime:
    """What the libcudart in `reference` exports. Raises UsageError if there is none, or several that differ."""
    found: list[Runtime] = []
    with open_artifact(reference) as artifact:
        alone = artifact.kind is Kind.FILE
        name, version = _named(artifact)
        for member in artifact.members(lambda path: alone or bool(LIBRARY.fullmatch(path.rpartition("/")[2]))):
            try:
                with member.buffer() as buffer:
                    host = read_host(buffer)
            except ArtifactError as error:
                raise UsageError(
                    [f"--runtime {reference}: {problem}" for problem in error.problems], do=_WANTED
                ) from error
            shown = name if alone else f"{host.soname} of {name}"
            if (runtime := runtime_of(host, shown, version)) is not None and runtime.symbols:
                found.append(runtime)
    kinds = {(runtime.major, frozenset(runtime.symbols)) for runtime in found}
    if not found:
        raise UsageError(f"--runtime {reference} holds no CUDA runtime library.", do=_WANTED)
    if len(kinds) > 1:
        raise UsageError(f"--runtime {reference} holds {len(kinds)} CUDA runtimes that differ.", do=_WANTED)
    return found[0]


def _named(artifact: Artifact) -> tuple[str, str]:
    """What the runtime's home is called, and its version where it tells one."""
    name = artifact.name.rpartition("/")[2]
    if artifact.kind is not Kind.WHEEL:
        return name, ""
    try:
        wheel = WheelName.parse(name)
    except ArtifactError:
        return name, ""
    return f"{wheel.project} {wheel.version}", wheel.version
