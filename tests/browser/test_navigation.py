"""Navigation from the list to a session, an attempt and its changes, by mouse or by keyboard, and back."""

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
    """A tab with a team's list of sessions."""
    opened: Tab = tabs(store("shop"))
    opened.settle()
    return opened


def test_from_the_list_to_the_changes_and_back(tab: Tab) -> None:
    """Links lead from the list to a session, an attempt and its changes; the back button returns in reverse order."""
    page = tab.page
    way = [page.url]
    _follow(
        tab,
        page.locator("#found tbody td:nth-child(2) a[href^='/sessions/']").nth(4),
        r"/sessions/\w+$",
    )
    way.append(page.url)
    heading = page.locator("h1").inner_text()
    _follow(tab, page.get_by_role("link", name="Steps", exact=True), r"\?tab=steps$")
    way.append(page.url)
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


def test_eight_sessions_are_visible_at_once(store, tabs) -> None:
    """In a window of 1280 by 720 pixels, eight sessions and their cost are visible, even with long titles."""
    tab: Tab = tabs(store("shop"), viewport={"width": 1280, "height": 720})
    bottoms = "all => all.map((row) => row.getBoundingClientRect().bottom)"
    for path in ("/", "/?sort=-attention"):
        tab.go(path)
        assert tab.page.locator("#first-to-open").count() == (path == "/")
        found = tab.page.locator("#found tbody tr").evaluate_all(bottoms)
        assert len([bottom for bottom in found if bottom <= 720]) >= 8
    titles = tab.page.locator(".row-title")
    assert titles.first.evaluate("each => each.getBoundingClientRect().width") > 150
    titles.evaluate_all("all => all.forEach((each) => { each.textContent = 'word '.repeat(50); })")
    # A long title has two lines, and then eight rows are still visible.
    assert titles.first.evaluate("each => each.getBoundingClientRect().height") == 29
    found = tab.page.locator("#found tbody tr").evaluate_all(bottoms)
    assert len([bottom for bottom in found if bottom <= 720]) >= 8
    cost = tab.page.get_by_role("columnheader", name="Cost").bounding_box()
    assert cost is not None
    assert cost["x"] + cost["width"] <= 1280


def test_no_content_before_a_click(tab: Tab) -> None:
    """Except titles of sessions, content is in no page and no response before a click; after it, it is shown as text.

    The title of a session is its first prompt.
    """
    bodies: list[str] = []

    def keep(route) -> None:
        # Browsers resolve names under `localhost` themselves; this client uses a resolver, which may not know them.
        parts = urlsplit(route.request.url)
        there = parts._replace(netloc=f"127.0.0.1:{parts.port}").geturl()
        answer = route.fetch(
            url=there, headers={**route.request.all_headers(), "host": parts.netloc}
        )
        bodies.append(answer.text())
        route.fulfill(response=answer)

    tab.page.route(re.compile(r"/(sessions|attempts|compare|fleet|revision|$)"), keep)
    session = _a_session(tab)
    tab.go(f"{session}?tab=steps")
    attempt = _first(tab, "a[href^='/attempts/']")
    for path in (attempt, session, f"{session}/ledger", "/", "/fleet"):
        tab.go(path)
    assert len(bodies) >= 5
    said = [word for body in bodies for word in _words_in(body)]
    assert set(said) <= {PROMPT}
    tab.go(f"{session}?tab=transcript")
    assert ANSWER not in _words_in(tab.page.content())
    tab.page.get_by_role("button", name=SHOW).click()
    tab.page.wait_for_selector("#transcript article")
    shown = tab.page.locator("#transcript").inner_text()
    assert PROMPT.search(shown)
    assert ANSWER.search(shown)
    assert len(_words_in("".join(bodies))) >= 2


def test_thinking_is_hidden_until_it_is_expanded(tab: Tab) -> None:
    """Thinking is in the transcript, but is hidden until the user expands it."""
    tab.go(f"{_a_session(tab)}?tab=transcript")
    tab.page.get_by_role("button", name=SHOW).click()
    tab.page.wait_for_selector("#transcript article")
    thought = tab.page.locator("#transcript details", has_text=THOUGHT).first
    assert THOUGHT not in thought.inner_text()
    thought.locator("summary").click()
    assert THOUGHT in thought.inner_text()


def test_request_and_response_on_demand(tab: Tab) -> None:
    """An attempt shows its facts, and on demand the request body, the response stream, and downloads of both."""
    tab.go(f"{_a_session(tab)}?tab=steps")
    tab.go(_first(tab, "#steps a[href^='/attempts/']"))
    page = tab.page
    assert "anthropic-version" not in page.content()
    for button in page.locator("form[data-into] button").all():
        button.click()
    page.wait_for_function("() => document.querySelectorAll('[data-content] pre').length >= 2")
    tab.settle()
    shown = page.locator("main").inner_text()
    assert "anthropic-version" in shown
    assert '"max_tokens": 4096' in shown
    with page.expect_download() as saved:
        page.get_by_role("button", name=re.compile("Save|Download")).first.click()
    name = saved.value.suggested_filename
    assert name.endswith((".txt", ".json"))


