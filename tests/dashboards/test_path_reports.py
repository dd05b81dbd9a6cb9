"""Reports about a divergence and about the comparison of two sessions, with and without content."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.report.path_reports import Texts, divergence_report
from replay.freeze.conversion import freeze
from tests.cli.test_commands import Shell
from tests.dashboards.test_report import Page
from tests.provider_script import call, streamed, text
from tests.replay.agents import last_session, recorded
from tests.replay.mailer import recorded_run

AGENT = '''
import os, pathlib
import agentobs
from anthropic import Anthropic

@agentobs.session("parting")
def answer(prompt):
    """Answer; where a file says so, ask something else."""
    client = agentobs.record(Anthropic(api_key="sk-made-up", base_url=os.environ.get("URL")))
    other = pathlib.Path("other")
    asked = other.read_text() if other.exists() else prompt
    list(client.messages.create(model="m", max_tokens=9, stream=True, messages=[{"role": "user", "content": asked}]))
'''
NOW = "canary-now </pre><script>hacked()</script>"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with an agent and its fixture."""
    path = tmp_path_factory.mktemp("parting")
    (path / "parting_agent.py").write_text(AGENT)
    before = Path.cwd()
    os.chdir(path)
    sys.path.insert(0, str(path))
    try:
        from parting_agent import answer  # type: ignore[import-not-found]  # the agent of this project

        def ask(url: str) -> None:
            os.environ["URL"] = url
            answer("canary-recorded")

        freeze(recorded(path, ask, [streamed(text("canary-answer"))]), path / "fixture", {})
        yield path
    finally:
        os.chdir(before)
        os.environ.pop("URL", None)
        sys.path.remove(str(path))
        sys.modules.pop("parting_agent", None)


