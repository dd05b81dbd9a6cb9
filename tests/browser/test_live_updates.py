"""Open pages update themselves while agents run, without disturbing the user."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import store_builders
from tests.browser.tabs import Served, Tab, serving
from tests.store.recordings import python

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.xdist_group("browser-live")

AGENT = """
import asyncio, contextlib, sys
from pathlib import Path
import agentobs
from tests.agent.provider import Provider, streamed
from tests.exporters.sample_agents import DONE, run_agent, play, recording

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
            run_agent(name)
        elif word in ("open", "begin"):
            held.enter_context(agentobs.session(name))
            if word == "open":
                ask()
        elif word == "fail":
            with contextlib.suppress(ValueError), held:
                raise ValueError(name)
        elif word == "ask":
            ask()
        else:
            held.close()
        print("done", flush=True)
"""


class Agent:
    """A process that runs our agent loop on command and records it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def do(self, order: str) -> None:
        """Execute a command:

        `run NAME` for a complete session, or `begin NAME`, `ask` and `close` or `fail` for separate steps; `open NAME`
        is `begin` with a first `ask`.
        """
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
    _, result = process.communicate(timeout=60)
    assert process.returncode == 0, result


def test_a_new_session_keeps_scroll_position_and_focus(served: Served, agent: Agent, tabs) -> None:
    """If a session is added at the top while the user has scrolled down and focuses a link, nothing moves."""
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


