"""Runs a plan: the one place where the builder's rooms meet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from sm121.pack.publish import Published, ensure_publishable
from sm121.sources.fetch import fetch
from sm121.steps import cache_wheel, delivery, finishing, inputs, libraries, modules, sharding
from sm121.steps.free_names import require_free_names
from sm121.steps.libraries import Edited, Prepared
from sm121.steps.run import Context, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sm121.compile.build import Cost
    from sm121.finish.library import Settings
    from sm121.plan.model import Plan
    from sm121.plan.sharding import Shard
    from sm121.progress import Progress
    from sm121.steps.sharding import Share
    from sm121.workspace import Workspace

__all__ = ["Build", "Context", "Edited", "Prepared", "Run"]

_Action: TypeAlias = "Callable[[Run, Path], None]"
_SHARED: Mapping[str, _Action] = {
    "source": inputs.source,
    "toolkit": inputs.toolkit,
    "tools": inputs.tools,
    "inspect": delivery.inspect,
}
_ACTIONS: Mapping[str, Mapping[str, _Action]] = {
    "vllm": {
        **_SHARED,
        "torch": inputs.torch,
        "cutlass": inputs.cutlass,
        "trees": inputs.trees,
        "libraries": libraries.libraries,
        "finish": finishing.finish,
        "wheel": delivery.wheel,
    },
    "flashinfer": {
        **_SHARED,
        "tvm-ffi": inputs.tvm_ffi,
        "libraries": modules.modules,
        "wheel": cache_wheel.wheel,
    },
}
"""Project and step: what is done with the new folder that a step is given."""


class Build:
    """One run of one plan."""

    def __init__(self, plan: Plan, context: Context) -> None:
        self._run = Run(plan, context)

    def run(self, *, until: str = "publish") -> list[Published] | Path:
        """Do every step that is not done yet, up to `until`; return what was published, or that step's folder.

        The first that is published is the wheel with the libraries.
        """
        run = self._run
        names = [step.name for step in run.plan.steps]
        names = names[: names.index(until) + 1]
        with run.work.locked():
            if until == "publish":
                ensure_publishable(run.context.dist)
                if not run.context.replace:
                    require_free_names([run.plan], run.context.dist)
            self._fetch({name for name in names if not run.work.done(run.plan.step(name))})
            for name in names:
                if name == "publish":
                    return delivery.publish_wheels(run)
                step = run.plan.step(name)
                known = run.work.done(step)
                run.work.do(step, partial(_ACTIONS[run.plan.project][name], run), run.progress)
                if known and name == "inspect":
                    delivery.repeat_verdict(run)
            return run.result(until)

    def shard(self, shard: Shard) -> Share:
        """Compile one share of what the plan compiles and link nothing: what was made is in the caches."""
        run = self._run
        names = [step.name for step in run.plan.steps]
        self.run(until=names[names.index("libraries") - 1])
        with run.work.locked():
            self._fetch({"finish"} & {*names})
            record = run.work.shard(run.plan.step("libraries"), shard.number, shard.count)
            record.parent.mkdir(parents=True, exist_ok=True)
            with run.progress.step(f"shard {shard}: compile its share"):
                return sharding.compile_share(run, shard, record)

    def finish_settings(self) -> Settings:
        """How a library of the plan is finished."""
        return finishing.finish_settings(self._run)

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
