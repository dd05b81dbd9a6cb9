"""A wall clock that jumps while files, commands and MCP calls are recorded changes neither order, times nor causes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests import queries
from tests.cli.test_commands import Shell
from tests.effects.jumping_clock import ABSURD_NS, HOUR, jumping
from tests.effects.workspaces.release_agent import record_mess, record_release

DURATIONS = """
SELECT duration_ns FROM attempts UNION ALL SELECT duration_ns FROM commands
UNION ALL SELECT duration_ns FROM mcp_calls UNION ALL SELECT duration_ns FROM workspace_states
UNION ALL SELECT ended_ns - started_ns FROM sessions UNION ALL SELECT ended_ns - started_ns FROM interactions
UNION ALL SELECT duration_ns FROM tool_calls WHERE duration_ns IS NOT NULL
"""


@pytest.mark.slow
def test_the_order_of_a_session_and_of_its_causes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a session, all times follow each other; across sessions, blame follows the order of their snapshots."""
    wall = time.time_ns
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", jumping())
        release = record_release(tmp_path)
        patch.setattr(time, "time_ns", lambda: wall() - 20 * 8766 * HOUR)  # twenty years ago
        record_mess(release)
    durations = [row[0] for row in queries.query(DURATIONS, home=release.home)]
    assert len(durations) > 50
    assert all(0 <= each < ABSURD_NS for each in durations)
    changed = queries.query(
        "SELECT turn, certainty FROM file_changes JOIN sessions USING (session_id) "
        "WHERE name = 'release' AND lane = 'main' ORDER BY at_ns, state, turn",
        home=release.home,
    )
    assert changed == [
        (1, "observed"), (1, "observed"), (2, "observed"), (4, "observed"), (5, "inferred"), (7, "inferred"),
        (9, "inferred"), (10, "inferred"), (11, "observed"),
    ]  # fmt: skip
    shell = Shell(release.home, capsys)
    monkeypatch.chdir(release.root)
    shown = [line.split() for line in shell("show", "release").out.splitlines()]
    kinds = [words[2:4] for words in shown if words[2:3] in (["command"], ["call"], ["MCP"])]
    assert [each for each in kinds if each[0] != "call" or each[1] in ("run", "mcp__calc__add")] == [
        ["call", "run"], ["command", "sh"], ["call", "run"], ["command", "sh"],
        ["call", "mcp__calc__add"], ["MCP", "add"], ["call", "run"], ["command", "sh"],
    ]  # fmt: skip
    blamed = [
        line.split('"')[0].split()[2:] for line in shell("blame", "README.md").out.splitlines()
    ]
    assert blamed[:2] == [["2", "edit"], ["11", "edit"]]
