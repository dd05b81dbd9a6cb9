"""What the page of a session shows about its failures, including those of sessions that completed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentobs.recording.journal.home import open_home
from agentobs.sink import Record
from agentobs.store.duckdb.ingest import ingest
from tests.browser.page_walk import axe_violations
from tests.browser.store_builders import FIRST_NS, recording
from tests.browser.synthetic_sessions import SECOND, SyntheticSession, text
from tests.browser.tabs import Served, Tab, serving

pytestmark = pytest.mark.xdist_group("browser-session-failures")
LAPTOP = {"width": 1280, "height": 720}
BEYOND_THE_ROW = """(all) => all.filter((each) =>
  each.getBoundingClientRect().right > each.closest(".what").getBoundingClientRect().right
).map((each) => each.textContent)"""
"""Returns the texts of the elements that the end of their row cuts off."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A session that completed although one of two sub-agents failed, and a session with a retried request."""
    home = open_home(tmp_path_factory.mktemp("failures") / "home")
    with recording(home) as emit:
        _checks(emit, FIRST_NS)
        _retried(emit, FIRST_NS + 3_600 * SECOND)
    ingest(home)
    with serving(home) as found:
        yield found


def _checks(emit: Callable[[Record], None], at: int) -> None:
    """One of two sub-agents reaches its limit of turns, because its command fails."""
    run = SyntheticSession(emit, "checks", at, seed=21)
    numbers = itertools.count(1)

    def call(name: str, **given: str) -> dict[str, Any]:
        return {
            "type": "tool_use",
            "id": f"toolu_01{next(numbers):022x}",
            "name": name,
            "input": given,
        }

    with run.interaction("Check the release."):
        started = [call("agent", prompt=name) for name in ("changelog", "tests")]
        run.turn(*started)
        for name, start in zip(("changelog", "tests"), started, strict=True):
            is_broken = name == "tests"
            with run.sub_agent(start, name, "error_max_turns" if is_broken else "success"):
                for _ in range(2):
                    command = call("run_command", command="<b>pytest</b> -q")
                    run.turn(command)
                    run.results(run.run_call(command, "no database", is_error=is_broken))
        run.turn(text("Done."))
    run.end()


def _retried(emit: Callable[[Record], None], at: int) -> None:
    """The provider is overloaded once; the retry succeeds."""
    run = SyntheticSession(emit, "retried", at, seed=22)
    with run.interaction("Hello."):
        run.turn(text("Hello."), fails=("overloaded_error",))
    run.end()


@pytest.fixture
def tab(served: Served, tabs: Callable[..., Tab]) -> Tab:
    return tabs(served, viewport=LAPTOP)


def _open(tab: Tab, name: str) -> None:
    tab.go(f"/?q={name}")
    tab.follow(tab.page.locator("#found tbody a[href^='/sessions/']").first)


def test_a_completed_session_shows_its_failures(tab: Tab) -> None:
    """The banner names the failed sub-agent with why it ended, then the errors of its tools. The first failure is
    selected, its text is one click away, and each line selects its first step.
    """
    _open(tab, "checks")
    banner = tab.page.locator("#failure")
    assert "Completed, but sub-agent tests failed" in banner.inner_text()
    assert banner.locator("li").all_inner_texts() == [
        "Sub-agent tests failed: turn limit reached (2 turns)",
        "run_command failed twice, in sub-agent tests, no error class recorded",
    ]
    assert "turn limit reached" in tab.page.locator("#tree [aria-selected=true]").inner_text()
    status = tab.page.locator("#step .status").inner_text()
    assert status == "✕ turn limit reached (2 turns)"
    banner.get_by_role("link", name="run_command failed twice").click()
    tab.wait_for_text("run_command", "#tree [aria-selected=true]")
    # A line about several failures also filters the tree.
    assert tab.page.get_by_role("checkbox", name="failed only").is_checked()
    assert tab.page.locator("#tree-summary").inner_text() == "2 tool calls failed."
    rows = tab.page.locator("#tree [role=treeitem]").all_inner_texts()
    assert len(rows) == sum("call run_command" in each for each in rows) == 2
    assert all("✕" in each for each in rows)
    assert "2 times the same error:" in banner.inner_text()
    banner.get_by_role("button", name="Show the error text").click()
    tab.wait_for_text("no database", "#failure")
    assert axe_violations(tab, "#failure") == ()
    # A reload shows the same steps, and another filter all failed ones.
    tab.page.reload()
    assert tab.page.locator("#tree [role=treeitem]").count() == 2
    assert tab.page.locator("#tree-summary").inner_text() == "2 tool calls failed."
    tab.page.get_by_role("checkbox", name="failed only").uncheck()
    tab.page.get_by_role("checkbox", name="failed only").check()
    tab.wait_for_text("3 tool calls failed.", "#tree-summary")


