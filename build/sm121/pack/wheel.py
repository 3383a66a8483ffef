"""Assemble a wheel: our libraries, the other parts from the official wheel of the same version.

The result depends on its inputs alone: members sorted, one time stamp, fixed permissions. What we deflate follows the
zlib of this machine, which is why `Assembled.zlib` names it.
"""

from __future__ import annotations

import tempfile
import zlib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from sm121.errors import PackError
from sm121.findings import Verdict
from sm121.pack.checks import judge_grafts
from sm121.pack.ledger import LEDGER_NAME, Library, MadeWith, Origin, ledger_text
from sm121.pack.metadata import stamped_metadata, wheel_text
from sm121.pack.official import OfficialWheel
from sm121.pack.packing import Member, copied, inflated_contents, packed_files, packed_text, write_members
from sm121.pack.platform_tag import PlatformTag, elf_machine
from sm121.pack.storage import completed_file
from sm121.pack.version_module import stamped_version_module
from sm121.sources.disk import writing
from sm121.values import Sha256

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sm121.pack.official import Content
    from sm121.pack.packing import Packed
    from sm121.pack.stamp import Stamp

_RECORDS = ("METADATA", "WHEEL", "RECORD", "RECORD.jws", "RECORD.p7s", LEDGER_NAME)
"""What is written anew, and signatures that would cover the old RECORD."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A complete wheel, not yet published. `libraries` holds the ones left out as well."""

    path: Path
    sha256: Sha256
    size: int
    stamp: Stamp
    platform_tag: PlatformTag
    members: tuple[Member, ...]
    libraries: tuple[Library, ...]
    zlib: str

    @property
    def filename(self) -> str:
        return self.path.name


def assemble(
    official: Path,
    replaced: Mapping[str, Path],
    left_out: Collection[str],
    added: Mapping[str, bytes],
    stamp: Stamp,
    platform_tag: PlatformTag,
    into: Path,
    *,
    made_with: MadeWith,
    patched: Mapping[str, bytes] | None = None,
    finished: Collection[str] = (),
    requirements: Mapping[str, str] | None = None,
    version_module: str = "",
    epoch: int = 0,
) -> Assembled:
    """Write the wheel into the folder `into`, under its full name, and describe it.

    `official` is the hashed wheel of the same version; `replaced` maps paths in it to our libraries, those in
    `finished` being upstream's own with machine code for PTX; `left_out` are paths that do not come along;
    `added` are further small files by path, `patched` files of upstream's that patches changed. `requirements` maps the
    beginnings of upstream's Requires-Dist to what stands there instead. `version_module`
    defaults to `<project>/_version.py`. `epoch` is the one time of all members, in seconds (SOURCE_DATE_EPOCH), 1980
    at the earliest.

    Raises PackError with every fault of the request before anything is written.
    """
    with OfficialWheel.open(official) as wheel, writing(into):
        contents = inflated_contents(wheel)
        _check(
            wheel, contents, replaced=replaced, left_out=left_out, added=added, patched=patched or {},
            stamp=stamp, platform_tag=platform_tag, finished=finished,
        )  # fmt: skip
        module = version_module or f"{stamp.distribution}/_version.py"
        tags = {f"{tag.interpreter}-{tag.abi}-{platform_tag.tag}" for tag in wheel.tags}
        texts = {
            **added,
            **(patched or {}),
            module: stamped_version_module(wheel.read(module), stamp, module),
            f"{stamp.dist_info}/METADATA": stamped_metadata(
                wheel.read(f"{wheel.dist_info}/METADATA"), stamp, requirements or {}
            ),
            f"{stamp.dist_info}/WHEEL": wheel_text(tags),
        }
        gone = {*texts, *replaced, *left_out, *(f"{wheel.dist_info}/{name}" for name in _RECORDS)}
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".packing-", dir=into) as scratch:
            ours = packed_files(replaced, wheel.mode, Path(scratch))
            libraries = _libraries(contents, ours, left_out, finished)
            origin = (official.name, Sha256.of_file(official))
            texts[f"{stamp.dist_info}/{LEDGER_NAME}"] = ledger_text(
                stamp, platform_tag, origin, made_with, libraries
            )
            packed = [
                *ours.values(),
                *(packed_text(name, data) for name, data in texts.items()),
                *(
                    copied(name, wheel, stamp.dist_info, contents[name].sha256)
                    for name in contents
                    if name not in gone
                ),
            ]
            path = into / f"{stamp.distribution}-{stamp.version}-{wheel.abi}-{platform_tag.tag}.whl"
            with completed_file(path) as file:
                size, digest, members = write_members(file, packed, stamp.dist_info, epoch)
    return Assembled(path, digest, size, stamp, platform_tag, members, libraries, zlib.ZLIB_RUNTIME_VERSION)


