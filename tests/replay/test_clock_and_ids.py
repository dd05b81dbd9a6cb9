"""The clock, IDs and random numbers of an agent: a replay returns the recorded values."""

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
from tests.replay.test_tool_policies import unstreamed

Read = Callable[[], Any]


class Clerk:
    """An agent that sends three requests, each with current readings; one of its tools reads too."""

    def __init__(self, url: str | None, read: Read, **session: Any) -> None:
        self.url, self.read, self.session = url, read, session
        self.readings: list[str] = []
        self.stamp = agentobs.record_tool(name="stamp")(lambda: f"{read()}")

    def run(self) -> str:
        client = agentobs.record(Anthropic(api_key=KEY, base_url=self.url, max_retries=0))
        messages: list[Any] = []
        with agentobs.session("clerk", **self.session):
            for _ in range(3):
                self.readings.append(f"{self.read()}")
                messages.append({"role": "user", "content": self.readings[-1]})
                answer = client.messages.create(model=MODEL, max_tokens=9, messages=messages)
                block = answer.content[0]
                messages.append({"role": "assistant", "content": [block.to_dict()]})
                if block.type == "tool_use":
                    result = {"type": "tool_result", "tool_use_id": block.id}
                    self.readings.append(self.stamp())
                    result["content"] = self.readings[-1]
                    messages.append({"role": "user", "content": [result]})
        return "done"


def responses() -> list[Any]:
    return [
        unstreamed(text("1")),
        unstreamed(call(1, "stamp"), number=2),
        unstreamed(text("3"), number=3),
    ]


def recorded_clerk(tmp_path: Path, read: Read, **session: Any) -> tuple[Fixture, Clerk]:
    clerks: list[Clerk] = []

    def run(url: str) -> None:
        clerks.append(Clerk(url, read, **session))
        clerks[0].run()

    return frozen(tmp_path, recorded(tmp_path, run, responses()), "clerk"), clerks[0]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "session"), [(of_the_world, {}), (of_the_standard_library, {"patch": PATCH})]
)
def test_clock_ids_and_random_numbers_replay(
    tmp_path: Path, read: Read, session: dict[str, Any]
) -> None:
    """Clock readings, IDs and random numbers are derived only from the recorded seed and the times of the requests."""
    fixture, live = recorded_clerk(tmp_path, read, **session)
    assert len(set(live.readings)) == 4
    replaying = replayed(fixture, read, session)
    assert replaying.readings == live.readings
    # A tool that runs live draws from a separate stream, so later values do not change.
    assert replayed(fixture, read, session, tools="live").readings == live.readings
    lines = [json.loads(line) for line in fixture.path.read_text().splitlines()]
    assert fixture.ambient == lines[0]["ambient"]
    assert [ask.at_ms is not None for ask in fixture.requests] == [True] * 3
    started = str(fixture.ambient["started_ns"])[:8]  # type: ignore[index]
    rest = [{**line, "body": None, "add_messages": None, "result": None} for line in lines[1:]]
    assert all(started not in json.dumps(line) for line in rest)


def test_a_session_without_readings_contains_no_times(tmp_path: Path) -> None:
    """If an agent reads no clock, ID or random number, its fixture contains neither a seed nor a time."""
    fixture, _ = recorded_clerk(tmp_path, lambda: "no difference")
    assert fixture.ambient is None
    assert "at_ms" not in {
        key for line in fixture.path.read_text().splitlines() for key in json.loads(line)
    }


def test_the_clock_of_a_session_advances_with_its_requests(tmp_path: Path) -> None:
    """The session's clock advances only with requests, equals the real time to the millisecond, and never goes back."""
    reads: list[int] = []

    def read() -> str:
        here = agentobs.world_here()
        reads.extend(here.now() for _ in range(3))
        return "read"

    before = time.time_ns()
    recorded_clerk(tmp_path, read)
    assert sorted(reads) == reads
    assert all(len(set(reads[at : at + 3])) == 1 for at in range(0, len(reads), 3))
    assert before - 10**6 <= reads[0] <= reads[-1] <= time.time_ns()


