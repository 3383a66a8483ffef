"""Is an image what its name, its labels and its environment say?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.findings import Finding, Verdict
from sm121.inspector.judge.line import cuda_of
from sm121.inspector.words import joined, shown
from sm121.progress import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOVED = "https://github.com/vllm-project/vllm/issues/42738"
_SHOWN = "https://github.com/eugr/spark-vllm-docker/issues/363"
_BASE = "org.opencontainers.image.base.digest"
_CU = re.compile(r"(?<![a-z0-9])cu(\d{2})(\d)(?!\d)")
_CUDA = re.compile(r"(?<![a-z0-9])cuda-?(\d{2})\.(\d)")


def judge_reference(reference: str, *, pinned: bool, digest: str = "") -> Iterator[Finding]:
    """A name by tag is another image tomorrow."""
    if not reference:
        return
    if pinned:
        yield Finding("image.reference", shown(reference), Verdict.PASS, "names the image by its digest")
        return
    got = "names the image by a tag, which can move, and no digest stands with it"
    now = f" Now it is {digest}." if digest else ""
    advice = f"Use NAME@sha256:DIGEST.{now}"
    yield Finding("image.reference", shown(reference), Verdict.WARN, got, "a digest", advice, _MOVED)


def judge_cuda_claims(
    reference: str, env: Mapping[str, str], torch: str, labels: Mapping[str, str]
) -> Iterator[Finding]:
    """The CUDA line by tag, CUDA_VERSION, labels and torch; two majors cannot be right."""
    claims: dict[str, tuple[int, int]] = {}
    tag = reference.rpartition("/")[2].partition("@")[0].partition(":")[2].lower()
    if match := _CU.search(tag) or _CUDA.search(tag):
        claims[f"the tag {shown(tag)}"] = (int(match[1]), int(match[2]))
    if match := re.match(r"(\d+)\.(\d+)", env.get("CUDA_VERSION", "")):
        claims[f"CUDA_VERSION={shown(env['CUDA_VERSION'])}"] = (int(match[1]), int(match[2]))
    if match := _CU.search(labels.get("sm121.line", "")):
        claims[f"the label sm121.line={match[0]}"] = (int(match[1]), int(match[2]))
    if line := cuda_of(torch):
        claims[f"torch {shown(torch)}"] = line
    if len(claims) < 2:
        return
    majors = {major for major, _ in claims.values()}
    said = joined([f"{what} says CUDA {major}.{minor}" for what, (major, minor) in claims.items()])
    if len(majors) > 1:
        advice = "Trust torch's and the libraries' line; have the image named after what it holds."
        yield Finding("image.cuda", "CUDA line", Verdict.FAIL, said, "one CUDA major", advice, _MOVED)
    elif len(set(claims.values())) > 1:
        yield Finding(
            "image.cuda", "CUDA line", Verdict.INFO, said, "one release; one major works", source=_MOVED
        )
    else:
        yield Finding("image.cuda", "CUDA line", Verdict.PASS, said)


def judge_labels(
    labels: Mapping[str, str], env: Mapping[str, str], installed: Mapping[str, str]
) -> Iterator[Finding]:
    """Versions that labels and the environment name, against METADATA. `installed` maps projects to versions.

    A label speaks of a project if its last words are the project and `version`: `sm121.vllm.version`.
    """
    for where, said in (("label", labels), ("environment", env)):
        for key, value in sorted(said.items()):
            project = _project(key, installed)
            if not project or not value:
                continue
            have = installed[project]
            if _same(value, have):
                yield Finding("image.label", key, Verdict.PASS, f"is {shown(value)}, as METADATA says")
                continue
            verdict = Verdict.FAIL if where == "label" else Verdict.WARN
            got = f"the {where} says {project} {shown(value)}, METADATA says {shown(have)}"
            yield Finding("image.label", key, verdict, got, "one version", "Build the image anew.", _SHOWN)


def judge_base(
    diff_ids: Sequence[str], labels: Mapping[str, str], *, base: str, layers: Sequence[str]
) -> Iterator[Finding]:
    """Whether the image begins with the layers of its base; `base` is the base's name by digest."""
    same = next((at for at, digest in enumerate(layers) if diff_ids[at : at + 1] != (digest,)), len(layers))
    if same == len(layers) and layers:
        yield Finding(
            "image.base", shown(base), Verdict.PASS, f"its {plural(same, 'layer')} are the image's first"
        )
    else:
        got = f"the image has {same} of its {plural(len(layers), 'layer')}"
        yield Finding("image.base", shown(base), Verdict.FAIL, got, "all of them, first", "Build the image anew.")
    stated, wanted = labels.get(_BASE, ""), base.partition("@")[2]
    if stated and stated != wanted:
        yield Finding("image.base", _BASE, Verdict.FAIL, f"is {shown(stated)}", wanted, "Build the image anew.")


def _project(key: str, installed: Mapping[str, str]) -> str:
    words = [word for word in re.split(r"[._\-/]+", key.lower()) if word]
    if len(words) < 2 or words[-1] != "version":
        return ""
    named = "-".join(words[:-1])
    return next(
        (
            name
            for name in sorted(installed, key=len, reverse=True)
            if named == name or named.endswith(f"-{name}")
        ),
        "",
    )


def _same(said: str, have: str) -> bool:
    """Equal as versions; what is said without a local part accepts any."""
    try:
        wanted, found = Version(said), Version(have)
    except ValueError:
        return said == have
    return wanted.public == found.public and wanted.local in {None, found.local}
