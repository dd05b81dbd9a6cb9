"""Saved views, columns, sticky headers, and the links from figures and SQL results to lists and sessions."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.page_walk import axe_violations
from tests.browser.tabs import Held, Tab

pytestmark = pytest.mark.xdist_group("browser-shop")
PHONE = {"width": 390, "height": 844}
TOPS = """
(region) => {
    region.scrollTop = 300;
    const head = region.querySelector("thead th:last-child").getBoundingClientRect();
    return [Math.round(head.top - region.getBoundingClientRect().top), region.scrollTop];
}
"""


@pytest.fixture
def tab(store, tabs) -> Tab:
    found: Tab = tabs(store("shop"), viewport={"width": 1280, "height": 720})
    return found


def parameters(tab: Tab) -> dict[str, list[str]]:
    return parse_qs(urlsplit(tab.page.url).query)


def test_a_view_is_saved_and_opened_with_the_keyboard(tab: Tab) -> None:
    """With the keyboard alone, a user chooses columns, saves the view, opens it again and deletes it."""
    page = tab.go("/?status=failed&sort=-cost")
    page.locator("#columns summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("checkbox", name="Duration").focus()
    page.keyboard.press("Space")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    tab.settle()
    assert parameters(tab)["columns"] == ["status,started,model,turns,tools,tokens,cost,signatures"]
    assert page.get_by_role("columnheader", name="Duration").count() == 0
    page.locator("#views summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("textbox", name="Save the current view as").focus()
    page.keyboard.type("Failed & expensive")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    tab.go("/")
    page.locator("#views summary").click()
    tab.follow(page.get_by_role("link", name="Failed & expensive"))
    assert {name: values[0] for name, values in parameters(tab).items()} == {
        "status": "failed", "sort": "-cost",
        "columns": "status,started,model,turns,tools,tokens,cost,signatures",
    }  # fmt: skip
    assert set(page.locator("#found tbody .status").all_inner_texts()) == {"✕ failed"}
    page.locator("#views summary").click()
    page.keyboard.press("Escape")
    assert not page.locator("#views ul").is_visible()
    assert page.evaluate("document.activeElement.parentElement.id") == "views"
    page.keyboard.press("Enter")
    with page.expect_navigation():
        page.get_by_role("button", name="Delete the view Failed & expensive").click()
    assert page.locator("#views summary").inner_text() == "Views"
    assert parameters(tab)["status"] == ["failed"]


def test_the_old_list_is_dimmed_while_a_search_runs(tab: Tab) -> None:
    """Until the result of a search arrives, the page shows `searching …`, and the old list is dimmed."""
    page = tab.go("/")
    page.route("**/?q=*", lambda route: waiting.append(route))
    waiting: list[Any] = []
    page.locator("[name=q]").fill("nightly")
    found = page.locator("#found[aria-busy=true]")
    found.wait_for()
    content = "each => getComputedStyle(each, '::after').content"
    assert found.evaluate(content) == '"searching …"'
    assert page.locator("#announced").inner_text() == "searching …"
    assert float(found.locator("form.panel").evaluate("e => getComputedStyle(e).opacity")) < 0.5
    [route] = waiting
    route.continue_()
    page.locator("#found[aria-busy=false]").wait_for()
    assert " of " in page.locator("#announced").inner_text()


def test_a_cleared_search_drops_the_one_that_runs(tab: Tab) -> None:
    """If the field is cleared before the result arrives, the list is no longer dimmed, and the result is dropped."""
    page = tab.go("/")
    rows = page.locator("#found tbody tr").count()
    held = Held(page, "**/?q=nightly")
    page.locator("[name=q]").fill("nightly")
    held.wait()
    page.locator("#found[aria-busy=true]").wait_for()
    page.locator("[name=q]").fill("")
    page.locator("#found[aria-busy=false]").wait_for()
    assert page.locator("#announced").inner_text() == "60 of 60 sessions"
    held.release()
    assert parameters(tab) == {}
    assert page.locator("[name=q]").input_value() == ""
    assert page.locator("#found tbody tr").count() == rows


@pytest.mark.parametrize("size", [{"width": 1280, "height": 720}, PHONE], ids=["desktop", "phone"])
def test_menus_are_accessible_and_headers_stay(store, tabs, size: dict[str, int]) -> None:
    """Open menus have no accessibility violation and fit the window. Headers stay visible while a table is scrolled."""
    tab = tabs(store("shop"), viewport=size)
    page = tab.go("/?sort=-attention")
    for menu in ("#views", "#columns"):
        page.locator(f"{menu} summary").click()
        assert axe_violations(tab, menu) == ()
        box = page.locator(f"{menu} > div").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size["width"]
    page.keyboard.press("Escape")
    page.set_viewport_size(size)
    sessions = page.get_by_role("group", name="Sessions", exact=True)
    below = page.locator("#rows-below span")
    if size == PHONE:
        # A list that is wider than the window scrolls in its own region, and states how many sessions follow.
        shift, scrolled = sessions.evaluate(TOPS)
        assert (shift, scrolled) == (0, 300)
        sessions.evaluate("each => each.scrollTop = 0")
        below.wait_for()
        assert re.fullmatch(r"▾ \d+ more below", below.inner_text())
        sessions.evaluate("each => each.scrollTop = each.scrollHeight")
        below.wait_for(state="hidden")
    else:
        page.evaluate("scrollTo(0, 600)")
        assert sessions.evaluate("each => each.scrollHeight - each.clientHeight") == 0
        assert page.locator("thead th").last.bounding_box()["y"] == 0
        assert not below.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    tab.go("/sql")
    page.locator("#statement").fill("SELECT * FROM attempts LIMIT 40")
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector("#result table")
    shift, scrolled = page.get_by_role("group", name="Query result").evaluate(TOPS)
    assert (shift, scrolled) == (0, 300)
    assert axe_violations(tab, "#result") == ()


def test_bars_and_data_of_the_fleet_page_open_the_list(tab: Tab) -> None:
    """A click on a bar opens the list of its sessions, and the table of the figure has the same link."""
    page = tab.go("/fleet")
    tab.draw()
    for figure, name, value in (
        ("cost-by-model", "model", "claude-opus-5-5"),
        ("cost-by-name", "q", "nightly-audit"),
        ("tool-errors", "q", "refund"),
        ("cost-by-day", "day_to", None),
        ("signatures", "day_to", None),
    ):
        data = page.locator(f"#{figure} details.data")
        data.locator("summary").focus()
        page.keyboard.press("Enter")
        links = data.locator("tbody a").evaluate_all(
            "all => all.map((a) => a.getAttribute('href'))"
        )
        bars = page.locator(
            f"[data-figure={figure}] .points path, [data-figure={figure}] .points .point path"
        )
        bars.first.scroll_into_view_if_needed()
        box = bars.first.bounding_box()
        assert box is not None
        with page.expect_navigation():
            page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tab.settle()
        opened = parameters(tab)
        assert "day_from" in opened
        assert value is None or opened[name] == [value]
        assert int(page.locator("#found tbody tr").count()) > 0
        if figure != "signatures":
            assert opened in [parse_qs(urlsplit(link).query) for link in links]
        tab.back()
        tab.draw()


def test_sessions_are_chosen_with_the_keyboard(tab: Tab) -> None:
    """The first Tab stop skips to the sessions, j and k move between them, Enter opens one, / starts a search."""
    page = tab.go("/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "list"
    names = page.locator("#found td.session .row-name > a")
    addresses = names.evaluate_all("all => all.map((a) => a.getAttribute('href'))")
    reached = []
    for key in ("j", "j", "j", "k", "k", "k"):
        page.keyboard.press(key)
        reached.append(page.evaluate("document.activeElement.getAttribute('href')"))
    assert reached == [addresses[at] for at in (0, 1, 2, 1, 0, 0)]
    page.keyboard.press("/")
    page.keyboard.type("j")
    assert page.locator("#filters input[type=search]").input_value() == "j"
    tab.go("/")
    page.keyboard.press("j")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert urlsplit(page.url).path == addresses[0]


def test_ids_in_a_result_open_the_session(tab: Tab) -> None:
    """A session ID in an SQL result is a link, and a result is downloaded as CSV."""
    page = tab.go("/sql")
    page.locator("#statement").fill("SELECT session_id, name FROM sessions LIMIT 3")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#result")
    with page.expect_download() as started:
        page.get_by_role("button", name="CSV").click()
    assert started.value.suggested_filename == "query.csv"
    assert re.match(r"session_id,name\s", started.value.path().read_text())
    session_id = page.locator("#result td a").first.inner_text()
    tab.follow(page.locator("#result td a").first)
    assert page.url.endswith(f"/sessions/{session_id}")
    # A download ends the navigation that it started.
    tab.forgiven.append("query.csv")
