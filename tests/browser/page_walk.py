"""Visits one page of each kind of a dashboard through its links, and measures each page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.browser.tabs import Tab

RESIZED_MS = 2_000
"""The time limit for figures to adapt to another window size, even on a busy machine."""
WIDE, PHONE = 1280, 390
"""The window widths in which pages are visited. [CSS pixels]"""
_ID = re.compile(r"(?<=/)[^/]*[0-9][^/]*")


@dataclass(frozen=True)
class VisitedPage:
    """The properties of a visited page."""

    path: str
    """The path with its query string."""
    kind: str
    """The path without IDs, and the names in the query string."""
    status: int
    faults: tuple[str, ...]
    """The errors that occurred while the page was loaded."""
    title: str
    heading: str
    """The first heading; empty if there is none."""
    text: str
    """The visible text."""
    elements: int
    """The number of elements outside of figures."""
    marks: int
    """The number of elements in figures."""
    overflow: dict[int, int]
    """How much wider than the window the page is, by window width. [CSS pixels]"""
    barriers: tuple[str, ...]
    """The violations that axe found in both themes."""


def kind_of(path: str) -> str:
    """Return the kind of a page: its URL without IDs and values. Each tab is a separate kind."""
    parts = urlsplit(path)
    query = [(name, value) for name, value in parse_qsl(parts.query) if value]
    names = sorted({f"tab={value}" if name == "tab" else name for name, value in query})
    return _ID.sub("*", parts.path) + ("?" + "&".join(names) if names else "")


def _parts(kind: str) -> tuple[str, set[str]]:
    """Return a kind without filters but with its tab, and the names of its filters, sorts, and pages of a table."""
    path, _, query = kind.partition("?")
    names = set(query.split("&")) if query else set()
    tabs = {name for name in names if name.startswith("tab=")}
    return "?".join((path, *tabs)), names - tabs


def walk(tab: Tab, *, barriers: bool = True, queries: bool = True) -> list[VisitedPage]:
    """Follow the links from the first page, and visit one page of each kind, and of each kind one with each filter.

    Args:
        tab: the tab in which the pages are opened.
        barriers: whether axe also checks one page of each kind.
        queries: whether to visit pages with filters as well: filters, sorts, pages of a table.
    """
    waiting, known, looked = ["/"], {"/"}, dict[str, set[str]]()
    found: list[VisitedPage] = []
    while waiting:
        path = waiting.pop(0)
        page, filters = _parts(kind_of(path))
        visited = looked.setdefault(page, set())
        if (filters or {""}) <= visited or (filters and not queries):
            continue
        visited |= filters or {""}
        # Only the main part of a page with a filter is new.
        found.append(visit(tab, path, barriers=barriers and not filters))
        for link in links(tab):
            if link not in known:
                known.add(link)
                waiting.append(link)
    return found


def links(tab: Tab) -> list[str]:
    """Return the links of a page to other pages, without downloads."""
    assert tab.served is not None
    found: list[str] = tab.page.eval_on_selector_all(
        "main a[href]:not([download]), header a[href]:not([download])",
        "all => all.map((a) => a.href)",
    )
    own = tab.served.origin + "/"
    return [
        url.partition("#")[0].removeprefix(tab.served.origin)
        for url in found
        if url.startswith(own)
    ]


def visit(tab: Tab, path: str, *, barriers: bool) -> VisitedPage:
    """Open a page and measure it."""
    assert tab.served is not None
    page, before = tab.page, len(tab.faults)
    answered = page.goto(tab.served.origin + path)
    tab.settle()
    tab.draw()
    counted: dict[str, Any] = page.evaluate(_COUNTED)
    wide = {WIDE: _overflow(tab, WIDE)}
    found = axe_violations(tab) if barriers else ()
    wide[PHONE] = _overflow(tab, PHONE)
    page.set_viewport_size({"width": WIDE, "height": 800})
    return VisitedPage(
        path=path,
        kind=kind_of(path),
        status=answered.status if answered else 0,
        faults=tuple(tab.faults[before:]),
        overflow=wide,
        barriers=found,
        **counted,
    )


def _overflow(tab: Tab, width: int) -> int:
    """Return by how much a page is wider than its window, after its figures were resized."""
    tab.page.set_viewport_size({"width": width, "height": 800})
    wider: int = tab.page.evaluate(_WIDER, RESIZED_MS)
    return wider


def axe_violations(tab: Tab, part: str = "html") -> tuple[str, ...]:
    """Return the accessibility violations that axe finds, in the light theme, and for colors also in the dark theme.

    Args:
        tab: the tab.
        part: a selector of the part of the page that is checked.
    """
    from axe_playwright_python.base import AXE_SCRIPT

    tab.page.emulate_media(color_scheme="light")
    # The policy blocks scripts in the page, but the browser's console may run them.
    tab.page.evaluate(AXE_SCRIPT)
    found = [*_axe(tab, part, {"type": "tag", "values": STANDARDS})]
    tab.page.emulate_media(color_scheme="dark")
    tab.settle()
    colors = {"type": "rule", "values": ["color-contrast"]}
    found += [f"dark: {each}" for each in _axe(tab, part, colors)]
    tab.page.emulate_media(color_scheme="light")
    return tuple(found)


STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def _axe(tab: Tab, part: str, only: dict[str, Any]) -> list[str]:
    result = tab.page.evaluate(
        "([part, only]) => axe.run({include: [[part]], exclude: [['.js-plotly-plot > *']]}, "
        "{runOnly: only, resultTypes: ['violations']})",
        [part, only],
    )
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} ({len(each['nodes'])})"
        for each in result["violations"]
    ]


_WIDER = """
async (patience) => {
    const wider = () => document.documentElement.scrollWidth - Math.ceil(document.body.getBoundingClientRect().width);
    const until = performance.now() + patience;
    do await new Promise((seen) => requestAnimationFrame(() => setTimeout(seen, 20)));
    while (wider() > 0 && performance.now() < until);
    return wider();
}
"""
_COUNTED = """
() => ({
    title: document.title,
    heading: document.querySelector("h1")?.innerText || "",
    text: document.body.innerText,
    elements: document.querySelectorAll("*:not(.js-plotly-plot *)").length,
    marks: document.querySelectorAll(".js-plotly-plot *").length,
})
"""
