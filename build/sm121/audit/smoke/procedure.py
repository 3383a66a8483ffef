"""The whole validation of one server or of several rungs, and which of them is adopted."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sm121.audit.smoke import steps
from sm121.audit.smoke.client import Server
from sm121.audit.smoke.follow import Follower
from sm121.audit.smoke.prompts import RAW, RECORDS
from sm121.errors import ServerError
from sm121.findings import Finding, Verdict, overall

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sm121.audit.bootlog import BootLog
    from sm121.audit.smoke.steps import Extraction, Rates, Soak
    from sm121.progress import Progress


@dataclass(frozen=True, slots=True)
class Rung:
    """One set-up to be validated: a name (auto, b12x, marlin), where it runs, and its log file if there is one."""

    name: str
    url: str
    log: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a validation may cost. Times in seconds."""

    deadline: float = 120.0
    """One request."""
    warm_up: float = 600.0
    """The first request, which may compile."""
    requests: int = 400
    width: int = 8
    soak_seconds: float = 1800.0
    runs: int = 3


@dataclass(frozen=True, slots=True)
class Arm:
    """The result of one rung."""

    rung: Rung
    version: str
    model: str
    findings: tuple[Finding, ...]
    rates: Rates | None = None
    extraction: Extraction | None = None
    soak: Soak | None = None
    warm_up: float | None = None

    @property
    def verdict(self) -> Verdict:
        return overall(self.findings)

    @property
    def sound(self) -> bool:
        """Coherent and stable: nothing failed and nothing is unknown."""
        return self.verdict.rank < Verdict.UNKNOWN.rank


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """All arms. `adopted` names the fastest sound one, "" if none is."""

    arms: tuple[Arm, ...]
    adopted: str
    why: str
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The adopted arm's verdict; without one, the gravest of all."""
        chosen = next((arm for arm in self.arms if arm.rung.name == self.adopted), None)
        return chosen.verdict if chosen else overall([finding for arm in self.arms for finding in arm.findings])


def validate(
    rungs: Sequence[Rung], bounds: Bounds, progress: Progress, *, expect: str = "", model: str = "",
    control: str = "", headers: dict[str, str] | None = None,
) -> SmokeResult:  # fmt: skip
    """Validate each rung in order. Nothing is started, and nothing is left running."""
    started = time.monotonic()
    reference = _control(control, model, bounds, progress, headers or {}) if control else None
    arms = []
    for rung in rungs:
        with progress.step(f"{rung.name}: {rung.url}"):
            arms.append(_arm(rung, bounds, progress, expect, model, reference, headers or {}))
    adopted, why = adopt(arms)
    return SmokeResult(tuple(arms), adopted, why, time.monotonic() - started)


def adopt(arms: Sequence[Arm]) -> tuple[str, str]:
    """The fastest of the sound arms by its decode rate, with the reason."""
    sound = [arm for arm in arms if arm.sound]
    if not sound:
        return "", "no arm is both coherent and stable"
    known = [(arm.rates.decode, arm) for arm in sound if arm.rates and arm.rates.decode]
    if not known:
        return sound[0].rung.name, "the first sound one; no decode rate is known"
    rate, best = max(known, key=lambda item: item[0])
    others = ", ".join(f"{arm.rung.name} {speed:.1f}" for speed, arm in known if arm is not best)
    return best.rung.name, f"{rate:.1f} tokens/s of decoding" + (f", against {others}" if others else "")


def _control(url: str, model: str, bounds: Bounds, progress: Progress, headers: dict[str, str]) -> Extraction:
    server = Server(url, model, bounds.deadline, headers)
    server.find_model()
    with progress.step(f"control: {url}"), progress.counter("extraction", len(RECORDS), "records") as bar:
        return steps.extract(server, bar)


def _arm(
    rung: Rung, bounds: Bounds, progress: Progress, expect: str, model: str, control: Extraction | None,
    headers: dict[str, str],
) -> Arm:  # fmt: skip
    with ExitStack() as stack:
        log = stack.enter_context(Follower(rung.log)).log if rung.log else None
        arm = _run(rung, bounds, progress, expect, model, control, headers)
    # The block has ended, so the log is read to its end.
    return _with_log(arm, log) if log is not None else arm


def _run(
    rung: Rung, bounds: Bounds, progress: Progress, expect: str, model: str, control: Extraction | None,
    headers: dict[str, str],
) -> Arm:  # fmt: skip
    try:
        server = Server(rung.url, model, bounds.deadline, headers)
        version = server.version()
        stamp = steps.check_version(version, expect)
        if stamp.verdict is Verdict.FAIL:
            return Arm(rung, version, "", (stamp, _skipped("the version is wrong")))
        name = server.find_model()
    except ServerError as error:
        return Arm(rung, "", "", (Finding("smoke.server", rung.url, Verdict.FAIL, " ".join(error.problems)),))
    findings = [stamp]
    patient = Server(rung.url, name, bounds.warm_up, headers)
    progress.say("  warm-up: the first request may compile")
    warm, took = steps.warm_up(patient)
    findings.append(warm)
    if warm.verdict is Verdict.FAIL:
        return Arm(rung, version, name, (*findings, _skipped("the first request failed")), warm_up=took)
    with progress.counter("completions", len(RAW), "texts") as bar:
        findings += steps.raw_text(server, bar)
    with progress.counter("extraction", len(RECORDS), "records") as bar:
        extraction = steps.extract(server, bar)
    findings += steps.judge_extraction(extraction, control)
    with progress.counter("speed", bounds.runs, "runs") as bar:
        rates = steps.measure(server, bar, runs=bounds.runs)
    findings.append(_speed(rates))
    load = None
    if bounds.requests:
        with progress.counter("soak", bounds.requests, "requests") as bar:
            load = steps.soak(
                server, bar, requests=bounds.requests, width=bounds.width, seconds=bounds.soak_seconds
            )
        findings += steps.judge_soak(load)
    else:
        findings.append(_skipped("no soak was asked for; batch 1 misses every crash under load"))
    return Arm(rung, version, name, tuple(findings), rates, extraction, load, took)


def _skipped(why: str) -> Finding:
    return Finding("smoke.skipped", "the remaining steps", Verdict.UNKNOWN, why)


def _speed(rates: Rates) -> Finding:
    if rates.decode is None:
        return Finding("smoke.speed", "single requests", Verdict.UNKNOWN, "the streams gave no rate")
    parts = [f"first token after {rates.first_token:.2f} s" if rates.first_token is not None else ""]
    parts.append(f"prefill {rates.prefill:.0f} tokens/s" if rates.prefill else "")
    parts.append(f"decode {rates.decode:.1f} tokens/s")
    return Finding("smoke.speed", "single requests", Verdict.INFO, ", ".join(filter(None, parts)))


def _with_log(arm: Arm, log: BootLog) -> Arm:
    return Arm(
        arm.rung,
        arm.version,
        arm.model,
        (*arm.findings, *log.findings),
        arm.rates,
        arm.extraction,
        arm.soak,
        arm.warm_up,
    )
