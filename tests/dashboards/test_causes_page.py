"""The tabs Files and "Causes of changes" of a session, and its effects in the tree."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentobs.recording.journal.home import open_home
from agentobs.store.backend import open_store
from dashboards.report.html_report import session_report
from tests import queries
from tests.dashboards.live_app import Client, only_session, serving
from tests.effects.workspaces.release_agent import PROMPT, Release, record_mess, record_release
from tests.exporters.sample_session import sample_home


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Record the sessions once."""
    recorded = record_release(tmp_path_factory.mktemp("release"))
    record_mess(recorded)
    return recorded


@pytest.fixture(scope="module")
def client(release: Release) -> Iterator[Client]:
    with serving(open_home(release.home)) as made:
        yield made


def session_id(release: Release, name: str) -> str:
    """Return the ID of a session."""
    [[found]] = queries.query(
        f"SELECT session_id FROM sessions WHERE name = '{name}'", home=release.home
    )
    return str(found)


def command_id(release: Release) -> str:
    """Return the ID of the node of the command that wrote `result.txt`."""
    [[found]] = queries.query(
        "SELECT command_id FROM commands WHERE turn = 5 AND exit_code = 0", home=release.home
    )
    return f"command:{found}"


@pytest.mark.slow
def test_the_tab_files_lists_the_changes(release: Release, client: Client) -> None:
    """Each change has its turn, sizes, evidence and a link to its call; changed lines are shown after a click."""
    page = f"/sessions/{session_id(release, 'release')}"
    got = client.get(f"{page}?tab=files")
    assert "main 5 result.txt added 7 B 1 0 run, turn 5 inferred: only_command" in got.words
    assert got.words.count("Show lines") == 13
    assert "passed" not in got.html
    for link in got.links("?step="):
        assert client.get(link).status == 200
    shown = client.press(f"{page}/cause", node="file_change:4")
    assert "- return a - b" in shown.words
    assert "+ return a + b" in shown.words
    assert client.get(f"{page}/cause").status == 303
    assert client.press(f"{page}/cause", node="file_change:99").status == 404
    other = client.get(f"/sessions/{session_id(release, 'mess')}?tab=files")
    assert "mix.txt modified" in other.words
    assert "unknown" in other.words


@pytest.mark.slow
def test_the_tab_why_shows_a_chain(release: Release, client: Client) -> None:
    """The chain leads from the prompt to the file, with the evidence of each step; content is shown after a click."""
    page, node = f"/sessions/{session_id(release, 'release')}", command_id(release)
    got = client.get(f"{page}?tab=why&node={node}")
    order = [
        PROMPT,
        "turn 5 of main",
        "tool call run",
        "result in turn 6",
        "command 2 sh",
        "file result.txt",
    ]
    places = [got.words.index(each) for each in order[1:]]
    assert places == sorted(places)
    assert "inferred: equal_command" in got.words
    assert "echo passed" not in got.html
    assert "echo passed" in client.press(f"{page}/cause", node=node).words
    assert client.get(f"{page}?tab=why&node=command:none").status == 404
    listed = client.get(f"{page}?tab=why")
    assert listed.html.count("?tab=why&amp;node=") == 17
    drawn = client.get(f"{page}/causes.svg?node={node}")
    assert drawn.headers["content-disposition"] == 'attachment; filename="causes.svg"'
    ElementTree.fromstring(drawn.body.decode())
    assert not any(each.encode() in drawn.body for each in (PROMPT, "result.txt", "echo"))


@pytest.mark.slow
def test_effects_are_in_the_tree(release: Release, client: Client) -> None:
    """Commands, MCP calls and changed files are below their tool call, with their facts and a link to their causes."""
    page, node = f"/sessions/{session_id(release, 'release')}", command_id(release)
    got = client.get(f"{page}?step={node}")
    assert "command 2 sh exit code 0" in got.words
    assert "MCP call" in got.words
    assert "file result.txt added, 7 bytes, +1 -0 lines" in got.words
    levels = {
        kind: int(found[0])
        for kind in ("command", "file_change")
        if (found := _levels(got.html, node if kind == "command" else "file_change:5"))
    }
    assert levels["file_change"] == levels["command"] + 1
    assert (
        f"tab=why&amp;node={node.replace(':', '%3A')}" in got.html
        or f"tab=why&amp;node={node}" in got.html
    )
    filtered = client.get(f"{page}?find=result.txt")
    assert "file result.txt" in filtered.words
    failed = client.get(f"{page}?failed=1")
    assert re.search(r"failed command \d+ (sh|grep) exit code 1", failed.words)
    assert "exit code 0" not in failed.words


def _levels(html: str, step: str) -> list[str]:
    """Return the level of a step in the tree."""
    return re.findall(rf'aria-level="(\d+)"[^>]*data-step="{re.escape(step)}"', html)


@pytest.mark.slow
def test_a_report_lists_the_effects(release: Release) -> None:
    """A report without content numbers the files."""
    with open_store(open_home(release.home)) as store:
        text = session_report(store, session_id(release, "release"), made_ns=0, light=True)
    assert "command 2 sh" in text
    assert "file 1" in text
    assert "result.txt" not in text


@pytest.mark.slow
def test_a_session_without_effects(tmp_path: Path) -> None:
    """The page has no tabs about effects. Their addresses say what to switch on."""
    home = sample_home(tmp_path)
    with serving(home) as client:
        page = f"/sessions/{only_session(home)}"
        trace = client.get(page).html
        assert "?tab=cost" in trace
        assert [each for each in ("?tab=files", "?tab=why") if each in trace] == []
        assert "agentobs record --effects files" in client.get(f"{page}?tab=files").words
        assert "agentobs record --effects all" in client.get(f"{page}?tab=why").words
