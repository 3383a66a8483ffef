"""Upstream's build files, taken apart and put together as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sm121.compile.build import Schedule
from sm121.compile.flashinfer.configure import Modules, read_modules, write_build_file
from sm121.compile.flashinfer.upstream import read_module
from sm121.errors import CompileError

if TYPE_CHECKING:
    from pathlib import Path

OBJECTS = "{tree}/obj/modules/page/csrc_page.cuda.o {tree}/obj/modules/page/csrc_slow.cuda.o"

BUILD_FILE = """\
ninja_required_version = 1.3
name = page
cuda_home = {tree}/cuda
cxx = c++
nvcc = $cuda_home/bin/nvcc
cxx_launcher =
nvcc_launcher =

common_cflags = -DPy_LIMITED_API=0x03090000 $
    -isystem $cuda_home/include $
    -isystem {tree}/source/flashinfer/data/include
cflags = $common_cflags $
    -fPIC
post_cflags =
cuda_cflags = $common_cflags $
    -gencode=arch=compute_121a,code=sm_121a $
    -O3
cuda_post_cflags =
ldflags = -shared $
    -L$cuda_home/lib64 $
    -lcudart

rule compile
  command = $cxx_launcher $cxx -MMD -MF $out.d $cflags -c $in -o $out $post_cflags
  depfile = $out.d
  deps = gcc

rule cuda_compile
  command = $nvcc_launcher $nvcc --generate-dependencies-with-compile -MF $out.d $cuda_cflags -c $in -o $out $
    $cuda_post_cflags
  depfile = $out.d
  deps = gcc

rule link
  command = $cxx $in $ldflags -o $out

build {tree}/obj/modules/page/csrc_page.cuda.o: cuda_compile {tree}/source/flashinfer/data/csrc/page.cu
build {tree}/obj/modules/page/csrc_slow.cuda.o: cuda_compile {tree}/source/flashinfer/data/csrc/slow.cu
  cuda_cflags = $common_cflags $
    -gencode=arch=compute_120f,code=sm_120f
build {tree}/obj/modules/page/csrc_host.o: compile {tree}/source/flashinfer/data/csrc/host.cpp

build {tree}/obj/modules/page/page.so: link OBJECTS {tree}/obj/modules/page/csrc_host.o
default {tree}/obj/modules/page/page.so
""".replace("OBJECTS", OBJECTS)

MODULES = Modules(
    sources={"page": ["host.cpp", "page.cu", "slow.cu"]}, extra=(), arch_list="12.1a", cuda="13.0", torch="2.14.0",
    compiler="aarch64-linux-gnu-g++", launcher="python launcher.py",
)  # fmt: skip


def test_units_have_their_own_options() -> None:
    module = read_module(BUILD_FILE.format(tree="/t"), "page")
    assert [unit.object.rpartition("/")[2] for unit in module.units] == [
        "csrc_host.o", "csrc_page.cuda.o", "csrc_slow.cuda.o",
    ]  # fmt: skip
    host, page, slow = module.units
    assert not host.cuda
    assert host.flags.endswith("-isystem /t/cuda/include -isystem /t/source/flashinfer/data/include -fPIC")
    assert "-gencode=arch=compute_121a,code=sm_121a -O3" in page.flags
    assert "sm_120f" in slow.flags
    assert "sm_121a" not in slow.flags
    assert module.link_flags == "-shared -L/t/cuda/lib64 -lcudart"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("--generate-dependencies-with-compile", "--some-other-option", "rule 'cuda_compile' with the command"),
        ("build {tree}/obj/modules/page/csrc_host.o: compile", "build x.o: embed_cubin", "rule 'embed_cubin'"),
        ("default {tree}", "subninja {tree}", "the line 'subninja"),
        (": link ", ": nvcc_link ", "rule 'nvcc_link'"),
        (" {tree}/obj/modules/page/csrc_host.o\ndefault", "\ndefault", "link commands for 3 objects"),
    ],
)
def test_what_is_not_known_is_refused(old: str, new: str, said: str) -> None:
    assert old in BUILD_FILE
    with pytest.raises(CompileError, match=said):
        read_module(BUILD_FILE.replace(old, new).format(tree="/t"), "page")


def built(tree: Path) -> tuple[str, dict[str, list[str]]]:
    folder = tree / "obj" / "modules" / "page"
    folder.mkdir(parents=True)
    (folder / "build.ninja").write_text(BUILD_FILE.format(tree=tree))
    slow = "modules/page/csrc_slow.cuda.o"
    schedule = Schedule(jobs=4, heavy_jobs=2, seconds={slow: 90.0}, heavy=frozenset({slow}))
    gencodes = write_build_file(tree, read_modules(tree, MODULES), MODULES, schedule)
    return (tree / "obj" / "build.ninja").read_text(), gencodes


def test_one_build_file_that_does_not_depend_on_its_folder(tmp_path: Path) -> None:
    one, gencodes = built(tmp_path / "one")
    other, _ = built(tmp_path / "another folder of another length")
    assert one == other
    assert str(tmp_path) not in one
    assert gencodes == {
        "page/csrc_page.cuda.o": ["compute_121a/sm_121a"], "page/csrc_slow.cuda.o": ["compute_120f/sm_120f"],
    }  # fmt: skip


def test_long_compiles_first_heavy_ones_in_a_pool_libraries_last(tmp_path: Path) -> None:
    text, _ = built(tmp_path)
    edges = [line.split()[1] for line in text.splitlines() if line.startswith("build ")]
    assert edges == [
        "modules/page/csrc_slow.cuda.o:", "modules/page/csrc_host.o:", "modules/page/csrc_page.cuda.o:",
        "modules/page/page.so:", "page:",
    ]  # fmt: skip
    assert text.count("pool = heavy") == 1
    assert "pool heavy\n  depth = 2\n" in text
    assert "-ccbin=aarch64-linux-gnu-g++" in text
    assert "-MD -MT modules/page/csrc_page.cuda.o -MF modules/page/csrc_page.cuda.o.d" in text
    (link,) = [line for line in text.splitlines() if "-Wl,--as-needed" in line]
    assert link.split().index("modules/page/csrc_host.o") < link.split().index("-lcudart")
