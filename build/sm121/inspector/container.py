"""What an image is besides its files: how it is named and run, which tools lie in it, what its layers hide.

Parts that are None were not read; no rule speaks of them.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO

from sm121.artifact import Image, printable
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict
from sm121.inspector.container_rules import container_rules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.artifact import Artifact, Member
    from sm121.inspector.container_rules import ContainerRules

CPUS = {"arm64": "aarch64", "amd64": "x86_64"}
"""CPUs as images name them -> as ELF files and Python do."""
LARGEST_TOOL = 512 << 20
_LARGEST_TEXT = 1 << 16
_POINTERS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
_HOMES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")


@dataclass(frozen=True, slots=True)
class Hidden:
    """A file of a layer that the image does not show: deleted or replaced above, and still carried. Bytes."""

    path: str
    size: int
    layer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """An image, without the files that every artifact has.

    `reference` is the name that was asked for, "" for files; `pinned` says that it was one by digest. `ptxas` and
    `nvcc` map paths to versions, "" where the bytes name none. `loader` maps configuration files of the loader to
    their text. `headers` are the paths of Python.h. `homes` says for each CUDA variable whether its folder exists.
    """

    reference: str = ""
    pinned: bool = False
    digest: str = ""
    cpu: str = ""
    user: str | None = None
    entrypoint: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    history: tuple[str, ...] = ()
    diff_ids: tuple[str, ...] = ()
    base: str = ""
    ptxas: Mapping[str, str] | None = None
    nvcc: Mapping[str, str] | None = None
    loader: Mapping[str, str] | None = None
    headers: tuple[str, ...] | None = None
    compiler: bool | None = None
    homes: Mapping[str, bool] | None = None
    hidden: tuple[Hidden, ...] | None = None


class Contents:
    """Takes note of what matters here while the files of an image pass."""

    def __init__(self, image: Image) -> None:
        self.problems: list[Finding] = []
        self._image = image
        self._rules = container_rules()
        self._ptxas: dict[str, str] = {}
        self._nvcc: dict[str, str] = {}
        self._loader: dict[str, str] = {}
        self._headers: list[str] = []

    def see(self, member: Member) -> Member:
        """Take note of a file. What had to be read comes back as a file in memory: a stream is read once."""
        path, rules = member.path, self._rules
        if member.name == "Python.h":
            self._headers.append(path)
        try:
            if rules.loader.fullmatch(path):
                data = member.read(_LARGEST_TEXT)
                self._loader[path] = data.decode("utf-8", "replace")
                return _kept(member, data)
            if member.executable and (member.name in rules.ptxas_names or member.name in rules.nvcc_names):
                data = member.read(LARGEST_TOOL)
                found = self._ptxas if member.name in rules.ptxas_names else self._nvcc
                found[path] = read_version(data, rules)
                return _kept(member, data)
        except ArtifactError as error:
            got = f"cannot be read: {error.problems[0].rstrip('.')}"
            self.problems.append(Finding("image.file", printable(path), Verdict.UNKNOWN, got))
        return member

    def container(self) -> Container:
        """All of it, once every file has passed."""
        image, config = self._image, self._image.config
        asked = image.asked
        environment = config.environment
        named = str(asked) if asked is not None else ""
        if not named and image.name.startswith("docker-daemon:"):
            named = image.name.removeprefix("docker-daemon:")
        return Container(
            reference=named,
            pinned=(asked is not None and asked.digest is not None) or "sha256:" in named,
            digest=str(image.digest or ""),
            cpu=CPUS.get(config.platform.architecture, config.platform.architecture),
            user=config.user,
            entrypoint=config.entrypoint,
            env=environment,
            labels=dict(config.labels),
            history=tuple(step.created_by for step in config.history),
            diff_ids=tuple(str(digest) for digest in config.diff_ids),
            base=config.labels.get("org.opencontainers.image.base.name", ""),
            ptxas=self._with_pointers(environment),
            nvcc=dict(self._nvcc),
            loader=dict(self._loader),
            headers=tuple(self._headers),
            compiler=any(image.find(path) is not None for path in self._rules.compilers),
            homes={
                name: image.tree.find(environment[name]) is not None for name in _HOMES if environment.get(name)
            },
            hidden=tuple(Hidden(path, size, layer) for path, size, layer in image.hidden()),
        )

    def _with_pointers(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The programs that variables point to, under the names that the variables use."""
        found = dict(self._ptxas)
        for name in _POINTERS:
            path = environment.get(name, "")
            member = self._image.find(path) if path else None
            if member is not None and member.path in self._ptxas:
                found[path] = self._ptxas[member.path]
        return found


def contents_of(artifact: Artifact) -> Contents | None:
    """The notebook for an image, None for anything else."""
    return Contents(artifact) if isinstance(artifact, Image) else None


def read_version(data: bytes, rules: ContainerRules | None = None) -> str:
    """The version that a CUDA program would print, from its bytes; "" if it names none."""
    match = re.search((rules or container_rules()).version, data)
    return match[1].decode() if match else ""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Content that was read already."""

    data: bytes

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)

    def mapped(self) -> None:
        return None


def _kept(member: Member, data: bytes) -> Member:
    return replace(member, content=_Bytes(data))
