"""Runs a plan: the one place where the builder's rooms meet."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import sysconfig
from collections import Counter
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm121 import process
from sm121.artifact import open_artifact
from sm121.compile import tree as build_tree
from sm121.compile.answers import write_answers
from sm121.compile.build import Cost, Schedule, build, configure, planned_units
from sm121.compile.loading import unresolved
from sm121.errors import CompileError, VerdictFail, VerdictUnknown
from sm121.findings import Verdict
from sm121.inspector.inspection import Options, inspect_artifact
from sm121.inspector.page import report_html
from sm121.inspector.promise import Promise
from sm121.inspector.report import dump_report
from sm121.inspector.text import report_text
from sm121.manifest import Command, Input, Inspection, Manifest, Output, Subject, Tool
from sm121.manifest import Host as ManifestHost
from sm121.pack.ledger import Library, MadeWith, Origin, Patch
from sm121.pack.platform_tag import find_platform_tag
from sm121.pack.publish import Published, ensure_publishable, find_published, publish
from sm121.pack.stamp import Stamp
from sm121.pack.wheel import assemble
from sm121.pins import Role
from sm121.plan.components import HEAVY, costs
from sm121.plan.vllm_steps import COMPILERS, CUTLASS_FOLDER
from sm121.preflight import loader_emulator
from sm121.sources.fetch import fetch
from sm121.sources.patches import Ledger, apply
from sm121.sources.series import load_patches
from sm121.sources.unpack import unpack
from sm121.target import GB10
from sm121.toolchain.check import check
from sm121.toolchain.installed import InstalledToolkit
from sm121.toolchain.layout import fix_up
from sm121.toolchain.wheels import Part, WheelToolkit
from sm121.toolchain.wheels import Role as PartRole
from sm121.values import ArchSpec, CudaVersion, Sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sm121.plan.model import Plan
    from sm121.progress import Progress
    from sm121.toolchain import Provider
    from sm121.workspace import Workspace


_TREE = (
    ("source", "source", "tree"),
    ("cuda", "toolkit", "cuda"),
    ("torch", "torch", "wheel"),
    ("cutlass", "cutlass", "headers"),
    ("tools", "tools", "."),
)
"""Folder of the build tree, the step that made it, and where in that step's result it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where a plan runs."""

    work: Workspace
    dist: Path
    progress: Progress
    patches: Path
    mirror: Path | None = None
    cuda_home: Path | None = None
    replace: bool = False
    """Whether a wheel of the same name with other bytes may be replaced in `dist`."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configured build tree, and how its compilers are run."""

    tree: Path
    env: Mapping[str, str]
    schedule: Schedule


