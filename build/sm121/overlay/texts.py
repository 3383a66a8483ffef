"""The texts of an installation that say which version it is, with an overlay on it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from packaging.version import Version

from sm121.errors import PackError
from sm121.pack.ledger import LEDGER_NAME
from sm121.pack.version_module import restamped_version_module

if TYPE_CHECKING:
    from sm121.overlay.installed import Installed
    from sm121.overlay.model import Overlay


def overlaid_texts(overlay: Overlay, installed: Installed) -> dict[str, bytes]:
    """Version module, METADATA and ledger with the overlay, by their present paths. PackError for an unknown shape."""
    site, info, was, becomes = (
        installed.site,
        installed.info,
        Version(installed.version),
        Version(overlay.stamped),
    )
    module = restamped_version_module((site / installed.module).read_bytes(), was, becomes, installed.module)
    made = {
        installed.module: module,
        f"{info}/METADATA": _metadata((site / info / "METADATA").read_bytes(), overlay),
    }
    if has_ledger(installed):
        made[f"{info}/{LEDGER_NAME}"] = _ledger((site / info / LEDGER_NAME).read_bytes(), overlay)
    return made


def _metadata(data: bytes, overlay: Overlay) -> bytes:
    head, blank, body = data.partition(b"\n\n")
    lines = head.split(b"\n")
    places = [number for number, line in enumerate(lines) if line.lower().startswith(b"version:")]
    if len(places) != 1:
        raise PackError(f"METADATA should have one Version line, found {len(places)}.")
    end = b"\r" if lines[places[0]].endswith(b"\r") else b""
    lines[places[0]] = f"Version: {overlay.stamped}".encode() + end
    return b"\n".join(lines) + blank + body


def _ledger(data: bytes, overlay: Overlay) -> bytes:
    """The wheel's ledger with the libraries that are there now, and what they are."""
    try:
        content = json.loads(data)
        brought = {piece.path: piece for piece in overlay.pieces}
        for library in content["libraries"]:
            if piece := brought.get(library["path"]):
                library.update(origin="overlay", sha256=piece.sha256.hex, size=piece.size)
        content["wheel_version"] = overlay.stamped
        content["overlay"] = overlay.to_data()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PackError(f"{LEDGER_NAME} cannot be read: {error!r}.") from error
    return (json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def has_ledger(installed: Installed) -> bool:
    """Whether the installed wheel is one of ours."""
    return f"{installed.info}/{LEDGER_NAME}" in installed.rows
