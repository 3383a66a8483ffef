"""Where the files of wheels go in an image: what an installer would write, as entries of a layer.

Rules: https://packaging.python.org/en/latest/specifications/binary-distribution-format/. Nothing is run and nothing
is unpacked, so the CPU of the image need not be that of this machine.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm121.artifact import Distribution, Wheel, printable
from sm121.artifact.installed import Survey
from sm121.artifact.shadow import cleaned
from sm121.errors import PackError
from sm121.findings import Verdict
from sm121.image.documents import canonical
from sm121.image.layer import Entry
from sm121.pins.knowledge import known
from sm121.sources.disk import completed_file
from sm121.values import CHUNK, Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from sm121.artifact import Member
    from sm121.artifact.record import RecordRow

INSTALLER = "sm121"
_GROUPS = ("console_scripts", "gui_scripts")
_SCRIPT = """#!{python}
from {module} import {first}
if __name__ == "__main__":
    raise SystemExit({function}())
"""


@dataclass(frozen=True, slots=True)
class Prefix:
    """An environment in the image: its folder without a leading slash, its Python as `3.12`."""

    folder: str
    python: str

    @property
    def site(self) -> str:
        return f"{self.folder}/lib/python{self.python}/site-packages"

    @property
    def bin(self) -> str:
        return f"{self.folder}/bin"

    @property
    def interpreter(self) -> str:
        """What scripts name in their first line."""
        return f"/{self.bin}/python"


@dataclass(frozen=True, slots=True)
class Placed:
    """A wheel as it will lie in the image."""

    name: str
    version: str
    filename: str
    size: int
    entries: tuple[Entry, ...]
    commit: str = ""


def place(
    wheel: Wheel, prefix: Prefix, *, direct: Sha256 | None = None, measured: Mapping[str, Sha256] | None = None
) -> Placed:
    """Plan the files of a wheel. The wheel must stay open until its entries have been written.

    `direct` is the digest of a wheel that was asked for by itself: its origin is recorded then (direct_url.json).
    `measured` are the digests of its files, for a wheel whose own RECORD need not be true; without it, RECORD must be.
    Raises PackError that names every fault of the wheel.
    """
    dist = described(wheel)
    planned = _Plan(wheel, dist, prefix, direct, measured)
    planned.all()
    if planned.faults:
        raise PackError(
            [f"{wheel.name}: {fault}." for fault in planned.faults], do="build or fetch the wheel again."
        )
    size = wheel.path.stat().st_size
    commit = next((stamp.commit for stamp in dist.stamps if stamp.commit), "")
    return Placed(dist.name, dist.version, wheel.name, size, tuple(planned.entries.values()), commit)


def measure(wheel: Wheel, known: Path) -> dict[str, Sha256]:
    """The digest of every file of a wheel, whatever its RECORD says; kept in the file `known`.

    Wheels on the index exist whose RECORD is wrong about some files; installers do not compare. Their bytes are proven
    by the lock, and the image's RECORD shall be true.
    """
    try:
        kept: dict[str, str] = json.loads(known.read_bytes())
        return {path: Sha256(digest) for path, digest in kept.items()}
    except (OSError, ValueError, AttributeError):
        found = {}
    for member in wheel.members():
        state = hashlib.sha256()
        with member.open() as stream:
            while piece := stream.read(CHUNK):
                state.update(piece)
        found[member.path] = Sha256(state.hexdigest())
    with completed_file(known) as file:
        file.write(canonical({path: digest.hex for path, digest in found.items()}))
    return found


def misrecorded(wheel: Wheel, measured: Mapping[str, Sha256]) -> list[str]:
    """Files about which a wheel's own RECORD is wrong."""
    rows = {row.path: row.digest for row in described(wheel).rows if row.algorithm == "sha256"}
    said = {
        path: base64.urlsafe_b64encode(bytes.fromhex(d.hex)).rstrip(b"=").decode() for path, d in measured.items()
    }
    return [path for path, digest in rows.items() if said.get(path, digest) != digest]


def harmless(prefix: Prefix) -> frozenset[str]:
    """Paths in the image of files that several distributions own and that nothing uses there."""
    mild = {Verdict.PASS, Verdict.INFO}
    return frozenset(f"{prefix.site}/{each.path}" for each in known().collisions if each.verdict in mild)


def collisions(placed: Iterable[Placed], prefix: Prefix) -> list[str]:
    """Paths that two wheels want to fill with different bytes, as sentences; those known to be harmless left out."""
    passed = harmless(prefix)
    owners: dict[str, tuple[str, Sha256 | None]] = {}
    faults = []
    for wheel in placed:
        for entry in wheel.entries:
            owner, digest = owners.setdefault(entry.path, (wheel.name, entry.sha256))
            if digest != entry.sha256 and entry.path not in passed:
                faults.append(f"{entry.path} is of {owner} and of {wheel.name}, with different bytes.")
    return faults


def described(wheel: Wheel) -> Distribution:
    """The wheel's own description, without hashing its files: that happens while they are written."""
    seen = Survey(wheel, hashes=False)
    for member in wheel.members(lambda path: ".dist-info/" in path or path.endswith("_version.py")):
        seen.see(member)
    inside = [d for d in seen.distributions() if d.site == "" and d.folder.endswith(".dist-info")]
    if wheel.problems or len(inside) != 1:
        problems = [problem.message for problem in wheel.problems] or ["it should have one .dist-info folder"]
        raise PackError(
            [f"{wheel.name}: {problem}" for problem in problems], do="fetch or build the wheel again."
        )
    return inside[0]


