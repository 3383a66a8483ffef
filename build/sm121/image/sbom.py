"""The bill of materials of an image, from what is in it: CycloneDX 1.6.

CycloneDX rather than SPDX: scanners of images (Grype, Trivy, Dependency-Track) read it without conversion, and a
well-kept library writes and validates it. Equal images give equal bytes: no random serial number, no time of day.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import BytesParser
from typing import TYPE_CHECKING

from sm121 import __version__
from sm121.artifact.installed import Survey
from sm121.artifact.member import LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cyclonedx.model.component import Component

    from sm121.artifact import Image, Member
    from sm121.values import Sha256

_STATUS = "var/lib/dpkg/status"
_STATUS_PARTS = "var/lib/dpkg/status.d/"
_DOCUMENTS = frozenset({"METADATA", "PKG-INFO", "direct_url.json"})
_RELEASE = ("etc/os-release", "usr/lib/os-release")
_NAMESPACE = uuid.UUID("6f0f0dd5-7d3b-5d0e-9d53-2c4b7f0a1f3e")


@dataclass(frozen=True, slots=True)
class Part:
    """A package in an image: `kind` is pypi or deb."""

    kind: str
    name: str
    version: str
    license: str = ""
    sha256: str = ""
    """Of the wheel it was installed from, where the installer wrote it down."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What an image holds, by its own words."""

    parts: tuple[Part, ...]
    system: str
    """`debian-13`, "" where the image does not say."""


def contents_of(image: Image) -> Contents:
    """Read the installed distributions and system packages of an image in one pass."""
    seen, status, release = Survey(image, hashes=False), list[bytes](), dict[str, bytes]()
    for member in image.members(_wanted):
        if member.path in _RELEASE:
            release[member.path] = member.read()
        elif member.path == _STATUS or member.path.startswith(_STATUS_PARTS):
            status.append(_read(member))
        else:
            seen.see(member)
    system = _release(next((release[path] for path in _RELEASE if path in release), b""))
    parts = [
        Part(
            "pypi", dist.key, dist.version, dist.metadata.license if len(dist.metadata.license) < 80 else "",
            dist.direct_url.hashes.get("sha256", "") if dist.direct_url else "",
        )
        for dist in seen.distributions()
        if not dist.vendored and dist.name and dist.version
    ]  # fmt: skip
    parts += [part for data in status for part in _debian(data)]
    # Of a package that is there twice, the one of which more is known.
    ordered = sorted(parts, key=lambda part: (part.kind, part.name, part.version, part.sha256, part.license))
    found = {(part.kind, part.name, part.version): part for part in ordered}
    return Contents(tuple(found.values()), system)


def _wanted(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    described = folder.endswith((".dist-info", ".egg-info")) and name in _DOCUMENTS
    return (
        described or path in {_STATUS, *_RELEASE} or path.startswith(_STATUS_PARTS) or path.endswith(".egg-info")
    )


def _read(member: Member) -> bytes:
    return member.read(LIMITS.record)


def _release(data: bytes) -> str:
    table = dict(line.split("=", 1) for line in data.decode("utf-8", "replace").splitlines() if "=" in line)
    name, version = (table.get(key, "").strip("\"'") for key in ("ID", "VERSION_ID"))
    return f"{name}-{version}" if name and version else name


def _debian(data: bytes) -> Iterator[Part]:
    """Packages that dpkg has installed (deb-control(5))."""
    for paragraph in data.split(b"\n\n"):
        if not paragraph.strip():
            continue
        fields = BytesParser().parsebytes(paragraph.strip() + b"\n\n", headersonly=True)
        name, version = str(fields.get("Package", "")), str(fields.get("Version", ""))
        state = str(fields.get("Status", "install ok installed"))
        if name and version and "not-installed" not in state and "config-files" not in state:
            yield Part("deb", name, version)


def sbom(
    name: str, digest: Sha256, contents: Contents, *, architecture: str, epoch: int,
    hashes: Mapping[tuple[str, str], str] | None = None,
) -> bytes:  # fmt: skip
    """The document. `hashes` are sha256 of wheels by (name, version), where a record knows them. Pure."""
    # The library takes as long to load as a small image to read; other verbs do without it.
    from cyclonedx.model import HashAlgorithm, HashType, Property  # noqa: PLC0415
    from cyclonedx.model.bom import Bom  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType  # noqa: PLC0415
    from cyclonedx.output.json import JsonV1Dot6  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    known = hashes or {}
    root = Component(
        name=name.rpartition("/")[2].partition(":")[0], version=str(digest), type=ComponentType.CONTAINER,
        bom_ref=f"oci:{digest}",
        purl=PackageURL("oci", None, name.rpartition("/")[2].partition(":")[0], str(digest), {"arch": architecture}),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.hex)],
    )  # fmt: skip
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, digest.hex), version=1)
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    bom.metadata.component = root
    bom.metadata.properties.add(Property(name="sm121:tool", value=f"sm121 {__version__}"))
    components = [
        _component(part, contents.system, architecture, part.sha256 or known.get((part.name, part.version), ""))
        for part in contents.parts
    ]
    for component in components:
        bom.components.add(component)
    bom.register_dependency(root, components)
    return (JsonV1Dot6(bom).output_as_string(indent=2) + "\n").encode()


def _component(part: Part, system: str, architecture: str, sha256: str) -> Component:
    from cyclonedx.contrib.license.factories import LicenseFactory  # noqa: PLC0415
    from cyclonedx.model import HashAlgorithm, HashType  # noqa: PLC0415
    from cyclonedx.model.component import Component as Made  # noqa: PLC0415
    from cyclonedx.model.component import ComponentType  # noqa: PLC0415
    from packageurl import PackageURL  # noqa: PLC0415

    if part.kind == "deb":
        distribution = system.partition("-")[0] or "debian"
        qualifiers = {"arch": architecture, **({"distro": system} if system else {})}
        purl = PackageURL("deb", distribution, part.name, part.version, qualifiers)
    else:
        purl = PackageURL("pypi", None, part.name, part.version)
    licenses = [LicenseFactory().make_from_string(part.license)] if part.license else []
    return Made(
        name=part.name, version=part.version, type=ComponentType.LIBRARY, bom_ref=purl.to_string(), purl=purl,
        licenses=licenses, hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
    )  # fmt: skip
