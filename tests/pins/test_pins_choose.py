"""Which wheel a machine would take."""

from __future__ import annotations

import pytest

from sm121.errors import FetchError
from sm121.index import IndexFile
from sm121.pins import Cpu
from sm121.pins.choose import best_wheel, sdist, tags


def files(*names: str, yanked: str = "") -> list[IndexFile]:
    made = []
    for name in names:
        version = name.split("-")[1].removesuffix(".tar.gz")
        made.append(
            IndexFile("thing", version, name, f"https://x.example/{name}", 1, None, yanked=name == yanked)
        )
    return made


CHOICES = [
    "thing-1.0-cp310-abi3-manylinux_2_28_aarch64.whl",
    "thing-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    "thing-1.0-cp312-cp312-manylinux_2_39_aarch64.whl",
    "thing-1.0-cp312-cp312-manylinux_2_28_aarch64.whl",
    "thing-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
    "thing-1.0-cp312-cp312-musllinux_1_2_aarch64.whl",
    "thing-1.0-py3-none-win_amd64.whl",
    "thing-1.0-py3-none-any.whl",
    "thing-1.0.tar.gz",
]


@pytest.mark.parametrize(
    ("names", "cpu", "wanted"),
    [
        (CHOICES, Cpu.AARCH64, "thing-1.0-cp312-cp312-manylinux_2_28_aarch64.whl"),
        (CHOICES, Cpu.X86_64, "thing-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
        (CHOICES[:3], Cpu.AARCH64, "thing-1.0-cp310-abi3-manylinux_2_28_aarch64.whl"),
        (CHOICES[5:], Cpu.AARCH64, "thing-1.0-py3-none-any.whl"),
        (["thing-1.0-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl"], Cpu.X86_64, None),
    ],
)
def test_the_best_wheel(names: list[str], cpu: Cpu, wanted: str | None) -> None:
    assert best_wheel(files(*names), "1.0", cpu).filename == (wanted or names[0])


@pytest.mark.parametrize(
    "names", [CHOICES[2:3], CHOICES[5:7], CHOICES[8:], []], ids=["glibc", "platform", "sdist", "none"]
)
def test_no_wheel_says_for_what(names: list[str]) -> None:
    with pytest.raises(FetchError, match=r"has no wheel for Python 3\.12, aarch64, glibc 2\.34"):
        best_wheel(files(*names), "1.0", Cpu.AARCH64)


def test_withdrawn_and_other_versions_are_passed_over() -> None:
    listing = files(
        "thing-1.0-py3-none-any.whl", "thing-1.0-cp312-cp312-manylinux_2_28_aarch64.whl", yanked=CHOICES[3]
    )
    assert best_wheel(listing, "1.0", Cpu.AARCH64).filename == "thing-1.0-py3-none-any.whl"
    with pytest.raises(FetchError):
        best_wheel(listing, "1.1", Cpu.AARCH64)


def test_source_distributions() -> None:
    assert sdist(files(*CHOICES), "1.0").filename == "thing-1.0.tar.gz"
    with pytest.raises(FetchError, match=r"thing 2\.0 has no source distribution"):
        sdist(files(*CHOICES), "2.0")


def test_a_newer_glibc_widens_the_choice() -> None:
    ranks = tags(Cpu.AARCH64, libc=(2, 39))
    chosen = best_wheel(files(*CHOICES), "1.0", Cpu.AARCH64, ranks=ranks)
    assert chosen.filename == "thing-1.0-cp312-cp312-manylinux_2_39_aarch64.whl"
