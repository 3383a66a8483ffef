"""Runs a plan: the one place where the builder's rooms meet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sm121.pack.publish import Published, ensure_publishable
from sm121.sources.fetch import fetch
from sm121.steps import delivery, finishing, inputs, libraries
from sm121.steps.libraries import Edited, Prepared
from sm121.steps.run import Context, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sm121.compile.build import Cost
    from sm121.plan.model import Plan
    from sm121.progress import Progress
    from sm121.workspace import Workspace

__all__ = ["Build", "Context", "Edited", "Prepared", "Run"]

_ACTIONS: Mapping[str, Callable[[Run, Path], None]] = {
    "source": inputs.source,
    "toolkit": inputs.toolkit,
    "torch": inputs.torch,
    "cutlass": inputs.cutlass,
    "trees": inputs.trees,
    "tools": inputs.tools,
    "libraries": libraries.libraries,
    "finish": finishing.finish,
    "wheel": delivery.wheel,
    "inspect": delivery.inspect,
}
"""What each step does with the new folder that it is given."""


class Build:
    """One run of one plan."""

    def __init__(self, plan: Plan, context: Context) -> None:
        self._run = Run(plan, context)

    def run(self, *, until: str = "publish") -> Published | Path:
        """Do every step that is not done yet, up to `until`; return what was published, or that step's folder."""
        run = self._run
        names = [step.name for step in run.plan.steps]
        names = names[: names.index(until) + 1]
        with run.work.locked():
            if until == "publish":
                ensure_publishable(run.context.dist)
                delivery.require_free_name(run)
            self._fetch({name for name in names if not run.work.done(run.plan.step(name))})
            for name in names:
                if name == "publish":
                    return delivery.publish_wheel(run)
                run.work.do(run.plan.step(name), partial(_ACTIONS[name], run), run.progress)
            return run.result(until)

    @property
    def plan(self) -> Plan:
        return self._run.plan

    @property
    def work(self) -> Workspace:
        return self._run.work

    @property
    def progress(self) -> Progress:
        return self._run.progress

    def tree(self, edited: str = "") -> Path:
        """Where the build tree is, or will be."""
        return libraries.build_tree_of(self._run, edited)

    def prepare(self, edited: Edited | None = None) -> Prepared:
        """Lay out and configure the build tree."""
        return libraries.prepare(self._run, edited)

    def make(
        self, prepared: Prepared, targets: Sequence[str], *, listen: Callable[[str], None] | None = None
    ) -> list[Cost]:
        """Make `targets` in a prepared tree: extensions, or objects of one; `listen` as `libraries.make` has it."""
        return libraries.make(self._run, prepared, targets, listen=listen)

    def _fetch(self, steps: set[str]) -> None:
        """Bring the files that `steps` read."""
        run = self._run
        wanted = [download.pin for download in run.plan.downloads if steps & {*download.steps}]
        if wanted:
            with run.progress.step(f"fetch {len(wanted)} pinned files"):
                run.files.update(fetch(wanted, run.work.files, mirror=run.context.mirror, progress=run.progress))
