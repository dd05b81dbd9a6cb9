"""What two sessions were made with: page, command and report name the same differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from agentobs.cli.inspection.diff import comparison_of
from agentobs.proxy.client_sessions import CLIENT_TAG
from agentobs.recording.journal.home import Home
from agentobs.records.facts import GitState
from agentobs.records.labels import Label, is_digest, unchecked
from agentobs.store.backend import open_store
from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import SyntheticSession, text
from tests.cli.pseudo_terminal import on_terminal
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import serving
from tests.store.recordings import SECOND, T0, a_home

COMMITS = "a" * 40, "b" * 40
LONG = "canary-" + "x" * 90


class Pair(NamedTuple):
    """Two runs of one task, on different branches, and an identical third one without a repository."""

    home: Home
    ids: tuple[str, str, str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A home with three runs of one task."""
    home = a_home(tmp_path_factory.mktemp("setup"))
    ids = []
    branches = (unchecked("main branch"), unchecked("canary branch"), None)
    with recording(home) as emit:
        for seed, branch in enumerate(branches):
            tags = {"release": LONG} if seed == 1 else {}
            tags[CLIENT_TAG] = f"client-{seed}"
            run = SyntheticSession(emit, "desk", T0 + seed * 600 * SECOND, seed=seed, **tags)
            if branch is not None:
                emit(
                    GitState(
                        run.session_id,
                        run.now_ns,
                        Label("shop"),
                        branch,
                        COMMITS[seed],
                        seed == 1,
                        "start",
                    )
                )
            with run.interaction("Hello."):
                run.turn(text("Hello, how can I help you today?"))
            ids.append(run.end())
    return Pair(home, (ids[0], ids[1], ids[2]))


@pytest.mark.slow
def test_page_and_command_name_the_same_changes(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both show branch, commit and tags if they differ, and nothing else; the ID that a client gave is not one."""
    a, b, _ = pair.ids
    with serving(pair.home) as client:
        page = client.get(f"/compare?a={a}&b={b}").words
    assert (
        f"Git branch: main branch → canary branch Git commit: {COMMITS[0][:12]} → {COMMITS[1][:12]} "
        f"Uncommitted changes: no → yes Tag release: not recorded → {LONG} "
    ) in page
    shell = Shell(pair.home.path, capsys)
    shown = shell("diff", a, b).out
    assert (
        f"\n\ngit branch: main branch -> canary branch\ngit commit: {COMMITS[0][:12]} -> {COMMITS[1][:12]}\n"
        f"uncommitted changes: no -> yes\ntag release: not recorded -> {LONG}\n\n"
    ) in shown
    for absent in (CLIENT_TAG, "version of", "entry"):
        assert absent not in shown.lower()
        assert f"{absent}:" not in page.lower()
    found = json.loads(shell("diff", a, b, "--json").out)
    assert found["b"]["setup"]["branch"] == "canary branch"
    assert found["a"]["setup"]["sdk_version"] == "2.12.0"


@pytest.mark.slow
def test_what_was_not_recorded_is_named(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """A session outside of a repository has no branch; equal sessions have no such lines."""
    a, _, c = pair.ids
    with serving(pair.home) as client:
        page = client.get(f"/compare?a={a}&b={c}").words
        same = client.get(f"/compare?a={a}&b={a}").words
    assert "Git repository: shop → not recorded Git branch: main branch → not recorded" in page
    assert "not recorded" not in same
    shell = Shell(pair.home.path, capsys)
    assert "\ngit branch: main branch -> not recorded\n" in shell("diff", a, c).out
    assert "->" not in shell("diff", a, a).out


@pytest.mark.slow
def test_lines_fit_a_terminal(pair: Pair) -> None:
    """At 80 columns, a long value continues on the next line, and nothing is left out."""
    shown = "\n".join(on_terminal(pair.home.path, "diff", *pair.ids[:2]).lines)
    assert "git branch: main branch -> canary branch" in shown
    assert LONG in "".join(shown.split())


@pytest.mark.slow
def test_a_report_has_values_only_with_content(
    pair: Pair, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A report without content names the facts that differ, but not what people called a branch or a tag."""
    a, b, _ = pair.ids
    file = tmp_path / "pair.html"
    shell = Shell(pair.home.path, capsys)
    assert shell("diff", a, b, "--report", str(file)).code == 0
    bare = file.read_text()
    assert "canary" not in bare
    assert "digest:" not in bare
    assert "Git branch: <strong>value omitted → value omitted</strong>" in bare
    assert f"Git commit: <strong>{COMMITS[0][:12]} → {COMMITS[1][:12]}</strong>" in bare
    assert "Tag release: <strong>not recorded → value omitted</strong>" in bare
    assert shell("diff", a, b, "--content", "--report", str(file), "--force").code == 0
    assert f"Tag release: <strong>not recorded → {LONG}</strong>" in file.read_text()


@pytest.mark.slow
def test_a_cached_comparison_holds_no_texts(pair: Pair) -> None:
    """The page replaces the digests of what the sessions were made with each time, because texts may be deleted."""
    with open_store(pair.home) as store:
        found = comparison_of(store, *pair.ids[:2])
    assert all(is_digest(found[side]["setup"]["branch"]) for side in "ab")
