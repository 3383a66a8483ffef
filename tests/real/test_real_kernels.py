"""The kernel developer's loop on genuine sources: an edit, a header, an error, a patch, a search. Minutes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sm121.cli import run
from sm121.errors import CompileError, RegressionError
from sm121.preflight import lacks, read_host
from sm121.sources import git
from sm121.sources.series import load_series

pytestmark = [pytest.mark.real, pytest.mark.network]

ROOT = Path(__file__).resolve().parents[2]
UNIT = "csrc/pos_encoding_kernels.cu"
"""Eight seconds of nvcc; reads torch_utils.h, core/cuda_compat.h, dispatch_utils.h and what those read."""
HEADER = "csrc/launch_bounds_utils.h"
DEPENDENTS = tuple(
    f"csrc/quantization/fp4/{name}.cu"
    for name in ("activation_nvfp4_quant_fusion_kernels", "nvfp4_experts_quant", "nvfp4_quant_kernels")
)
"""What reads it, by ninja's record of a whole build."""
LINE = "const float x_f = static_cast<float>(arr[x_index]);"
FIELDS = "Why: a test\nUpstream: none 2026-11-30\nApplies-to: 0.33.0\nDrop-when: never\nKernels: rotary_embedding_kernel\n"


@dataclass(frozen=True)
class Place:
    """Folders of one developer, and the captured output."""

    work: Path
    patches: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def tree(self) -> Path:
        return self.work / "patches" / "vllm" / "0.33.0"

    def run(self, verb: str, *words: str, status: int = 0) -> dict[str, Any]:
        """Run a verb with --json and return what it printed."""
        self.capsys.readouterr()
        options = ["--work", str(self.work), "--patches", str(self.patches)]
        assert run([*verb.split(), *words, *options, "--json", "-q"]) == status, self.capsys.readouterr().err
        printed = self.capsys.readouterr()
        self.said.append(printed.err)
        return json.loads(printed.out) if printed.out else {}

    @property
    def said(self) -> list[str]:
        return SAID

    def replace(self, path: str, old: str, new: str) -> None:
        file = self.tree / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))


SAID: list[str] = []
"""What the verbs printed on standard error, newest last."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if missing := lacks(read_host("aarch64"), "aarch64"):
        pytest.skip(f"this machine lacks {', '.join(lack.what for lack in missing)}")
    work = tmp_path_factory.mktemp("loop")
    files = ROOT / "work" / "files"
    files.mkdir(parents=True, exist_ok=True)
    (work / "files").symlink_to(files)
    patches = work / "series"
    shutil.copytree(ROOT / "patches", patches)
    options = ["--work", str(work), "--patches", str(patches)]
    assert run(["patches", "new", "--series", "0.33.0", *options]) == 0
    return work, patches


@pytest.fixture
def place(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> Place:
    made = Place(*folders, capsys)
    if (made.tree / ".git").exists():
        git.run(made.tree, "checkout", "-q", "--", ".")
    return made


def paths(found: dict[str, Any]) -> list[str]:
    return [unit["path"] for unit in found["units"]]


def test_an_edited_kernel_shows_what_it_became(place: Place) -> None:
    assert paths(place.run("kernels", "--changed")) == []
    place.replace(UNIT, LINE, LINE.replace("static_cast<float>(", "1.0001f * static_cast<float>("))
    found = place.run("kernels")
    (unit,) = found["units"]
    assert (unit["path"], unit["compiled"], unit["same"]) == (UNIT, True, False)
    assert unit["images"]["after"][0]["target"] == "sm_120f"
    assert unit["images"]["after"][0]["loads_as"] == "family"
    changed = [kernel for kernel in unit["kernels"] if kernel["change"] == "changed"]
    assert len(changed) == len(unit["kernels"]) == 18
    assert all(None not in kernel["registers"] and kernel["size"][1] > 0 for kernel in changed)

    again = place.run("kernels")
    assert not again["units"][0]["compiled"]
    assert again["units"][0]["kernels"] == unit["kernels"]
    place.run("kernels", "--fail-on", "changed", status=RegressionError.exit_code)
    beside = place.run("kernels", "--arch", "12.1a")["units"][0]
    assert beside["beside"]["sm_121a"][0]["loads_as"] == "native"
    assert all(kernel["beside"]["sm_121a"]["registers"] for kernel in beside["kernels"])


@pytest.mark.long
def test_a_comment_changes_no_machine_code(place: Place) -> None:
    place.run("kernels", UNIT)
    place.replace(UNIT, LINE, f"/* as it was */ {LINE}")
    (unit,) = place.run("kernels", "--fail-on", "changed", "--before", "pinned")["units"]
    assert unit["compiled"]
    assert unit["same"]


@pytest.mark.long
def test_a_header_compiles_its_dependents_and_nothing_else(place: Place) -> None:
    """First chosen by the text, then, once they were compiled, by ninja's record."""
    place.run("kernels", UNIT, "--before", "none")
    place.replace(HEADER, "#pragma once", "#pragma once\n// an edit")
    assert {*DEPENDENTS} <= {*paths(place.run("kernels", "--dry-run"))}, (
        "the text may name too many, never too few"
    )
    first = place.run("kernels", *DEPENDENTS, "--before", "none")
    assert [unit["compiled"] for unit in first["units"]] == [True] * len(DEPENDENTS)
    place.replace(HEADER, "// an edit", "// another edit")
    second = place.run("kernels", HEADER, "--before", "last", "--fail-on", "changed")
    assert paths(second) == sorted(DEPENDENTS)
    assert all(unit["compiled"] and unit["same"] for unit in second["units"])
    third = place.run("kernels", UNIT, HEADER, "--before", "none")
    assert {unit["path"] for unit in third["units"] if unit["compiled"]} == set(), "nothing was left to do"
    assert paths(third) == sorted([UNIT, *DEPENDENTS])


