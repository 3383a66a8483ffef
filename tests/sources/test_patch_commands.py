"""`sm121 patches`: a developer's way from a new patch to a new version of upstream, with plain git in between."""

from __future__ import annotations

import argparse
import json
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from sm121 import pins
from sm121.errors import PatchError, UsageError
from sm121.sources import patch_commands
from sm121.sources.patch_commands import Request, add_patch_commands
from sm121.sources.patches import State, judge
from sm121.sources.series import load_series
from sm121.sources.worktree import WorkTree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.programs

LINES = [f"line {number}" for number in range(1, 41)]
FIELDS = """
Why: because
Upstream: none 2026-11-29
Applies-to: to be filled in
Drop-when: never
Kernels: none
"""


def text(**changes: str) -> str:
    """Forty lines, of which `L3="x"` changes the third."""
    lines = list(LINES)
    for name, line in changes.items():
        lines[int(name[1:]) - 1] = line
    return "".join(f"{line}\n" for line in lines)


class Fake:
    """Sources of versions that exist only here."""

    def __init__(self, trees: dict[str, dict[str, str]]) -> None:
        self.trees = trees

    def versions(self, project: str) -> list[str]:
        return list(self.trees)

    def place(
        self, project: str, version: str, into: Path, *, only: Callable[[str], bool] = lambda _: True
    ) -> None:
        into.mkdir(parents=True)
        for name, content in self.trees[version].items():
            if only(name):
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                (into / name).write_bytes(content.encode())


class Desk:
    """A folder of patches, a scratch folder, and the command line."""

    def __init__(self, home: Path, upstream: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patches, self.work, self.upstream = home / "patches", home / "my work", upstream
        monkeypatch.setattr(Request, "upstream", lambda _request: upstream)

    def __call__(self, *words: str) -> int:
        top = argparse.ArgumentParser()
        add_patch_commands(top.add_subparsers(required=True))
        own = ["--patches", str(self.patches), "--work", str(self.work), "--pins", "unused"]
        arguments = top.parse_args(["patches", *words, *own])
        status: int = arguments.run(arguments)
        return status

    def tree(self, series: str) -> Path:
        return self.work / "patches" / "vllm" / series

    def commit(self, series: str, subject: str, fields: str = FIELDS, **files: str) -> None:
        tree = self.tree(series)
        for name, content in files.items():
            (tree / name).write_text(content)
        git(tree, "add", "-A")
        git(tree, "commit", "-q", "-m", f"{subject}\n{fields}")

    def series(self, version: str) -> list[tuple[str, list[str]]]:
        return [
            (one.folder.name, [p.name for p in one.patches]) for one in load_series(self.patches, "vllm", version)
        ]


def git(tree: Path, *words: str) -> str:
    who = ["-c", "user.name=dev", "-c", "user.email=dev@example.org", "-c", "core.editor=true"]
    return subprocess.run(["git", *who, *words], cwd=tree, capture_output=True, text=True, check=True).stdout


UPSTREAM = {
    "2.0": {"f": "new\nnew\n" + text(L30="upstream changed it"), "sub/g": text(), "PKG-INFO": "x"},
    "1.0": {
        "f": text(), "sub/g": text(), ".gitattributes": "* text eol=crlf\n", ".gitignore": "sub/\n",
        "crlf": "a\r\n", "PKG-INFO": "x",
    },
}  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, Fake(UPSTREAM), monkeypatch)


