"""The verbs that plan and build."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from sm121 import errors, pins
from sm121.build_results import result_rows, show_results, show_rows
from sm121.cache_options import (
    add_cache_options,
    add_shard_option,
    compiler_cache,
    folder_of,
    say_what_was_missing,
    told,
)  # fmt: skip
from sm121.documents import STANDARD_OUTPUT, read_text_document, write_document
from sm121.errors import Faults, UsageError, exit_codes
from sm121.local import local_cutlass, local_torch
from sm121.plan.flashinfer import plan_flashinfer
from sm121.plan.model import Request
from sm121.plan.sharding import Shard
from sm121.plan.show import plan_json, show_plan
from sm121.plan.vllm import plan_vllm
from sm121.preflight import ensure_brought, ensure_disk, ensure_packages, read_host
from sm121.progress import Progress
from sm121.sources.external import External, require_reachable
from sm121.sources.fetch import require_mirror
from sm121.sources.patches import planned_patches
from sm121.steps import Build, Context
from sm121.steps.free_names import judge_names, require_free_names
from sm121.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sm121.pins import Pins
    from sm121.plan.model import Host, Plan

ROOT = Path(__file__).resolve().parents[2]
"""The repository, when sm121 runs from it: where `pins` and `patches` are looked for first."""


_FAILURES = (
    errors.UsageError, errors.PinsError, errors.PlanError, errors.PreflightError, errors.FetchError, errors.DigestError,
    errors.UnpackError, errors.ToolchainError, errors.CompileError, errors.OutOfMemoryError, errors.PackError,
    errors.StorageError, errors.LockedError, errors.PatchError, errors.FinishError, errors.ProgramError,
    errors.ArtifactError, errors.DamagedError, errors.VerdictFail, errors.VerdictUnknown,
)  # fmt: skip
"""What can end a build."""


def add_build_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `build`."""
    build = verbs.add_parser(
        "build", help="build proven wheels of vLLM and FlashInfer's modules",
        description="Plan, fetch, patch, compile, assemble, inspect, publish.",
        epilog="examples:\n  sm121 build --line cu130 --dry-run\n  sm121 build --line cu130 --install-missing\n"
        "  sm121 build --line cu130 --only vllm --ext spinloop --no-finish\n"
        "  sm121 build --line cu130 --cpu x86_64 --ext _moe_C_stable_libtorch\n"
        "  sm121 build --line cu130 --only flashinfer\n"
        "  sm121 build --line cu130 --only flashinfer --modules page --modules 'batch_decode.*head_dim_vo_128.*'\n\n"
        f"exit status:\n    0  Done\n{exit_codes(_FAILURES)}\n  130  Interrupted; what is finished is kept\n"
        "  141  The reader of the output has gone (`| head`)",
    )  # fmt: skip
    what, how, where = add_plan_options(build)
    what.add_argument(
        "--only", metavar="PROJECT", action="append", default=[],
        help="vllm or flashinfer; may be repeated or a list with commas (default: both; with --ext vllm, with --modules "
        "flashinfer)",
    )  # fmt: skip
    what.add_argument(
        "--modules", metavar="SET|REGEX|FILE", action="append", default=[],
        help="FlashInfer: a set (serving, all), modules by name or regular expression, or a file with one of these a line; "
        "may be repeated or a list with commas (default: serving)",
    )  # fmt: skip
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
        "--sources", choices=("pinned", "all"), default="",
        help="all: compile also what only git hosts have the sources of (default: pinned; all on lines of CUDA 12, which "
        "cannot take libraries of the official wheel)",
    )  # fmt: skip
    how.add_argument("--until", metavar="STEP", default="publish", help="stop after this step of the plan")
    add_shard_option(how)
    where.add_argument("--dist", metavar="DIR", type=Path, default=Path("dist"), help="results (default: dist)")
    where.add_argument("--replace", action="store_true", help="replace a wheel of this name that has other bytes")
    output = build.add_argument_group("output")
    output.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    output.add_argument(
        "--json", metavar="FILE", nargs="?", const=STANDARD_OUTPUT,
        help="write plan (--dry-run) or result as JSON; without FILE, or with -, to standard output",
    )  # fmt: skip
    output.add_argument("-q", "--quiet", action="store_true", help="no progress")
    build.set_defaults(run=_build)


