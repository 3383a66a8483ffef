"""The whole validation of one server or of several rungs, and which of them is adopted."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sm121.audit.chain import compare
from sm121.audit.smoke import steps
from sm121.audit.smoke.client import Server
from sm121.audit.smoke.prompts import RAW, RECORDS
from sm121.audit.smoke.serving import Rung
from sm121.errors import ServerError
from sm121.findings import Finding, Verdict, overall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sm121.audit.smoke.serving import Offer, Served
    from sm121.audit.smoke.steps import Extraction, Rates, Soak
    from sm121.progress import Progress

_LAST_WORDS = 4.0
"""Seconds in which a server that has failed is seen to end."""


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
    """The result of one rung. `started` are the seconds in which a server of ours came up."""

    rung: Rung
    version: str
    model: str
    findings: tuple[Finding, ...]
    rates: Rates | None = None
    extraction: Extraction | None = None
    soak: Soak | None = None
    warm_up: float | None = None
    started: float | None = None
    where: str = ""
    """How it was served."""

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
    left_out: tuple[Finding, ...] = ()
    """Rungs that were not tried, with the reason."""

    @property
    def verdict(self) -> Verdict:
        """The adopted arm's verdict; without one, the gravest of all."""
        chosen = next((arm for arm in self.arms if arm.rung.name == self.adopted), None)
        return chosen.verdict if chosen else overall([finding for arm in self.arms for finding in arm.findings])


def validate(
    offers: Sequence[Offer], bounds: Bounds, progress: Progress, *, expect: str = "", model: str = "",
    control: Offer | None = None, headers: dict[str, str] | None = None, left_out: Sequence[Finding] = (),
) -> SmokeResult:  # fmt: skip
    """Validate each set-up in order, one server at a time. What was started for it has ended when it returns."""
    began = time.monotonic()
    reference = _control(control, model, bounds, progress, headers or {}) if control else None
    arms = []
    for offer in offers:
        with progress.step(f"{offer.name}: {offer.where}"):
            arms.append(_arm(offer, bounds, progress, expect, model, reference, headers or {}))
    adopted, why = adopt(arms)
    return SmokeResult(tuple(arms), adopted, why, time.monotonic() - began, tuple(left_out))


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


def _control(offer: Offer, model: str, bounds: Bounds, progress: Progress, headers: dict[str, str]) -> Extraction:
    """What the control arm gets right. Without it nothing can be compared, so its failure is an error."""
    with progress.step(f"control: {offer.where}"), offer.serve(progress) as served:
        if served.failure is not None:
            raise ServerError(f"the control arm does not serve: {served.failure.message}")
        server = Server(served.url, model, bounds.deadline, headers)
        name = server.find_model()
        warm, _ = steps.warm_up(Server(served.url, name, bounds.warm_up, headers))
        if warm.verdict is Verdict.FAIL:
            raise ServerError(f"the control arm does not answer: {warm.message}")
        with progress.counter("extraction", len(RECORDS), "records") as bar:
            return steps.extract(server, bar)


def _arm(
    offer: Offer, bounds: Bounds, progress: Progress, expect: str, model: str, control: Extraction | None,
    headers: dict[str, str],
) -> Arm:  # fmt: skip
    with offer.serve(progress) as served:
        rung = Rung(offer.name, served.url, offer.log)
        if served.failure is not None:
            arm = Arm(rung, "", "", (served.failure, _skipped("there is no server to ask")))
        else:
            arm = _run(rung, bounds, progress, expect, model, control, headers)
        ended = _ended(served, arm)
    if ended:
        died = Finding(
            "smoke.server", "the server", Verdict.FAIL, f"it {ended} while it was asked", "a server that runs on"
        )
        arm = replace(arm, findings=(*arm.findings, died))
    # The block has ended, so the log is read to its end.
    return replace(_with_log(arm, offer, served), started=served.started, where=offer.where)


def _ended(served: Served, arm: Arm) -> str:
    """How the server ended by itself; after failures it gets a moment, since its last words take one."""
    ends = time.monotonic() + (_LAST_WORDS if arm.verdict is Verdict.FAIL else 0)
    while served.failure is None:
        if (said := served.ended()) or time.monotonic() >= ends:
            return said
        time.sleep(0.2)
    return ""


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


def _with_log(arm: Arm, offer: Offer, served: Served) -> Arm:
    """What the log shows, and how that fits what was predicted."""
    if served.log is None:
        return arm
    compared = compare(served.log, offer.expected) if offer.expected is not None else []
    return replace(arm, findings=(*arm.findings, *served.log.findings, *compared))