@pytest.mark.slow
def test_nothing_else_is_patched(tmp_path: Path) -> None:
    """With all patches, timers, models, cookies, certificates, logs, secrets and the user's random objects work as
    usual.
    """

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
        own_random = random.Random(7).random()
        seen.setdefault("own", own_random)
        assert own_random == seen["own"]
        seen.setdefault("secrets", set()).add(secrets.token_hex(8))
        assert time.monotonic() > 0
        return "the same"

    real = time.time()
    fixture, _ = recorded_clerk(tmp_path, read, patch=PATCH)
    # as if the recording were ten years old
    header, _, rest = fixture.path.read_text().partition("\n")
    parsed = json.loads(header)
    parsed["ambient"]["started_ns"] -= 10 * 365 * 86_400 * 10**9
    old = with_lines(fixture, json.dumps(parsed, ensure_ascii=False) + "\n" + rest)
    functions = (time.time, uuid.uuid4, random.random, datetime.datetime.now)
    replayed(old, read, {"patch": PATCH})
    assert len(seen["secrets"]) == 7
    assert (time.time, uuid.uuid4, random.random, datetime.datetime.now) == functions
    assert uuid4 is uuid.uuid4


def with_lines(fixture: Fixture, text: str) -> Fixture:
    """Return a fixture with other lines and a correct digest."""
    from agentobs.records.canonical_json import digest
    from replay import load

    lines = text.encode("utf-8", "surrogatepass").splitlines(keepends=True)
    end = {**json.loads(lines[-1]), "digest": digest(b"".join(lines[:-1]))}
    path = fixture.path.with_name("other.jsonl")
    path.write_bytes(b"".join(lines[:-1]) + json.dumps(end).encode() + b"\n")
    return load(path)


def test_code_outside_of_the_session_is_not_affected() -> None:
    """Functions are patched only inside a session that requests patches, and only the selected functions."""
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", READS)
def test_an_unpatched_reading_is_reported_with_its_line(tmp_path: Path, kind: str) -> None:
    """With `patch="report"`, the report names the line that read the value in which a request differs."""
    read = READS[kind]
    fixture, _ = recorded_clerk(tmp_path, read)
    clerk = Clerk(None, read)
    report = ReplayOptions(patch="report")
    with pytest.raises(DivergenceError) as raised, Replayer(fixture, report) as replay:
        replay.run(clerk.run)
    words = " ".join(raised.value.divergence.text().split())
    name = {"datetime": "datetime.now", "uuid": "uuid4"}.get(kind, kind)
    assert f"the return value of {name}() at" in words
    assert f"test_clock_and_ids.py:{read.__code__.co_firstlineno} in" in words


def test_an_additional_id_diverges(tmp_path: Path) -> None:
    """An agent that draws an additional ID sends a different ID than the recorded one, so the replay diverges."""
    ids: list[str] = []

    def once() -> str:
        ids.append(agentobs.world_here().new_id())
        return ids[0]

    fixture, _ = recorded_clerk(tmp_path, once)
    ids.clear()
    replayed(fixture, once, {})
    with pytest.raises(DivergenceError) as raised:
        replayed(fixture, lambda: agentobs.world_here().new_id(), {})
    assert raised.value.divergence.number == 2


def test_waits_through_the_world_take_no_time(tmp_path: Path) -> None:
    """`world_here().sleep` and `pause` return at once in a replay; with a pace, they take the scaled time."""
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
    fixture, _ = recorded_clerk(tmp_path, read)
    is_replay = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", waits.append)
        replayed(fixture, read, {})
        assert waits == []
        is_replay = False
        replayed(fixture, waits_a_second, {}, pace=4.0)
    assert waits.count(0.25) == 3
