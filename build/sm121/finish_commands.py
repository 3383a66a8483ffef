"""The verb that finishes what others, or we, have built."""

from __future__ import annotations

import argparse
import json
import os
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sm121 import process
from sm121.device import DamagedError, read_device_code
from sm121.errors import ArtifactError, FinishError, UsageError
from sm121.finish.library import Settings, finish_libraries, finish_library, plan_libraries
from sm121.finish.model import Layout
from sm121.finish.units import Deed
from sm121.pack.finished import finish_wheel, plan_wheel
from sm121.progress import Progress, plural
from sm121.progress import size as shown_size
from sm121.target import GB10, Capability
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sm121.finish.model import FinishedLibrary
    from sm121.finish.units import Unit

_TOOLKITS = (Path("/usr/local/cuda"), Path("/opt/cuda"))


def add_finish_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `finish`."""
    add_arguments(
        verbs.add_parser(
            "finish", help="compile PTX ahead of time, drop device code that cannot load",
            description="For each translation unit that has no machine code for the target, its PTX is compiled here "
            "instead of on every user's machine; images that cannot load on the target go. Host code stays as it is.",
            epilog="examples:\n  sm121 finish vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl --dry-run\n"
            "  sm121 finish _vllm_fa2_C.abi3.so -o out/_vllm_fa2_C.abi3.so --ptxas /usr/local/cuda/bin/ptxas",
        )
    )  # fmt: skip


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """What `finish` takes."""
    verb.add_argument("artifact", metavar="ARTIFACT", type=Path, help="a wheel, a library or object, or a folder")
    verb.add_argument(
        "-o", dest="out", metavar="OUT", type=Path,
        help="folder for the result; for one library also a file (default: finished)",
    )  # fmt: skip
    verb.add_argument(
        "--target", metavar="CC", type=_capability, default=GB10, help="compute capability (default: 12.1)"
    )
    verb.add_argument(
        "--ptxas", metavar="FILE", type=Path, help="which ptxas (default: on PATH, or of CUDA_HOME)"
    )
    verb.add_argument("--line", metavar="CUDA", default="", help="CUDA line of an official wheel, e.g. cu130")
    verb.add_argument("--keep-ptx", action="store_true", help="keep PTX that later GPUs could compile")
    verb.add_argument(
        "--layout", choices=[Layout.COMPACT, Layout.IN_PLACE], type=Layout, default=Layout.COMPACT,
        help="compact: the freed room leaves the file; in-place: it becomes zero (default: compact)",
    )  # fmt: skip
    verb.add_argument(
        "--jobs", metavar="N", type=int, help="how many ptxas at a time (default: by cores and memory)"
    )
    verb.add_argument(
        "--work",
        metavar="DIR",
        type=Path,
        default=Path("work"),
        help="scratch folder with the cache (default: work)",
    )
    verb.add_argument("--dry-run", action="store_true", help="say what would be done, and stop")
    verb.add_argument("--json", action="store_true", help="print the result as JSON")
    verb.add_argument("-q", "--quiet", action="store_true", help="no progress")
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Finish the artifact; raises what the rooms raise."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UsageError(f"--jobs should be at least 1, found {arguments.jobs}.")
    artifact: Path = arguments.artifact
    _check(artifact)
    settings = Settings(
        target=arguments.target, ptxas=_ptxas(arguments.ptxas), cache=arguments.work.absolute() / "cache" / "ptxas",
        jobs=arguments.jobs, keep_ptx=arguments.keep_ptx, layout=arguments.layout,
    )  # fmt: skip
    if arguments.dry_run:
        _show_plan(_planned(artifact, settings), as_json=arguments.json)
        return 0
    progress = Progress(quiet=arguments.quiet)
    before = artifact.stat().st_size if artifact.is_file() else None
    out: Path = arguments.out or Path("finished")
    if artifact.suffix == ".whl":
        wheel = finish_wheel(artifact, out, settings, progress, line=arguments.line)
        told: dict[str, Any] = {"wheel": str(wheel.path), "sha256": wheel.sha256.hex, "size": wheel.size}
        libraries = wheel.libraries
    elif artifact.is_dir():
        told = {"folder": str(out)}
        libraries = finish_libraries(_libraries_below(artifact), out, settings, progress)
    else:
        file = out / artifact.name if arguments.out is None or out.is_dir() else out
        done = finish_library(artifact, file, settings, progress)
        told = {"library": str(file), "sha256": done.after.sha256.hex, "size": done.after.size}
        libraries = {artifact.name: done}
    _report(told, libraries.values(), before, as_json=arguments.json)
    return 0


def _check(artifact: Path) -> None:
    """Say of a wrong path that it is one, before a toolkit is looked for: nothing about it is a fault of finishing."""
    do = "name a wheel, a library or object (.so .a .o), or a folder that holds some."
    if not artifact.exists():
        raise ArtifactError(f"{artifact} does not exist.", do=f"check the path; {do}")
    if artifact.is_dir() or artifact.suffix == ".whl":
        return
    if not artifact.is_file() or not artifact.stat().st_size:
        raise ArtifactError(f"{artifact} is no file with content.", do=do)
    with artifact.open("rb") as file:
        start = file.read(8)
    if not start.startswith((b"\x7fELF", b"!<arch>\n")):
        raise ArtifactError(
            f"{artifact} is neither a wheel nor an ELF file or an archive of them: it begins with {start!r}.",
            do=do,
        )


def _capability(text: str) -> Capability:
    try:
        return Capability.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _ptxas(given: Path | None) -> Path:
    if given:
        return given
    homes = [*(Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)), *_TOOLKITS]
    found = process.find("ptxas") or next(
        (str(home / "bin" / "ptxas") for home in homes if (home / "bin" / "ptxas").is_file()), None
    )
    if not found:
        raise UsageError(
            "there is no ptxas on PATH, in CUDA_HOME or in /usr/local/cuda.",
            do="name one with --ptxas; the wheel nvidia-cuda-nvcc holds it.",
        )
    return Path(found)


def _planned(artifact: Path, settings: Settings) -> dict[str, tuple[Unit, ...]]:
    if artifact.suffix == ".whl":
        return plan_wheel(artifact, settings)
    libraries = _libraries_below(artifact) if artifact.is_dir() else {artifact.name: artifact}
    return plan_libraries(libraries, settings)


def _libraries_below(folder: Path) -> dict[str, Path]:
    """The shared libraries in a folder that hold device code, or are damaged so that it cannot be told."""
    found = {}
    for path in sorted(folder.rglob("*.so*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size:
            with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as buffer:
                try:
                    if read_device_code(buffer).host_only:
                        continue
                except DamagedError:
                    continue  # a linker script, or a file of another kind
            found[path.relative_to(folder).as_posix()] = path
    if not found:
        raise FinishError(
            f"there is no shared library with device code below {folder}.", do="name another folder."
        )
    return found


def _counts(deeds: Iterable[Deed]) -> dict[str, int]:
    listed = list(deeds)
    return {str(deed): listed.count(deed) for deed in Deed}


def _show_plan(plan: Mapping[str, tuple[Unit, ...]], *, as_json: bool) -> None:
    if as_json:
        data = {
            name: {
                **_counts(unit.deed for unit in units),
                "ptx": sum(unit.source.image.size for unit in units if unit.source),
            }
            for name, units in plan.items()
        }
        print(json.dumps(data, indent=2))
        return
    console = Console(highlight=False)
    for name, units in plan.items():
        counts = ", ".join(f"{count} {deed}" for deed, count in _counts(u.deed for u in units).items() if count)
        ptx = sum(unit.source.image.size for unit in units if unit.source)
        more = f"; {shown_size(ptx)} of PTX to compile" if ptx else ""
        console.print(f"{name}: {plural(len(units), 'unit')}, {counts}{more}", markup=False, soft_wrap=True)


def _report(
    told: Mapping[str, Any], libraries: Iterable[FinishedLibrary], before: int | None, *, as_json: bool
) -> None:
    listed = list(libraries)
    if as_json:
        print(json.dumps({**told, "libraries": [each.to_data(times=True) for each in listed]}, indent=2))
        return
    console = Console(highlight=False)
    for each in listed:
        counts = ", ".join(f"{each.count(deed)} {deed}" for deed in Deed if each.count(deed))
        sizes = f"{shown_size(each.before.size)} -> {shown_size(each.after.size)}"
        note = f" ({each.note})" if each.note else ""
        console.print(f"{each.name}: {counts}; {sizes}, {each.layout}{note}", markup=False, soft_wrap=True)
    if before is not None:
        name = told.get("wheel") or told["library"]
        console.print(
            f"{name}: {shown_size(before)} -> {shown_size(told['size'])}, {Sha256(told['sha256'])}",
            markup=False, soft_wrap=True,
        )  # fmt: skip
