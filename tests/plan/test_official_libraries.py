"""What extensions.toml says of the official wheels' libraries, against the wheels."""

from __future__ import annotations

import re

import pytest

from pinned_wheels import PINS, fetched
from sm121.artifact import open_artifact
from sm121.device import read_host
from sm121.plan.components import components

pytestmark = pytest.mark.network


@pytest.mark.parametrize("version", [release.version for release in PINS.releases])
def test_the_cuda_major_of_every_library(version: str) -> None:
    pin = PINS.vllm(version).official("aarch64")
    said = {part.path: part.cuda for part in components(version, "aarch64")}
    found = {}
    with open_artifact(fetched(pin)[pin.filename]) as wheel:
        for member in wheel.members(lambda path: path in said):
            with member.buffer() as buffer:
                needed = read_host(buffer).needed
            majors = {
                int(match[1])
                for name in needed
                if (match := re.fullmatch(r"lib(?:cudart|nvrtc)\.so\.(\d+)", name))
            }
            assert len(majors) <= 1
            found[member.path] = max(majors, default=0)
    assert found == said


@pytest.mark.parametrize("version", [release.version for release in PINS.releases])
def test_vllm_does_not_import_without_flash_attention_2(version: str) -> None:
    """Why that library is `required`: the package raises where neither it nor FlashAttention 3 is there."""
    pin = PINS.vllm(version).official("aarch64")
    with open_artifact(fetched(pin)[pin.filename]) as wheel:
        texts = {
            name: next(wheel.members(f"vllm/{name}".__eq__)).read().decode()
            for name in ("vllm_flash_attn/__init__.py", "v1/attention/backends/fa_utils.py")
        }
    assert (
        "if not (FA2_AVAILABLE or FA3_AVAILABLE):\n    raise ImportError(" in texts["vllm_flash_attn/__init__.py"]
    )
    guarded = re.search(
        r"^if current_platform.is_cuda\(\):\n(    .*\n)*?    from vllm.vllm_flash_attn import", texts[
            "v1/attention/backends/fa_utils.py"], re.MULTILINE,
    )  # fmt: skip
    assert guarded, "the import is at the module's top level, without try"
    assert {part.name for part in components(version, "aarch64") if part.required and not part.from_sdist} == {
        "_vllm_fa2_C"
    }
