"""The questions about a failed session: what failed, where the time and the money went, what the model was sent, what
changed between two runs, and which session to look at first. Each answer is visible without scrolling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect as playwright_expect

from agentobs.recording.journal.home import open_home
from agentobs.sink import Record
from agentobs.store.duckdb.ingest import ingest
from tests.browser.page_walk import axe_violations
from tests.browser.store_builders import FIRST_NS, recording
from tests.browser.synthetic_sessions import SECOND, SyntheticSession, text
from tests.browser.tabs import Served, Tab, serving

pytestmark = pytest.mark.xdist_group("browser-answers")
LAPTOP = {"width": 1280, "height": 720}
TURNS = 40
"""The number of turns before the failure: more steps than the window has rows."""
PREVIOUS_RUN = r"^Compare with the previous run of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"
SHOWN = """
(place) => {
    const box = document.querySelector(place).getBoundingClientRect();
    return box.height > 0 && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
}
"""

EMPTY = """
() => {
    const tree = document.getElementById("tree").getBoundingClientRect();
    const last = document.querySelector("#tree a:last-of-type").getBoundingClientRect();
    return tree.bottom - Math.max(last.bottom, tree.top);
}
"""
"""The height of the empty space below the last step of the tree, in pixels."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two runs of an agent with sub-agents, the second of which failed; two of a long agent; one that hit a limit."""
    home = open_home(tmp_path_factory.mktemp("answers") / "home")
    with recording(home) as emit:
        _fan_out(emit, FIRST_NS, fails=False)
        _fan_out(emit, FIRST_NS + 3_600 * SECOND, fails=True)
        _long(emit, FIRST_NS + 7_200 * SECOND, 10, fails=False)
        _long(emit, FIRST_NS + 9_000 * SECOND, TURNS, fails=True)
        _limited(emit, FIRST_NS + 12_000 * SECOND)
    ingest(home)
    with serving(home) as found:
        yield found