class Build:
    """One run of one plan. Each step's method fills the new folder that it is given."""

    def __init__(self, plan: Plan, context: Context) -> None:
        self.plan, self.context = plan, context
        self.work, self.progress = context.work, context.progress
        self._files: dict[str, Path] = {}

    def run(self, *, until: str = "publish") -> Published | Path:
        """Do every step that is not done yet, up to `until`; return what was published, or that step's folder."""
        with self.work.locked():
            steps = [step.name for step in self.plan.steps]
            steps = steps[: steps.index(until) + 1]
            if until == "publish":
                ensure_publishable(self.context.dist)
            self._fetch({name for name in steps if not self._result(name).is_dir()})
            for name in steps:
                if name == "publish":
                    return self._publish()
                self._do(name)
            return self._result(until)

    def _do(self, name: str) -> Path:
        return self.work.do(self.plan.step(name), getattr(self, f"_{name}"), self.progress)

    def _result(self, name: str) -> Path:
        return self.work.result(self.plan.step(name))

    def _fetch(self, steps: set[str]) -> None:
        """Bring the files that `steps` read."""
        wanted = [download.pin for download in self.plan.downloads if steps & {*download.steps}]
        if wanted:
            with self.progress.step(f"fetch {len(wanted)} pinned files"):
                self._files = fetch(wanted, self.work.files, mirror=self.context.mirror, progress=self.progress)

    def _file(self, role: str) -> Path:
        name = next(download.pin.filename for download in self.plan.downloads if download.role == role)
        return self._files[name]

    def _source(self, into: Path) -> None:
        unpack(self._file("sources"), into / "tree", strip=1)
        ledger = apply(
            load_patches(self.context.patches, self.plan.project, self.plan.version, self.plan.patches),
            into / "tree",
        )
        (into / "patches.json").write_text(json.dumps(ledger.data, indent=1) + "\n")

    def _toolkit(self, into: Path) -> None:
        root = into / "cuda"
        root.mkdir()
        release = CudaVersion.parse(self.plan.compiler)
        provider: Provider
        if self.context.cuda_home:
            provider = InstalledToolkit(self.context.cuda_home, self.plan.target_cpu)
        else:
            provider = WheelToolkit(self._toolkit_parts())
        provider.lay_out(root)
        compiler = COMPILERS[self.plan.host.cpu, self.plan.target_cpu]
        fix_up(root, cuda_major=release.major, target_compiler=compiler.replace("g++", "gcc"))
        toolkit = check(
            root, wanted=release, arch=ArchSpec.parse(self.plan.archs["gated"][0]), host_compiler=compiler,
            machine=self.plan.target_cpu,
        )  # fmt: skip
        found = {
            "nvcc": str(toolkit.version),
            "kind": provider.kind,
            "host compiler": toolkit.host_compiler_version,
        }
        (into / "toolkit.json").write_text(json.dumps(found, indent=1) + "\n")

    def _toolkit_parts(self) -> list[Part]:
        parts = []
        for download in self.plan.downloads:
            roles = download.pin.roles
            if download.role.startswith("toolkit"):
                role = (
                    PartRole.TARGET if Role.TARGET in roles
                    else PartRole.COMPILER if Role.HOST in roles
                    else PartRole.HEADERS
                )  # fmt: skip
                parts.append(Part(self._files[download.pin.filename], role))
        return parts

    def _torch(self, into: Path) -> None:
        home = self.plan.torch_home
        if home:
            (into / "wheel").mkdir()
            shutil.copytree(
                home.path, into / "wheel" / "torch", symlinks=True, ignore=_only_torch(Path(home.path)),
                copy_function=_link,
            )  # fmt: skip
        else:
            unpack(self._file("torch"), into / "wheel", members=_torch_member)

    def _cutlass(self, into: Path) -> None:
        if self.plan.cutlass_home:
            for name in ("include", "tools/util/include"):
                shutil.copytree(Path(self.plan.cutlass_home.path) / name, into / "headers" / name)
            return
        folder = f"{CUTLASS_FOLDER}/"
        unpack(
            self._file("official wheel"), into / "headers",
            members=lambda name: name.startswith(folder) and name.endswith((".h", ".hpp", ".cuh", ".inl")),
            strip=folder.count("/"),
        )  # fmt: skip

    def _tools(self, into: Path) -> None:
        programs = into / "bin"
        programs.mkdir()
        for download in self.plan.downloads:
            if download.role != "tool":
                continue
            wheel = self._files[download.pin.filename]
            folder = into / download.pin.name
            unpack(wheel, folder, executable=lambda name: "/bin/" in name or "/scripts/" in name)
            for program in folder.glob("*.data/scripts/*"):
                os.link(program, programs / program.name)
        shutil.move(into / "cmake" / "cmake", into / "cmake.parts")
        shutil.rmtree(into / "cmake")
        (into / "cmake.parts").rename(into / "cmake")
        python = into / "python"
        python.mkdir()
        for name in ("jinja2", "markupsafe"):
            shutil.move(into / name / name, python / name)
            shutil.rmtree(into / name)

    def prepare(self) -> Prepared:
        """Lay out the build tree and configure it; what is in place already is kept."""
        plan, step = self.plan, self.plan.step("libraries")
        tree = self.work.tree(f"{plan.project}-{plan.version}-{plan.line}-{plan.target_cpu}").resolve()
        parts = [
            build_tree.Part(
                name, self._result(made_by) / folder, plan.step(made_by).key, writable=name == "source"
            )
            for name, made_by, folder in _TREE
        ]
        if build_tree.lay_out(tree, parts) - {"source"}:
            # Their files carry one time, so ninja would not see that they changed; the compiler cache will.
            shutil.rmtree(tree / "obj", ignore_errors=True)
        (tree / "obj").mkdir(exist_ok=True)
        self._write_helpers(tree)
        values = {"tree": str(tree), "system": process.SYSTEM_PATH, "python": _python()}
        values["launcher"] = ";".join(self._launcher(tree, values["python"]))
        env = process.environment({name: value.format(**values) for name, value in step.env.items()})
        prepared = Prepared(tree, {**env, **self._cache_environment()}, self._schedule())
        configured = tree / "obj" / "configured.json"
        if not configured.exists() or configured.read_text() != step.key:
            configured.unlink(missing_ok=True)
            log = self.work.log("configure")
            self.progress.say(f"  configuring, log: {log}")
            argv = [word.format(**values) for word in step.argv]
            lines = configure(tree, argv, env, log, prepared.schedule)
            (tree / "obj" / "status.json").write_text(json.dumps(lines, indent=1) + "\n")
            configured.write_text(step.key)
        return prepared

    def make(self, prepared: Prepared, targets: Sequence[str]) -> list[Cost]:
        """Run ninja for `targets` (extensions, or objects of one) and return what each command cost."""
        log = self.work.log("compile")
        self.progress.say(f"  compiling with {self.plan.jobs} jobs, log: {log}")
        ninja = str(prepared.tree / "tools" / "bin" / "ninja")
        return build(
            prepared.tree, [ninja, "-j", str(self.plan.jobs), *targets], prepared.env, log,
            schedule=prepared.schedule, progress=self.progress,
        )  # fmt: skip

    def _libraries(self, into: Path) -> None:
        targets = [*self.plan.step("libraries").inputs["targets"]]
        prepared = self.prepare()
        made = self.make(prepared, targets)
        for name in targets:
            shutil.copy2(prepared.tree / "obj" / f"{name}.abi3.so", into / f"{name}.abi3.so")
        self._require_loading(prepared.tree, [into / f"{name}.abi3.so" for name in targets])
        status = json.loads((prepared.tree / "obj" / "status.json").read_text())
        trace = {
            "requested": self.plan.arch_list,
            "configured": [line for line in status if "architectures" in line],
            "units": {
                unit.name: list(unit.gencodes)
                for unit in planned_units(prepared.tree)
                if unit.name.split("/")[0] in targets
            },
        }
        (into / "trace.json").write_text(json.dumps(trace, indent=1) + "\n")
        (into / "costs.json").write_text(json.dumps([asdict(cost) for cost in made], indent=1) + "\n")

    def _require_loading(self, tree: Path, libraries: Sequence[Path]) -> None:
        """The target's dynamic loader must find every symbol of every library."""
        host, target = self.plan.host.cpu, self.plan.target_cpu
        faults = unresolved(
            libraries, search=[tree / "torch" / "torch" / "lib", tree / "cuda" / "lib"], cpu=target,
            compiler=COMPILERS[host, target], emulator=None if host == target else loader_emulator(target),
        )  # fmt: skip
        if faults:
            raise CompileError(
                faults, do="the build is incomplete; look for skipped kernels in the configure log."
            )
        self.progress.say(f"  the dynamic loader for {target} resolves {len(libraries)} libraries")

    def _wheel(self, into: Path) -> None:
        plan, libraries = self.plan, self._result("libraries")
        official = self._file("official wheel")
        stamp = Stamp.of(plan.project, plan.version, plan.line, GB10)
        replaced = {e.path: libraries / f"{e.name}.abi3.so" for e in plan.extensions if e.origin == "source"}
        left_out = {e.path for e in plan.extensions if e.origin == "left out"}
        tag = find_platform_tag(official, replaced, left_out, plan.target_cpu, scratch=into / "scratch")
        assembled = assemble(
            official,
            replaced,
            left_out,
            {},
            stamp,
            tag,
            into,
            made_with=self._made_with(),
            patched=self._patched(),
        )
        shutil.rmtree(into / "scratch", ignore_errors=True)
        described = {
            "filename": assembled.filename,
            "zlib": assembled.zlib,
            "platform_tag": assembled.platform_tag.tag,
            "libraries": [
                [library.path, library.origin, library.sha256.hex, library.size]
                for library in assembled.libraries
            ],
        }
        (into / "wheel.json").write_text(json.dumps(described, indent=1) + "\n")

    def _inspect(self, into: Path) -> None:
        described = json.loads((self._result("wheel") / "wheel.json").read_text())
        wheel = self._result("wheel") / described["filename"]
        tools = into / "tools"
        for download in self.plan.downloads:
            if download.role == "inspection":
                unpack(
                    self._files[download.pin.filename],
                    tools / download.pin.name,
                    executable=lambda name: "/bin/" in name,
                )
        cuobjdump = next(tools.rglob("bin/cuobjdump"))
        options = Options(
            version=self.plan.stamped, promise=self._promise(), cross_check=True, cuobjdump=str(cuobjdump),
            progress=self.progress,
        )  # fmt: skip
        report = inspect_artifact(open_artifact(wheel), options)
        shutil.rmtree(tools)
        report_text(report, self.progress.console)
        folder = into if report.verdict.publishable else self.work.logs / described["filename"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(dump_report(report))
        (folder / "report.html").write_text(report_html(report))
        (folder / "verdict").write_text(report.verdict)
        if not report.verdict.publishable:
            kind = VerdictUnknown if report.verdict is Verdict.UNKNOWN else VerdictFail
            bad = [f.message for f in report.findings if f.verdict in {Verdict.FAIL, Verdict.UNKNOWN}]
            raise kind(bad, do=f"read {folder / 'report.html'}; the wheel got no name and nothing was published.")

    def _promise(self) -> Promise:
        """What the plan says and what the build files asked for, as plain data for the judge."""
        trace = json.loads((self._result("libraries") / "trace.json").read_text())
        compiled = {e.name: e.path for e in self.plan.extensions if e.origin == "source"}
        gencodes: dict[str, Counter[str]] = {path: Counter() for path in compiled.values()}
        for unit, pairs in trace["units"].items():
            gencodes[compiled[unit.split("/")[0]]].update(pair.split("/")[1] for pair in pairs)
        return Promise(
            version=self.plan.stamped,
            requested=tuple(self.plan.arch_list.split(";")),
            configured=self.plan.archs,
            gencodes=gencodes,
            libraries={e.path: e.images for e in self.plan.extensions if e.images},
            left_out=tuple(e.path for e in self.plan.extensions if e.origin == "left out"),
        )

    def _publish(self) -> Published:
        described = json.loads((self._result("wheel") / "wheel.json").read_text())
        wheel = self._result("wheel") / described["filename"]
        inspected = self._result("inspect")
        record = self._manifest(described, wheel, (inspected / "report.json").read_bytes())
        published = find_published(self.context.dist, wheel.name, record.outputs[0].sha256)
        if published is not None:
            self.progress.kept(self.plan.step("publish").title)
            return published
        with self.progress.step(self.plan.step("publish").title):
            documents = {f".{name}": (inspected / name).read_bytes() for name in ("report.json", "report.html")}
            return publish(wheel, record, self.context.dist, documents=documents, replace=self.context.replace)

    def _manifest(self, described: dict[str, Any], wheel: Path, report: bytes) -> Manifest:
        plan = self.plan
        toolkit = json.loads((self._result("toolkit") / "toolkit.json").read_text())
        step = plan.step("libraries")
        used = {d.pin.name: d.pin.version for d in plan.downloads if d.role in {"tool", "inspection"}}
        tools = {**used, "nvcc": toolkit["nvcc"], "c++": plan.host.compiler, "zlib": described["zlib"]}
        return Manifest(
            subject=Subject(
                plan.project,
                plan.stamped,
                plan.version,
                plan.line,
                str(GB10),
                plan.target_cpu,
                described["platform_tag"],
            ),
            plan=plan.digest,
            inputs=tuple(Input.of(download.pin, download.role) for download in plan.downloads),
            patches=self._made_with().patches,
            tools=tuple(Tool(name, version) for name, version in tools.items()),
            host=ManifestHost(
                platform.platform(),
                plan.host.cpu,
                plan.host.machine.cpus,
                plan.host.machine.memory_total or 0,
                plan.host.python,
            ),
            commands=(
                Command(step.name, step.argv, tuple(f"{name}={value}" for name, value in step.env.items())),
            ),
            libraries=tuple(
                Library(path, Origin(origin), Sha256(digest), size)
                for path, origin, digest, size in described["libraries"]
            ),
            outputs=(Output(wheel.name, Sha256.of_file(wheel), wheel.stat().st_size),),
            inspection=Inspection(
                Verdict((self._result("inspect") / "verdict").read_text()), Sha256.of_bytes(report)
            ),
            notes=self._made_with().notes,
        )

    @property
    def _ledger(self) -> Ledger:
        return Ledger.from_data(json.loads((self._result("source") / "patches.json").read_text()))

    def _patched(self) -> dict[str, bytes]:
        """The Python files that patches changed; what is compiled of a patch is in the libraries."""
        package = f"{self.plan.project}/"
        changed = {path for entry in self._ledger.entries if entry.applied for path in entry.files}
        tree = self._result("source") / "tree"
        return {path: (tree / path).read_bytes() for path in sorted(changed) if path.startswith(package)}

    def _made_with(self) -> MadeWith:
        pinned = [[d.pin.filename, d.pin.sha256.hex] for d in self.plan.downloads]
        toolkit = json.loads((self._result("toolkit") / "toolkit.json").read_text())
        ledger = self._ledger
        return MadeWith(
            pins=Sha256.of_bytes(json.dumps(pinned).encode()),
            toolkit=f"nvcc {toolkit['nvcc']} ({toolkit['kind']}), {self.plan.host.compiler}",
            patches=tuple(Patch(entry.name, entry.sha256, entry.state) for entry in ledger.entries),
            notes=(f"CUTLASS {self.plan.cutlass}",),
        )

    def _write_helpers(self, tree: Path) -> None:
        """What the build reads of ours, and of this machine's Python."""
        compile_files = resources.files("sm121.compile")
        for name in ("hook.cmake", "launcher.py"):
            (tree / name).write_text(compile_files.joinpath(name).read_text(encoding="utf-8"))
        shutil.rmtree(tree / "answers", ignore_errors=True)
        write_answers(tree / "torch" / "torch", tree / "answers")
        headers = Path(sysconfig.get_path("include"))
        if not (headers / "Python.h").exists():
            raise CompileError(
                f"{headers / 'Python.h'} does not exist.", do="install the headers of this Python (python3-dev)."
            )
        (tree / "python").unlink(missing_ok=True)
        (tree / "python").symlink_to(headers)

    def _launcher(self, tree: Path, python: str) -> list[str]:
        measured = [python, "-I", "-S", str(tree / "launcher.py")]
        if self.plan.cache == "none":
            return measured
        program = "ccache" if self.plan.cache == "ccache" else "sccache"
        return [*measured, str(tree / "tools" / "bin" / program)]

    def _cache_environment(self) -> dict[str, str]:
        # Every program of the toolkit decides about the result, not nvcc alone: the step's key stands for them.
        compiler = f"{self.plan.step('toolkit').key} {self.plan.host.compiler}"
        folder = self.work.cache / self.plan.cache.partition(":")[0]
        if self.plan.cache == "ccache":
            return {
                "CCACHE_DIR": str(folder), "CCACHE_CONFIGPATH": os.devnull, "CCACHE_MAXSIZE": "20G",
                "CCACHE_COMPILERCHECK": f"string:{compiler}", "CCACHE_NOHASHDIR": "1",
                "CCACHE_TEMPDIR": str(folder / "tmp"),
            }  # fmt: skip
        if self.plan.cache == "sccache":
            return {
                "SCCACHE_DIR": str(folder),
                "SCCACHE_IDLE_TIMEOUT": "60",
                "SCCACHE_SERVER_UDS": str(folder / "socket"),
            }
        return {}

    def _schedule(self) -> Schedule:
        measured = costs(self.plan.version)
        return Schedule(
            jobs=self.plan.jobs, heavy_jobs=self.plan.heavy_jobs, seconds=measured.seconds,
            heavy=frozenset(name for name, peak in measured.peak.items() if peak > HEAVY),
        )  # fmt: skip


def _torch_member(name: str) -> bool:
    """What compiling and linking read: headers, CMake files and the libraries they name, two scripts."""
    return name.startswith(("torch/include/", "torch/share/cmake/", "torch/lib/")) or name in {
        "torch/version.py", "torch/utils/cpp_extension.py",
    }  # fmt: skip


def _only_torch(home: Path) -> Callable[[str, list[str]], set[str]]:
    """For a copy of the installed torch at `home`: what `_torch_member` would not take."""
    kept = {home: {"include", "share", "lib", "utils", "version.py"}, home / "utils": {"cpp_extension.py"}}

    def ignored(folder: str, names: list[str]) -> set[str]:
        return {*names} - kept.get(Path(folder), {*names})

    return ignored


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(source)


def _python() -> str:
    """The interpreter behind a virtual environment: CMake wants the one that has the headers."""
    return str(Path(sys.executable).resolve())