def test_from_nothing_to_a_patch(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk("new", "--series", "1.0", "--version", "1.0") == 0
    tree = desk.tree("1.0")
    assert str(tree) in capsys.readouterr().out
    assert (tree / "sub" / "g").exists()
    assert git(tree, "status", "--porcelain") == ""
    assert "Drop-when:" in (tree / git(tree, "config", "commit.template").strip()).read_text()

    desk.commit("1.0", "Change line 3", f=text(L3="ours"), crlf="b\r\n")
    assert desk("refresh", "--series", "1.0") == 0
    assert "new: 0001-Change-line-3.patch" in capsys.readouterr().out
    ((one,),) = [series.patches for series in load_series(desk.patches, "vllm", "1.0")]
    assert one.value("Applies-to") == "1.0"
    assert one.subject == "Change line 3"
    assert b"dev@example.org" in one.data
    desk.upstream.place("vllm", "1.0", desk.work / "fresh")
    assert judge([one], desk.work / "fresh")[0].state is State.APPLIES

    assert desk("refresh", "--series", "1.0") == 0
    assert "is as it was" in capsys.readouterr().out
    with pytest.raises(UsageError, match="exists already"):
        desk("new", "--series", "1.0")


def test_the_patches_of_a_series_become_commits_and_keep_their_marks(desk: Desk) -> None:
    desk("new", "--series", "1.0")
    desk.commit("1.0", "One", f=text(L3="one"))
    desk.commit("1.0", "Two", f=text(L3="one", L20="two"))
    desk("refresh", "--series", "1.0")
    folder = desk.patches / "vllm" / "1.0"
    (folder / "series").write_text("# kept\n0001-One.patch off\n0002-Two.patch optional\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    git(desk.tree("1.0"), "--version")
    subprocess.run(["rm", "-r", desk.tree("1.0")], check=True)
    desk("new", "--series", "1.0")
    assert git(desk.tree("1.0"), "log", "--format=%s", "--reverse").split("\n")[1:3] == ["One", "Two"]
    desk("refresh", "--series", "1.0")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    git(desk.tree("1.0"), "rebase", "-q", "--onto", "HEAD~2", "HEAD~1")
    desk("refresh", "--series", "1.0")
    assert (folder / "series").read_text() == "# kept\n0001-Two.patch optional\n"


def test_refresh_refuses_half_work(desk: Desk) -> None:
    with pytest.raises(UsageError, match="no work tree"):
        desk("refresh", "--series", "1.0")
    desk("new", "--series", "1.0")
    desk.commit("1.0", "No fields", fields="", f=text(L3="one"))
    with pytest.raises(PatchError) as caught:
        desk("refresh", "--series", "1.0")
    assert len(caught.value.problems) == 4, "all but Applies-to, which refresh writes"
    (desk.tree("1.0") / "f").write_text("changed")
    with pytest.raises(PatchError, match="f is changed and not committed"):
        desk("refresh", "--series", "1.0")
    assert not (desk.patches / "vllm").exists()


def test_rebase_then_a_wider_range(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk("new", "--series", "1.0")
    desk.commit("1.0", "Ours", f=text(L3="ours"))
    desk("refresh", "--series", "1.0")
    assert desk("rebase", "--series", "1.0", "--onto", "2.0") == 0
    assert WorkTree(desk.tree("1.0")).version == "2.0"
    assert (desk.tree("1.0") / "f").read_text() == "new\nnew\n" + text(L3="ours", L30="upstream changed it")
    desk("refresh", "--series", "1.0", "--to", "1.0..2.0")
    assert ("1.0..2.0", ["0001-Ours.patch"]) in desk.series("2.0")
    desk("check", "--against", "2.0", "--json")
    out = capsys.readouterr().out
    found = json.loads(out[out.index("{\n") :])
    assert [row["state"] for row in found["patches"]] == ["APPLIES"]


def test_rebase_without_a_work_tree_makes_one(desk: Desk) -> None:
    desk("new", "--series", "1.0")
    desk.commit("1.0", "Ours", f=text(L3="ours"))
    desk("refresh", "--series", "1.0")
    subprocess.run(["rm", "-r", desk.tree("1.0")], check=True)
    assert desk("rebase", "--series", "1.0", "--onto", "2.0") == 0
    assert "ours" in (desk.tree("1.0") / "f").read_text()


def test_a_conflict_is_left_in_the_ordinary_way(desk: Desk) -> None:
    desk("new", "--series", "1.0")
    desk.commit("1.0", "Clean", f=text(L3="ours"))
    desk.commit("1.0", "Hard", f=text(L3="ours", L30="ours too"))
    tree = desk.tree("1.0")
    with pytest.raises(PatchError, match=r"conflicts in f; git rebase is unfinished") as caught:
        desk("rebase", "--series", "1.0", "--onto", "2.0")
    assert "git rebase --continue" in caught.value.do
    assert git(tree, "status", "--porcelain").startswith("UU f")
    assert "<<<<<<<" in (tree / "f").read_text()
    with pytest.raises(PatchError, match="unfinished"):
        desk("refresh", "--series", "1.0")
    (tree / "f").write_text("new\nnew\n" + text(L3="ours", L30="both"))
    git(tree, "add", "f")
    git(tree, "rebase", "--continue")
    desk("refresh", "--series", "1.0", "--to", "2.0")
    assert desk.series("2.0") == [("2.0", ["0001-Clean.patch", "0002-Hard.patch"])]


def test_what_upstream_has_falls_away(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk("new", "--series", "1.0")
    desk.commit("1.0", "Theirs", f=text(L30="upstream changed it"))
    desk.commit("1.0", "Ours", f=text(L3="ours", L30="upstream changed it"))
    desk("refresh", "--series", "1.0")
    capsys.readouterr()
    desk("status")
    told = capsys.readouterr().out
    theirs = told[told.index("0001-Theirs") : told.index("0002-Ours")]
    assert "2.0          is already in the tree" in theirs
    assert "1.0          applies" in theirs
    desk("rebase", "--series", "1.0", "--onto", "2.0")
    assert "1 of 2 patches lie on 2.0; 1 fell away" in capsys.readouterr().err


def test_check_tells_all_conflicts(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk("new", "--series", "1.0..2.0", "--version", "1.0")
    desk.commit("1.0..2.0", "Fits", f=text(L12="ours"))
    desk.commit("1.0..2.0", "Does not", f=text(L12="ours", L30="ours too"))
    desk("refresh", "--series", "1.0..2.0")
    with pytest.raises(PatchError) as caught:
        desk("check")
    assert len(caught.value.problems) == 1
    assert (
        "2.0: 1.0..2.0/0002-Does-not.patch does not apply (conflict): f (hunk 1 of 1)" in caught.value.problems[0]
    )
    out = capsys.readouterr().out
    assert out.count("applies") == 3
    series = desk.patches / "vllm" / "1.0..2.0" / "series"
    series.write_text(series.read_text().replace("0002-Does-not.patch", "0002-Does-not.patch optional"))
    assert desk("check") == 0


def test_series_lie_on_those_before_them(desk: Desk) -> None:
    desk("new", "--series", "1.0")
    desk.commit("1.0", "First", f=text(L3="first"))
    desk("refresh", "--series", "1.0")
    desk("new", "--series", "1.0..1.5")
    assert (desk.tree("1.0..1.5") / "f").read_text() == text(L3="first")
    desk.commit("1.0..1.5", "Second", f=text(L3="second"))
    desk("refresh", "--series", "1.0..1.5")
    assert desk("check") == 0


def test_drop(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk("new", "--series", "1.0")
    desk.commit("1.0", "One", f=text(L3="one"))
    desk.commit("1.0", "Two", f=text(L3="one", L20="two"))
    desk("refresh", "--series", "1.0")
    with pytest.raises(UsageError, match=r"0 patches of vllm are called '0003-X'"):
        desk("drop", "0003-X")
    desk("drop", "0002-Two")
    assert desk.series("1.0") == [("1.0", ["0001-One.patch"])]
    assert not (desk.patches / "vllm" / "1.0" / "0002-Two.patch").exists()


def test_what_takes_long_is_told_beside_the_answer(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk("new", "--series", "1.0")
    assert "> lay out vllm 1.0" in capsys.readouterr().err
    desk.commit("1.0", "One", f=text(L3="one"))
    desk("refresh", "--series", "1.0")
    capsys.readouterr()
    for verb, versions in (("check", ["1.0"]), ("status", list(UPSTREAM))):
        assert desk(verb, "--json") == 0
        told = capsys.readouterr()
        assert json.loads(told.out)["patches"]
        for version in versions:
            assert f"> judge the patches of vllm {version}\n" in told.err


def test_looking_leaves_nothing_where_somebody_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "repository"
    monkeypatch.setattr(patch_commands, "ROOT", root)
    monkeypatch.setattr(pins, "load", lambda _: SimpleNamespace(releases=[]))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    top = argparse.ArgumentParser()
    add_patch_commands(top.add_subparsers(required=True))
    for verb in ("check", "status"):
        arguments = top.parse_args(["patches", verb, "--patches", str(tmp_path / "none")])
        assert arguments.run(arguments) == 0
        assert f"sources are kept in {root / 'work' / 'files'}" in "".join(capsys.readouterr().err.split("\n"))
    assert list(here.iterdir()) == []
    assert not root.exists()
    (here / "work" / "steps").mkdir(parents=True)
    arguments = top.parse_args(["patches", "status", "--patches", str(tmp_path / "none")])
    assert Request(arguments).work == here / "work"
    arguments = top.parse_args(["patches", "status", "--work", "other"])
    assert Request(arguments).work == here / "other"
    arguments = top.parse_args(["patches", "new", "--series", "1.0"])
    assert Request(arguments).work == here / "work"


def test_no_patches(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk("check") == desk("status") == 0
    assert capsys.readouterr().out == "no patches of vllm\n" * 2


@pytest.mark.parametrize(
    "words",
    [["new", "--series", "newest"], ["new", "--series", "../x"], ["rebase", "--series", "x", "--onto", "2.0"]],
)
def test_series_must_be_versions(desk: Desk, words: list[str]) -> None:
    with pytest.raises(UsageError, match=r"looks like 0\.33\.0"):
        desk(*words)


@pytest.mark.parametrize(
    "words", [["check", "--against", "newest"], ["rebase", "--series", "1.0", "--onto", "x"]]
)
def test_versions_must_be_versions(desk: Desk, words: list[str]) -> None:
    with pytest.raises(UsageError, match="a version looks like"):
        desk(*words)


def test_a_version_outside_the_series(desk: Desk) -> None:
    with pytest.raises(UsageError, match=r"does not cover 2\.0"):
        desk("new", "--series", "1.0", "--version", "2.0")
    with pytest.raises(UsageError, match="covers none of the pinned versions"):
        desk("new", "--series", "7.0")
