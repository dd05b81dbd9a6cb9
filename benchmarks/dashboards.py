"""The cost of the dashboard: the time until the browser shows the rows of a page, and the size of reports.

The floor is the same page, with its scripts and styles, from a server of static files, so it is the time of the
browser. The difference is the time to read the store and to render the page. Chromium must be installed on the system.
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
from tests.browser import store_builders
from tests.browser.conftest import MISSING, arguments, chromium
from tests.browser.tabs import Served, Tab, serving
from tests.loopback import LoopbackServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROUNDS = 5
SESSIONS = 100_000
"""The number of sessions of the large store, one per minute."""
TURNS_OF_REPORT = 200
MAX_BYTES = {("--interactive",): 6_000_000, (): 500_000}
"""The maximum size of a report with that many turns, in bytes, by the options of the command."""
ROWS = "#found tbody tr, #tree a"
"""The selector for the useful part of a page: the rows of its table, or the steps of its tree."""
APP, FLOOR = "the dashboard", "the same page as a file"
MOST_OVER_FLOOR = 2.5
"""The maximum time of a page, divided by that of the same page as a file."""

_PAINT_TIMER = f"""
    const look = () => {{
        if (document.querySelector({ROWS!r})) {{
            requestAnimationFrame(() => setTimeout(() => {{ window.paintedMs = performance.now(); }}));
        }} else requestAnimationFrame(look);
    }};
    look();
"""
"""A script that runs before the page is loaded.

It stores the time from the request until the first frame with rows was painted, in milliseconds.
"""


def sections() -> Iterator[Section]:
    """Build the stores, load their pages, and write the reports."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        yield _pages(folder)
        yield _reports(folder)


def _pages(folder: Path) -> Section:
    """Load each page, alternating between the application and the static file."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        raise SystemExit(MISSING)
    with ExitStack() as stack:
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=path, args=arguments())
        # A numeric address, because the test's HTTP client does not resolve names under localhost.
        large, long = (
            stack.enter_context(serving(home, "--loopback-address"))
            for home in (
                store_builders.large(folder / "large", SESSIONS, seconds_apart=60),
                store_builders.long(folder / "long"),
            )
        )
        pages = {
            f"the list of {SESSIONS:,} sessions": (large, "/"),
            "the same list, sorted by cost": (large, "/?sort=-cost"),
            "the same list, filtered by a name and by failed sessions": (
                large,
                "/?q=coder&status=failed",
            ),
            "the last page of the list": (large, f"/?page={SESSIONS // 50}"),
            f"a session of {store_builders.TURNS:,} turns": (long, _session(browser, long)),
            "25 turns of the same session": (long, _session(browser, long) + "?from=476&to=500"),
        }
        rows = tuple(
            (name, *_page(browser, served, path, folder)) for name, (served, path) in pages.items()
        )
        browser.close()
    return Section(
        "Dashboard pages",
        f"{ROUNDS} rounds, alternating between the dashboard and the floor, each time in a new window with an empty "
        "cache. Milliseconds from the request of the page until the first frame with the rows of its table, "
        "medians. The floor is the same page as a static file, with the same scripts and styles. Elements are "
        "counted after the figures are drawn.",
        ("page", "time to first useful paint", "floor", "over the floor", "bytes", "elements"),
        rows,
        tuple(
            Verdict(
                f"{name}, time to first useful paint, divided by the same page as a file",
                MOST_OVER_FLOOR,
                float(cells[2]),
                "{:.2f}",
                "The page is computed and rendered in addition; see the CPU times of its parts.",
                ROUNDS,
            )
            for name, *cells in rows
        ),
    )


def _session(browser: Browser, served: Served) -> str:
    with Tab.opened(browser, served) as tab:
        href = tab.page.locator("#found tbody a[href^='/sessions/']").first.get_attribute("href")
    assert href is not None
    return href.partition("#")[0]


def _page(browser: Browser, served: Served, path: str, folder: Path) -> tuple[str, ...]:
    """Measure one page; return the cells of its row."""
    static = folder / "static"
    shutil.rmtree(static, ignore_errors=True)
    elements, size = _save_page(browser, served, path, static)
    handler = partial(_SilentHandler, directory=str(static))
    server = LoopbackServer(handler)  # type: ignore[arg-type]
    server.start()
    try:
        pairs = [
            (_paint_ms(browser, served, path), _paint_ms(browser, None, server.base_url + "/"))
            for _ in range(ROUNDS)
        ]
    finally:
        server.stop()
    dashboard, floor = (median(times) for times in zip(*pairs, strict=True))
    ratio = median(a / b for a, b in pairs)
    return (f"{dashboard:,.0f}", f"{floor:,.0f}", f"{ratio:.2f}", f"{size:,}", f"{elements:,}")


class _SilentHandler(SimpleHTTPRequestHandler):
    """Serves a folder without log messages."""

    def log_message(self, format: str, *args: object) -> None:
        """Do not log."""


def _save_page(browser: Browser, served: Served, path: str, folder: Path) -> tuple[int, int]:
    """Save a page and its assets as files; return the number of its elements and its size in bytes."""
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


def _paint_ms(browser: Browser, served: Served | None, path: str) -> float:
    """Open a page in a new window; return the time until its rows were painted, in milliseconds."""
    with Tab.opened(browser, None) as tab:
        if served:
            # This request sets the cookie without loading a page, which would fill the cache.
            tab.page.request.get(served.next_url(), max_redirects=0)
        tab.page.add_init_script(_PAINT_TIMER)
        tab.page.goto(served.origin + path if served else path)
        tab.page.wait_for_function("() => window.paintedMs")
        painted_ms: float = tab.page.evaluate("window.paintedMs")
    return painted_ms


def _reports(folder: Path) -> Section:
    """Write the reports of a session with `TURNS_OF_REPORT` turns."""
    home = store_builders.long(folder / "reported", TURNS_OF_REPORT)
    rows, verdicts = [], []
    for options, max_bytes in MAX_BYTES.items():
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
        started = time.perf_counter()
        subprocess.run([*command, "-o", str(path), *options], check=True, stdout=subprocess.DEVNULL)
        seconds, size = time.perf_counter() - started, path.stat().st_size
        path.unlink()
        name = " ".join(("agentobs report", *options))
        rows.append((f"`{name}`", f"{size:,}", f"{seconds:.1f} s"))
        label = f"`{name}`, a session of {TURNS_OF_REPORT} turns"
        verdicts.append(
            Verdict(
                label,
                max_bytes / 1e6,
                size / 1e6,
                "{:.2f} MB",
                "Most of it is Plotly's own script.",
            )
        )
    return Section(
        "The size of a report",
        f"A session of {TURNS_OF_REPORT} turns with sub-agents, in one file. With `--interactive`, the file contains "
        "Plotly's script once. Without it, the figures are static drawings, and the file contains no script.",
        ("command", "bytes", "time"),
        tuple(rows),
        tuple(verdicts),
    )
