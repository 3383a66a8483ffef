"""Are all symbols that a library leaves undefined defined by somebody?"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sm121.findings import Finding, Verdict
from sm121.inspector.words import joined, listed, shown
from sm121.progress import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from sm121.inspector.rules import Libraries, Uncalled

_MOST = 20
"""Missing symbols of a library that are named one by one."""
_MISSING_BODY = "https://github.com/vllm-project/vllm/issues/28589"


@dataclass(frozen=True, slots=True)
class Needs:
    """What one library asks of others.

    `undefined` are its undefined symbols; `versioned` has those of them that a symbol version binds to a library, with
    that library and the version, `lazy` those that are looked up when they are first called.
    """

    library: str
    undefined: frozenset[str]
    needed: tuple[str, ...]
    versioned: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    lazy: frozenset[str] = frozenset()


def read_nm(line: str) -> str | None:
    """The symbol of a line of `nm -D` that names an undefined one, without its version."""
    match = re.fullmatch(r"\s*[UwWvV]\s+(\S+?)(?:@.*)?\s*", line)
    return match[1] if match else None


def judge_symbols(needs: Needs, siblings: Collection[str], libraries: Libraries) -> Iterator[Finding]:
    """Undefined symbols that neither a sibling nor a known provider defines; `siblings` are what siblings define.

    A plain C name that no rule knows may be anybody's: it is a warning, a C++ name is a failure.
    """
    missing: list[str] = []
    strange: list[str] = []
    unasked: list[tuple[str, str]] = []
    uncalled: dict[Uncalled, list[str]] = {}
    for symbol in sorted(needs.undefined - needs.versioned.keys()):
        if symbol in siblings or libraries.provider(symbol, needs.needed):
            continue
        owner = libraries.belongs_to(symbol)
        if owner is not None and owner.needs:
            unasked.append((symbol, owner.name))
        elif owner is None and symbol in needs.lazy and (known := libraries.never_called(symbol)):
            uncalled.setdefault(known, []).append(symbol)
        elif owner is None:
            (missing if symbol.startswith("_Z") else strange).append(symbol)
    for symbol in missing[:_MOST]:
        if known := libraries.never_called(symbol):
            yield Finding(
                "symbols.undefined", needs.library, Verdict.FAIL,
                f"asks for {shown(symbol, 300)} when it is loaded; nothing defines that, as nobody calls it",
                "functions that are looked up when they are called",
                "Link without -z now, compile without -fno-plt.", known.source,
            )  # fmt: skip
            continue
        yield Finding(
            "symbols.undefined", needs.library, Verdict.FAIL,
            f"asks for {shown(symbol, 300)}, which nothing here defines: a source file was left out of the build",
            "a definition in a library of the same set",
            "Look for the feature whose macro is on without its sources.", _MISSING_BODY,
        )  # fmt: skip
    if len(missing) > _MOST:
        got = f"asks for {len(missing) - _MOST} more symbols that nothing here defines"
        yield Finding("symbols.undefined", needs.library, Verdict.FAIL, got, source=_MISSING_BODY)
    if strange:
        got = f"asks for {plural(len(strange), 'symbol')} of nobody that is known here: {listed(strange)}"
        yield Finding("symbols.unknown", needs.library, Verdict.WARN, got, "a definition, or a version")
    for owner_name in sorted({name for _, name in unasked}):
        symbols = [symbol for symbol, name in unasked if name == owner_name]
        yield Finding(
            "symbols.unasked", needs.library, Verdict.INFO,
            f"asks for {plural(len(symbols), 'symbol')} of {owner_name} without naming a library of it "
            f"({listed(symbols, 2)}): {owner_name} must be loaded before it",
        )  # fmt: skip
    for known, symbols in uncalled.items():
        got = f"names {plural(len(symbols), 'function')} that nobody defines and nobody calls: {known.why}"
        yield Finding("symbols.uncalled", needs.library, Verdict.INFO, got, source=known.source)
    if not missing:
        count = len(needs.undefined) - sum(map(len, uncalled.values()))
        yield Finding(
            "symbols.undefined", needs.library, Verdict.PASS, f"all {count} undefined symbols have a home"
        )


def explain_loader(
    log: str, libraries: Libraries, *, gpu: bool, built: str = "", found: str = ""
) -> list[Finding]:
    """What the dynamic loader's complaints in `log` mean.

    `gpu` says whether the machine has a GPU and its driver; `built` and `found` are the versions of torch that the
    library was built with and that is installed.
    """
    findings = []
    for name in re.findall(r"(\S+): cannot open shared object file", log):
        driver = name in libraries.driver_only
        if driver and not gpu:
            got = f"{name} belongs to the driver, which a machine without a GPU does not have"
            findings.append(Finding("loader.library", name, Verdict.INFO, got))
            continue
        advice = (
            "Install the driver." if driver else "Install the package that brings it, of the same CUDA major."
        )
        got, wanted = f"{shown(name)} is missing", "a library that can be loaded"
        findings.append(Finding("loader.library", shown(name), Verdict.FAIL, got, wanted, advice))
    versions = joined([text for text in (built and f"built with {built}", found and f"found {found}") if text])
    for symbol in re.findall(r"undefined symbol: (\S+)", log):
        owner = libraries.belongs_to(symbol)
        whose = owner.name if owner else "its own package"
        got = f"{shown(symbol)} of {whose} is missing" + (f" ({versions})" if versions else "")
        wanted = f"the version of {whose} that the library was built with"
        findings.append(Finding("loader.symbol", shown(symbol), Verdict.FAIL, got, wanted, "Use one for both."))
    return findings
