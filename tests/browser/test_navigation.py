"""From the list to a session, to an attempt, to what changed: by the mouse, by the keyboard alone, and back."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from tests.browser.tabs import Tab

pytestmark = pytest.mark.xdist_group("browser-shop")
PROMPT = re.compile(r"Where is order 4\d\d\d\?")
ANSWER = re.compile(r"is paid and was sent on Monday")
THOUGHT = "The number may be wrong"
SHOW = "Show transcript"


@pytest.fixture
def tab(store, tabs) -> Tab:
    """A tab with the list of sessions of a team."""
    opened: Tab = tabs(store("shop"))
    opened.settle()
    return opened


def test_from_the_list_to_what_changed_and_back(tab: Tab) -> None:
    """List, session, attempt, difference to the request before; the back button goes the same way back."""
    page = tab.page
    way = [page.url]
    _follow(
        tab,
        page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']").nth(4),
        r"/sessions/\w+$",
    )
    way.append(page.url)
    heading = page.locator("h1").inner_text()
    _follow(tab, page.locator("#steps tbody a[href^='/attempts/']").last, r"/attempts/\w+$")
    way.append(page.url)
    assert "claude" in page.locator("main").inner_text()
    _follow(tab, page.locator("main a[href$='/diff']").first, "/diff")
    assert page.locator("h1").inner_text()
    for url in reversed(way):
        tab.back()
        assert page.url == url
    page.go_forward()
    tab.settle()
    assert page.locator("h1").inner_text() == heading


def test_nothing_that_was_said_comes_before_a_click(tab: Tab) -> None:
    """Not in the page and not in any answer of the server; after the click it is there, as text."""
    bodies: list[str] = []

    def keep(route) -> None:
        # Names under `localhost` are found by browsers; what fetches here asks a resolver, which may not know them.
        parts = urlsplit(route.request.url)
        there = parts._replace(netloc=f"127.0.0.1:{parts.port}").geturl()
        answer = route.fetch(
            url=there, headers={**route.request.all_headers(), "host": parts.netloc}
        )
        bodies.append(answer.text())
        route.fulfill(response=answer)

    tab.page.route(re.compile(r"/(sessions|attempts|compare|fleet|revision|$)"), keep)
    session = _a_session(tab)
    tab.go(session)
    for path in (_first(tab, "a[href^='/attempts/']"), f"{session}/ledger", "/", "/fleet"):
        tab.go(path)
    assert len(bodies) >= 5
    said = [word for body in bodies for word in _words_in(body)]
    assert said == []
    tab.go(session)
    assert not _words_in(tab.page.content())
    tab.page.get_by_role("button", name=SHOW).click()
    tab.page.wait_for_selector("#transcript pre", state="attached")
    shown = tab.page.locator("#transcript").inner_text()
    assert PROMPT.search(shown)
    assert ANSWER.search(shown)
    assert len(_words_in("".join(bodies))) >= 2


def test_what_was_thought_is_folded(tab: Tab) -> None:
    """Thinking stands in the transcript, but only who opens it reads it."""
    tab.go(_a_session(tab))
    tab.page.get_by_role("button", name=SHOW).click()
    tab.page.wait_for_selector("#transcript pre", state="attached")
    thought = tab.page.locator("#transcript details", has_text=THOUGHT).first
    assert THOUGHT not in thought.inner_text()
    thought.locator("summary").click()
    assert THOUGHT in thought.inner_text()


def test_the_exact_request_and_response_come_by_a_click(tab: Tab) -> None:
    """An attempt shows its facts; on demand the body that was sent and the stream that came, and both as files."""
    tab.go(_a_session(tab))
    tab.go(_first(tab, "#steps a[href^='/attempts/']"))
    page = tab.page
    assert "anthropic-version" not in page.content()
    for button in page.locator("form[data-into] button").all():
        button.click()
    page.wait_for_function("() => document.querySelectorAll('[data-said] pre').length >= 2")
    tab.settle()
    shown = page.locator("main").inner_text()
    assert "anthropic-version" in shown
    assert '"max_tokens": 4096' in shown
    with page.expect_download() as saved:
        page.get_by_role("button", name=re.compile("Save|Download")).first.click()
    name = saved.value.suggested_filename
    assert name.endswith((".txt", ".json"))


def test_two_sessions_are_compared(tab: Tab) -> None:
    """Two are ticked in the list; both stand side by side, with what differs in words."""
    boxes = tab.page.locator("#found tbody input[type=checkbox]")
    boxes.nth(1).check()
    boxes.nth(2).check()
    tab.follow(tab.page.get_by_role("button", name="Compare selected"))
    assert re.search(r"/compare\?a=\w+&b=\w+", tab.page.url)
    assert tab.page.locator("main [data-figure]").count() >= 1
    assert tab.page.locator("main table").count() >= 1


def test_a_question_in_sql_is_answered_and_a_wrong_one_explained(tab: Tab) -> None:
    """A SELECT is answered as a table; what writes, or reads a file, is refused in words."""
    page = tab.go("/sql")
    _ask(tab, "SELECT status, count(*) AS sessions FROM sessions GROUP BY status ORDER BY status")
    assert page.locator("#answer thead").inner_text().split() == ["status", "sessions"]
    assert "completed" in page.locator("#answer tbody").inner_text()
    for statement in (
        "DELETE FROM attempts",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT nothing",
    ):
        _ask(tab, statement)
        assert "Query failed" in page.locator("#answer").inner_text()
        assert "root:" not in page.locator("main").inner_text()
        assert page.locator("#statement").input_value() == statement
    _ask(tab, "SELECT range AS n FROM range(100000)")
    assert page.locator("#answer tbody tr").count() == 200


def test_the_keyboard_reaches_everything_and_shows_where_it_is(tab: Tab) -> None:
    """Tab alone comes to each link, field and button of a page, and each is marked when it is reached."""
    session = _a_session(tab)
    tab.go(session)
    attempt = _first(tab, "#steps a[href^='/attempts/']")
    for path in ("/", session, attempt, "/fleet", "/sql"):
        tab.go(path)
        missed = _tabbed_through(tab)
        assert missed == {"unreached": [], "unmarked": []}, path


def test_the_keyboard_alone_goes_from_the_list_to_what_was_said(tab: Tab) -> None:
    """Tab to a session, Enter; Tab to its content, Enter; the focus is where the content is."""
    page = tab.page
    _tab_to(tab, "document.activeElement.matches('#found tbody a[href^=\"/sessions/\"]')")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    tab.settle()
    _tab_to(tab, f"document.activeElement.textContent.trim() === {SHOW!r}")
    page.keyboard.press("Enter")
    page.wait_for_selector("#transcript pre", state="attached")
    page.wait_for_function("() => document.activeElement.closest('#transcript') !== null")


def test_the_first_tab_stop_skips_to_the_content(tab: Tab) -> None:
    """Who comes by the keyboard need not walk through the navigation of every page."""
    tab.go("/sql")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "skip"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "main"


def _follow(tab: Tab, link, to: str) -> None:
    tab.follow(link)
    assert re.search(to, tab.page.url)


def _a_session(tab: Tab) -> str:
    """A session whose content is whole, by its path."""
    tab.go("/?status=completed&model=claude-sonnet-5-5")
    return _first(tab, "#found tbody a[href^='/sessions/']")


def _first(tab: Tab, selector: str) -> str:
    found = tab.page.locator(selector).first.get_attribute("href")
    assert found is not None
    return found


def _words_in(text: str) -> list[str]:
    return [word for word in (PROMPT, ANSWER, re.compile(THOUGHT)) if word.search(text)]  # type: ignore[misc]


def _ask(tab: Tab, statement: str) -> None:
    tab.page.get_by_label("Statement").fill(statement)
    tab.follow(tab.page.get_by_role("button", name="Run", exact=True))
    tab.page.wait_for_selector("#answer")


def _tab_to(tab: Tab, condition: str) -> None:
    for _ in range(400):
        tab.page.keyboard.press("Tab")
        if tab.page.evaluate(condition):
            return
    raise AssertionError(f"not reached: {condition}")


def _tabbed_through(tab: Tab) -> dict[str, list[str]]:
    """Press Tab from the beginning to the end of a page; what was not reached, or not marked when it was."""
    page = tab.page
    page.evaluate(_WATCH)
    for _ in range(2_000):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body || window.walk.again"):
            break
    told: dict[str, list[str]] = page.evaluate(_MISSED)
    return told


_WATCH = """
() => {
    document.activeElement.blur();
    const walk = window.walk = { reached: new Set(), unmarked: [], again: false };
    document.addEventListener("focusin", (event) => {
        const at = event.target, style = getComputedStyle(at);
        if (walk.reached.has(at)) walk.again = true;
        walk.reached.add(at);
        const isMarked = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
        if (!isMarked && style.boxShadow === "none") walk.unmarked.push(at.outerHTML.slice(0, 120));
    });
}
"""
_MISSED = """
() => {
    const can = "a[href], button, input, select, textarea, summary, [tabindex='0']";
    const all = [...document.querySelectorAll(can)].filter((each) =>
        each.type !== "hidden" && !each.disabled && each.tabIndex >= 0 &&
        each.checkVisibility({ visibilityProperty: true }));
    const unreached = all.filter((each) => !window.walk.reached.has(each));
    return { unreached: unreached.map((each) => each.outerHTML.slice(0, 120)), unmarked: window.walk.unmarked };
}
"""
