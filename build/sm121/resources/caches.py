"""Whether a compiler cache of a given version helps with nvcc."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from sm121.findings import Finding, Verdict
from sm121.values import CudaVersion

if TYPE_CHECKING:
    from collections.abc import Mapping


def judge_cache(name: str, version: str, *, ptx: bool = False, cuda: CudaVersion | None = None) -> list[Finding]:
    """Judge `ccache` or `sccache` of that version, for a build that makes PTX or not.

    vLLM makes PTX for some kernels whatever its architecture list says.
    """
    subject = f"{name} {version}".strip()
    known = [rule for rule in _data()["rule"] if rule["cache"] == name]
    if not known:
        return [_finding(subject, Verdict.UNKNOWN, f"nothing is known of a compiler cache called {name!r}")]
    try:
        number = Version(version)
    except ValueError:
        return [_finding(subject, Verdict.UNKNOWN, f"{version!r} is no version")]
    findings = [
        _finding(subject, Verdict.WARN, rule["says"], rule["advice"], rule["source"])
        for rule in known
        if _speaks(rule, number, ptx=ptx, cuda=cuda)
    ]
    return findings or [_finding(subject, Verdict.PASS, "nothing is known against it")]


def _speaks(rule: Mapping[str, Any], version: Version, *, ptx: bool, cuda: CudaVersion | None) -> bool:
    if "since" in rule and version < Version(rule["since"]):
        return False
    if "until" in rule and version >= Version(rule["until"]):
        return False
    if rule.get("with_ptx") and not ptx:
        return False
    return "from_cuda" not in rule or (cuda is not None and cuda.release >= CudaVersion.parse(rule["from_cuda"]))


def _finding(subject: str, verdict: Verdict, got: str, advice: str = "", source: str = "") -> Finding:
    return Finding("resources.cache", subject, verdict, got, advice=advice, source=source)


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(files("sm121.resources").joinpath("caches.toml").read_text(encoding="utf-8"))
