"""Does a wheel install where it is to run, and does an index offer one that does?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from packaging.tags import Tag, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from sm121.findings import Finding, Verdict
from sm121.inspector.words import joined, listed, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TAGS = "https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/"
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Where a wheel is to run: CPython `version`, free-threaded or not, glibc (None if unknown), CPU."""

    version: tuple[int, int]
    threaded: bool
    glibc: tuple[int, int] | None
    machine: str

    @classmethod
    def parse(cls, python: str, glibc: str = "", machine: str = "aarch64") -> Self:
        """Read `3.12` or `3.13t`, and `2.39`; ValueError says what is wrong."""
        match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?(t?)", python)
        if not match:
            raise ValueError(f"a Python version looks like 3.12 or 3.13t, found {python!r}")
        libc = re.fullmatch(r"(\d+)\.(\d+)", glibc) if glibc else None
        if glibc and not libc:
            raise ValueError(f"a glibc version looks like 2.39, found {glibc!r}")
        return cls(
            (int(match[1]), int(match[2])),
            bool(match[3]),
            (int(libc[1]), int(libc[2])) if libc else None,
            machine,
        )

    def tags(self) -> frozenset[Tag]:
        """All tags that it takes."""
        abi = f"cp{self.version[0]}{self.version[1]}" + ("t" if self.threaded else "")
        newest = self.glibc[1] if self.glibc else 99
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, 4, -1)]
        platforms += [f"{name}_{self.machine}" for name, (_, minor) in _LEGACY.items() if minor <= newest]
        specific = cpython_tags(self.version, [abi], [*platforms, f"linux_{self.machine}"])
        pure = {Tag(f"py{self.version[0]}", "none", "any"), Tag(f"py2.py{self.version[0]}", "none", "any")}
        return frozenset(specific) | pure

    def __str__(self) -> str:
        threaded = "t (free-threaded)" if self.threaded else ""
        glibc = f", glibc {self.glibc[0]}.{self.glibc[1]}" if self.glibc else ""
        return f"Python {self.version[0]}.{self.version[1]}{threaded} on {self.machine}{glibc}"


def judge_tags(filename: str, interpreter: Interpreter) -> Iterator[Finding]:
    """Whether `interpreter` installs the wheel; every reason why not."""
    try:
        *_, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename as error:
        yield Finding("wheel.name", shown(filename), Verdict.FAIL, f"no wheel's name: {error}", source=_TAGS)
        return
    if tags & interpreter.tags():
        yield Finding("wheel.installs", filename, Verdict.PASS, f"installs on {interpreter}")
        return
    reasons = list(
        dict.fromkeys(reason for tag in sorted(tags, key=str) for reason in _reasons(tag, interpreter))
    )
    got = f"does not install on {interpreter}: {joined(reasons) or 'no tag fits'}"
    yield Finding("wheel.installs", filename, Verdict.FAIL, got, "a tag that fits", source=_TAGS)


def _reasons(tag: Tag, interpreter: Interpreter) -> Iterator[str]:
    match = re.fullmatch(
        r"(manylinux\w*?|linux|musllinux_\d+_\d+)_((?:x86_64|aarch64|i686|armv7l|ppc64le|s390x|riscv64))",
        tag.platform,
    )
    if match and match[2] != interpreter.machine:
        yield f"{tag.platform} is for {match[2]}, not {interpreter.machine}"
    elif match is None and tag.platform != "any":
        yield f"{tag.platform} is another system"
    needs = glibc_of(tag.platform)
    if needs and interpreter.glibc and needs > interpreter.glibc:
        yield f"{tag.platform} needs glibc {needs[0]}.{needs[1]}, found {interpreter.glibc[0]}.{interpreter.glibc[1]}"
    version = "".join(map(str, interpreter.version))
    if tag.abi == "abi3" and interpreter.threaded:
        yield f"free-threaded Python {interpreter.version[0]}.{interpreter.version[1]}t takes no abi3 wheel"
    elif tag.abi == "abi3" and (minimum := re.fullmatch(r"cp(\d)(\d+)", tag.interpreter)):
        if (int(minimum[1]), int(minimum[2])) > interpreter.version:
            yield f"{tag.interpreter} needs Python {minimum[1]}.{minimum[2]} or later"
    elif re.fullmatch(r"cp\d+t?", tag.abi) and tag.abi != f"cp{version}{'t' if interpreter.threaded else ''}":
        yield f"it was built for {tag.abi} only"


def glibc_of(platform: str) -> tuple[int, int] | None:
    """The glibc that a platform tag promises to need at most: (2, 28) for manylinux_2_28_aarch64."""
    match = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    if match:
        return int(match[1]), int(match[2])
    return next((version for name, version in _LEGACY.items() if platform.startswith(f"{name}_")), None)


def judge_one_version(names: Sequence[str]) -> Iterator[Finding]:
    """A staging folder or an environment holds one version, and one spelling, of each project.

    `names` are wheel file names or `name==version` lines.
    """
    found: dict[str, dict[str, str]] = {}
    for text in names:
        name, version = _name_and_version(text)
        if name:
            found.setdefault(canonicalize_name(name), {})[text] = version
    clean = True
    for project, entries in sorted(found.items()):
        versions = sorted(set(entries.values()))
        if len(versions) > 1:
            clean = False
            got = f"is there in {len(versions)} versions, {joined(versions)}: {listed(sorted(entries))}"
            yield Finding(
                "set.version", project, Verdict.FAIL, got, "one version", "Empty the folder before a build."
            )
        elif len(entries) > 1 and len({_name_and_version(text)[0] for text in entries}) > 1:
            clean = False
            got = f"is there under {len(entries)} spellings: {listed(sorted(entries))}"
            yield Finding(
                "set.version", project, Verdict.FAIL, got, "one distribution", "Uninstall both, install one."
            )
    if clean and found:
        yield Finding("set.version", "the set", Verdict.PASS, f"holds each of {len(found)} projects once")


def _name_and_version(text: str) -> tuple[str, str]:
    if text.endswith(".whl"):
        parts = text.rpartition("/")[2].split("-")
        return (parts[0], parts[1]) if len(parts) >= 5 else ("", "")
    name, _, version = text.partition("==")
    return name.strip(), version.strip()
