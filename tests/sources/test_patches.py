"""Patches judged as a set and applied as a whole: the cases, and the ways to go wrong that they do not name."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sm121.errors import PatchError
from sm121.findings import Verdict, overall
from sm121.sources.patches import Ledger, State, apply, judge, require
from sm121.sources.series import Patch
from sm121.sources.tree import read_tree, tree_digest

pytestmark = pytest.mark.programs

CASES = tomllib.loads((Path(__file__).parent.parent / "cases" / "patches.toml").read_text())["case"]

OLD = "".join(f"line {number}\n" for number in range(1, 31))


def make(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def patch(text: str, name: str = "0001-x.patch", *, optional: bool = False) -> Patch:
    return Patch.parse(name, text.encode(), optional=optional)


def diff(path: str, number: int, new: str, *, around: int = 3) -> str:
    """A diff that replaces one line of OLD."""
    lines = OLD.splitlines()
    low, high = max(number - around, 1), min(number + around, len(lines))
    body = "".join(
        f"-{lines[n - 1]}\n+{new}\n" if n == number else f" {lines[n - 1]}\n" for n in range(low, high + 1)
    )
    count = high - low + 1
    return f"--- a/{path}\n+++ b/{path}\n@@ -{low},{count} +{low},{count} @@\n{body}"


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    given, expect = case["given"], case["expect"]
    tree = make(tmp_path / "tree", given["tree"])
    before = read_tree(tree)
    texts = given.get("patches") or [given["patch"]]
    marks = given.get("optional") or [False] * len(texts)
    patches = [
        patch(text, f"{number:04}-x.patch", optional=mark)
        for number, (text, mark) in enumerate(zip(texts, marks, strict=True), start=1)
    ]
    judged = judge(patches, tree)
    assert read_tree(tree) == before

    findings = [one.finding for one in judged]
    assert overall(findings).name in {expect["verdict"], *expect.get("accept", [])}
    told = " ".join(finding.message for finding in findings).lower()
    assert "word" not in expect or any(word.lower() in told for word in expect["word"])
    assert all(word.lower() in told for word in expect.get("all_words", []))
    wanted = expect.get("states") or [expect["state"]]
    assert [str(one.state) for one in judged] == wanted
    if "git_apply" in expect:
        assert [judged[0].forward, judged[0].reverse] == expect["git_apply"]

    if overall(findings) is Verdict.FAIL:
        with pytest.raises(PatchError):
            apply(patches, tree)
    else:
        apply(patches, tree)
    if "tree_unchanged" in expect:
        assert (read_tree(tree) == before) == expect["tree_unchanged"]


def test_every_kind_of_case_is_covered() -> None:
    assert {case["kind"] for case in CASES} == {"patches"}
    assert len({case["id"] for case in CASES}) == len(CASES) >= 6


def test_a_patch_is_judged_on_top_of_those_before_it(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD})
    first = patch(diff("f", 10, "changed"), "0001.patch")
    second = patch(diff("f", 10, "again").replace("-line 10", "-changed"), "0002.patch")
    assert [one.state for one in judge([second], tree)] == [State.CONFLICT]
    assert [one.state for one in judge([first, second], tree)] == [State.APPLIES, State.APPLIES]
    ledger = apply([first, second], tree)
    assert (tree / "f").read_text() == OLD.replace("line 10\n", "again\n")
    assert ledger.after == tree_digest(tree) != ledger.before


def test_offset_is_told_and_applied(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": "new\nnew\n" + OLD})
    (judged,) = judge([patch(diff("f", 10, "changed"))], tree)
    assert judged.state is State.OFFSET
    assert "offset" in judged.finding.message
    assert judged.finding.verdict is Verdict.PASS
    apply([judged.patch], tree)
    assert "changed" in (tree / "f").read_text()


def test_a_change_that_is_in_is_not_made_a_second_time_further_down(tmp_path: Path) -> None:
    """The context occurs twice and the change is in at the first place: git alone would make it at the second."""
    block = "start\na\nb\nc\nend\n"
    text = "--- a/f\n+++ b/f\n@@ -2,3 +2,4 @@ start\n a\n b\n+in\n c\n"
    tree = make(tmp_path / "tree", {"f": block.replace("b\n", "b\nin\n") + block})
    (judged,) = judge([patch(text)], tree)
    assert (judged.forward, judged.reverse) == (0, 0)
    assert judged.state is State.ALREADY


def test_conflict_names_the_files_and_hunks(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD.replace("line 25", "other"), "g": OLD.replace("line 2\n", "no\n")})
    text = (
        diff("f", 10, "changed")
        + "".join(diff("f", 25, "changed").splitlines(keepends=True)[2:])
        + diff("g", 2, "changed")
    )
    (judged,) = judge([patch(text)], tree)
    assert judged.state is State.CONFLICT
    assert {hunks.path: (hunks.failed, hunks.total) for hunks in judged.conflicts} == {
        "f": ((2,), 2),
        "g": ((1,), 1),
    }
    assert "f (hunk 2 of 2)" in judged.finding.message


def test_all_bad_patches_are_named_at_once(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD})
    bad = [
        patch(diff("f", 10, "x").replace("line 9", "nine"), "0001-conflict.patch"),
        patch(diff("absent", 10, "x"), "0002-missing.patch"),
        patch("not a patch\n", "0003-damaged.patch"),
    ]
    before = read_tree(tree)
    with pytest.raises(PatchError) as caught:
        apply([patch(diff("f", 20, "x"), "0000-good.patch"), *bad], tree)
    assert len(caught.value.problems) == 3
    for one, problem in zip(bad, caught.value.problems, strict=True):
        assert one.name in problem
    assert "absent" in caught.value.problems[1]
    assert read_tree(tree) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "From: someone\nSubject: nothing\n",
        diff("f", 10, "x").rpartition("\n line 13")[0] + "\n",
        diff("f", 10, "x").replace("@@ -7,7", "@@ -7,9"),
        diff("f", 10, "x").replace("+x\n", "x\n"),
        "GIT binary patch\n",
    ],
    ids=["empty", "message only", "cut off", "wrong count", "lost its plus", "no binary"],
)
def test_damaged_patches(text: str, tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD})
    (judged,) = judge([patch(text, optional=True)], tree)
    assert judged.state is State.CORRUPT
    assert judged.finding.verdict is Verdict.FAIL, "optional does not excuse damage"
    with pytest.raises(PatchError, match="damaged"):
        require([judged])


def test_a_mail_that_was_cut_between_two_files_is_damaged(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD, "g": OLD})
    mail = (
        "From 0 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] two\n---\n f | 2 +-\n g | 2 +-\n"
        " 2 files changed, 2 insertions(+), 2 deletions(-)\n\n"
    )
    whole = mail + "".join(f"diff --git a/{name} b/{name}\n{diff(name, 10, 'x')}" for name in "fg")
    assert [one.state for one in judge([patch(whole)], tree)] == [State.APPLIES]
    cut = whole[: whole.index("diff --git a/g")]
    (judged,) = judge([patch(cut)], tree)
    assert judged.state is State.CORRUPT
    assert "summary" in judged.message


def test_a_summary_inside_the_sources_is_no_claim(tmp_path: Path) -> None:
    log = " 1 file changed, 9 insertions(+)\n"
    tree = make(tmp_path / "tree", {"f": log + OLD})
    text = f"--- a/f\n+++ b/f\n@@ -1,4 +1,4 @@\n {log}-line 1\n+x\n line 2\n line 3\n"
    assert [one.state for one in judge([patch(text)], tree)] == [State.APPLIES]
    mail = f"Subject: [PATCH] x\n\n{log}\n---\n f | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)\n\n"
    assert [one.state for one in judge([patch(f"{mail}diff --git a/f b/f\n{text}")], tree)] == [State.APPLIES]


@pytest.mark.parametrize("path", ["../out", "/tmp/out", ".git/config", "sub/../../out"])
def test_a_patch_cannot_leave_the_tree(path: str, tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD})
    make(tmp_path, {"out": OLD})
    (judged,) = judge([patch(diff(path, 10, "x"))], tree)
    assert judged.state is State.CORRUPT
    with pytest.raises(PatchError):
        apply([judged.patch], tree)
    assert (tmp_path / "out").read_text() == OLD


def test_a_patch_cannot_write_through_a_link(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD})
    make(tmp_path / "outside", {"f": OLD})
    (tree / "link").symlink_to(tmp_path / "outside")
    (judged,) = judge([patch(diff("link/f", 10, "x"))], tree)
    assert judged.state is State.CONFLICT
    with pytest.raises(PatchError):
        apply([judged.patch], tree)
    assert (tmp_path / "outside" / "f").read_text() == OLD


def test_a_repository_around_the_tree_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a repository git apply skips, in silence, what lies outside the current folder."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    tree = make(tmp_path / "deep" / "tree", {"f": OLD})
    make(tmp_path, {"f": "another\n"})
    ledger = apply([patch(diff("f", 10, "changed"))], tree)
    assert "changed" in (tree / "f").read_text()
    assert (tmp_path / "f").read_text() == "another\n"
    assert ledger.entries[0].applied


def test_a_tree_that_is_a_repository_itself(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD})
    subprocess.run(["git", "init", "-q", tree], check=True)
    apply([patch(diff("f", 10, "changed"))], tree)
    assert "changed" in (tree / "f").read_text()


def test_the_users_git_settings_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "home", {".gitconfig": "[apply]\n\twhitespace = error-all\n[core]\n\tautocrlf = true\n"})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    tree = make(tmp_path / "tree", {"f": OLD})
    apply([patch(diff("f", 10, "trailing space "))], tree)
    assert "trailing space \n" in (tree / "f").read_text()


def test_files_are_made_removed_renamed_and_keep_their_mode(tmp_path: Path) -> None:
    tree = make(
        tmp_path / "tree", {"gone/f": "a\n", "old name": OLD, "run": "#!/bin/sh\necho a\n", "kept": "k\n"}
    )
    (tree / "run").chmod(0o755)
    text = (
        "diff --git a/gone/f b/gone/f\ndeleted file mode 100644\n--- a/gone/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
        "diff --git a/made/f b/made/f\nnew file mode 100755\n--- /dev/null\n+++ b/made/f\n@@ -0,0 +1 @@\n+b\n"
        "diff --git a/old name b/new name\nsimilarity index 100%\nrename from old name\nrename to new name\n"
        "diff --git a/run b/run\n--- a/run\n+++ b/run\n@@ -1,2 +1,2 @@\n #!/bin/sh\n-echo a\n+echo b\n"
    )
    kept = (tree / "kept").stat()
    ledger = apply([patch(text)], tree)
    assert not (tree / "gone").exists()
    assert os.access(tree / "made" / "f", os.X_OK)
    assert os.access(tree / "run", os.X_OK)
    assert not (tree / "old name").exists()
    assert (tree / "new name").read_text() == OLD
    assert (tree / "kept").stat().st_mtime_ns == kept.st_mtime_ns
    assert set(ledger.entries[0].files) == {"gone/f", "made/f", "old name", "new name", "run"}
    (judged,) = judge([patch(text)], tree)
    assert judged.state is State.ALREADY


def test_applying_does_not_write_into_files_that_share_their_bytes(tmp_path: Path) -> None:
    """A tree may be made of hard links into a store; the store's file must not change."""
    store = make(tmp_path / "store", {"f": OLD}) / "f"
    tree = tmp_path / "tree"
    tree.mkdir()
    os.link(store, tree / "f")
    apply([patch(diff("f", 10, "changed"))], tree)
    assert "changed" in (tree / "f").read_text()
    assert store.read_text() == OLD


