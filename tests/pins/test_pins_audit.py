"""What the indexes said, against what is pinned: synthetic answers, real pins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sm121.findings import Finding, Verdict, overall
from sm121.index import IndexFile
from sm121.pins import Cpu, Line, Release, load
from sm121.pins.audit import check, demands, file_owners, pinned_environment
from sm121.pins.facts import Facts, constraints, exact, pinned_wheels, requirements_txt
from sm121.pins.knowledge import toolkit_releases
from sm121.pins.resolve import Resolution
from sm121.values import Sha256

PINS = load(Path(__file__).parents[2] / "pins")
LINE, RELEASE = PINS.line("cu130"), PINS.vllm("0.33.0")


def requirements(*texts: str) -> tuple[Requirement, ...]:
    return tuple(Requirement(text) for text in texts)


def asked(facts: Facts, name: str, release: Release = RELEASE, line: Line = LINE) -> list[Finding]:
    return [finding for finding in check(line, release, Cpu.AARCH64, facts) if finding.check == name]


def listed(**changes: object) -> dict[str, IndexFile]:
    pin = RELEASE.official("aarch64")
    file = IndexFile("vllm", pin.version, pin.filename, "https://index.example/x", pin.size, pin.sha256)
    return {pin.filename: dataclasses.replace(file, **changes)}  # type: ignore[arg-type]


def test_without_asking_the_answer_is_unknown() -> None:
    findings = check(LINE, RELEASE, Cpu.AARCH64)
    assert overall(findings) is Verdict.UNKNOWN
    assert [finding.check for finding in findings if finding.verdict is Verdict.UNKNOWN] == ["pins.upstream"]


@pytest.mark.parametrize("line", PINS.lines, ids=lambda line: line.name)
@pytest.mark.parametrize("release", PINS.releases, ids=lambda release: release.version)
@pytest.mark.parametrize("cpu", list(Cpu))
def test_no_pinned_set_fails(line: Line, release: Release, cpu: Cpu) -> None:
    findings = check(line, release, cpu)
    assert not [finding.message for finding in findings if finding.verdict is Verdict.FAIL]
    torch = [finding for finding in findings if finding.check == "pins.torch-build"]
    assert overall(torch) is (Verdict.PASS if line.torches else Verdict.UNKNOWN)


def test_a_newer_compiler_asks_for_a_proof() -> None:
    found = {
        line.name: next(f for f in check(line, RELEASE, Cpu.AARCH64) if f.check == "pins.compiler")
        for line in PINS.lines
    }
    assert {name: finding.verdict for name, finding in found.items()} == {
        "cu130": Verdict.PASS, "cu135": Verdict.INFO, "cu129": Verdict.PASS, "cu128": Verdict.INFO,
    }  # fmt: skip
    assert "must exist in the libraries of 12.8" in found["cu128"].advice


def test_both_owners_of_a_conflict_are_named() -> None:
    """FlashInfer 0.6.18.post1 cannot replace 0.6.14 under vLLM 0.26.0."""
    release = PINS.vllm("0.26.0")
    facts = Facts(
        metadata={
            "vllm": requirements("nvidia-cutlass-dsl[cu13]==4.6.0", "flashinfer-python==0.6.14"),
            "flashinfer-python": requirements("nvidia-cutlass-dsl>=4.6.2a0"),
        }
    )
    faults = [finding for finding in asked(facts, "pins.demand", release) if finding.verdict is Verdict.FAIL]
    assert len(faults) == 1
    assert "nvidia-cutlass-dsl 4.6.0" in faults[0].message
    assert "flashinfer-python 0.6.14 wants nvidia-cutlass-dsl>=4.6.2a0" in faults[0].message
    assert "vllm wants nvidia-cutlass-dsl==4.6.0" in faults[0].message


def test_extras_are_followed_and_markers_obeyed() -> None:
    facts = Facts(
        metadata={
            "vllm": requirements("nvidia-cutlass-dsl[cu13]==4.8.0", "torch==1; sys_platform == 'win32'"),
            "nvidia-cutlass-dsl": requirements(
                "nvidia-cutlass-dsl-libs-base==4.8.0",
                "nvidia-cutlass-dsl-libs-cu13==4.7.0; extra == 'cu13'",
                "nvidia-cutlass-dsl-libs-qnx==1; extra == 'qnx'",
            ),
        }
    )
    told = [(owner, str(wish)) for owner, wish in demands(facts, Cpu.AARCH64)]
    assert ("nvidia-cutlass-dsl[cu13]", 'nvidia-cutlass-dsl-libs-cu13==4.7.0; extra == "cu13"') in told
    assert not any("qnx" in wish or "win32" in wish for _, wish in told)
    assert told.count(("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base==4.8.0")) == 1
    faults = [finding for finding in asked(facts, "pins.demand") if finding.verdict is Verdict.FAIL]
    assert [finding.subject for finding in faults] == ["nvidia-cutlass-dsl-libs-cu13 4.8.0"]


def test_requirements_that_are_not_upstreams_any_more() -> None:
    texts = [text for text in RELEASE.requires if not text.startswith("torch==")]
    stale = asked(Facts(metadata={"vllm": requirements(*texts, "torch==2.15.0")}), "pins.requires")
    assert [(finding.subject, finding.verdict) for finding in stale] == [("torch==2.14.0", Verdict.FAIL)]
    fresh = asked(Facts(metadata={"vllm": requirements(*RELEASE.requires)}), "pins.requires")
    assert [finding.verdict for finding in fresh] == [Verdict.PASS]


def test_source_and_wheel_must_say_the_same() -> None:
    wheel = requirements("torch==2.14.0", "numba==0.65.0")
    facts = Facts(
        metadata={"vllm": wheel}, cuda_txt=requirements("torch==2.15.0", "numba==0.65.0", "flashinfer-cubin==0.7")
    )
    told = {finding.subject: finding.verdict for finding in asked(facts, "pins.cuda-txt")}
    assert told == {
        "torch==2.15.0": Verdict.FAIL,
        "flashinfer-cubin==0.7": Verdict.INFO,
        "vLLM 0.33.0": Verdict.PASS,
    }


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, Verdict.PASS),
        ({"size": 1}, Verdict.FAIL),
        ({"sha256": Sha256("0" * 64)}, Verdict.FAIL),
        ({"size": None, "sha256": None}, Verdict.PASS),
        ({"yanked": True}, Verdict.WARN),
    ],
)
def test_the_index_must_have_the_pinned_bytes(changes: dict[str, object], wanted: Verdict) -> None:
    assert overall(asked(Facts(listed=listed(**changes)), "pins.index")) is wanted


def test_a_table_of_parts_that_no_longer_holds() -> None:
    parts = dict(toolkit_releases()["13.0.3.0"])
    assert overall(asked(Facts(toolkits={"13.0.3.0": parts}), "pins.toolkit-table")) is Verdict.PASS
    parts["nvidia-nvvm"] = SpecifierSet("==13.0.99.*")
    changed = asked(Facts(toolkits={"13.0.3.0": parts}), "pins.toolkit-table")
    assert overall(changed) is Verdict.FAIL
    assert "nvidia-nvvm==13.0.99.*" in changed[0].message


def test_files_with_two_owners() -> None:
    records = {"one": {"a.py": "1", "b.py": "2", "c.py": "3"}, "two": {"a.py": "9", "b.py": "2", "c.py": "8"}}
    found = list(file_owners(records))
    assert [finding.verdict for finding in found] == [Verdict.FAIL]
    assert "one" in found[0].message
    assert "two" in found[0].message
    assert "a.py and 1 more" in found[0].subject
    assert overall(file_owners({"one": {"a.py": "1"}, "two": {"a.py": "1"}})) is Verdict.PASS
    assert overall(file_owners({})) is Verdict.UNKNOWN


def test_what_could_not_be_read_is_unknown() -> None:
    findings = check(LINE, RELEASE, Cpu.AARCH64, Facts(missing={"METADATA of torch": "no connection."}))
    assert overall(findings) is Verdict.UNKNOWN
    assert any(finding.subject == "METADATA of torch" for finding in findings)


def test_no_complete_set_is_a_failure() -> None:
    told = asked(Facts(conflict="Because a wants c 1 and b wants c 2."), "pins.resolution")
    assert overall(told) is Verdict.FAIL


def test_the_resolved_set_is_judged() -> None:
    """A package that asks for nvcc without a version gets the newest, beside older headers."""
    versions = {"torch": "2.14.0", "nvidia-cuda-runtime": "13.0.96", "nvidia-cuda-nvcc": "13.5.37"}
    findings = check(LINE, RELEASE, Cpu.AARCH64, Facts(resolution=Resolution(versions, {})))
    faults = [finding for finding in findings if finding.verdict is Verdict.FAIL]
    assert [finding.subject for finding in faults] == ["nvidia-cuda-nvcc 13.5.37"]


def test_no_finding_twice() -> None:
    versions = dict(pinned_environment(LINE, RELEASE, Cpu.AARCH64, ["b12x==1.5.1"]).installed)
    findings = check(
        LINE, RELEASE, Cpu.AARCH64, Facts(resolution=Resolution(versions, {})), beside=["b12x==1.5.1"]
    )
    collisions = [finding for finding in findings if finding.check == "pins.file-owners"]
    assert len(collisions) == len(set(collisions)) == 1


def test_a_resolver_is_held_to_the_runtime() -> None:
    limits = constraints(LINE, RELEASE)
    assert {
        "torch==2.14.0",
        "nvidia-cuda-nvcc==13.0.88.*",
        "nvidia-nvvm==13.0.88.*",
        "cuda-python>=13,<14",
    } <= set(limits)
    newer = constraints(PINS.line("cu135"), RELEASE)
    assert "nvidia-cuda-nvcc==13.0.88.*" in newer


def test_pinned_wheels_are_for_one_cpu() -> None:
    for cpu in Cpu:
        assert {wheel.cpu for wheel in pinned_wheels(LINE, RELEASE, cpu)} == {cpu, None}


def test_exact_requirements() -> None:
    assert exact(
        ["b12x==1.5.1", "torch>=2", "flashinfer-python[b12x]==0.7", "x==1.*", "y==1; python_version>'3'"]
    ) == ["b12x==1.5.1"]


def test_requirements_txt_with_options_and_comments() -> None:
    text = (
        "# head\n-r common.txt\n--extra-index-url https://x.example/\n\ntorch==2.14.0  # why\nnumba == 0.65.0\n"
    )
    assert [str(wanted) for wanted in requirements_txt(text)] == ["torch==2.14.0", "numba==0.65.0"]
