"""The verbs that plan and build."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sm121 import pins
from sm121.errors import UsageError
from sm121.local import local_cutlass, local_torch
from sm121.plan.model import Request
from sm121.plan.show import plan_json, show_plan
from sm121.plan.vllm import plan_vllm
from sm121.preflight import ensure_disk, ensure_packages, read_host
from sm121.progress import Progress
from sm121.sources.external import External, require_reachable
from sm121.sources.patches import planned_patches
from sm121.steps import Build, Context
from sm121.workspace import Workspace

if TYPE_CHECKING:
    from sm121.pack.publish import Published
    from sm121.plan.model import Host, Plan

ROOT = Path(__file__).resolve().parents[2]
"""The repository, when sm121 runs from it: where `pins` and `patches` are looked for first."""


def add_build_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `build`."""
    build = verbs.add_parser(
        "build", help="build a proven wheel", description="Plan, fetch, patch, compile, assemble, inspect, publish.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  sm121 build --line cu130 --dry-run\n  sm121 build --line cu130 --install-missing\n"
        "  sm121 build --line cu130 --cpu x86_64 --ext _moe_C_stable_libtorch",
    )  # fmt: skip
    what, how, where = add_plan_options(build)
    what.add_argument(
        "--ext",
        metavar="NAME",
        action="append",
        default=[],
        help="compile this extension only, take the others from the official wheel; may be repeated",
    )
    what.add_argument(
        "--patch",
        metavar="NAME",
        action="append",
        default=[],
        help="switch an optional patch on; may be repeated",
    )
    what.add_argument(
        "--no-finish",
        dest="finish",
        action="store_false",
        help="leave PTX to the driver, which compiles it at first use (25 minutes and more)",
    )
    what.add_argument(
        "--sources", choices=("pinned", "all"), default="pinned",
        help="all: compile also what only git hosts have the sources of (default: pinned)",
    )  # fmt: skip
    how.add_argument("--until", metavar="STEP", default="publish", help="stop after this step of the plan")
    where.add_argument("--dist", metavar="DIR", type=Path, default=Path("dist"), help="results (default: dist)")
    where.add_argument("--replace", action="store_true", help="replace a wheel of this name that has other bytes")
    output = build.add_argument_group("output")
    output.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    output.add_argument("--json", action="store_true", help="print plan and result as JSON")
    output.add_argument("-q", "--quiet", action="store_true", help="no progress")
    build.set_defaults(run=_build)


def add_plan_options(
    parser: argparse.ArgumentParser,
) -> tuple[argparse._ArgumentGroup, argparse._ArgumentGroup, argparse._ArgumentGroup]:
    """Add what every verb needs that compiles by a plan; the groups "what to build", "how" and "where" come back."""
    what = parser.add_argument_group("what to build")
    what.add_argument("--line", default="cu130", help="CUDA line: cu128, cu129, cu130, ... (default: cu130)")
    what.add_argument("--vllm", metavar="VERSION", help="pinned vLLM version (default: the pins' default)")
    what.add_argument(
        "--cpu", choices=("aarch64", "x86_64"), default="aarch64", help="CPU of the result (default: aarch64)"
    )
    what.add_argument("--arch-list", metavar="LIST", help="TORCH_CUDA_ARCH_LIST instead of the line's own")
    how = parser.add_argument_group("how")
    how.add_argument("--cuda-home", metavar="DIR", type=Path, help="installed CUDA toolkit instead of wheels")
    how.add_argument(
        "--torch-home", metavar="DIR", type=Path, help="torch package folder of the target instead of the wheel"
    )
    how.add_argument(
        "--cutlass-home", metavar="DIR", type=Path, help="CUTLASS sources instead of the official wheel's copy"
    )
    how.add_argument("--jobs", metavar="N", type=int, help="compile jobs (default: by cores and memory)")
    how.add_argument(
        "--split-compile", metavar="N", type=int, default=1, help="threads of nvcc's optimiser per file"
    )
    how.add_argument("--cache", metavar="NAME", default="ccache", help="ccache (default), sccache or none")
    how.add_argument(
        "--no-cache", dest="cache", action="store_const", const="none", help="compile everything anew"
    )
    how.add_argument(
        "--mirror", metavar="DIR", type=Path, help="folder that holds the pinned files, instead of an index"
    )
    how.add_argument("--install-missing", action="store_true", help="install missing Debian or Ubuntu packages")
    where = parser.add_argument_group("where")
    where.add_argument(
        "--work", metavar="DIR", type=Path, default=Path("work"), help="scratch folder (default: work)"
    )
    where.add_argument("--pins", metavar="DIR", type=Path, default=ROOT / "pins", help="folder of the pins")
    where.add_argument(
        "--patches", metavar="DIR", type=Path, default=ROOT / "patches", help="folder of the patches"
    )
    return what, how, where


