"""The scan of includes: never less than what a compiler reads."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm121.loop.scan import ANYTHING, closures, includes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('#include "a.h"\n', {"a.h"}),
        ("  #  include <core/b.cuh>  // why\n", {"core/b.cuh"}),
        ('#include "../c.h"', {"../c.h"}),
        ('#include "./d/../e.h"', {"e.h"}),
        ("#ifdef NEVER\n#include <f.h>\n#endif\n", {"f.h"}),
        ('#inc\\\nlude "g.h"\n', {"g.h"}),
        ('# /* odd */ include "h.h"\n', {"h.h"}),
        ('/* a\n b */ #include "i.h"\n', {"i.h"}),
        ('#include /* odd */ "j.h"\n', {"j.h"}),
        ("#include NAME(x)\n", {ANYTHING}),
        ('%:include "k.h"\n', {"k.h"}),
        ("#import <l.h>\n#include_next <m.h>\n", {"l.h", "m.h"}),
        ("int include = 3;\n#pragma once\n", set()),
    ],
)
def test_directives(text: str, found: set[str]) -> None:
    assert includes(text) == found


FILES = {
    "csrc/a.cu": '#include "x.cuh"\n',
    "csrc/b.cu": '#include "core/y.cuh"\n',
    "csrc/c.cu": "#include HEADER\n",
    "csrc/x.cuh": '#include "../csrc/core/y.cuh"\n',
    "csrc/core/y.cuh": '#include "x.cuh"\n',
    "csrc/other/x.cuh": "",
}


def test_a_closure_follows_and_takes_every_file_that_could_be_meant() -> None:
    found = closures(["csrc/a.cu", "csrc/b.cu", "csrc/c.cu"], FILES, FILES.__getitem__)
    assert found["csrc/a.cu"] == {"csrc/a.cu", "csrc/x.cuh", "csrc/other/x.cuh", "csrc/core/y.cuh"}
    assert found["csrc/b.cu"] == {"csrc/b.cu", "csrc/core/y.cuh", "csrc/x.cuh", "csrc/other/x.cuh"}
    assert found["csrc/c.cu"] == {"csrc/c.cu", ANYTHING}


NAMES = ["a.h", "b.h", "sub/a.h", "sub/c.h", "sub/deep/b.h"]


@pytest.mark.programs
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bodies=st.lists(
        st.lists(st.tuples(st.sampled_from([*NAMES, "c.h", "../a.h", "deep/b.h"]), st.booleans()), max_size=3),
        min_size=len(NAMES) + 1, max_size=len(NAMES) + 1,
    )
)  # fmt: skip
def test_never_less_than_what_a_compiler_reads(bodies: list[list[tuple[str, bool]]], tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("this machine has no g++")
    root = tmp_path / "tree"
    shutil.rmtree(root, ignore_errors=True)
    paths = ["main.cpp", *NAMES]
    for path, body in zip(paths, bodies, strict=True):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f'#if __has_include("{name}")\n#include {f"<{name}>" if angle else f"{chr(34)}{name}{chr(34)}"}\n#endif\n'
            for name, angle in body
        ]
        guard = path.replace("/", "_").replace(".", "_").upper()
        file.write_text(f"#ifndef {guard}\n#define {guard}\n{''.join(lines)}#endif\n")
    done = subprocess.run(
        [compiler, "-MM", "-MG", "-I.", "-Isub", "main.cpp"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return  # an angle include that -MG does not forgive: there is no truth to compare with
    read = {
        str((root / word).resolve().relative_to(root)) for word in done.stdout.replace("\\\n", " ").split()[1:]
    }
    found = closures(["main.cpp"], paths, lambda path: (root / path).read_text())["main.cpp"]
    assert read & {*paths} <= found
