"""Answers that are written while they come: nothing is written twice, and what ends is as if it had come at once."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.recording import recorder as recorders
from agentobs.recording import writer as writers
from agentobs.recording.home import existing_home
from agentobs.recording.journal import Line, content_path, facts_path, read, segment_ids
from agentobs.recording.vault import read_session, text_bytes
from agentobs.records.exchanges import ModelExchange
from agentobs.store.database import connect
from agentobs.store.verify import verify
from tests.agent.provider import Provider, message, streamed, text
from tests.recording.test_wire import home

__all__ = ["home"]
ASK: dict[str, Any] = {
    "model": "claude-sonnet-5",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Hello"}],
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks come faster than they would."""
    monkeypatch.setattr(recorders, "SYNC_SECONDS", 0.02)


def lines(home: Path, *, content: bool = False) -> list[Line]:
    place = existing_home(home)
    path_of = content_path if content else facts_path
    paths = [path_of(place, each) for each in segment_ids(place)]
    found = [line for path in paths if path.exists() for line in read(path)]
    return [line for line in found if isinstance(line, Line)]


def until(seen: Callable[[], object]) -> None:
    last = time.monotonic() + 9  # the provider holds its answer back for ten seconds
    while not seen():
        assert time.monotonic() < last, "it never came"
        time.sleep(0.01)


def held(home: Path, meanwhile: Callable[[], object], *words: str) -> tuple[bytes, ModelExchange]:
    """Read an answer whose end comes when `meanwhile` was done; return what was sent, and its recording."""
    goes_on = threading.Event()
    sent = streamed(message(*map(text, words)), hold=goes_on)
    with Provider([sent]) as provider:
        client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.base_url))
        with agentobs.session("held") as session:
            asked = client.messages.create(**ASK, stream=True)
            for number, _ in enumerate(asked):
                if number == 1:
                    until(lambda: any(line.kind == "attempts_starts" for line in lines(home)))
                    meanwhile()
                    goes_on.set()
    assert agentobs.stop_recorder()
    place = existing_home(home)
    [exchange] = read_session(place, session.session_id, segment_ids(place)).exchanges
    assert isinstance(exchange, ModelExchange)
    assert verify(place).ok
    return b"".join(sent.pieces), exchange


def test_nothing_is_written_twice(home: Path) -> None:
    """The pieces of an answer and the rest that its response holds add up to it, and it reads back as it came."""
    words = [f"{number} " * 60 for number in range(60)]
    wait = lambda: until(lambda: any(ln.kind == "partial" for ln in lines(home, content=True)))  # noqa: E731
    sent, exchange = held(home, wait, *words)
    assert (exchange.answer.body, exchange.answer.ending) == (sent, "complete")
    told = [ln for ln in lines(home, content=True) if ln.kind in ("partial", "response")]
    assert Counter(line.kind for line in told)["partial"] >= 1
    assert b"".join(text_bytes(line.value()) for line in told) == sent
    assert Counter(ln.kind for ln in lines(home, content=True))["request"] == 1
    with connect(home) as connection:
        attempts = "SELECT outcome, count(*) FROM attempts GROUP BY ALL"
        assert connection.execute(attempts).fetchall() == [("ok", 1)]
        used = "SELECT certainty, count(*) FROM usage GROUP BY ALL"
        assert connection.execute(used).fetchall() == [("exact", 1)]


def test_a_segment_that_ends_meanwhile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way goes on in the next segment, whole; the first does not tell it as crashed."""

    def another_segment() -> None:
        monkeypatch.setattr(writers, "SEGMENT_BYTES", 1)
        with agentobs.session("meanwhile"):
            pass
        monkeypatch.setattr(writers, "SEGMENT_BYTES", 1 << 30)

    sent, exchange = held(home, another_segment, *["word " * 100] * 60)
    assert len(segment_ids(existing_home(home))) > 1
    assert exchange.answer.body == sent
    with connect(home) as connection:
        assert connection.execute("SELECT outcome FROM attempts").fetchall() == [("ok",)]


def test_quick_answers_leave_no_draft(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange that takes less than 200 ms is written once, at its end."""
    monkeypatch.setattr(recorders, "SYNC_SECONDS", 30)
    with Provider([streamed(message(text("quick")))] * 3) as provider:
        client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.base_url))
        with agentobs.session("quick"):
            for _ in range(3):
                client.messages.create(**ASK)
    assert agentobs.stop_recorder()
    kinds = {line.kind for line in [*lines(home), *lines(home, content=True)]}
    assert kinds.isdisjoint({"attempts_starts", "usage_starts", "partial", "attempt_moves"})


def test_without_content_only_facts_are_drafted(home: Path) -> None:
    """With `content="off"` no piece of an answer is written, and what it used so far is."""
    goes_on = threading.Event()
    sent = streamed(message(*map(text, ["word " * 100] * 60)), hold=goes_on)
    with Provider([sent]) as provider:
        client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.base_url))
        with agentobs.session("off", content="off"):
            asked = client.messages.create(**ASK, stream=True)
            next(iter(asked))
            until(lambda: any(line.kind == "usage_starts" for line in lines(home)))
            assert not list((home / "segments").glob("*.content"))
            goes_on.set()


def test_a_forked_child_leaves_what_is_under_way(home: Path) -> None:
    """The parent's open answer is not the child's to draft."""

    def fork() -> None:
        child = os.fork()
        if child == 0:
            with agentobs.session("child"):
                pass
            agentobs.stop_recorder()
            os._exit(0)
        os.waitpid(child, 0)

    sent, exchange = held(home, fork, "word " * 2_000)
    assert exchange.answer.body == sent
    place = existing_home(home)
    drafts = [
        segment_id
        for segment_id in segment_ids(place)
        if any(
            isinstance(ln, Line) and ln.kind == "attempts_starts"
            for ln in read(facts_path(place, segment_id))
        )
    ]
    assert len(drafts) == 1