def _build(arguments: argparse.Namespace) -> int:
    progress = Progress(quiet=arguments.quiet)
    if arguments.dry_run:
        plan = planned(arguments)
        if arguments.json:
            print(json.dumps(plan_json(plan), indent=2))
        else:
            show_plan(plan, Console(highlight=False))
        return 0
    plan = planned(arguments, progress)
    if not arguments.quiet:
        show_plan(plan, progress.console)
    work = Workspace(arguments.work.absolute())
    ensure_disk(plan, work.root, arguments.dist.absolute())
    context = Context(
        work=work, dist=arguments.dist.absolute(), progress=progress, patches=arguments.patches,
        mirror=arguments.mirror, cuda_home=arguments.cuda_home, replace=arguments.replace,
    )  # fmt: skip
    result = Build(plan, context).run(until=arguments.until)
    _report(result, arguments, Console(highlight=False))
    return 0


def _report(result: Published | Path, arguments: argparse.Namespace, console: Console) -> None:
    if isinstance(result, Path):
        shown = {"step": arguments.until, "folder": str(result)}
    else:
        shown = {
            "wheel": str(result.wheel), "sha256": result.sha256.hex, "manifest": str(result.manifest),
            "exact": str(result.exact),
        }  # fmt: skip
    if arguments.json:
        print(json.dumps(shown, indent=2))
        return
    for name, value in shown.items():
        console.print(f"{name:>8}  {value}", markup=False, soft_wrap=True)


def planned(arguments: argparse.Namespace, progress: Progress | None = None) -> Plan:
    """The plan that the arguments ask for; with `progress`, this machine is made sure to have all that it needs."""
    _refuse_paths(arguments)
    host = read_host(arguments.cpu)
    plan = _plan(arguments, host)
    if progress is None:
        return plan
    require_reachable([External(tree.name, tree.repository, tree.ref) for tree in plan.trees])
    ready = ensure_packages(host, arguments.cpu, progress, install=arguments.install_missing)
    return plan if ready is host else _plan(arguments, ready)


def _refuse_paths(arguments: argparse.Namespace) -> None:
    """What cannot be a path of a build, before anything is made of it."""
    problems = []
    for option in ("work", "dist"):
        path = str(getattr(arguments, option).absolute())
        if bad := sorted({*path} & {*"\"'\\;:$`\n\r\t*?<>|"}):
            shown = " ".join(ascii(character) for character in bad)
            problems.append(f"--{option} {path!a}: CMake and compilers do not take {shown} in a path.")
        elif not path.isprintable():
            problems.append(f"--{option} {path!a} is no text.")
    home = arguments.cuda_home
    if home and not (home / "bin" / "nvcc").exists():
        problems.append(f"--cuda-home {home}: there is no bin/nvcc in it.")
    if not 1 <= arguments.split_compile <= 256:
        problems.append(f"--split-compile {arguments.split_compile}: 1 to 256 threads were expected.")
    if arguments.jobs is not None and not 1 <= arguments.jobs <= 4096:
        problems.append(f"--jobs {arguments.jobs}: 1 to 4096 jobs were expected.")
    if problems:
        raise UsageError(problems, do="name other values; `sm121 build --help` has the options.")


def _plan(arguments: argparse.Namespace, host: Host) -> Plan:
    request = Request(
        line=arguments.line, vllm=arguments.vllm, cpu=arguments.cpu, extensions=tuple(arguments.ext),
        sources=arguments.sources, cache=arguments.cache, arch_list=arguments.arch_list,
        cuda_home=str(arguments.cuda_home) if arguments.cuda_home else None, jobs=arguments.jobs,
        split_compile=arguments.split_compile, finish=arguments.finish, patches=tuple(arguments.patch),
        torch_home=local_torch(arguments.torch_home) if arguments.torch_home else None,
        cutlass_home=local_cutlass(arguments.cutlass_home) if arguments.cutlass_home else None,
    )  # fmt: skip
    loaded = pins.load(arguments.pins)
    release = loaded.vllm(request.vllm or "")
    patches = planned_patches(arguments.patches, "vllm", release.version, request.patches)
    plan = plan_vllm(request, loaded, host, patches)
    if arguments.until not in {step.name for step in plan.steps}:
        raise UsageError(
            f"there is no step {arguments.until!r}.", do=f"name one of {', '.join(s.name for s in plan.steps)}."
        )
    return plan
