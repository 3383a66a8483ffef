from __future__ import annotations

import pytest

from sm121.compile.ninja import arrange, object_name, relative, units
from sm121.errors import CompileError

TREE = "/somewhere/trees/vllm"
TEXT = f"""\
ninja_required_version = 1.5
include CMakeFiles/rules.ninja
cmake_ninja_workdir = {TREE}/obj/

build CMakeFiles/_C.dir/csrc/small.cu.o: CUDA_COMPILER__C {TREE}/source/csrc/small.cu || order
  FLAGS = -O3 -gencode arch=compute_120f,code=sm_120f -gencode arch=compute_120f,code=sm_120f
  INCLUDES = -I{TREE}/source/csrc -isystem {TREE}/torch/torch/include

build CMakeFiles/_C.dir/csrc/large.cu.o: CUDA_COMPILER__C {TREE}/source/csrc/large.cu || order
  FLAGS = -gencode arch=compute_80,code=sm_80 -gencode arch=compute_80,code=compute_80

build _C.abi3.so: CUDA_MODULE_LINKER CMakeFiles/_C.dir/csrc/small.cu.o CMakeFiles/_C.dir/csrc/large.cu.o

build build.ninja {TREE}/obj/cmake_install.cmake: RERUN_CMAKE {TREE}/source/CMakeLists.txt
  pool = console
"""


def arranged(**changes: object) -> str:
    known = {"_C/csrc/large.cu": 500.0}
    return arrange(TEXT, tree=TREE, seconds=known, heavy=frozenset({"_C/csrc/large.cu"}), heavy_jobs=2)


def test_no_path_of_the_machine_is_left() -> None:
    assert TREE not in arranged()
    assert "-I../source/csrc" in arranged()


def test_long_compiles_come_first_and_heavy_ones_share_a_pool() -> None:
    text = arranged()
    assert text.index("csrc/large.cu.o:") < text.index("csrc/small.cu.o:")
    assert "pool heavy\n  depth = 2\n" in text
    large = text.index("build CMakeFiles/_C.dir/csrc/large.cu.o:")
    assert text[large:].split("\n")[1] == "  pool = heavy"
    small = text.index("build CMakeFiles/_C.dir/csrc/small.cu.o:")
    assert text[small:].split("\n")[1].startswith("  FLAGS")


def test_cmake_does_not_run_itself_again() -> None:
    assert "RERUN_CMAKE" not in arranged()


def test_arranging_an_arranged_file_changes_no_command() -> None:
    again = arrange(arranged(), tree=TREE, seconds={}, heavy=frozenset(), heavy_jobs=1)
    assert sorted(unit.name for unit in units(again)) == ["_C/csrc/large.cu", "_C/csrc/small.cu"]


def test_a_file_without_compile_commands_is_an_error() -> None:
    with pytest.raises(CompileError, match="no compile command"):
        arrange("build x: phony\n", tree=TREE, seconds={}, heavy=frozenset(), heavy_jobs=1)


def test_units_tell_what_device_code_is_asked_for() -> None:
    found = {unit.name: unit.gencodes for unit in units(TEXT)}
    assert found == {
        "_C/csrc/small.cu": ("compute_120f/sm_120f",),
        "_C/csrc/large.cu": ("compute_80/sm_80", "compute_80/compute_80"),
    }


def test_names_of_objects() -> None:
    assert object_name("CMakeFiles/_moe_C.dir/csrc/moe/a.cu.o") == "_moe_C/csrc/moe/a.cu"
    assert object_name("elsewhere.o") == "elsewhere.o"


def test_relative_keeps_other_paths() -> None:
    assert relative(f"/usr/bin/g++ {TREE}/obj/x {TREE}/cuda", TREE) == "/usr/bin/g++ x ../cuda"


def test_a_folder_with_spaces_is_hidden_too() -> None:
    """Ninja escapes blanks in paths but not in values of variables."""
    text = 'build a.o: CXX /my$ work/tree/source/a.cpp\n  INCLUDES = -I"/my work/tree/cuda"\n'
    assert relative(text, "/my work/tree") == 'build a.o: CXX ../source/a.cpp\n  INCLUDES = -I"../cuda"\n'
