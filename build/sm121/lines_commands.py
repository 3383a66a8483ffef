"""The verb `lines`: every CUDA line beside the others, from the pins alone."""

from __future__ import annotations

import json
import platform
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sm121 import pins
from sm121.documents import STANDARD_OUTPUT, write_document
from sm121.errors import PlanError, UsageError
from sm121.plan.lines import line_views
from sm121.tables import fits, print_table
from sm121.target import LoadsAs
from sm121.toolchain.examine import installed_toolkits

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from sm121.plan.lines import ExtensionLine, LineView

JSON_VERSION = 1
ROOT = Path(__file__).resolve().parents[2]
_MEANING = {
    LoadsAs.NATIVE: "all of it made for 12.1 itself",
    LoadsAs.FAMILY: "all of it machine code for 12.1 or its family",
    LoadsAs.SAME_MAJOR: "all of it machine code, some for 12.0",
    LoadsAs.JIT: "some compiled by the driver at first use",
    LoadsAs.NO: "some of it does not load",
}


def add_lines_command(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `lines`."""
    verb = verbs.add_parser(
        "lines", help="every CUDA line: what compiles it, for what, what it delivers, what it needs",
        description="One table over the CUDA lines, from the pins: toolkit, torch, architecture lists, what they become, "
        "what that delivers on compute capability 12.1, ways to the compiler, runtime libraries, driver.",
        epilog="Exit status: 0, or 11 if a line's own lists could not be built.",
    )  # fmt: skip
    verb.add_argument(
        "--line",
        metavar="LINE",
        dest="lines",
        action="append",
        default=[],
        help="this line only; may be repeated",
    )
    verb.add_argument(
        "--vllm", metavar="VERSION", default="", help="pinned vLLM version (default: the pins' default)"
    )
    verb.add_argument(
        "--cpu", choices=("aarch64", "x86_64"), default="aarch64", help="CPU of the wheels (default: aarch64)"
    )
    verb.add_argument(
        "--host",
        choices=("aarch64", "x86_64"),
        default=_machine(),
        help="CPU that compiles (default: this machine's)",
    )
    verb.add_argument(
        "--buildable", action="store_true", help="only lines that build here with nothing brought: a CI's matrix"
    )
    verb.add_argument("--pins", metavar="DIR", type=Path, default=ROOT / "pins", help="folder of the pins")
    verb.add_argument("-v", "--verbose", action="store_true", help="every group of sources with its targets")
    verb.add_argument(
        "--json", metavar="FILE", nargs="?", const=STANDARD_OUTPUT,
        help="write the table as JSON; without FILE, or with -, to standard output",
    )  # fmt: skip
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table; raises what loading the pins raises."""
    loaded = pins.load(arguments.pins)
    if "" in arguments.lines:
        raise UsageError(
            "--line names no line.", do=f"name one of {', '.join(line.name for line in loaded.lines)}."
        )
    wanted = {loaded.line(name).name for name in arguments.lines}
    installed = {str(each.home): each.nvcc for each in installed_toolkits()}
    views = [
        view
        for view in line_views(
            loaded, vllm=arguments.vllm, cpu=arguments.cpu, host=arguments.host, installed=installed
        )
        if (not wanted or view.name in wanted) and (not arguments.buildable or view.unaided)
    ]
    version = loaded.vllm(arguments.vllm).version
    if arguments.json:
        write_document(arguments.json, json.dumps(lines_json(views, version, arguments.cpu), indent=2) + "\n")
    else:
        show_lines(views, version, arguments.cpu, Console(highlight=False), verbose=arguments.verbose)
    return PlanError.exit_code if any(view.problems for view in views) else 0


def lines_json(views: Sequence[LineView], version: str, cpu: str) -> dict[str, Any]:
    """The table as JSON-able data, in the order of the pins."""
    return {
        "version": JSON_VERSION,
        "vllm": version,
        "target": {"capability": "12.1", "cpu": cpu},
        "lines": [
            {
                "name": view.name, "default": view.default, "summary": view.summary,
                "compiler": {"toolkit": view.toolkit, "nvcc": view.nvcc},
                "torch": {"version": view.torch, "from": view.torch_from},
                "runtime": dict(view.runtime), "arch_lists": dict(view.lists),
                "targets": {name: list(targets) for name, targets in view.targets.items()},
                "flashinfer_modules": dict(view.modules),
                "loads_as": str(view.loads_as),
                "extensions": [
                    {
                        "name": each.name, "origin": each.origin, "git": each.git, "units": dict(each.units),
                        "loads_as": str(each.loads_as) if each.loads_as else None, "missing": list(each.missing),
                        "why": each.why,
                    }
                    for each in view.extensions
                ],
                "groups": [
                    {
                        "extension": each.extension, "name": each.name, "units": each.units, "built": list(each.built),
                        "shipped": list(each.shipped), "loads_as": str(each.loads_as), "expected": each.expected,
                    }
                    for each in view.groups
                ],
                "toolchains": [
                    {"kind": each.kind, "possible": each.possible, "note": each.note} for each in view.toolchains
                ],
                "driver": {"machine_code": view.driver, "ptx_cuda": view.ptx_driver},
                "problems": list(view.problems),
            }
            for view in views
        ],
    }  # fmt: skip


def show_lines(
    views: Sequence[LineView], version: str, cpu: str, console: Console, *, verbose: bool = False
) -> None:
    """One table: a column for each line, or where words would be broken, a paragraph for each row."""
    title = f"vLLM {version} for compute capability 12.1, {cpu}"
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("line", style="bold", overflow="fold")
    headings = [view.name + (" (default)" if view.default else "") for view in views]
    for heading in headings:
        table.add_column(heading, overflow="fold")
    rows = {name: [cell(view) for view in views] for name, cell in _ROWS.items()}
    for name in dict.fromkeys(each.name for view in views for each in view.extensions):
        cells = [next((each for each in view.extensions if each.name == name), None) for view in views]
        if verbose or any(each and each.origin != "left out" for each in cells):
            rows[name] = [_extension(each) if each else "-" for each in cells]
    for name, texts in rows.items():
        table.add_row(name, *texts)
    if fits(table, console):
        console.print(table)
    else:
        console.print(Text(title, style="italic"))
        for name, texts in rows.items():
            console.print(Text(f"\n{name}", style="bold"))
            console.print(_paragraph(headings, texts))
    if verbose:
        for view in views:
            console.print()
            print_table(_groups(view), console)
    for view in views:
        for problem in view.problems:
            console.print(f"{view.name}: {problem}", style="red", markup=False, soft_wrap=True)


def _paragraph(headings: Sequence[str], texts: Sequence[str]) -> Padding:
    """What a row says of each line; lines of which it says the same stand together."""
    same = dict[str, list[str]]()
    for heading, text in zip(headings, texts, strict=True):
        same.setdefault(text, []).append(heading)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for text, names in same.items():
        grid.add_row("all" if len(names) == len(texts) > 1 else ", ".join(names), text)
    return Padding(grid, (0, 0, 0, 2))


def _extension(each: ExtensionLine) -> str:
    if each.origin != "source":
        return each.origin
    if not each.units:
        return "compiled, host code"
    units = ", ".join(f"{count} x {target}" for target, count in each.units.items())
    units += "; sources from git" if each.git else ""
    return units + (f"; without {', '.join(each.missing)}" if each.missing else "")


def _groups(view: LineView) -> Table:
    table = Table(title=f"{view.name}: groups of sources", title_justify="left", box=None, padding=(0, 2))
    for heading in ("extension", "group", "units", "compiled for", "shipped as", "on 12.1"):
        table.add_column(heading, overflow="fold")
    for each in view.groups:
        if each.expected or each.built:
            table.add_row(
                each.extension, each.name, str(each.units), ", ".join(each.built) or "not built",
                ", ".join(each.shipped) or "-", str(each.loads_as) if each.built else "-",
            )  # fmt: skip
    return table


def _delivers(view: LineView) -> str:
    counts: Counter[str] = Counter()
    for group in view.groups:
        if group.shipped and any(e.name == group.extension and e.origin == "source" for e in view.extensions):
            counts[str(group.loads_as)] += group.units
    parts = ", ".join(f"{counts[way]} {way}" for way in map(str, LoadsAs) if counts[way])
    return f"{_MEANING[view.loads_as]} ({parts} units)"


def _lists(view: LineView) -> str:
    generic, gated = (" ".join(view.targets[name]) for name in ("generic", "gated"))
    return f"{view.lists['vllm']} -> {generic}" + ("" if gated == generic else f", SM12x kernels {gated}")


def _modules(view: LineView) -> str:
    sets = ", ".join(f"{name} {count}" for name, count in view.modules.items())
    return f"{view.lists['flashinfer']} -> {' '.join(view.targets['flashinfer'])}" + (
        f"; modules: {sets}" if sets else ""
    )


_ROWS: dict[str, Callable[[LineView], str]] = {
    "for": lambda view: view.summary,
    "delivers on 12.1": _delivers,
    "compiled by": lambda view: f"nvcc {view.nvcc} (toolkit {view.toolkit})",
    "compiler here": lambda view: "\n".join(
        f"{each.kind}: {'yes' if each.possible else 'no'}, {each.note}" for each in view.toolchains
    ),
    "torch": lambda view: f"{view.torch}, {view.torch_from}",
    "runtime": lambda view: "\n".join(f"{name}: {what}" for name, what in view.runtime.items()),
    "driver": lambda view: f"{view.driver} or newer; PTX, if left, CUDA {view.ptx_driver}",
    "vLLM list": _lists,
    "FlashInfer list": _modules,
}


def _machine() -> str:
    return "aarch64" if platform.machine() in {"aarch64", "arm64"} else "x86_64"
