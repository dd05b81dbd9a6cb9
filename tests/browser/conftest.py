"""One browser for each process, one store and one server for each kind; tests of one kind run in one process."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import making
from tests.browser.making import MAKERS
from tests.browser.tabs import Served, Tab, serving
from tests.wire import corpus

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STARTED_MS = 120_000
"""How long the browser may take to start. Our choice."""
SECONDS = 300
"""After how long a test here is taken to hang: the first of a store makes it, and walks through its pages."""
MISSING = (
    "no chromium was found: apt-get install chromium, or set CHROMIUM to one. "
    "The tests of the dashboards need a real browser"
)


def chromium() -> str | None:
    """Where the browser is."""
    return shutil.which(os.environ.get("CHROMIUM") or "chromium")


def arguments() -> list[str]:
    """How it is started: no name but those of this machine leads anywhere, whatever a page may try; root can have no
    sandbox.

    A small /dev/shm, as containers have it, must not end a page.
    """
    alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE *.localhost"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return ["--disable-dev-shm-usage", alone, *sandbox]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say once that there is no browser, before anything is made for it."""
    if session.config.getoption("markexpr") == "browser" and chromium() is None:
        raise pytest.UsageError(MISSING)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    assert path is not None, MISSING
    with sync_playwright() as playwright:
        # The first start reads half a gigabyte from a disk that may be slow.
        started = playwright.chromium.launch(
            executable_path=path, args=arguments(), timeout=STARTED_MS
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Served]]:
    """Gives the store of a name and its server, made at the first need."""
    running: dict[str, Served] = {}
    with contextlib.ExitStack() as stack:

        def give(name: str) -> Served:
            if name not in running:
                _need(name)
                home = MAKERS[name](tmp_path_factory.mktemp("store") / name)
                running[name] = stack.enter_context(serving(home))
            return running[name]

        yield give


def _need(name: str) -> None:
    """Skip where the recordings of others that a store is made of are not there."""
    if name == "wire" and not (corpus.folder() / "manifest.json").exists():
        pytest.skip(corpus.HINT.format(corpus.folder()))
    if name == "transcripts" and not making.transcripts_folder().is_dir():
        pytest.skip("no transcripts: set AGENTOBS_TRANSCRIPTS to their folder")


@pytest.fixture
def tabs(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Opens tabs, each as another person would; at the end nothing may have gone wrong in any of them."""
    with contextlib.ExitStack() as stack:
        opened: list[Tab] = []

        def give(served: Served | None = None, **context: object) -> Tab:
            opened.append(stack.enter_context(Tab.opened(browser, served, **context)))
            return opened[-1]

        yield give
        for tab in opened:
            tab.check()


def stores(*names: str) -> pytest.MarkDecorator:
    """Run a test once for each of these stores, beside the others of the same store."""
    kept = [pytest.param(name, marks=pytest.mark.xdist_group(f"browser-{name}")) for name in names]
    return pytest.mark.parametrize("kind", kept)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, so that `make test` leaves it out."""
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in own:
        item.add_marker(pytest.mark.browser)
        item.add_marker(pytest.mark.timeout(SECONDS))
