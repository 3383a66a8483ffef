"""The HTML page in a real browser: it draws, its search works, and it asks for nothing."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from made_facts import fixture, write_wheel

from sm121 import process
from sm121.artifact import open_artifact
from sm121.inspector import Options, inspect_artifact, report_html

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.programs

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--virtual-time-budget=5000", "--window-size=1280,1600",
)  # fmt: skip
PROBE = """<script>
addEventListener("load", () => {
  const row = () => [...document.querySelectorAll("#rows tr")].map((item) => item.cells[0].textContent);
  const seen = {all: row()};
  document.getElementById("search").value = "KERNEL_B";
  document.getElementById("search").dispatchEvent(new Event("input"));
  setTimeout(() => {
    seen.found = row();
    seen.count = document.getElementById("count").textContent;
    seen.hidden = [...document.querySelectorAll("tr[data-of=pass]")].every((item) => item.hidden);
    document.querySelector("[data-verdict=pass]").click();
    seen.shown = [...document.querySelectorAll("tr[data-of=pass]")].every((item) => !item.hidden);
    seen.loads = performance.getEntriesByType("resource").length;
    seen.images = document.images.length;
    const result = document.createElement("pre");
    result.id = "probe";
    result.textContent = JSON.stringify(seen);
    document.body.append(result);
  }, 400);
});
</script>"""


def browser() -> str:
    program = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
        None,
    )
    if program is None:
        pytest.skip("no Chromium on PATH")
    return program


def page(folder: Path) -> str:
    files = {
        "vllm/_C_stable_libtorch.abi3.so": fixture("aarch64.so"),
        "vllm/<img src=x onerror=alert(1)>.so": fixture("rdc.so"),
    }
    with open_artifact(write_wheel(folder, files)) as artifact:
        return report_html(inspect_artifact(artifact, Options(jobs=1)))


def test_the_page_works(tmp_path: Path) -> None:
    html = page(tmp_path)
    names = [row[0] for row in json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])["kernels"]]  # type: ignore[index]
    wanted = names[0]
    path = tmp_path / "page.html"
    path.write_text(html.replace("</body>", PROBE.replace("KERNEL_B", wanted) + "</body>"), encoding="utf-8")
    done = process.run(
        [browser(), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()], timeout=120
    )
    match = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr[-2000:]
    seen = json.loads(match[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert sorted(seen["all"]) == sorted(names)
    assert seen["found"] == [name for name in names if wanted in name]
    assert seen["count"] == f"{len(seen['found'])} kernels"
    assert (seen["hidden"], seen["shown"]) == (True, True)
    assert (seen["loads"], seen["images"]) == (0, 0)


def test_the_page_can_be_drawn(tmp_path: Path) -> None:
    path, shot = tmp_path / "page.html", tmp_path / "page.png"
    path.write_text(page(tmp_path), encoding="utf-8")
    process.run(
        [browser(), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={shot}", path.as_uri()],
        timeout=120,
    )
    assert shot.read_bytes().startswith(b"\x89PNG")
    assert shot.stat().st_size > 10_000
