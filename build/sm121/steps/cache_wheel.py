"""The step that packs FlashInfer's modules, and judges that the wheel keeps what its set claims."""

from __future__ import annotations

import json
import shutil
import zipfile
from typing import TYPE_CHECKING

from sm121.errors import PackError
from sm121.pack.cache_wheel import FINDER, assemble_finder, assemble_modules
from sm121.plan.flashinfer_modules import sets, unserved
from sm121.sources.members import damage
from sm121.steps.delivery import made_with, stamp_of

if TYPE_CHECKING:
    from pathlib import Path

    from sm121.steps.run import Run


def wheel(run: Run, into: Path) -> None:
    """Write the wheel with the modules, and from FlashInfer 0.7 on the one that finds it."""
    plan, libraries = run.plan, run.result("libraries")
    placed = {extension.name: libraries / f"{extension.name}.so" for extension in plan.extensions}
    named = sets(plan.version).get(plan.chosen)
    if named and (missing := unserved(named.claims, placed)):
        raise PackError(missing, do=f"the set {plan.chosen} claims these modules; compile them too.")
    source = run.file("sources")
    made = assemble_modules(
        placed, stamp_of(plan), plan.step("wheel").inputs["provider"], plan.target_cpu, into, source=source,
        made_with=made_with(run), licences=_licences(source),
    )  # fmt: skip
    others = [
        assemble_finder(stamp_of(plan, name), [each for each in plan.distributions if each != name], into)
        for name in plan.distributions[1:]
        if name == FINDER
    ]
    shutil.rmtree(into / "scratch", ignore_errors=True)
    assert made.platform_tag is not None
    described = {
        "filename": made.path.name,
        "others": [other.path.name for other in others],
        "zlib": made.zlib,
        "platform_tag": made.platform_tag.tag,
        "libraries": [[each.path, each.origin, each.sha256.hex, each.size] for each in made.libraries],
    }
    (into / "wheel.json").write_text(json.dumps(described, indent=1) + "\n")


def _licences(wheel: Path) -> dict[str, bytes]:
    """The licence files of a wheel, by their names below `licenses`."""
    with damage(wheel.name), zipfile.ZipFile(wheel) as archive:
        return {
            name.partition(".dist-info/licenses/")[2]: archive.read(name)
            for name in sorted(archive.namelist())
            if ".dist-info/licenses/" in name and not name.endswith("/")
        }
