"""The published cases about device code in files: what the reader must find."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from device_files import fixture

from sm121.device import DamagedError, payload, read_cubin, read_device_code

CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent.parent / "cases" / "device-code.toml").read_text(encoding="utf-8")
)["case"]
FILES = [case for case in CASES if {"fixture", "bytes"} & case["given"].keys()]


def content(given: dict[str, Any]) -> bytes:
    if "bytes" in given:
        return str(given["bytes"]).encode()
    return fixture(given["fixture"])[: given.get("truncate")]


@pytest.mark.parametrize("case", FILES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    given, expect = case["given"], case["expect"]
    data = content(given)
    if "bytes" in given:
        assert expect["verdict"] == "FAIL"
        with pytest.raises(DamagedError) as caught:
            read_device_code(data)
        assert any(word in str(caught.value) for word in expect["word"])
        return
    code = read_device_code(data)
    if "truncate" in given:
        assert any(word in "\n".join(code.damage) for word in expect["word"])
        return
    assert code.damage == ()
    cubins = [image for image in code.images if image.kind == "cubin"]
    if "cubins" in expect:
        assert [image.target for image in cubins] == expect["cubins"]
    if "ptx" in expect:
        assert [image.target for image in code.images if image.kind == "ptx"] == expect["ptx"]
    if "kernels" in expect:
        assert sum(len(read_cubin(payload(data, image)).kernels) for image in cubins) == expect["kernels"]
    assert code.has_device_code == expect.get("has_device_code", True)


def test_no_case_with_a_file_is_missing() -> None:
    assert [case["id"] for case in FILES] == [f"B14-{letter}" for letter in "abcdefghi"]