def add_plan_options(
    parser: argparse.ArgumentParser,
) -> tuple[argparse._ArgumentGroup, argparse._ArgumentGroup, argparse._ArgumentGroup]:
    """Add what every verb needs that compiles by a plan; the groups "what to build", "how" and "where" come back."""
    what = parser.add_argument_group("what to build")
    what.add_argument(
        "--line", type=_name, default="cu130",
        help="CUDA line: cu128, cu129, cu130, ... (default: cu130); `sm121 lines` has them all",
    )  # fmt: skip
    what.add_argument(
        "--vllm", metavar="VERSION", type=_name, help="pinned vLLM version (default: the pins' default)"
    )
    what.add_argument(
        "--cpu", choices=("aarch64", "x86_64"), default="aarch64", help="CPU of the result (default: aarch64)"
    )
    what.add_argument("--arch-list", metavar="LIST", help="TORCH_CUDA_ARCH_LIST instead of the line's own")
    how = parser.add_argument_group("how")
    toolkit = how.add_mutually_exclusive_group()
    toolkit.add_argument("--cuda-home", metavar="DIR", type=Path, help="installed CUDA toolkit instead of wheels")
    toolkit.add_argument(
        "--cuda-image", metavar="IMAGE",
        help="CUDA toolkit out of an image nvidia/cuda:…-devel: by digest, or an OCI layout or archive; no engine runs",
    )  # fmt: skip
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
    add_cache_options(how)
    how.add_argument(
        "--mirror",
        metavar="DIR",
        type=Path,
        help="folder that holds the pinned files, instead of an index; it must exist",
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
        plans = _ready(arguments, _projects)
        if _publishes_a_new_name(arguments):
            dist = arguments.dist.absolute()
            plans = [replace(plan, findings=(*plan.findings, *judge_names(plan, dist))) for plan in plans]
        if arguments.json:
            write_document(arguments.json, json.dumps([plan_json(plan) for plan in plans], indent=2) + "\n")
        else:
            _show(plans, Console(highlight=False))
        return 0
    plans = _ready(arguments, _projects, progress)
    if not arguments.quiet:
        _show(plans, progress.console)
    work = Workspace(arguments.work.absolute())
    if _publishes_a_new_name(arguments):
        require_free_names(plans, arguments.dist.absolute())
    ensure_disk(plans, work.root, arguments.dist.absolute())
    context = Context(
        work=work, dist=arguments.dist.absolute(), progress=progress, patches=arguments.patches,
        mirror=arguments.mirror, cuda_home=arguments.cuda_home, replace=arguments.replace, cache=compiler_cache(arguments),
    )  # fmt: skip
    console = Console(highlight=False)
    if isinstance(arguments.shard, Shard):
        shares = [told(Build(plan, context).shard(arguments.shard)) for plan in plans]
        if not _as_json(shares, arguments):
            show_rows(shares, console)
        return 0
    done = [(plan, Build(plan, context).run(until=arguments.until)) for plan in plans]
    if arguments.shard:
        say_what_was_missing(plans, work, progress)
    published = [(plan, result) for plan, result in done if not isinstance(result, Path)]
    steps = [{"step": arguments.until, "folder": str(result)} for _, result in done if isinstance(result, Path)]
    if not _as_json([*steps, *(row for _, result in published for row in result_rows(result))], arguments):
        show_rows(steps, console)
        show_results(published, arguments.dist, console)
    return 0


def _publishes_a_new_name(arguments: argparse.Namespace) -> bool:
    """Whether the build ends with wheels in `dist`, and may not take the place of others there."""
    shard = isinstance(arguments.shard, Shard)
    return arguments.until == "publish" and not shard and not arguments.replace


def _as_json(rows: Sequence[dict[str, str]], arguments: argparse.Namespace) -> bool:
    """Write `rows` where JSON is asked for; whether it is."""
    if arguments.json:
        write_document(arguments.json, json.dumps(rows, indent=2) + "\n")
    return bool(arguments.json)


def _name(text: str) -> str:
    """An argument that cannot be empty: a shell variable that is not set would stand for the default."""
    if not text.strip():
        raise argparse.ArgumentTypeError("a name was wanted, found nothing")
    return text


def _show(plans: Sequence[Plan], console: Console) -> None:
    for number, plan in enumerate(plans):
        if number:
            console.print()
        show_plan(plan, console)


def planned(arguments: argparse.Namespace, progress: Progress | None = None) -> Plan:
    """vLLM's plan for the arguments; with `progress`, this machine is made sure to have all that it needs."""
    (plan,) = _ready(arguments, lambda _: ["vllm"], progress)
    return plan


def _ready(
    arguments: argparse.Namespace,
    asked: Callable[[argparse.Namespace], list[str]],
    progress: Progress | None = None,
) -> list[Plan]:
    """The plans for the projects that are asked for, every one made before the first is run; `progress` as for `planned`.

    All that is wrong with the arguments is told at once.
    """
    host = read_host(arguments.cpu)
    faults = Faults()
    faults.of(lambda: _refuse_values(arguments))
    faults.of(lambda: require_mirror(arguments.mirror))
    projects = faults.of(lambda: asked(arguments)) or []
    plans = _plans(arguments, projects, host, faults)
    faults.end()
    if progress is None:
        return plans
    ensure_brought(plans)
    require_reachable([External(tree.name, tree.repository, tree.ref) for plan in plans for tree in plan.trees])
    ready = ensure_packages(host, arguments.cpu, progress, install=arguments.install_missing)
    if ready is not host:
        plans = _plans(arguments, projects, ready, faults)
        faults.end()
    return plans


def _refuse_values(arguments: argparse.Namespace) -> None:
    """What cannot be a path or a number of a build, before anything is made of it."""
    problems = []
    for option in ("work", "dist"):
        path = str(getattr(arguments, option).absolute())
        if bad := sorted({*path} & {*"\"'\\;:$`\n\r\t*?<>|"}):
            shown = " ".join(ascii(character) for character in bad)
            problems.append(f"--{option} {path!a}: CMake and compilers do not take {shown} in a path.")
        elif not path.isprintable():
            problems.append(f"--{option} {path!a} is no text.")
    if not 1 <= arguments.split_compile <= 256:
        problems.append(f"--split-compile {arguments.split_compile}: 1 to 256 threads were expected.")
    if arguments.jobs is not None and not 1 <= arguments.jobs <= 4096:
        problems.append(f"--jobs {arguments.jobs}: 1 to 4096 jobs were expected.")
    if problems:
        raise UsageError(problems, do="name other values; `sm121 build --help` has the options.")


def _plans(arguments: argparse.Namespace, projects: Sequence[str], host: Host, faults: Faults) -> list[Plan]:
    """The plans that can be made; what is wrong with the others is added to `faults`."""
    loaded = faults.of(lambda: pins.load(arguments.pins))
    if loaded is None:
        return []
    found = [faults.of(partial(_plan, project, arguments, loaded, host)) for project in projects]
    return [plan for plan in found if plan]


def _plan(project: str, arguments: argparse.Namespace, loaded: Pins, host: Host) -> Plan:
    plan = _PLANNERS[project](arguments, loaded, host)
    steps = [step.name for step in plan.steps]
    if arguments.until not in steps:
        raise UsageError(
            f"there is no step {arguments.until!r} in the plan for {plan.project}.",
            do=f"name one of {', '.join(steps)}, or one project with --only.",
        )
    return plan


def _projects(arguments: argparse.Namespace) -> list[str]:
    """What is asked for with --only, else what the other options speak of, else all."""
    words = _words(arguments.only)
    if unknown := sorted({*words} - _PLANNERS.keys()):
        raise UsageError(
            [f"there is no project {word!r} to build." for word in unknown], do=f"name {' or '.join(_PLANNERS)}."
        )
    problems = []
    if words and "vllm" not in words and arguments.ext:
        problems.append("--ext names extensions of vLLM, and --only leaves vLLM out.")
    if words and "flashinfer" not in words and arguments.modules:
        problems.append("--modules names modules of FlashInfer, and --only leaves FlashInfer out.")
    if problems:
        raise UsageError(problems, do="leave one of the options out.")
    if not words and bool(arguments.ext) != bool(arguments.modules):
        words = ["vllm" if arguments.ext else "flashinfer"]
    return [project for project in _PLANNERS if project in words or not words]


def _words(values: Sequence[str]) -> list[str]:
    return [word.strip() for value in values for word in value.split(",") if word.strip()]


def _modules(values: Sequence[str]) -> tuple[str, ...]:
    """Sets, names and expressions; a value that is the path of a file stands for the lines of it."""
    found = []
    for value in values:
        if "/" in value or _is_file(value):
            try:
                lines = read_text_document(Path(value)).splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(
                    f"--modules {value}: the file cannot be read: {error}.",
                    do="name a text file, a set or modules.",
                ) from error
            found += [line.partition("#")[0].strip() for line in lines]
        else:
            found += _listed(value)
    if values and not any(found):
        raise UsageError(f"--modules {' '.join(values)}: no module is named.", do="name a set or modules.")
    return tuple(word for word in found if word)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # longer than a name may be: an expression
        return False


def _listed(value: str) -> list[str]:
    """A list with commas; those inside of brackets belong to a regular expression."""
    return [word.strip() for word in re.split(r",(?![^{\[(]*[}\])])", value)]


def _request(arguments: argparse.Namespace) -> Request:
    return Request(
        line=arguments.line, vllm=arguments.vllm, cpu=arguments.cpu, extensions=tuple(arguments.ext),
        sources=arguments.sources, cache=compiler_cache(arguments).name, folder=folder_of(arguments),
        arch_list=arguments.arch_list,
        cuda_home=str(arguments.cuda_home) if arguments.cuda_home else None, cuda_image=arguments.cuda_image,
        jobs=arguments.jobs,
        split_compile=arguments.split_compile, finish=arguments.finish, patches=tuple(arguments.patch),
        torch_home=local_torch(arguments.torch_home) if arguments.torch_home else None,
        cutlass_home=local_cutlass(arguments.cutlass_home) if arguments.cutlass_home else None,
    )  # fmt: skip


def _vllm(arguments: argparse.Namespace, loaded: Pins, host: Host) -> Plan:
    request = _request(arguments)
    version = loaded.vllm(request.vllm or "").version
    return plan_vllm(request, loaded, host, planned_patches(arguments.patches, "vllm", version, request.patches))


def _flashinfer(arguments: argparse.Namespace, loaded: Pins, host: Host) -> Plan:
    # Optional patches are named for vLLM.
    request = replace(_request(arguments), patches=(), modules=_modules(arguments.modules))
    version = loaded.vllm(request.vllm or "").flashinfer.version
    return plan_flashinfer(request, loaded, host, planned_patches(arguments.patches, "flashinfer", version, ()))


_PLANNERS: Mapping[str, Callable[[argparse.Namespace, Pins, Host], Plan]] = {
    "vllm": _vllm, "flashinfer": _flashinfer,
}  # fmt: skip
"""What can be built, in order."""
