"""A package index in memory: wheels with METADATA and RECORD, answering whole files and parts of them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOST = "https://index.example"
SIMPLE = f"{HOST}/simple/"


def wheel(
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: Iterable[str] = (),
    files: Mapping[str, str] | None = None,
    python: str = ">=3.10",
) -> tuple[str, bytes]:
    """A small wheel: file name and bytes."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = [f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nRequires-Python: {python}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    content = {**(files or {}), f"{stem}.dist-info/METADATA": "\n".join(lines) + "\n"}
    record = []
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text.encode())}")
    content[f"{stem}.dist-info/RECORD"] = "\n".join([*record, f"{stem}.dist-info/RECORD,,"]) + "\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return f"{stem}-{tag}.whl", buffer.getvalue()


def sdist(name: str, version: str, files: Mapping[str, str]) -> tuple[str, bytes]:
    """A small source distribution."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{name.replace('-', '_')}-{version}.tar.gz", buffer.getvalue()


class World(BaseAdapter):
    """Mounted on a session in place of the network."""

    def __init__(self, *, ranges: bool = True) -> None:
        super().__init__()
        self.projects: dict[str, dict[str, bytes]] = {}
        self.yanked: set[str] = set()
        self.wrong: dict[str, str] = {}
        """File name -> sha256 that the index claims instead of the true one."""
        self.down = False
        self.ranges = ranges
        self.asked: list[tuple[str, str]] = []
        """(URL, Range) of every request."""

    def add(self, *files: tuple[str, bytes]) -> World:
        for filename, data in files:
            project = re.split(r"-\d", filename)[0].replace("_", "-")
            self.projects.setdefault(project, {})[filename] = data
        return self

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        url = str(request.url)
        wanted = request.headers.get("Range", "")
        self.asked.append((url, wanted))
        if self.down:
            raise requests.ConnectionError(f"no route to {url}")
        parts = urlsplit(url).path.strip("/").split("/")
        answer = requests.Response()
        answer.request, answer.url, answer.status_code, body = request, url, 200, b""
        if parts[0] == "simple" and parts[1] in self.projects:
            body = self._page(parts[1])
            answer.headers["Content-Type"] = "application/vnd.pypi.simple.v1+json"
        elif parts[0] == "files" and parts[2] in self.projects.get(parts[1], {}):
            body = self.projects[parts[1]][parts[2]]
        else:
            answer.status_code = 404
        if match := re.fullmatch(r"bytes=(\d+)-(\d+)", wanted if self.ranges else ""):
            first, last = int(match[1]), min(int(match[2]), len(body) - 1)
            answer.status_code = 206
            answer.headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            body = body[first : last + 1]
        answer.raw = io.BytesIO(body)
        return answer

    def close(self) -> None:
        """Nothing is held."""

    def _page(self, project: str) -> bytes:
        files = [
            {
                "filename": name,
                "url": f"{HOST}/files/{project}/{name}",
                "size": len(data),
                "hashes": {"sha256": self.wrong.get(name, hashlib.sha256(data).hexdigest())},
                "yanked": name in self.yanked,
                "upload-time": "2026-11-01T00:00:00Z",
            }
            for name, data in self.projects[project].items()
        ]
        page = {"meta": {"api-version": "1.1"}, "name": project, "files": files, "versions": []}
        return json.dumps(page).encode()
