"""The report's page in Chromium: no error, filters, search, deep links; screenshots.

Skipped without playwright and Chromium: ``pip install playwright``, ``apt install chromium``.
``SCREENSHOTS=folder`` keeps the screenshots.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

import tracer_core
from tests.reporting import programs

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="apt install chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


#: Arguments of one more call, which is profiled.
CALLS = {
    "broken_program": lambda: (torch.ones(4), 2.0),
    "training_step": lambda: (torch.ones(4, 8),),
}


def profile_of(program, fast):
    """A profile of a call; None for a program that is not called again."""
    if program not in CALLS:
        return None
    with torch.profiler.profile() as result:
        fast(*CALLS[program]())
    return result


@pytest.mark.parametrize("program", ["broken_program", "training_step", "bert"])
def test_the_page(browser, program, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_KEEP", "0")
    path = tmp_path / f"{program}.html"
    fast = getattr(programs, program)()
    profile = profile_of(program, fast)
    tracer_core.report(fast, path, profile=profile)
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request", lambda request: request.url.startswith("file:") or problems.append(request.url)
    )
    page.goto(path.as_uri())
    shots = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page.screenshot(path=shots / f"{program}.png", full_page=True)
    assert page.locator("#summary .lead").inner_text().startswith("1 compiled function")

    stages = page.locator("details[data-part=stages]")
    graphs = page.locator("details[data-part=graphs]")
    page.click("button[data-filter=stages]")
    assert stages.is_visible() and not graphs.is_visible()
    page.click("button[data-filter=stages]")
    assert graphs.is_visible()

    page.fill("#search", "no such word anywhere")
    assert not graphs.is_visible() and page.locator("#found").inner_text() == "0 found"
    page.fill("#search", "trace")
    assert stages.is_visible()
    page.screenshot(path=shots / f"{program}_search.png")
    page.fill("#search", "")

    assert not page.locator("#f0-guards table").first.is_visible()
    page.evaluate("location.hash = 'f0-guards'")
    page.locator("#f0-guards table").first.wait_for(state="visible")
    times = page.locator(".tag.time")
    if program == "training_step":
        assert times.count() and times.first.is_visible()
    if program == "broken_program":
        assert page.locator("#f0-guards .tag.bad").first.inner_text() == "failed last"
        assert " each" in page.locator("#f0-break1").inner_text()
    page.screenshot(path=shots / f"{program}_guards.png")
    assert problems == []
    page.close()
