"""Every kind of page, on every kind of store: it loads, everybody can use it, and it stays small."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.conftest import stores
from tests.browser.tabs import Tab
from tests.browser.walking import PHONE, WIDE, Seen, barriers_of, walk

ACCESSIBLE = ("empty", "shop", "hostile")
"""Where axe looks, too: it takes seconds a page, and other stores have the same pages."""
EVERY = stores("empty", "one", "long", "shop", "large", "transcripts", "wire", "hostile")
ELEMENTS = 10_000
"""How many elements a page may have beside its figures: bounded tables, whatever the store holds. Our choice."""
MARKS = 12_000
"""How many elements its figures may have in all. Our choice."""


@pytest.fixture(scope="session")
def walked(browser, store) -> Callable[[str], list[Seen]]:
    """The pages of a store, looked at once for all tests."""
    found: dict[str, list[Seen]] = {}

    def give(kind: str) -> list[Seen]:
        if kind not in found:
            with Tab.opened(browser, store(kind)) as tab:
                found[kind] = walk(tab, barriers=kind in ACCESSIBLE, queries=kind == "shop")
                tab.faults.clear()
                tab.check()
        return found[kind]

    return give


@EVERY
def test_every_page_loads_without_a_fault(kind: str, walked) -> None:
    """No error in the console, no violation of the policy, no request that fails or leaves; a title, a heading."""
    pages = walked(kind)
    assert {page.kind for page in pages} >= {"/", "/fleet", "/compare", "/sql"}
    found = [f"{page.path}: {each}" for page in pages for each in page.faults]
    assert not found, "\n".join(found)
    assert [page.path for page in pages if page.status != 200 or not page.heading] == []
    assert len({page.title for page in pages}) >= 4


@EVERY
def test_no_page_grows_with_what_is_stored(kind: str, walked) -> None:
    """A thousand turns or a hundred thousand sessions: a page has a bounded number of rows and marks."""
    sizes = {page.path: (page.elements, page.marks) for page in walked(kind)}
    assert {k: v for k, v in sizes.items() if v[0] > ELEMENTS or v[1] > MARKS} == {}


@stores(*ACCESSIBLE)
def test_nobody_is_kept_out(kind: str, walked) -> None:
    """Axe finds no barrier: names, roles, labels, headings, tables, the contrast in the light and in the dark."""
    found = [f"{page.path}: {each}" for page in walked(kind) for each in page.barriers]
    assert not found, "\n".join(found)


@EVERY
def test_no_page_is_wider_than_its_window(kind: str, walked) -> None:
    """Neither on a desk nor on a phone does a page scroll sideways; a wide table scrolls by itself."""
    assert {WIDE, PHONE} == set(walked(kind)[0].overflow)
    assert {
        p.path: p.overflow for p in walked(kind) if any(w > 0 for w in p.overflow.values())
    } == {}


@pytest.mark.xdist_group("browser-shop")
def test_axe_would_find_a_barrier(store, tabs) -> None:
    """The tests of barriers can fail: a picture without words and pale text are found."""
    tab = tabs(store("shop"))
    tab.go("/")
    tab.page.evaluate("""
        document.querySelector("main").insertAdjacentHTML("beforeend",
            '<img alt><img src="data:,x"><p id=pale>hard to read</p>');
        document.querySelector("#pale").style.color = "#b0b0b0";
    """)
    found = " ".join(barriers_of(tab))
    assert "image-alt" in found
    assert "color-contrast" in found
    tab.forgiven.append("inline style")


@pytest.mark.xdist_group("browser-shop")
def test_the_keyboard_does_not_stop_in_figures(store, tabs) -> None:
    """A drawn figure has a name, and nothing in it that takes the focus: the numbers stand in a table below it."""
    tab = tabs(store("shop"))
    tab.go("/fleet")
    tab.draw()
    figures = tab.page.get_by_role("figure")
    assert figures.count() == tab.page.locator("[data-figure][data-drawn]").count() > 3
    assert figures.locator(".modebar-btn").count() > 3
    stops = "all => all.filter((each) => each.tabIndex >= 0).map((each) => each.outerHTML)"
    assert tab.page.locator("[data-figure] *").evaluate_all(stops) == []
    assert [each for each in barriers_of(tab) if "nested" in each] == []


@pytest.mark.xdist_group("browser-shop")
def test_dark_is_dark_and_light_is_light(store, tabs) -> None:
    """The theme is that of the system, until somebody chooses; the choice outlasts the page."""
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
def test_a_page_prints_light_and_without_its_tools(store, tabs) -> None:
    """On paper a dark page is light, and has no navigation and no switches."""
    tab = tabs(store("shop"), color_scheme="dark")
    tab.go("/fleet")
    assert tab.page.locator("nav").is_visible()
    tab.page.emulate_media(media="print", color_scheme="dark")
    assert not tab.page.locator("nav").is_visible()
    assert not tab.page.locator("#theme").is_visible()
    assert _brightness(tab) > 200
    assert tab.page.pdf().startswith(b"%PDF")


@pytest.mark.xdist_group("browser-shop")
def test_times_are_in_the_readers_zone(store, tabs) -> None:
    """An instant stands in the zone of the browser, and the zone is named; the markup has it in UTC."""
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
    """How light the page is, 0 to 255."""
    color: str = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = (float(part) for part in color.split("(")[1].rstrip(")").split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
