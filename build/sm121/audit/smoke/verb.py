"""The verb smoke: what is served and by whom, what it may cost, where results go."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm121.audit.checkpoint import Checkpoint
from sm121.audit.explain import Request
from sm121.audit.output import as_json, exit_status, print_json, standard_output, write_text
from sm121.audit.smoke.container import ContainerStarter, check_model, engine, find_image, gather_python
from sm121.audit.smoke.environment import LocalStarter, Service, check_wheels, make_environment, wheel_version
from sm121.audit.smoke.procedure import Bounds, validate
from sm121.audit.smoke.report import smoke_html, smoke_json, smoke_text
from sm121.audit.smoke.serving import Launch, Rung, require_no_password
from sm121.audit.smoke.setups import Ladder, LeftOut, Setup, ladder, rung_names
from sm121.audit.source import SourceTree
from sm121.errors import StorageError, UsageError
from sm121.findings import Finding, Verdict
from sm121.progress import Progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from sm121.audit.smoke.procedure import SmokeResult
    from sm121.audit.smoke.serving import Offer, Starter

_SPECULATIVE = ("--speculative-config", "--speculative_config", "-sc")


def add_smoke_arguments(one: argparse.ArgumentParser, positive: Any) -> None:
    """Add the arguments; `positive` reads a number above 0."""
    source = one.add_argument_group("what is validated (one of them)")
    source.add_argument(
        "--url", action="append", default=[], metavar="[NAME=]URL",
        help="a server that runs already; several with names are a ladder",
    )  # fmt: skip
    source.add_argument(
        "--image", default="", metavar="NAME", help="an image: started here with the GPU, ended here"
    )
    source.add_argument(
        "--wheel", action="append", default=[], type=Path, metavar="FILE",
        help="a wheel: served from a fresh environment; repeat it for wheels beside vLLM's (FlashInfer)",
    )  # fmt: skip
    source.add_argument(
        "--environment", type=Path, metavar="DIR", help="an environment that has vLLM: served from as it is"
    )
    served = one.add_argument_group("how it is served (--image, --wheel, --environment)")
    served.add_argument(
        "--checkpoint", default="", metavar="DIR|NAME", help="the model: a folder, or a name of the hub"
    )
    served.add_argument(
        "--serve",
        default="",
        metavar="WORDS",
        help='further arguments of `vllm serve`, as in --serve "--max-model-len 8192"',
    )
    served.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable of the server; none is inherited",
    )
    served.add_argument(
        "--rungs",
        default="",
        metavar="NAMES",
        help=f"which of the ladder, by comma (default: {','.join(rung_names())})",
    )
    served.add_argument(
        "--rung",
        action="append",
        default=[],
        metavar="NAME=WORDS",
        help="a rung of your own with these arguments",
    )
    served.add_argument(
        "--start-seconds", type=positive, default=3600.0, metavar="S", help="of a server's start (default: 3600)"
    )
    served.add_argument(
        "--requirements", type=Path, metavar="FILE", help="the locked set beside the wheels, with hashes"
    )
    served.add_argument(
        "--python", default=".".join(platform.python_version_tuple()[:2]), metavar="VERSION",
        help="of the fresh environment (default: the one that runs this)",
    )  # fmt: skip
    served.add_argument("--gpus", default="all", metavar="all|none|N,...", help="of the container (default: all)")
    served.add_argument("--results", type=Path, metavar="DIR", help="logs and results (default: work/smoke/TIME)")
    served.add_argument(
        "--work", type=Path, default=Path("work"), metavar="DIR", help="scratch folder (default: work)"
    )
    asked = one.add_argument_group("what is asked")
    asked.add_argument(
        "--log", action="append", default=[], metavar="[NAME=]FILE", help="the log of a --url, read along"
    )
    asked.add_argument(
        "--expect-version",
        default="",
        metavar="VERSION",
        help="what /version must say (default: the artifact's own)",
    )
    asked.add_argument(
        "--model", default="", metavar="NAME", help="its name in requests (default: the first served)"
    )
    asked.add_argument(
        "--control", default="", metavar="URL", help="a server without speculation, for comparison"
    )
    asked.add_argument(
        "--requests", type=int, default=400, metavar="N", help="of the soak (default: 400; 0: none)"
    )
    asked.add_argument("--width", type=int, default=8, metavar="N", help="requests at a time (default: 8)")
    asked.add_argument(
        "--soak-seconds", type=positive, default=1800.0, metavar="S", help="the soak's end (default: 1800)"
    )
    asked.add_argument(
        "--deadline", type=positive, default=120.0, metavar="S", help="of one request (default: 120)"
    )
    asked.add_argument(
        "--warm-up", type=positive, default=600.0, metavar="S", help="of the first request (default: 600)"
    )
    asked.add_argument(
        "--api-key-from", default="", metavar="VARIABLE", help="the variable that holds the server's key"
    )
    one.add_argument(
        "--no-explain",
        action="store_true",
        help="do not predict what is selected, so that nothing is compared with it",
    )
    one.add_argument("--html", type=Path, metavar="FILE", help="write the results as a page too")
    one.add_argument(
        "--dry-run", action="store_true", help="print the ladder and what would be started, and stop"
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """Everything that is validated in one run."""

    offers: tuple[Offer, ...]
    control: Offer | None = None
    expect: str = ""
    left_out: tuple[LeftOut, ...] = ()
    results: Path | None = None


def run_smoke(arguments: argparse.Namespace) -> int:
    """The verb smoke; returns the exit status."""
    _check(arguments)
    bounds = Bounds(
        deadline=arguments.deadline, warm_up=arguments.warm_up, requests=arguments.requests, width=arguments.width,
        soak_seconds=arguments.soak_seconds,
    )  # fmt: skip
    progress = Progress(quiet=arguments.quiet)
    with ExitStack() as stack:
        stack.enter_context(_ended_in_order())
        asked = _asked(arguments, stack, progress)
        if arguments.dry_run:
            _show(asked)
            return 0
        result = validate(
            asked.offers, bounds, progress, expect=arguments.expect_version or asked.expect, model=arguments.model,
            control=asked.control, headers=_key(arguments.api_key_from), left_out=_noted(asked.left_out),
        )  # fmt: skip
    _give(result, asked, arguments, progress)
    return exit_status(result.verdict, strict=arguments.strict)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """A polite end from outside is treated as Ctrl-C is, so that servers are ended here too."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(arguments: argparse.Namespace) -> None:
    given = [
        word for word, value in (
            ("--url", arguments.url), ("--image", arguments.image), ("--wheel", arguments.wheel),
            ("--environment", arguments.environment),
        ) if value
    ]  # fmt: skip
    problems = []
    if len(given) != 1:
        problems.append(
            f"smoke takes one of --url, --image, --wheel and --environment, found {' and '.join(given) or 'none'}."
        )
    problems += [f"{name} must be at least {least}." for name, value, least in (
        ("--width", arguments.width, 1), ("--requests", arguments.requests, 0),
    ) if value < least]  # fmt: skip
    launched = given != ["--url"]
    if given and launched and not arguments.checkpoint:
        problems.append(f"{given[0]} needs --checkpoint: the model that is served.")
    foreign = [
        word for word, value in (
            ("--log", arguments.log), ("--control", arguments.control),
        ) if value and launched
    ] + [
        word for word, value in (
            ("--checkpoint", arguments.checkpoint), ("--serve", arguments.serve), ("--env", arguments.env),
            ("--rungs", arguments.rungs), ("--rung", arguments.rung), ("--requirements", arguments.requirements),
        ) if value and not launched
    ]  # fmt: skip
    if given:
        problems += [f"{word} does not go with {given[0]}." for word in foreign]
    if arguments.requirements and given == ["--image"]:
        problems.append("--requirements does not go with --image.")
    if problems:
        raise UsageError(problems, do="see `sm121 smoke --help`.")


