"""One job of a CI matrix: its share of the compile commands and of the PTX to finish, left in the caches.

Nothing is linked. The job that comes last runs the whole plan, and finds every result in the caches.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sm121.compile.ninja import object_name, objects
from sm121.errors import UsageError
from sm121.finish.library import compile_ptx, plan_libraries
from sm121.plan.sharding import with_guesses
from sm121.progress import duration
from sm121.sources.disk import completed_file
from sm121.steps import caching, libraries, modules
from sm121.steps.finishing import finish_settings, official_libraries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sm121.compile.caching import CacheUse
    from sm121.plan.sharding import Shard
    from sm121.steps.run import Run

_PREPARE = {"vllm": libraries.prepare, "flashinfer": modules.prepare}
PTXAS = 2.1e-6
"""Seconds of ptxas for a byte of PTX (13.0.88, FlashAttention 2 for sm_121, 2026-11-29)."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a shard did: compile commands and PTX units, of how many; expected seconds of one core; the cache's part."""

    shard: str
    objects: int
    all_objects: int
    ptx: int
    all_ptx: int
    seconds: float
    cache: CacheUse | None

    def __str__(self) -> str:
        return (
            f"shard {self.shard}: {self.objects} of {self.all_objects} compile commands, {self.ptx} of {self.all_ptx} "
            f"units of PTX, {duration(self.seconds)} of one core by what is known"
        )


def compile_share(run: Run, shard: Shard, record: Path) -> Share:
    """Compile `shard`'s part of the plan and write down in `record` what it was."""
    if caching.cache_of(run).program is None:
        raise UsageError(
            "a shard without a compiler cache leaves nothing behind.",
            do="name one that the last job reads too: --cache redis://..., s3://... or file:///FOLDER.",
        )
    prepared = _PREPARE[run.plan.project](run)
    costs = _costs(run, prepared)
    with tempfile.TemporaryDirectory(prefix="sm121-shard-", dir=run.work.root) as folder:
        official = official_libraries(run, Path(folder) / "official") if run.plan.finishes else {}
        ptx = _ptx_costs(run, official)
        # Both kinds are dealt out together, so that a shard with fewer files gets more PTX.
        mine = shard.of({(name, -1): cost for name, cost in costs.items()} | ptx)
        own = [name for name, unit in mine if unit < 0]
        units = {key for key in mine if key[1] >= 0}
        share = Share(
            str(shard), len(own), len(costs), len(units), len(ptx),
            sum(costs[name] for name in own) + sum(ptx[key] for key in units), None,
        )  # fmt: skip
        run.progress.say(f"  {share}")
        if own:
            libraries.make(run, prepared, own)
        if run.plan.finishes:
            made = {name: prepared.tree / "obj" / name for name in own if name.endswith(".cu.o")}
            compile_ptx(
                {**made, **official}, finish_settings(run), run.progress,
                lambda name, unit: name in made or (name, unit) in units,
            )  # fmt: skip
    caching.keep_record(prepared.tree / "obj", record.parent)
    use = caching.read_use(record.parent)
    with completed_file(record) as file:
        told = {**asdict(share), "cache": use.to_data() if use else None, "compiled": sorted(own)}
        file.write((json.dumps(told, indent=1) + "\n").encode())
    return Share(share.shard, share.objects, share.all_objects, share.ptx, share.all_ptx, share.seconds, use)


def _costs(run: Run, prepared: libraries.Prepared) -> dict[str, float]:
    """Object of every compile command of the plan's targets to seconds."""
    found = objects((prepared.tree / "obj" / "build.ninja").read_text())
    targets = {*run.plan.step("libraries").inputs["targets"]} if run.plan.project == "vllm" else None
    names = {path: object_name(path) for path in found}
    wanted = [path for path, name in names.items() if targets is None or name.split("/")[0] in targets]
    known = {
        path: prepared.schedule.seconds[names[path]]
        for path in wanted
        if names[path] in prepared.schedule.seconds
    }
    return with_guesses(wanted, known)


def _ptx_costs(run: Run, libraries: Mapping[str, Path]) -> dict[tuple[str, int], float]:
    """PTX of upstream's libraries that finishing compiles, by library and unit, to seconds."""
    if not libraries:
        return {}
    return {
        (name, unit.container.index): unit.source.image.size * PTXAS
        for name, units in plan_libraries(libraries, finish_settings(run)).items()
        for unit in units
        if unit.source
    }
