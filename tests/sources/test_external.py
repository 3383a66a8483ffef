from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from sm121.errors import FetchError
from sm121.sources.external import External, clone, require_reachable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.programs

NOBODY = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "protocol.file.allow=always"]


def repository(path: Path, *, submodule: Path | None = None) -> str:
    """A repository with one file, perhaps with a submodule; returns its commit."""
    path.mkdir()
    (path / "file").write_text(path.name)
    commands = [["init", "-q"], ["add", "file"]]
    if submodule:
        commands.append(["submodule", "add", "-q", str(submodule), "third_party"])
    for words in [
        *commands,
        ["commit", "-q", "-m", "one"],
        ["tag", "v1"],
        ["config", "uploadpack.allowAnySHA1InWant", "true"],
    ]:
        subprocess.run(["git", *NOBODY, *words], cwd=path, check=True, capture_output=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=path, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_tree_comes_with_its_submodules_and_without_history(tmp_path: Path) -> None:
    repository(tmp_path / "inner")
    commit = repository(tmp_path / "outer", submodule=tmp_path / "inner")
    for ref in ("v1", commit):
        into = tmp_path / f"clone-{ref}"
        assert clone(External("outer", f"file://{tmp_path / 'outer'}", ref), into) == commit
        assert (into / "file").read_text() == "outer"
        assert (into / "third_party" / "file").read_text() == "inner"
        assert not list(into.rglob(".git"))


def test_a_commit_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    repository(tmp_path / "outer")
    with pytest.raises(FetchError, match="outer at " + "0" * 40):
        clone(External("outer", f"file://{tmp_path / 'outer'}", "0" * 40), tmp_path / "clone")
    assert not (tmp_path / "clone").exists()


def test_every_tree_that_cannot_be_had_is_named_at_once(tmp_path: Path) -> None:
    repository(tmp_path / "there")
    known = External("there", f"file://{tmp_path / 'there'}", "v1")
    require_reachable([known])
    lost = [External(name, f"file://{tmp_path / name}", "v1") for name in ("fa2", "qutlass")]
    with pytest.raises(FetchError) as caught:
        require_reachable([known, *lost])
    assert [problem.split()[0] for problem in caught.value.problems] == ["fa2", "qutlass"]
    assert "--sources all" in caught.value.do
