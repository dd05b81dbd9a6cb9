"""Fixtures of the browser tests: one browser per process, and one store and one server of each kind."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import store_builders
from tests.browser.store_builders import MAKERS
from tests.browser.tabs import Served, Tab, serving
from tests.wire import corpus

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STARTED_MS = 120_000
"""The timeout for starting the browser. Our choice."""
SECONDS = 300
"""The timeout of a test in this folder, in seconds. The first test of a store also builds it and visits its pages."""
MISSING = (
    "no Chromium was found: apt-get install chromium-headless-shell, or set CHROMIUM to the path of another. "
    "The dashboards are loaded in a real browser"
)


def chromium() -> str | None:
    """Return the path of the browser; the headless shell is preferred, because it needs about half of the CPU time."""
    if named := os.environ.get("CHROMIUM"):
        return shutil.which(named)
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


def arguments() -> list[str]:
    """Return the arguments of the browser.

    Names of other hosts never resolve, whatever a page tries. There is no sandbox for root, and /dev/shm is not used,
    because it is small in containers.
    """
    alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE *.localhost"
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return ["--disable-dev-shm-usage", alone, *sandbox]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fail once at the start of the run if there is no browser, before any store is built."""
    if session.config.getoption("markexpr") == "browser" and chromium() is None:
        raise pytest.UsageError(MISSING)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    assert path is not None, MISSING
    with sync_playwright() as playwright:
        # The first start reads half a gigabyte, possibly from a slow disk.
        started = playwright.chromium.launch(
            executable_path=path, args=arguments(), timeout=STARTED_MS
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Served]]:
    """A function that returns the running dashboard of a named store; both are created at first use."""
    running: dict[str, Served] = {}
    with contextlib.ExitStack() as stack:

        def give(name: str) -> Served:
            if name not in running:
                _skip_without_recordings(name)
                home = MAKERS[name](tmp_path_factory.mktemp("store") / name)
                running[name] = stack.enter_context(serving(home))
            return running[name]

        yield give


def _skip_without_recordings(name: str) -> None:
    """Skip the test if its store is built from recordings of other programs that do not exist."""
    if name == "wire" and not (corpus.folder() / "manifest.json").exists():
        pytest.skip(corpus.HINT.format(corpus.folder()))
    if name == "transcripts" and not store_builders.transcripts_folder().is_dir():
        pytest.skip("no transcripts: set AGENTOBS_TRANSCRIPTS to their folder")


@pytest.fixture
def tabs(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """A function that opens tabs, each with separate cookies; fails at the end if a tab had an error."""
    with contextlib.ExitStack() as stack:
        opened: list[Tab] = []

        def give(served: Served | None = None, **context: object) -> Tab:
            opened.append(stack.enter_context(Tab.opened(browser, served, **context)))
            return opened[-1]

        yield give
        for tab in opened:
            tab.check()


def stores(*names: str) -> pytest.MarkDecorator:
    """Return a mark that runs a test once for each of these stores; the tests of a store run in one process."""
    kept = [pytest.param(name, marks=pytest.mark.xdist_group(f"browser-{name}")) for name in names]
    return pytest.mark.parametrize("kind", kept)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, so that `make test` leaves them out."""
    folder = f"{Path(__file__).parent}{os.sep}"
    own = [item for item in items if str(item.path).startswith(folder)]
    for item in own:
        item.add_marker(pytest.mark.browser)
        item.add_marker(pytest.mark.timeout(SECONDS))
