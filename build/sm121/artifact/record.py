"""RECORD: the list of a distribution's files with their hashes, and whether it is true.

Format: https://packaging.python.org/en/latest/specifications/recording-installed-packages/#the-record-file.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.artifact.member import CHUNK, printable
from sm121.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sm121.artifact.member import Buffer, Member

STRONG = ("sha256", "sha384", "sha512")
"""The specification asks for sha256 or better."""


@dataclass(frozen=True, slots=True)
class RecordRow:
    """One row: a path relative to the site folder, a hash as it is written (base64, no padding), a size in bytes."""

    path: str
    algorithm: str = ""
    digest: str = ""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a file really is."""

    size: int
    algorithm: str
    digest: str

    @classmethod
    def of(cls, data: Buffer, algorithm: str = "sha256") -> Measured:
        """Measure bytes in memory."""
        return cls(len(data), algorithm, _written(hashlib.new(algorithm, data).digest()))

    @classmethod
    def of_sha256(cls, size: int, digest: str) -> Measured:
        """What somebody else measured; the digest is hexadecimal, "" if there is none."""
        return cls(size, "sha256", _written(bytes.fromhex(digest))) if digest else cls(size, "", "")

    @classmethod
    def of_member(cls, member: Member, algorithm: str = "sha256") -> Measured:
        """Measure a member while it streams. Raises ArtifactError if it is damaged."""
        state, size = hashlib.new(algorithm), 0
        with member.open() as stream:
            while piece := stream.read(CHUNK):
                state.update(piece)
                size += len(piece)
        return cls(size, algorithm, _written(state.digest()))


def read_record(data: bytes) -> tuple[tuple[RecordRow, ...], tuple[str, ...]]:
    """The rows of RECORD and its faults, which are sentences without a subject."""
    rows, faults = [], []
    try:
        lines = list(csv.reader(io.StringIO(data.decode(), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        return (), (f"RECORD cannot be read ({error})",)
    for number, fields in enumerate(lines, 1):
        if not fields:
            continue
        path, stated, size = [*fields, "", ""][:3]
        algorithm, sign, digest = stated.partition("=")
        if len(fields) != 3 or not path or (stated and not (sign and digest)) or (size and not _is_size(size)):
            faults.append(f"RECORD has a row that is none in line {number}")
        else:
            rows.append(RecordRow(path, algorithm, digest.rstrip("="), int(size) if size else None))
    return tuple(rows), tuple(faults)


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """RECORD against the files; each list holds paths as RECORD writes them.

    `unverified` are rows whose file is there and was not hashed, or whose hash is of an unknown kind.
    """

    rows: int = 0
    matching: int = 0
    wrong: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    duplicate: tuple[str, ...] = ()
    unhashed: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def true(self) -> bool:
        """Every row was verified, nothing is missing, extra, or left without a hash."""
        flawed = self.wrong or self.missing or self.extra or self.duplicate or self.unhashed or self.faults
        return not flawed and not self.unverified and self.rows > 0


def check_record(
    rows: Sequence[RecordRow], faults: Iterable[str], measure: Callable[[RecordRow], Measured | None],
    *, record: str, present: Iterable[str] = (),
) -> RecordCheck:  # fmt: skip
    """Compare rows with files.

    `measure` gives a row's file, None if it does not exist, a Measured without digest if it was not hashed.
    `record` is the path of RECORD itself, which has no hash, as have its signatures and compiled files.
    `present` are the files that must each have a row.
    """
    found: dict[str, list[str]] = {"wrong": [], "missing": [], "unhashed": [], "unverified": [], "matching": []}
    for row in rows:
        found[_judged(row, measure(row), record)].append(row.path)
    counts = Counter(row.path for row in rows)
    may_lack = {record, f"{record}.jws", f"{record}.p7s"}
    return RecordCheck(
        rows=len(rows),
        matching=len(found.pop("matching")),
        extra=tuple(sorted(set(present) - set(counts) - may_lack)),
        duplicate=tuple(path for path, count in counts.items() if count > 1),
        faults=tuple(faults),
        **{name: tuple(paths) for name, paths in found.items()},
    )


def record_findings(check: RecordCheck, subject: str) -> Iterator[Finding]:
    """The check as findings, one for each kind of fault, with the first paths of each."""
    kinds: Mapping[str, tuple[Verdict, tuple[str, ...]]] = {
        "differ from RECORD": (Verdict.FAIL, check.wrong),
        "stand in RECORD and do not exist": (Verdict.FAIL, check.missing),
        "are not in RECORD": (Verdict.FAIL, check.extra),
        "stand in RECORD more than once": (Verdict.FAIL, check.duplicate),
        "stand in RECORD without a hash": (Verdict.FAIL, check.unhashed),
        "could not be compared with RECORD": (Verdict.UNKNOWN, check.unverified),
    }
    for fault in check.faults:
        yield Finding("wheel.record", printable(subject), Verdict.FAIL, fault)
    for what, (verdict, paths) in kinds.items():
        if paths:
            shown = ", ".join(printable(path) for path in paths[:5]) + (", ..." if len(paths) > 5 else "")
            yield Finding("wheel.record", printable(subject), verdict, f"{len(paths)} files {what}: {shown}")
    if check.true:
        got = f"all {check.rows} files of RECORD are there and have their hashes"
        yield Finding("wheel.record", printable(subject), Verdict.PASS, got)


def _judged(row: RecordRow, measured: Measured | None, record: str) -> str:
    if measured is None:
        return "missing"
    if row.size is not None and row.size != measured.size and row.path != record:
        return "wrong"
    if not row.algorithm:
        free = row.path in {record, f"{record}.jws", f"{record}.p7s"} or row.path.endswith(".pyc")
        return "matching" if free else "unhashed"
    if row.algorithm not in STRONG or measured.algorithm != row.algorithm:
        return "unverified"
    return "matching" if measured.digest == row.digest else "wrong"


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


def _written(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