def _asked(arguments: argparse.Namespace, stack: ExitStack, progress: Progress) -> _Asked:
    if arguments.url:
        require_no_password([*arguments.url, arguments.control or ""])
        other = Rung("control", arguments.control) if arguments.control else None
        return _Asked(tuple(_rungs(arguments.url, arguments.log)), other)
    check_model(arguments.checkpoint)
    service = Service(
        arguments.checkpoint, arguments.model or Path(arguments.checkpoint).name, _words(arguments.serve, "--serve"),
        _pairs(arguments.env), _key(arguments.api_key_from),
    )  # fmt: skip
    results = arguments.results or arguments.work / "smoke" / time.strftime("%Y%m%d-%H%M%S")
    for needed in (results, arguments.work / "environments"):
        _make(needed)
    starter, tree, version = _starter(arguments, service, results, stack, progress)
    folder = Path(arguments.checkpoint)
    checkpoint = Checkpoint.read(folder) if folder.is_dir() and not arguments.no_explain else None
    with progress.step("choose the ladder"):
        chosen = _ladder(arguments, tree, checkpoint)
    offers = tuple(_launch(setup, starter, results, arguments) for setup in chosen.setups)
    control = _control(service, starter, results, arguments)
    return _Asked(offers, control, version, chosen.left_out, results)


def _make(folder: Path) -> None:
    """Before anything is started: where it is written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be made: {error.strerror or error}.",
            do="name other folders with --results and --work.",
        ) from error


def _starter(
    arguments: argparse.Namespace, service: Service, results: Path, stack: ExitStack, progress: Progress
) -> tuple[Starter, SourceTree, str]:
    """Who starts the servers, vLLM's Python as text, and the version that it must say."""
    if arguments.image:
        client = stack.enter_context(engine())
        image = find_image(client, arguments.image, progress)
        with progress.step("read vLLM's Python in the image"):
            tree = SourceTree.read([gather_python(client, image, results / "python")])
        return ContainerStarter(client, image, service, arguments.image, arguments.gpus), tree, tree.version
    if arguments.wheel:
        check_wheels(arguments.wheel)
        tree = SourceTree.read(arguments.wheel)
        root = arguments.work / "environments"
        home = make_environment(arguments.wheel, arguments.requirements, arguments.python, root, progress)
        named = arguments.wheel[0].name
        return (
            LocalStarter(home / "venv", service, named),
            tree,
            tree.version or wheel_version(arguments.wheel[0]),
        )
    with progress.step("read vLLM's Python"):
        tree = SourceTree.read([arguments.environment])
    return LocalStarter(arguments.environment.absolute(), service, str(arguments.environment)), tree, tree.version


