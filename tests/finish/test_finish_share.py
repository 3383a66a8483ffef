"""Shares of the PTX: each shard compiles its part, and finishing then compiles nothing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from finish_files import FIXTURES

from sm121.finish.library import compile_ptx, finish_libraries, plan_libraries
from sm121.plan.sharding import Shard

if TYPE_CHECKING:
    from pathlib import Path

    from finish_files import RecordedPtxas

    from sm121.progress import Progress

NAMES = ("aarch64.so", "ptx_120f.so")


def test_what_shards_leave_in_folders_of_their_own_is_all_that_finishing_needs(
    ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path
) -> None:
    libraries = {name: FIXTURES / name for name in NAMES}
    alone = finish_libraries(libraries, tmp_path / "alone", ptxas.settings(tmp_path / "a"), quiet)
    everything = sorted(ptxas.compiled)
    assert len(everything) > 2
    ptxas.compiled.clear()
    costs = {
        (name, unit.container.index): float(unit.source.image.size)
        for name, units in plan_libraries(libraries, ptxas.settings(tmp_path / "p")).items()
        for unit in units
        if unit.source
    }
    shares = []
    for number in (1, 2):
        mine = {*Shard(number, 2).of(costs)}
        before = len(ptxas.compiled)
        compile_ptx(libraries, ptxas.settings(tmp_path / f"{number}"), quiet, lambda *key, mine=mine: key in mine)
        shares.append(len(ptxas.compiled) - before)
    assert all(shares)
    assert sorted(ptxas.compiled) == everything
    ptxas.compiled.clear()
    for number in (1, 2):
        shutil.copytree(tmp_path / f"{number}" / "cache", tmp_path / "together" / "cache", dirs_exist_ok=True)
    together = finish_libraries(libraries, tmp_path / "out", ptxas.settings(tmp_path / "together"), quiet)
    assert ptxas.compiled == []
    assert {name: each.after for name, each in together.items()} == {
        name: each.after for name, each in alone.items()
    }


def test_an_object_is_asked_for_its_ptx_too(ptxas: RecordedPtxas, quiet: Progress, tmp_path: Path) -> None:
    """A shard links nothing: it has objects alone."""
    settings = ptxas.settings(tmp_path)
    compile_ptx({"options.o": FIXTURES / "options.o"}, settings, quiet, lambda *_key: True)
    assert ptxas.compiled
    ptxas.compiled.clear()
    finish_libraries({"options.o": FIXTURES / "options.o"}, tmp_path / "out", settings, quiet)
    assert ptxas.compiled == []
    compile_ptx({"small.o": FIXTURES / "small.o"}, settings, quiet, lambda *_key: False)
    assert ptxas.compiled == []
