"""Reads the log of a build line by line and says what the lines mean.

What is not known never hurts: an unknown line is passed over. A line is cut to LONGEST characters before it is
looked at, and every pattern is bounded, so no log can make the reader slow.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sm121.findings import Finding, Verdict
from sm121.target import GB10, Capability, loads_as
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST = 4000
"""Characters of a line that are looked at: half from its start, half from its end."""
MOST = 50
"""Different findings kept per class; a log with more repeats itself."""

_NOISE = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\r")
_PREFIX = re.compile(r"^#\d{1,6} \d{1,7}\.\d{1,4} ")
_SKIPPED = re.compile(
    r"-- Not building (?P<name>.{1,80}?) as (?P<why>no compatible archs|CUDA Compiler version|all archs)"
)
_LEFT_OUT = re.compile(
    r"-- (?:\[(?P<upper>\w{1,40})\] Skipping build|(?P<name>\w{1,40}) will not compile): (?P<why>.{1,120})"
)
_BUILT = re.compile(r"-- Building (?P<name>.{1,80}?) for archs: (?P<archs>[0-9.afPTX+; ]{1,200})")
_OUR_FAMILY = re.compile(r"(?i)(?:sm|_)_?12(?:[01x]|\b)")


@dataclass(frozen=True, slots=True)
class Signature:
    """One kind of line: which lines, what they mean, what to do."""

    name: str
    words: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    says: str
    advice: str
    verdict: Verdict
    source: str

    def match(self, line: str) -> dict[str, str] | None:
        """The named parts of `line` if it is of this kind."""
        if not any(word in line for word in self.words):
            return None
        for pattern in self.patterns:
            found = pattern.search(line)
            if found:
                return {name: (value or "").strip() for name, value in found.groupdict().items()}
        return None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A group of kernels by the name that CMake prints, and whether a build for 12.x needs it."""

    names: re.Pattern[str]
    needed: bool


@dataclass
class _Skip:
    line: int
    why: str


@dataclass
class LogReader:
    """Collects what the lines of one log mean for a build that shall run on `capability`.

    Feed it every line as it comes, then ask for the diagnoses; asking does not end the reading.
    """

    capability: Capability = GB10
    _number: int = 0
    _found: dict[tuple[str, str], Finding] = field(default_factory=dict)
    _kept: dict[str, int] = field(default_factory=dict)
    _skipped: dict[str, _Skip] = field(default_factory=dict)
    _built: dict[str, tuple[ArchSpec, ...]] = field(default_factory=dict)

    def feed(self, line: str) -> None:
        """Look at one line, with or without its end."""
        self._number += 1
        text = _clean(line)
        for signature in signatures():
            parts = signature.match(text)
            if parts is not None:
                self._keep(signature, parts, text)
        self._kernels(text)

    def diagnoses(self, status: int | None = None) -> list[Finding]:
        """What is known so far; `check` is `log.` and the class.

        `status` is the exit status, if it is known: a fault in a log that ended with 0 was survived and becomes a
        warning, 137 and -9 mean that the program was killed, and any other status that no line explains is
        UNKNOWN.
        """
        findings = [*self._found.values()]
        if status in {137, -9} and not any(finding.check == "log.out-of-memory" for finding in findings):
            findings.append(_killed(status))
        if status == 0:
            findings = [_survived(finding) for finding in findings]
        findings += self._skips()
        failed = any(finding.verdict is Verdict.FAIL for finding in findings)
        if status and not failed:
            got = f"it ended with {status}, and no line tells a known reason"
            findings.append(Finding("log.unexplained", "build log", Verdict.UNKNOWN, got))
        return findings

    def _keep(self, signature: Signature, parts: dict[str, str], line: str) -> None:
        says = signature.says.format(**parts) if parts else signature.says
        key = (signature.name, says)
        if key in self._found or self._kept.get(signature.name, 0) >= MOST:
            return
        self._kept[signature.name] = self._kept.get(signature.name, 0) + 1
        self._found[key] = Finding(
            f"log.{signature.name}",
            f"log line {self._number}",
            signature.verdict,
            f"{says}; it says: {line.strip()[:300]}",
            advice=signature.advice.format(**parts) if parts else signature.advice,
            source=signature.source,
        )

    def _kernels(self, line: str) -> None:
        if "-- " not in line:
            return
        built = _BUILT.search(line)
        if built:
            archs = tuple(_archs(built["archs"]))
            name = built["name"].strip()
            self._built[name] = (*self._built.get(name, ()), *archs)
            return
        skipped = _SKIPPED.search(line)
        left_out = None if skipped else _LEFT_OUT.search(line)
        if skipped:
            self._skipped.setdefault(skipped["name"].strip(), _Skip(self._number, skipped["why"]))
        elif left_out:
            name = left_out["upper"] or left_out["name"]
            self._skipped.setdefault(name, _Skip(self._number, left_out["why"]))

    def _skips(self) -> Iterator[Finding]:
        for name, skip in self._skipped.items():
            # Old trees print one name for two chip families; then the other line counts.
            if self._loads(self._built.get(name, ())):
                continue
            kernel = _kernel(name)
            needed = (kernel.needed if kernel else bool(_OUR_FAMILY.search(name))) and self.capability.major == 12
            if needed and skip.why.startswith("all archs"):
                needed = False
            if needed:
                advice = "Check the architecture list and the toolkit: what is configured lacks 12.x."
                got = f"{name}: not built ({skip.why})"
                yield _skipped(
                    "kernels-skipped", skip, Verdict.FAIL, got, f"{name} for {self.capability}", advice
                )
            else:
                usual = ", as is usual for 12.x" if kernel and self.capability.major == 12 else ""
                yield _skipped("skip", skip, Verdict.INFO, f"{name}: not built ({skip.why}){usual}")
        for name, archs in self._built.items():
            kernel = _kernel(name)
            ours = [arch for arch in archs if arch.major == self.capability.major]
            if kernel and kernel.needed and ours and not self._loads(tuple(ours)):
                got = f"{name} is built for {', '.join(map(str, ours))}, which does not load on {self.capability}"
                yield Finding(
                    "log.kernels-other-chip",
                    "build log",
                    Verdict.FAIL,
                    got,
                    advice="Use 12.0f with CUDA 13, 12.1a with CUDA 12.9.",
                )

    def _loads(self, archs: tuple[ArchSpec, ...]) -> bool:
        return any(loads_as("cubin", arch, self.capability).machine_code for arch in archs)


