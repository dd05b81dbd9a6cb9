"""A dashboard server as users start it, and a browser tab that collects all errors."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from agentobs.recording.journal.home import Home

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Locator, Page, Request, Response, Route

from tests.browser.store_builders import ROOT

URL = re.compile(r"http://\S+/\?token=\S+")
START_SECONDS = 60.0
MAX_PRINTED_ERRORS = 10
"""The maximum number of errors in a message."""
PATIENCE_MS = 60_000
"""The time limit for something to appear, even on a busy machine; it is not a measurement."""


@dataclass(frozen=True)
class Served:
    """A running dashboard."""

    home: Home
    origin: str
    """The scheme, host and port."""
    _printed: SimpleQueue[str]

    def next_url(self) -> str:
        """Return the last printed URL. Its token is valid once; then the dashboard prints another URL."""
        return self._printed.get(timeout=START_SECONDS)


@contextlib.contextmanager
def serving(home: Home, *arguments: str, directory: Path = ROOT) -> Iterator[Served]:
    """Run `agentobs dashboard` for a home, in a separate process."""
    command = [sys.executable, "-m", "agentobs", "--home", str(home.path)]
    process = subprocess.Popen(
        [*command, "dashboard", "--port", "0", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    watch = threading.Timer(START_SECONDS, process.kill)
    watch.start()
    said: list[str] = []
    printed: SimpleQueue[str] = SimpleQueue()

    def read(lines: Iterable[str]) -> None:
        for line in lines:
            said.append(line)
            if found := URL.search(line):
                printed.put(found.group())

    try:
        for line in process.stdout:
            read([line])
            if not printed.empty():
                break
        else:
            raise AssertionError(f"no address was printed: {''.join(said)}")
        watch.cancel()
        reading = threading.Thread(target=read, args=(process.stdout,), daemon=True)
        reading.start()
        parts = urlsplit(first := printed.get())
        printed.put(first)
        yield Served(home, f"{parts.scheme}://{parts.netloc}", printed)
    finally:
        watch.cancel()
        process.terminate()
        process.wait(30)
    reading.join(30)
    result = "".join(said)
    assert not [word for word in ("Traceback", "a page failed") if word in result], result


@dataclass
class Tab:
    """A browser tab that collects all of its errors."""

    page: Page
    served: Served | None
    faults: list[str] = field(default_factory=list)
    """Errors of the console (including policy violations), of scripts and of requests, and opened dialogs."""
    requested: list[str] = field(default_factory=list)
    """The requested URLs."""
    forgiven: list[str] = field(default_factory=list)
    """Texts of errors that a test expects."""

    @classmethod
    @contextlib.contextmanager
    def opened(cls, browser: Browser, served: Served | None, **options: Any) -> Iterator[Self]:
        """Open a tab with separate cookies; if there is a server, open its printed URL."""
        usual = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB"}
        context = browser.new_context(**{**usual, "timezone_id": "Europe/Zurich", **options})
        context.set_default_timeout(PATIENCE_MS)
        tab = cls(context.new_page(), served)
        tab._listen()
        if served:
            tab.page.goto(served.next_url())
        yield tab
        context.close()

    def go(self, path: str) -> Page:
        """Open a page of the dashboard, and wait until it and its figures are loaded."""
        assert self.served is not None
        self.page.goto(self.served.origin + path)
        self.settle()
        return self.page

    def follow(self, link: Locator) -> Page:
        """Click a link, and wait until its page is loaded."""
        with self.page.expect_navigation():
            link.click()
        self.settle()
        return self.page

    def back(self) -> Page:
        """Press the back button of the browser."""
        self.page.go_back()
        self.settle()
        return self.page

    def wait_for_text(self, words: str, within: str = "main") -> None:
        """Wait until a part of the page contains a text."""
        self.page.wait_for_function(_SAYS, arg=[within, words])

    def settle(self) -> None:
        """Wait until the page is loaded and the visible figures are drawn."""
        self.page.wait_for_load_state("load")
        self.page.wait_for_function(_DRAWN)

    def draw(self) -> None:
        """Scroll to every figure, so that all are drawn, then back to the top."""
        for place in self.page.locator("[data-figure]").all():
            # Playwright's own scrolling waits for two identical frames, which takes long on a busy page.
            place.evaluate("each => each.scrollIntoView({ block: 'center', behavior: 'instant' })")
            self.page.wait_for_function(_DRAWN)
        self.page.evaluate("scrollTo(0, 0)")

    def check(self) -> None:
        """Assert that there was no error, and no request to any other server."""
        faults = [f for f in self.faults if not any(word in f for word in self.forgiven)]
        assert not faults, "\n".join(faults[:MAX_PRINTED_ERRORS])
        assert self.page.evaluate("window.hacked") is None
        own = (self.served.origin + "/" if self.served else "file:///", "data:", "about:", "blob:")
        foreign = [url for url in self.requested if not url.startswith(own)]
        assert not foreign, "\n".join(foreign)

    def _listen(self) -> None:
        page = self.page
        page.on("console", lambda result: self._note(result.type, result.text))
        page.on("pageerror", lambda error: self._note("error", f"page: {error}"))
        page.on("dialog", self._note_dialog)
        page.on("popup", lambda _: self._note("error", "a window"))
        page.on("crash", lambda _: self._note("error", "the page crashed"))
        page.context.on("request", self._note_request)
        page.context.on("requestfailed", self._note_failure)
        page.context.on("response", self._note_response)

    def _note_dialog(self, dialog: Dialog) -> None:
        self._note("error", f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning", "assert"):
            self.faults.append(f"{kind}: {text[:500]}")

    def _note_request(self, request: Request) -> None:
        self.requested.append(request.url)

    def _note_failure(self, request: Request) -> None:
        # A request that was aborted by navigation is not an error.
        if "ERR_ABORTED" not in (request.failure or ""):
            self._note("error", f"{request.url}: {request.failure}")

    def _note_response(self, response: Response) -> None:
        if response.status >= 400:
            self._note("error", f"{response.status} {response.url}")


class Held:
    """The requests of a page for a URL, whose responses wait until the test releases them."""

    def __init__(self, page: Page, url: str) -> None:
        self._page = page
        self._routes: list[Route] = []
        self._ended: list[Request] = []
        page.on("requestfinished", lambda request: self._ended.append(request))
        page.on("requestfailed", lambda request: self._ended.append(request))
        page.route(url, lambda route: self._routes.append(route))

    def wait(self, number: int = 1) -> None:
        """Wait until the page has sent this number of requests."""
        self._wait_until(lambda: len(self._routes) >= number)

    def release(self, at: int = 0) -> None:
        """Let a request continue, and wait until the page has processed its response or had aborted it."""
        route = self._routes[at]
        route.continue_()
        self._wait_until(lambda: route.request in self._ended)
        self._page.evaluate(_TWO_FRAMES)

    def _wait_until(self, is_true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_MS / 1000
        while not is_true():
            assert time.monotonic() < end
            # Events arrive meanwhile.
            self._page.wait_for_timeout(10)


_TWO_FRAMES = """
() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))
"""
_SAYS = """
([within, words]) => document.querySelector(within)?.innerText.includes(words)
"""
_DRAWN = """
() => [...document.querySelectorAll("[data-figure]")].every((place) => {
    const box = place.getBoundingClientRect();
    const inView = box.bottom > 0 && box.top < innerHeight && box.width > 0;
    return !inView || place.dataset.drawn;
})
"""