def test_two_sessions_are_compared(tab: Tab) -> None:
    """Two selected sessions are shown side by side, with their differences in words."""
    boxes = tab.page.locator("#found tbody input[type=checkbox]")
    boxes.nth(1).check()
    boxes.nth(2).check()
    tab.follow(tab.page.get_by_role("button", name="Compare selected"))
    assert re.search(r"/compare\?a=\w+&b=\w+", tab.page.url)
    assert tab.page.locator("main [data-figure]").count() >= 1
    assert tab.page.locator("main table").count() >= 1


def test_changed_words_of_two_sessions_are_shown_on_demand(tab: Tab) -> None:
    """The page opens at the first change of an outcome, and shows no text until a click; then other differences, such
    as the first change of content, show theirs without a click.
    """
    page = tab.page
    boxes = page.locator("#found tbody input[type=checkbox]")
    boxes.nth(1).check()
    boxes.nth(2).check()
    tab.follow(page.get_by_role("button", name="Compare selected"))
    assert "First change of outcome" in page.locator("#pair-title").inner_text()
    assert "First change of outcome" in page.locator("#summary").inner_text()
    assert page.locator("#pair pre").count() == 0
    page.get_by_role("button", name="Show changed text").click()
    page.wait_for_selector("#pair pre.edit")
    tab.follow(page.get_by_role("link", name="Next difference"))
    page.wait_for_selector("#pair [data-content] section")
    assert "step=" in page.url
    tab.follow(page.locator(".head .line", has_text="First change of content").get_by_role("link"))
    page.wait_for_selector("#pair [data-content] section")


def test_sql_queries_and_errors(tab: Tab) -> None:
    """A SELECT shows a table; a statement that writes or reads a file shows an error."""
    page = tab.go("/sql")
    _ask(tab, "SELECT status, count(*) AS sessions FROM sessions GROUP BY status ORDER BY status")
    assert page.locator("#result thead").inner_text().split() == ["status", "sessions"]
    assert "completed" in page.locator("#result tbody").inner_text()
    for statement in (
        "DELETE FROM attempts",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT nothing",
    ):
        _ask(tab, statement)
        assert "Query failed" in page.locator("#result").inner_text()
        assert "root:" not in page.locator("main").inner_text()
        assert page.locator("#statement").input_value() == statement
    _ask(tab, "SELECT range AS n FROM range(100000)")
    assert page.locator("#result tbody tr").count() == 200


def test_the_keyboard_reaches_everything_with_visible_focus(tab: Tab) -> None:
    """The Tab key reaches each link, field and button of a page, and the focused element is visibly marked."""
    session = _a_session(tab)
    tab.go(f"{session}?tab=steps")
    attempt = _first(tab, "#steps a[href^='/attempts/']")
    for path in (
        "/",
        session,
        f"{session}?tab=transcript",
        attempt,
        "/fleet",
        "/sql",
        f"{session}?tab=commands",
    ):
        tab.go(path)
        missed = _tab_through(tab)
        assert missed == {"unreached": [], "unmarked": []}, path


def test_the_keyboard_alone_opens_content(tab: Tab) -> None:
    """A session and its content can be opened with Tab and Enter; the focus then moves to the content."""
    page = tab.page
    _tab_to(tab, "document.activeElement.matches('#found tbody a[href^=\"/sessions/\"]')")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    tab.settle()
    _tab_to(tab, "document.activeElement.textContent.trim() === 'Transcript'")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    tab.settle()
    _tab_to(tab, f"document.activeElement.textContent.trim() === {SHOW!r}")
    page.keyboard.press("Enter")
    page.wait_for_selector("#transcript article")
    page.wait_for_function("() => document.activeElement.closest('#transcript') !== null")


def test_the_first_tab_stop_skips_to_the_main_content(tab: Tab) -> None:
    """The first Tab stop of a page is a link that skips the navigation, and in the list of sessions the filters."""
    for path, reached in (("/sql", "main"), ("/", "list"), (_a_session(tab), "main")):
        tab.go(path)
        tab.page.evaluate("document.body.dataset.same = 'yes'")
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.className") == "skip"
        with tab.page.expect_event("framenavigated"):
            tab.page.keyboard.press("Enter")
        assert tab.page.evaluate("document.activeElement.id") == reached
        # The page was not loaded again. The server has responded to a request that was sent after the key.
        tab.page.evaluate("fetch('/revision').then((response) => response.text())")
        assert tab.page.evaluate("document.body.dataset.same") == "yes"


def _follow(tab: Tab, link, to: str) -> None:
    tab.follow(link)
    assert re.search(to, tab.page.url)


def _a_session(tab: Tab) -> str:
    """Return the path of a session with complete content."""
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
    tab.page.wait_for_selector("#result")


def _tab_to(tab: Tab, condition: str) -> None:
    for _ in range(400):
        tab.page.keyboard.press("Tab")
        if tab.page.evaluate(condition):
            return
    raise AssertionError(f"not reached: {condition}")


def _tab_through(tab: Tab) -> dict[str, list[str]]:
    """Press Tab until the end of a page; return the elements that were not reached, or whose focus was not visible."""
    page = tab.page
    page.evaluate(_WATCH)
    for _ in range(2_000):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body || window.walk.again"):
            break
    result: dict[str, list[str]] = page.evaluate(_MISSED)
    return result


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