def _ladder(arguments: argparse.Namespace, tree: SourceTree, checkpoint: Checkpoint | None) -> Ladder:
    wanted = [name for name in arguments.rungs.split(",") if name]
    strange = [name for name in wanted if name not in rung_names()]
    if strange:
        raise UsageError(
            [f"there is no rung {name!r}; there are {', '.join(rung_names())}." for name in strange],
            do="give a rung of your own as --rung NAME=ARGUMENTS.",
        )
    own: list[Setup] = []
    for word in arguments.rung:
        name, sign, words = word.partition("=")
        if not sign or not name or name in {*rung_names(), *(setup.name for setup in own)}:
            raise UsageError(f"--rung {word!r} is no NAME=ARGUMENTS with a name of its own.")
        own.append(Setup(name, tuple(_words(words, f"--rung {name}"))))
    known = ladder(tree, checkpoint, wanted=wanted, base=Request(environment=_pairs(arguments.env)))
    if not known.setups and not own:
        raise UsageError([f"{item.name}: {item.why}." for item in known.left_out], do="name other rungs.")
    return replace(known, setups=(*known.setups, *own))


def _launch(setup: Setup, starter: Starter, results: Path, arguments: argparse.Namespace) -> Launch:
    log = results / f"{setup.name}.log"
    return Launch(setup, starter, log, arguments.start_seconds, _key(arguments.api_key_from))


def _control(service: Service, starter: Starter, results: Path, arguments: argparse.Namespace) -> Launch | None:
    """Speculation that is asked for is compared with the same server without it."""
    words = plain_words(service.arguments)
    if words == service.arguments or not isinstance(starter, LocalStarter | ContainerStarter):
        return None
    bare = replace(starter, service=replace(service, arguments=words))
    return _launch(Setup("control"), bare, results, arguments)


def plain_words(words: Sequence[str]) -> tuple[str, ...]:
    """Arguments of a server without those that ask for speculation."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in _SPECULATIVE:
            skip = True
        elif not word.startswith(tuple(f"{name}=" for name in _SPECULATIVE)):
            kept.append(word)
    return tuple(kept)


def _words(text: str, option: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"{option} {text!r} cannot be split into words: {error}.", do="close the quotes."
        ) from error


def _pairs(words: Sequence[str]) -> dict[str, str]:
    wrong = [word for word in words if not word.partition("=")[0] or "=" not in word]
    if wrong:
        raise UsageError([f"--env {word!r} is no NAME=VALUE." for word in wrong])
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _rungs(urls: Sequence[str], logs: Sequence[str]) -> list[Rung]:
    def named(words: Sequence[str], first: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for word in words:
            name, sign, value = word.partition("=")
            plain = not sign or "/" in name or ":" in name
            key, value = (first, word) if plain else (name, value)
            if key in found:
                raise UsageError(f"two of them are called {key!r}; give each a name, as in NAME={value}.")
            found[key] = value
        return found

    addresses, files = named(urls, "auto"), named(logs, "auto")
    unknown = sorted(set(files) - set(addresses))
    if unknown:
        raise UsageError([f"--log {name}=... belongs to no --url." for name in unknown])
    return [Rung(name, url, Path(files[name]) if name in files else None) for name, url in addresses.items()]


def _key(variable: str) -> dict[str, str]:
    if not variable:
        return {}
    value = os.environ.get(variable)
    if not value:
        raise UsageError(f"the variable {variable} is not set.")
    return {"Authorization": f"Bearer {value}"}


def _noted(left_out: Sequence[LeftOut]) -> tuple[Finding, ...]:
    return tuple(Finding("smoke.ladder", item.name, Verdict.INFO, f"not tried: {item.why}") for item in left_out)


def _show(asked: _Asked) -> None:
    console = standard_output()
    for offer in filter(None, (asked.control, *asked.offers)):
        console.print(f"{offer.name}: {offer.where}", markup=False, soft_wrap=True)
    for item in asked.left_out:
        console.print(f"{item.name}: not tried, {item.why}", markup=False, soft_wrap=True)
    if asked.expect:
        console.print(f"/version must say {asked.expect}", markup=False)


def _give(result: SmokeResult, asked: _Asked, arguments: argparse.Namespace, progress: Progress) -> None:
    """Results to the user, and into the folder where the logs are."""
    page, data = smoke_html(result), smoke_json(result)
    if asked.results is not None:
        write_text(asked.results / "smoke.html", page)
        write_text(asked.results / "smoke.json", as_json(data) + "\n")
        progress.say(f"results: {asked.results}/smoke.html, smoke.json and the logs")
    if arguments.html is not None:
        write_text(arguments.html, page)
    if arguments.json:
        print_json(data)
    else:
        smoke_text(result, standard_output(), everything=True)
