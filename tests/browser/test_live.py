"""A page that is looked at while agents run: it follows, and takes nothing away from whoever reads it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.tabs import Served, Tab
from tests.store.making import python

pytestmark = pytest.mark.xdist_group("browser-live")

AGENT = """
import sys
from pathlib import Path
from tests.exporters.acting import act, recording
with recording(Path(sys.argv[1])):
    for name in sys.stdin:
        act(name.strip())
        print("done", flush=True)
"""


class Agent:
    """A process that runs our own loop, and records a session whenever it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, name: str) -> None:
        """Run one session to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


@pytest.fixture(scope="module")
def served(store) -> Served:
    found: Served = store("live")
    return found


@pytest.fixture(scope="module")
def agent(served: Served) -> Iterator[Agent]:
    process = python(AGENT, Path(served.home.path), stdin=subprocess.PIPE)
    yield Agent(process)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told


def test_a_new_session_appears_and_the_reader_stays_where_they_are(
    served: Served, agent: Agent, tabs
) -> None:
    """While somebody has scrolled down and stands on a link, the list above gains a session: nothing moves."""
    tab: Tab = tabs(served)
    tab.settle()
    page = tab.page
    link = page.locator("#found tbody a[href^='/sessions/']").nth(30)
    link.focus()
    page.evaluate("scrollBy({ top: 300, behavior: 'instant' })")
    before = page.evaluate("[document.activeElement.href, Math.round(scrollY)]")
    assert before[1] > 0
    agent.run("newcomer")
    page.wait_for_function("() => document.querySelector('#found').innerText.includes('newcomer')")
    assert page.evaluate("[document.activeElement.href, Math.round(scrollY)]") == before


def test_what_is_being_typed_and_what_is_open_stays(served: Served, agent: Agent, tabs) -> None:
    """A field keeps its words and its focus, and details that were opened stay open."""
    tab: Tab = tabs(served)
    page = tab.go("/fleet")
    page.locator("details.data summary").first.click()
    before = page.locator("[data-live]").first.inner_text()
    agent.run("another")
    page.wait_for_function(
        "(before) => document.querySelector('[data-live]').innerText !== before", arg=before
    )
    assert page.locator("details.data").first.get_attribute("open") is not None


def test_figures_are_drawn_anew(served: Served, agent: Agent, tabs) -> None:
    """Where a region with figures is replaced they are drawn again, and none stays empty."""
    tab: Tab = tabs(served)
    page = tab.go("/fleet")
    page.evaluate("document.querySelector('[data-figure]').dataset.old = 'yes'")
    agent.run("third")
    page.wait_for_function("() => !document.querySelector('[data-old]')")
    tab.settle()
    assert page.locator("[data-figure] .main-svg").count() >= 1


def test_whoever_pauses_sees_nothing_move(served: Served, agent: Agent, tabs) -> None:
    """With the switch off nothing is asked and nothing changes; with it on what is new comes."""
    tab: Tab = tabs(served)
    tab.settle()
    page = tab.page
    page.get_by_label("Follow what is new").uncheck()
    page.wait_for_timeout(500)
    asked = len(tab.requested)
    agent.run("unseen")
    page.wait_for_function(
        "async (shown) => (await (await fetch('/revision')).json()).revision > shown",
        arg=int(page.locator("meta[name=agentobs-revision]").get_attribute("content") or 0),
        polling=500,
    )
    page.wait_for_timeout(3_000)
    own = [url for url in tab.requested[asked:] if not url.endswith("/revision")]
    assert own == []
    assert "unseen" not in page.locator("#found").inner_text()
    page.get_by_label("Follow what is new").check()
    page.wait_for_function("() => document.querySelector('#found').innerText.includes('unseen')")
