"""Do the kernel families that a project needs run on the capability?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.rules import Code, Presence
from sm121.inspector.words import joined, listed
from sm121.progress import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from sm121.inspector.coverage import FamilyCoverage
    from sm121.inspector.rules import Expectation, FamilyRule
    from sm121.target import Capability


def judge_presence(expectation: Expectation, paths: Collection[str]) -> Iterator[Finding]:
    """Libraries that must be there, and libraries that must not; `paths` are all files of the project."""
    subject = f"{expectation.project} {expectation.version}".strip()
    if not expectation.known and expectation.read:
        yield Finding(
            "expected.version", subject, Verdict.WARN,
            "nobody has written down what this version must hold; judged by the rules for "
            f"{joined(expectation.read)}",
            advice="Compare it with an official wheel of the same version.",
        )  # fmt: skip
    missing = []
    partial = "partial" in expectation.version.partition("+")[2].split(".")
    for rule in expectation.libraries:
        found = [path for path in paths if rule.matches(path)]
        if rule.presence is Presence.MUST and not found:
            missing.append(rule.path)
            got = f"{rule.path} is missing" + (", and its version says that it is a part" if partial else "")
            verdict = Verdict.WARN if partial else Verdict.FAIL
            yield Finding("expected.library", subject, verdict, got, rule.why or "it")
        for path in found if rule.presence is Presence.MUST_NOT else ():
            yield Finding("expected.library", path, Verdict.FAIL, "must not be there", "no such file", rule.why)
    musts = [rule.path for rule in expectation.libraries if rule.presence is Presence.MUST]
    if musts and not missing:
        yield Finding("expected.library", subject, Verdict.PASS, f"holds {listed(musts)}")


def judge_families(
    rules: Sequence[FamilyRule], families: Sequence[FamilyCoverage], subject: str, capability: Capability
) -> Iterator[Finding]:
    """Families that must be there and do their work on `capability`."""
    by_name = {family.name: family for family in families}
    for rule in rules:
        for name in rule.names:
            yield _family(rule, name, by_name.get(name), subject, capability)


def _family(
    rule: FamilyRule, name: str, family: FamilyCoverage | None, subject: str, capability: Capability
) -> Finding:
    wanted = (
        "kernels that run without the driver's compiler" if rule.wants is Code.MACHINE else "kernels that run"
    )
    if family is None:
        return Finding("expected.family", subject, rule.missing, f"no kernel of {name}", wanted)
    serving = family.machine if rule.wants is Code.MACHINE else family.serving
    states = ", ".join(f"{count} {state}" for state, count in sorted(family.kernels.items()))
    if serving:
        got = f"{name}: {plural(serving, 'kernel')} of {sum(family.kernels.values())} on {capability}"
        return Finding("expected.family", subject, Verdict.PASS, f"{got} ({states})")
    return Finding("expected.family", subject, rule.missing, f"{name}: none on {capability} ({states})", wanted)
