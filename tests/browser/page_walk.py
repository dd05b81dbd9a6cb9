"""A walk through all kinds of pages of a dashboard, by its links, with what each page is measured by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.browser.tabs import Tab

RESIZED_MS = 2_000
"""How long figures may take until they fit a window of another size, on a machine that is busy."""
WIDE, PHONE = 1280, 390
"""Widths that pages are looked at in. [CSS pixels]"""
_ID = re.compile(r"(?<=/)[^/]*[0-9][^/]*")


@dataclass(frozen=True)
class Seen:
    """One page, as it was found."""

    path: str
    """With its query."""
    kind: str
    """The path without ids, and the names in the query."""
    status: int
    faults: tuple[str, ...]
    """What went wrong while it was loaded."""
    title: str
    heading: str
    """Its first heading; empty where it has none."""
    text: str
    """What can be read on it."""
    elements: int
    """Elements, those of figures left out."""
    marks: int
    """Elements in figures."""
    overflow: dict[int, int]
    """How much wider than the window it is, by the width of the window. [CSS pixels]"""
    barriers: tuple[str, ...]
    """What axe found, in the light and in the dark."""


def kind_of(path: str) -> str:
    """Return what pages of one kind have in common."""
    parts = urlsplit(path)
    names = sorted({name for name, value in parse_qsl(parts.query) if value})
    return _ID.sub("*", parts.path) + ("?" + "&".join(names) if names else "")


def walk(tab: Tab, *, barriers: bool = True, queries: bool = True) -> list[Seen]:
    """Go through the pages from the first one on, one of each kind.

    Args:
        tab: with the first page.
        barriers: whether axe looks, too, at one page of each kind.
        queries: whether pages with a query are looked at, too: filters, sorts, pages of a table.
    """
    waiting, known, looked = ["/"], {"/"}, set[str]()
    found: list[Seen] = []
    while waiting:
        path = waiting.pop(0)
        kind = kind_of(path)
        if kind in looked or ("?" in kind and not queries):
            continue
        looked.add(kind)
        # Of a page with another query the frame is known.
        found.append(look(tab, path, barriers=barriers and "?" not in kind))
        for link in links(tab):
            if link not in known:
                known.add(link)
                waiting.append(link)
    return found


def links(tab: Tab) -> list[str]:
    """Return the pages that a page leads to; no files."""
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


def look(tab: Tab, path: str, *, barriers: bool) -> Seen:
    """Open a page and measure it."""
    assert tab.served is not None
    page, before = tab.page, len(tab.faults)
    answered = page.goto(tab.served.origin + path)
    tab.settle()
    tab.draw()
    counted: dict[str, Any] = page.evaluate(_COUNTED)
    wide = {WIDE: _overflow(tab, WIDE)}
    found = barriers_of(tab) if barriers else ()
    wide[PHONE] = _overflow(tab, PHONE)
    page.set_viewport_size({"width": WIDE, "height": 800})
    return Seen(
        path=path,
        kind=kind_of(path),
        status=answered.status if answered else 0,
        faults=tuple(tab.faults[before:]),
        overflow=wide,
        barriers=found,
        **counted,
    )


def _overflow(tab: Tab, width: int) -> int:
    """How much wider than its window a page is, once its figures have followed the window."""
    tab.page.set_viewport_size({"width": width, "height": 800})
    wider: int = tab.page.evaluate(_WIDER, RESIZED_MS)
    return wider


def barriers_of(tab: Tab) -> tuple[str, ...]:
    """Return what axe finds that keeps people out, in the light, and of the colors in the dark, too."""
    from axe_playwright_python.base import AXE_SCRIPT

    tab.page.emulate_media(color_scheme="light")
    # The policy forbids scripts in the page; the browser's own console may run them.
    tab.page.evaluate(AXE_SCRIPT)
    found = [*_axe(tab, {"type": "tag", "values": STANDARDS})]
    tab.page.emulate_media(color_scheme="dark")
    tab.settle()
    found += [f"dark: {each}" for each in _axe(tab, {"type": "rule", "values": ["color-contrast"]})]
    tab.page.emulate_media(color_scheme="light")
    return tuple(found)


STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def _axe(tab: Tab, only: dict[str, Any]) -> list[str]:
    told = tab.page.evaluate(
        "(only) => axe.run({exclude: [['.js-plotly-plot > *']]}, {runOnly: only, resultTypes: ['violations']})",
        only,
    )
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} ({len(each['nodes'])})"
        for each in told["violations"]
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