def test_a_running_session_updates_its_page(served: Served, agent: Agent, tabs) -> None:
    """New turns and the end of the session appear in the existing figures, and expanded details stay expanded."""
    agent.do("open under-way")
    tab: Tab = tabs(served)
    page = tab.go("/?q=under-way")
    tab.follow(page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']"))
    tab.wait_for_text("running", "#head")
    tab.follow(page.get_by_role("link", name="Cost", exact=True))
    tab.draw()
    page.locator("#panels details.data summary").first.click()
    before = page.locator("#totals").inner_text()
    page.evaluate("document.querySelector('[data-figure=turns]').dataset.old = 'yes'")
    marks = page.locator("[data-figure=turns] .point").count()
    agent.do("ask")
    page.wait_for_function(
        "(before) => document.querySelector('#totals').innerText !== before", arg=before
    )
    tab.draw()
    page.wait_for_function(
        "(marks) => document.querySelectorAll('[data-old] .point').length > marks", arg=marks
    )
    assert page.locator("[data-figure=turns]").count() == 1
    assert page.locator("#panels details.data").first.get_attribute("open") is not None
    agent.do("close")
    tab.wait_for_text("completed", "#head")


def test_the_first_step_and_the_failure_appear(served: Served, agent: Agent, tabs) -> None:
    """Steps, figures and the failure banner appear in pages that were opened before there was anything to show."""
    agent.do("begin doomed")
    tab: Tab = tabs(served)
    page = tab.go("/?q=doomed")
    tab.follow(page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']"))
    tab.wait_for_text("No steps yet.", "#tree-empty")
    session = page.url
    other: Tab = tabs(served)
    other.go(f"{session.removeprefix(served.origin)}?tab=cost")
    other.wait_for_text("No data for this tab.")
    assert page.locator("#failure").count() == 0
    agent.do("ask")
    page.locator("#tree a.request").wait_for()
    other.page.locator("[data-figure=turns]").wait_for()
    assert page.locator("#tree-empty").inner_text() == ""
    assert "No data for this tab." not in other.page.locator("main").inner_text()
    agent.do("fail")
    tab.wait_for_text("ValueError", "#failure")


def test_the_page_says_how_old_it_is(served: Served, agent: Agent, tabs) -> None:
    """The server pushes new data to an open page, without requests of the page, and the page shows its age."""
    tab: Tab = tabs(served)
    tab.settle()
    page = tab.page
    page.wait_for_function(
        "() => /^as of \\d+ s ago$/.test(document.querySelector('#as-of').innerText)"
    )
    asked = len(tab.requested)
    agent.do("run pushed")
    page.wait_for_function("() => document.querySelector('#found').innerText.includes('pushed')")
    assert [url for url in tab.requested[asked:] if url.endswith("/revision")] == []
    age = "() => parseInt(document.querySelector('#as-of').innerText.match(/\\d+/)[0])"
    page.context.set_offline(True)
    tab.forgiven += ["ERR_INTERNET_DISCONNECTED", "ERR_NETWORK"]
    page.wait_for_function(f"() => ({age})() >= 3")
    tab.wait_for_text("Not up to date since ", "#followed")
    page.context.set_offline(False)
    page.wait_for_function(f"() => ({age})() < 3")


def test_many_updates_leak_nothing_and_keep_the_zoom(served: Served, tabs) -> None:
    """After twenty updates of all figures, the page has the same zoom, and no more nodes and listeners than before."""
    tab: Tab = tabs(served)
    page = tab.follow(tab.page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']").nth(5))
    tab.follow(page.get_by_role("link", name="Cost", exact=True))
    tab.draw()
    page.get_by_label("Live updates").uncheck()
    news = ChangedFigures(tab)
    news.update(2)
    zoomed = _zoom(page)
    # The first update of a zoomed figure adds nodes, because figures of different ranges have different labels.
    news.update(2)
    before = _node_counts(page)
    news.update(20)
    after = _node_counts(page)
    assert after["nodes"] < before["nodes"] * 1.1
    assert after["jsEventListeners"] < before["jsEventListeners"] * 1.1
    assert page.evaluate(_RANGE) == zoomed


class ChangedFigures:
    """Serves changed data for all figures of a page each time the page checks for updates."""

    def __init__(self, tab: Tab) -> None:
        self._page, self._number = tab.page, 0
        self._text = tab.page.evaluate("fetch(location.href).then((answer) => answer.text())")
        self._page.route("**/revision", self._revision)
        self._page.route(tab.page.url, self._changed)

    def update(self, times: int) -> None:
        """Update the page this many times; the visible figures are drawn before the next update."""
        for _ in range(times):
            self._number += 1
            self._page.evaluate(_LOOK)
            self._page.wait_for_function(_CAME, arg=str(self._number))
            self._page.evaluate(_TWO_FRAMES)

    def _revision(self, route: Route) -> None:
        route.fulfill(json={"revision": 1_000_000 + self._number})

    def _changed(self, route: Route) -> None:
        round_ = rf'\1"round":{self._number},'
        text = re.sub(r'(class="figure-data"[^>]*>\{)', round_, self._text)
        text = text.replace("<h1>", f'<h1 data-round="{self._number}">')
        route.fulfill(body=text, content_type="text/html")


def _zoom(page: Page) -> list[float]:
    """Zoom to the middle of the turns; return the visible range."""
    place = page.locator("[data-figure=turns] .nsewdrag").first
    place.scroll_into_view_if_needed()
    before, box = page.evaluate(_RANGE), place.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    page.wait_for_function(f"(before) => String(({_RANGE})()) !== String(before)", arg=before)
    page.evaluate("scrollTo(0, 0)")
    found: list[float] = page.evaluate(_RANGE)
    return found


def _node_counts(page: Page) -> dict[str, int]:
    """Return the numbers of nodes and listeners of the page, after garbage collection."""
    asked = page.context.new_cdp_session(page)
    asked.send("HeapProfiler.collectGarbage")
    found: dict[str, int] = asked.send("Memory.getDOMCounters")
    asked.detach()
    return found


_RANGE = """
() => document.querySelector("[data-figure=turns]").layout.xaxis.range
"""
_LOOK = """
() => {
    const box = document.getElementById("follow");
    for (const on of [true, false]) { box.checked = on; box.dispatchEvent(new Event("change")); }
}
"""
_TWO_FRAMES = """
() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))
"""
_CAME = """
(number) => document.querySelector("h1").dataset.round === number
"""


def test_typed_text_is_kept(served: Served, agent: Agent, tabs) -> None:
    """A field keeps its text and focus while the list below it changes."""
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


def test_an_open_menu_keeps_its_text(served: Served, agent: Agent, tabs) -> None:
    """A menu stays open, with the name that was typed and the columns that were checked, while the list changes."""
    tab: Tab = tabs(served)
    page = tab.page
    page.locator("#views summary").click()
    page.get_by_role("textbox", name="Save the current view as").fill("half a na")
    page.keyboard.press("Tab")
    agent.do("run beside-the-menu")
    page.wait_for_function(
        "() => document.querySelector('#found').innerText.includes('beside-the-menu')"
    )
    assert page.get_by_role("textbox", name="Save the current view as").input_value() == "half a na"
    assert page.evaluate("document.activeElement.textContent") == "Save"
    page.locator("#columns summary").click()
    assert not page.locator("#views ul, #views form").first.is_visible()
    page.get_by_role("checkbox", name="Requests").check()
    agent.do("run beside-the-columns")
    page.wait_for_function(
        "() => document.querySelector('#found').innerText.includes('beside-the-columns')"
    )
    assert page.get_by_role("checkbox", name="Requests").is_checked()


def test_paused_updates_change_nothing(served: Served, agent: Agent, tabs) -> None:
    """While updates are switched off, nothing is requested and nothing changes; then new data appears."""
    tab: Tab = tabs(served)
    tab.settle()
    page = tab.page
    page.get_by_label("Live updates").uncheck()
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
    page.get_by_label("Live updates").check()
    page.wait_for_function("() => document.querySelector('#found').innerText.includes('unseen')")


def test_a_late_response_does_not_replace_a_newer_filter(served: Served, tabs) -> None:
    """If a filter is applied while an update is being loaded, the response for the previous URL is dropped."""
    tab: Tab = tabs(served)
    tab.settle()
    page = tab.page
    whole = page.evaluate("fetch(location.href).then((answer) => answer.text())")
    held: list[Route] = []
    event = 'data: {"revision": 1000000, "age_ms": 0}\n\n'
    page.route(
        "**/updates", lambda route: route.fulfill(body=event, content_type="text/event-stream")
    )
    page.route(f"{served.origin}/", lambda route: held.append(route))
    page.get_by_label("Live updates").uncheck()
    with page.expect_request(f"{served.origin}/"):
        page.get_by_label("Live updates").check()
    page.get_by_role("searchbox").fill("nobody-is-called-this")
    tab.wait_for_text("No matching sessions")
    held[0].fulfill(body=whole, content_type="text/html")
    page.evaluate(_TWO_FRAMES)
    assert "No matching sessions" in page.locator("#found").inner_text()
    assert page.locator("#found tbody tr").count() == 0


def test_filter_results_are_announced(served: Served, tabs) -> None:
    """Screen readers announce the number of results, because the element that contains it is not replaced."""
    tab: Tab = tabs(served)
    tab.settle()
    place = tab.page.locator("#announced[role=status]")
    assert place.inner_text() == ""
    place.evaluate("each => { each.dataset.same = 'yes'; }")
    every = tab.page.locator("#found dd").first.inner_text()
    tab.page.get_by_role("searchbox").fill("nobody-is-called-this")
    tab.wait_for_text(f"0 of {every} sessions", "#announced[data-same]")


def test_a_dashboard_that_ended_leaves_its_pages_open(tabs, tmp_path: Path) -> None:
    """If the dashboard has ended, a click on a step shows the reason, and the page stays.

    After a restart on the same port, the page asks for the new URL.
    """
    home = store_builders.one(tmp_path / "home")
    with serving(home) as served:
        tab: Tab = tabs(served)
        tab.forgiven += ["421", "503", "ERR_"]  # 503: an update while the dashboard ends
        tab.settle()
        page = tab.page
        tab.follow(page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']").first)
    tab.wait_for_text("the dashboard does not respond", "#followed")
    page.locator("#tree a.request").last.click()
    page.locator("#step [role=alert]").wait_for()
    shown = page.locator("#step [role=alert]").inner_text()
    assert "the dashboard does not respond" in shown or "status 503" in shown
    assert page.locator("#tree a.request").count() > 0
    with serving(home, "--port", served.origin.rpartition(":")[2]):
        tab.wait_for_text("The dashboard was restarted", "#followed")


def test_a_step_that_the_server_cannot_show_leaves_the_page_open(tabs, tmp_path: Path) -> None:
    """If the server responds with 503, as while it ends, a click on a step shows that, and the page stays."""
    with serving(store_builders.one(tmp_path / "home")) as served:
        tab: Tab = tabs(served)
        tab.forgiven += ["503"]
        tab.settle()
        page = tab.follow(
            tab.page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']").first
        )
        page.route("**/step?*", lambda route: route.fulfill(status=503))
        url = page.url
        page.locator("#tree a.request").last.click()
        page.locator("#step [role=alert]").wait_for()
        assert (
            "the server responded with status 503"
            in page.locator("#step [role=alert]").inner_text()
        )
        assert page.url == url


def test_a_step_without_a_response_is_reported(tabs, tmp_path: Path) -> None:
    """If the server accepts a request for a step and never responds, the page states this after the time limit."""
    with serving(store_builders.one(tmp_path / "home")) as served:
        tab: Tab = tabs(served)
        tab.forgiven += ["ERR_", "step?"]
        tab.settle()
        # The limit of 30 s would only make this test longer.
        tab.page.add_init_script(
            "const timeout = AbortSignal.timeout; AbortSignal.timeout = (ms) => timeout.call(AbortSignal, ms / 30);"
        )
        page = tab.follow(
            tab.page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']").first
        )
        page.route("**/step?*", lambda route: None)
        url = page.url
        page.locator("#tree a.request").last.click()
        page.locator("#step [role=alert]").wait_for()
        assert "the dashboard does not respond" in page.locator("#step [role=alert]").inner_text()
        assert page.url == url


def test_rows_do_not_move_under_the_pointer(tabs, tmp_path: Path) -> None:
    """A tree that reaches below the window is shorter until the page is scrolled, but does not grow while the pointer
    is over it: its rows would move, and a click would miss its row.
    """
    with serving(store_builders.one(tmp_path / "home")) as served:
        tab: Tab = tabs(served)
        tab.settle()
        page = tab.follow(
            tab.page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']").first
        )
        is_shorter = "document.getElementById('tree').style.maxHeight !== ''"
        assert page.evaluate(is_shorter)
        page.locator("#tree a.request").first.hover()
        scroll = """(y) => new Promise((seen) => {
            addEventListener("scroll", () => requestAnimationFrame(seen), { once: true });
            scrollTo(0, y);
        })"""
        page.evaluate(scroll, 40)
        assert page.evaluate(is_shorter)
        page.mouse.move(2, 2)
        page.evaluate(scroll, 0)
        assert not page.evaluate(is_shorter)


def test_failed_updates_are_shown(tabs, tmp_path: Path) -> None:
    """An open page shows an error while the recordings cannot be read, or if the dashboard has ended."""
    home = store_builders.one(tmp_path / "home")
    with contextlib.ExitStack() as running:
        tab: Tab = tabs(running.enter_context(serving(home)))
        tab.forgiven += ["503", "ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE"]
        tab.settle()
        page = tab.page
        rows = page.locator("#found tbody tr").count()
        Path(home.path).rename(tmp_path / "away")
        tab.wait_for_text("the recordings cannot be read", "#followed")
        tab.wait_for_text("Not up to date since ", "#followed")
        assert page.locator("#found tbody tr").count() == rows
        (tmp_path / "away").rename(home.path)
        page.wait_for_function("() => !document.querySelector('#followed').innerText")
        Path(home.path).rename(tmp_path / "away")
        tab.wait_for_text("the recordings cannot be read", "#followed")
        page.get_by_role("searchbox").fill("anything")
        tab.wait_for_text("The recordings cannot be read")
        (tmp_path / "away").rename(home.path)
        # The error page also updates itself, and is replaced as soon as the data can be shown.
        page.wait_for_selector("#found")
    tab.wait_for_text("the dashboard does not respond", "#followed")
