"""One distribution, as its .dist-info or .egg-info describes it."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from packaging.utils import canonicalize_name

from sm121.artifact.member import printable
from sm121.artifact.metadata import DirectUrl, Ledger, Metadata, Stamp, WheelFile, read_entry_points
from sm121.artifact.record import RecordCheck, RecordRow, read_record
from sm121.errors import ArtifactError
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

DOCUMENTS = frozenset(
    {
        "METADATA",
        "PKG-INFO",
        "WHEEL",
        "RECORD",
        "INSTALLER",
        "REQUESTED",
        "direct_url.json",
        "entry_points.txt",
        "sm121.json",
    }
)
"""The files of a .dist-info that are read whole."""
_PYTHON = re.compile(r"(?:^|/)python(\d+(?:\.\d+)?t?)(?:/|$)")
_REWRITTEN = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed distribution, or the one in a wheel.

    `folder` is its .dist-info or .egg-info (which may be a file), `site` the folder that it stands in, "" for the
    root of the artifact. `check` is None where there is no RECORD to compare with. `vendored` says that it is a
    part of another distribution, so that no installer knows it. `layer` is the image layer it comes from.
    """

    folder: str
    metadata: Metadata
    wheel: WheelFile | None = None
    installer: str = ""
    requested: bool = False
    direct_url: DirectUrl | None = None
    ledger: Ledger | None = None
    entry_points: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rows: tuple[RecordRow, ...] = ()
    row_faults: tuple[str, ...] = ()
    has_record: bool = False
    check: RecordCheck | None = None
    stamps: tuple[Stamp, ...] = ()
    vendored: bool = False
    layer: str = ""
    problems: tuple[Finding, ...] = ()

    @classmethod
    def read(cls, folder: str, documents: Mapping[str, bytes], layer: str = "") -> Distribution:
        """Make one from the documents of its folder; damage goes to `problems`."""
        faults: list[tuple[Verdict, str]] = []

        def attempt(name: str, parse: Callable[[bytes], T], default: T) -> T:
            try:
                return parse(documents[name]) if name in documents else default
            except ArtifactError as error:
                faults.append((Verdict.FAIL, error.problems[0].rstrip(".")))
                return default

        text = documents.get("METADATA", documents.get("PKG-INFO"))
        metadata = Metadata() if text is None else Metadata.parse(text)
        if text is None:
            faults.append((Verdict.WARN, "has no METADATA, so no installer knows it"))
        faults += [(Verdict.FAIL, fault) for fault in metadata.faults]
        no_entry_points: dict[str, dict[str, str]] = {}
        rows, row_faults = read_record(documents.get("RECORD", b""))
        return cls(
            folder=folder,
            metadata=metadata,
            wheel=attempt("WHEEL", WheelFile.parse, None),
            installer=documents.get("INSTALLER", b"").decode("utf-8", "replace").strip(),
            requested="REQUESTED" in documents,
            direct_url=attempt("direct_url.json", DirectUrl.parse, None),
            ledger=attempt("sm121.json", Ledger.parse, None),
            entry_points=attempt("entry_points.txt", read_entry_points, no_entry_points),
            rows=rows,
            row_faults=row_faults,
            has_record="RECORD" in documents,
            layer=layer,
            problems=tuple(Finding("wheel.metadata", printable(folder), *fault) for fault in faults),
        )

    @property
    def site(self) -> str:
        """The folder that it stands in."""
        return posixpath.dirname(self.folder)

    @property
    def stem(self) -> str:
        """`NAME-VERSION` as its folder is named."""
        return posixpath.basename(self.folder).rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its name as METADATA writes it, else as its folder does."""
        return self.metadata.name or self.stem.partition("-")[0]

    @property
    def key(self) -> str:
        """The normalised name: equal for all spellings."""
        return canonicalize_name(self.name)

    @property
    def version(self) -> str:
        """Its version as METADATA writes it, else as its folder does."""
        return self.metadata.version or self.stem.partition("-")[2]

    @property
    def python(self) -> str:
        """The Python version that the path of its site folder names, "" if none."""
        match = _PYTHON.search(self.site)
        return match[1] if match else ""

    @property
    def record(self) -> str:
        """The path of RECORD as RECORD itself writes it."""
        return f"{posixpath.basename(self.folder)}/RECORD"

    def where(self, path: str) -> str | None:
        """The path in the artifact of a path in RECORD, None if it leaves the artifact."""
        if path.startswith("/"):
            return posixpath.normpath(path).lstrip("/")
        joined = posixpath.normpath(posixpath.join(self.site, path))
        return None if joined == ".." or joined.startswith("../") else joined


@dataclass(frozen=True, slots=True)
class SharedPath:
    """A file that several distributions of one site folder own. `same` says that all name the same hash."""

    path: str
    owners: tuple[str, ...]
    same: bool


def shared_paths(distributions: Iterable[Distribution]) -> tuple[SharedPath, ...]:
    """Files that more than one distribution lists: the one installed last overwrote the others."""
    owners: dict[str, dict[str, str]] = {}
    for dist in distributions:
        for row in dist.rows:
            if (path := dist.where(row.path)) is not None and not row.path.endswith(".pyc"):
                owners.setdefault(path, {})[f"{dist.name} {dist.version}"] = row.digest
    return tuple(
        SharedPath(path, tuple(digests), len(set(digests.values())) == 1)
        for path, digests in sorted(owners.items())
        if len(digests) > 1
    )


@dataclass(frozen=True, slots=True)
class WheelComparison:
    """A wheel's files against those of an installed distribution; paths as the wheel's RECORD writes them.

    `added` stand in the installed RECORD alone, what installers write apart. `open` were not compared: console
    scripts, whose first line installers rewrite, and files whose hash is not known.
    """

    equal: int
    differing: tuple[str, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    open: tuple[str, ...]

    @property
    def same(self) -> bool:
        """All of the wheel is there unchanged, and nothing else."""
        return bool(self.equal) and not self.differing and not self.missing and not self.added


def compare_with_wheel(wheel: Distribution, installed: Distribution) -> WheelComparison:
    """Say whether `installed` came from `wheel`.

    Installers rewrite RECORD, INSTALLER, REQUESTED and direct_url.json, compile modules, and write console
    scripts; all else must be equal byte for byte. A file that differs from the installed RECORD differs from the
    wheel too.
    """
    check = installed.check or RecordCheck()
    bad, unsure = {*check.wrong, *check.missing}, {*check.unverified, *check.unhashed}
    there = {_tail(row.path): row for row in installed.rows}
    found: dict[str, list[str]] = {"equal": [], "differing": [], "missing": [], "open": []}
    ours = set()
    for row in wheel.rows:
        if row.path == wheel.record:
            continue
        path, script = _installed_path(row.path)
        ours.add(path)
        other = there.get(path)
        if other is None:
            found["missing"].append(row.path)
        elif other.path in bad or (not script and (other.algorithm, other.digest) != (row.algorithm, row.digest)):
            found["differing"].append(row.path)
        else:
            found["open" if script or other.path in unsure or installed.check is None else "equal"].append(
                row.path
            )
    added = [
        row.path for row in installed.rows if _tail(row.path) not in ours and not _by_installer(row, installed)
    ]
    return WheelComparison(
        len(found["equal"]),
        tuple(found["differing"]),
        tuple(found["missing"]),
        tuple(added),
        tuple(found["open"]),
    )


def _installed_path(path: str) -> tuple[str, bool]:
    """Where installers put a file of a wheel, relative to the site folder or its prefix; whether it is a script."""
    top, _, rest = path.partition("/")
    scheme, _, inner = rest.partition("/")
    if not top.endswith(".data") or not inner:
        return path, False
    if scheme == "scripts":
        return f"bin/{inner}", True
    return inner, False


def _tail(path: str) -> str:
    """A path of RECORD without the steps that lead out of the site folder."""
    while path.startswith("../"):
        path = path[3:]
    return path


def _by_installer(row: RecordRow, installed: Distribution) -> bool:
    folder, _, name = row.path.rpartition("/")
    if row.path.endswith(".pyc") or (name in _REWRITTEN and folder == posixpath.basename(installed.folder)):
        return True
    scripts = {
        script for group in ("console_scripts", "gui_scripts") for script in installed.entry_points.get(group, {})
    }
    return row.path.startswith("../") and folder.endswith("bin") and name in scripts
