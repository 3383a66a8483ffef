"""Was delivered what was promised? Requested, configured, asked of the compiler, found in the bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.words import joined, listed, shown
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sm121.inspector.coverage import FamilyCoverage, LibraryCoverage
    from sm121.inspector.facts import ArtifactFacts
    from sm121.inspector.promise import Promise

_SILENT = "https://github.com/vllm-project/vllm/issues/36835"


@dataclass(frozen=True, slots=True)
class Trace:
    """One library's way from the request to the bytes; targets with their numbers."""

    library: str
    gencodes: Mapping[str, int]
    promised: Mapping[str, int]
    delivered: Mapping[str, int]

    @property
    def lost(self) -> tuple[str, ...]:
        """Targets of which fewer were delivered than asked for."""
        asked = Counter(self.gencodes) | Counter(self.promised)
        return tuple(sorted(target for target in asked if self.delivered.get(target, 0) < asked[target]))


def trace(promise: Promise, libraries: Sequence[LibraryCoverage]) -> tuple[Trace, ...]:
    """The traces of all libraries that were promised or delivered with device code."""
    delivered = {library.facts.path: _delivered(library) for library in libraries}
    asked = promise.gencodes.keys() | promise.libraries.keys()
    names = {_found(name, delivered) or name: name for name in asked}
    names.update({path: path for path, targets in delivered.items() if targets and path not in names})
    return tuple(
        Trace(path, promise.gencodes.get(name, {}), promise.libraries.get(name, {}), delivered.get(path, {}))
        for path, name in sorted(names.items())
    )


def judge_promise(
    promise: Promise,
    facts: ArtifactFacts,
    libraries: Sequence[LibraryCoverage],
    families: Sequence[FamilyCoverage],
) -> Iterator[Finding]:
    """All differences between promise and bytes."""
    yield from _digests(promise, facts)
    paths = {library.facts.path for library in libraries}
    yield from _configured(promise)
    broken = False
    for line in trace(promise, libraries):
        if not (line.gencodes or line.promised):
            continue
        if line.library not in paths:
            broken = True
            yield Finding("promise.library", line.library, Verdict.FAIL, "was promised and is not there")
            continue
        for stage, wanted in (("the build files", line.gencodes), ("the promise", line.promised)):
            for finding in _compare(line, stage, wanted):
                broken = True
                yield finding
    for path in promise.left_out:
        if (found := _found(path, paths)) is not None:
            broken = True
            got = "was to be left out and is there"
            yield Finding("promise.left-out", found, Verdict.FAIL, got, "no such file")
    by_name = {family.name: family for family in families}
    for name in promise.families:
        family = by_name.get(name)
        if family is None or not family.machine:
            broken = True
            states = (
                ", ".join(f"{count} {state}" for state, count in sorted(family.kernels.items())) if family else ""
            )
            got = f"{shown(name)}: " + (
                f"no kernel runs without the driver's compiler ({states})" if family else "none"
            )
            yield Finding("promise.family", "families", Verdict.FAIL, got, "as promised")
    if not broken and (promise.libraries or promise.gencodes or promise.families):
        count = len(promise.libraries.keys() | promise.gencodes.keys())
        yield Finding(
            "promise.kept", "promise", Verdict.PASS, f"{count} libraries hold the images that were promised"
        )


def _digests(promise: Promise, facts: ArtifactFacts) -> Iterator[Finding]:
    """The artifact and its libraries against the digests that were written down for them."""
    have = {library.path: library.sha256 for library in facts.libraries}
    pairs = [(path, _found(path, set(have)), said) for path, said in promise.digests.items()]
    equal = 0
    for path, found, said in pairs:
        if found is None:
            yield Finding("promise.digest", shown(path), Verdict.FAIL, "stands in the manifest and is not there")
        elif have[found] and have[found] != said:
            yield Finding("promise.digest", found, Verdict.FAIL, f"has the sha256 {have[found]}", said)
        else:
            equal += bool(have[found])
    name = facts.name.rpartition("/")[2]
    if facts.sha256 and name in promise.outputs and promise.outputs[name] != facts.sha256:
        yield Finding(
            "promise.digest", name, Verdict.FAIL, f"has the sha256 {facts.sha256}", promise.outputs[name]
        )
    elif equal == len(pairs) and pairs:
        yield Finding("promise.digest", name, Verdict.PASS, f"{equal} libraries have the digests of the manifest")


def _configured(promise: Promise) -> Iterator[Finding]:
    """Requested architectures that the configuration did not take over."""
    if not promise.configured:
        return
    configured = {arch for group in promise.configured.values() for arch in group}
    groups = "; ".join(
        f"{group}: {listed(archs, 8) or 'none'}" for group, archs in sorted(promise.configured.items())
    )
    for arch in promise.requested:
        if arch not in configured:
            got = f"{shown(arch)} was requested and became {groups}"
            yield Finding("promise.configured", "architectures", Verdict.INFO, got, source=_SILENT)
    asked = {target for targets in promise.gencodes.values() for target in targets}
    if not asked:
        return
    for arch in sorted(configured):
        try:
            spec = ArchSpec.parse(arch)
        except ValueError:
            yield Finding(
                "promise.configured", "architectures", Verdict.UNKNOWN, f"{shown(arch)} is no architecture"
            )
            continue
        if spec.sm not in asked and spec.compute not in asked:
            got = f"{arch} was configured, and no build file asks the compiler for {spec.sm}"
            yield Finding(
                "promise.gencode", "architectures", Verdict.FAIL, got, f"a unit for {spec.sm}", source=_SILENT
            )


def _compare(line: Trace, stage: str, wanted: Mapping[str, int]) -> Iterator[Finding]:
    for target, count in sorted(wanted.items()):
        have = line.delivered.get(target, 0)
        if have < count:
            got = f"{have} images of {target} were delivered, {stage} asked for {count}"
            yield Finding(
                "promise.targets", line.library, Verdict.FAIL, got, f"{count} of {target}", source=_SILENT
            )
    more = sorted(target for target, have in line.delivered.items() if wanted and have > wanted.get(target, 0))
    if more:
        counts = joined(
            [f"{line.delivered[target]} of {target} ({wanted.get(target, 0)} asked for)" for target in more]
        )
        yield Finding(
            "promise.targets", line.library, Verdict.FAIL, f"holds more than {stage} asked for: {counts}"
        )


def _delivered(library: LibraryCoverage) -> dict[str, int]:
    return dict(Counter(image.target for unit in library.counted for image in unit.facts.images))


def _found(name: str, paths: Collection[str]) -> str | None:
    """The path that is, or ends with, `name`."""
    return name if name in paths else next((path for path in sorted(paths) if path.endswith(f"/{name}")), None)
