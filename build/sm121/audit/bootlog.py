"""Reads a server's log as it comes: what was chosen, the numbers, and every line that is known to mean trouble."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from sm121.findings import Finding, Verdict, overall

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST = 8000
"""Characters of a line that are looked at: selection lines are long, dumps of tensors are longer."""
_MOST_SEEN = 500
_LARGEST = 1e12
_MOST = {"cache_gib": 1e6, "cache_tokens": _LARGEST, "weights_gib": 1e6}
"""The largest value that can be right, for numbers that cannot be 0."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_PREFIX = re.compile(
    r"^(?:\([^)]{1,80}\)\s*)?(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+[\d:. -]{5,30}\s*\[[^\]]{1,120}\]\s*)?"
)


@dataclass(frozen=True, slots=True)
class _Fact:
    name: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class _Fault:
    pattern: re.Pattern[str]
    row: dict[str, Any]


@lru_cache(maxsize=1)
def _signatures() -> tuple[tuple[_Fact, ...], tuple[_Fault, ...]]:
    data = tomllib.loads((files("sm121.audit") / "data" / "bootlog.toml").read_text("utf-8"))
    facts = tuple(_Fact(row["name"], re.compile(row["pattern"])) for row in data["fact"])
    return facts, tuple(_Fault(re.compile(row["pattern"]), row) for row in data["fault"])


@dataclass(frozen=True, slots=True)
class Chosen:
    """A backend that the log names. `kind` is the format or the quantization method, "" for attention."""

    layer: str
    name: str
    kind: str = ""


@dataclass
class BootLog:
    """What was read so far. Feed it lines in order; it may be looked at any time."""

    lines: int = 0
    version: str = ""
    arguments: str = ""
    chosen: list[Chosen] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    """cache_gib, cache_tokens, concurrency, longest_request, weights_gib, graphs_seconds, graphs_gib, compile_seconds."""
    unusable: dict[str, str] = field(default_factory=dict)
    """Numbers that cannot be right, as they are written."""
    bytes_per_token: float | None = None
    """KV cache bytes of one token of context, over all layers: the pool by the tokens that fit in it."""
    ready: bool = False
    starts: int = 0
    """How often a server was started in this log."""
    findings: list[Finding] = field(default_factory=list)
    _seen: dict[str, int] = field(default_factory=dict)

    def feed(self, line: str) -> list[Finding]:
        """Take one line; the findings that are new. No line can make it fail."""
        self.lines += 1
        text = _PREFIX.sub("", _COLOUR.sub("", line[:_LONGEST]).strip(), count=1)
        if not text:
            return []
        facts, faults = _signatures()
        for fact in facts:
            match = fact.pattern.search(text)
            if match:
                self._note(fact.name, match)
        fresh = []
        for fault in faults:
            match = fault.pattern.search(text)
            if match:
                finding = self._finding(fault.row, match, text)
                count = self._seen.get(finding.check, 0)
                self._seen[finding.check] = count + 1
                if count == 0:
                    fresh.append(finding)
        self.findings.extend(fresh)
        return fresh

    def read(self, lines: Iterable[str]) -> BootLog:
        """Feed all lines."""
        for line in lines:
            self.feed(line)
        return self

    def count(self, check: str) -> int:
        """How many lines showed a fault."""
        return self._seen.get(check, 0)

    @property
    def verdict(self) -> Verdict:
        """The gravest finding; a log without faults passes only if the server came up."""
        findings = [*self.findings, *self.closing()]
        return overall(findings) if findings else Verdict.PASS

    def closing(self) -> list[Finding]:
        """What the log as a whole shows, when it has ended: no server, a server that is not up, or several starts."""
        found = []
        if not (self.version or self.starts or self.chosen or self.numbers or self.ready or self.findings):
            got = (
                f"none of its {self.lines} lines is one that vLLM writes at start"
                if self.lines
                else "it is empty"
            )
            advice = (
                "Give all that the server prints, from its first line on: docker logs NAME 2>&1 | sm121 bootlog -"
            )
            found.append(Finding("bootlog.no-server", "the log", Verdict.UNKNOWN, got, "a vLLM log", advice))
        elif not self.ready:
            got = "it ends before the server is up"
            advice = "Wait for `Application startup complete`, or read its last lines for what stopped it."
            found.append(
                Finding("bootlog.not-up", "the log", Verdict.UNKNOWN, got, "a server that is up", advice)
            )
        if self.starts > 1:
            got = f"a server was started {self.starts} times; numbers and choices may be of several"
            advice = "If nobody restarted it, look for what ended it, just above each new start."
            found.append(Finding("bootlog.restarted", "the log", Verdict.WARN, got, "one start", advice))
        return found

    def names(self, layer: str) -> list[str]:
        """What was chosen for a kind of layer, in order, each once."""
        return list(dict.fromkeys(item.name for item in self.chosen if item.layer == layer))

    def _note(self, name: str, match: re.Match[str]) -> None:
        groups = match.groupdict()
        value, kind = groups["value"], groups.get("kind") or ""
        if name == "version":
            self.version = self.version or value
        elif name == "arguments":
            self.arguments = value
            self.starts += 1
            self.ready = False
        elif name == "ready":
            self.ready = True
        elif name in {"experts", "dense", "attention"}:
            found = Chosen(name, value, kind)
            if found not in self.chosen and len(self.chosen) < _MOST_SEEN:
                self.chosen.append(found)
        else:
            self._number(name, value)
            second = {"concurrency": "longest_request", "graphs_seconds": "graphs_gib"}.get(name)
            if second:
                self._number(second, kind)

    def _number(self, name: str, text: str) -> None:
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            value = -1
        if not 0 <= value <= _MOST.get(name, _LARGEST) or (name in _MOST and not value):
            self.unusable[name] = text[:40]
            self.numbers.pop(name, None)
            return
        self.numbers[name] = value
        if name == "cache_tokens" and "cache_gib" in self.numbers:
            # In this order they are written; a later boot in the same log brings a pair of its own.
            self.bytes_per_token = self.numbers["cache_gib"] * 2**30 / value

    def _finding(self, row: dict[str, Any], match: re.Match[str], text: str) -> Finding:
        got, advice = row["got"], row["advice"]
        what = match.groupdict().get("what")
        for reason in row.get("reasons", ()):
            if re.search(reason["arguments"], self.arguments, re.IGNORECASE):
                got, advice = reason["got"], reason["advice"]
                break
        shown = text if len(text) <= 160 else f"{text[:157]}..."
        return Finding(
            row["check"], f"line {self.lines}", Verdict(row["verdict"]),
            f"{got}{f' ({what})' if what else ''}, by the line {shown!r}",
            advice=advice, source=f"{row['source']} ({row['date']}); link: {row['link']}",
        )  # fmt: skip
