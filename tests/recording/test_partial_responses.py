"""Partial responses: no part is written twice, and an exchange is recorded as if it had been written once, at its
end.
"""

from __future__ import annotations

import json
import os
import threading
import time
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import httpx2
import pytest
from anthropic import Anthropic

import agentobs
from agentobs.recording import segment_writer as writers
from agentobs.recording import timekeeper
from agentobs.recording.facts.interpreter import Interpreter
from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.journal.segments import Line, content_path, facts_path, read, segment_ids
from agentobs.recording.journal.unfinished_attempts import crashed_attempts
from agentobs.recording.vault.vault import read_session, text_bytes
from agentobs.recording.wire import transport as wire
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.verification import verify
from tests.agent.provider import Provider, message, streamed, text
from tests.recording.test_wire import home

__all__ = ["home"]
ASK: dict[str, Any] = {
    "model": "claude-sonnet-5",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "Hello"}],
}


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the timekeeper tick more often."""
    monkeypatch.setattr(timekeeper, "SYNC_SECONDS", 0.02)


def lines(home: Path, *, content: bool = False) -> list[Line]:
    if not home.is_dir():
        return []  # nothing is recorded yet
    place = Home(home)
    path_of = content_path if content else facts_path
    paths = [path_of(place, each) for each in segment_ids(place)]
    found = [line for path in paths if path.exists() for line in read(path)]
    return [line for line in found if isinstance(line, Line)]


def wait_until(seen: Callable[[], object]) -> None:
    last = time.monotonic() + 9  # the provider delays its response by ten seconds
    while not seen():
        assert time.monotonic() < last, "the condition was not reached"
        time.sleep(0.01)


def record_while_open(
    home: Path, meanwhile: Callable[[], object], *words: str
) -> tuple[bytes, ModelExchange]:
    """Read a response that ends when `meanwhile` has returned; return its chunks and its recording."""
    may_end = threading.Event()
    sent = streamed(message(*map(text, words)), hold=may_end)
    with Provider([sent]) as provider:
        client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.base_url))
        with agentobs.session("held") as session:
            response = client.messages.create(**ASK, stream=True)
            for number, _ in enumerate(response):
                if number == 1:
                    wait_until(lambda: any(line.kind == "attempts_starts" for line in lines(home)))
                    meanwhile()
                    may_end.set()
    assert agentobs.stop_recorder()
    place = existing_home(home)
    [exchange] = read_session(place, session.session_id, segment_ids(place)).exchanges
    assert isinstance(exchange, ModelExchange)
    assert verify(place).ok
    return b"".join(sent.chunks), exchange


def test_no_part_is_written_twice(home: Path) -> None:
    """The parts of a response and the rest in its content line add up to the response, which is read back unchanged."""
    words = [f"{number} " * 60 for number in range(60)]
    wait = lambda: wait_until(lambda: any(ln.kind == "partial" for ln in lines(home, content=True)))  # noqa: E731
    sent, exchange = record_while_open(home, wait, *words)
    assert (exchange.answer.body, exchange.answer.ending) == (sent, "complete")
    written = [ln for ln in lines(home, content=True) if ln.kind in ("partial", "response")]
    assert Counter(line.kind for line in written)["partial"] >= 1
    assert b"".join(text_bytes(line.value()) for line in written) == sent
    assert Counter(ln.kind for ln in lines(home, content=True))["request"] == 1
    with connect(home) as connection:
        attempts = "SELECT outcome, count(*) FROM attempts GROUP BY ALL"
        assert connection.execute(attempts).fetchall() == [("ok", 1)]
        used = "SELECT certainty, count(*) FROM usage GROUP BY ALL"
        assert connection.execute(used).fetchall() == [("exact", 1)]


def test_a_new_segment_during_a_response(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another segment starts during an exchange, the exchange is complete in that segment, and the first segment
    does not report it as crashed.
    """

    def another_segment() -> None:
        monkeypatch.setattr(writers, "SEGMENT_BYTES", 1)
        with agentobs.session("meanwhile"):
            pass
        monkeypatch.setattr(writers, "SEGMENT_BYTES", 1 << 30)

    sent, exchange = record_while_open(home, another_segment, *["word " * 100] * 60)
    first, *later = segment_ids(existing_home(home))
    assert later
    assert crashed_attempts(read(facts_path(existing_home(home), first))) == []
    assert exchange.answer.body == sent
    with connect(home) as connection:
        assert connection.execute("SELECT outcome FROM attempts").fetchall() == [("ok",)]


def test_short_exchanges_have_no_drafts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange that takes less than 200 ms is written only once, at its end."""
    monkeypatch.setattr(timekeeper, "SYNC_SECONDS", 30)
    with Provider([streamed(message(text("quick")))] * 3) as provider:
        client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.base_url))
        with agentobs.session("quick"):
            for _ in range(3):
                client.messages.create(**ASK)
    assert agentobs.stop_recorder()
    kinds = {line.kind for line in [*lines(home), *lines(home, content=True)]}
    assert kinds.isdisjoint({"attempts_starts", "usage_starts", "partial", "attempt_moves"})


def test_without_content_only_drafts_of_facts_are_written(home: Path) -> None:
    """With `content="off"`, no part of a response is written, but the usage so far is."""
    may_end = threading.Event()
    sent = streamed(message(*map(text, ["word " * 100] * 60)), hold=may_end)
    with Provider([sent]) as provider:
        client = agentobs.record(Anthropic(api_key="made-up", base_url=provider.base_url))
        with agentobs.session("off", content="off"):
            response = client.messages.create(**ASK, stream=True)
            next(iter(response))
            wait_until(lambda: any(line.kind == "usage_starts" for line in lines(home)))
            assert not list((home / "segments").glob("*.content"))
            may_end.set()


def test_a_forked_child_does_not_write_exchanges_of_its_parent(home: Path) -> None:
    """A forked child does not write drafts of the open exchanges of its parent."""

    def fork() -> None:
        child = os.fork()
        if child == 0:
            with agentobs.session("child"):
                pass
            agentobs.stop_recorder()
            os._exit(0)
        os.waitpid(child, 0)

    sent, exchange = record_while_open(home, fork, "word " * 2_000)
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


HEAD = b"""event: message_start
data: {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [], \
"model": "claude-sonnet-5", "stop_reason": null, "usage": {"input_tokens": 9, "output_tokens": 1}}}

