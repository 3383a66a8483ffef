"""Compile commands as ninja's files have them."""

from __future__ import annotations

from dataclasses import replace

from loop_made import NINJA, both

from sm121.compile.edges import edges, recorded
from sm121.values import ArchSpec


def test_units_with_their_commands() -> None:
    cuda, cpp = both()
    assert [unit.name for unit in (cuda, cpp)] == ["_C/csrc/a.cu", "_C/csrc/b.cpp"]
    assert (cuda.path, cuda.extension, cuda.cuda) == ("csrc/a.cu", "_C", True)
    assert not cpp.cuda
    assert cuda.variables["LAUNCHER"].endswith("ccache "), "the compiler follows without a space of its own"


def test_a_command_is_what_the_compiler_is_told() -> None:
    cuda, _ = both()
    assert (
        replace(cuda, variables={**cuda.variables, "LAUNCHER": "", "pool": "", "TARGET_PDB": "x"}).command
        == cuda.command
    )
    assert replace(cuda, variables={**cuda.variables, "FLAGS": "-O2"}).command != cuda.command
    assert replace(cuda, variables={**cuda.variables, "DEFINES": ""}).command != cuda.command
    assert replace(cuda, source="../source/csrc/c.cu").command != cuda.command


def test_beside_compiles_for_one_target_into_a_folder_of_its_own() -> None:
    cuda, _ = both()
    other = cuda.beside(ArchSpec.parse("12.1a"))
    assert other.variables["FLAGS"].count("-gencode") == 1
    assert other.variables["FLAGS"].endswith("-gencode arch=compute_121a,code=sm_121a")
    assert other.object == f"beside/sm_121a/{cuda.object}"
    assert other.variables["DEP_FILE"] == f"beside/sm_121a/{cuda.variables['DEP_FILE']}"
    (again,) = edges(other.statement)
    assert (again.object, again.source, again.variables["FLAGS"]) == (
        other.object,
        other.source,
        other.variables["FLAGS"],
    )
    assert again.variables["LAUNCHER"] == cuda.variables["LAUNCHER"]


def test_a_file_without_units() -> None:
    assert edges("") == []
    assert edges(NINJA[NINJA.index("build _C.abi3.so") :]) == []


def test_records_name_sources_and_stale_ones_do_not_count() -> None:
    listing = (
        "CMakeFiles/_C.dir/csrc/a.cu.o: #deps 3, deps mtime 17 (VALID)\n"
        "    ../source/csrc/a.cu\n    ../cuda/include/cuda.h\n    ../source/csrc/core/x.cuh\n\n"
        "CMakeFiles/_C.dir/csrc/b.cpp.o: #deps 1, deps mtime 17 (STALE)\n    ../source/csrc/b.cpp\n\n"
    )
    assert recorded(listing) == {"CMakeFiles/_C.dir/csrc/a.cu.o": frozenset({"csrc/a.cu", "csrc/core/x.cuh"})}
    assert recorded("") == {}
    assert recorded("ninja: error: loading\n") == {}
