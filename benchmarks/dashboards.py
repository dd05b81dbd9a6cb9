"""What looking costs: from asking for a page to its rows on the screen, in a real browser; and how large a report is.

The floor is the same page, byte for byte, with its scripts and styles, from a server of static files: what the browser
needs for it. What is above the floor is ours: reading the store and making the page. Chromium is the system's.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.report import Section, Verdict
from tests.browser import making
from tests.browser.conftest import arguments, chromium
from tests.browser.tabs import Served, Tab, serving
from tests.loopback import LoopbackServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROUNDS = 5
TURNS_OF_REPORT = 200
SIZES = {(): 6_000_000, ("--light",): 500_000}
"""How large a report of so many turns may be, by the options that it is written with. [bytes]"""
ROWS = "#found tbody tr, #steps tbody tr"
"""What is useful of a page: the rows of its table."""
APP, FLOOR = "the dashboard", "the same page as a file"

_NOTE = f"""
    const look = () => {{
        if (document.querySelector({ROWS!r})) {{
            requestAnimationFrame(() => setTimeout(() => {{ window.useful = performance.now(); }}));
        }} else requestAnimationFrame(look);
    }};
    look();
"""
"""Run before the page is loaded: notes when the first frame with rows was painted, in milliseconds after asking."""


def sections() -> Iterator[Section]:
    """Make the stores, look at their pages, write the reports."""
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        yield _looking(folder)
        yield _reports(folder)


def _looking(folder: Path) -> Section:
    """Ask for each page by turns: from the application, and as a file."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        raise SystemExit("no chromium was found: apt-get install chromium, or set CHROMIUM to one")
    with ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=path, args=arguments())
        # By an address of numbers: what asks beside the browser knows no names under localhost.
        large, long = (
            stack.enter_context(serving(home, "--loopback-address"))
            for home in (making.large(folder / "large"), making.long(folder / "long"))
        )
        pages = {
            f"the list of {making.SESSIONS:,} sessions": (large, "/"),
            "the same, by cost": (large, "/?sort=-cost"),
            "the same, a name searched for and failed ones alone": (
                large,
                "/?q=coder&status=failed",
            ),
            "its last page": (large, f"/?page={making.SESSIONS // 50}"),
            f"a session of {making.TURNS:,} turns": (long, _session(browser, long)),
            "the same, 25 turns of it": (long, _session(browser, long) + "?from=476&to=500"),
        }
        rows = tuple(
            (name, *_page(browser, served, path, folder)) for name, (served, path) in pages.items()
        )
        browser.close()
    return Section(
        "Looking at recordings",
        f"{ROUNDS} rounds, in which both take turns, each in a window of its own with nothing in its cache; "
        "milliseconds from asking for the page to the first frame with the rows of its table, medians. The floor is "
        "the same page as a file, with the same scripts and styles. Elements are those of the page once its figures "
        "are drawn.",
        ("page", "time to first useful paint", "floor", "over the floor", "bytes", "elements"),
        rows,
    )


def _session(browser: Browser, served: Served) -> str:
    with Tab.opened(browser, served) as tab:
        href = tab.page.locator("#found tbody a[href^='/sessions/']").first.get_attribute("href")
    assert href is not None
    return href.partition("#")[0]


def _page(browser: Browser, served: Served, path: str, folder: Path) -> tuple[str, ...]:
    """Measure one page; the cells of its row."""
    still = folder / "still"
    shutil.rmtree(still, ignore_errors=True)
    elements, size = _kept(browser, served, path, still)
    handler = partial(_Files, directory=str(still))
    server = LoopbackServer(handler)  # type: ignore[arg-type]
    server.start()
    try:
        pairs = [
            (_useful_ms(browser, served, path), _useful_ms(browser, None, server.base_url + "/"))
            for _ in range(ROUNDS)
        ]
    finally:
        server.stop()
    ours, floor = (median(side) for side in zip(*pairs, strict=True))
    over = median(a / b for a, b in pairs)
    return (f"{ours:,.0f}", f"{floor:,.0f}", f"{over:.2f}", f"{size:,}", f"{elements:,}")


class _Files(SimpleHTTPRequestHandler):
    """Serves a folder, and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _kept(browser: Browser, served: Served, path: str, folder: Path) -> tuple[int, int]:
    """Keep a page and what it loads as files; how many elements it has in the end, and how many bytes it is."""
    with Tab.opened(browser, served) as tab:
        tab.go(path)
        tab.draw()
        count: int = tab.page.evaluate("document.querySelectorAll('*').length")
        urls = [served.origin + path, *(url for url in tab.requested if "/assets/" in url)]
        for url in dict.fromkeys(urls):
            body = tab.page.request.get(url).body()
            name = urlsplit(url).path if "/assets/" in url else "/index.html"
            (folder / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            (folder / name[1:]).write_bytes(body)
    return count, (folder / "index.html").stat().st_size


def _useful_ms(browser: Browser, served: Served | None, path: str) -> float:
    """Open a page in a new window; after how many milliseconds its rows were there."""
    with Tab.opened(browser, None) as tab:
        if served:
            # The cookie, without a page that would fill the cache.
            tab.page.request.get(served.url, max_redirects=0)
        tab.page.add_init_script(_NOTE)
        tab.page.goto(served.origin + path if served else path)
        tab.page.wait_for_function("() => window.useful")
        useful: float = tab.page.evaluate("window.useful")
    return useful


def _reports(folder: Path) -> Section:
    """Write the reports of a session of so many turns."""
    home = making.long(folder / "reported", TURNS_OF_REPORT)
    rows, verdicts = [], []
    for how, most in SIZES.items():
        path = folder / "report.html"
        command = [
            sys.executable,
            "-m",
            "agentobs",
            "--home",
            str(home.path),
            "report",
            "long-haul",
        ]
        began = time.perf_counter()
        subprocess.run([*command, "-o", str(path), *how], check=True, stdout=subprocess.DEVNULL)
        took, size = time.perf_counter() - began, path.stat().st_size
        path.unlink()
        name = " ".join(("agentobs report", *how))
        rows.append((f"`{name}`", f"{size:,}", f"{took:.1f} s"))
        what = f"`{name}`, a session of {TURNS_OF_REPORT} turns"
        verdicts.append(
            Verdict(what, most / 1e6, size / 1e6, "{:.2f} MB", "Plotly's own script is most of it.")
        )
    return Section(
        "The size of a report",
        f"A session of {TURNS_OF_REPORT} turns with agents that it starts, one file. Without `--light` plotly's script "
        "is in it, once; with it the figures are drawings, and no script is in it.",
        ("command", "bytes", "takes"),
        tuple(rows),
        tuple(verdicts),
    )
