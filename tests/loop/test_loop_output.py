"""What compilers print about what failed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm121.loop.output import CompilerError, outputs, read_failure, source_path

CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent.parent / "cases" / "logs.toml").read_text(encoding="utf-8")
)["case"]


def test_output_belongs_to_the_object_that_failed() -> None:
    lines = [
        "[1/3] Building CUDA object CMakeFiles/_C.dir/csrc/a.cu.o",
        "FAILED: [code=2] CMakeFiles/_C.dir/csrc/a.cu.o",
        "nvcc -c ../source/csrc/a.cu",
        '../source/csrc/a.cu(3): error: expected a ";"',
        "",
        "[2/3] Building CXX object CMakeFiles/_C.dir/csrc/b.cpp.o",
        "../source/csrc/b.cpp:1:1: warning: x",
        "FAILED: CMakeFiles/_C.dir/csrc/c.cu.o ",
        "nvcc -c ../source/csrc/c.cu",
        "ninja: build stopped: cannot make progress due to previous errors.",
    ]
    assert outputs(lines) == {
        "CMakeFiles/_C.dir/csrc/a.cu.o": ('../source/csrc/a.cu(3): error: expected a ";"', ""),
        "CMakeFiles/_C.dir/csrc/c.cu.o": (),
    }


ERRORS = [
    ('../source/csrc/a.cu(30): error: no "x" here', "csrc/a.cu", 30, 'no "x" here'),
    ("../source/csrc/x.cuh(7): error #20: no", "csrc/x.cuh", 7, "no"),
    ("../source/csrc/a.cu(2): catastrophic error: cannot open it", "csrc/a.cu", 2, "cannot open it"),
    ("../source/csrc/b.cpp:12:5: error: 'q' was not declared", "csrc/b.cpp", 12, "'q' was not declared"),
    ("../source/csrc/b.cpp:1:10: fatal error: z.h: No such file", "csrc/b.cpp", 1, "z.h: No such file"),
    ("/usr/include/c++/12/bits/x.h:5:1: error: bad", "/usr/include/c++/12/bits/x.h", 5, "bad"),
    ("/w/trees/v/source/csrc/a.cu(3): error: bad", "csrc/a.cu", 3, "bad"),
    (
        "ptxas /tmp/t.ptx, line 9; error   : Instruction 'x' not supported",
        "",
        0,
        "ptxas: Instruction 'x' not supported",
    ),
    ("nvcc fatal   : Unsupported gpu architecture 'x'", "", 0, "nvcc: Unsupported gpu architecture 'x'"),
]


@pytest.mark.parametrize(("line", "path", "number", "text"), ERRORS)
def test_errors(line: str, path: str, number: int, text: str) -> None:
    assert read_failure([line]).errors == (CompilerError(path, number, text),)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "  error in a comment",
        "../source/csrc/a.cu(30): warning #177-D: unused",
        "1 error detected in the compilation",
        "ptxas fatal   : Ptx assembly aborted due to errors",
    ],
)
def test_what_is_no_error(line: str) -> None:
    assert read_failure([line]).errors == ()


COMPILING = {"arch-suffix-missing", "out-of-memory", "cccl-moved", "host-compiler"}
KNOWN = [case for case in CASES if case["expect"].get("class") in COMPILING]


@pytest.mark.parametrize("case", KNOWN, ids=[case["id"] for case in KNOWN])
def test_known_causes_are_told(case: dict[str, Any]) -> None:
    expect = case["expect"]
    lines = [*case["given"]["log"].splitlines(), *(["Killed"] if case["given"].get("rc") == 137 else [])]
    causes = read_failure(lines).causes
    told = " ".join(f"{one.check} {one.got} {one.advice}" for one in causes)
    assert f"log.{expect['class']}" in {one.check for one in causes}
    assert any(word.casefold() in told.casefold() for word in expect["word"])
    assert all(any(word in told for word in expect["suggest"]) for _ in expect.get("suggest", ())[:1])


def test_every_compile_time_class_is_covered() -> None:
    assert {case["expect"]["class"] for case in KNOWN} == COMPILING


def test_paths() -> None:
    assert source_path("../source/csrc/../csrc/x.h") == "csrc/x.h"
    assert source_path("../cuda/include/cuda.h") == "../cuda/include/cuda.h"


@given(st.lists(st.text(max_size=200), max_size=30))
def test_no_output_is_too_odd(lines: list[str]) -> None:
    outputs(lines)
    read_failure(lines)
    for line in lines:
        outputs([f"FAILED: {line}", *lines])
