"""A new release, from an index in memory into a copy of the pins."""

from __future__ import annotations

import difflib
import tomllib
from typing import TYPE_CHECKING

import pytest
from pins_world import World, sdist, wheel
from test_pins_upstream import OWN, TOP

from sm121.errors import FetchError, PinsError, StorageError
from sm121.pins import Cpu, load
from sm121.pins import update as module
from sm121.pins.edit import Edits
from sm121.pins.facts import Facts
from sm121.pins.resolve import Resolution
from sm121.pins.update import add_release, newest_release, toolkit_table, update_tools, verify
from sm121.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

QUIET = Progress(quiet=True)
BOTH = ("aarch64", "x86_64")
CUDA = "torch==2.14.0\nflashinfer-python==0.7.9\napache-tvm-ffi==0.1.12\n"


def compiled(name: str, version: str, tag: str = "cp312-cp312", **keywords: object) -> list[tuple[str, bytes]]:
    return [wheel(name, version, tag=f"{tag}-manylinux_2_28_{cpu}", **keywords) for cpu in BOTH]  # type: ignore[arg-type]


@pytest.fixture
def release(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """vLLM 0.34.0, which moves FlashInfer and tvm-ffi and carries another CUTLASS."""
    version_h = "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 9\n#define CUTLASS_PATCH 1\n"
    contents = {
        "vllm/_version.py": "__commit_id__ = commit_id = 'g0123abcde'\n",
        "vllm/third_party/fmha_sm100/cutlass/include/cutlass/version.h": version_h,
    }
    requires = [*CUDA.split(), "regex", 'b12x==1.6.0; extra == "b12x"', 'pandas; extra == "bench"']
    world.add(*compiled("vllm", "0.34.0", "cp38-abi3", requires=requires, files=contents, python=">=3.11,<3.16"))
    sources = {"requirements/cuda.txt": CUDA, "CMakeLists.txt": TOP, "cmake/external_projects/qutlass.cmake": OWN}
    world.add(sdist("vllm", "0.34.0", sources))
    world.add(*compiled("torch", "2.14.0", requires=["cuda-toolkit[cublas]==13.0.3; platform_system == 'Linux'"]))
    meta = f'__git_commit__ = "{"a" * 40}"\n'
    world.add(wheel("flashinfer-python", "0.7.9", files={"flashinfer/_build_meta.py": meta}))
    world.add(*compiled("apache-tvm-ffi", "0.1.12", "cp312-abi3"))
    world.add(
        *compiled("torchvision", "0.29.5", files={"torchvision/version.py": "__version__ = '0.29.5+cu130'\n"})
    )
    versions = {"vllm": "0.34.0", "torch": "2.14.0", "apache-tvm-ffi": "0.1.12", "torchvision": "0.29.5"}
    monkeypatch.setattr(module, "resolve", lambda *_: Resolution(versions, {}))
    return world


def add(folder: Path, version: str = "0.34.0") -> Edits:
    edits = Edits.of(folder)
    add_release(edits, load(folder), version, QUIET)
    return edits


@pytest.mark.usefixtures("release")
def test_a_release_is_added_with_all_that_it_demands(folder: Path) -> None:
    edits = add(folder)
    edits.write()
    pins = load(folder)
    found = pins.vllm("0.34.0")
    assert (found.commit, found.torch, found.python) == ("0123abcde", "2.14.0", ">=3.11,<3.16")
    assert (found.flashinfer.version, found.flashinfer.commit) == ("0.7.9", "a" * 40)
    assert {package.name: package.version for package in found.companions} == {
        "torchvision": "0.29.5",
        "apache-tvm-ffi": "0.1.12",
    }
    assert 'b12x==1.6.0; extra == "b12x"' in found.requires
    assert not any(text.startswith(("regex", "pandas")) for text in found.requires)
    assert {component.name: component.ref for component in found.components} == {
        "cutlass": "v4.7.1",
        "qutlass": "e74319e3405ce6d71965732880f5dc1f52371f64",
    }
    origins = found.component("cutlass").origins
    assert [(origin.package, origin.version) for origin in origins] == [("vllm", "4.9.1")], (
        "FlashInfer carries none any more"
    )
    assert found.component("qutlass").extensions == ("_qutlass_C",)
    assert pins.vllm().version == "0.33.0", "the default stays until it is moved"


@pytest.mark.usefixtures("release")
def test_comments_and_order_stay(folder: Path) -> None:
    edits = add(folder)
    for name, text in edits.after().items():
        old, new = edits.before[name].splitlines(), text.splitlines()
        keys = [line.split(" = ")[0] for line in old]
        assert [line.split(" = ")[0] for line in new][: len(keys)] == keys, name
        changed = [line for line in difflib.ndiff(old, new) if line.startswith("- ")]
        assert all(line[2:].startswith(("aarch64 = ", "x86_64 = ", "read = ")) for line in changed)
    assert edits.after()["lines.toml"] == edits.before["lines.toml"]
    assert edits.after()["vllm.toml"].startswith(edits.before["vllm.toml"])


@pytest.mark.usefixtures("release")
def test_the_second_time_changes_nothing(folder: Path) -> None:
    add(folder).write()
    assert add(folder).difference() == ""


@pytest.mark.usefixtures("release")
def test_only_changed_files_are_written(folder: Path) -> None:
    edits = add(folder)
    untouched = (folder / "lines.toml").stat().st_mtime_ns
    edits.write()
    assert (folder / "lines.toml").stat().st_mtime_ns == untouched
    assert not list(folder.glob(".*"))


@pytest.mark.usefixtures("release")
def test_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = add(folder)
    before = (folder / "vllm.toml").read_bytes()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(folder), "write_text", refuse)
    with pytest.raises(StorageError, match="cannot be written: Permission denied"):
        edits.write()
    assert (folder / "vllm.toml").read_bytes() == before


