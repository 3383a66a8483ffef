"""What the end of a build says: the results by name, and what can be done with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sm121 import process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console

    from sm121.pack.publish import Published
    from sm121.plan.model import Plan

_PROJECTS = {"vllm", "flashinfer"}
_PARTIAL = "partial"


def result_rows(published: Iterable[Published]) -> list[dict[str, str]]:
    """Each wheel that was published, for programs."""
    return [
        {
            "wheel": str(each.wheel), "sha256": each.sha256.hex, "manifest": str(each.manifest),
            "exact": str(each.exact),
        }
        for each in published
    ]  # fmt: skip


def show_rows(rows: Iterable[Mapping[str, str]], console: Console) -> None:
    """Print names and values, one a line: a path that is broken in two cannot be copied."""
    for row in rows:
        for name, value in row.items():
            console.print(f"{name:>8}  {value}", markup=False, soft_wrap=True)


def show_results(done: Sequence[tuple[Plan, Sequence[Published]]], dist: Path, console: Console) -> None:
    """Print what was published for each plan with its report, then the next steps."""
    for _, published in done:
        for each, row in zip(published, result_rows(published), strict=True):
            report = {"report": str(each.page)} if each.page.is_file() else {}
            show_rows([row | report], console)
    show_rows([{name: step} for name, step in next_steps(done, dist)], console)


def next_steps(done: Sequence[tuple[Plan, Sequence[Published]]], dist: Path) -> Iterator[tuple[str, str]]:
    """How each project's wheels are installed, and an image of all where one can be made; named `next`, `or`, `then`."""
    for plan, published in done:
        install = process.quoted(["pip", "install", *(each.wheel for each in published)])
        if plan.project == "flashinfer":
            which = "both wheels " if len(published) > 1 else ""
            yield (
                "next",
                f"install {which}beside flashinfer-python {plan.version} on {plan.target_cpu}: {install}",
            )
            yield "then", "ask FlashInfer itself whether it finds every module: `sm121 prove --help`"
        else:
            yield "next", f"install it on {plan.target_cpu}: {install}"
    plans = [plan for plan, _ in done]
    if {plan.project for plan in plans} == _PROJECTS and all(plan.part != _PARTIAL for plan in plans):
        yield "or", f"make the server's image of both: {_image(plans[0], dist)}"


def _image(plan: Plan, dist: Path) -> str:
    """The session that makes an image of what was built; with the options that the build was given, if any."""
    options: list[str | Path] = []
    if plan.target_cpu != "aarch64":
        options += ["--cpu", plan.target_cpu]
    if dist != Path("dist"):
        options += ["--dist", dist]
    return process.quoted(["nox", "-s", f"image-{plan.line}", *(["--", *options] if options else [])])
