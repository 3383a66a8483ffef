"""Every published case about artifacts: the verdict, and the words that a message must have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from made_facts import cases, distribution, fixture, library, listed_library, unit

from sm121.artifact import open_artifact
from sm121.findings import Finding, Verdict, overall
from sm121.inspector.coverage import cover
from sm121.inspector.facts import ArtifactFacts
from sm121.inspector.inspection import Options, inspect_artifact, judge
from sm121.inspector.judge.cache import judge_cache_path
from sm121.inspector.judge.device_code import judge_library
from sm121.inspector.judge.families import judge_presence
from sm121.inspector.judge.line import judge_grafts, judge_line, judge_providers
from sm121.inspector.judge.ownership import judge_ownership
from sm121.inspector.judge.stamp import Stamp, judge_build_record, judge_stamp
from sm121.inspector.judge.symbols import Needs, explain_loader, judge_symbols, read_nm
from sm121.inspector.judge.tags import Interpreter, judge_one_version, judge_tags
from sm121.inspector.judge.wheel import judge_name, judge_size
from sm121.inspector.listing import as_library, read_listing
from sm121.inspector.policy import policy
from sm121.inspector.rules import Channel
from sm121.target import GB10, Capability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

RULES = policy()


def _listed(given: dict[str, Any]) -> list[Finding]:
    facts = as_library("x.so", read_listing(given["list_elf"]))
    # The list of one library whose images belong together: a unit of all of them.
    whole = library("x.so", [unit([image for one in facts.units for image in one.images])])
    return list(judge_library(cover(whole, RULES, GB10), None, GB10))


def _counted(given: dict[str, Any], name: str, targets: dict[str, int]) -> list[Finding]:
    project = RULES.project(given.get("project", ""))
    rule = project.expects(given["version"]).library(name) if project else None
    capability = Capability.parse(given["target"])
    return list(judge_library(cover(listed_library(name, targets), RULES, capability), rule, capability))


def _file(given: dict[str, Any], folder: Path, **options: Any) -> list[Finding]:
    path = folder / given.get("name", given.get("fixture", "x.so"))
    data = given["bytes"].encode() if "bytes" in given else fixture(given["fixture"])[: given.get("truncate")]
    path.write_bytes(data)
    with open_artifact(path) as artifact:
        return list(inspect_artifact(artifact, Options(jobs=1, **options)).findings)


def _cubin_files(given: dict[str, Any]) -> list[Finding]:
    facts = ArtifactFacts(
        "folder", "cache", 0, (library("flashinfer_cubin/*.cubin", [unit(["sm_100f"]), unit(["sm_100a"])]),),
        paths=tuple(given["files"]),
    )  # fmt: skip
    return list(judge(facts, Options(capability=Capability.parse(given["target"]))).findings)


def _files(given: dict[str, Any]) -> list[Finding]:
    project = RULES.project(given["project"])
    assert project is not None
    return list(judge_presence(project.expects(given["version"]), given["files"]))


def device_code(case: dict[str, Any], folder: Path) -> list[Finding]:
    given = case["given"]
    if "list_elf" in given:
        return _listed(given)
    if "path" in given:
        return list(judge_cache_path(given["path"], Capability.parse(given["target"])))
    if "cuobjdump" in given:
        return _file(given, folder, cross_check=True)
    if "cuobjdump_lelf" in given:
        lines = [given["cuobjdump_lelf"], given["cuobjdump_stderr"], given["cuobjdump_lptx"]]
        facts = as_library(given["fixture"], read_listing(lines))
        assert [image.target for one in facts.units for image in one.images] == case["expect"]["ptx"]
        return list(judge_library(cover(facts, RULES, GB10), None, GB10)) + _file(given, folder)
    if "files" in given:
        return _cubin_files(given) if "target" in given else _files(given)
    if "library" in given:
        return _counted(given, given["library"], given["entries"])
    return _file(given, folder)


def arch_lists(case: dict[str, Any], folder: Path) -> list[Finding]:
    given = case["given"]
    name = "vllm/_C_stable_libtorch.abi3.so"
    return [
        *_counted(given, name, given["list_elf_counts"]),
        *judge_line({name: given["needed"]}, RULES.libraries),
    ]


def runtime_libs(case: dict[str, Any], folder: Path) -> list[Finding]:
    given = case["given"]
    if "log" in given:
        return explain_loader(
            given["log"], RULES.libraries, gpu="no GPU" not in given.get("host", ""),
            built=given.get("built_with_torch", ""), found=given.get("image_torch", ""),
        )  # fmt: skip
    needed = {given.get("library", given.get("path", "vllm/_C.abi3.so")): given["needed"]}
    if "nm" in given:
        symbol = read_nm(given["nm"])
        assert symbol is not None
        needs = Needs(given["library"], frozenset([symbol]), tuple(given["needed"]))
        return list(judge_symbols(needs, given["defined_in_siblings"], RULES.libraries))
    if "requires_dist" in given:
        return list(judge_providers(needed, RULES.libraries, requires=given["requires_dist"]))
    version = given["wheel"].split("-")[1] if "wheel" in given else ""
    return list(judge_line(needed, RULES.libraries, version=version, torch=given["torch"]))


def versions(case: dict[str, Any], folder: Path) -> list[Finding]:
    given = case["given"]
    if "manifest" in given:
        return list(judge_build_record(given["manifest"]))
    return list(judge_stamp(Stamp("vllm", metadata=given["metadata_version"]), given["pinned_ref"]))


def wheels(case: dict[str, Any], folder: Path) -> list[Finding]:
    given = case["given"]
    if "records" in given:
        return list(
            judge_ownership(
                [distribution(row["dist"], row["version"], rows=row["lines"]) for row in given["records"]]
            )
        )
    if "folder" in given or "installed" in given:
        return list(judge_one_version(given.get("folder", given.get("installed"))))
    if "filename" in given:
        folder_version = given["dist_info"].removesuffix(".dist-info").split("-")[1]
        stamp = Stamp("cc_torch", given["filename"].split("-")[1], folder_version, given["metadata_version"])
        return [*judge_stamp(stamp), *judge_name(given["filename"], given["wheel_tags"], "cc_torch")]
    if "files" in given:
        return list(judge_grafts(given["files"], RULES.libraries, given["project"]))
    if "bytes" in given:
        channel = RULES.channels.get(given["channel"])
        if "limit_bytes" in given:
            channel = Channel(
                given["channel"], given["limit_bytes"], exclusive=given["channel"] == "github-release", source=""
            )
        return list(judge_size(given["bytes"], channel, "wheel", given["channel"]))
    interpreter = Interpreter.parse(given["python"], given["glibc"], given["machine"])
    return list(judge_tags(given["wheel"], interpreter))


KINDS: dict[str, tuple[Callable[[dict[str, Any], Path], list[Finding]], Iterable[str]]] = {
    "device-code": (device_code, ()),
    "runtime-libs": (runtime_libs, ()),
    # B32 is about a source folder before a build.
    "versions": (versions, ("B32-a", "B32-b", "B32-c")),
    # B50 and B51 are about an index.
    "wheels": (wheels, ("B50-a", "B51-a")),
}
ALL = [(kind, case) for kind, (_, others) in KINDS.items() for case in cases(kind) if case["id"] not in others]
LISTS = [case for case in cases("arch-lists") if case["id"] in {"B01-a", "B01-b"}]


def check(case: dict[str, Any], findings: list[Finding]) -> None:
    """The verdict, and the words in what a person would read."""
    expect = case["expect"]
    verdict = overall(findings)
    assert str(verdict).upper() in {expect["verdict"], *expect.get("accept", [])}, findings
    grave = [finding for finding in findings if finding.verdict is verdict or verdict.rank < Verdict.WARN.rank]
    text = "\n".join(finding.message for finding in grave).lower()
    if words := expect.get("word"):
        assert any(word.lower() in text for word in words), text
    for word in expect.get("all_words", ()):
        assert word.lower() in text, text


@pytest.mark.parametrize(("kind", "case"), ALL, ids=[case["id"] for _, case in ALL])
def test_case(kind: str, case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no cuobjdump here
    findings = KINDS[kind][0](case, tmp_path)
    assert findings
    check(case, findings)


@pytest.mark.parametrize("case", LISTS, ids=[case["id"] for case in LISTS])
def test_listed_case(case: dict[str, Any], tmp_path: Path) -> None:
    check(case, arch_lists(case, tmp_path))


def test_the_limits_of_channels_are_those_of_the_cases() -> None:
    limits = {
        case["given"]["limit_bytes"]
        for case in cases("wheels")
        if case["given"].get("channel") == "github-release"
    }
    assert limits == {RULES.channels["github-release"].limit}


def test_every_case_has_been_judged() -> None:
    assert {case["id"] for case in LISTS} == {"B01-a", "B01-b"}
    assert len(ALL) == sum(len(cases(kind)) for kind in KINDS) - 5
