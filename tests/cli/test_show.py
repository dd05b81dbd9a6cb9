"""`agentobs show`: decisions about tool calls, steering messages, and aborts."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentobs.agent.events import Event, ToolDone
from agentobs.agent.execution.live_answers import Consent, Reply
from tests.cli.test_commands import Shell
from tests.provider_script import call, streamed, text
from tests.replay.mailer import Mailer, recorded_run


def person(agent: Mailer, consent: Consent) -> Reply:
    to = consent.about["input"]["to"]
    if to == "ann":
        agent.inbox.steer("What was said stays in the content files.")
    return Reply(allow=to == "ann", reason="not her")


def stop_at_the_second(agent: Mailer, event: Event) -> None:
    if len([e for e in agent.events if isinstance(e, ToolDone)]) == 2:
        agent.abort.stop()


def test_the_timeline_shows_decisions_messages_and_aborts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The timeline lists decisions with their outcome, the length of messages, and the point of an abort.

    It contains no content.
    """
    given = [
        streamed(call(1, "look"), call(2, "send", to="eve"), number=1),
        streamed(call(3, "send", to="ann"), call(4, "send", to="bob"), number=2),
        streamed(text("Done."), number=3),
    ]
    recorded_run(tmp_path, given, person=person)
    shell = Shell(tmp_path / "home", capsys)
    result = shell("show", "mailer").out
    rows = [" ".join(line.split()) for line in result.splitlines()]
    [denied] = [row for row in rows if "permission send" in row and "deny" in row]
    assert "person" in denied
    assert len([row for row in rows if "permission send" in row and "allow" in row]) == 1
    assert not [row for row in rows if "permission look" in row]
    [message] = [row for row in rows if " steering " in row]
    assert message.endswith("45 bytes -")
    tools = [row.split()[-2] for row in rows if row.split()[2:3] == ["tool"]]
    assert tools == ["executed", "denied", "executed", "skipped"]
    assert "content files" not in result
    assert "content files" in shell("show", "mailer", "--content").out


def test_the_timeline_shows_an_abort(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An abort is one line of the timeline, with the point at which the run was stopped."""
    calls = [call(number, "send", to="ann") for number in (1, 2, 3)]
    recorded_run(tmp_path, [streamed(*calls, number=1)], on=stop_at_the_second)
    result = Shell(tmp_path / "home", capsys)("show", "mailer").out
    rows = [line.split() for line in result.splitlines()]
    [stopped] = [row for row in rows if "abort" in row]
    assert "1:tools" in stopped
    tools = [row[-2] for row in rows if row[2:4] == ["tool", "send"]]
    assert tools == ["executed", "executed", "aborted"]
