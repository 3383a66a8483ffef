"""The step that leaves nothing to the driver's compiler, in our libraries and in upstream's."""

from __future__ import annotations

import json
import shutil
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING, Any

from sm121.device import read_device_code
from sm121.finish.library import Settings, finish_libraries
from sm121.finish.units import Deed
from sm121.plan.model import FINISH_ARCHS
from sm121.sources.unpack import unpack
from sm121.target import GB10

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.finish.model import FinishedLibrary
    from sm121.steps.run import Run


def finish(run: Run, into: Path) -> None:
    """Compile all PTX that has no machine code for 12.1 beside it, and drop every image that cannot load."""
    plan = run.plan
    compiled = {
        e.path: run.result("libraries") / f"{e.name}.abi3.so" for e in plan.extensions if e.origin == "source"
    }
    libraries = {
        path: file
        for path, file in {**compiled, **official_libraries(run, into / "official")}.items()
        if _has_device_code(file)
    }
    done = finish_libraries(libraries, into / "finished", finish_settings(run), run.progress)
    shutil.rmtree(into / "official")
    (into / "finished.json").write_text(json.dumps([_told(each) for each in done.values()], indent=1) + "\n")


def official_libraries(run: Run, folder: Path) -> dict[str, Path]:
    """Unpack upstream's libraries that go into the wheel; those with device code, by their paths in the wheel."""
    official = {e.path for e in run.plan.extensions if e.origin == "official"}
    unpack(run.file("official wheel"), folder, members=official.__contains__)
    kept = {path: folder / path for path in sorted(official) if (folder / path).exists()}
    return {path: file for path, file in kept.items() if _has_device_code(file)}


def finish_settings(run: Run) -> Settings:
    """How the plan's libraries are finished."""
    return Settings(
        target=GB10, arch=FINISH_ARCHS[run.plan.target_cpu], ptxas=run.result("toolkit") / "cuda" / "bin" / "ptxas",
        cache=run.work.cache / "ptxas",
        jobs=run.plan.jobs,
    )  # fmt: skip


def finished_libraries(run: Run) -> dict[str, Path]:
    """Path in the wheel to finished file; empty if the plan does not finish."""
    if not run.plan.finishes:
        return {}
    folder = run.result("finish")
    told = json.loads((folder / "finished.json").read_text())
    return {each["name"]: folder / "finished" / each["name"] for each in told if each["before"] != each["after"]}


def finishing_notes(run: Run) -> tuple[str, ...]:
    """What was done, a sentence per library, for ledger and manifest."""
    if not run.plan.finishes:
        return ()
    return tuple(
        f"{each['name']} was finished by {each['ptxas']}: {each['compiled']} units from PTX to {each['arch']}, "
        f"layout {each['layout']}, sha256 before {each['before']}"
        for each in json.loads((run.result("finish") / "finished.json").read_text())
    )


def _told(library: FinishedLibrary) -> dict[str, Any]:
    options = sorted({" ".join(unit.compiled.options) for unit in library.units if unit.compiled})
    return {
        "name": library.name,
        "layout": library.layout,
        "arch": library.arch.sm,
        "before": library.before.sha256.hex,
        "after": library.after.sha256.hex,
        "size": [library.before.size, library.after.size],
        "compiled": sum(unit.compiled is not None for unit in library.units),
        "deeds": {str(deed): library.count(deed) for deed in Deed},
        "seconds": round(library.seconds, 1),
        "ptxas": f"ptxas {library.ptxas.version}, sha256 {library.ptxas.sha256.hex}, {'; '.join(options) or 'unused'}",
        "note": library.note,
    }


def _has_device_code(file: Path) -> bool:
    with file.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as buffer:
        return read_device_code(buffer).has_device_code
