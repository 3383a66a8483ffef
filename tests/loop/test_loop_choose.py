"""From a user's words to units."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_made import unit

from sm121.errors import UsageError
from sm121.loop.choose import by_kernel, by_words, locate
from sm121.loop.ground import Ground

FIXTURES = Path(__file__).parent.parent / "device" / "fixtures"
A, B = unit("_C/csrc/a.cu"), unit("_C/csrc/moe/b.cu")
TEXTS = {
    "csrc/a.cu": '#include "x.cuh"\n__global__ void first() {}\n',
    "csrc/moe/b.cu": "__global__ void k(float *p) {}\n",
    "csrc/x.cuh": "template <typename T> __global__ void shared_kernel(T *p) {}\n",
    "csrc/moe/x.hpp": "",
    "csrc/other/x.hpp": "",
}


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    """Unit b was compiled (it holds `_Z1kPf`), unit a never."""
    root = tmp_path / "edited"
    for name, text in TEXTS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Ground(
        units={A.name: A, B.name: B}, files=dict.fromkeys(TEXTS, ""), roots=(root,),
        reads={B.name: frozenset({"csrc/moe/b.cu"})}, objects={B.name: FIXTURES / "k_120f.o"},
        index=tmp_path / "names.json",
    )  # fmt: skip


def test_files(ground: Ground) -> None:
    root = ground.roots[0]
    for word in ("csrc/x.cuh", "./csrc/x.cuh", "x.cuh", str(root / "csrc/x.cuh")):
        assert by_words(ground, [word]) == {A.name: ("csrc/x.cuh",)}
    assert by_words(ground, ["b.cu", "a.cu"]) == {A.name: ("csrc/a.cu",), B.name: ("csrc/moe/b.cu",)}


def test_all_that_names_nothing_is_told_at_once(ground: Ground) -> None:
    with pytest.raises(UsageError) as raised:
        by_words(ground, ["y.cuh", "x.hpp", "csrc/moe/x.hpp", "a.cu"])
    missing, several, unread = raised.value.problems
    assert "there is no source y.cuh" in missing
    assert "csrc/x.cuh" in missing, "a name like it is offered"
    assert "csrc/moe/x.hpp, csrc/other/x.hpp" in several
    assert "read by no unit" in unread


@pytest.mark.programs
def test_kernels_by_name_pattern_and_text(ground: Ground) -> None:
    assert by_kernel(ground, "_Z1kPf") == {B.name: ("1 kernels",)}
    assert by_kernel(ground, r"k\(float") == {B.name: ("1 kernels",)}
    assert by_kernel(ground, "shared_kernel") == {A.name: ("its text",)}, (
        "never compiled: the text it includes counts"
    )
    assert by_kernel(ground, "shared_kernel<half>") == {A.name: ("its text",)}
    assert ground.index.exists()
    with pytest.raises(UsageError, match="no unit has a kernel"):
        by_kernel(ground, "nowhere_at_all")
    with pytest.raises(UsageError, match="no regular expression"):
        by_kernel(ground, "(")


def test_a_file_that_lies_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no source"):
        locate("/etc/hosts.cu", ["csrc/a.cu"], (tmp_path,))