@pytest.mark.usefixtures("release")
def test_a_set_that_fails_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = add(folder)
    monkeypatch.setattr(module, "gather", lambda *_, **__: Facts(conflict="Because a wants b."))
    with pytest.raises(PinsError, match="Because a wants b") as caught:
        verify(edits, "0.34.0", Cpu.AARCH64, QUIET)
    assert "nothing was written" in caught.value.do


@pytest.mark.usefixtures("release")
def test_a_set_that_passes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edits = add(folder)
    monkeypatch.setattr(module, "gather", lambda *_, **__: Facts())
    findings = verify(edits, "0.34.0", Cpu.AARCH64, QUIET)
    lines = [finding.subject for finding in findings if finding.check == "pins.compiler"]
    assert lines == ["line cu130", "line cu135"]


def test_a_torch_of_a_release_that_no_line_has(release: World, folder: Path) -> None:
    release.projects["torch"].clear()
    release.add(*compiled("torch", "2.14.0", requires=["cuda-toolkit==13.2.2"]))
    edits = add(folder)
    table = edits.table("torch.toml", "torch", "2.14.0")
    assert table["cuda"] == "13.2"
    with pytest.raises(PinsError, match=r"built for CUDA 13\.2, and no line runs with that release"):
        verify(edits, "0.34.0", Cpu.AARCH64, QUIET)


def test_a_torch_without_cuda(release: World, folder: Path) -> None:
    release.projects["torch"].clear()
    release.add(*compiled("torch", "2.14.0", requires=["sympy"]))
    with pytest.raises(PinsError, match="it is a CPU build"):
        add(folder)


@pytest.mark.usefixtures("release")
def test_a_version_that_is_not_there(folder: Path) -> None:
    with pytest.raises(
        FetchError, match=r"no source distribution of vLLM 0\.34\.1, did you mean 0\.34\.0\?"
    ) as caught:
        add(folder, "0.34.1")
    assert "0.34.0" in caught.value.do


def test_a_release_without_exact_flashinfer(release: World, folder: Path) -> None:
    release.projects["vllm"].clear()
    loose = "torch==2.14.0\nflashinfer-python>=0.7\n"
    stamp = {"vllm/_version.py": "commit_id = 'g0123abcde'\n"}
    release.add(*compiled("vllm", "0.34.0", "cp38-abi3", requires=loose.split(), files=stamp))
    release.add(sdist("vllm", "0.34.0", {"requirements/cuda.txt": loose, "CMakeLists.txt": TOP}))
    with pytest.raises(PinsError, match="does not demand one exact flashinfer-python"):
        add(folder)


def test_newest_releases() -> None:
    with pytest.raises(FetchError, match="no release"):
        newest_release([])


def test_tools_move_to_the_newest_release_with_wheels(world: World, folder: Path) -> None:
    names = list(tomllib.loads((folder / "tools.toml").read_text(encoding="utf-8"))["tool"])
    for name in names:
        world.add(*compiled(name, "99.1", "py3-none"), wheel(name, "100.0rc1"))
    edits = Edits.of(folder)
    update_tools(edits)
    edits.write()
    assert {tool.version for tool in load(folder).line().tools("aarch64")} == {"99.1"}
    assert load(folder).line().tools("aarch64")[0].read.startswith("package index, 20")


def test_the_table_of_toolkits_is_read_anew(world: World) -> None:
    parts = [
        "nvidia-nvvm==13.7.9.*; (sys_platform == 'linux') and extra == 'all'",
        "nvidia-nvvm==13.7.9.*; extra == 'nvvm'",
        "nvidia-nvjitlink<14,>=13.7; extra == 'all'",
    ]
    world.add(wheel("cuda-toolkit", "13.7.0", requires=parts), wheel("cuda-toolkit", "12.6.0", requires=parts))
    world.add(wheel("cuda-toolkit", "13.8.0rc1", requires=parts))
    table = tomllib.loads(toolkit_table())
    assert table["release"] == {"13.7.0": {"nvidia-nvvm": "==13.7.9.*", "nvidia-nvjitlink": "<14,>=13.7"}}
    assert table["read"].startswith("METADATA of the cuda-toolkit wheels, package index, 20")
