"""Patch files: what a series must say, and every fault in one message."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest

from sm121.errors import PatchError
from sm121.sources.series import Patch, Upstream, UpstreamState, chosen, load_series, versions_of

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: someone <someone@example.org>
Date: Sun, 29 Nov 2026 00:00:00 +0000
Subject: [PATCH 1/2] a change of
 two lines

Prose that names a Field: nobody reads.

Why: because
  it is needed
Upstream: https://example.org/pull/1 open 2026-09-08
Upstream: https://example.org/pull/2 merged 2026-10-01
Applies-to: 1.0..2.0
Drop-when: the second is in
Kernels: none
---
 f | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/f b/f
--- a/f
+++ b/f
@@ -1 +1 @@
-Why: not this
+x
"""


def write(root: Path, folder: str, series: str, **patches: str) -> Path:
    home = root / "vllm" / folder
    home.mkdir(parents=True)
    (home / "series").write_text(series)
    for name, text in patches.items():
        (home / f"{name}.patch").write_text(text)
    return root


def test_fields_are_read_from_the_message_alone() -> None:
    patch = Patch.parse("0001-x.patch", GOOD.encode())
    assert patch.subject == "a change of two lines"
    assert patch.value("Why") == "because it is needed"
    assert patch.upstream == (
        Upstream("https://example.org/pull/1", UpstreamState.OPEN, date(2026, 9, 8)),
        Upstream("https://example.org/pull/2", UpstreamState.MERGED, date(2026, 10, 1)),
    )
    assert list(patch.faults()) == []


def test_a_bare_diff_is_a_patch_without_fields() -> None:
    patch = Patch.parse("x", b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n")
    assert patch.fields == {}
    assert len(list(patch.faults())) == 6


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("0.33.0", ["0.33.0", "0.33.0+cu130"], ["0.33.1", "0.33.0rc1", "0.33.0.post1"]),
        (
            "0.29.0..0.33.0",
            ["0.29.0", "0.30.1", "0.33.0", "0.33.0+cu130.sm121"],
            ["0.28.9", "0.33.1", "0.34.0rc1"],
        ),
        ("0.29.0..", ["0.29.0", "9"], ["0.28.0"]),
        ("..0.33.0", ["0.1", "0.33.0"], ["0.33.1"]),
        (">=0.29,<0.34", ["0.29", "0.33.9"], ["0.34"]),
    ],
)
def test_versions(name: str, inside: list[str], outside: list[str], tmp_path: Path) -> None:
    root = write(tmp_path, name, "")
    for version in inside:
        assert len(load_series(root, "vLLM", version)) == 1, version
    for version in outside:
        assert load_series(root, "vllm", version) == [], version


@pytest.mark.parametrize("text", ["", "..", "latest", "1..2..3", "v1..x", ">=x", "*"])
def test_no_versions(text: str) -> None:
    with pytest.raises(ValueError, match=r"looks like 0\.33\.0"):
        versions_of(text)


def test_a_project_without_patches_has_none(tmp_path: Path) -> None:
    assert load_series(tmp_path, "flashinfer-python") == []


def test_order_and_marks(tmp_path: Path) -> None:
    root = write(tmp_path, "1.0..2.0", "# ours\n0002-b.patch optional\n\n0001-a.patch off # on request\n",
                 **{"0001-a": GOOD, "0002-b": GOOD})  # fmt: skip
    series = load_series(root, "vllm", "1.5")
    assert [(p.name, p.optional, p.off) for p in series[0].patches] == [
        ("0002-b.patch", True, False),
        ("0001-a.patch", False, True),
    ]
    assert [p.name for p in chosen(series)] == ["0002-b.patch"]
    assert [p.name for p in chosen(series, frozenset({"0001-a"}))] == ["0002-b.patch", "0001-a.patch"]
    with pytest.raises(PatchError, match=r"did you mean '0001-a'"):
        chosen(series, frozenset({"0001-aa.patch"}))


def test_every_fault_in_one_message(tmp_path: Path) -> None:
    root = write(
        tmp_path, "1.0",
        "0001-a.patch optoinal\n0001-a.patch\n../x.patch\n0002-b.patch\n0003-c.patch\n",
        **{"0001-a": GOOD, "0002-b": GOOD.replace("open 2026", "soon 2026").replace("Drop-when", "Drop"),
           "0004-d": GOOD},
    )  # fmt: skip
    write(
        tmp_path, "2.0", "0002-b.patch\n0003-c.patch\n",
        **{"0002-b": GOOD.replace("open 2026", "soon 2026").replace("Drop-when", "Drop"), "0004-d": GOOD},
    )  # fmt: skip
    write(tmp_path, "newest", "")
    with pytest.raises(PatchError) as caught:
        load_series(root, "vllm")
    told = "\n".join(caught.value.problems)
    for part in (
        "did you mean 'optional'", "listed twice", "'../x.patch' is not a file beside",
        "newest is named after no", "no field Drop-when",
        "'https://example.org/pull/1 soon 2026-09-08'", "lists 0003-c.patch",
        "0004-d.patch is not listed",
    ):  # fmt: skip
        assert part in told, part


def test_a_folder_without_series(tmp_path: Path) -> None:
    (tmp_path / "vllm" / "1.0").mkdir(parents=True)
    with pytest.raises(PatchError, match="series cannot be read"):
        load_series(tmp_path, "vllm")
