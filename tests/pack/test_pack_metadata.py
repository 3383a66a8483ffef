"""Requirements that a wheel of another CUDA major words differently."""

from __future__ import annotations

from email.parser import BytesParser

import pytest
from packaging.requirements import Requirement

from pinned_wheels import PINS
from sm121 import index
from sm121.errors import PackError
from sm121.pack.metadata import stamped_metadata
from sm121.pack.stamp import Stamp
from sm121.plan.components import requirement_changes
from sm121.target import GB10

HEAD = """\
Metadata-Version: 2.4
Name: vllm
Version: 0.33.0
Requires-Dist: torch==2.14.0
Requires-Dist: nvidia-cutlass-dsl[cu13]==4.8.0
Requires-Dist: humming-kernels[cu13]==0.1.19
Requires-Dist: nvidia-deepstream-videodecode-cu13>=9.0.2; extra == "deepstream"

Requires-Dist: nvidia-cutlass-dsl[cu13] in the description stays.
"""
TWELVE = requirement_changes("0.33.0", 12)


def stamp(line: str) -> Stamp:
    return Stamp.of("vllm", "0.33.0", line, GB10)


def test_nothing_changes_where_nothing_is_to_change() -> None:
    assert requirement_changes("0.33.0", 13) == {}
    expected = HEAD.replace("Version: 0.33.0\n", "Version: 0.33.0+cu130.sm121\n", 1).encode()
    assert stamped_metadata(HEAD.encode(), stamp("cu130")) == expected


def test_requirements_of_cuda_12() -> None:
    text = stamped_metadata(HEAD.encode(), stamp("cu129"), TWELVE).decode()
    assert "Requires-Dist: nvidia-cutlass-dsl==4.8.0\n" in text
    assert "Requires-Dist: humming-kernels[cu12]==0.1.19\n" in text
    assert "nvidia-deepstream-videodecode-cu13" in text
    assert "Requires-Dist: nvidia-cutlass-dsl[cu13] in the description stays." in text
    assert text.count("\n") == HEAD.count("\n")


@pytest.mark.parametrize(
    "changed",
    [
        HEAD.replace("humming-kernels[cu13]", "humming-kernels"),
        HEAD.replace("Requires-Dist: torch==2.14.0", "Requires-Dist: humming-kernels[cu13]>=0.1"),
    ],
)
def test_a_requirement_that_is_not_there_once_is_refused(changed: str) -> None:
    with pytest.raises(PackError, match=r"humming-kernels\[cu13\]"):
        stamped_metadata(changed.encode(), stamp("cu129"), TWELVE)


@pytest.mark.network
@pytest.mark.parametrize("version", [release.version for release in PINS.releases])
def test_the_official_wheels_say_what_is_changed(version: str) -> None:
    """Each pinned official wheel has each of the requirements once, and what is made of them is one."""
    pin = PINS.vllm(version).official("aarch64")
    data = index.metadata(index.find("vllm", pin.filename)).encode()
    changes = requirement_changes(version, 12)
    assert changes
    made = stamped_metadata(data, Stamp.of("vllm", version, "cu129", GB10), changes)
    requirements = [Requirement(line) for line in BytesParser().parsebytes(made).get_all("Requires-Dist", [])]
    extras = {requirement.name: requirement.extras for requirement in requirements if requirement.marker is None}
    assert extras["nvidia-cutlass-dsl"] == set()
    assert extras["humming-kernels"] == {"cu12"}
    assert not any("cu13" in extra for names in extras.values() for extra in names)