def test_the_banner_is_one_line_on_other_tabs(tab: Tab) -> None:
    """Outside of the trace, the banner is a short line with a link to the failures. The tab Time has each sentence
    once.
    """
    _open(tab, "checks")
    full = tab.page.locator("#failure").bounding_box()
    tab.follow(tab.page.get_by_role("link", name="Time", exact=True))
    banner = tab.page.locator("#failure")
    short = banner.bounding_box()
    assert full is not None
    assert short is not None
    assert short["height"] < min(40, full["height"] / 2)
    assert "Completed, but sub-agent tests failed" in banner.inner_text()
    sentences = tab.page.locator("#in-short li").all_inner_texts()
    main = tab.page.locator("main").inner_text()
    assert [each for each in sentences if main.count(each.partition(": ")[2]) != 1] == []
    assert axe_violations(tab, "main") == ()
    tab.follow(banner.get_by_role("link", name="Show the failures"))
    assert "turn limit reached" in banner.inner_text()


def test_the_first_click_shows_content_in_all_places(tab: Tab) -> None:
    """After the text of the error is shown, the details of the selected step also show it, without a reload."""
    _open(tab, "checks")
    tab.page.locator("#failure").get_by_role("link", name="run_command failed twice").click()
    tab.wait_for_text("run_command", "#step-title")
    assert "no database" not in tab.page.locator("#step").inner_text()
    tab.page.locator("#failure").get_by_role("button", name="Show the error text").click()
    tab.wait_for_text("no database", "#failure")
    tab.wait_for_text("no database", "#step")


def test_a_retried_request_is_no_alarm(tab: Tab) -> None:
    """If a retry of each failed request succeeded, one line states this, and no step is selected."""
    _open(tab, "retried")
    assert "overloaded_error (HTTP 529)" in tab.page.locator("#failure").inner_text()
    assert "a retry succeeded" in tab.page.locator("#failure").inner_text()
    assert "Completed, but" not in tab.page.locator("#failure").inner_text()
    assert tab.page.locator("#tree [aria-selected=true]").count() == 0


def test_rows_of_calls_show_their_argument_after_consent(tab: Tab) -> None:
    """Before the first click, no argument is shown or searched. Then each call has its argument, as text, and the
    filter finds it; a reload keeps both. A long argument hides no failure. After "Hide content", both are gone.
    """
    _open(tab, "checks")
    page = tab.page
    field = page.get_by_role("searchbox", name="Filter the steps")
    assert "pytest" not in page.locator("#tree").inner_text()
    field.fill("pytest")
    tab.wait_for_text("0 steps match", "#tree-summary")
    field.fill("")
    tab.wait_for_text("run_command", "#tree")
    page.locator("#failure").get_by_role("button", name="Show the error text").click()
    tab.wait_for_text("<b>pytest</b> -q", "#tree")
    assert page.locator("#tree b:text-is('pytest')").count() == 0
    page.evaluate(
        "document.querySelectorAll('#tree .argument').forEach((each) => { each.textContent += ' word'.repeat(40); })"
    )
    assert page.locator("#tree .fails").count() > 0
    assert page.locator("#tree .fails, #tree .failed .why").evaluate_all(BEYOND_THE_ROW) == []
    field.fill("pytest -q")
    tab.wait_for_text("4 steps match", "#tree-summary")
    tab.wait_for_text("<b>pytest</b> -q", "#tree")
    assert axe_violations(tab, "#tree") == ()
    page.reload()
    tab.settle()
    tab.wait_for_text("4 steps match", "#tree-summary")
    page.get_by_role("button", name="Hide content").click()
    page.wait_for_load_state("load")
    tab.settle()
    assert "pytest" not in page.locator("#trace").inner_text()


def test_the_tab_time_links_to_the_longest_steps(tab: Tab) -> None:
    """The longest steps are listed with their durations, and lead to the trace."""
    _open(tab, "checks")
    tab.follow(tab.page.get_by_role("link", name="Time", exact=True))
    longest = tab.page.locator("#longest li")
    assert longest.count() == 5
    name = longest.first.locator(".name").inner_text()
    assert axe_violations(tab, "#longest") == ()
    tab.follow(longest.first.get_by_role("link"))
    assert name in tab.page.locator("#tree [aria-selected=true]").inner_text()
