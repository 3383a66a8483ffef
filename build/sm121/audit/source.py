"""The Python files of an artifact, as text to be read and never imported."""

from __future__ import annotations

import ast
import re
import tarfile
import zlib
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.artifact import open_artifact
from sm121.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LARGEST_FILE = 8 << 20
_LARGEST_TOTAL = 1 << 30
_WANTED = re.compile(r"(?:^|/)(?:vllm|flashinfer|b12x|humming|quack|deep_gemm|triton_kernels)/(?:.*\.pyi?$)")
_METADATA = re.compile(r"(?:^|/)([A-Za-z0-9_.]+)-[^-/]+\.dist-info/METADATA$|(?:^|/)PKG-INFO$")
_ROOTS = re.compile(r"^(?:|.*/(?:site|dist)-packages/|vllm-[^/]+/|flashinfer_python-[^/]+/|src/|lib/)$")
_SDIST_FOLDER = re.compile(r"[A-Za-z0-9][\w.]*-\d[\w.+!]*(?:/|$)")
# Distributions that give a module of another name.
_MODULES = {
    "flashinfer-python": "flashinfer", "humming-kernels": "humming", "quack-kernels": "quack",
    "nvidia-cutlass-dsl": "cutlass", "nvidia-cudnn-frontend": "cudnn", "apache-tvm-ffi": "tvm_ffi",
}  # fmt: skip


@dataclass
class SourceTree:
    """Python modules by dotted name, of one artifact or several side by side.

    `distributions` are those whose metadata is there, with their versions; `required` those that their metadata
    asks for unconditionally. `complete` says that all that would be importable is here (an environment or image),
    so that what is missing is really absent.
    """

    names: tuple[str, ...]
    files: dict[str, bytes]
    distributions: dict[str, str] = field(default_factory=dict)
    required: dict[str, str] = field(default_factory=dict)
    packages: frozenset[str] = frozenset()
    """Importable top-level names, also those without Python files that are read."""
    complete: bool = False
    programs: frozenset[str] = frozenset()
    """Executable files by name, of an image or environment."""
    bindings: dict[str, dict[str, list[ast.stmt]]] = field(default_factory=dict)
    """Where each module binds its names; filled as modules are evaluated."""
    _trees: dict[str, ast.Module | None] = field(default_factory=dict)

    @classmethod
    def read(cls, references: Sequence[str | Path]) -> SourceTree:
        """Read wheels, environments, images, folders and sdists. Raises ArtifactError."""
        trees = [_read(reference) for reference in references]
        merged = trees[0]
        for tree in trees[1:]:
            merged = cls(
                (*merged.names, *tree.names), {**merged.files, **tree.files},
                {**merged.distributions, **tree.distributions}, {**merged.required, **tree.required},
                merged.packages | tree.packages, merged.complete or tree.complete, merged.programs | tree.programs,
            )  # fmt: skip
        merged.files.update(_embedded(merged.files))
        if not any(name == "vllm" or name.startswith("vllm.") for name in merged.files):
            shown = ", ".join(merged.names)
            raise ArtifactError(
                f"{shown} holds no Python files of vLLM.", do="name a vLLM wheel, sdist or image."
            )
        return merged

    @property
    def version(self) -> str:
        """vLLM's version by its metadata, `` if there is none."""
        return self.distributions.get("vllm", "")

    def module(self, name: str) -> ast.Module | None:
        """The syntax tree of a module, None if it is not here or is not Python that can be parsed."""
        if name not in self._trees:
            self._trees[name] = _parsed(self.files.get(name))
        return self._trees[name]

    def is_package(self, name: str) -> bool:
        """Whether a name is a package, so that relative imports in it start there."""
        prefix = f"{name}."
        return any(other.startswith(prefix) for other in self.files)

    def installed(self, package: str) -> tuple[bool | None, str]:
        """Whether a top-level package can be imported, and how that is known; None if nobody can tell."""
        if package in self.packages:
            return True, "it is in the artifact"
        if self.complete:
            return False, "it is not in the artifact"
        for distribution, version in self.required.items():
            if _MODULES.get(distribution, distribution.replace("-", "_")) == package:
                return True, f"the metadata requires {distribution}{version}"
        return None, "the artifact does not tell"

    def pinned(self, package: str) -> bool:
        """Whether metadata requires exactly one version of the distribution that gives a package."""
        return any(
            version.startswith("==") and "*" not in version
            for distribution, version in self.required.items()
            if _MODULES.get(distribution, distribution.replace("-", "_")) == package
        )

    def answers_import(self, package: str) -> str:
        """Which distribution's file really answers `import package`, by what is in the file; "" if it is not here."""
        data = self.files.get(package)
        if data is None:
            return ""
        if package == "b12x":
            return "flashinfer-python" if _REDIRECT in self.files.get("b12x._redirect", data) else "b12x"
        return package


