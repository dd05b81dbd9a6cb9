"""The tabs about effects, and the effects in the tree: live, by keyboard, accessible, and with hostile names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import agentobs
from agentobs.recording.journal.home import existing_home
from tests.browser.hostile import RUN, TEXTS
from tests.browser.page_walk import axe_violations
from tests.browser.tabs import PATIENCE_MS, Served, Tab, serving
from tests.effects.workspaces.scripted_agent import Agent, Provider, observed
from tests.effects.workspaces.trees import git, write

pytestmark = pytest.mark.xdist_group("browser-effects")
PROMPT = "Write the files"
HOSTILE_NAME = f"<img src=x onerror={RUN}>\x1b[31m\u202e.txt"
SHOWN_NAME = f"<img src=x onerror={RUN}>\\u001b[31m\\u202e.txt"
"""The name as pages show it: control characters are escapes."""
SCRIPT = {
    PROMPT: [
        [("write", {"path": HOSTILE_NAME, "content": f"{TEXTS['script']}\n{TEXTS['closing']}\n"})],
        [("run", {"command": f"exit 3 # {TEXTS['image']}"})],
        [("write", {"path": "late.txt", "content": "late\n"})],
    ]
}
LATE_TURN = 3
"""The turn whose response waits until the page is open."""


class Recording:
    """A session that waits before its last change."""

    def __init__(self, served: Served, proceed: threading.Event) -> None:
        """Hold the dashboard, and the event that lets the agent proceed."""
        self.served, self.proceed = served, proceed


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """The dashboard of a session that records effects until its last change, which waits for the first test."""
    folder = tmp_path_factory.mktemp("effects")
    root, home = folder / "workspace", folder / "home"
    root.mkdir()
    git(root, "init", "-q")
    write(root, {"README.md": "# Files\n"})
    provider, proceed, waits = Provider(SCRIPT), threading.Event(), threading.Event()

    def wait(prompt: str, turn: int) -> None:
        del prompt
        if turn == LATE_TURN:
            waits.set()
            assert proceed.wait(PATIENCE_MS / 1000)

    provider.before_response = wait
    agentobs.stop_recorder()
    with pytest.MonkeyPatch.context() as patch, observed(patch, provider):
        patch.chdir(root)
        agentobs.start(str(home))
        with ThreadPoolExecutor(1) as pool:
            try:
                run = pool.submit(_run, root, provider)
                assert waits.wait(PATIENCE_MS / 1000)
                assert not run.done()
                with serving(existing_home(home)) as served:
                    yield Recording(served, proceed)
            finally:
                proceed.set()
            run.result(PATIENCE_MS / 1000)
        agentobs.stop_recorder()


def _run(root: Path, provider: Provider) -> None:
    with agentobs.session("files", effects=["files", "commands"]):
        Agent(root, provider).run(PROMPT)


def _open(recorded: Recording, tabs, tab_name: str) -> Tab:
    """Open a tab of the session."""
    tab: Tab = tabs(recorded.served)
    tab.settle()
    tab.follow(tab.page.locator("#found tbody a[href^='/sessions/']").first)
    tab.follow(tab.page.get_by_role("navigation", name="Parts").get_by_role("link", name=tab_name))
    return tab


def test_changes_appear_while_the_agent_runs(recorded: Recording, tabs) -> None:
    """A change that is recorded while the tab Files is open appears without a reload."""
    tab = _open(recorded, tabs, "Files")
    tab.wait_for_text(SHOWN_NAME, "#files")
    assert "late.txt" not in tab.page.locator("#files").inner_text()
    recorded.proceed.set()
    tab.wait_for_text("late.txt", "#files")


def test_the_tabs_are_used_by_keyboard(recorded: Recording, tabs) -> None:
    """By keyboard alone, changed lines are shown, the causes of a change are opened, and their step is selected."""
    recorded.proceed.set()
    tab = _open(recorded, tabs, "Files")
    tab.wait_for_text("late.txt", "#files")
    page = tab.page
    row = page.locator("#files tr", has_text="onerror")
    row.get_by_role("button", name="Show lines").focus()
    page.keyboard.press("Enter")
    tab.wait_for_text(TEXTS["script"], "[data-content=file-lines]")
    assert page.evaluate("document.activeElement.dataset.content") == "file-lines"
    row.get_by_role("link", name="Show causes").focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    tab.settle()
    causes = page.locator("#why li")
    assert PROMPT in causes.first.inner_text()
    assert SHOWN_NAME in page.locator("#why li strong").inner_text()
    page.locator("#why li strong a").focus()
    with page.expect_navigation():
        page.keyboard.press("Enter")
    tab.settle()
    assert SHOWN_NAME in page.locator("#step-title").inner_text()
    selected = page.locator("#tree [aria-selected=true]")
    assert selected.get_attribute("class") == "file_change"
    page.keyboard.press("n")
    page.locator("#step .status.failed").wait_for()
    assert "exit code 3" in page.locator("#step").inner_text()


@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_the_tabs_are_accessible(recorded: Recording, tabs, width: int) -> None:
    """Axe finds no violation in both tabs, the list of effects and shown lines; no page is wider than the window."""
    recorded.proceed.set()
    tab = _open(recorded, tabs, "Files")
    page = tab.page
    page.set_viewport_size({"width": width, "height": 844})
    page.get_by_role("button", name="Show lines").first.click()
    page.locator("[data-content=file-lines] pre").wait_for()
    for name in ("Files", "Causes of changes", "one step"):
        if name == "Causes of changes":
            tab.follow(page.get_by_role("link", name=name, exact=True).first)
        elif name == "one step":
            tab.follow(page.locator("#why a[href*='node=']").first)
        assert axe_violations(tab) == (), name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