def _check(
    wheel: OfficialWheel,
    contents: Mapping[str, Content],
    *,
    replaced: Mapping[str, Path],
    left_out: Collection[str],
    added: Mapping[str, bytes],
    patched: Mapping[str, bytes],
    stamp: Stamp,
    platform_tag: PlatformTag,
    finished: Collection[str],
) -> None:
    problems = []
    if (canonicalize_name(wheel.distribution), wheel.version) != (canonicalize_name(stamp.project), stamp.base):
        problems.append(
            f"the official wheel of {stamp.project} {stamp.base} was wanted, found {wheel.path.name}."
        )
    libraries = [name for name, content in contents.items() if content.is_elf]
    for verb, names in (("replaced", replaced), ("left out", left_out)):
        for name in sorted(set(names) - set(libraries)):
            near = get_close_matches(name, libraries, n=1)
            hint = f" (is {near[0]} meant?)" if near else ""
            problems.append(f"{name} was to be {verb}, but {wheel.path.name} has no such library{hint}.")
    problems += [f"{name} is both replaced and left out." for name in sorted(set(replaced) & set(left_out))]
    problems += [
        f"{name} is called finished, but nothing replaces it." for name in sorted(set(finished) - set(replaced))
    ]
    problems += [
        f"{name} was to be added, but the official wheel has a file of that name."
        for name in sorted(set(added) & set(contents))
    ]
    problems += [
        f"{name} was to be patched, but the official wheel has no such text file."
        for name in sorted(patched)
        if name not in contents or contents[name].is_elf or ".dist-info/" in name
    ]
    problems += [
        f"{name} was to be added, but a wheel's own records are written here."
        for name in sorted(added)
        if ".dist-info/" in name
    ]
    problems += [
        each.message
        for each in judge_grafts(stamp.project, sorted({*contents, *added} - set(left_out)))
        if each.verdict is Verdict.FAIL
    ]
    for name, path in sorted(replaced.items()):
        machine = _machine_of(path)
        if machine != platform_tag.cpu:
            problems.append(
                f"{path}, to replace {name}, should be a library for {platform_tag.cpu}, found {machine}."
            )
    if problems:
        raise PackError(problems, do="correct the lists of extensions; nothing was written.")


def _machine_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            start = file.read(20)
    except OSError as error:
        return f"nothing that can be read ({error.strerror})"
    return elf_machine(start)


def _libraries(
    contents: Mapping[str, Content],
    ours: Mapping[str, Packed],
    left_out: Collection[str],
    finished: Collection[str],
) -> tuple[Library, ...]:
    found = []
    for name in sorted(name for name, content in contents.items() if content.is_elf):
        if name in ours:
            origin = Origin.FINISHED if name in finished else Origin.SOURCE
            found.append(Library(name, origin, ours[name].sha256, ours[name].entry.size))
        else:
            origin = Origin.LEFT_OUT if name in left_out else Origin.OFFICIAL
            found.append(Library(name, origin, contents[name].sha256, contents[name].size))
    return tuple(found)
