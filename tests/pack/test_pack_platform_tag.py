from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest
from made_wheels import FILENAME, FIXTURES, HOPPER, INFO, MAIN, MOE, PLAIN_SO, members, write_wheel

from sm121.errors import PackError
from sm121.pack.platform_tag import PlatformTag, elf_machine, find_platform_tag, libraries_elsewhere

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


def found(folder: Path, *, left_out: Collection[str] = (), **replaced: str) -> PlatformTag:
    """The tag of a wheel with `plain.so` everywhere but for the fixtures given as main= and moe=."""
    official = write_wheel(folder / FILENAME)
    paths = {{"main": MAIN, "moe": MOE}[key]: FIXTURES / f"{name}.so" for key, name in replaced.items()}
    return find_platform_tag(official, paths, left_out, "aarch64", scratch=folder / "a scratch folder")


def test_the_oldest_tag_when_the_libraries_ask_for_little(tmp_path: Path) -> None:
    tag = found(tmp_path)
    assert tag == PlatformTag("manylinux_2_17_aarch64")
    assert (tag.glibc, tag.cpu) == ((2, 17), "aarch64")


def test_our_library_decides_when_it_asks_for_more(tmp_path: Path) -> None:
    tag = found(tmp_path, main="newer")
    assert tag.tag == "manylinux_2_34_aarch64"
    assert [(need.path, need.symbols) for need in tag.decided_by] == [(MAIN, ("GLIBC_2.34",))]


def test_a_library_that_is_left_out_does_not_count(tmp_path: Path) -> None:
    official = write_wheel(tmp_path / FILENAME, {**members(), HOPPER: (FIXTURES / "newer.so").read_bytes()})
    assert find_platform_tag(official, {}, (), "aarch64", scratch=tmp_path).glibc == (2, 34)
    assert find_platform_tag(official, {}, {HOPPER}, "aarch64", scratch=tmp_path).glibc == (2, 17)


def test_libraries_of_torch_and_cuda_are_expected_outside(tmp_path: Path) -> None:
    assert found(tmp_path, main="needs_torch").tag == "manylinux_2_17_aarch64"
    assert "libcudart.so.1?" in libraries_elsewhere()


def test_any_other_library_from_outside_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"no manylinux tag fits.*_C.abi3.so needs libforeign.so.1"):
        found(tmp_path, main="needs_foreign")


def test_a_library_for_another_cpu_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"auditwheel passed over vllm/_moe_C.abi3.so, which is for another CPU"):
        found(tmp_path, moe="plain_x86_64")


def test_a_damaged_library_is_an_error(tmp_path: Path) -> None:
    official = write_wheel(tmp_path / FILENAME, {**members(), MOE: PLAIN_SO[:2000]})
    with pytest.raises(PackError, match=r"_moe_C|auditwheel cannot tell"):
        find_platform_tag(official, {}, (), "aarch64", scratch=tmp_path)


def test_a_wheel_without_libraries_has_no_tag(tmp_path: Path) -> None:
    content = {name: data for name, data in members().items() if data[:4] != b"\x7fELF"}
    official = write_wheel(tmp_path / FILENAME, content)
    assert f"{INFO}/METADATA" in content
    with pytest.raises(PackError, match="auditwheel cannot tell the platform tag"):
        find_platform_tag(official, {}, (), "aarch64", scratch=tmp_path)


def test_nothing_is_left_and_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = tempfile.gettempdir()
    found(tmp_path)
    assert tempfile.gettempdir() == before
    assert list((tmp_path / "a scratch folder").iterdir()) == []
    assert tmp_path.samefile(".")


def test_an_unknown_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="found 'arm64'"):
        find_platform_tag(tmp_path / FILENAME, {}, (), "arm64", scratch=tmp_path)


@pytest.mark.parametrize("tag", ["linux_aarch64", "manylinux2014_aarch64", "any", "manylinux_2_28_riscv64"])
def test_only_manylinux_tags_for_our_cpus_count(tag: str) -> None:
    with pytest.raises(PackError, match=f"found '{tag}'"):
        _ = PlatformTag(tag).cpu


def test_the_cpu_of_an_elf_file() -> None:
    assert elf_machine(PLAIN_SO[:20]) == "aarch64"
    assert elf_machine((FIXTURES / "plain_x86_64.so").read_bytes()[:20]) == "x86_64"
    assert elf_machine(b"\x7fELF") == "machine 0"