# flashinfer-python 0.7.2 and later own b12x/__init__.py too, and lead it to their embedded copy.
_REDIRECT = b"b12x compatibility package requires flashinfer-python"


def _embedded(files: dict[str, bytes]) -> dict[str, bytes]:
    """Modules that FlashInfer's `b12x` gives under that name, from its embedded copy."""
    if _REDIRECT not in files.get("b12x", b""):
        return {}
    inner = "flashinfer.experimental.b12x."
    found = {f"b12x.{name.removeprefix(inner)}": data for name, data in files.items() if name.startswith(inner)}
    return {**found, "b12x": files.get(f"{inner}_api", files["b12x"]), "b12x._redirect": files["b12x"]}


def _parsed(data: bytes | None) -> ast.Module | None:
    if data is None:
        return None
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _read(reference: str | Path) -> SourceTree:
    path = Path(reference)
    if is_sdist(path):
        return _tree(str(reference), _sdist_files(path), complete=False)
    with open_artifact(reference) as artifact:
        kind = str(artifact.kind)
        files: list[tuple[str, bytes]] = []
        programs: set[str] = set()
        packages: set[str] = set()
        total = 0
        for member in artifact.members():
            if member.executable and "/bin/" in f"/{member.path}":
                programs.add(member.name)
            packages.update(_top_level(member.path))
            if member.size > _LARGEST_FILE or not (_WANTED.search(member.path) or _METADATA.search(member.path)):
                continue
            total += member.size
            if total > _LARGEST_TOTAL:
                raise ArtifactError(f"{reference} has more than {_LARGEST_TOTAL} bytes of Python files.")
            files.append((member.path, member.read(_LARGEST_FILE)))
    complete = kind in {"environment", "image"}
    tree = _tree(str(reference), files, complete=complete)
    tree.packages |= packages
    tree.programs = frozenset(programs)
    return tree


def is_sdist(reference: str | Path) -> bool:
    """Whether it is a source distribution: a tar whose one folder is called NAME-VERSION."""
    path = Path(reference)
    if not path.name.endswith((".tar.gz", ".tgz")) or not path.is_file():
        return False
    try:
        with tarfile.open(path) as archive:
            first = archive.next()
            return first is not None and bool(_SDIST_FOLDER.match(first.name))
    except (tarfile.TarError, OSError, EOFError, zlib.error):
        return False


def _sdist_files(path: Path) -> Iterable[tuple[str, bytes]]:
    total = 0
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                wanted = _WANTED.search(member.name) or re.fullmatch(r"[^/]+/PKG-INFO", member.name)
                if not wanted or not member.isfile() or member.size > _LARGEST_FILE:
                    continue
                total += member.size
                if total > _LARGEST_TOTAL:
                    raise ArtifactError(f"{path} has more than {_LARGEST_TOTAL} bytes of Python files.")
                stream = archive.extractfile(member)
                yield member.name, stream.read(_LARGEST_FILE) if stream else b""
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ArtifactError(f"{path} is damaged: {error}.") from error


def _top_level(path: str) -> Iterable[str]:
    root, found, inner = path.rpartition("-packages/")
    if not found and path.startswith("/"):
        return
    first, slash, _ = (inner if found else path).partition("/")
    if (found or not root) and first and not first.endswith((".dist-info", ".data", ".libs")):
        if slash:
            yield first
        elif first.endswith(".py"):
            yield first[:-3]
        elif ".so" in first:
            yield first.split(".", 1)[0]


def _tree(name: str, files: Iterable[tuple[str, bytes]], *, complete: bool) -> SourceTree:
    modules: dict[str, bytes] = {}
    distributions: dict[str, str] = {}
    required: dict[str, str] = {}
    for path, data in files:
        if _METADATA.search(path):
            _metadata(data, distributions, required)
            continue
        dotted = _dotted(path)
        if dotted is not None:
            modules[dotted] = data
    packages = frozenset(dotted.split(".", 1)[0] for dotted in modules)
    return SourceTree((name,), modules, distributions, required, packages, complete)


def _dotted(path: str) -> str | None:
    found = re.search(r"(?:^|/)((?:vllm|flashinfer|b12x|humming|quack|deep_gemm|triton_kernels)/.*)\.py$", path)
    if not found or not _ROOTS.match(path[: found.start(1)]):
        return None
    parts = found[1].split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def _metadata(data: bytes, distributions: dict[str, str], required: dict[str, str]) -> None:
    headers = HeaderParser().parsestr(data.decode("utf-8", "replace"))
    name = re.sub(r"[-_.]+", "-", str(headers.get("Name", ""))).lower()
    if name:
        distributions[name] = str(headers.get("Version", ""))
    for line in headers.get_all("Requires-Dist") or ():
        requirement, _, marker = str(line).partition(";")
        match = re.match(r"\s*([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(.*)", requirement)
        if match and "extra" not in marker:
            required[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2].strip()