"""


def delta(text: str) -> bytes:
    event = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }
    return b"event: content_block_delta\ndata: " + json.dumps(event).encode() + b"\n\n"


class Counted(Sequence[Chunk]):
    """The chunks of a response in progress, with a count of the chunks that are read."""

    def __init__(self, encoding: str) -> None:
        self.answer, self.seen, self.encoding = list[Chunk](), 0, encoding
        self._packer = zlib.compressobj(wbits=31)

    def add(self, data: bytes) -> None:
        if self.encoding:
            data = self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        self.answer.append(Chunk(data, len(self.answer)))

    def __len__(self) -> int:
        return len(self.answer)

    @overload
    def __getitem__(self, at: int) -> Chunk: ...
    @overload
    def __getitem__(self, at: slice) -> list[Chunk]: ...
    def __getitem__(self, at: int | slice) -> Chunk | list[Chunk]:
        found = self.answer[at]
        self.seen += len(found) if isinstance(found, list) else 1
        return found

    def exchange(self) -> ModelExchange:
        head = {"content-type": "text/event-stream"}
        question = Question("POST", "/v1/messages", {}, json.dumps(ASK).encode())
        answer = Answer(200, head, self, "cut", encoding=self.encoding)
        return ModelExchange(Place("5" * 32), "6" * 32, 0, 1, 2, question, answer)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["", "gzip"])
@pytest.mark.parametrize("content", ["vault", "off"])
def test_the_cost_of_a_part_does_not_depend_on_the_length(encoding: str, content: str) -> None:
    """However long a response already is, writing a part reads only the new chunks and a few kilobytes before them."""
    bytes_seen = 0

    def rule(text: bytes) -> Iterator[tuple[int, int, str]]:
        nonlocal bytes_seen
        bytes_seen += len(text)
        return iter(())

    interpreter = Interpreter(b"k" * 32, (rule,))
    interpreter._modes["5" * 32] = content
    chunks, parts, looks = Counted(encoding), list[bytes](), list[tuple[int, int]]()
    chunks.add(HEAD)
    for look in range(301):
        for number in range(200):
            chunks.add(delta(f"word{look:03}{number:03} of it "))
        chunks.seen = bytes_seen = 0
        interpretation = interpreter.interpret_partial(chunks.exchange())
        looks.append((chunks.seen, bytes_seen))
        if interpretation is not None:
            parts += [
                text_bytes(line) for kind, line in interpretation.contents if kind == "partial"
            ]
    assert len(chunks) > 60_000
    assert max(seen for seen, _ in looks) <= 201
    assert max(seen for _, seen in looks[5:]) <= 1.1 * max(seen for _, seen in looks[1:5])
    assert (len(b"".join(parts)) > 50_000 * len(delta("word000000 of it "))) == (content == "vault")


@pytest.mark.slow
def test_a_secret_in_several_chunks_is_in_no_part() -> None:
    """A key whose letters arrive in separate chunks, at any time between two checks, is in none of the written
    parts.
    """
    secret = "sk-ant-api03-" + "Ab1Cd2Ef3Gh4" * 6
    interpreter = Interpreter(b"k" * 32)
    chunks, parts = Counted(""), list[bytes]()
    chunks.add(HEAD)
    for part in range(16):
        for letter in [*("plain words " * 40), *secret]:
            chunks.add(delta(letter))
            if len(chunks) % 97 == part:
                interpretation = interpreter.interpret_partial(chunks.exchange())
                lines = interpretation.contents if interpretation else ()
                parts += [text_bytes(line) for kind, line in lines if kind == "partial"]
    events = [
        json.loads(each.partition(b"data: ")[2]) for each in b"".join(parts).split(b"\n\n") if each
    ]
    text = "".join(each["delta"]["text"] for each in events[1:])
    assert text.count("[redacted:anthropic_key") > 6
    assert "Ab1Cd2" not in text


@pytest.mark.slow
def test_a_check_copies_no_earlier_chunks(home: Path) -> None:
    """A check for open exchanges needs only some kilobytes, however much of a response has arrived."""
    may_end = threading.Event()

    class Long(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from [b"x" * 100] * 60_000
            may_end.wait(10)

    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, stream=Long()))
    client = agentobs.record(httpx2.Client(transport=transport))
    with agentobs.session("long"), client.stream("GET", "http://127.0.0.1/") as response:
        chunks = response.iter_raw()
        for _ in range(60_000):
            next(chunks)
        tracemalloc.start()
        try:
            [exchange] = wire.open_for(0)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            may_end.set()
        assert len(exchange.answer.chunks) == 60_000
        assert peak < 100_000
        assert exchange.answer.chunks[-1].data == b"x" * 100
    client.close()
