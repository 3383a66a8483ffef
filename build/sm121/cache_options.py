"""Options of verbs that compile: which compiler cache, and which share of a CI matrix."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from sm121.errors import UsageError
from sm121.plan.cache import CacheProgram, CompilerCache
from sm121.plan.sharding import Shard
from sm121.steps.caching import read_use

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.plan.model import Plan
    from sm121.progress import Progress
    from sm121.steps.sharding import Share
    from sm121.workspace import Workspace


def add_cache_options(how: argparse._ArgumentGroup) -> None:
    """Add `--cache` and what goes with it."""
    how.add_argument(
        "--cache", metavar="NAME|URL", default=os.environ.get("SM121_CACHE") or "ccache",
        help="ccache (default), sccache, none, or a shared one: redis://HOST[:PORT], s3://BUCKET?region=NAME, "
        "file:///FOLDER, http://HOST/PATH, also as ccache+URL or sccache+URL; the variable SM121_CACHE keeps a password "
        "off the command line",
    )  # fmt: skip
    how.add_argument(
        "--cache-read-only",
        action="store_true",
        help="take from the cache and write nothing there: for jobs of strangers",
    )
    how.add_argument(
        "--no-cache", dest="cache", action="store_const", const="none", help="compile everything anew"
    )


def add_shard_option(how: argparse._ArgumentGroup) -> None:
    """Add `--shard`."""
    how.add_argument(
        "--shard", metavar="K/N", type=_shard, default=None,
        help="compile the K-th of N shares into the cache and stop; all: take everything from there and link (CI matrix)",
    )  # fmt: skip


def compiler_cache(arguments: argparse.Namespace) -> CompilerCache:
    """The compiler cache with its login, which neither plan nor record holds."""
    try:
        return CompilerCache.parse(arguments.cache, read_only=arguments.cache_read_only)
    except ValueError as error:
        raise UsageError(
            f"--cache: {error}.", do="name another cache; docs/beyond-one-machine.md has them all."
        ) from error


def folder_of(arguments: argparse.Namespace) -> str:
    """The scratch folder, where the cache program makes the bytes depend on it."""
    return str(arguments.work.absolute()) if compiler_cache(arguments).program is CacheProgram.SCCACHE else ""


def _shard(text: str) -> Shard | str:
    try:
        return Shard.parse(text) or text
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def told(share: Share) -> dict[str, str]:
    """What a shard did, as rows."""
    return {
        "shard": share.shard, "compiled": f"{share.objects} of {share.all_objects}",
        "ptx": f"{share.ptx} of {share.all_ptx}",
        **({"cache": str(share.cache)} if share.cache else {}),
    }  # fmt: skip


def say_what_was_missing(plans: Sequence[Plan], work: Workspace, progress: Progress) -> None:
    """The last job of a matrix should find everything: what it had to compile, a shard has not made."""
    for plan in plans:
        folder = work.result(plan.step("libraries"))
        if folder.is_dir() and (use := read_use(folder)) and use.misses:
            progress.say(
                f"warning: {use.misses} results of {plan.project} were not in the cache: a shard is missing, or ran with "
                "another compiler, toolkit or request.", style="yellow",
            )  # fmt: skip