@dataclass
class _Plan:
    """Collects the entries of one wheel, and what is wrong with it."""

    wheel: Wheel
    dist: Distribution
    prefix: Prefix
    direct: Sha256 | None
    measured: Mapping[str, Sha256] | None
    entries: dict[str, Entry] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def all(self) -> None:
        if self.dist.wheel is None:
            self.faults.append("it has no readable WHEEL")
        members = {member.path: member for member in self.wheel.members()}
        digests = self.measured if self.measured is not None else self._recorded(members)
        left_out = {self.dist.record, f"{self.dist.record}.jws", f"{self.dist.record}.p7s"}
        for path, member in members.items():
            if path not in left_out and path in digests:
                self._file(member, digests[path])
        info = f"{self.prefix.site}/{self.dist.folder}"
        for name, target in self._scripts():
            self._put(Entry.text(f"{self.prefix.bin}/{name}", target, mode=0o755))
        self._put(Entry.text(f"{info}/INSTALLER", f"{INSTALLER}\n".encode()))
        if self.direct is not None:
            url = {
                "url": f"file:///{self.wheel.name}",
                "archive_info": {"hash": f"sha256={self.direct.hex}", "hashes": {"sha256": self.direct.hex}},
            }
            self._put(Entry.text(f"{info}/REQUESTED", b""))
            self._put(Entry.text(f"{info}/direct_url.json", canonical(url)))
        record = _record(self.entries.values(), self.prefix.site, f"{self.dist.folder}/RECORD")
        self._put(Entry.text(f"{info}/RECORD", record))

    def _recorded(self, members: Mapping[str, Member]) -> dict[str, Sha256]:
        """The digests that RECORD gives; each file must have one, and each row a file."""
        rows = {row.path: row for row in self.dist.rows}
        self.faults += [
            f"RECORD lists {printable(path)}, which is not there" for path in rows if path not in members
        ]
        found = {}
        for path in members:
            digest = _digest(rows.get(path))
            if digest is not None:
                found[path] = digest
            elif not path.startswith(self.dist.record):
                self.faults.append(f"{printable(path)} has no sha256 in RECORD")
        return found

    def _file(self, member: Member, digest: Sha256) -> None:
        target = self._target(member.path)
        if target is None:
            self.faults.append(
                f"{printable(member.path)} leads out of the environment, or into a scheme that is none"
            )
            return
        mode = 0o755 if member.executable else 0o644
        if ".data/scripts/" in member.path:
            self._put(self._script_file(target, member, digest))
        else:
            self._put(Entry(target, mode, member, member.size, digest))

    def _script_file(self, target: str, member: Member, digest: Sha256) -> Entry:
        """A script of the wheel; a first line `#!python` names the image's own."""
        with member.open() as stream:
            first = stream.read(16)
        if not first.startswith(b"#!python"):
            return Entry(target, 0o755, member, member.size, digest)
        data = member.read()
        if Sha256.of_bytes(data) != digest:
            self.faults.append(f"{printable(member.path)} differs from RECORD")
        _, _, rest = data.partition(b"\n")
        return Entry.text(target, f"#!{self.prefix.interpreter}\n".encode() + rest, mode=0o755)

    def _target(self, path: str) -> str | None:
        top, _, rest = path.partition("/")
        folder, inner = self.prefix.site, path
        if top.endswith(".data"):
            scheme, _, inner = rest.partition("/")
            project = self.dist.name
            folder = {
                "purelib": self.prefix.site, "platlib": self.prefix.site, "scripts": self.prefix.bin,
                "data": self.prefix.folder,
                "headers": f"{self.prefix.folder}/include/site/python{self.prefix.python}/{project}",
            }.get(scheme, "")  # fmt: skip
        return f"{folder}/{inner}" if folder and inner and cleaned(inner) == inner else None

    def _scripts(self) -> Iterator[tuple[str, bytes]]:
        for group in _GROUPS:
            for name, target in self.dist.entry_points.get(group, {}).items():
                module, _, function = target.partition("[")[0].strip().partition(":")
                words = [*module.split("."), *function.split(".")]
                if "/" in name or not all(word.isidentifier() for word in words):
                    self.faults.append(f"the script {printable(name)} = {printable(target)} names no function")
                    continue
                first = function.split(".")[0]
                text = _SCRIPT.format(
                    python=self.prefix.interpreter, module=module, first=first, function=function
                )
                yield name, text.encode()

    def _put(self, entry: Entry) -> None:
        known = self.entries.get(entry.path)
        if known is not None and known.sha256 != entry.sha256:
            self.faults.append(f"{printable(entry.path)} would be written twice")
        self.entries[entry.path] = entry


def _digest(row: RecordRow | None) -> Sha256 | None:
    """The sha256 of a row of RECORD, None if it has none."""
    try:
        written = base64.urlsafe_b64decode(f"{row.digest}==") if row and row.algorithm == "sha256" else b""
        return Sha256(written.hex())
    except ValueError:
        return None


def _record(entries: Iterable[Entry], site: str, own: str) -> bytes:
    """RECORD of what is installed: sorted, with paths relative to the site folder."""
    rows = []
    for entry in entries:
        assert entry.sha256 is not None
        digest = base64.urlsafe_b64encode(bytes.fromhex(entry.sha256.hex)).rstrip(b"=").decode()
        rows.append((posixpath.relpath(entry.path, site), f"sha256={digest}", str(entry.size)))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*sorted(rows), (own, "", "")])
    return text.getvalue().encode()
