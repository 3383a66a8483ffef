"""The validation against a server that misbehaves on purpose: it finds the fault, ends, and leaves nothing running."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from fault_server import Behaviour, FaultServer
from rich.console import Console
from tiny_answers import PROSE

from sm121.audit.smoke.client import Server
from sm121.audit.smoke.procedure import Arm, Bounds, SmokeResult, adopt, validate
from sm121.audit.smoke.report import smoke_html, smoke_json, smoke_text
from sm121.audit.smoke.serving import Rung
from sm121.audit.smoke.steps import Rates, check_version, soak
from sm121.errors import ServerError
from sm121.findings import Finding, Verdict
from sm121.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.programs

BOUNDS = Bounds(deadline=5, warm_up=5, requests=24, width=8, soak_seconds=30, runs=1)


def quiet() -> Progress:
    return Progress(Console(file=StringIO()), quiet=True)


def run(behaviour: Behaviour, bounds: Bounds = BOUNDS, **options: Any) -> SmokeResult:
    with FaultServer(behaviour) as server:
        return validate([Rung("auto", server.url)], bounds, quiet(), **options)


def checks(result: SmokeResult) -> dict[str, Verdict]:
    """The gravest verdict of each check."""
    found: dict[str, Verdict] = {}
    for item in result.arms[0].findings:
        old = found.get(item.check, Verdict.PASS)
        found[item.check] = max(old, item.verdict, key=lambda verdict: verdict.rank)
    return found


def test_a_healthy_server_passes_every_step() -> None:
    result = run(Behaviour(pause=0.001), expect="0.33.0")
    assert checks(result) == {
        "smoke.version": Verdict.PASS, "smoke.warm-up": Verdict.PASS, "smoke.coherence": Verdict.PASS,
        "smoke.facts": Verdict.PASS, "smoke.extraction": Verdict.PASS, "smoke.speed": Verdict.INFO,
        "smoke.soak": Verdict.PASS,
    }  # fmt: skip
    arm = result.arms[0]
    assert arm.soak is not None
    assert arm.soak.sent == 24
    assert arm.rates is not None
    assert arm.rates.decode
    assert arm.rates.prefill
    assert result.adopted == "auto"
    assert arm.model == "tiny"


def test_the_wrong_version_ends_it_at_once() -> None:
    with FaultServer(Behaviour(version="0.1.dev18498")) as server:
        result = validate([Rung("auto", server.url)], BOUNDS, quiet(), expect="0.25.1")
        assert server.asked == 0
    assert checks(result) == {"smoke.version": Verdict.FAIL, "smoke.skipped": Verdict.UNKNOWN}
    assert result.adopted == ""
    assert result.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("found", "wanted", "verdict"),
    [
        ("0.33.0", "0.33.0", Verdict.PASS),
        ("0.33.0+cu130", "0.33.0", Verdict.PASS),
        ("0.33.0", "0.33.0+cu130", Verdict.FAIL),
        ("0.33.0+sm121.1", "0.33.0+sm121.2", Verdict.FAIL),
        ("0.33.0.dev1", "0.33.0", Verdict.FAIL),
        ("nonsense", "0.33.0", Verdict.FAIL),
        ("0.33.0", "", Verdict.INFO),
    ],
)
def test_versions_are_compared_with_the_pin(found: str, wanted: str, verdict: Verdict) -> None:
    assert check_version(found, wanted).verdict is verdict


@pytest.mark.parametrize("version", [{"detail": "x"}, [1], 3, None])
def test_a_server_that_is_no_vllm_is_said_to_be_none(version: object) -> None:
    result = run(Behaviour(version=version))
    assert checks(result) == {"smoke.server": Verdict.FAIL}


@pytest.mark.parametrize("models", [{"data": []}, {"data": [3]}, [], {"data": "x"}])
def test_a_server_without_a_model(models: object) -> None:
    assert checks(run(Behaviour(models=models))) == {"smoke.server": Verdict.FAIL}


@pytest.mark.parametrize("text", ["!" * 60, "la " * 60, "\ufffd" * 40, "(empty)"])
def test_garbage_without_an_error_is_found(text: str) -> None:
    found = checks(run(Behaviour(text=text, finish="length"), replace(BOUNDS, requests=8)))
    assert found["smoke.coherence"] is Verdict.FAIL
    assert found["smoke.soak"] is Verdict.FAIL


def test_sense_without_knowledge_is_a_warning() -> None:
    assert checks(run(Behaviour(text=PROSE), replace(BOUNDS, requests=8)))["smoke.facts"] is Verdict.WARN


@pytest.mark.parametrize("failure", ["500", "drop", "garbage", "cut"])
def test_failures_under_load_are_found_and_counted(failure: str) -> None:
    # Warm-up, texts, records and speed take 29 requests, so only the soak meets the failures.
    with FaultServer(Behaviour(fail_every=41, failure=failure)) as server:
        result = validate([Rung("auto", server.url)], replace(BOUNDS, requests=60), quiet())
    found = checks(result)
    assert found["smoke.coherence"] is Verdict.PASS
    assert found["smoke.soak"] is Verdict.FAIL
    load = result.arms[0].soak
    assert load is not None
    assert sum(load.failures.values()) >= 1
    assert load.sent == 60


def test_a_server_that_dies_under_load_ends_the_soak_early() -> None:
    result = run(Behaviour(fail_after=40, failure="drop"), replace(BOUNDS, requests=400))
    load = result.arms[0].soak
    assert load is not None
    assert load.sent < 60
    assert "in a row" in load.gave_up
    assert checks(result)["smoke.soak"] is Verdict.FAIL


@pytest.mark.parametrize("failure", ["stall", "drip"])
def test_a_server_that_stalls_or_drips_meets_the_deadline(failure: str) -> None:
    with FaultServer(Behaviour(fail_after=0, failure=failure)) as server:
        reply = Server(server.url, "tiny", deadline=0.5).complete("x", stream=True)
    assert "0.5 s" in reply.failure


def test_the_soak_runs_so_many_at_a_time() -> None:
    with FaultServer(Behaviour(pause=0.002)) as server:
        with quiet().counter("", 1) as bar:
            soak(Server(server.url, "tiny"), bar, requests=32, width=4, seconds=30)
        assert 1 < server.most <= 4
        assert server.asked == 32


def test_the_time_ends_a_soak_and_then_it_is_unknown() -> None:
    result = run(Behaviour(pause=0.02), replace(BOUNDS, requests=400, soak_seconds=0.2, width=2))
    assert checks(result)["smoke.soak"] is Verdict.UNKNOWN


def test_being_stopped_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with FaultServer() as server:
        stop = threading.Event()
        stop.set()
        with quiet().counter("", 1) as bar:
            result = soak(Server(server.url, "tiny"), bar, requests=50, width=4, seconds=30, stop=stop)
        assert result.sent == 0
        assert result.gave_up == "it was stopped"
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(5)
    assert threading.active_count() <= before + 1


def test_without_a_soak_it_is_not_known_to_be_stable() -> None:
    assert checks(run(Behaviour(), replace(BOUNDS, requests=0)))["smoke.skipped"] is Verdict.UNKNOWN


def test_structured_output_against_a_control_arm() -> None:
    with FaultServer() as control:
        result = run(
            Behaviour(wrong_records=3), replace(BOUNDS, requests=8), control=Rung("control", control.url)
        )
    found = {item.check: item for item in result.arms[0].findings}
    assert found["smoke.extraction"].verdict is Verdict.WARN
    assert found["smoke.extraction"].got.startswith("17 of 20")
    assert found["smoke.control"].verdict is Verdict.FAIL


def test_an_unreachable_server_is_a_finding_and_an_unreachable_control_an_error() -> None:
    with FaultServer() as server:
        url = server.url
    result = validate([Rung("auto", url)], BOUNDS, quiet())
    assert "cannot be reached" in result.arms[0].findings[0].got
    with pytest.raises(ServerError, match="cannot be reached"):
        validate([Rung("auto", url)], BOUNDS, quiet(), control=Rung("control", url))
    with pytest.raises(ServerError, match="no address"):
        Server("localhost:8000")


def test_the_fastest_sound_rung_is_adopted() -> None:
    def arm(name: str, rate: float, verdict: Verdict) -> Arm:
        return Arm(Rung(name, "u"), "1", "m", (Finding("c", "s", verdict, "g"),), Rates(0.1, 900, rate, 1))

    arms = [arm("auto", 20, Verdict.PASS), arm("b12x", 30, Verdict.WARN), arm("marlin", 50, Verdict.FAIL)]
    assert adopt(arms)[0] == "b12x"
    assert "auto 20.0" in adopt(arms)[1]
    assert adopt(arms[2:])[0] == ""


def test_a_ladder_of_two_servers() -> None:
    with FaultServer(Behaviour(pause=0.01)) as slow, FaultServer(Behaviour(pause=0.001)) as fast:
        rungs = [Rung("marlin", slow.url), Rung("auto", fast.url)]
        result = validate(rungs, replace(BOUNDS, requests=4), quiet())
    assert result.adopted == "auto"
    assert [item.rung.name for item in result.arms] == ["marlin", "auto"]


def test_the_log_is_read_along(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("non-default args: {}\n")

    with FaultServer() as server, log.open("a") as file:
        file.write("CUDA error: an illegal memory access was encountered")
        file.flush()
        result = validate([Rung("auto", server.url, log)], replace(BOUNDS, requests=4), quiet())
    assert checks(result)["bootlog.illegal-access"] is Verdict.FAIL
    assert result.adopted == ""


def test_results_as_text_json_and_html() -> None:
    result = run(Behaviour(text="<b>&!" + "!" * 60), replace(BOUNDS, requests=4))
    out = StringIO()
    smoke_text(result, Console(file=out, width=200), everything=True)
    assert "adopted: nothing" in out.getvalue()
    plain = json.loads(json.dumps(smoke_json(result)))
    assert plain["verdict"] == "fail"
    assert plain["arms"][0]["soak"]["wanted"] == 4
    page = smoke_html(result)
    assert "<b>&!" not in page
    assert "&lt;b&gt;" in page
    assert page.count("<tr>") == len(result.arms[0].findings) + 1 + len(result.arms) + 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9", "nothing listens there"),
        ("http://no-such-host.invalid:8000", "nobody knows the name"),
        ("http://127.0.0.1:99999", "the address is none"),
        ("http://[::1", "the address is none"),
    ],
)
def test_an_address_that_does_not_answer_is_told_in_words(url: str, said: str) -> None:
    with pytest.raises(ServerError) as caught:
        Server(url).version()
    text = str(caught.value)
    assert said in text
    assert "HTTPConnectionPool" not in text
    assert "What to do" in text


def test_http_where_https_is_meant() -> None:
    with FaultServer() as server, pytest.raises(ServerError, match="secure connection"):
        Server(server.url.replace("http://", "https://")).version()


@pytest.mark.parametrize(
    ("failure", "said"), [("drop", "the server closed the connection"), ("cut", "broke off")]
)
def test_a_connection_that_breaks_is_told_in_words(failure: str, said: str) -> None:
    with FaultServer(Behaviour(fail_after=0, failure=failure)) as server:
        reply = Server(server.url, "tiny", deadline=5).complete("x", stream=True)
    assert said in reply.failure
