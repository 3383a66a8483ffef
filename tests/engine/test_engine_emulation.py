"""Whether programs of another CPU can run where an image is built."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sm121.artifact import Platform
from sm121.engine.emulation import Emulation, Registration, emulation, judge_emulation, registrations
from sm121.findings import Verdict

CASES = tomllib.loads((Path(__file__).parent.parent / "cases" / "images.toml").read_text(encoding="utf-8"))[
    "case"
]
BUILDS = [case for case in CASES if "platform" in case["given"]]
QEMU = """\
enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: {flags}
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""
ARM64 = Platform("linux", "arm64")


@pytest.mark.parametrize("case", BUILDS, ids=[case["id"] for case in BUILDS])
def test_case(case: dict[str, dict[str, str]]) -> None:
    given, expect = case["given"], case["expect"]
    state = Emulation(given["emulation"]) if "emulation" in given else None
    finding = judge_emulation(given["host"], Platform.parse(given["platform"]), given["builder"], state)
    assert str(finding.verdict).upper() in {expect["verdict"], *expect.get("accept", ())}
    assert any(word in finding.message.lower() for word in expect["word"])


def test_there_is_a_case() -> None:
    assert {case["id"] for case in BUILDS} == {"B57-a"}


def test_registrations_are_read_as_the_kernel_shows_them(tmp_path: Path) -> None:
    (tmp_path / "register").write_text("")
    (tmp_path / "status").write_text("enabled\n")
    (tmp_path / "qemu-aarch64").write_text(QEMU.format(flags="PF"))
    (tmp_path / "python3.11").write_text(
        "enabled\ninterpreter /usr/bin/python3.11\nflags: \noffset 0\nmagic a70d0d0a\n"
    )
    found = {each.name: each for each in registrations(tmp_path)}
    assert found["qemu-aarch64"] == Registration("qemu-aarch64", "aarch64", True, True)
    assert found["python3.11"].cpu == ""
    assert registrations(tmp_path / "missing") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (QEMU.format(flags="F"), Emulation.REGISTERED),
        (QEMU.format(flags="OC"), Emulation.OUTSIDE),
        (QEMU.format(flags="F").replace("enabled", "disabled"), Emulation.ABSENT),
        (QEMU.format(flags="F").replace("b700", "f300"), Emulation.ABSENT),
    ],
)
def test_the_flag_and_the_machine_decide(text: str, expected: Emulation) -> None:
    known = [Registration.parse("qemu", text)]
    assert emulation("x86_64", "aarch64", known) is expected
    assert emulation("aarch64", "aarch64", known) is Emulation.NATIVE


@pytest.mark.parametrize(
    ("host", "builder", "state", "verdict"),
    [
        ("aarch64", "docker", None, Verdict.PASS),
        ("x86_64", "oci", None, Verdict.PASS),
        ("x86_64", "docker", Emulation.REGISTERED, Verdict.WARN),
        ("x86_64", "docker", Emulation.OUTSIDE, Verdict.FAIL),
        ("x86_64", "docker", Emulation.UNKNOWN, Verdict.UNKNOWN),
        ("x86_64", "docker", None, Verdict.FAIL),
    ],
)
def test_verdicts(host: str, builder: str, state: Emulation | None, verdict: Verdict) -> None:
    assert judge_emulation(host, ARM64, builder, state).verdict is verdict