def _call(run: SyntheticSession, name: str, **given: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": run.call_id(), "name": name, "input": given}


def _fan_out(emit: Callable[[Record], None], at: int, *, fails: bool) -> None:
    """The tool of the second of two sub-agents fails, and later a tool of the main agent."""
    run = SyntheticSession(emit, "fan-out", at, seed=3 + fails)
    with run.interaction("Compare two shops."):
        started = [_call(run, "agent", prompt=f"Look at shop {number}.") for number in (1, 2)]
        run.turn(*started)
        for number, call in enumerate(started):
            with run.sub_agent(call):
                looks = _call(run, "search_stock", thing="lamp")
                run.turn(looks)
                is_broken = fails and number == 1
                answer = "TimeoutError" if is_broken else "7"
                run.results(run.run_call(looks, answer, seconds=9.0, is_error=is_broken))
                run.turn(text("Done."))
        run.results(
            *(
                {"type": "tool_result", "tool_use_id": each["id"], "content": "Done."}
                for each in started
            )
        )
        mail = _call(run, "send_mail", order="1")
        run.turn(mail)
        run.results(run.run_call(mail, "no price" if fails else "sent", is_error=fails))
        run.turn(text("Done."))
    run.end(*(("failed", "KeyError") if fails else ("completed", None)))


def _long(emit: Callable[[Record], None], at: int, turns: int, *, fails: bool) -> None:
    """Each turn looks up an order; the last call fails."""
    run = SyntheticSession(emit, "long", at, seed=11 + fails)
    for first in (0, turns // 2):
        with run.interaction(f"Go on from {first}."):
            for number in range(first, first + turns // 2):
                look = _call(run, "find_order", order=str(number))
                run.turn(look, fails=("overloaded_error",) if number == 3 else ())
                is_last = number == turns - 1
                run.results(
                    run.run_call(look, "down" if is_last else "paid", is_error=fails and is_last)
                )
        run.advance(60)
    run.end(*(("failed", "ConnectionError") if fails else ("completed", None)))


def _limited(emit: Callable[[Record], None], at: int) -> None:
    """A tool fails early; then the limit of turns ends the session."""
    run = SyntheticSession(emit, "limited", at, seed=17)
    with run.interaction("Find the order.", "max_turns"):
        look = _call(run, "find_order", order="1")
        run.turn(look)
        run.results(run.run_call(look, "not found", is_error=True))
        run.turn(text("Not found."))
    run.end("failed", "max_turns")


@pytest.fixture
def tab(served: Served, tabs: Callable[..., Tab]) -> Tab:
    return tabs(served, viewport=LAPTOP)


def _open(tab: Tab, name: str, status: str = "failed", tabname: str = "") -> None:
    """Open the page of the session with this name and status."""
    tab.go(f"/?q={name}&status={status}")
    tab.follow(tab.page.locator("#found tbody a[href^='/sessions/']").first)
    if tabname:
        tab.follow(tab.page.get_by_role("link", name=tabname, exact=True))


def test_a_sub_agent_has_the_same_name_everywhere(tab: Tab) -> None:
    """The tree, the waterfall, the details, the tab Cost and the transcript use the same names of sub-agents."""
    _open(tab, "fan-out")
    names = ["researcher 1", "researcher 2"]
    agents = tab.page.locator("#tree [role=treeitem].agent .name")
    assert agents.all_inner_texts() == names
    assert "/" in str(agents.first.get_attribute("title"))
    figure = json.loads(tab.page.locator("[data-for=waterfall]").text_content() or "")
    written = [each["text"] for each in figure["layout"]["annotations"]]
    assert [each for each in written if each.startswith("researcher")] == names
    agents.last.click()
    tab.wait_for_text("Sub-agent call researcher 2", "#step-title")
    tab.follow(tab.page.get_by_role("link", name="Cost", exact=True))
    table = tab.page.locator("#cost-by-agent table").text_content() or ""
    assert all(each in table for each in names)
    tab.follow(tab.page.get_by_role("link", name="Transcript", exact=True))
    tab.page.get_by_role("button", name="Show transcript", exact=True).click()
    chooser = tab.page.locator("select[name=lane]")
    chooser.wait_for(state="attached")
    offered = chooser.locator("option").all_text_contents()
    assert offered == ["main", *names]


@pytest.mark.parametrize("name", ["fan-out", "long"])
def test_the_failed_step_is_visible_when_the_page_opens(tab: Tab, name: str) -> None:
    """In a small window, the failed step in the tree is visible without scrolling, even if it is the last of many. The
    tree has no empty space below its last step, and is as high as usual after the page is scrolled.
    """
    _open(tab, name)
    assert tab.page.evaluate(EMPTY) < 8
    assert tab.page.evaluate(SHOWN, "#tree [aria-selected=true]")
    assert "failed" in tab.page.locator("#tree [aria-selected=true]").inner_text()
    assert tab.page.evaluate("scrollY") == 0
    before = tab.page.evaluate("document.getElementById('tree').clientHeight")
    tab.page.mouse.wheel(0, 120)
    tab.page.wait_for_function(
        "(before) => document.getElementById('tree').clientHeight > before", arg=before
    )
    assert tab.page.evaluate(EMPTY) < 8


def test_the_failure_names_the_calls_that_failed_before(tab: Tab) -> None:
    """The banner names what failed before the failed step, and its link selects the first of these steps."""
    _open(tab, "fan-out")
    banner = tab.page.locator("#failure")
    assert (
        "Before it, search_stock failed once (TimeoutError) in researcher 2." in banner.inner_text()
    )
    banner.get_by_role("link", name="Go to that step", exact=True).click()
    tab.wait_for_text("search_stock", "#tree [aria-selected=true]")
    assert "step=" in tab.page.url
    assert axe_violations(tab, "#failure") == ()
    _open(tab, "long")
    assert re.search(r"Before it, request \S+ failed ", banner.inner_text())


def test_matches_of_the_filter_have_their_turn(tab: Tab) -> None:
    """In the flat list of failed steps, each call shows its turn, and whether it is of a sub-agent."""
    _open(tab, "fan-out")
    tab.page.get_by_role("checkbox", name="failed only").check()
    tab.wait_for_text("failed", "#tree-summary")
    found = tab.page.locator("#tree a").all_inner_texts()
    assert any("search_stock" in each and "turn 1 of researcher 2" in each for each in found)
    assert any(
        "send_mail" in each and "turn 2" in each and "sub-agent" not in each for each in found
    )
    assert axe_violations(tab, "#trace") == ()


def test_cost_and_time_have_a_summary(tab: Tab) -> None:
    """The tab Cost names what was wasted, the most expensive agent and failed requests; the tab Time names the tools by
    total time, and the time between interactions. All are visible without scrolling.
    """
    _open(tab, "fan-out", tabname="Cost")
    summary = tab.page.get_by_role("list", name="Summary")
    waste = tab.page.locator("#waste")
    assert "the main agent cost the most, $" in summary.inner_text()
    assert re.search(r"Total cost: \$[0-9.]+\.", waste.inner_text())
    assert "with 2 failed tool calls" in waste.inner_text()
    assert "cache miss" not in waste.inner_text()
    assert "The total is" not in waste.inner_text()
    assert "compaction" not in waste.inner_text()
    assert tab.page.evaluate(SHOWN, "#waste")
    tab.follow(tab.page.get_by_role("link", name="Time", exact=True))
    assert re.search(
        r"Total time by tool: agent .*, search_stock .* \(2 calls\)", summary.inner_text()
    )
    nested = "The time of a tool that starts a sub-agent includes the time of the sub-agent."
    assert nested in summary.inner_text()
    assert tab.page.evaluate(SHOWN, "#in-short")
    _open(tab, "long", tabname="Cost")
    assert "1 failed request reported no usage. If the provider billed it" in waste.inner_text()
    tab.follow(tab.page.get_by_role("link", name="Time", exact=True))
    assert re.search(r"Outside of interactions: .* between ", summary.inner_text())
    assert axe_violations(tab) == ()


def test_the_time_of_a_session_includes_the_time_after_its_interactions(tab: Tab) -> None:
    """The summary of the tab Time starts with the duration on the card, and names the time after the interactions."""
    _open(tab, "long", tabname="Time")
    summary = tab.page.get_by_role("list", name="Summary").inner_text()
    duration = (
        tab.page.locator("#totals .tile", has_text="Duration")
        .locator("dd")
        .evaluate("each => each.firstChild.textContent")
    )
    assert re.search(
        rf"Time by activity: Of {re.escape(duration)}, .* were in interactions: the model", summary
    )
    assert re.search(r"Outside of interactions: .* after them\.", summary)
    assert " before" not in summary


def test_turns_of_sub_agents_are_counted_separately(tab: Tab) -> None:
    """The key figures tell the turns of the main agent from those of sub-agents; the turn of any agent can be opened
    by its number. The error page of another number leads back to the session.
    """
    _open(tab, "fan-out")
    page = tab.page
    assert "main agent 3, sub-agents 4" in page.locator("#totals").inner_text()
    agents = page.locator("#turn-agents option")
    assert agents.first.inner_text() == "main agent (1–3)"
    assert agents.count() > 1
    session = page.url.partition("?")[0]
    turn, agent = page.locator(".to-turn [name=turn]"), page.locator("#turn-agents")
    agent.select_option(label="researcher 1 (1–2)")
    for number in ("1", "2"):
        turn.fill(number)
        with page.expect_navigation():
            page.keyboard.press("Enter")
        tab.settle()
        assert turn.input_value() == number
        assert agent.evaluate("each => each.selectedOptions[0].text") == "researcher 1 (1–2)"
        assert page.locator("#step .step-head").get_attribute("data-turn") == number
    page.locator("#tree a.request").first.click()
    playwright_expect(turn).to_have_value("1")
    assert agent.input_value() == "main"
    assert "Compare with the previous request" not in page.locator("#step").inner_text()
    assert page.get_by_role("button", name="Changed text").count() == 0
    tab.forgiven.append("404")
    tab.go(f"{session[session.index('/sessions/') :]}?turn=13")
    tab.follow(page.get_by_role("link", name="Back to the session", exact=True))
    assert page.url == session


def test_the_messages_of_a_turn_say_what_else_was_sent(tab: Tab) -> None:
    """The messages of a turn are the new ones; the page states how many earlier messages were sent, and shows the last
    of them in place. The transcript opens at the turn, on the page of the session.
    """
    _open(tab, "long")
    page = tab.page
    page.locator(".to-turn [name=turn]").fill("30")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    tab.settle()
    page.get_by_role("button", name="Show messages").click()
    page.wait_for_selector("#step .earlier")
    counts = "60, 1 of them new since the previous request and its response"
    assert counts in page.locator("#step .counts").inner_text()
    assert "Response of the model:" in page.locator("#step").inner_text()
    assert axe_violations(tab, "#step") == ()
    for last, shown in ((59, 10), (49, 20)):
        page.get_by_role("button", name=f"Show the last 10 of {last} earlier messages").click()
        numbers = page.locator("#step .earlier .earlier-number")
        playwright_expect(numbers).to_have_count(shown)
        assert numbers.first.inner_text() == f"Message {last - 9}"
        assert numbers.last.inner_text() == "Message 59"
    assert axe_violations(tab, "#step") == ()
    session = page.url.partition("?")[0]
    tab.follow(page.get_by_role("link", name="Transcript at turn 30", exact=True))
    assert page.url.startswith(f"{session}?tab=transcript")
    turn = page.get_by_role("link", name="Turn 30", exact=True)
    turn.wait_for()
    box = turn.bounding_box()
    assert box is not None
    assert 0 <= box["y"] < LAPTOP["height"]
    assert "Requests 21–40 of " in page.locator("#transcript").inner_text()


def test_differences_of_two_runs_start_with_the_earliest(tab: Tab) -> None:
    """The first difference is the earliest one, also in a sub-agent. The page shows why each run failed. Steps of one
    run only are one row; counts are `fewer`, and times and costs `less`.
    """
    _open(tab, "fan-out")
    tab.follow(tab.page.get_by_role("link", name=re.compile(PREVIOUS_RUN)))
    assert "search_stock" in tab.page.locator("#pair-title").inner_text()
    listed = tab.page.locator(".differences li").all_inner_texts()
    assert "search_stock" in listed[0]
    assert "researcher 2: outcome" in listed[0]
    assert "send_mail" in listed[1]
    assert "KeyError" in tab.page.locator(".head .cause").inner_text()
    _open(tab, "long")
    tab.follow(tab.page.get_by_role("link", name=re.compile(PREVIOUS_RUN)))
    endings = tab.page.locator("#endings")
    assert endings.inner_text().startswith(
        "A completed after turn 10. B continued and failed in turn 40: find_order, ConnectionError."
    )
    assert tab.page.evaluate(SHOWN, "#endings")
    assert "turns 11 to 40" in tab.page.locator(".differences").inner_text()
    assert "60 steps only in B" in tab.page.locator(".differences").inner_text()
    tab.follow(tab.page.get_by_role("link", name="Swap A and B"))
    totals = tab.page.locator("main").inner_text()
    assert re.search(r"30 fewer in B", totals)
    assert re.search(r"\$[\d.]+ less in B", totals)
    assert "B completed after turn" in tab.page.locator("#endings").inner_text()
    tab.follow(tab.page.get_by_role("link", name="Last failed step in A"))
    assert "find_order" in tab.page.locator("#tree [aria-selected=true]").inner_text()
    tab.back()
    assert axe_violations(tab) == ()


def test_sessions_without_a_previous_run_offer_the_latest(tab: Tab) -> None:
    """With one session given, each of the latest sessions is one click away."""
    _open(tab, "limited")
    tab.follow(tab.page.get_by_role("link", name="Compare with another session", exact=True))
    reason = "There is no earlier session named limited: it is the only one."
    assert reason in tab.page.locator("main").inner_text()
    assert axe_violations(tab) == ()
    tab.follow(tab.page.locator("#latest-sessions a", has_text="fan-out").first)
    assert tab.page.locator("#pair-title").is_visible()
    assert "no identical step" in tab.page.locator("main").inner_text()


def test_the_list_shows_the_limit_and_the_signatures(tab: Tab) -> None:
    """A limit that ended a session is named before its last error. Signatures fit into a small window."""
    page = tab.go("/?sort=-attention")
    error = page.locator("tr:has(a:text-is('limited')) .row-error").inner_text()
    assert error == "max_turns; last error: call find_order failed"
    head = page.get_by_role("columnheader", name="Signatures").bounding_box()
    assert head is not None
    assert head["x"] + head["width"] <= LAPTOP["width"]
    cut = "all => all.filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.textContent)"
    page.locator("td.fired").first.evaluate(
        "cell => cell.innerHTML = '<a class=tag href=/>repeated tool errors</a>'"
    )
    assert page.locator("td.fired a").evaluate_all(cut) == []
    head = page.get_by_role("columnheader", name="Signatures").bounding_box()
    assert head is not None
    assert head["x"] + head["width"] <= LAPTOP["width"]
    row_status = page.locator(".row-status").first
    row_status.evaluate(
        "cell => cell.querySelector('.row-error').textContent = 'RemoteProtocolError in claude-sonnet-5'"
    )
    assert row_status.evaluate("each => each.scrollHeight <= each.clientHeight + 1")
    assert axe_violations(tab, "#found") == ()
    page.set_viewport_size({"width": 390, "height": 844})
    assert axe_violations(tab, "#found") == ()
    page.set_viewport_size({"width": LAPTOP["width"], "height": LAPTOP["height"]})
    # A tag is shown whole or not at all, and the fields of the filter are as wide as their texts.
    name = page.locator("td.session .row-name").first
    for value, is_shown in (("a", True), ("a-long-value-that-does-not-fit-beside-the-name", False)):
        tag = f"<span class=row-tags><a class=tag href=/>{value}</a></span>"
        name.evaluate("(each, tag) => each.innerHTML = '<a href=/>n</a>' + tag", tag)
        box, row = name.locator(".tag").bounding_box(), name.bounding_box()
        assert box is not None
        assert row is not None
        assert (box["y"] < row["y"] + row["height"]) == is_shown
    narrow = "all => all.filter((each) => each.clientWidth < 122).map((each) => each.name)"
    assert (
        page.locator("#filters input[type=date], #filters select[name=signature]").evaluate_all(
            narrow
        )
        == []
    )
