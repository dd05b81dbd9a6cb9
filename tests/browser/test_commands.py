"""Commands from a session page, in a real browser with real processes: freeze, replay, and the divergence."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentobs.recording.journal.home import existing_home
from tests.browser.page_walk import axe_violations
from tests.browser.tabs import Served, Tab, serving

pytestmark = pytest.mark.xdist_group("browser-commands")
_RECORD = (
    "from pathlib import Path; from agentobs.cli import demo; folder = Path({folder!r}); "
    "demo._prepare(folder); demo._run_agent(folder, folder / '.agentobs')"
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Served]]:
    """The folder of the demo agent with its failed session, and the dashboard that runs in this folder."""
    folder = tmp_path_factory.mktemp("demo")
    record = [sys.executable, "-c", _RECORD.format(folder=str(folder))]
    subprocess.run(record, check=True, capture_output=True)
    with serving(existing_home(folder / ".agentobs"), directory=folder) as served:
        yield folder, served


def test_a_session_is_frozen_and_replayed_from_its_page(demo: tuple[Path, Served], tabs) -> None:
    """Freeze writes the shown folder. Replay matches; after a change of the agent it diverges, and the page leads to
    the step and shows the changed words.
    """
    folder, served = demo
    tab: Tab = tabs(served)
    page = tab.page
    tab.settle()
    tab.follow(page.locator("#found tbody a[href^='/sessions/']").first)
    tab.follow(page.get_by_role("link", name="Replay", exact=True))
    shown = page.locator("#freeze-title ~ p .mono").first.inner_text()
    assert shown == str(folder / "fixtures" / "refund-loop")
    page.get_by_role("button", name="Freeze").click()
    page.wait_for_selector("#jobs .status.ok")
    assert "replays: yes" in page.locator("#job-1").inner_text()
    assert (folder / "fixtures" / "refund-loop" / "recording.jsonl").is_file()
    page.get_by_role("button", name="Replay", exact=True).click()
    page.wait_for_selector("#job-2 .status.ok")
    agent = folder / "refund_agent.py"
    agent.write_text(agent.read_text().replace("You refund orders.", "You refund no orders."))
    page.get_by_role("button", name="Replay", exact=True).click()
    page.wait_for_selector("#job-3 .cause")
    assert "Diverged at turn 1 of main" in page.locator("#job-3 .cause").inner_text()
    assert "You refund" not in page.content()
    page.locator("#job-3").get_by_role("button", name="Show the output").click()
    page.wait_for_selector("#job-3 ins")
    assert page.locator("#job-3 ins").inner_text().strip() == "no"
    tab.follow(page.get_by_role("link", name="Go to this step of the trace"))
    assert re.search(r"\?step=\w+", page.url)
    assert "diverged here" in page.locator("#step").inner_text()


def test_a_running_command_is_canceled(demo: tuple[Path, Served], tabs) -> None:
    """Cancel ends a command that would never end."""
    folder, served = demo
    agent = folder / "refund_agent.py"
    agent.write_text(f"import time\nwhile True:\n    time.sleep(1)\n{agent.read_text()}")
    tab: Tab = tabs(served)
    page = tab.page
    tab.settle()
    tab.follow(page.locator("#found tbody a[href^='/sessions/']").first)
    tab.follow(page.get_by_role("link", name="Replay", exact=True))
    page.get_by_role("button", name="Replay", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector("#jobs .job:first-child .status.cancelled")
    assert "canceled" in page.locator("#jobs .job").first.inner_text()


@pytest.fixture
def imported(
    demo: tuple[Path, Served], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Served]]:
    """A folder with the demo agent, and the dashboard of a home into which its session was imported as a bundle."""
    _, served = demo
    bundle, home = tmp_path / "stranger.bundle", tmp_path / "home"

    def agentobs(path: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "agentobs", "--home", str(path), *arguments]
        subprocess.run(command, check=True, capture_output=True)

    agentobs(served.home.path, "bundle", "refund-loop", "--with-content", "-o", str(bundle))
    agentobs(home, "import", "bundle", str(bundle))
    ours = tmp_path_factory.mktemp("imported")
    prepare = f"from pathlib import Path; from agentobs.cli import demo; demo._prepare(Path({str(ours)!r}))"
    subprocess.run([sys.executable, "-c", prepare], check=True)
    with serving(existing_home(home), directory=ours) as found:
        yield ours, found


def test_the_code_of_an_imported_session_is_confirmed_with_the_keyboard(
    imported: tuple[Path, Served], tabs
) -> None:
    """Freeze of a session from a bundle shows the function and the bundle, and writes nothing before the second click.
    The page is accessible on a desktop and on a phone, and the keyboard suffices.
    """
    folder, served = imported
    tab: Tab = tabs(served)
    page = tab.page
    tab.settle()
    tab.follow(page.locator("#found tbody a[href^='/sessions/']").first)
    tab.follow(page.get_by_role("link", name="Replay", exact=True))
    assert "imported from the bundle stranger.bundle" in page.locator("main").inner_text()
    page.get_by_role("button", name="Freeze").focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "refund_agent:answer" in page.locator("#confirm-program").inner_text()
    assert "the bundle stranger.bundle" in page.locator("#confirm").inner_text()
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert axe_violations(tab) == (), width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not (folder / "fixtures").exists()
    page.get_by_role("button", name="Run it: freeze and check").focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.wait_for_selector("#jobs .status.ok")
    assert (folder / "fixtures" / "refund-loop" / "recording.jsonl").is_file()
