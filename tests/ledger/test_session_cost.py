"""`session.cost()`: the spending of one session, read while the process runs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, APIError, AsyncAnthropic

import agentobs
from agentobs.ledger import Spent
from agentobs.recording.session import start_recorder
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from tests.provider_script import cut, script, streamed, text
from tests.store.recordings import usage_row

ASK: dict[str, Any] = {
    "model": "claude-sonnet-5",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "x"}],
}
KEY = "sk-ant-api03-one-more-key-for-the-tests-0123"
ONE = Decimal("0.0000906")
"""The cost of 10 tokens of input, 3 cache reads and 7 tokens of output, at 2, 0.20 and 10 dollars per million."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()
    yield tmp_path / "home"
    agentobs.stop_recorder()


def ask(client: Anthropic) -> None:
    list(client.messages.create(**ASK, stream=True))


def spent(session: agentobs.Session) -> Spent:
    found = session.cost()
    assert found is not None
    return found


def test_the_cost_of_a_session(home: Path) -> None:
    """The cost grows with each call, is divided by model and part, and can still be read after the session has
    ended.
    """
    answers = script(*[streamed(text("ok"))] * 4)
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url))
        with agentobs.session("first") as first:
            assert (spent(first).usd, spent(first).calls) == (Decimal(0), 0)
            ask(client)
            assert spent(first).usd == ONE
            ask(client)
            assert spent(first).usd == 2 * ONE
        with agentobs.session("second") as second:
            ask(client)
        ask(client)
        assert (spent(first).usd, spent(second).usd) == (2 * ONE, ONE)
    found = spent(second)
    assert (found.status, found.calls, found.calls_not_exact) == ("exact", 1, 0)
    assert found.by_model["claude-sonnet-5"].usd == ONE
    assert found.usd_by_part == {
        "input": Decimal("0.00002"), "output": Decimal("0.00007"), "cache_read": Decimal("0.0000006"),
        "cache_write_5m": 0, "cache_write_1h": 0, "server_tools": 0,
    }  # fmt: skip
    with agentobs.connect(home) as connection:
        stored = connection.execute(
            "SELECT name, cost_usd FROM sessions WHERE name <> 'process' ORDER BY started_at"
        )
        assert stored.fetchall() == [("first", 2 * ONE), ("second", ONE)]


def test_a_failed_attempt_that_used_tokens_is_counted(home: Path) -> None:
    """The tokens of a failed attempt are counted in addition to the successful attempt, and make the cost a lower
    bound.
    """
    answers = script(cut(streamed(text("ok")), 1), streamed(text("ok")))
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url))
        with agentobs.session("retried") as session:
            with pytest.raises((APIError, httpx2.TransportError)):
                ask(client)
            ask(client)
        found = spent(session)
    assert found.usd == ONE + Decimal("0.0000306")
    assert (found.status, found.uncertain) == ("lower_bound", {"lower_bound": 1})


async def _in_a_loop(url: str) -> list[Decimal | None]:
    client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url))
    read = []
    async with agentobs.session("async") as session:
        for _ in range(2):
            async with client.messages.stream(**ASK) as stream:
                await stream.get_final_message()
        for _ in range(200):  # a read waits only briefly; the next read includes slower calls
            read.append(spent(session).usd)
            if read[-1] == 2 * ONE:
                break
    return read


def test_the_cost_can_be_read_in_an_event_loop(home: Path) -> None:
    """In an event loop, each cost that is read is at least the previous cost, and the last cost equals the spending."""
    answers = script(*[streamed(text("ok"))] * 2)
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        read = asyncio.run(_in_a_loop(provider.url))
    assert read[-1] == 2 * ONE
    assert read == sorted(read, key=lambda usd: usd or Decimal(0))


def test_a_forked_process_has_a_separate_sum(home: Path) -> None:
    """In a forked child, the cost of the session starts with the parent's cost, and does not change the parent's cost
    afterwards.
    """
    answers = script(*[streamed(text("ok"))] * 3)
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url))
        with agentobs.session("forked") as session:
            ask(client)
            assert spent(session).usd == ONE
            reader, writer = os.pipe()
            if (child := os.fork()) == 0:
                try:
                    ask(Anthropic(api_key=KEY, base_url=provider.url, http_client=client._client))
                    os.write(writer, json.dumps(str(spent(session).usd)).encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            assert Decimal(json.loads(os.read(reader, 100))) == 2 * ONE
            assert spent(session).usd == ONE


def test_a_session_that_is_not_recorded_has_no_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the home cannot be used, the cost of a session is None, not 0."""
    agentobs.stop_recorder()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "file"))
    with (
        pytest.warns(RuntimeWarning, match="not recording"),
        agentobs.session("nowhere") as session,
    ):
        assert session.cost() is None
    agentobs.stop_recorder()


def test_a_dropped_call_makes_the_cost_a_lower_bound(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that could not be recorded is missing from the cost, which is then a lower bound."""
    answers = script(*[streamed(text("ok"))] * 2)
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=provider.url))
        with agentobs.session("dropped") as session:
            ask(client)
            assert spent(session).status == "exact"
            with monkeypatch.context() as full, pytest.warns(RuntimeWarning, match="not written"):
                full.setattr("agentobs.recording.record_queue.QUEUE_BYTES", 0)
                ask(client)
            assert (spent(session).usd, spent(session).status) == (ONE, "lower_bound")
            assert spent(session).lost == 1


def test_a_cost_that_is_read_too_early_is_a_lower_bound(home: Path) -> None:
    """Calls that the recorder has not counted yet are missing from the cost, which is then a lower bound."""
    with agentobs.session("early") as session:
        recorder = start_recorder()
        assert recorder is not None
        meter = recorder.meter(session.session_id)
        recorder.flush()
        with meter._lock:  # the recorder's thread waits for this lock when it must price 65 rows
            rows = [usage_row(n, session_id=session.session_id) for n in range(70)]
            for row in rows:
                recorder(row)
            assert spent(session).status == "lower_bound"
        recorder.flush()
        assert (spent(session).status, spent(session).calls) == ("exact", 70)


def test_two_sessions_that_fetch_the_same_batch_result(home: Path) -> None:
    """A batch result counts in the session that fetched it first, live and in the store."""
    recorder = start_recorder()
    assert recorder is not None
    usage = usage_row(1, batch_result_id="msgbatch_1/a")
    with (
        agentobs.session("one") as one,
        agentobs.session("two") as two,
    ):  # the costs are read in the reverse order
        for session in (one, two):
            recorder(dataclasses.replace(usage, session_id=session.session_id))
            recorder.flush()
        assert [spent(session).calls for session in (two, one)] == [0, 1]
