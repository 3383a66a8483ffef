"""Is what is installed the wheel that it should be, file by file?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sm121.artifact import compare_with_wheel
from sm121.findings import Finding, Verdict
from sm121.inspector.words import listed, shown
from sm121.progress import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sm121.artifact import Distribution


def judge_installed_wheel(wheel: Distribution, sha256: str, found: Sequence[Distribution]) -> Iterator[Finding]:
    """Compare the distribution of `wheel`, a file of digest `sha256`, with those of its name that are installed."""
    subject = f"{wheel.name} {wheel.version}"
    mine = [item for item in found if item.key == wheel.key and not item.vendored]
    if not mine:
        yield Finding("image.wheel", subject, Verdict.FAIL, "is not installed", f"the wheel sha256:{sha256}")
    for item in mine:
        result = compare_with_wheel(wheel, item)
        faults = [
            f"{plural(len(paths), 'file')} {what}: {listed(paths, 3)}"
            for what, paths in (
                ("differ", result.differing),
                ("are missing", result.missing),
                ("were added", result.added),
            )
            if paths
        ]
        stated = (item.direct_url.hashes.get("sha256", "") if item.direct_url else "") or sha256
        if stated != sha256:
            faults.append(f"the installer wrote down sha256:{shown(stated)}")
        where = shown(item.site)
        if faults:
            got = f"in {where} is not the wheel sha256:{sha256}: {'; '.join(faults)}"
            yield Finding("image.wheel", subject, Verdict.FAIL, got, "the same files", "Install the wheel anew.")
        elif not result.equal:
            got = f"in {where}: no file could be compared"
            yield Finding("image.wheel", subject, Verdict.UNKNOWN, got, "files with hashes")
        else:
            got = f"in {where} is the wheel sha256:{sha256}: {plural(result.equal, 'file')} equal"
            yield Finding("image.wheel", subject, Verdict.PASS, got)
