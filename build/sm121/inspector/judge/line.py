"""Does everything belong to one CUDA line? Majors by NEEDED, torch's variant, who brings the runtime, grafts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from sm121.findings import Finding, Verdict
from sm121.inspector.words import joined, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sm121.inspector.rules import Libraries

_TWO_LINES = "https://github.com/vllm-project/vllm/issues/44335"
_NO_PIN = "https://github.com/sgl-project/sglang/pull/30562"
_GRAFTED = "https://github.com/pytorch/ao/pull/2927"
_SONAME = re.compile(r"(lib[A-Za-z_]+?)(?:-[0-9a-f]{6,})?\.so(?:\.(\d+))?(?:\..*)?")
_LOCAL = re.compile(r"cu(\d{2})(\d)(?!\d)")


def cuda_of(version: str) -> tuple[int, int] | None:
    """The CUDA line in the local part of a version: (12, 9) for `2.11.0+cu129`."""
    match = _LOCAL.search(version.partition("+")[2])
    return (int(match[1]), int(match[2])) if match else None


def cuda_majors(needed: Collection[str], libraries: Libraries) -> dict[int, list[str]]:
    """CUDA majors that a library asks for, with the names that say so."""
    majors: dict[int, list[str]] = {}
    for name in needed:
        match = _SONAME.fullmatch(name)
        if match and match[1] in libraries.cuda_major and match[2]:
            majors.setdefault(int(match[2]), []).append(name)
    return majors


def judge_line(
    needed: Mapping[str, Sequence[str]], libraries: Libraries, *, version: str = "", torch: str = ""
) -> Iterator[Finding]:
    """One CUDA major in all of `needed` (library to NEEDED), in the version's local part and in torch's."""
    found: dict[int, dict[str, list[str]]] = {}
    for library, names in needed.items():
        for major, sonames in cuda_majors(names, libraries).items():
            found.setdefault(major, {})[library] = sonames
    if len(found) > 1:
        sides = joined([_side(major, found[major]) for major in sorted(found)])
        yield Finding(
            "line.major", "CUDA", Verdict.FAIL, f"two CUDA majors in one set: {sides}", "one CUDA major",
            "Build all parts with one line.", _TWO_LINES,
        )  # fmt: skip
    elif found:
        (major,) = found
        yield Finding("line.major", "CUDA", Verdict.PASS, f"CUDA {major} throughout ({_names(found[major])})")
    for what, text in (("version", version), ("torch", torch)):
        line = cuda_of(text)
        if line is None:
            continue
        other = [major for major in sorted(found) if major != line[0]]
        if other:
            sides = joined([_side(major, found[major]) for major in other])
            yield Finding(
                f"line.{what}", f"{what} {text}", Verdict.FAIL,
                f"is cu{line[0]}{line[1]}, yet the libraries are of another major: {sides}", "the same CUDA major",
                f"Install the cu{line[0]}{line[1]} build, or torch of the libraries' line.", _TWO_LINES,
            )  # fmt: skip
        elif found:
            yield Finding(
                f"line.{what}", f"{what} {text}", Verdict.PASS, f"is of the same CUDA major ({line[0]})"
            )


def judge_providers(
    needed: Mapping[str, Sequence[str]],
    libraries: Libraries,
    *,
    requires: Sequence[str] | None,
    files: Collection[str] = (),
    own: bool = True,
) -> Iterator[Finding]:
    """Who brings torch and the CUDA runtime.

    `requires` are Requires-Dist lines, None where there is no metadata; `files` are all file names of the set. `own`
    says that the set is a package whose dependencies come later, not an environment that must be complete.
    """
    names = {name for group in needed.values() for name in group}
    provided = {path.rpartition("/")[2] for path in files}
    required = _required(requires or ())
    torch = sorted(name for name in names if re.match(r"lib(torch|c10)", name))
    if torch and requires is not None and "torch" not in required and not any(name in provided for name in torch):
        yield Finding(
            "line.torch", "metadata", Verdict.FAIL,
            f"the libraries need {listed(torch, 2)}, and the metadata asks for no torch",
            "Requires-Dist: torch==<the version it was built with>", "Pin torch in the metadata.", _NO_PIN,
        )  # fmt: skip
    elif torch and requires is not None and "torch" in required:
        pin = required["torch"]
        exact = any(item.operator == "==" for item in pin.specifier)
        got = f"the metadata asks for {pin}" + ("" if exact else ", which names no exact version")
        verdict, wanted = (Verdict.PASS, "") if exact else (Verdict.WARN, "the version it was built with")
        yield Finding("line.torch", "metadata", verdict, got, wanted, source=_NO_PIN)
    bringing = sorted(required.keys() & libraries.runtime_providers)
    for soname in sorted(name for name in names if name.startswith("libcudart.so.")):
        if soname in provided:
            yield Finding("line.cudart", soname, Verdict.PASS, "is here")
        elif not own:
            got, wanted = "is needed, and no file of that name is here", "the CUDA runtime of the same major"
            advice = "Install nvidia-cuda-runtime of that major."
            yield Finding("line.cudart", soname, Verdict.FAIL, got, wanted, advice)
        elif requires is not None:
            got = f"comes with {joined(bringing)}" if bringing else "is needed, and no requirement brings it"
            yield Finding("line.cudart", soname, Verdict.PASS if bringing else Verdict.WARN, got)


def judge_grafts(paths: Collection[str], libraries: Libraries, project: str) -> Iterator[Finding]:
    """CUDA, torch or driver libraries that a package carries itself; `paths` are those of one package."""
    if canonicalize_name(project).replace("-", "_").startswith(tuple(libraries.owners)):
        return
    found = False
    for path in sorted(paths):
        match = _SONAME.fullmatch(path.rpartition("/")[2])
        if match is None or path.partition("/")[0] in libraries.owners:
            continue
        if match[1] in libraries.driver:
            found = True
            yield Finding(
                "line.graft", path, Verdict.FAIL, f"{match[1]} belongs to the machine's driver and must not be carried",
                "the driver's own library", "Exclude it when the wheel is repaired.", _GRAFTED,
            )  # fmt: skip
        elif match[1] in libraries.grafted:
            found = True
            yield Finding(
                "line.graft", path, Verdict.FAIL,
                f"a second copy of {match[1]}, which shares no state with the one that torch loads",
                "the library that torch's requirements bring", "Exclude it when the wheel is repaired.", _GRAFTED,
            )  # fmt: skip
    if not found:
        yield Finding("line.graft", project, Verdict.PASS, "carries no CUDA, torch or driver library of its own")


def _required(requires: Sequence[str]) -> dict[str, Requirement]:
    found: dict[str, Requirement] = {}
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or "extra" not in str(requirement.marker):
            found[canonicalize_name(requirement.name)] = requirement
    return found


def _side(major: int, libraries: Mapping[str, Sequence[str]]) -> str:
    return f"CUDA {major} by {_names(libraries)} in {listed(sorted(libraries), 3)}"


def _names(libraries: Mapping[str, Sequence[str]]) -> str:
    return joined(sorted({name for names in libraries.values() for name in names}))