@cache
def signatures() -> tuple[Signature, ...]:
    """The kinds of lines that are known (signatures.toml)."""
    return tuple(
        Signature(
            name=row["class"],
            words=tuple(row["words"]),
            patterns=tuple(re.compile(pattern) for pattern in row["patterns"]),
            says=row["says"],
            advice=row["advice"],
            verdict=Verdict(row.get("verdict", "fail")),
            source=row["source"],
        )
        for row in _data()["signature"]
    )


@cache
def kernels() -> tuple[Kernel, ...]:
    """The names that CMake prints, and what they are for."""
    return tuple(Kernel(re.compile(row["names"]), row["needed"]) for row in _data()["kernel"])


def _kernel(name: str) -> Kernel | None:
    return next((kernel for kernel in kernels() if kernel.names.fullmatch(name)), None)


def _clean(line: str) -> str:
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    return _PREFIX.sub("", _NOISE.sub("", line.rstrip("\n")))


def _archs(text: str) -> Iterator[ArchSpec]:
    for word in re.split(r"[; ]+", text.strip()):
        try:
            yield ArchSpec.parse(word)
        except ValueError:
            continue


def _killed(status: int) -> Finding:
    signature = next(signature for signature in signatures() if signature.name == "out-of-memory")
    got = f"it ended with {status}, which is a kill: {signature.says}"
    return Finding("log.out-of-memory", "build log", Verdict.FAIL, got, advice=signature.advice)


def _skipped(kind: str, skip: _Skip, verdict: Verdict, got: str, wanted: str = "", advice: str = "") -> Finding:
    return Finding(f"log.{kind}", f"log line {skip.line}", verdict, got, wanted, advice)


def _survived(finding: Finding) -> Finding:
    if finding.verdict is not Verdict.FAIL:
        return finding
    return Finding(
        finding.check, finding.subject, Verdict.WARN, f"{finding.got}; it ended with 0 all the same",
        advice=finding.advice, source=finding.source,
    )  # fmt: skip


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(files("sm121.compile").joinpath("signatures.toml").read_text(encoding="utf-8"))
