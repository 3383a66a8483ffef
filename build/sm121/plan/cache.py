"""Which compiler cache a build uses, as `--cache` names it: `[ccache+|sccache+]URL`, or a program's name alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Self
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping


class CacheProgram(StrEnum):
    """A compiler cache. Read about the difference in docs/beyond-one-machine.md."""

    CCACHE = "ccache"
    SCCACHE = "sccache"


_SCHEMES: Mapping[str, tuple[CacheProgram, ...]] = {
    "redis": (CacheProgram.CCACHE, CacheProgram.SCCACHE),
    "rediss": (CacheProgram.SCCACHE,),
    "s3": (CacheProgram.SCCACHE,),
    "file": (CacheProgram.CCACHE,),
    "http": (CacheProgram.CCACHE,),
}
"""Scheme to the programs that speak it, the one that is used where none is named first (4.14 and 0.16, 2026-11-30)."""

_S3_OPTIONS = {"region", "endpoint", "tls", "anonymous"}
FORMS = (
    "none, ccache, sccache, redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss://..., file:///FOLDER, "
    "http://HOST[:PORT]/PATH, s3://BUCKET[/PREFIX]?region=NAME[&endpoint=HOST][&tls=no][&anonymous=yes], "
    "each URL also as ccache+URL or sccache+URL"
)


@dataclass(frozen=True, slots=True)
class CompilerCache:
    """A cache program and where it keeps what it has: `url` is "" for the scratch folder alone."""

    program: CacheProgram | None
    url: str = field(default="", repr=False)
    read_only: bool = False

    @classmethod
    def parse(cls, text: str, *, read_only: bool = False) -> Self:
        """Read what `--cache` says; ValueError with what is wrong, never with a password."""
        if text == "none":
            if read_only:
                raise ValueError("--cache-read-only was given, and there is no cache to read")
            return cls(None)
        if text in {*CacheProgram}:
            return cls(CacheProgram(text), read_only=read_only)
        match = re.fullmatch(r"(?:(ccache|sccache)\+)?((\w+)://.*)", text, re.DOTALL)
        if not match:
            raise ValueError(f"there is no cache {_told(_hidden(text))!r}; there are {FORMS}")
        named, url, scheme = match.groups()
        if scheme not in _SCHEMES:
            raise ValueError(f"a cache at {scheme}:// is not known; there are {FORMS}")
        program = CacheProgram(named) if named else _SCHEMES[scheme][0]
        if program not in _SCHEMES[scheme]:
            raise ValueError(f"{program} keeps nothing at {scheme}://; leave `{program}+` out")
        _check(url)
        return cls(program, url, read_only)

    @property
    def name(self) -> str:
        """As it may be shown and kept, and parsed again: without a user's name and password."""
        if self.program is None:
            return "none"
        program = "" if self.url and _SCHEMES[self.scheme][0] is self.program else str(self.program)
        where = _hidden(self.url)
        return f"{program}+{where}" if program and where else program or where

    def __str__(self) -> str:
        return f"{self.name}, read only" if self.read_only else self.name

    @property
    def shared(self) -> bool:
        """Whether other machines can read it."""
        return bool(self.url)

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0]

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    def address(self) -> tuple[str, int] | None:
        """Host and port to knock at, where the URL names them."""
        if self.scheme not in {"redis", "rediss", "http"}:
            return None
        parts = self.parts
        return parts.hostname or "", parts.port or {"http": 80}.get(self.scheme, 6379)

    @property
    def login(self) -> tuple[str, str]:
        """User and password; a lone word is the password, as Redis has it."""
        user, password = unquote(self.parts.username or ""), unquote(self.parts.password or "")
        return (user, password) if password else ("", user)

    @property
    def options(self) -> dict[str, str]:
        """What stands behind the question mark."""
        return {name: values[-1] for name, values in parse_qs(self.parts.query).items()}


def _hidden(text: str) -> str:
    """Without what stands before an @: a name, a password."""
    return re.sub(r"[^/\s]*@", "", text)


def _told(url: str) -> str:
    """A wrong URL as messages show it: also without values and what follows a sign that no URL has."""
    shown = re.sub(r"//.*@", "//", url, flags=re.DOTALL)
    shown = re.sub(r"=[^&]*", "=...", shown, flags=re.DOTALL)
    return re.sub(r"[|\"'`$\\].*", "...", shown, flags=re.DOTALL)


def _check(url: str) -> None:
    shown = _told(url)
    # ccache reads blanks and bars as ends of the URL, and options behind them.
    if not url.isprintable() or re.search(r"[\s|\"'`$\\]", url):
        raise ValueError(f"{shown!r} holds a character that no cache's URL has; write it as %XX")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may repeat a part of the password
        raise ValueError(
            f"{shown!r} is no URL: a host and the number of a port were wanted; write a / in a password as %2F"
        ) from None
    if port == 0:
        raise ValueError(f"{shown!r} names port 0")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.strip("/"):
            raise ValueError(f"{shown!r}: a folder of this machine was wanted, as file:///FOLDER")
    elif not parts.hostname:
        raise ValueError(f"{shown!r} names no {'bucket' if parts.scheme == 's3' else 'host'}")
    if parts.scheme in {"redis", "rediss"} and not re.fullmatch(r"/?|/\d{1,4}", parts.path):
        raise ValueError(f"{shown!r}: behind the host the number of a database was wanted, e.g. /0")
    if parts.scheme == "s3":
        _check_s3(parts, shown)
    elif parts.query or parts.fragment:
        raise ValueError(f"{shown!r} has options behind ? or #, and {parts.scheme}:// takes none")


def _check_s3(parts: SplitResult, shown: str) -> None:
    options = parse_qs(parts.query, keep_blank_values=True)
    if unknown := sorted({*options} - _S3_OPTIONS):
        raise ValueError(
            f"{shown!r} has unknown options: {', '.join(unknown)}; there are {', '.join(sorted(_S3_OPTIONS))}"
        )
    for name in ("tls", "anonymous"):
        if options.get(name, ["no"])[-1] not in {"yes", "no"}:
            raise ValueError(f"{shown!r}: {name} is yes or no")
    if "region" not in options and "endpoint" not in options:
        raise ValueError(f"{shown!r}: name a region or an endpoint, e.g. ?region=eu-central-1")
    if parts.username or parts.password:
        raise ValueError("an S3 key belongs into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, not into the URL")
