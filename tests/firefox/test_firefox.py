"""The main pages work in Firefox, as Debian ships it (`apt-get install firefox-esr`).

Mozilla's own client drives it, because Playwright needs a patched Firefox, and Debian has no geckodriver.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.store_builders import MAKERS
from tests.browser.tabs import Served, serving

pytestmark = [pytest.mark.firefox, pytest.mark.timeout(600)]
START_SECONDS = 120
"""The timeout for starting the browser. Our choice."""
PATIENCE_SECONDS = 60.0
"""The time limit for something to appear, even on a busy machine; it is not a measurement."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(MAKERS["one"](tmp_path_factory.mktemp("firefox") / "home")) as found:
        yield found


@pytest.fixture(scope="module")
def firefox(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    path = shutil.which(os.environ.get("FIREFOX") or "firefox-esr") or shutil.which("firefox")
    assert path, "no Firefox was found: apt-get install firefox-esr, or set FIREFOX to one"
    from marionette_driver.marionette import Marionette  # type: ignore[import-not-found]

    # The console, with its errors, belongs to the browser and not to a page.
    driver = Marionette(
        bin=path, headless=True, port=0, startup_timeout=START_SECONDS,
        app_args=["-remote-allow-system-access"], gecko_log=str(tmp_path_factory.mktemp("log")),
    )  # fmt: skip
    driver.start_session()
    driver.navigate(served.next_url())
    yield Firefox(driver, served)
    driver.quit()
    driver.cleanup()


class Firefox:
    """A Firefox that is signed in to a dashboard."""

    def __init__(self, driver: Any, served: Served) -> None:
        self.driver, self.served = driver, served

    def go(self, path: str) -> None:
        self.driver.navigate(self.served.origin + path)

    def run(self, script: str) -> Any:
        """Run a script in the page, and return its result."""
        return self.driver.execute_script(script, sandbox=None)

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true in the page. While a page is loaded, an element may not exist yet."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self.run(f"try {{ return Boolean({condition}) }} catch {{ return false }}"):
            assert time.monotonic() < until, (
                f"{condition}: {self.run('return document.body.innerText')[:2000]}"
            )
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def draw(self) -> None:
        """Scroll to every figure, and wait until it is drawn."""
        for at in range(self.run("return document.querySelectorAll('[data-figure]').length")):
            place = f"document.querySelectorAll('[data-figure]')[{at}]"
            self.run(f"{place}.scrollIntoView({{ block: 'center' }})")
            self.wait_for(f"{place}.dataset.drawn")

    def errors(self) -> list[str]:
        """Return the errors that pages of the dashboard have caused, including violations of the policy."""
        with self.driver.using_context("chrome"):
            messages: list[str] = self.driver.execute_script(
                "return Services.console.getMessageArray().map((each) => String(each.message ?? each))"
            )
        own = ("chrome://", "resource://")
        return [
            each
            for each in messages
            if each.startswith("[JavaScript Error") and not any(word in each for word in own)
        ]


def test_the_main_pages_work_in_firefox(firefox: Firefox) -> None:
    """List, session, transcript, attempt, fleet and SQL work with scripts, live updates, buttons and the keyboard."""
    firefox.wait_for("document.querySelectorAll('#found tbody tr').length === 1")
    firefox.wait_for("/^as of \\d+ s ago$/.test(document.getElementById('as-of').textContent)")
    firefox.wait_for("document.querySelector('#found time').dataset.local === ''")
    # Menus, and a form whose origin is checked.
    firefox.click("#views summary")
    firefox.driver.find_element("id", "view-name").send_keys("mine\ue007")
    firefox.wait_for("document.querySelector('#views summary').textContent === 'Views (1)'")
    firefox.click("#found tbody a[href^='/sessions/']")
    firefox.wait_for(
        "document.querySelector('[role=treeitem][aria-selected=true], [role=treeitem]')"
    )
    firefox.draw()
    session = firefox.run("return location.pathname")
    firefox.run("document.querySelector('[role=treeitem]').focus()")
    firefox.driver.find_element("css selector", "[role=treeitem]").send_keys("\ue015\ue007")
    firefox.wait_for("new URLSearchParams(location.search).get('step')")
    firefox.go(f"{session}?tab=transcript")
    firefox.click("#transcript button.main, [data-content=transcript] button")
    firefox.wait_for("document.querySelector('#transcript article')")
    firefox.go("/fleet")
    firefox.draw()
    assert firefox.run("return document.querySelectorAll('[data-drawn]').length") > 3
    firefox.go("/sql")
    firefox.run("document.getElementById('statement').value = 'SELECT session_id FROM sessions'")
    firefox.click("#query-form button.main")
    firefox.wait_for("document.querySelector('#result td a')")
    firefox.click("#result td a")
    firefox.wait_for(f"location.pathname === {session!r}")
    assert firefox.errors() == []
    # A violation of the policy is an error: otherwise the previous check proves nothing.
    firefox.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://192.0.2.1/x.png\">')"
    )
    until = time.monotonic() + PATIENCE_SECONDS
    while not firefox.errors():
        assert time.monotonic() < until
        time.sleep(0.05)
