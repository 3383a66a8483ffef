"""A pass with a real ninja and a small compiler in nvcc's place: what is compiled, and what it is compared with."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from rich.console import Console

from sm121 import process
from sm121.compile.build import Cost
from sm121.compile.ninja import object_name
from sm121.errors import CompileError
from sm121.loop.session import Comparing, Session
from sm121.loop.trees import State
from sm121.progress import Progress
from sm121.steps import Prepared
from sm121.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sm121.loop.session import Pass
    from sm121.steps import Build, Edited

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        not (shutil.which("ninja") and shutil.which("gcc")), reason="this machine lacks ninja or gcc"
    ),
]

FILES = {
    "CMakeLists.txt": "", "cmake/u.cmake": "",
    "csrc/a.cu": '#include "x.h"\nint a() { return X; }\n',
    "csrc/b.cu": '#include "y.h"\nint b() { return 2; }\n',
    "csrc/c.cu": "int c() { return 3; }\n",
    "csrc/x.h": '#include "y.h"\n#define X 1\n',
    "csrc/y.h": "\n",
    "csrc/unread.h": "\n",
}  # fmt: skip
RULES = (
    "rule CUDA_COMPILER__C\n  command = gcc $FLAGS -x c -MD -MF $DEP_FILE -c $in -o $out\n"
    "  depfile = $DEP_FILE\n  deps = gcc\n\n"
)


@dataclass
class Step:
    key: str
    name: str
    inputs: dict[str, Any] = field(default_factory=dict)
    needs: dict[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


class Plan:
    project, version = "vllm", "1.0"
    jobs = 1

    def step(self, name: str) -> Step:
        inputs: dict[str, dict[str, Any]] = {
            "source": {"patches": []},
            "libraries": {"targets": ["C"], "host compiler": "gcc", "python": "3"},
        }
        return Step("key", name, inputs[name])


@dataclass
class Made:
    """As much of a build as a session asks for; CMake is a list of files."""

    work: Workspace
    progress: Progress
    plan: Plan = field(default_factory=Plan)
    compiled: list[list[str]] = field(default_factory=list)

    def tree(self, edited: str = "") -> Path:
        return self.work.tree(f"vllm-{edited}" if edited else "vllm")

    def prepare(self, edited: Edited) -> Prepared:
        tree = self.tree(edited.name)
        (tree / "tools" / "bin").mkdir(parents=True, exist_ok=True)
        link = tree / "tools" / "bin" / "ninja"
        if not link.exists():
            link.symlink_to(str(shutil.which("ninja")))
        edited.place(tree / "source")
        (tree / "obj").mkdir(exist_ok=True)
        flags = (tree / "source" / "CMakeLists.txt").read_text().strip()
        units = [
            f"build CMakeFiles/C.dir/csrc/{path.name}.o: CUDA_COMPILER__C ../source/csrc/{path.name}\n"
            f"  FLAGS = {flags}\n  DEP_FILE = CMakeFiles/C.dir/csrc/{path.name}.o.d\n\n"
            for path in sorted((tree / "source" / "csrc").glob("*.cu"))
        ]
        (tree / "obj" / "build.ninja").write_text(RULES + "".join(units))
        return Prepared(tree, process.environment(), cast("Any", None))

    def make(self, prepared: Prepared, targets: Sequence[str], *, listen: Callable[[str], None]) -> list[Cost]:
        done = process.run(["ninja", "-k", "0", "-v", *targets], cwd=prepared.tree / "obj", check=False)
        for line in done.stdout.splitlines():
            listen(line)
        built = [
            line.split(" -o ")[1] for line in done.stdout.splitlines() if line.startswith("[") and " -o " in line
        ]
        self.compiled.append(sorted(Path(name).stem for name in built))
        if done.returncode:
            raise CompileError("gcc said no.")
        return [Cost(object_name(name), 1.0, 1.0, 1) for name in built]


@dataclass
class Desk:
    """A developer: the edited folder, the pinned one, and passes over them."""

    made: Made
    edited: Path
    pinned: Path

    def write(self, name: str, text: str) -> None:
        (self.edited / name).write_text(text)

    def session(self) -> Session:
        state, base = State.of("edited", self.edited), State.of("pinned", self.pinned)
        return Session(cast("Build", self.made), state, base)

    def run(self, *words: str, last: bool = True) -> Pass:
        session = self.session()
        chosen = session.by_words(words) if words else session.by_edits(session.pinned)
        return session.run(chosen, Comparing(last, session.pinned))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    work = Workspace(tmp_path / "work")
    pinned = work.root / "steps" / "source" / "key" / "tree"
    edited = tmp_path / "edited"
    for root in (pinned, edited):
        for name, text in FILES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return Desk(Made(work, Progress(Console(file=io.StringIO()))), edited, pinned)


def names(done: Pass) -> list[str]:
    return [result.chosen.unit.path for result in done.results]


def made(done: Pass) -> list[str]:
    return [result.chosen.unit.path for result in done.results if result.cost]


def test_an_edit_compiles_its_unit_and_compares_it_with_the_pinned_one(desk: Desk) -> None:
    assert names(desk.run()) == []
    desk.write("csrc/a.cu", FILES["csrc/a.cu"].replace("return X", "return X + 1"))
    first = desk.run()
    assert names(first) == made(first) == ["csrc/a.cu"]
    (result,) = first.results
    assert result.before is not None
    assert result.before.reads["csrc/a.cu"] != result.after.reads["csrc/a.cu"]
    assert {*result.after.reads} == {"csrc/a.cu", "csrc/x.h", "csrc/y.h"}
    compiled = len(desk.made.compiled)
    again = desk.run()
    assert made(again) == []
    assert again.results[0].before == result.before
    assert [*filter(None, desk.made.compiled[compiled:])] == []


def test_last_is_what_it_was_before(desk: Desk) -> None:
    for number in (1, 2, 3):
        desk.write("csrc/c.cu", f"int c() {{ return {number * 10}; }}\n")
        done = desk.run("c.cu")
    (result,) = done.results
    assert result.before is not None
    assert result.before.object.read_bytes() != result.after.object.read_bytes()
    pinned = desk.run("c.cu", last=False).results[0].before
    assert pinned is not None
    assert pinned.key != result.before.key
    assert desk.run("c.cu").results[0].before == result.before, (
        "a look at the pinned state is no step of the history"
    )
    desk.write("csrc/c.cu", "int c() { return 20; }\n")
    back = desk.run("c.cu").results[0]
    assert back.after.key == result.before.key
    assert back.before == result.after


def test_nothing_is_compared_with_itself(desk: Desk) -> None:
    for _ in range(2):
        (result,) = desk.run("c.cu").results
        assert (result.before, result.against, result.first, result.change.same) == (None, "", True, False)
    (result,) = desk.run("c.cu", last=False).results
    assert (result.against, result.first) == ("pinned", False), "that was asked for by name"
    desk.write("csrc/c.cu", "int c() { return 30; }\n")
    (result,) = desk.run("c.cu").results
    assert (result.against, result.first) == ("what was built before", False)
    desk.write("csrc/a.cu", FILES["csrc/a.cu"].replace("return X", "return X + 1"))
    (result,) = [one for one in desk.run("a.cu").results if one.before]
    assert result.against == "pinned", "a.cu was never built before, and is no longer what is pinned"


def test_a_header_reaches_those_that_read_it(desk: Desk) -> None:
    assert names(desk.run("a.cu", "b.cu", "c.cu")) == ["csrc/a.cu", "csrc/b.cu", "csrc/c.cu"]
    desk.write("csrc/x.h", FILES["csrc/x.h"] + "// edited\n")
    assert made(desk.run()) == ["csrc/a.cu"]
    desk.write("csrc/y.h", "// edited\n")
    assert made(desk.run()) == ["csrc/a.cu", "csrc/b.cu"]
    desk.write("csrc/unread.h", "// edited\n")
    assert made(desk.run()) == []


def test_a_record_that_an_edit_made_untrue_is_not_believed(desk: Desk) -> None:
    """c.cu was compiled without y.h; then it includes it, and before it is compiled again, y.h is asked for."""
    desk.run("a.cu", "b.cu", "c.cu")
    desk.write("csrc/c.cu", '#include "y.h"\nint c() { return 3; }\n')
    assert names(desk.run("csrc/y.h")) == ["csrc/a.cu", "csrc/b.cu", "csrc/c.cu"]


def test_flags_and_new_sources_count(desk: Desk) -> None:
    desk.run("a.cu")
    desk.write("CMakeLists.txt", "-DMORE\n")
    done = desk.run()
    assert names(done) == ["csrc/a.cu", "csrc/b.cu", "csrc/c.cu"]
    assert all("compile command" in result.chosen.why for result in done.results)
    desk.write("CMakeLists.txt", "")
    desk.write("csrc/d.cu", "int d() { return 4; }\n")
    new = desk.run()
    assert names(new) == ["csrc/d.cu"]
    assert new.results[0].before is None


def test_a_failure_does_not_hide_the_others(desk: Desk) -> None:
    desk.write("csrc/a.cu", "int a( {\n")
    desk.write("csrc/c.cu", "int c() { return 33; }\n")
    done = desk.run()
    assert names(done) == ["csrc/c.cu"]
    assert [*done.failed] == ["CMakeFiles/C.dir/csrc/a.cu.o"]
    assert any("error" in line for line in done.failed["CMakeFiles/C.dir/csrc/a.cu.o"])
