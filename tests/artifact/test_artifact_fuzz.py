"""A short run of the fuzzer, and of hypothesis, over every reader."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fuzz_artifact
from sm121.artifact import open_artifact
from sm121.artifact.imagedocs import ImageConfig, read_index_or_manifest
from sm121.artifact.metadata import DirectUrl, Metadata, Stamp, WheelFile, read_entry_points
from sm121.artifact.record import read_record
from sm121.errors import Sm121Error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TARGETS = {target.name: target for target in fuzz_artifact.targets()}


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_seeds_themselves_are_read(name: str, tmp_path: Path) -> None:
    assert fuzz_artifact.fault_of(TARGETS[name], TARGETS[name].seed, tmp_path) == ""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_damaged_archives_give_findings_or_errors_of_ours(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    for _ in range(25):
        data = fuzz_artifact.damaged(TARGETS[name].seed, chance)
        assert fuzz_artifact.fault_of(TARGETS[name], data, tmp_path) == ""


def test_the_fuzzer_notices_a_fault(tmp_path: Path) -> None:
    def read(path: Path) -> None:
        raise KeyError(path.name)

    def speak(path: Path) -> None:
        raise Sm121Error("\x1b[31mred")

    assert "KeyError" in fuzz_artifact.fault_of(fuzz_artifact.Target("x", b"", read), b"", tmp_path)
    assert "unprintable" in fuzz_artifact.fault_of(fuzz_artifact.Target("x", b"", speak), b"", tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"\x7fELF", b"\x1f\x8b\x08\0"]),
    st.binary(max_size=600),
)
def test_any_bytes_under_any_name(tmp_path: Path, start: bytes, data: bytes) -> None:
    for name in ("x.whl", "x.so", "x.tar", "x.tar.gz"):
        path = tmp_path / name
        path.write_bytes(start + data)
        try:
            with open_artifact(path) as artifact:
                fuzz_artifact.exhaust(artifact)
        except Sm121Error:
            continue


READERS: list[Callable[[bytes], object]] = [
    read_index_or_manifest, ImageConfig.parse, DirectUrl.parse, Metadata.parse, WheelFile.parse, read_record,
    read_entry_points, lambda data: Stamp.parse("x/_version.py", data),
]  # fmt: skip
SEEDS = [
    b'{"config": {"digest": "sha256:x", "size": 1}, "layers": [{}], "manifests": null}',
    b'{"architecture": "arm64", "os": "linux", "rootfs": {"diff_ids": ["sha256:y"]}, "config": {"Env": [1]}}',
    b"Name: a\nVersion: 1\nRequires-Dist: b\nContent-Type: multipart/mixed; boundary=x\n\n--x\n",
    b'a/b.py,sha256=abc,12\n"q""",,\n',
    b"[console_scripts]\na = b:c\n",
    b"__version__ = version = '1'\nx: str = 'y'\n",
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SEEDS), st.integers(0, 2**32))
def test_documents_of_any_kind_are_read_or_refused(seed: bytes, number: int) -> None:
    data = fuzz_artifact.damaged(seed, random.Random(number))
    for reader in READERS:
        try:
            reader(data)
        except Sm121Error:
            continue


KEYS = [
    "manifests", "config", "layers", "rootfs", "diff_ids", "history", "digest", "size", "os", "platform", "Env",
    "Labels", "annotations", "mediaType", "urls", "url", "archive_info", "hashes",
]  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(json_values)
def test_json_of_any_shape_is_read_or_refused(document: object) -> None:
    data = json.dumps(document).encode()
    for reader in READERS[:3]:
        try:
            reader(data)
        except Sm121Error:
            continue
