"""What distributions say about themselves: METADATA, WHEEL, RECORD, the version module.

Each distribution is known by its `.dist-info` or `.egg-info` folder, in a wheel at the top, elsewhere wherever it
lies.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.facts import DistributionFacts
from sm121.inspector.words import shown

if TYPE_CHECKING:
    from email.message import Message

_INFO = re.compile(r"(?P<root>.*/)?(?P<folder>[^/]+\.(?:dist|egg)-info)/(?P<name>METADATA|PKG-INFO|WHEEL|RECORD)")
_MODULE = re.compile(r"(?P<root>.*/)?(?P<package>[A-Za-z_][\w]*)/(?P<name>_version|_build_meta|version)\.py")
_VERSION = re.compile(
    r"^(?:__version__|version)\s*(?::\s*\w+\s*)?=\s*(?:version\s*=\s*)?['\"]([^'\"\n]+)['\"]", re.MULTILINE
)
_COMMIT = re.compile(
    r"^(?:__commit_id__|commit_id|__git_commit__|__git_version__|git_version|__commit__)\s*(?::[^=\n]*)?="
    r"\s*(?:commit_id\s*=\s*)?['\"]([^'\"\n]+)['\"]",
    re.MULTILINE,
)
LARGEST_MODULE = 1 << 20
LARGEST_METADATA = 16 << 20
LARGEST_RECORD = 256 << 20


def is_document(path: str) -> bool:
    """Whether a file says something about a distribution."""
    return bool(_INFO.fullmatch(path)) or bool(_MODULE.fullmatch(path) and path.count("/") <= 8)


def largest(path: str) -> int:
    """How many bytes of a document are read at most."""
    if path.endswith("/RECORD"):
        return LARGEST_RECORD
    return LARGEST_MODULE if path.endswith(".py") else LARGEST_METADATA


@dataclass(slots=True)
class Collection:
    """Documents as they come in; `distributions` puts them together."""

    documents: dict[str, bytes] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)

    def add(self, path: str, data: bytes) -> None:
        self.documents[path] = data

    def distributions(self) -> tuple[DistributionFacts, ...]:
        """All distributions, by folder."""
        folders: dict[str, dict[str, bytes]] = {}
        modules: dict[tuple[str, str], list[tuple[str, bytes]]] = {}
        for path, data in sorted(self.documents.items()):
            if match := _INFO.fullmatch(path):
                folders.setdefault((match["root"] or "") + match["folder"], {})[match["name"]] = data
            elif match := _MODULE.fullmatch(path):
                modules.setdefault((match["root"] or "", match["package"]), []).append((match["name"], data))
        return tuple(self._distribution(folder, files, modules) for folder, files in sorted(folders.items()))

    def _distribution(
        self, folder: str, files: dict[str, bytes], modules: dict[tuple[str, str], list[tuple[str, bytes]]]
    ) -> DistributionFacts:
        root = folder.rpartition("/")[0]
        root += "/" if root else ""
        metadata = _headers(files.get("METADATA", files.get("PKG-INFO", b"")))
        wheel = _headers(files.get("WHEEL", b""))
        name, version = _one(metadata, "Name"), _one(metadata, "Version")
        if not name:
            got = (
                "has no METADATA with a Name"
                if "WHEEL" in files or "RECORD" in files
                else "names no distribution"
            )
            self.problems.append(Finding("wheel.metadata", shown(folder), Verdict.FAIL, got, "Name and Version"))
            name = folder.rpartition("/")[2].partition("-")[0]
        record = self._record(folder, root, files["RECORD"]) if "RECORD" in files else {}
        package = re.sub(r"[-.]+", "_", name)
        module_version, commit = "", ""
        for candidate in dict.fromkeys((package, package.lower())):
            for _, data in sorted(
                modules.get((root, candidate), []), key=lambda item: len(item[0]), reverse=True
            ):
                text = data.decode("utf-8", "replace")
                module_version = module_version or _found(_VERSION, text)
                commit = commit or _found(_COMMIT, text)
        return DistributionFacts(
            name, version, folder, tuple(metadata.get_all("Requires-Dist", [])), _one(metadata, "Requires-Python"),
            tuple(str(tag).strip() for tag in wheel.get_all("Tag", [])), module_version, commit, record,
        )  # fmt: skip

    def _record(self, folder: str, root: str, data: bytes) -> dict[str, tuple[str, int | None]]:
        """RECORD's rows, paths from the artifact's root."""
        rows: dict[str, tuple[str, int | None]] = {}
        try:
            for row in csv.reader(io.StringIO(data.decode("utf-8"), newline="")):
                if not row:
                    continue
                path, said, size = (*row, "", "", "")[:3]
                rows[_joined(root, path)] = said, int(size) if size.isascii() and size.isdigit() else None
        except (UnicodeDecodeError, csv.Error) as error:
            got = f"its RECORD cannot be read: {error}"
            self.problems.append(
                Finding("wheel.record", shown(folder), Verdict.FAIL, got, "rows of path, hash, size")
            )
        return rows


def _headers(data: bytes) -> Message:
    return HeaderParser().parsestr(data.decode("utf-8", "replace"))


def _one(message: Message, key: str) -> str:
    return str(message.get(key, "")).strip()


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _joined(root: str, path: str) -> str:
    """`../../../bin/vllm` from a site folder, without the dots."""
    parts = root.split("/")[:-1]
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in {".", ""}:
            parts.append(part)
    return "/".join(parts)
