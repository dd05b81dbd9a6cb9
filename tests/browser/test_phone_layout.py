"""Pages on a phone: wide figures keep their width and scroll, and filters leave space for the list."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentobs.store.backend import open_store
from dashboards.report.html_report import session_report
from tests.browser.tabs import Tab
from tests.store.recordings import a_home, attempt, end, record, session_id, start

pytestmark = pytest.mark.xdist_group("browser-printing")


def test_the_waterfall_is_readable_on_a_phone(tabs, tmp_path: Path) -> None:
    """On a phone, the waterfall scrolls in its own region, also by keyboard, so that bars and names have enough space.

    The page is not wider than the window.
    """
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), attempt(1, 2), end(1)])
    path = tmp_path / "report.html"
    with open_store(home) as store:
        path.write_text(session_report(store, session_id(1), made_ns=0), "utf-8")
    tab: Tab = tabs(None, offline=True, viewport={"width": 390, "height": 844})
    tab.page.goto(path.as_uri())
    tab.settle()
    figure = tab.page.locator("[data-figure=waterfall]")
    figure.scroll_into_view_if_needed()
    figure.locator(".nsewdrag").first.wait_for(state="attached")
    plot = figure.locator(".nsewdrag").first.bounding_box()
    assert plot is not None
    assert plot["width"] > 500
    region = tab.page.get_by_role("group", name="Waterfall (figure)")
    region.focus()
    assert region.evaluate(
        "each => each === document.activeElement && each.scrollWidth > each.clientWidth"
    )
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_comparison_needs_no_scrolling_to_the_side_on_a_phone(store, tabs) -> None:
    """On a phone, the cells of each row of a comparison are below each other, with the letter of their session: neither
    the page nor a table is wider than the window, and no table scrolls on its own.
    """
    tab: Tab = tabs(store("shop"), viewport={"width": 390, "height": 844})
    tab.settle()
    links = tab.page.locator("#found td.session a[href^='/sessions/']").evaluate_all(
        "all => [...new Set(all.map(each => each.pathname.split('/')[2]))]"
    )
    tab.go(f"/compare?a={links[0]}&b={links[1]}")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    for name in ("Totals of both sessions", "The step in both sessions", "Steps of both sessions"):
        region = tab.page.get_by_role("group", name=name)
        assert region.evaluate("each => each.scrollWidth <= each.clientWidth"), name
        assert region.evaluate("each => each.scrollHeight <= each.clientHeight"), name
        boxes = region.locator("td:visible").evaluate_all(
            "all => all.map(each => each.getBoundingClientRect()).map(box => [box.left, box.right])"
        )
        assert boxes
        assert all(left >= 0 and right <= 390 for left, right in boxes), name
    total = tab.page.get_by_role("group", name="Totals of both sessions").locator(
        "tr", has_text="Turns"
    )
    one, other = (total.locator(f"td[data-label={each}]").bounding_box() for each in ("A", "B"))
    assert one is not None
    assert other is not None
    assert one["y"] == other["y"]
    assert one["x"] < other["x"]
    label = total.locator("td[data-label=A]").evaluate(
        "each => getComputedStyle(each, '::before').content"
    )
    assert "A" in label


def test_the_sessions_begin_on_the_first_screen_of_a_phone(store, tabs) -> None:
    """On a phone, several sessions are visible below the filters without scrolling; all filters can be reached.

    The page is not wider than the window.
    """
    tab: Tab = tabs(store("shop"), viewport={"width": 390, "height": 844})
    tab.settle()
    third = tab.page.locator("#found tbody tr td.session").nth(2).bounding_box()
    assert third is not None
    assert third["y"] + third["height"] < 844
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    last = tab.page.locator("#filters button[type=submit]")
    last.focus()
    box = last.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390
