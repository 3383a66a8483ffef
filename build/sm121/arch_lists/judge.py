"""Judges an architecture list before a build: what it becomes, and whether that runs on a compute capability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sm121.arch_lists.parse import parse_arch_list, syntax_of
from sm121.arch_lists.targets import trace
from sm121.findings import Finding, Verdict
from sm121.resources.toolkit import first_release, releases, renaming, supports
from sm121.target import LoadsAs, loads_as

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from sm121.arch_lists.targets import GroupTargets, Targets
    from sm121.target import Capability
    from sm121.values import ArchSpec, CudaVersion

    _Teller = Callable[["_Case", tuple[ArchSpec, ...], list[str]], Finding]

MOST_NAMES = 6
"""Groups named in one message; the rest is counted."""


def judge_arch_list(
    project: str,
    version: str,
    cuda: CudaVersion,
    arch_list: str,
    capability: Capability,
    *,
    extensions: Collection[str] | None = None,
    finished: bool = False,
    patches: Collection[str] = (),
) -> list[Finding]:
    """Judge a request for `project` at `version` with the toolkit `cuda`, to run on `capability`.

    The toolkit is the one whose nvcc will run, not the one that torch was built with. `extensions` are those that
    are compiled (None: all); `finished` says that PTX is compiled ahead of time; `patches` are the file names of
    those applied. Raises PlanError for a project without an architecture list.
    """
    parsed = parse_arch_list(project, arch_list)
    if not parsed.ok:
        return list(parsed.findings)
    targets = trace(project, version, cuda, parsed.archs, patches)
    if extensions is not None:
        groups = tuple(row for row in targets.groups if row.group.extension in extensions)
        targets = replace(targets, groups=groups)
    case = _Case(targets, capability, f"{syntax_of(project).variable}={arch_list.strip()}", finished)
    findings = [*parsed.findings, *_version(case), *_toolkit(case)]
    findings += _flashinfer(case) if project == "flashinfer" else _loads(case)
    findings += _dropped(case)
    if project == "vllm" and extensions is not None and not targets.groups:
        # Host code alone: what the list becomes says nothing about this build.
        return findings
    failed = any(finding.verdict is Verdict.FAIL for finding in findings)
    findings.append(_summary(case))
    if failed:
        remedy = _remedy(project, version, cuda, capability)
        findings = [
            replace(finding, advice=finding.advice or remedy) if finding.verdict is Verdict.FAIL else finding
            for finding in findings
        ]
    return findings


@dataclass(frozen=True, slots=True)
class _Case:
    targets: Targets
    capability: Capability
    subject: str
    finished: bool = False

    def finding(self, check: str, verdict: Verdict, got: str, advice: str = "") -> Finding:
        return Finding(
            f"arch-list.{check}", self.subject, verdict, got, advice=advice, source=self.targets.source
        )

    def serves(self, target: ArchSpec) -> LoadsAs:
        """How code for `target`, and its PTX if it has any, serves the capability."""
        bare = replace(target, ptx=False)
        ways = [loads_as("cubin", bare, self.capability)]
        if target.ptx:
            ways.append(loads_as("ptx", bare, self.capability))
        return min(ways, key=lambda way: way.rank)

    def best(self, targets: Iterable[ArchSpec]) -> LoadsAs:
        return min((self.serves(target) for target in targets), key=lambda way: way.rank, default=LoadsAs.NO)


def _version(case: _Case) -> list[Finding]:
    targets = case.targets
    if targets.exact:
        return []
    asked = f"{targets.project} {targets.version}" if targets.version else f"{targets.project} of unknown version"
    got = f"the rules of {asked} were not read; those of {targets.rules} are used"
    bare = [str(arch) for arch in targets.requested if not arch.suffix and arch.major >= 9]
    if targets.project == "flashinfer" and bare:
        got += f"; old releases pass {' and '.join(bare)} on without a suffix, and FP4 code does not compile then"
    advice = "Name the exact version, or compare what is built with what is said here."
    return [case.finding("version", Verdict.WARN, got, advice)]


def _toolkit(case: _Case) -> list[Finding]:
    targets, cuda = case.targets, case.targets.cuda
    findings = []
    newest = releases()[-1].cuda
    if cuda.release > newest:
        got = f"CUDA {cuda.release} is newer than {newest}, the newest toolkit whose rules are known"
        findings.append(case.finding("toolkit", Verdict.WARN, got))
    for arch in targets.requested:
        other = renaming(arch, cuda)
        if other:
            got = f"{arch} is called {other.name} with CUDA {cuda.release} (CUDA {other.since} renamed it)"
            findings.append(case.finding("renamed", Verdict.WARN if targets.generic else Verdict.FAIL, got))
        if _nameless(arch, cuda):
            got = f"no toolkit up to CUDA {newest} knows a chip {arch.major}.{arch.minor}"
            findings.append(case.finding("toolkit", Verdict.FAIL, got))
    findings += [
        case.finding("refused", Verdict.FAIL, f"FlashInfer ends with an error: {arch} requires CUDA >= {wanted}")
        for arch, wanted in targets.refused
    ]
    unsure = [target for target in targets.all if supports(cuda, target) is None]
    if unsure:
        got = f"whether nvcc of CUDA {cuda.release} knows {_all_named(unsure)} is not known"
        findings.append(case.finding("toolkit", Verdict.UNKNOWN, got))
    reasons: dict[str, list[ArchSpec]] = {}
    for target in targets.all:
        if supports(cuda, target) is False and not _nameless(target, cuda):
            reasons.setdefault(_since(target, cuda), []).append(target)
    for reason, missing in reasons.items():
        got = f"nvcc of CUDA {cuda.release} does not know {_all_named(missing)}{reason}"
        findings.append(case.finding("toolkit", Verdict.FAIL, got))
    return findings


def _nameless(arch: ArchSpec, cuda: CudaVersion) -> bool:
    """Whether no toolkit knows this chip: a slip of the pen, unless a newer toolkit is used."""
    return first_release(replace(arch, suffix="", ptx=False)) is None and cuda.release <= releases()[-1].cuda


def _since(target: ArchSpec, cuda: CudaVersion) -> str:
    if renaming(target, cuda):
        return ""
    first = first_release(target)
    if first is None:
        return ""
    return f", it needs CUDA {first}" if first > cuda.release else ", newer toolkits dropped it"


def _loads(case: _Case) -> list[Finding]:
    """Judge what each group gets; groups with the same result share a finding."""
    targets = case.targets
    if not targets.generic:
        got = f"vLLM supports nothing of it with CUDA {targets.cuda.release}, so CMake stops"
        return [case.finding("empty", Verdict.FAIL, got)]
    if not targets.groups and targets.project != "vllm":
        return (
            [] if case.best(targets.generic).machine_code else [_no_code(case, targets.generic, ["all sources"])]
        )
    sorted_out: dict[tuple[_Teller, tuple[ArchSpec, ...]], list[str]] = {}
    for row in targets.groups:
        kind = _kind(case, row)
        if kind:
            result = () if kind is _always_jit else row.targets
            sorted_out.setdefault((kind, result), []).append(row.group.name)
    return [kind(case, result, names) for (kind, result), names in sorted_out.items()]


def _kind(case: _Case, row: GroupTargets) -> _Teller | None:
    best = case.best(row.targets)
    if best.machine_code:
        return None
    if row.group.optional:
        # A family's own code is meant for this chip even where its only target is another one.
        return _without if any(offer.major == case.capability.major for offer in row.offered) else None
    meant = case.best(row.offered).machine_code
    if best is LoadsAs.JIT:
        return _only_jit if meant else _always_jit
    return _no_code if meant else None


def _no_code(case: _Case, result: tuple[ArchSpec, ...], names: list[str]) -> Finding:
    return case.finding("loads", Verdict.FAIL, f"{_listed(names)}: {_lost(case, result)}")


def _only_jit(case: _Case, result: tuple[ArchSpec, ...], names: list[str]) -> Finding:
    got = f"{_listed(names)}: {_all_named(result)}, {_compiled_when(case)}"
    return case.finding("jit", Verdict.WARN, got)


def _always_jit(case: _Case, _result: tuple[ArchSpec, ...], names: list[str]) -> Finding:
    got = f"{_listed(names)}: PTX for older chips in any build, {_compiled_when(case)}"
    return case.finding("jit", Verdict.INFO, got)


def _compiled_when(case: _Case) -> str:
    return (
        "which finishing compiles ahead of time"
        if case.finished
        else f"so {case.capability} has to compile it at start"
    )


def _without(case: _Case, result: tuple[ArchSpec, ...], names: list[str]) -> Finding:
    other = any(target.major != case.capability.major for target in result)
    got = f"{_listed(names)}: {_lost(case, result)}"
    advice = f"Name {case.capability.major}.x targets only: one build holds one family of it." if other else ""
    return case.finding("optional", Verdict.WARN if other else Verdict.INFO, got, advice)


def _lost(case: _Case, result: tuple[ArchSpec, ...]) -> str:
    return f"{_all_named(result)} only, which does not load on {case.capability}" if result else "not built"


def _flashinfer(case: _Case) -> list[Finding]:
    targets, capability = case.targets, case.capability
    findings = []
    if targets.generic and not case.best(targets.generic).machine_code:
        findings.append(_no_code(case, targets.generic, ["all modules"]))
    if capability.major != 12 or findings:
        return findings
    numbers = {target.number for target in targets.generic}
    exact = [target for target in targets.generic if target.number == capability.number]
    family = [target for target in targets.generic if target.major == 12 and target.suffix == "f"]
    if capability.number == 121 and targets.generic and not exact:
        got = "code for __CUDA_ARCH__ 1210 is left out: from FlashInfer 0.6.18 on, XQA's memory fences"
        findings.append(case.finding("fences", Verdict.WARN, got, "Write 12.1a."))
    if exact and not any(target.number == 120 for target in family):
        got = "the module fp4_quantization_120f, which is loaded on 12.1, is not in the set of this list"
        findings.append(case.finding("fp4", Verdict.INFO, got, "Add gen_fp4_quantization_sm120f_module()."))
    if exact and 120 in numbers:
        got = (
            "every module is compiled for 12.0 too; fp4_quantization_120 gets 12.0a, which does not load on 12.1"
        )
        findings.append(case.finding("double", Verdict.INFO, got))
    return findings


def _dropped(case: _Case) -> list[Finding]:
    targets = case.targets
    findings = []
    ptx = [str(arch) for arch in targets.requested if arch.ptx]
    if ptx and targets.project == "vllm":
        got = f"+PTX in {', '.join(ptx)} is dropped: vLLM decides per kernel whether PTX is made"
        advice = f"Write {', '.join(word.removesuffix('+PTX') for word in ptx)}."
        findings.append(case.finding("ptx", Verdict.WARN, got, advice))
    if targets.generic:
        for arch in targets.dropped:
            same = arch.major == case.capability.major
            got = f"{arch} is dropped and leaves no code of its own"
            findings.append(case.finding("dropped", Verdict.INFO if same else Verdict.WARN, got))
    return findings


def _summary(case: _Case) -> Finding:
    targets = case.targets
    plain = tuple(replace(arch, ptx=False) for arch in targets.requested)
    generic = _all_named(targets.generic) or "nothing"
    if targets.project == "vllm":
        gated = _all_named(targets.gated) or "nothing"
        got = f"most sources are compiled for {generic}, NVFP4, Marlin and the other SM12x kernels for {gated}"
    else:
        got = f"sources are compiled for {generic}"
    same = set(targets.generic) == set(targets.gated or targets.generic) == set(plain)
    return case.finding("targets", Verdict.PASS if same else Verdict.INFO, got)


def _remedy(project: str, version: str, cuda: CudaVersion, capability: Capability) -> str:
    """The first list without a fault for this capability, tried by the same rules."""
    major, minor = capability.major, capability.minor
    exact, family = f"{major}.{minor}a", f"{major}.0f"
    order = [family, exact] if project == "vllm" and cuda.release.major >= 13 else [exact, family]
    for text in [*order, f"{major}.{minor}"]:
        parsed = parse_arch_list(project, text)
        if not parsed.ok:
            continue
        case = _Case(trace(project, version, cuda, parsed.archs), capability, "")
        trial = [*_toolkit(case), *(_flashinfer(case) if project == "flashinfer" else _loads(case))]
        if all(finding.verdict is not Verdict.FAIL for finding in trial):
            return f"Use {text}."
    needed = first_release(parse_arch_list(project, exact).archs[0])
    return f"Use a toolkit of CUDA {needed} or newer." if needed and needed > cuda.release else ""


def _named(target: ArchSpec) -> str:
    return f"{target} ({target.sm})"


def _all_named(targets: Iterable[ArchSpec]) -> str:
    return " and ".join(_named(target) for target in targets)


def _listed(names: list[str]) -> str:
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} other groups"
