"""The active time of a person, and the time to the first token."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentobs.records.exchanges import Chunk, ModelExchange
from agentobs.records.facts import InteractionEnd, InteractionStart
from agentobs.records.labels import Label
from tests import queries
from tests.cli.test_commands import Shell
from tests.provider_script import streamed, text
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    permission,
    record,
    session_id,
    start,
    write_facts,
)

MINUTE = 60 * SECOND


def interaction(number: int, begins: int, ends: int, lane: str = "main") -> list[object]:
    """Return the start and the end of an interaction, with times in seconds after the start of the session."""
    name = f"{number:032x}"
    return [
        InteractionStart(session_id(1), name, Label(lane), T0 + begins * SECOND),
        InteractionEnd(
            session_id(1), name, T0 + ends * SECOND, Label("success"), False, Label(lane)
        ),
    ]


def test_the_active_time_of_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts and approvals count for at most five minutes each; overlapping waits count once. Time in which the agent
    works, sub-agents and answers of rules do not count.
    """
    home = a_home(tmp_path)
    record(home, [start(1, "pair"), end(1, at=T0 + 7200 * SECOND)])
    write_facts(
        home,
        [
            *interaction(1, 0, 100),
            *interaction(2, 10, 50, lane="main/a"),
            *interaction(3, 130, 200),  # after 30 s
            *interaction(4, 3800, 3900),  # after an hour
            permission(1, "t1", at=T0 + 40 * SECOND, approval_wait_ns=20 * SECOND),
            permission(1, "t2", at=T0 + 45 * SECOND, approval_wait_ns=20 * SECOND),
            permission(1, "t3", at=T0 + 60 * SECOND, resolver="rule", approval_requested=False),
        ],
    )
    rows = queries.query(
        "SELECT kind, wait_ns // 1000000000, active_ns // 1000000000 FROM person_activity ORDER BY started_ns",
        home=home.path,
    )
    assert rows == [
        ("approval", 20, 20),
        ("approval", 20, 5),
        ("prompt", 30, 30),
        ("prompt", 3600, 300),
    ]
    shell = Shell(home.path, capsys)
    [row] = map(json.loads, shell("waits", "--person", "--json").out.splitlines())
    assert (row["name"], row["prompts"], row["approvals"]) == ("pair", 2, 2)
    assert (row["active_ns"], row["approval_active_ns"]) == (355 * SECOND, 25 * SECOND)
    refused = shell("waits", "--person", "--hooks")
    assert refused.code != 0
    assert "exclude each other" in refused.err


def test_the_time_to_the_first_token(tmp_path: Path) -> None:
    """The first token is that of the first delta, not the first chunk; responses that are not streamed do not count."""

    def stream(turn: int) -> ModelExchange:
        answer = streamed(text("Hm."))
        chunks = tuple(
            Chunk(each.data, n * turn * SECOND) for n, each in enumerate(answer.chunks, 1)
        )
        return replace(attempt(1, turn), answer=replace(answer, chunks=chunks))

    home = a_home(tmp_path)
    made = [stream(turn) for turn in (1, 2, 3)]
    record(home, [start(1), *made, attempt(1, 4), end(1)])
    [at] = {
        next(
            n
            for n, chunk in enumerate(each.answer.chunks, 1)
            if b"content_block_delta" in chunk.data
        )
        for each in made
    }
    assert at > 1
    rows = queries.query(
        "SELECT responses, measured_responses, p50_ns, max_ns FROM first_token_times",
        home=home.path,
    )
    assert rows == [(3, 3, 2 * at * SECOND, 3 * at * SECOND)]
