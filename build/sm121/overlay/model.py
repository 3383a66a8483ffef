"""What an overlay is: a folder with `overlay.json` and, below `files`, the libraries that it brings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from packaging.version import Version

from sm121 import __version__
from sm121.errors import OverlayError, PinsError
from sm121.pins.reading import Table
from sm121.values import Sha256

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
DOCUMENT = "overlay.json"
FILES = "files"
_NO_DIGEST = Sha256("0" * 64)


@dataclass(frozen=True, slots=True)
class Piece:
    """One library: its path in the site folder, digest, size in bytes."""

    path: str
    sha256: Sha256
    size: int


@dataclass(frozen=True, slots=True)
class Overlay:
    """Libraries for one project, version and commit; `notes` are sentences about what they were made of."""

    project: str
    version: str
    """The installed version that it goes over, in full: `0.33.0+cu130.sm121`."""
    commit: str
    cpu: str
    pieces: tuple[Piece, ...]
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> Sha256:
        """Over what it goes over and what it brings."""
        content = [
            self.project,
            self.version,
            self.commit,
            *([each.path, each.sha256.hex] for each in self.pieces),
        ]
        return Sha256.of_bytes(json.dumps(content).encode())

    @property
    def stamped(self) -> str:
        """The version that an installation carries with it: `0.33.0+cu130.sm121.overlay.1f2e3d4c`, no release's name."""
        # A part of digits alone would be read as a number and lose its zeros.
        mark = f"overlay.x{self.digest.hex[:8]}"
        return f"{self.version}.{mark}" if "+" in self.version else f"{self.version}+{mark}"

    @property
    def name(self) -> str:
        """`vllm-0.33.0+cu130.sm121.overlay.1f2e3d4c`."""
        return f"{self.project}-{self.stamped}"

    def to_data(self) -> dict[str, object]:
        return {
            "format": FORMAT, "tool": f"sm121 {__version__}", "project": self.project, "version": self.version,
            "stamped": self.stamped, "commit": self.commit, "cpu": self.cpu, "notes": list(self.notes),
            "libraries": [{"path": p.path, "sha256": p.sha256.hex, "size": p.size} for p in self.pieces],
        }  # fmt: skip

    def to_json(self) -> bytes:
        return (json.dumps(self.to_data(), indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, name: str) -> Self:
        """Read it back strictly; OverlayError with every fault."""
        problems: list[str] = []
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise OverlayError(f"{name} is no JSON that can be read: {error}.") from error
        if not isinstance(content, dict):
            raise OverlayError(f"{name} should hold an object, found {type(content).__name__}.")
        table = Table(content, f"{name}:", problems)
        try:
            if (found := table.whole("format")) != FORMAT and not problems:
                raise OverlayError(
                    f"{name} has format {found}, wanted {FORMAT}.", do="use the sm121 that made it."
                )
            table.text("tool")
            stamped = table.text("stamped")
            pieces = []
            for row in table.each("libraries"):
                pieces.append(
                    Piece(row.text("path"), row.parsed("sha256", Sha256, _NO_DIGEST), row.whole("size"))
                )
                row.done()
            made = cls(
                table.text("project"), table.text("version"), table.text("commit"), table.text("cpu"), tuple(pieces),
                table.texts("notes"),
            )  # fmt: skip
            table.done()
        except PinsError as error:
            raise OverlayError(error.problems) from error
        problems += made.faults()
        if not problems and made.stamped != stamped:
            problems.append(f"{name}: its content is not what {stamped} stands for.")
        if problems:
            raise OverlayError(problems, do="make the overlay again, and copy its folder as a whole.")
        return made

    def faults(self) -> list[str]:
        """What must not be in an overlay."""
        faults = [
            f"{each.path!r} is no path of a library inside of a site folder."
            for each in self.pieces
            if not is_inside(each.path)
        ]
        if not self.pieces:
            faults.append("an overlay without a library lays nothing over anything.")
        if len({each.path for each in self.pieces}) != len(self.pieces):
            faults.append("an overlay names each library once.")
        try:
            if str(Version(self.version)) != self.version or ".overlay." in f".{Version(self.version).local}.":
                faults.append(f"{self.version} is not the version of a release as PEP 440 writes it.")
        except ValueError:
            faults.append(f"{self.version!r} is no version.")
        return faults


def is_inside(path: str) -> bool:
    """Whether a path with / between its parts stays below the folder that it is joined to, and has one spelling."""
    return not ({"", ".", ".."} & {*path.split("/")} or "\\" in path or "\0" in path)


def read_overlay(folder: Path) -> Overlay:
    """The overlay in `folder`, its files compared with what it says; OverlayError with every difference."""
    document = folder / DOCUMENT
    try:
        data = document.read_bytes()
    except OSError as error:
        raise OverlayError(
            f"{folder} is no overlay: {DOCUMENT} cannot be read ({error.strerror}).",
            do="name a folder that `sm121 overlay make` has made.",
        ) from error
    overlay = Overlay.from_json(data, str(document))
    problems = []
    for piece in overlay.pieces:
        file = folder / FILES / piece.path
        if not file.is_file() or file.is_symlink():
            problems.append(f"{file} is missing.")
        elif (found := Sha256.of_file(file)) != piece.sha256:
            problems.append(f"{file} should be {piece.sha256}, found {found}.")
    if problems:
        raise OverlayError(problems, do="make the overlay again, or copy its folder anew.")
    return overlay
