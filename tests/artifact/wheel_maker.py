"""Makes small wheels, right ones and wrong ones."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

METADATA = b"""\
Metadata-Version: 2.4
Name: thing
Version: 1.0
Requires-Python: >=3.11
License-Expression: Apache-2.0
Requires-Dist: torch==2.14.0
Requires-Dist: numpy; extra == "more"
Provides-Extra: more

A thing.
"""
WHEEL = b"Wheel-Version: 1.0\nGenerator: maker (1)\nRoot-Is-Purelib: false\nTag: cp38-abi3-linux_aarch64\n"
VERSION_MODULE = b"""\
from __future__ import annotations
version: str
__version__ = version = '1.0'
__version_tuple__ = (1, 0)
__commit_id__ = commit_id = 'gabc1234'
cuda: str = '13.0'
raise SystemExit('this must never run')
"""
FILES = {
    "thing/__init__.py": b"",
    "thing/_version.py": VERSION_MODULE,
    "thing/_C.abi3.so": bytes(range(256)) * 40,
    "thing-1.0.dist-info/METADATA": METADATA,
    "thing-1.0.dist-info/WHEEL": WHEEL,
    "thing-1.0.dist-info/entry_points.txt": b"[console_scripts]\nthing = thing:main\n",
}
RECORD = "thing-1.0.dist-info/RECORD"
NAME = "thing-1.0-cp38-abi3-manylinux_2_28_aarch64.whl"


def hashed(data: bytes, algorithm: str = "sha256") -> str:
    digest = hashlib.new(algorithm, data).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def record_of(files: Mapping[str, bytes], record: str = RECORD) -> bytes:
    rows = [f"{path},{hashed(data)},{len(data)}" for path, data in files.items()]
    return "\n".join([*rows, f"{record},,", ""]).encode()


def wheel(
    folder: Path, files: Mapping[str, bytes] | None = None, record: bytes | None = None, name: str = NAME
) -> Path:
    """Write a wheel; RECORD is made from `files` unless it is given (b"" leaves it out)."""
    files = FILES if files is None else files
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, data in files.items():
            archive.writestr(inside, data)
        record = record_of(files) if record is None else record
        if record:
            archive.writestr(RECORD, record)
    return path
