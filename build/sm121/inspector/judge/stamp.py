"""Does an artifact carry one version, a released one, and the expected one?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.findings import Finding, Verdict
from sm121.inspector.words import joined, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PEP440 = "https://packaging.python.org/en/latest/specifications/version-specifiers/"
_NO_TAGS = "https://github.com/vllm-project/vllm/issues/9119"
_RENAMED = "https://github.com/PozzettiAndrea/cuda-wheels/issues/2"
_RECORD = "https://github.com/spark-arena/sparkrun/issues/164"
_UNKNOWN = frozenset({"", "unknown", "none", "null", "n/a", "na", "?", "tbd", "dirty"})


@dataclass(frozen=True, slots=True)
class Stamp:
    """The versions that one distribution carries, by the place where each stands; "" where it says nothing."""

    project: str
    file_name: str = ""
    folder: str = ""
    metadata: str = ""
    module: str = ""

    @property
    def places(self) -> dict[str, str]:
        """Place to version, for those that say one."""
        said = {
            "file name": self.file_name, "dist-info folder": self.folder, "METADATA": self.metadata,
            "version module": self.module,
        }  # fmt: skip
        return {place: text for place, text in said.items() if text}


def judge_stamp(stamp: Stamp, expected: str = "") -> Iterator[Finding]:
    """All findings on the versions of one distribution; `expected` is a version or a tag such as v0.33.0."""
    if not stamp.places:
        yield Finding("stamp.version", stamp.project, Verdict.UNKNOWN, "carries no version that can be read")
        return
    yield from _chain(stamp)
    for text in dict.fromkeys(stamp.places.values()):
        yield from judge_version(text, stamp.project)
    if expected:
        yield from _expected(stamp, expected)


def _chain(stamp: Stamp) -> Iterator[Finding]:
    """One version in all places."""
    groups: dict[str, list[str]] = {}
    for place, text in stamp.places.items():
        groups.setdefault(_normal(text), []).append(place)
    if len(groups) == 1:
        (text,) = groups
        places = joined(list(stamp.places))
        yield Finding("stamp.chain", stamp.project, Verdict.PASS, f"is {shown(text)} by {places}")
        return
    said = "; ".join(f"{joined(places)} says {shown(text)}" for text, places in groups.items())
    yield Finding(
        "stamp.chain", stamp.project, Verdict.FAIL, f"carries {len(groups)} versions: {said}", "one version everywhere",
        "Do not rename wheels: stamp the version before they are packed.", _RENAMED,
    )  # fmt: skip


def judge_version(text: str, subject: str) -> Iterator[Finding]:
    """Faults that a version shows by itself."""
    try:
        version = Version(text)
    except ValueError:
        reason = "it has two plus signs" if text.count("+") > 1 else "PEP 440 does not read it"
        got = f"{shown(text)} is no version: {reason}"
        yield Finding("stamp.valid", subject, Verdict.FAIL, got, "a version by PEP 440", source=_PEP440)
        yield from _suffixes(text.partition("+")[2], text, subject)
        return
    if version.is_devrelease:
        untagged = version.release in {(0, 1), (0, 0), (0,), (0, 0, 0), (0, 1, 0)}
        got = f"{shown(text)} is a development version"
        if untagged:
            got += ", as a source tree without tags gives it"
        verdict = Verdict.FAIL if untagged else Verdict.WARN
        advice = "Build from the sdist, or from a clone that has the release's tag."
        yield Finding("stamp.dev", subject, verdict, got, "a released version", advice, _NO_TAGS)
    yield from _suffixes(version.local or "", text, subject)


def _suffixes(local: str, text: str, subject: str) -> Iterator[Finding]:
    """CUDA suffixes and marks of a changed tree in the local part."""
    lines = re.findall(r"(?<![a-z0-9])cu(\d{2,3})(?=torch|[^0-9a-z]|$)", local)
    if len(set(lines)) > 1:
        sides = joined([f"cu{line}" for line in dict.fromkeys(lines)])
        yield Finding(
            "stamp.cuda", subject, Verdict.FAIL, f"{shown(text)} names two CUDA lines: {sides}", "one line"
        )
    elif len(lines) > 1:
        got = f"{shown(text)} names cu{lines[0]} {len(lines)} times"
        advice = "Upstream's setup adds the suffix by itself; add none, or replace it."
        yield Finding("stamp.cuda", subject, Verdict.FAIL, got, "once", advice)
    if re.search(r"(?:^|[.])overlay(?:$|[.])", local):
        got = f"{shown(text)} is an installed release with libraries of a developer laid over it"
        advice = "Take it off with `sm121 overlay remove`; what is shipped is built and inspected as a whole."
        yield Finding("stamp.overlay", subject, Verdict.WARN, got, "a release", advice)
    dirty = re.search(r"(?:^|[.+])d(20\d{6})(?:$|[.])", local)
    if dirty or re.search(r"(?:^|[.])dirty(?:$|[.])", local):
        when = f" on {dirty[1]}" if dirty else ""
        got = f"{shown(text)} was built from a tree with changes that no commit holds{when}"
        yield Finding(
            "stamp.dirty", subject, Verdict.WARN, got, "a clean tree", "Commit, or apply patches by plan."
        )


def _expected(stamp: Stamp, expected: str) -> Iterator[Finding]:
    """The version that was asked for; one without a local part accepts any local part."""
    try:
        want = Version(expected)
    except ValueError:
        got = f"the expected version {shown(expected)} is no version"
        yield Finding(
            "stamp.expected", stamp.project, Verdict.UNKNOWN, got, "a version by PEP 440", source=_PEP440
        )
        return
    for place, text in stamp.places.items():
        try:
            have = Version(text)
        except ValueError:
            have = None
        if have is not None and have.public == want.public and (want.local is None or have.local == want.local):
            yield Finding("stamp.expected", stamp.project, Verdict.PASS, f"{place} says {text}, as expected")
        else:
            got = f"{place} says {shown(text)}"
            yield Finding(
                "stamp.expected", stamp.project, Verdict.FAIL, got, str(want), "Build the pinned sources."
            )


def judge_build_record(record: Mapping[str, object]) -> Iterator[Finding]:
    """A build record must name the commit of every part that it speaks of."""
    unknown = []
    for key, value in sorted(record.items()):
        if re.search(r"(^|_)(commit|sha|revision|ref)$", key):
            text = "" if value is None else str(value).strip()
            if text.lower() in _UNKNOWN:
                unknown.append(key)
                got = f"is {text or 'empty'!r}: nobody can tell what was built"
                advice = "Write the commit down when the source is fetched."
                yield Finding("record.commit", key, Verdict.FAIL, got, "a commit", advice, _RECORD)
            elif re.search(r"commit|sha", key) and not re.fullmatch(r"g?[0-9a-f]{7,64}", text):
                unknown.append(key)
                yield Finding(
                    "record.commit", key, Verdict.FAIL, f"is {shown(text)!r}", "a commit", source=_RECORD
                )
    if not unknown:
        yield Finding("record.commit", "build record", Verdict.PASS, "every part has its commit")


def _normal(text: str) -> str:
    try:
        return str(Version(text))
    except ValueError:
        return text
