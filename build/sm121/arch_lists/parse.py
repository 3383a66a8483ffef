"""Reads an architecture list the way its project does, but strictly: what would be misread is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.errors import PlanError
from sm121.findings import Finding, Verdict
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Syntax:
    """How one reader takes a list apart."""

    variable: str
    separator: str
    """Regular expression of what stands between two items."""
    shown: str
    """The separators in words."""
    stray: bool
    """Leading, trailing and doubled separators are skipped."""
    suffixes: str
    ptx: bool
    example: str


SYNTAXES = {
    # torch's CMake module (select_compute_arch.cmake) splits at blanks, CMake at semicolons.
    "vllm": Syntax("TORCH_CUDA_ARCH_LIST", r"[ \t;]+", "a semicolon or a blank", True, "af", True, "9.0;12.0f"),
    # flashinfer/compilation_context.py: split(" "), so a second blank makes an empty item.
    "flashinfer": Syntax("FLASHINFER_CUDA_ARCH_LIST", r" ", "one space", False, "af", False, "12.0f 12.1a"),
    # torch.utils.cpp_extension (torch 2.14.1), which reads the variable that vLLM's CMake reads too.
    "torch": Syntax("TORCH_CUDA_ARCH_LIST", r"[ ;]", "a semicolon or a space", False, "a", True, "9.0;12.1a"),
}
"""Project to syntax: vLLM, FlashInfer, and any extension that torch.utils.cpp_extension builds."""


@dataclass(frozen=True, slots=True)
class ArchList:
    """A list taken apart. `findings` holds everything that is wrong with it, and what was tolerated."""

    project: str
    text: str
    archs: tuple[ArchSpec, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.verdict is not Verdict.FAIL for finding in self.findings)


def syntax_of(project: str) -> Syntax:
    """The syntax of `project`; PlanError if it is not known."""
    if project not in SYNTAXES:
        known = ", ".join(SYNTAXES)
        raise PlanError(f"there is no project {project!r} with an architecture list; there are {known}.")
    return SYNTAXES[project]


def parse_arch_list(project: str, text: str) -> ArchList:
    """Take `text` apart; every bad item becomes a finding of its own."""
    syntax = syntax_of(project)
    if not text.strip(" \t\r\n;,"):
        empty = _finding(
            syntax,
            Verdict.FAIL,
            f"the list is empty ({text!r}), so the architecture of whatever GPU the build machine has is taken",
            f"Name the architectures, e.g. {syntax.example}.",
        )
        return ArchList(project, text, (), (empty,))
    findings = []
    items = re.split(syntax.separator, text)
    if syntax.stray:
        kept = [item for item in items if item]
        if len(kept) < len(items):
            findings.append(_finding(syntax, Verdict.INFO, f"a separator too many in {text!r} is skipped"))
        items = kept
    archs: list[ArchSpec] = []
    for position, item in enumerate(items):
        before = items[position - 1] if position else ""
        problem = _problem(syntax, item, before)
        if problem:
            got, advice = problem
            findings.append(_finding(syntax, Verdict.FAIL, got, advice))
            continue
        arch = ArchSpec.parse(item)
        if arch in archs:
            findings.append(_finding(syntax, Verdict.INFO, f"{arch} is named twice"))
        else:
            archs.append(arch)
    return ArchList(project, text, tuple(archs), tuple(findings))


def _problem(syntax: Syntax, item: str, before: str) -> tuple[str, str] | None:
    """What is wrong with one item, and what to write instead."""
    if not item:
        return "a separator too many makes an empty item", f"Put exactly {syntax.shown} between two items."
    if not item.isascii() or not re.fullmatch(r"\d{1,2}\.\d[af]?(\+PTX)?", item):
        return f"the token {item!r} is no architecture", next(_remedies(syntax, item, before))
    arch = ArchSpec.parse(item)
    if arch.ptx and not syntax.ptx:
        return f"the token {item!r} asks for PTX, which this list cannot", f"Write {item.removesuffix('+PTX')}."
    if arch.suffix and arch.suffix not in syntax.suffixes:
        return f"the token {item!r} has a suffix that this reader refuses", f"Write {arch.major}.{arch.minor}a."
    return None


_NAMES = {
    "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin",
    "all", "all-major", "auto", "common", "native",
}  # fmt: skip


def _remedies(syntax: Syntax, item: str, before: str) -> Iterator[str]:
    separated = f"Put {syntax.shown} between two items, as in {syntax.example!r}"
    if "," in item:
        yield f"A comma is no separator. {separated}."
    if re.search(r"[;\s]", item):
        yield f"{item!r} holds a separator that this list does not know. {separated}."
    if item.lower() in {"a", "f"} and re.fullmatch(r"\d{1,2}\.\d", before):
        yield f"A suffix follows its number without a blank: write {before}{item.lower()}."
    if match := re.fullmatch(r"(?:sm_|compute_)?([5-9]|1\d)(\d)([af]?)(?:-real|-virtual)?", item):
        yield f"Write {int(match[1])}.{match[2]}{match[3]}."
    if match := re.fullmatch(r"(\d{1,2}\.\d)([AF])", item):
        yield f"The suffix is lower-case: write {match[1]}{match[2].lower()}."
    if re.fullmatch(r"(\d{1,2}\.\d)[af]{2,}", item):
        yield f"One architecture has one suffix: write {item[:-1] if item[-2] in 'af' else item} or two items."
    if match := re.fullmatch(r"(\d{1,2}\.\d[af]?)\(.*\)", item):
        yield f"PTX of one architecture cannot become code of another here: write {match[1]}."
    if match := re.fullmatch(r"(\d{1,2}\.\d[af]?)\+(?i:ptx)", item):
        yield f"Write {match[1]}+PTX."
    if item.lower().partition("+")[0] in _NAMES:
        yield "Write numbers: a name stands for other chips in every release."
    yield f"An architecture looks like 12.1, 12.1a or 12.0f. {separated}."


def _finding(syntax: Syntax, verdict: Verdict, got: str, advice: str = "") -> Finding:
    return Finding("arch-list.syntax", syntax.variable, verdict, got, advice=advice)
