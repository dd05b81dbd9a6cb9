"""Client sessions: which requests belong together, and which earlier session they continue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

import agentobs
from agentobs import world
from tests.provider_script import call, streamed, text
from tests.proxy.proxies import VERSION, Proxied, proxied
from tests.replay.raw_provider import play, raw_provider

FIRST = "7b0f8a52-0c34-4c0e-9a55-3f1d7f6f0a01"
SECOND = "0d4c6a9e-5f3b-4c52-8f0f-6f3b1c9a7e02"


def send(
    recorded: Proxied, content: Any = "Hello", user: str | None = None, **headers: str
) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    body = {"model": "claude-sonnet-5", "max_tokens": 9, "messages": messages}
    if user is not None:
        body["metadata"] = {"user_id": user}
    url = f"{recorded.url}/v1/messages"
    assert httpx2.post(url, json=body, headers={**VERSION, **named}).status_code == 200


def counts(recorded: Proxied) -> list[tuple[str, int]]:
    """Return the name of each session, and the number of its exchanges."""
    return [(each.name, len(each.exchanges)) for each in recorded.recordings()]


def test_each_session_of_claude_code_is_a_session(tmp_path: Path) -> None:
    """By its header; requests without one belong to the first session."""
    with (
        raw_provider([play(streamed(text("ok")))] * 5) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        send(recorded)  # before the client has sent its session
        send(recorded, x_claude_code_session_id=FIRST)
        send(recorded, x_claude_code_session_id=SECOND)
        send(recorded, x_claude_code_session_id=FIRST)
        send(recorded)
        assert counts(recorded) == [("test", 4), ("test", 1)]
    assert all("x-claude-code-session-id" in each.headers for each in provider.requests[1:4])


@pytest.mark.parametrize(
    "user",
    [
        json.dumps({"device_id": "d", "account_uuid": "", "session_id": SECOND}),
        f"user_0123abcd_account__session_{SECOND}",
    ],
    ids=["json", "text"],
)
def test_sessions_are_told_in_the_body_as_well(tmp_path: Path, user: str) -> None:
    """Both forms that Claude Code has used."""
    with (
        raw_provider([play(streamed(text("ok")))] * 3) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        send(recorded, x_claude_code_session_id=FIRST)
        send(recorded, user=user)
        send(recorded, user=user)
        assert [count for _, count in counts(recorded)] == [1, 2]


@pytest.mark.parametrize("user", ["alice", "user_session_7", json.dumps({"session_id": 7}), "{"])
def test_the_id_of_a_person_is_no_session(tmp_path: Path, user: str) -> None:
    """Other clients put anything into the same field."""
    with (
        raw_provider([play(streamed(text("ok")))] * 2) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        send(recorded, x_claude_code_session_id=FIRST)
        send(recorded, user=user)
        assert [count for _, count in counts(recorded)] == [2]


def test_a_client_can_name_its_session(tmp_path: Path) -> None:
    """With a header that the provider does not get."""
    with (
        raw_provider([play(streamed(text("ok")))] * 3) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        send(recorded, x_agentobs_session="billing")
        send(recorded, x_agentobs_session="search")
        send(recorded, x_agentobs_session="billing")
        assert counts(recorded) == [("billing", 2), ("search", 1)]
    assert not any("x-agentobs-session" in each.headers for each in provider.requests)


@pytest.mark.slow
def test_resumed_and_forked_conversations_link_to_their_session(tmp_path: Path) -> None:
    """By the client's ID of the session, or by the tool calls of the history."""
    first = play(streamed(call(1, "bash", command="ls")))
    asked = [{"role": "user", "content": "List"}]
    history = [
        *asked,
        {"role": "assistant", "content": [call(1, "bash", command="ls")]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a"}],
        },
    ]
    answers = [
        first,
        play(streamed(text("ok"))),
        play(streamed(text("ok"))),
        play(streamed(text("ok"))),
    ]
    with raw_provider(answers) as provider:
        with proxied(provider.url, tmp_path) as recorded:
            send(recorded, asked, x_claude_code_session_id=FIRST)
            [earlier] = recorded.recordings()
        with proxied(provider.url, tmp_path) as recorded:
            send(recorded, history, x_claude_code_session_id=FIRST)
            send(recorded, history, x_claude_code_session_id=SECOND)
            send(recorded, asked, x_agentobs_session="new")
            recorded.recordings()
    with agentobs.connect(str(tmp_path)) as store:
        rows = store.sql(
            "SELECT continues_session_id, relation FROM sessions ORDER BY started_ns"
        ).fetchall()
    # The second session was recorded after the resumed one, which has the same tool calls, so it continues that one.
    assert [relation for _, relation in rows] == [None, "resume", "fork", None]
    assert rows[1][0] == earlier.session_id


def wait_until_idle(recorded: Proxied) -> None:
    """Wait until the proxy has noticed the end of all requests, which may be after their client has."""
    while any(each.in_progress for each in recorded.sessions._opened.values()):
        world.pause(0.01)


def test_idle_sessions_end(tmp_path: Path) -> None:
    """A later request of the same client opens a new session that continues nothing."""
    with (
        raw_provider([play(streamed(text("ok")))] * 2) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        send(recorded, x_claude_code_session_id=FIRST)
        [first] = recorded.sessions.sessions()
        recorded.sessions.close_idle(3600)
        assert recorded.sessions.sessions() == [first]
        wait_until_idle(recorded)
        recorded.sessions.close_idle(0)
        assert recorded.sessions.sessions() == []
        send(recorded, x_claude_code_session_id=FIRST)
        [second] = recorded.sessions.sessions()
    assert first.session_id != second.session_id
