"""Screenshots of every page: light, dark, and on a phone.

`python -m tests.browser.screenshots FOLDER` takes all of them. `python -m tests.browser.screenshots --readme` writes
those of the README to docs/images.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from tests.browser.conftest import arguments, chromium
from tests.browser.store_builders import MAKERS, ROOT
from tests.browser.tabs import Tab, serving

IMAGES = ROOT / "docs" / "images"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
README = {
    "sessions": ("sessions", "light", 800),
    "session": ("session", "light", 1100),
    "compare": ("compare", "light", 900),
}
"""The screenshots of the README: the page, the theme, and the visible part in CSS pixels."""


def pages(tab: Tab) -> Iterator[str]:
    """Open each page in turn, and yield its name."""
    tab.go("/")
    yield "sessions"
    tab.go("/?status=failed&sort=-cost")
    yield "filtered"
    tab.go("/fleet")
    yield "fleet"
    found = _links(tab, "/?sort=-turns&q=nightly", "#found .row-name a[href^='/sessions/']")
    session, other = found[0], found[1]
    tab.go(session)
    yield "session"
    tab.go(session + "?tab=transcript")
    tab.page.get_by_role("button", name="Show transcript").click()
    tab.page.wait_for_selector("#transcript article")
    tab.settle()
    yield "transcript"
    attempt = _links(tab, session + "?tab=steps", "#steps tbody a[href^='/attempts/']")[4]
    tab.go(attempt)
    yield "attempt"
    # Since the click on the transcript, content is shown without further clicks.
    tab.page.wait_for_selector("#exchange pre", state="attached")
    yield "exchange"
    tab.go(attempt + "/diff")
    tab.page.wait_for_selector("[data-content] pre", state="attached")
    tab.settle()
    yield "diff"
    tab.go(session + "/ledger")
    yield "ledger"
    tab.go("/compare")
    yield "choose"
    tab.go(f"/compare?a={session.rpartition('/')[2]}&b={other.rpartition('/')[2]}")
    tab.page.wait_for_selector(".pair")
    yield "compare"
    tab.go("/sql?query=cost_by_model")
    tab.page.get_by_role("button", name="Run", exact=True).click()
    tab.page.wait_for_selector("#result")
    yield "sql"
    tab.go("/sql/tables")
    yield "tables"
    tab.go("/sessions/nobody")
    yield "not-found"


def _links(tab: Tab, path: str, selector: str) -> list[str]:
    tab.go(path)
    found: list[str] = tab.page.locator(selector).evaluate_all(
        "all => [...new Set(all.map((a) => a.getAttribute('href').split('#')[0]))]"
    )
    return found


def take_screenshots(
    browser: Browser, store: str, folder: Path, names: set[str] | None = None
) -> None:
    """Take screenshots of all pages of a store, or only of the named pages, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as kept,
        serving(MAKERS[store](Path(kept) / store)) as served,
    ):
        for look, how in LOOKS.items():
            with Tab.opened(browser, served, **how) as tab:
                for name in pages(tab):
                    if names is None or name in names:
                        _full_page(tab, folder / f"{name}-{look}.png")


def _full_page(tab: Tab, path: Path) -> None:
    """Take a screenshot of the full page, with every figure drawn."""
    tab.draw()
    tab.page.screenshot(path=path, full_page=True)


def for_readme(browser: Browser) -> None:
    """Take the screenshots of the README."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as kept,
        serving(MAKERS["shop"](Path(kept) / "shop")) as served,
    ):
        for name, (page, look, height) in README.items():
            how = {**LOOKS[look], "viewport": {"width": 1280, "height": height}}
            with Tab.opened(browser, served, **how) as tab:
                next(each for each in pages(tab) if each == page)
                tab.settle()
                tab.page.screenshot(path=IMAGES / f"{name}.png")


def main() -> None:
    """Take the requested screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--store", default="shop", choices=sorted(MAKERS))
    parser.add_argument("--page", action="append", help="only this one")
    parser.add_argument("--readme", action="store_true")
    asked = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments())
        if asked.readme:
            for_readme(browser)
        if asked.folder:
            take_screenshots(
                browser, asked.store, asked.folder, set(asked.page) if asked.page else None
            )
        browser.close()


if __name__ == "__main__":
    main()
