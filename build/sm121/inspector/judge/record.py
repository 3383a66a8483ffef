"""RECORD against the files that are there, and against the RECORDs of other distributions."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.words import joined, listed, plural, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sm121.inspector.facts import FileFacts

Record = dict[str, tuple[str, int | None]]

_RECORD = "https://packaging.python.org/en/latest/specifications/recording-installed-packages/"
_OWNED_TWICE = "https://github.com/NVIDIA/cutlass/issues/3170"
_NOT_HASHED = re.compile(r"(.*/)?[^/]+\.(dist|egg)-info/(RECORD|RECORD\.jws|RECORD\.p7s)")
_MADE_LATER = re.compile(r".*\.pyc|(.*/)?[^/]+\.dist-info/(INSTALLER|REQUESTED|direct_url\.json)")
_MOST = 20


def judge_record(
    record: Mapping[str, tuple[str, int | None]],
    files: Mapping[str, FileFacts],
    subject: str,
    *,
    installed: bool = False,
) -> Iterator[Finding]:
    """Every difference between RECORD and `files`, all of which belong to the distribution.

    `installed` allows for what an installer adds, changes and compiles.
    """
    relevant = {path: row for path, row in record.items() if not (installed and _MADE_LATER.fullmatch(path))}
    missing = sorted(relevant.keys() - files.keys())
    extra = (
        []
        if installed
        else sorted(path for path in files.keys() - record.keys() if not _NOT_HASHED.fullmatch(path))
    )
    different, unhashed, hashed = [], [], 0
    for path in sorted(relevant.keys() & files.keys()):
        said, size = relevant[path]
        file = files[path]
        if size is not None and size != file.size:
            different.append((path, f"has {file.size} bytes", f"{size} bytes, by RECORD"))
        elif not said and not _NOT_HASHED.fullmatch(path):
            unhashed.append(path)
        elif file.sha256 and said.startswith("sha256="):
            hashed += 1
            if _hexadecimal(said) != file.sha256:
                wanted = f"{_hexadecimal(said) or shown(said)}, by RECORD"
                different.append((path, f"has the sha256 {file.sha256}", wanted))
    yield from _each(subject, [(path, "stands in RECORD and is not there", "") for path in missing])
    yield from _each(subject, [(path, "is there and does not stand in RECORD", "") for path in extra])
    yield from _each(subject, different)
    if unhashed:
        got = f"{plural(len(unhashed), 'file')} stand in RECORD without a hash: {listed(unhashed, 3)}"
        yield Finding("wheel.record", subject, Verdict.WARN, got, "a hash for each", source=_RECORD)
    if not (missing or extra or different):
        got = f"RECORD holds for {plural(len(relevant), 'file')}, {plural(hashed, 'hash', 'hashes')} recomputed"
        yield Finding("wheel.record", subject, Verdict.PASS, got)


def judge_ownership(records: Mapping[str, Mapping[str, tuple[str, int | None]]]) -> Iterator[Finding]:
    """Paths that several distributions own; `records` maps `name version` to its RECORD."""
    owners: dict[str, dict[str, str]] = {}
    for distribution, record in records.items():
        for path, (said, _) in record.items():
            if not path.endswith(".pyc"):
                owners.setdefault(path, {})[distribution] = said
    equal: dict[tuple[str, ...], list[str]] = {}
    clean = True
    for path, whose in sorted(owners.items()):
        if len(whose) < 2:
            continue
        clean = False
        if len(set(whose.values())) > 1:
            got = f"belongs to {joined(sorted(whose))} with different contents: what is installed last wins"
            advice = "Install only one of them."
            yield Finding("set.owner", shown(path), Verdict.FAIL, got, "one owner", advice, _OWNED_TWICE)
        else:
            equal.setdefault(tuple(sorted(whose)), []).append(path)
    for names, paths in sorted(equal.items()):
        got = f"own {plural(len(paths), 'file')} together, with equal contents: {listed(paths, 3)}"
        yield Finding("set.owner", joined(names), Verdict.INFO, got, source=_OWNED_TWICE)
    if clean and len(records) > 1:
        got = f"no file has two owners among {len(records)} distributions"
        yield Finding("set.owner", "the set", Verdict.PASS, got)


def _each(subject: str, faults: Sequence[tuple[str, str, str]]) -> Iterator[Finding]:
    """One finding per fault, and one for all that are beyond what anybody reads."""
    for path, got, wanted in faults[:_MOST]:
        yield Finding("wheel.record", shown(path), Verdict.FAIL, got, wanted, source=_RECORD)
    if len(faults) > _MOST:
        got = f"{len(faults) - _MOST} more files: {faults[_MOST][1]}"
        yield Finding("wheel.record", subject, Verdict.FAIL, got, source=_RECORD)


def _hexadecimal(said: str) -> str:
    """The hexadecimal form of RECORD's `sha256=...`, "" if it is damaged."""
    value = said.partition("=")[2]
    try:
        return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()
    except (binascii.Error, ValueError):
        return ""
