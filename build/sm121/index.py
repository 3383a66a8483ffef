"""Where pinned files come from: the package indexes that this machine's user has configured.

pip's and uv's own settings decide (environment variables first, then pip's configuration files), because they
are what a site with a mirror has already set. Without any, the index library's default endpoint is used. The
index is only a place to look: what a file must be is said by its pin's size and hash.
"""

from __future__ import annotations

import configparser
import hashlib
import io
import os
import re
import sys
import tarfile
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

import requests
from packaging.utils import canonicalize_name
from packaging.version import Version
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.util.retry import Retry

from sm121.errors import DigestError, FetchError
from sm121.values import Sha256, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pypi_simple import DistributionPackage

TIMEOUT = (20.0, 120.0)
"""Seconds to wait for a connection, and between two pieces of an answer."""

_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file as an index lists it. `size` in bytes and `sha256` are None where the index does not say."""

    project: str
    version: str
    filename: str
    url: str
    size: int | None
    sha256: Sha256 | None
    yanked: bool = False
    uploaded: str = ""

    @classmethod
    def of(cls, project: str, package: DistributionPackage) -> Self:
        digest = package.digests.get("sha256")
        return cls(
            project, package.version or "", package.filename, package.url, package.size,
            Sha256(digest.lower()) if digest else None, package.is_yanked,
            package.upload_time.date().isoformat() if package.upload_time else "",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user's configuration says about indexes."""

    urls: tuple[str, ...]
    """Simple-API addresses, http or https, in the order in which they are asked."""
    certificates: str = ""
    """A file of certificate authorities, "" for the usual ones."""

    @classmethod
    def discover(cls, environ: Mapping[str, str], pip_files: Iterable[Path]) -> Self:
        """Read uv's and pip's variables from `environ`, then pip's files, of which a later one wins."""
        pip = _pip_configuration(pip_files)
        pip.update(
            (name.removeprefix("PIP_").lower().replace("_", "-"), value)
            for name, value in environ.items()
            if name.startswith("PIP_") and value
        )
        cert = environ.get("REQUESTS_CA_BUNDLE") or pip.get("cert", "")
        if pip.get("no-index", "").lower() in {"1", "true", "yes", "on"} or environ.get("UV_NO_INDEX"):
            return cls((), cert)
        first = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL") or pip.get("index-url") or _usual()
        others = (
            environ.get("UV_INDEX", ""),
            environ.get("UV_EXTRA_INDEX_URL", ""),
            pip.get("extra-index-url", ""),
        )
        named = [first, *(word for text in others for word in text.split())]
        urls = [_without_name(word) for word in named]
        return cls(tuple(dict.fromkeys(url for url in urls if url.startswith(("http://", "https://")))), cert)


def settings() -> Settings:
    """The settings of this process's user."""
    return Settings.discover(os.environ, pip_files(os.environ))


def indexes() -> list[str]:
    """Simple-API addresses to ask, in order. Empty if the user forbids every index."""
    return list(settings().urls)


def pip_files(environ: Mapping[str, str]) -> list[Path]:
    """pip's configuration files in the order in which pip reads them (pip documentation, "Configuration")."""
    own = environ.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return []
    home = Path(environ.get("HOME") or "~").expanduser()
    shared = [
        Path(folder) / "pip" / "pip.conf" for folder in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    ]
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    personal = [] if own and Path(own).exists() else [home / ".pip" / "pip.conf", user]
    return [
        *shared, Path("/etc/pip.conf"), *personal, Path(sys.prefix) / "pip.conf", *([Path(own)] if own else []),
    ]  # fmt: skip


def session(chosen: Settings | None = None) -> requests.Session:
    """A session that retries what may pass and trusts what the user's configuration trusts."""
    chosen = chosen or settings()
    opened = requests.Session()
    retry = Retry(total=4, backoff_factor=0.5, status_forcelist=(429, 500, 502, 503, 504))
    for scheme in ("https://", "http://"):
        opened.mount(scheme, HTTPAdapter(max_retries=retry))
    if chosen.certificates:
        opened.verify = chosen.certificates
    return opened