def test_a_compile_error_names_the_patch(place: Place) -> None:
    place.replace(UNIT, LINE, LINE.replace("arr[x_index]", "arr[x_index] * no_such_thing"))
    git.run(place.tree, "commit", "-q", "-a", "-m", f"Break the rotary kernel\n\n{FIELDS}")
    place.run("kernels", UNIT, status=CompileError.exit_code)
    said = place.said[-1]
    assert "no_such_thing" in said
    assert f"{place.tree / UNIT}:" in said
    assert "[the commit 'Break the rotary kernel']" in said
    git.run(place.tree, "reset", "-q", "--hard", "HEAD~1")

    place.replace(UNIT, LINE, LINE.replace("arr[x_index]", "arr[x_index] * not_this_either"))
    place.run("kernels", status=CompileError.exit_code)
    assert "[your edit]" in place.said[-1]


def test_a_missing_suffix_is_explained(place: Place) -> None:
    """FP4 instructions do not exist in code for plain 12.1: ptxas says so in other words."""
    place.run("kernels", DEPENDENTS[2], "--before", "none", "--arch", "12.1", status=CompileError.exit_code)
    said = place.said[-1]
    assert f"{DEPENDENTS[2]} for sm_121 did not compile" in said
    assert "arch-suffix-missing" in said
    assert "12.1a" in said


@pytest.mark.long
def test_patches_are_compared_and_searched(place: Place) -> None:
    """Three patches on one unit; the middle one changes machine code, and is found."""
    edits = ("/* one */ ", "2.0f * ", "/* three */ ")
    for number, edit in enumerate(edits):
        place.replace(UNIT, "const float x_f = ", f"const float x_f = {edit}")
        git.run(place.tree, "commit", "-q", "-a", "-m", f"Rotary edit {number}\n\n{FIELDS}")
    commits = place.run("bisect commits", "sm121-base..HEAD", UNIT)
    assert commits["first_bad"].endswith("Rotary edit 1")
    assert len(commits["differences"]) == 18

    options = ["--work", str(place.work), "--patches", str(place.patches)]
    assert run(["patches", "refresh", "--series", "0.33.0", *options]) == 0
    (series,) = [one for one in load_series(place.patches, "vllm", "0.33.0") if one.folder.name == "0.33.0"]
    names = [patch.name for patch in series.patches]
    found = place.run("bisect patches", UNIT, "--kernel", "rotary_embedding_kernel")
    assert found["first_bad"] == names[1]
    assert {row["title"]: row["good"] for row in found["tested"]}[names[0]]
    (second,) = place.run("kernels", "--patch", names[1])["units"]
    assert second["path"] == UNIT
    assert not second["same"]
    (third,) = place.run("kernels", "--patch", names[2])["units"]
    assert third["same"]

    objects = [second["before"], second["object"], third["object"]]
    place.capsys.readouterr()
    assert run(["bisect", "artifacts", *objects, "--kernel", "rotary_embedding_kernel", "--json", "-q"]) == 0
    assert json.loads(place.capsys.readouterr().out)["first_bad"] == second["object"]
    assert run(["bisect", "artifacts", *objects, "--question", "lost", "-q"]) == 1
