"""Every kind of page loads without errors, is accessible, and stays small, for every kind of store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.conftest import stores
from tests.browser.page_walk import PHONE, WIDE, VisitedPage, axe_violations, walk
from tests.browser.tabs import Tab

ACCESSIBLE = ("empty", "shop", "hostile")
"""The stores whose pages axe checks. Each page takes seconds, and other stores have the same kinds of pages."""
EVERY = stores("empty", "one", "long", "shop", "large", "transcripts", "wire", "hostile")
ELEMENTS = 10_000
"""The maximum number of elements of a page without its figures, for any store. Our choice."""
MARKS = 12_000
"""The maximum total number of elements of the figures of a page. Our choice."""


@pytest.fixture(scope="session")
def walked(browser, store) -> Callable[[str], list[VisitedPage]]:
    """The visited pages of a store; all tests share them."""
    found: dict[str, list[VisitedPage]] = {}

    def give(kind: str) -> list[VisitedPage]:
        if kind not in found:
            with Tab.opened(browser, store(kind)) as tab:
                found[kind] = walk(tab, barriers=kind in ACCESSIBLE, queries=kind == "shop")
                tab.faults.clear()
                tab.check()
        return found[kind]

    return give


@EVERY
def test_every_page_loads_without_errors(kind: str, walked) -> None:
    """No page has a console error, a policy violation, a failed request or a request to another site.

    Each page has a title and a heading.
    """
    pages = walked(kind)
    assert {page.kind for page in pages} >= {"/", "/fleet", "/compare", "/sql"}
    found = [f"{page.path}: {each}" for page in pages for each in page.faults]
    assert not found, "\n".join(found)
    assert [page.path for page in pages if page.status != 200 or not page.heading] == []
    assert len({page.title for page in pages}) >= 4


@EVERY
def test_the_size_of_pages_is_bounded(kind: str, walked) -> None:
    """A page has a bounded number of elements and marks, even with a thousand turns or twenty thousand sessions."""
    sizes = {page.path: (page.elements, page.marks) for page in walked(kind)}
    assert {k: v for k, v in sizes.items() if v[0] > ELEMENTS or v[1] > MARKS} == {}


@stores(*ACCESSIBLE)
def test_pages_are_accessible(kind: str, walked) -> None:
    """Axe finds no violation in names, roles, labels, headings, tables, and contrast in both themes."""
    found = [f"{page.path}: {each}" for page in walked(kind) for each in page.barriers]
    assert not found, "\n".join(found)


@EVERY
def test_no_page_is_wider_than_its_window(kind: str, walked) -> None:
    """No page scrolls horizontally, on a desktop or on a phone; only wide tables scroll."""
    assert {WIDE, PHONE} == set(walked(kind)[0].overflow)
    assert {
        p.path: p.overflow for p in walked(kind) if any(w > 0 for w in p.overflow.values())
    } == {}


@pytest.mark.xdist_group("browser-shop")
def test_axe_finds_violations(store, tabs) -> None:
    """The accessibility check finds an image without alternative text and low contrast."""
    tab = tabs(store("shop"))
    tab.go("/")
    tab.page.evaluate("""
        document.querySelector("main").insertAdjacentHTML("beforeend",
            '<img alt><img src="data:,x"><p id=pale>hard to read</p>');
        document.querySelector("#pale").style.color = "#b0b0b0";
    """)
    found = " ".join(axe_violations(tab))
    assert "image-alt" in found
    assert "color-contrast" in found
    tab.forgiven.append("inline style")


@pytest.mark.xdist_group("browser-shop")
def test_figures_are_not_focusable(store, tabs) -> None:
    """A drawn figure has a name and no focusable element; its data is in a table below it."""
    tab = tabs(store("shop"))
    tab.go("/fleet")
    tab.draw()
    figures = tab.page.get_by_role("figure")
    assert figures.count() == tab.page.locator("[data-figure][data-drawn]").count() > 3
    assert figures.locator(".modebar-btn").count() > 3
    stops = "all => all.filter((each) => each.tabIndex >= 0).map((each) => each.outerHTML)"
    assert tab.page.locator("[data-figure] *").evaluate_all(stops) == []
    assert [each for each in axe_violations(tab) if "nested" in each] == []


@pytest.mark.xdist_group("browser-shop")
def test_themes(store, tabs) -> None:
    """The theme is the theme of the system until the user selects another one, which is kept."""
    tab = tabs(store("shop"), color_scheme="dark")
    tab.go("/fleet")
    assert _brightness(tab) < 60
    tab.page.select_option("#theme", "light")
    assert _brightness(tab) > 200
    tab.go("/")
    assert _brightness(tab) > 200
    tab.page.select_option("#theme", "")
    assert _brightness(tab) < 60


@pytest.mark.xdist_group("browser-shop")
def test_pages_print_light_and_without_controls(store, tabs) -> None:
    """A printed page is light, even with a dark theme, and has no navigation and no controls."""
    tab = tabs(store("shop"), color_scheme="dark")
    tab.go("/fleet")
    assert tab.page.locator("nav").is_visible()
    tab.page.emulate_media(media="print", color_scheme="dark")
    assert not tab.page.locator("nav").is_visible()
    assert not tab.page.locator("#theme").is_visible()
    assert _brightness(tab) > 200
    assert tab.page.pdf().startswith(b"%PDF")


@pytest.mark.xdist_group("browser-shop")
def test_times_are_in_the_time_zone_of_the_user(store, tabs) -> None:
    """Times are shown in the browser's time zone, which is named; the HTML contains UTC."""
    shown = {}
    for zone in ("Asia/Tokyo", "America/New_York"):
        tab = tabs(store("shop"), timezone_id=zone)
        first = tab.go("/").locator("main time").first
        shown[zone] = (first.get_attribute("datetime"), first.inner_text())
        assert tab.page.locator("#zone").inner_text() == f"Times: {zone}"
        days = tab.page.locator("#found time").evaluate_all(_DAYS)
        others = [(utc, text) for utc, text in days if not text.startswith(utc)]
        assert 0 < len(others) < len(days)
        assert all(text.endswith(f" {utc} in UTC") for utc, text in others)
        assert not any("UTC" in text for utc, text in days if text.startswith(utc))
    (utc, tokyo), (same, york) = shown.values()
    assert utc is not None
    assert utc == same
    assert utc.endswith("Z")
    assert tokyo != york


_DAYS = """
all => all.map((each) => [each.dateTime.slice(0, 10), each.textContent])
"""


def _brightness(tab: Tab) -> float:
    """Return the brightness of the page, from 0 to 255."""
    color: str = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = (float(part) for part in color.split("(")[1].rstrip(")").split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
