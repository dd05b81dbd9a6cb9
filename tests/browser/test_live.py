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
import asyncio, contextlib, sys
from pathlib import Path
import agentobs
from tests.agent.provider import Provider, streamed
from tests.exporters.acting import DONE, act, play, recording

async def asked(provider):
    async with provider.client() as client:
        await play(client)

def ask():
    with Provider([streamed(DONE)]) as provider:
        asyncio.run(asked(provider))

with recording(Path(sys.argv[1])), contextlib.ExitStack() as held:
    for line in sys.stdin:
        word, _, name = line.strip().partition(" ")
        if word == "run":
            act(name)
        elif word == "open":
            held.enter_context(agentobs.session(name))
            ask()
        elif word == "ask":
            ask()
        else:
            held.close()
        print("done", flush=True)
"""


class Agent:
    """A process that runs our own loop, and records what it is told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def do(self, order: str) -> None:
        """`run NAME` a session to its end; `open NAME`, `ask` and `close` one that takes longer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n")
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
    agent.do("run newcomer")
    page.wait_for_function("() => document.querySelector('#found').innerText.includes('newcomer')")
    assert page.evaluate("[document.activeElement.href, Math.round(scrollY)]") == before


def test_a_session_is_followed_while_it_runs(served: Served, agent: Agent, tabs) -> None:
    """Its turns and its end come by themselves; figures are drawn anew, and details that were opened stay open."""
    agent.do("open under-way")
    tab: Tab = tabs(served)
    page = tab.go("/?q=under-way")
    tab.follow(page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']"))
    tab.draw()
    tab.says("running", "#head")
    page.locator("#panels details.data summary").first.click()
    before = page.locator("#steps").inner_text()
    page.evaluate("document.querySelector('[data-figure]').dataset.old = 'yes'")
    agent.do("ask")
    page.wait_for_function(
        "(before) => document.querySelector('#steps').innerText !== before", arg=before
    )
    page.wait_for_function("() => !document.querySelector('[data-old]')")
    tab.draw()
    assert page.locator("[data-figure] .main-svg").count() >= 1
    assert page.locator("#panels details.data").first.get_attribute("open") is not None
    agent.do("close")
    tab.says("completed", "#head")


def test_what_is_being_typed_stays(served: Served, agent: Agent, tabs) -> None:
    """A field keeps its words and its focus while the list below it changes."""
    tab: Tab = tabs(served)
    page = tab.page
    page.locator("[name=q]").focus()
    page.keyboard.type("anot")
    agent.do("run another")
    page.wait_for_function("() => document.querySelector('#found').innerText.includes('another')")
    assert page.evaluate("[document.activeElement.name, document.activeElement.value]") == [
        "q",
        "anot",
    ]


def test_whoever_pauses_sees_nothing_move(served: Served, agent: Agent, tabs) -> None:
    """With the switch off nothing is asked and nothing changes; with it on what is new comes."""
    tab: Tab = tabs(served)
    tab.settle()
    page = tab.page
    page.get_by_label("Follow what is new").uncheck()
    page.wait_for_timeout(500)
    asked = len(tab.requested)
    agent.do("run unseen")
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
