"""What vLLM's own build files pin: third-party sources by repository, tag or commit, and override variable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.errors import PinsError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXTERNAL = "cmake/external_projects/"
MAIN = "CMakeLists.txt"

_COMMENT = re.compile(r"(?m)^\s*#.*$|(?<=\s)#[^\n\"]*$")
_SET = re.compile(r'^\s*set\(\s*(\w+)\s+"?([^"\s)]+)"?\s*\)', re.IGNORECASE | re.MULTILINE)
_VARIABLE = re.compile(r"ENV\{(\w+_SRC_DIR)\}")
_REPOSITORY = re.compile(r"GIT_REPOSITORY\s+\"?([^\s\")]+)")
_TAG = re.compile(r"GIT_TAG\s+\"?([^\s\")]+)")
_TARGET = re.compile(r"define_(?:gpu_)?extension_target\(\s*(\w+)")


@dataclass(frozen=True, slots=True)
class Fetched:
    """One source tree that upstream's CMake fetches."""

    name: str
    repository: str
    ref: str
    variable: str
    extensions: tuple[str, ...]
    """Compiled libraries that the same file defines."""


def is_build_file(path: str) -> bool:
    """Whether a file of the source tree says what is fetched."""
    return path == MAIN or (path.startswith(EXTERNAL) and path.endswith(".cmake"))


def fetched(files: Mapping[str, str]) -> list[Fetched]:
    """Read the build files (path -> text). Raises PinsError for a fetch that cannot be understood."""
    found = []
    problems = []
    for path, written in files.items():
        text = _COMMENT.sub("", written)
        if not _REPOSITORY.search(text):
            continue
        try:
            found.append(_read(path, text))
        except ValueError as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise PinsError(problems, do="read the file and write the component into vllm.toml by hand.")
    return sorted(found, key=lambda tree: (tree.name != "cutlass", tree.name))


def _read(path: str, text: str) -> Fetched:
    """Later definitions win: upstream writes the CUDA branch of a choice last."""
    variable = _VARIABLE.search(text)
    values = dict(_SET.findall(text))
    repositories = _REPOSITORY.findall(text)
    tags = _TAG.findall(text)
    if variable is None or not tags:
        raise ValueError(f"fetches {', '.join(repositories)} without an override variable or without a tag")
    name = "cutlass" if path == MAIN else path.removeprefix(EXTERNAL).removesuffix(".cmake")
    extensions = () if path == MAIN else tuple(dict.fromkeys(_TARGET.findall(text)))
    return Fetched(
        name, _resolved(repositories[-1], values), _resolved(tags[-1], values), variable[1], extensions
    )


def _resolved(word: str, values: Mapping[str, str]) -> str:
    """A word with `${NAME}` replaced by what the file sets."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ValueError(f"uses ${{{match[1]}}}, which it does not set")
        return values[match[1]]

    return re.sub(r"\$\{(\w+)\}", value, word)
