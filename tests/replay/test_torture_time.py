"""Torture cases 41, and 21 and 22 for code that asks: the clock, ids and chance of the recording."""

from __future__ import annotations

import asyncio
import datetime
import http.cookiejar
import json
import logging
import random
import secrets
import ssl
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from random import randint
from typing import Any, cast
from uuid import uuid4

import pydantic
import pytest
from anthropic import Anthropic

import agentobs
from agentobs.errors import UsageError
from replay import DivergenceError, Fixture, Replayer, ReplayOptions
from tests.provider_script import call, text
from tests.replay.agents import KEY, MODEL, frozen, recorded
from tests.replay.test_torture_world import whole

Read = Callable[[], Any]


class Clerk:
    """Asks three times, each time with what it reads then; a tool of it reads, too."""

    def __init__(self, url: str | None, read: Read, **session: Any) -> None:
        self.url, self.read, self.session = url, read, session
        self.told: list[str] = []
        self.stamp = agentobs.record_tool(name="stamp")(lambda: f"{read()}")

    def run(self) -> str:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=self.url, max_retries=0))
        messages: list[Any] = []
        with agentobs.session("clerk", **self.session):
            for _ in range(3):
                self.told.append(f"{self.read()}")
                messages.append({"role": "user", "content": self.told[-1]})
                answer = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
                block = answer.content[0]
                messages.append({"role": "assistant", "content": [block.to_dict()]})
                if block.type == "tool_use":
                    result = {"type": "tool_result", "tool_use_id": block.id}
                    self.told.append(self.stamp())
                    result["content"] = self.told[-1]
                    messages.append({"role": "user", "content": [result]})
        return "done"


def given() -> list[Any]:
    return [whole(text("1")), whole(call(1, "stamp"), number=2), whole(text("3"), number=3)]


def made(tmp_path: Path, read: Read, **session: Any) -> tuple[Fixture, Clerk]:
    clerks: list[Clerk] = []

    def run(url: str) -> None:
        clerks.append(Clerk(url, read, **session))
        clerks[0].run()

    return frozen(tmp_path, recorded(tmp_path, run, given()), "clerk"), clerks[0]


def replayed(fixture: Fixture, read: Read, session: dict[str, Any], **options: Any) -> Clerk:
    clerk = Clerk(None, read, **session)
    with Replayer(fixture, ReplayOptions(**options)) as replay:
        assert replay.run(clerk.run) == "done"
    return clerk


def of_the_world() -> Any:
    here = agentobs.world_here()
    return [here.now(), here.new_id(), here.random()]


def of_the_standard_library() -> Any:
    now = datetime.datetime.now(datetime.UTC)
    return [
        *(time.time(), time.time_ns(), time.localtime(), time.gmtime(), time.strftime("%F %T")),
        *(now, datetime.datetime.now(), datetime.date.today(), datetime.datetime.today()),  # noqa: DTZ002, DTZ005, DTZ011
        *(uuid.uuid4(), uuid4(), uuid.uuid1()),
        *(
            random.random(),
            randint(1, 10**9),
            random.choice(range(10**6)),
            random.sample(range(99), 3),
        ),
    ]


PATCH = ("time", "uuid", "random")


@pytest.mark.parametrize(
    ("read", "session"), [(of_the_world, {}), (of_the_standard_library, {"patch": PATCH})]
)
def test_41_what_is_asked_for_is_that_of_the_recording(
    tmp_path: Path, read: Read, session: dict[str, Any]
) -> None:
    """Clock, ids and chance are those of the recording, by the seed and the instants of its requests alone."""
    fixture, live = made(tmp_path, read, **session)
    assert len(set(live.told)) == 4
    again = replayed(fixture, read, session)
    assert again.told == live.told
    # The tool runs: what it draws comes from a stream of its own, and shifts nothing.
    assert replayed(fixture, read, session, tools="live").told == live.told
    lines = [json.loads(line) for line in fixture.path.read_text().splitlines()]
    assert fixture.ambient == lines[0]["ambient"]
    assert [ask.at_ms is not None for ask in fixture.asks] == [True] * 3
    started = str(fixture.ambient["started_ns"])[:8]  # type: ignore[index]
    rest = [{**line, "body": None, "add_messages": None, "result": None} for line in lines[1:]]
    assert all(started not in json.dumps(line) for line in rest)


def test_41_a_session_that_does_not_ask_says_nothing_of_time(tmp_path: Path) -> None:
    """Its fixture has no instant and no seed, so that recording it anew changes nothing."""
    fixture, _ = made(tmp_path, lambda: "no difference")
    assert fixture.ambient is None
    assert "at_ms" not in {
        key for line in fixture.path.read_text().splitlines() for key in json.loads(line)
    }


def test_41_the_clock_of_a_session_moves_with_its_requests(tmp_path: Path) -> None:
    """Read as often as one likes it stands still; it is the real time to the millisecond, and never goes back."""
    reads: list[int] = []

    def read() -> str:
        here = agentobs.world_here()
        reads.extend(here.now() for _ in range(3))
        return "read"

    before = time.time_ns()
    made(tmp_path, read)
    assert sorted(reads) == reads
    assert all(len(set(reads[at : at + 3])) == 1 for at in range(0, len(reads), 3))
    assert before - 10**6 <= reads[0] <= reads[-1] <= time.time_ns()