def _usual() -> str:
    """The index of those who configured none. Parsers of its pages take long to load, and most commands ask no index."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT  # noqa: PLC0415

    return PYPI_SIMPLE_ENDPOINT


def project_files(project: str) -> list[IndexFile]:
    """All files of a project, oldest version first; of equal names the first index's.

    Raises FetchError if no index has the project or none answers.
    """
    from pypi_simple import NoSuchProjectError, PyPISimple, UnsupportedContentTypeError  # noqa: PLC0415 -- as `_usual`

    chosen = settings()
    found: dict[str, IndexFile] = {}
    failures = []
    with session(chosen) as opened:
        for url in chosen.urls:
            try:
                page = PyPISimple(url, session=opened).get_project_page(project, timeout=TIMEOUT)
            except NoSuchProjectError:
                failures.append(f"{public(url)} has no project {project}.")
                continue
            except (requests.RequestException, UnsupportedContentTypeError, ValueError) as error:
                failures.append(f"{public(url)} did not answer about {project}: {_reason(error)}.")
                continue
            for package in page.packages:
                found.setdefault(package.filename, IndexFile.of(canonicalize_name(project), package))
    if not found:
        raise FetchError(
            failures or f"{project} cannot be looked up: the configuration forbids every package index.",
            do="check the network and the index settings of pip or uv, or give a folder that holds the files.",
        )
    return sorted(found.values(), key=lambda file: (_order(file.version), file.filename))


def find(project: str, filename: str) -> IndexFile:
    """The file of that name. Raises FetchError if no index lists it."""
    files = project_files(project)
    for file in files:
        if file.filename == filename:
            return file
    where = ", ".join(public(url) for url in indexes())
    raise FetchError(
        f"{filename} is not among the {len(files)} files of {project} on {where}.",
        do="give a folder that holds the file, or point pip's index-url to an index that is complete.",
    )


def metadata(file: IndexFile) -> str:
    """The METADATA of a wheel, read from the index without fetching the wheel where the index can serve parts.

    Raises FetchError if the wheel cannot be read or holds no METADATA.
    """
    return member(file, ".dist-info/METADATA").decode("utf-8", "replace")


def member(file: IndexFile, path: str) -> bytes:
    """One member of a wheel. A path that starts with `.dist-info/` is looked for in the wheel's own such folder.

    Raises FetchError if the wheel cannot be read or has no such member.
    """
    try:
        with session() as opened, remote(opened, file) as handle, zipfile.ZipFile(handle) as archive:
            names = [path]
            if path.startswith(".dist-info/"):
                names = [name for name in archive.namelist() if name.endswith(path) and name.count("/") == 1]
            if len(names) != 1 or names[0] not in archive.NameToInfo:
                raise FetchError(f"{file.filename} has no {path}.")
            return archive.read(names[0])
    except (requests.RequestException, OSError, zipfile.BadZipFile) as error:
        raise FetchError(
            f"{file.filename} could not be read from {public(file.url)}: {_reason(error)}."
        ) from error


def sdist_texts(file: IndexFile, wanted: Callable[[str], bool]) -> dict[str, str]:
    """Text files out of a source distribution, by path below its top folder; nothing is stored.

    Raises FetchError if it cannot be read, DigestError if its bytes are not those that the index announces.
    """
    found: dict[str, str] = {}
    try:
        with session() as opened, opened.get(file.url, timeout=TIMEOUT, stream=True) as answer:
            answer.raise_for_status()
            hashed = _Hashed(answer.raw)
            with tarfile.open(fileobj=hashed, mode="r|gz") as archive:
                for entry in archive:
                    path = entry.name.partition("/")[2]
                    if entry.isfile() and wanted(path) and (content := archive.extractfile(entry)):
                        found[path] = content.read().decode("utf-8", "replace")
            while hashed.read(_BLOCK):
                pass
    except (requests.RequestException, HTTPError, OSError, tarfile.TarError, EOFError) as error:
        raise FetchError(
            f"{file.filename} could not be read from {public(file.url)}: {_reason(error)}."
        ) from error
    if file.sha256 is not None and hashed.digest != file.sha256:
        raise DigestError(f"{file.filename} is {hashed.digest}, the index announces {file.sha256}.")
    return found


def public(url: str) -> str:
    """The address without user name, password, query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return urlunsplit((parts.scheme, host + (f":{parts.port}" if parts.port else ""), parts.path, "", ""))


def public_text(text: str) -> str:
    """A text with the user names and passwords taken out of its addresses."""
    return re.sub(r"(https?://)[^/@\s]+@", r"\1", text)


class _Readable(Protocol):
    def read(self, amt: int, /) -> bytes: ...


class _Hashed(io.RawIOBase):
    """A stream that hashes what is read from it."""

    def __init__(self, raw: _Readable) -> None:
        self._raw = raw
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        piece = self._raw.read(size)
        self._hash.update(piece)
        return piece

    @property
    def digest(self) -> Sha256:
        return Sha256(self._hash.hexdigest())


class _Ranges(io.RawIOBase):
    """A file on a server that answers Range requests."""

    def __init__(self, opened: requests.Session, url: str, size: int) -> None:
        self._session = opened
        self._url = url
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence])
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        last = min(self._at + len(buffer), self._size) - 1
        if last < self._at:
            return 0
        answer = self._session.get(self._url, headers={"Range": f"bytes={self._at}-{last}"}, timeout=TIMEOUT)
        answer.raise_for_status()
        piece = answer.content[: last - self._at + 1]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


@contextmanager
def remote(opened: requests.Session, file: IndexFile) -> Iterator[IO[bytes]]:
    """A file on an index as a seekable one; fetched whole only if the server refuses parts."""
    with opened.get(file.url, headers={"Range": "bytes=0-0"}, timeout=TIMEOUT, stream=True) as probe:
        probe.raise_for_status()
        length = probe.headers.get("Content-Range", "").rpartition("/")[2]
        size = whole_number(length) if probe.status_code == requests.codes.partial else None
        if size is not None:
            with io.BufferedReader(_Ranges(opened, file.url, size), _BLOCK) as handle:
                yield handle
            return
        with tempfile.TemporaryFile() as whole:
            for piece in probe.iter_content(_BLOCK):
                whole.write(piece)
            yield whole


class _PipParser(configparser.RawConfigParser):
    """Option names as pip normalises them."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr.lower().replace("_", "-").removeprefix("--")


def _pip_configuration(files: Iterable[Path]) -> dict[str, str]:
    """pip's options; a file pip itself would refuse is skipped, since pip will say so when it runs."""
    merged: dict[str, str] = {}
    for section in ("global", "download", "install"):
        for path in files:
            parser = _PipParser()
            try:
                parser.read(path, encoding="utf-8")
            except (configparser.Error, UnicodeDecodeError, OSError):
                continue
            if parser.has_section(section):
                merged.update(parser.items(section))
    return merged


def _without_name(word: str) -> str:
    """uv allows `name=https://…`."""
    name, equals, url = word.partition("=")
    return url if equals and "/" not in name and ":" not in name else word


def _order(version: str) -> tuple[int, Version | str]:
    try:
        return 1, Version(version)
    except ValueError:
        return 0, version


def _reason(error: Exception) -> str:
    """What went wrong in few words; requests puts addresses, possibly with passwords, into its messages."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return "it took too long"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error) or type(error).__name__
