"""A wheel of ours with other libraries in it: same name, same version; RECORD and ledger follow."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm121.errors import PackError
from sm121.pack.ledger import LEDGER_NAME, Origin
from sm121.pack.official import OfficialWheel
from sm121.pack.packing import copied, inflated_contents, packed_files, packed_text, write_members
from sm121.pack.storage import completed_file
from sm121.sources.disk import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sm121.pack.packing import Packed
    from sm121.values import Sha256

_SIGNATURES = ("RECORD", "RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The new wheel, complete under its name."""

    path: Path
    sha256: Sha256
    size: int


def has_ledger(wheel: OfficialWheel) -> bool:
    """Whether sm121 made this wheel."""
    return f"{wheel.dist_info}/{LEDGER_NAME}" in wheel.infos


def rewrite(
    wheel: Path, finished: Mapping[str, Path], into: Path, *, notes: Iterable[str] = (), epoch: int = 0
) -> Rewritten:
    """Write the wheel into the folder `into` with finished libraries in place of its own; `notes` join its ledger.

    All other members are copied as they lie. Raises PackError for a wheel without a ledger that names these
    libraries, before anything is written.
    """
    with OfficialWheel.open(wheel) as source, writing(into):
        contents = inflated_contents(source)
        name = f"{source.dist_info}/{LEDGER_NAME}"
        ledger = _ledger(source, name, finished)
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".packing-", dir=into) as scratch:
            ours = packed_files(finished, source.mode, Path(scratch))
            text = packed_text(name, _updated(ledger, ours, notes))
            gone = {*ours, name, *(f"{source.dist_info}/{each}" for each in _SIGNATURES)}
            packed = [
                *ours.values(),
                text,
                *(
                    copied(each, source, source.dist_info, contents[each].sha256)
                    for each in contents
                    if each not in gone
                ),
            ]
            with completed_file(into / wheel.name) as file:
                size, digest, _ = write_members(file, packed, source.dist_info, epoch)
    return Rewritten(into / wheel.name, digest, size)


def _ledger(wheel: OfficialWheel, name: str, finished: Mapping[str, Path]) -> dict[str, Any]:
    try:
        ledger = json.loads(wheel.read(name))
        known = {library["path"] for library in ledger["libraries"]}
        version = ledger["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise PackError(f"the ledger {name} cannot be read: {error}.", do="build the wheel again.") from error
    problems = [f"{name} does not name the library {path}." for path in sorted(set(finished) - known)]
    if version != 1:
        problems.append(f"{name} has version {version}, 1 was wanted.")
    if problems:
        raise PackError(problems, do="use the version of sm121 that made this wheel.")
    return dict(ledger)


def _updated(ledger: dict[str, Any], ours: Mapping[str, Packed], notes: Iterable[str]) -> bytes:
    for library in ledger["libraries"]:
        if packed := ours.get(library["path"]):
            library |= {"sha256": packed.sha256.hex, "size": packed.entry.size}
            if library["origin"] == Origin.OFFICIAL:
                library["origin"] = str(Origin.FINISHED)
    ledger["notes"] = [*ledger.get("notes", []), *notes]
    return (json.dumps(ledger, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
