"""Is a wheel what its name says: tags, CPU, real needs, size?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from sm121.findings import Finding, Verdict
from sm121.inspector.judge.tags import glibc_of
from sm121.inspector.words import joined, listed, shown
from sm121.progress import size as shown_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sm121.inspector.rules import Channel

_RETAGGED = "https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/"
_MACHINES = ("aarch64", "x86_64")


def judge_name(filename: str, tags: Sequence[str], subject: str) -> Iterator[Finding]:
    """The tags of the file name against those in WHEEL."""
    try:
        *_, named = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        yield Finding("wheel.name", shown(filename), Verdict.FAIL, f"no wheel's name: {error}", source=_RETAGGED)
        return
    if not tags:
        yield Finding("wheel.tags", subject, Verdict.WARN, "its WHEEL file names no tag", source=_RETAGGED)
        return
    said = {str(tag) for tag in named}
    inside = {part for tag in tags for part in _expanded(tag)}
    if said == inside:
        yield Finding(
            "wheel.tags", subject, Verdict.PASS, f"file name and WHEEL agree on {listed(sorted(said), 3)}"
        )
        return
    python = {tag.rpartition("-")[0] for tag in said}, {tag.rpartition("-")[0] for tag in inside}
    got = f"the file name says {listed(sorted(said), 3)}, WHEEL says {listed(sorted(inside), 3)}"
    if python[0] != python[1]:
        yield Finding("wheel.tags", subject, Verdict.FAIL, got, "the same tags", source=_RETAGGED)
    else:
        got += ": it was renamed, not retagged"
        yield Finding("wheel.tags", subject, Verdict.INFO, got, "the same tags", source=_RETAGGED)


def _expanded(tag: str) -> Iterator[str]:
    parts = tag.split("-")
    if len(parts) != 3:
        yield tag
        return
    for python in parts[0].split("."):
        for abi in parts[1].split("."):
            for platform in parts[2].split("."):
                yield f"{python}-{abi}-{platform}"


def judge_platform(
    platforms: Sequence[str],
    machines: Mapping[str, str],
    needs: Mapping[str, Mapping[str, Sequence[str]]],
    subject: str,
) -> Iterator[Finding]:
    """Platform tags against what the libraries really need.

    `machines` maps each library to its CPU, `needs` to its symbol versions per needed library.
    """
    yield from _cpu(platforms, machines)
    for platform in platforms:
        promised = glibc_of(platform)
        machine = next((name for name in _MACHINES if platform.endswith(name)), "")
        if promised is None or not machine:
            if platform != "any" and machines:
                got = f"{platform} promises no glibc; an index takes no such wheel"
                yield Finding("wheel.platform", subject, Verdict.INFO, got)
            continue
        yield from _glibc(platform, machine, needs, subject)


def _cpu(platforms: Sequence[str], machines: Mapping[str, str]) -> Iterator[Finding]:
    named = {name for platform in platforms for name in _MACHINES if platform.endswith(name)}
    other = {path: machine for path, machine in machines.items() if machine not in {"", "cuda"}}
    if platforms and not named:
        for path in sorted(other):
            got = f"is host code for {other[path]} in a wheel tagged {joined(list(platforms))}"
            yield Finding("wheel.machine", path, Verdict.FAIL, got, "a platform tag")
        return
    wrong = {path: machine for path, machine in other.items() if named and machine not in named}
    for path, machine in sorted(wrong.items()):
        yield Finding("wheel.machine", path, Verdict.FAIL, f"is for {machine}", joined(sorted(named)))
    if named and other and not wrong:
        yield Finding(
            "wheel.machine", "libraries", Verdict.PASS, f"all {len(other)} are for {joined(sorted(named))}"
        )


def _glibc(
    platform: str, machine: str, needs: Mapping[str, Mapping[str, Sequence[str]]], subject: str
) -> Iterator[Finding]:
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine))
    try:
        tagged = policies.get_policy_by_name(platform)
    except LookupError:
        got = f"{platform} is no platform that auditwheel knows"
        yield Finding("wheel.platform", subject, Verdict.UNKNOWN, got, "a manylinux tag it knows")
        return
    clean = True
    for path, versions in sorted(needs.items()):
        real = policies.versioned_symbols_policy({library: set(names) for library, names in versions.items()})
        if real.priority < tagged.priority:
            clean = False
            beyond = _beyond(versions, tagged.symbol_versions)
            got = f"needs {listed(beyond)}; that is {real.name}"
            yield Finding(
                "wheel.platform",
                path,
                Verdict.FAIL,
                got,
                platform,
                "Build on an older system, or tag it honestly.",
            )
    if clean and needs:
        yield Finding("wheel.platform", subject, Verdict.PASS, f"all libraries keep to {platform}")


def _beyond(versions: Mapping[str, Sequence[str]], allowed: Mapping[str, frozenset[str]]) -> list[str]:
    found = set()
    for names in versions.values():
        for name in names:
            group, _, number = name.partition("_")
            if group in allowed and number not in allowed[group]:
                found.add(name)
    return sorted(found)


def judge_size(size: int, channel: Channel | None, subject: str, name: str = "") -> Iterator[Finding]:
    """A wheel's bytes against the limit of the place where it is to be published."""
    if channel is None:
        got = f"{shown_size(size)}; no limit is known for {shown(name) or 'where it goes'}"
        yield Finding("wheel.size", subject, Verdict.INFO, got)
        return
    limit = f"{'less than' if channel.exclusive else 'at most'} {channel.limit} bytes"
    if channel.allows(size):
        yield Finding(
            "wheel.size", subject, Verdict.PASS, f"{size} bytes, within the limit of {channel.name} ({limit})"
        )
    else:
        got = f"{size} bytes are too large for {channel.name}"
        yield Finding(
            "wheel.size", subject, Verdict.FAIL, got, limit, "Leave dead device code out.", channel.source
        )
