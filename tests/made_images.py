"""Makes small bases, wheels of ours with their manifests, locked sets, and images of them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
import tarfile
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm121.findings import Verdict
from sm121.image.daemonless import ImageRequest
from sm121.manifest import Command, Host, Input, Inspection, Manifest, Output, Subject, Tool
from sm121.pack.ledger import Patch
from sm121.pins import FilePin
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
GLIBC = b"GNU C Library (Debian GLIBC 2.41-12) stable release version 2.41.\n"
PASSWD = b"root:x:0:0:root:/root:/bin/bash\n"


def elf(machine: int = 0xB7) -> bytes:
    """The header of a 64-bit program."""
    return b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, machine) + bytes(44)


def base_files(python: str = "3.12", machine: int = 0xB7) -> dict[str, bytes | str]:
    """A base with a Python, glibc and users; a string is a link's target."""
    return {
        "etc/passwd": PASSWD,
        "etc/group": b"root:x:0:\n",
        "etc/os-release": b'ID=debian\nVERSION_ID="13"\n',
        "lib": "usr/lib",
        "usr/bin/python3": f"python{python}",
        f"usr/bin/python{python}": elf(machine),
        f"usr/lib/python{python}/os.py": b"# os\n",
        "usr/lib/aarch64-linux-gnu/libc.so.6": elf(machine) + GLIBC,
        "var/lib/dpkg/status": b"Package: libc6\nStatus: install ok installed\nVersion: 2.41-12\n\n",
    }


def tar_of(files: Mapping[str, bytes | str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in sorted(files.items()):
            header = tarfile.TarInfo(path)
            if isinstance(content, str):
                header.type, header.linkname = tarfile.SYMTYPE, content
                archive.addfile(header)
            else:
                header.size, header.mode = len(content), 0o755
                archive.addfile(header, io.BytesIO(content))
    return out.getvalue()


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def base_layout(
    folder: Path, files: Mapping[str, bytes | str] | None = None, *, architecture: str = "arm64",
    variant: str = "", run: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """Write an OCI layout of one plain layer; gives its digest."""
    layer = tar_of(base_files() if files is None else files)
    config = json.dumps(
        {
            "architecture": architecture, "os": "linux", "config": dict(run or {"Cmd": ["bash"]}),
            **({"variant": variant} if variant else {}),
            "rootfs": {"type": "layers", "diff_ids": [sha256(layer)]}, "history": [{"created_by": "made"}],
        }
    ).encode()  # fmt: skip

    def descriptor(kind: str, data: bytes) -> dict[str, Any]:
        return {"mediaType": kind, "digest": sha256(data), "size": len(data)}

    manifest = json.dumps(
        {
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": descriptor(OCI_CONFIG, config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    ).encode()  # fmt: skip
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for data in (layer, config, manifest):
        (blobs / sha256(data).removeprefix("sha256:")).write_bytes(data)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(
        json.dumps({"schemaVersion": 2, "manifests": [descriptor(OCI_MANIFEST, manifest)]})
    )
    return sha256(manifest)


def wheel_file(
    folder: Path, name: str, version: str, files: Mapping[str, bytes], tag: str = "py3-none-any"
) -> Path:
    """A right wheel of a distribution."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    every = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: made\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for path, data in every.items()
    ]
    every[f"{info}/RECORD"] = "".join(f"{row}\n" for row in [*rows, f"{info}/RECORD,,"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, data in every.items():
            archive.writestr(zipfile.ZipInfo(inside), data)
    return path


OUR_FILES = {
    "thing/__init__.py": b"",
    "thing/_version.py": b"__version__ = version = '1.0+cu130.sm121'\n__commit_id__ = commit_id = 'gabc1234'\n",
    "thing-1.0+cu130.sm121.dist-info/entry_points.txt": b"[console_scripts]\nvllm = thing:main\n",
}


def our_wheel(folder: Path, files: Mapping[str, bytes] | None = None, verdict: Verdict = Verdict.PASS) -> Path:
    """A published wheel of the project `thing`, with its manifest beside it."""
    path = wheel_file(folder, "thing", "1.0+cu130.sm121", OUR_FILES if files is None else files)
    pin = FilePin("thing", "1.0", "thing-1.0.tar.gz", 1, Sha256.of_bytes(b"sdist"), "index")
    manifest = Manifest(
        subject=Subject("thing", "1.0+cu130.sm121", "1.0", "cu130", "12.1", "aarch64", "any"),
        plan=Sha256.of_bytes(b"plan"),
        inputs=(Input.of(pin, "sources"),),
        patches=(Patch("0001.patch", Sha256.of_bytes(b"patch"), "APPLIES"),),
        tools=(Tool("nvcc", "13.0.88"),),
        host=Host("Linux", "x86_64", 2, 1 << 30, "3.11.7"),
        commands=(Command("libraries", ("ninja",)),),
        libraries=(),
        outputs=(Output(path.name, Sha256.of_file(path), path.stat().st_size),),
        inspection=Inspection(verdict, Sha256.of_bytes(b"report")),
    )
    path.with_name(f"{path.name}.manifest.json").write_bytes(manifest.to_json())
    return path


def lock_file(
    path: Path, wheels: list[Path], *, python: str = "3.12", cpu: str = "aarch64", line: str = "cu130"
) -> Path:
    """A lock over wheels that are files."""
    text = [
        f"# Runtime environment of line {line} for vLLM 0.33.0: {len(wheels)} wheels, 1 bytes.",
        f"# Linux {cpu}, glibc 2.34 or newer, Python {python}. vLLM itself is left out:",
        "# install the wheel that was built, with --no-deps.",
    ]
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]
        text.append(
            f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{Sha256.of_file(wheel).hex}  # via asked for"
        )
    path.write_text("\n".join(text) + "\n")
    return path


@dataclass(frozen=True)
class World:
    """Everything that an image is made of, in one folder."""

    root: Path
    base: str
    wheel: Path
    lock: Path
    mirror: Path

    @classmethod
    def make(cls, root: Path, files: Mapping[str, bytes] | None = None) -> World:
        mirror = root / "mirror"
        wheels = [
            wheel_file(mirror, "one", "1.0", {"one/__init__.py": b"1"}),
            wheel_file(mirror, "two-parts", "2.0", {"two/__init__.py": b"2", "two/data.bin": bytes(5000)}),
        ]
        digest = base_layout(root / "base")
        return cls(
            root, f"oci:{root / 'base'}@{digest}", our_wheel(root / "dist", files),
            lock_file(root / "cu130.lock", wheels), mirror,
        )  # fmt: skip

    def request(self, **changes: Any) -> ImageRequest:
        given = {
            "base": self.base, "wheels": (self.wheel,), "lock": self.lock, "mirror": self.mirror, "epoch": 1_700_000_000,
        }  # fmt: skip
        return ImageRequest(**{**given, **changes})