def test_an_interrupted_exchange_leaves_the_old_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make(tmp_path / "tree", {"f": OLD})
    before = read_tree(tree)
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        apply([patch(diff("f", 10, "changed"))], tree)
    assert read_tree(tree) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]


def test_an_optional_patch_that_is_left_out_is_in_the_ledger(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD})
    ledger = apply([patch(diff("absent", 10, "x"), "0001-maybe.patch", optional=True)], tree)
    (entry,) = ledger.entries
    assert (entry.state, entry.applied, entry.optional) == (State.TARGET_MISSING, False, True)
    assert ledger.before == ledger.after == tree_digest(tree)


def test_ledger_is_plain_data_and_comes_back(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree", {"f": OLD})
    one = patch("Subject: [PATCH] why not\n\nWhy: because\n  it is so\nKernels: none\n\n" + diff("f", 10, "x"))
    ledger = apply([one], tree)
    data = ledger.data
    assert data["patches"][0]["sha256"] == one.sha256.hex
    assert data["patches"][0]["fields"] == {"Kernels": "none", "Why": "because it is so"}
    assert data["tree_after"] == tree_digest(tree).hex
    assert Ledger.from_data(data) == ledger


def test_a_tree_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="not a folder"):
        judge([], tmp_path / "absent")


def test_a_path_with_spaces(tmp_path: Path) -> None:
    tree = make(tmp_path / "my tree", {"f": OLD})
    apply([patch(diff("f", 10, "x"))], tree)
    assert "x\n" in (tree / "f").read_text()
