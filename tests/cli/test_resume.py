"""`agentobs run --resume` and `--fork`: the command line continues an earlier session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.store.duckdb.connection import connect
from tests.agent.provider import Provider, message, streamed, text
from tests.cli.test_commands import Shell

PRICED = "claude-sonnet-4-6"
USED = {"input_tokens": 1000, "output_tokens": 1000, "cache_read_input_tokens": 0}


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "made-up")
    agentobs.stop_recorder()
    yield Shell(tmp_path / "home", capsys)
    agentobs.stop_recorder()


def ids(shell: Shell) -> list[str]:
    assert agentobs.stop_recorder()
    with connect(shell.home) as store:
        sql = "SELECT session_id FROM sessions ORDER BY started_ns"
        return [row[0] for row in store.execute(sql).fetchall()]


@pytest.mark.slow
def test_a_session_is_resumed_and_forked(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A continued session sends the complete history, and its fixture replays without the earlier sessions.

    `show` prints the total cost of the conversation.
    """
    words = ("One.", "Two.", "Three.", "Other.")
    answers = [message(text(word), model=PRICED, usage=USED) for word in words]
    with Provider([streamed(each) for each in answers]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        assert shell("run", "First", "--max-usd", "none", "--model", PRICED).code == 0
        [first] = ids(shell)
        assert (
            shell("run", "Second", "--max-usd", "none", "--resume", "run", "--model", PRICED).out
            == "Two.\n"
        )
        second = ids(shell)[-1]
        assert (
            shell(
                "run", "Third", "--max-usd", "none", "--resume", second[-8:], "--model", PRICED
            ).out
            == "Three.\n"
        )
        third = ids(shell)[-1]
        forking = ("--fork", second, "--at-turn", "2", "--name", "other", "--model", PRICED)
        assert shell("run", "Else", "--max-usd", "none", *forking).out == "Other.\n"
        contents = [[m["content"] for m in each["messages"]] for each in provider.requests]
    one, two = ([{"type": "text", "text": word}] for word in ("One.", "Two."))
    assert _plain(contents[2]) == ["First", one, "Second", two, "Third"]
    assert _plain(contents[3]) == ["First", one, "Second", two, "Else"]
    shown = shell("show", first).out
    assert "3 sessions cost $0.0540" in shown
    assert second in shown
    assert f"conversation id      {first}" in shell("show", third, "--facts").out
    assert f"continues session id {second}" in shell("show", "other", "--facts").out
    for name, folder in ((third, "resumed"), ("other", "forked")):
        assert shell("freeze", name, "-o", folder, "--no-check").code == 0
    shutil.rmtree(shell.home)
    for folder in ("resumed", "forked"):
        assert "1 of 1 requests" in shell("replay", folder).out


def _plain(contents: list[Any]) -> list[Any]:
    """Remove cache breakpoints, and turn the prompts back into plain texts."""
    found: list[Any] = []
    for content in contents:
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        bare = [{key: block[key] for key in ("type", "text")} for block in blocks]
        found.append(bare if bare[0]["text"].endswith(".") else bare[0]["text"])
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--resume", "nobody"), "no session with that ID or name"),
        (("--fork", "first", "--at-turn", "9"), "the session has no turn 9"),
        (("--resume", "first", "--fork", "first"), "both be resumed and forked"),
        (("--resume", "first", "--at-turn", "1"), "--at-turn: requires --fork"),
    ],
)
def test_sessions_that_cannot_be_resumed(
    options: tuple[str, ...], expected: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that cannot be resumed gives a one-line error and a non-zero exit code, and no request is sent."""
    with Provider([streamed(message(text("One."), model=PRICED))]) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        assert shell("run", "Hello", "--max-usd", "none", "--name", "first").code == 0
        assert agentobs.stop_recorder()
        ended = shell("run", "Go on", "--max-usd", "none", *options)
        assert len(provider.requests) == 1
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: ")
    assert expected in ended.err
    assert len(ended.err.splitlines()) == 1