@pytest.fixture
def shell(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    monkeypatch.chdir(project)
    yield Shell(project / "home", capsys)
    for name in ("other", "page.html"):
        (project / name).unlink(missing_ok=True)


def test_a_divergence_report_without_content(shell: Shell) -> None:
    """Without content, the report shows kind, lane, request and commands, but neither the recorded nor the new text."""
    Path("other").write_text(NOW)
    ended = shell("replay", "fixture", "--report", "page.html")
    assert ended.code == 1
    assert "DIVERGED" in ended.out
    text = Path("page.html").read_text()
    assert "canary" not in text
    page = Page(text)
    assert "parting diverged from its recording" in page.text
    assert "at request 1 of 1 of lane main" in page.text
    assert "the body of a request" in page.text
    assert (
        "1 difference. 0 recorded requests and 0 recorded tool calls after this point were not made."
        in page.text
    )
    assert "agentobs replay" in page.text
    assert "parting_agent.py:" in page.text
    assert [attrs for tag, attrs in page.tags if attrs.get("class") == "drawing"]


def test_a_divergence_report_with_content(shell: Shell) -> None:
    """With content, the recorded and the new line are aligned as text, and a prominent note warns about content."""
    Path("other").write_text(NOW)
    shell("replay", "fixture", "--report", "page.html")
    refused = shell("replay", "fixture", "--report", "page.html", "--with-content")
    assert (refused.code, "the file exists" in refused.err) == (1, True)
    shell("replay", "fixture", "--report", "page.html", "--with-content", "--force")
    page = Page(Path("page.html").read_text())
    assert "This file contains content" in page.text
    assert "canary-recorded" in page.text
    assert "<script>hacked()</script>" in page.text
    assert not [script for script in page.scripts() if "hacked" in script]


def test_a_matching_replay_writes_no_report(shell: Shell) -> None:
    """If the replay matches, no report is written, and the command states this."""
    ended = shell("replay", "fixture", "--report", "page.html")
    assert ended.code == 0
    assert "no divergence: page.html was not written" in ended.err
    assert not Path("page.html").exists()
    alone = shell("replay", "fixture", "--with-content")
    assert (alone.code, "requires --report" in alone.err) == (1, True)


@pytest.mark.slow
def test_a_comparison_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report shows totals with differences and each step that differs; it has content only with `--content`."""
    ids = []
    for to in ("ann", "canary-eve"):
        given = [streamed(call(1, "send", to=to), number=1), streamed(text("Done."), number=2)]
        recorded_run(tmp_path, given)
        ids.append(last_session(tmp_path / "home").session_id)
    shell = Shell(tmp_path / "home", capsys)
    file = tmp_path / "pair.html"
    result = shell("diff", *ids, "--report", str(file))
    assert result.code == 0, result.err
    page = Page(file.read_text())
    assert "canary" not in file.read_text()
    assert "Session comparison" in page.text
    assert "contains no content" in page.text
    assert all(session_id in page.text for session_id in ids)
    assert "Attempts 2 2 no difference" in page.text
    loud = shell("diff", *ids, "--content", "--report", str(file), "--force")
    assert loud.code == 0, loud.err
    page = Page(file.read_text())
    assert "This file contains content" in page.text
    assert "canary-eve" in page.text


@pytest.mark.parametrize("content", [(), ("--content",)], ids=["facts", "content"])
@pytest.mark.parametrize(("a", "b"), [("fixture", "fixture"), ("parting", "fixture")])
def test_a_fixture_can_be_compared(shell: Shell, a: str, b: str, content: tuple[str, ...]) -> None:
    """The report describes a session by its ID, and a fixture by its path.

    With `--content`, the page has a note about content.
    """
    result = shell("diff", a, b, *content, "--report", "page.html")
    assert result.code == 0, result.err
    page = Page(Path("page.html").read_text())
    sides = re.search(r"A parting (.*) B parting (.*?)(?: ✓)? This file", page.text)
    assert sides is not None
    assert sides[2].split()[-1] == "fixture"
    assert re.fullmatch("fixture|[0-9a-f]{32}", sides[1].split()[-1])
    assert ("fixture" in sides[1]) is (a == "fixture")
    assert ("This file contains content" in page.text) is bool(content)
    compared = json.loads(shell("diff", a, b, "--json").out)
    assert [compared[side]["failed_requests"] for side in "ab"] == [0, 0]


def test_light_reports_have_no_script(shell: Shell) -> None:
    """Without `--interactive`, a report has no script and has its figure; the options require `--report`."""
    Path("other").write_text(NOW)
    for command in (("replay", "fixture"), ("diff", "fixture", "fixture")):
        for option in ("--light", "--interactive"):
            alone = shell(*command, option)
            assert (alone.code, "requires --report" in alone.err) == (1, True)
            assert option in alone.err
        shell(*command, "--report", "page.html", "--interactive", "--force")
        assert "<script" in Path("page.html").read_text()
        shell(*command, "--report", "page.html", "--force")
        page = Page(Path("page.html").read_text())
        assert not [tag for tag, _ in page.tags if tag == "script"]
        assert "script-src 'none'" in page.policy
        assert [attrs for tag, attrs in page.tags if attrs.get("class") == "drawing"]


def test_reports_without_content_omit_keys_of_tool_inputs() -> None:
    """Without content, a report omits positions in tool inputs and causes in words."""
    result: dict[str, Any] = {
        "fixture": "mailer",
        "kind": "content",
        "lane": "main",
        "number": 2,
        "of": 3,
        "turn": 2,
        "request": 2,
        "attempt": 1,
        "more": 0,
        "sent": {"file": "mailer.py", "line": 7, "function": "run"},
        "progress": {"requests_matched": 1, "requests": 3, "tools_matched": 1, "tools": 2},
        "left": {"requests": 1, "tools": 1, "answers": 0, "following": ["canary"]},
        "lanes": [{"lane": "main", "asked": 1, "of": 3}],
        "versions": [{"package": "anthropic", "recorded": "2.12.0", "now": "2.13.0"}],
        "commands": ["agentobs replay mailer --explain"],
        "suspicions": [{"text": "canary"}],
        "summary": "canary in a sentence",
        "nature": "",
        "chain": [{"what": "canary", "site": None, "request": 1}],
        "waiting": [{"task": "canary"}],
        "differences": [
            {
                "path": "$.messages[2].content[0].input.canary@example.com",
                "keys": ["messages", 2, "content", 0, "input", "canary@example.com"],
                "change": "changed",
                "expected": "canary",
                "actual": "canary",
            }
        ],
        "cause": {
            "kind": "tool_result",
            "text": "canary",
            "site": None,
            "tool": "look up canary",
            "tool_use_id": "toolu_1",
            "input": {"canary": 1},
            "place": "system",
            "line": 2,
            "message": 2,
            "contains": None,
        },
    }
    for light in (True, False):
        text = divergence_report(result, None, made_ns=0, light=light)
        assert "canary" not in text
        page = Page(text).text
        assert "tool result; in system; message 2; line 2" in page
        assert "mailer.py:7" in page
        assert "anthropic" in page
    lines = Texts("recorded canary-a\nnow canary-b", "the way back")
    assert "now canary-b" in divergence_report(result, lines, made_ns=0, light=True)
