"""cuobjdump as a second reader: agreement, every kind of difference, and no answer at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_facts import FIXTURES, fixture, image, library, unit, write_wheel

from pinned_wheels import inspection_program
from sm121 import process
from sm121.artifact import open_artifact
from sm121.errors import ProgramError
from sm121.findings import Finding, Verdict, overall
from sm121.inspector import Options, inspect_artifact
from sm121.inspector.crosscheck import Tool, compare
from sm121.inspector.listing import Shown, read_dump, read_listing, read_tool_version
from sm121.values import ArchSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

NEW, OLD = Tool("cuobjdump", (13, 5)), Tool("cuobjdump", (12, 8))
DUMP = """
Fatbin elf code:
================
arch = sm_120f
code version = [1,8]

symbols:
OBJECT        WEAK    DEFAULT    -                                 U  .nv.reservedSmem.offset0
FUNC          GLOBAL  DEFAULT    ENTRY                                _Z1kPf
FUNC          LOCAL   DEFAULT    INTERNAL                             helper

Fatbin ptx code:
================
arch = sm_80
code version = [9,0]
compressed
"""


def shown(target: str, *kernels: str) -> Shown:
    ptx = target.startswith("compute")
    return Shown("ptx" if ptx else "cubin", ArchSpec.from_sm(target), None if ptx else frozenset(kernels))


def test_a_dump_is_read() -> None:
    assert read_dump(DUMP) == [shown("sm_120f", "_Z1kPf"), Shown("ptx", ArchSpec(8, 0))]
    assert read_dump("") == []
    with pytest.raises(ValueError, match="device target"):
        read_dump("Fatbin elf code:\narch = unknown\n")


def test_a_list_is_read() -> None:
    lines = [
        "ELF file    1: x.1.sm_120.cubin",
        "PTX file    1: x.1.sm_80.ptx",
        "cuobjdump info    : No ELF file",
        "a.b.2.sm_90a.cubin",
    ]
    assert [(item.kind, item.arch.sm) for item in read_listing(lines)] == [
        ("cubin", "sm_120"), ("ptx", "sm_80"), ("cubin", "sm_90a"),
    ]  # fmt: skip


def test_the_version_is_read() -> None:
    assert read_tool_version("Cuda compilation tools, release 13.5, V13.5.37\n") == (13, 5)
    assert read_tool_version("GNU objdump 2.40") is None


OURS = library("x.so", [unit([image("sm_120f"), image("compute_80")], {"a": [100, None], "b": [100, None]})])


@pytest.mark.parametrize(
    ("theirs", "tool", "verdict"),
    [
        ([shown("sm_120f", "a", "b"), shown("compute_80")], NEW, Verdict.PASS),
        ([shown("compute_80"), shown("sm_120f", "b", "a")], NEW, Verdict.PASS),
        ([shown("sm_120", "a", "b"), shown("compute_80")], NEW, Verdict.FAIL),
        ([shown("sm_120", "a", "b"), shown("compute_80")], OLD, Verdict.PASS),
        ([shown("sm_120f", "a"), shown("compute_80")], NEW, Verdict.FAIL),
        ([shown("sm_120f", "a", "b")], NEW, Verdict.FAIL),
        ([shown("sm_120f", "a", "b"), shown("compute_80"), shown("compute_80")], NEW, Verdict.FAIL),
        ([], NEW, Verdict.FAIL),
    ],
)
def test_images_are_compared(theirs: list[Shown], tool: Tool, verdict: Verdict) -> None:
    assert overall(compare(OURS, theirs, tool)) is verdict


def test_both_sides_of_a_difference_are_named() -> None:
    (finding,) = compare(OURS, [shown("sm_121a", "a", "b"), shown("compute_80")], NEW)
    assert "sm_120f (1)" in finding.got
    assert "sm_121a (1)" in finding.got


def fake(monkeypatch: pytest.MonkeyPatch, answers: dict[str, tuple[int, str, str]]) -> list[Sequence[str]]:
    """A cuobjdump that answers by the option it gets; "" answers --version."""
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str | Path], *, timeout: float | None = None, check: bool = True) -> process.Completed:
        words = tuple(str(word) for word in argv)
        asked.append(words)
        if "--version" in words:
            return process.Completed(words, 0, "Cuda compilation tools, release 13.5, V13.5.37", "")
        assert Path(words[-1]).is_file()
        code, out, err = answers[words[2]]
        return process.Completed(words, code, out, err)

    monkeypatch.setattr(process, "run", run)
    return asked


def crossed(path: Path, *, kernels: bool = True) -> list[Finding]:
    with open_artifact(path) as artifact:
        report = inspect_artifact(
            artifact, Options(jobs=1, cross_check=True, cuobjdump="cuobjdump", kernels=kernels)
        )
    return [finding for finding in report.findings if finding.check == "cross-check.cuobjdump"]


def test_agreement_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.o"
    path.write_bytes(fixture("k_120f.o"))
    asked = fake(monkeypatch, {"-symbols": (0, DUMP.partition("Fatbin ptx")[0], "")})
    assert [finding.verdict for finding in crossed(path)] == [Verdict.PASS]
    assert asked[1][:3] == ("cuobjdump", "-all", "-symbols")


def test_a_difference_fails_the_whole_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.o"
    path.write_bytes(fixture("k_120f.o"))
    fake(monkeypatch, {"-symbols": (0, DUMP, "")})
    assert overall(crossed(path)) is Verdict.FAIL


def test_headers_are_compared_with_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.o"
    path.write_bytes(fixture("k_120f.o"))
    fake(
        monkeypatch,
        {"--list-elf": (0, "ELF file    1: k.1.sm_120.cubin", ""), "--list-ptx": (0, "", "No PTX file")},
    )
    assert overall(crossed(path, kernels=False)) is Verdict.PASS


@pytest.mark.parametrize(
    ("name", "code", "said", "verdict"),
    [
        ("hostonly.so", 255, "does not contain device code", Verdict.PASS),
        ("k_120f.o", 255, "does not contain device code", Verdict.FAIL),
        ("hostonly.so", 1, "Invalid fatbin header", Verdict.FAIL),
    ],
)
def test_refusals(
    name: str, code: int, said: str, verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_bytes(fixture(name))
    fake(monkeypatch, {"-symbols": (code, "", f"cuobjdump info    : File '{name}' {said}")})
    assert overall(crossed(path)) is verdict


def test_damage_that_both_see_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.o"
    path.write_bytes(fixture("k_120f.o")[:4000])
    fake(monkeypatch, {"-symbols": (255, "", "does not contain device code")})
    assert overall(crossed(path)) is Verdict.INFO


def test_no_cuobjdump_is_an_open_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.o"
    path.write_bytes(fixture("k_120f.o"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with open_artifact(path) as artifact:
        report = inspect_artifact(artifact, Options(jobs=1, cross_check=True))
    assert report.verdict is Verdict.UNKNOWN


def test_a_cuobjdump_that_breaks_is_an_open_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> process.Completed:
        raise ProgramError("cuobjdump was not found.")

    path = tmp_path / "k.o"
    path.write_bytes(fixture("k_120f.o"))
    monkeypatch.setattr(process, "run", run)
    assert overall(crossed(path)) is Verdict.UNKNOWN


@pytest.mark.network
def test_a_real_cuobjdump_agrees_on_every_fixture(tmp_path: Path) -> None:
    program = str(inspection_program("cuobjdump", tmp_path / "tool"))
    names = sorted(path.name for path in FIXTURES.iterdir() if path.suffix in {".so", ".o", ".a", ".fatbin"})
    path = write_wheel(
        tmp_path, {f"pkg/{name}": fixture(name) for name in names}, name="pkg", version="1.0", requires=()
    )
    for kernels in (True, False):
        with open_artifact(path) as artifact:
            report = inspect_artifact(
                artifact, Options(jobs=1, cross_check=True, cuobjdump=program, kernels=kernels)
            )
        findings = [finding for finding in report.findings if finding.check == "cross-check.cuobjdump"]
        assert len(findings) == len(names)
        assert overall(findings) is Verdict.PASS, [
            finding.message for finding in findings if finding.verdict.rank > 1
        ]