def test_41_nothing_else_is_touched(tmp_path: Path) -> None:
    """Timers, models, cookies, certificates, logs, secrets and random objects of one's own go on as ever."""

    class Stamped(pydantic.BaseModel):
        at: datetime.datetime
        day: datetime.date = pydantic.Field(default_factory=datetime.date.today)

    seen: dict[str, Any] = {}

    async def timers() -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), 0.01)
        assert loop.time() > started

    def read() -> str:
        asyncio.run(timers())
        model = Stamped(at=datetime.datetime.now(datetime.UTC))
        assert Stamped.model_validate_json(model.model_dump_json()) == model
        assert type(model.at) is datetime.datetime
        assert isinstance(datetime.datetime.now(), datetime.datetime)  # noqa: DTZ005
        jar = http.cookiejar.CookieJar()
        request = urllib.request.Request("http://a.example/")
        jar.add_cookie_header(request)
        assert abs(jar._now - real) < 600  # type: ignore[attr-defined]
        record = logging.LogRecord("x", 20, "f", 1, "m", None, None)
        assert abs(record.created - real) < 600
        ssl.create_default_context()
        own = random.Random(7).random()
        seen.setdefault("own", own)
        assert own == seen["own"]
        seen.setdefault("secrets", set()).add(secrets.token_hex(8))
        assert time.monotonic() > 0
        return "the same"

    real = time.time()
    fixture, _ = made(tmp_path, read, patch=PATCH)
    # In ten years the recording is old.
    header, _, rest = fixture.path.read_text().partition("\n")
    told = json.loads(header)
    told["ambient"]["started_ns"] -= 10 * 365 * 86_400 * 10**9
    old = resigned(fixture, json.dumps(told, ensure_ascii=False) + "\n" + rest)
    functions = (time.time, uuid.uuid4, random.random, datetime.datetime.now)
    replayed(old, read, {"patch": PATCH})
    assert len(seen["secrets"]) == 7
    assert (time.time, uuid.uuid4, random.random, datetime.datetime.now) == functions
    assert uuid4 is uuid.uuid4


def resigned(fixture: Fixture, text: str) -> Fixture:
    """Return a fixture with other lines, and a digest that holds."""
    from agentobs.records.canonical_json import digest
    from replay import load

    lines = text.encode("utf-8", "surrogatepass").splitlines(keepends=True)
    end = {**json.loads(lines[-1]), "digest": digest(b"".join(lines[:-1]))}
    path = fixture.path.with_name("other.jsonl")
    path.write_bytes(b"".join(lines[:-1]) + json.dumps(end).encode() + b"\n")
    return load(path)


def test_41_code_outside_the_session_is_left_alone() -> None:
    """What is patched answers inside such a session only, and only what it names."""
    with agentobs.session("unrecorded"):
        assert abs(time.time() - time.time_ns() / 1e9) < 5
    before = time.time
    real = datetime.datetime.now
    with agentobs.session("patched", patch=("time",)):
        assert time.time() == time.time()
        assert uuid.uuid4() != uuid.uuid4()
    assert time.time is before
    assert real == datetime.datetime.now
    with pytest.raises(UsageError, match=r"'secrets' cannot be patched"):
        agentobs.session("wrong", patch=cast(Any, ("secrets",)))
    with pytest.raises(UsageError, match="cannot be patched"):
        agentobs.session("wrong", patch=cast(Any, "time"))


READS: dict[str, Read] = {
    "time": lambda: f"at {time.time()}",
    "datetime": lambda: f"on {datetime.datetime.now().isoformat()}",  # noqa: DTZ005
    "uuid": lambda: f"id {uuid.uuid4().hex}",
    "random": lambda: f"number {random.random()}",
}


@pytest.mark.parametrize("kind", READS)
def test_22_a_read_outside_the_boundary_is_told_with_its_line(tmp_path: Path, kind: str) -> None:
    """Asked to report, a replay names the line where the value was read by which a request differs."""
    read = READS[kind]
    fixture, _ = made(tmp_path, read)
    clerk = Clerk(None, read)
    report = ReplayOptions(patch="report")
    with pytest.raises(DivergenceError) as raised, Replayer(fixture, report) as replay:
        replay.run(clerk.run)
    words = " ".join(raised.value.divergence.text().split())
    name = {"datetime": "datetime.now", "uuid": "uuid4"}.get(kind, kind)
    assert f"what {name}() returned at" in words
    assert f"test_torture_time.py:{read.__code__.co_firstlineno} in" in words


def test_21_another_id_where_one_was_used_twice_diverges(tmp_path: Path) -> None:
    """Ids are those of the recording, so that an agent which draws one more shows at once."""
    ids: list[str] = []

    def once() -> str:
        ids.append(agentobs.world_here().new_id())
        return ids[0]

    fixture, _ = made(tmp_path, once)
    ids.clear()
    replayed(fixture, once, {})
    with pytest.raises(DivergenceError) as raised:
        replayed(fixture, lambda: agentobs.world_here().new_id(), {})
    assert raised.value.divergence.number == 2


def test_waits_of_whoever_asks_the_world_cost_nothing(tmp_path: Path) -> None:
    """An hour of `world_here().sleep` or `pause` passes at once in a replay, and with a pace as told."""
    waits: list[float] = []

    def read() -> str:
        here = agentobs.world_here()
        if is_replay:
            here.pause(3600)
            asyncio.run(here.sleep(3600))
        return "the same"

    def waits_a_second() -> str:
        agentobs.world_here().pause(1)
        return "the same"

    is_replay = False
    fixture, _ = made(tmp_path, read)
    is_replay = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", waits.append)
        replayed(fixture, read, {})
        assert waits == []
        is_replay = False
        replayed(fixture, waits_a_second, {}, pace=4.0)
    assert waits.count(0.25) == 3
