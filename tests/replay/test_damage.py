"""A fixture that is not as it was written: one clear error, or the same content; never a crash, never a hang."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from agentobs.errors import AgentobsError, DamagedError, ForeignError
from agentobs.records.canonical_json import digest
from replay import Fixture, load
from replay.fixture.format import as_recording
from tests.provider_script import call, streamed, text
from tests.replay.mailer import FAX, LOOK, SAVE, SEND, made

SAMPLES = 150
"""How many of each kind of damage are tried; the seeds count from 0, so that a failure can be run again."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A fixture with everything of version 2 in it."""
    given = [
        streamed(call(1, "look"), call(2, "send", to="ann"), call(3, "none"), number=1),
        streamed(call(4, "save", path="x"), number=2),
        streamed(text("Done."), number=3),
    ]
    fixture, _, _ = made(tmp_path_factory.mktemp("whole"), given, tools=(SEND, LOOK, SAVE, FAX))
    assert len(fixture.world) >= 4
    return fixture.path.read_bytes()


def read(path: Path, data: bytes) -> Fixture | None:
    """Read all of a fixture; None where it is refused with an error of ours."""
    path.write_bytes(data)
    try:
        fixture = load(path)
        as_recording(fixture)
    except AgentobsError:
        return None
    return fixture


def flipped(data: bytes, chance: random.Random) -> bytes:
    at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def cut_off(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def spliced(data: bytes, chance: random.Random) -> bytes:
    """Take a line away, double it, or put it elsewhere."""
    lines = data.splitlines(keepends=True)
    line = lines.pop(chance.randrange(len(lines)))
    for _ in range(chance.randrange(3)):
        lines.insert(chance.randrange(len(lines) + 1), line)
    return b"".join(lines)


def content(fixture: Fixture) -> object:
    bodies = [fixture.body(ask.number) for ask in fixture.asks]
    return fixture.header, fixture.asks, bodies, fixture.tools, fixture.world


@pytest.mark.parametrize("damage", [flipped, cut_off, spliced], ids=lambda d: str(d.__name__))
def test_damage_is_seen(whole: bytes, tmp_path: Path, damage: object) -> None:
    """Whatever is changed, what still reads is what was written."""
    intact = read(tmp_path / "intact.jsonl", whole)
    assert intact is not None
    for seed in range(SAMPLES):
        data = damage(whole, random.Random(seed))  # type: ignore[operator]  # one of the functions above
        fixture = read(tmp_path / "damaged.jsonl", data)
        assert fixture is None or content(fixture) == content(intact), seed


@pytest.mark.parametrize("damage", [flipped, spliced], ids=lambda d: str(d.__name__))
def test_what_is_signed_again_is_read_or_refused(
    whole: bytes, tmp_path: Path, damage: object
) -> None:
    """A fixture may come from somebody else: where its digest holds, it reads, or says what is wrong."""
    *lines, last = whole.splitlines(keepends=True)
    for seed in range(SAMPLES):
        body = damage(b"".join(lines), random.Random(seed))  # type: ignore[operator]  # as above
        end = {**json.loads(last), "digest": digest(body)}
        read(tmp_path / "signed.jsonl", body + json.dumps(end).encode() + b"\n")


@pytest.mark.parametrize(
    "change",
    [
        {"based_on": 0},
        {"based_on": 2},
        {"based_on": 9},
        {"request": 1},
        {"remove_breakpoints": [99]},
        {"add_messages": 5},
        {"set_keys": []},
    ],
    ids=str,
)
def test_a_request_that_is_like_none_is_refused(
    whole: bytes, tmp_path: Path, change: dict[str, object]
) -> None:
    """A chain of requests that leads nowhere, or in a circle, is said, not followed."""
    lines = [json.loads(line) for line in whole.splitlines()]
    second = next(line for line in lines if line.get("request") == 2)
    second.update(change)
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines[:-1])
    end = {**lines[-1], "digest": digest(body)}
    assert read(tmp_path / "odd.jsonl", body + json.dumps(end).encode() + b"\n") is None


MISTYPED: list[tuple[str, dict[str, object], str]] = [
    ("agentobs_fixture", {"agentobs_fixture": True}, "a fixture of version True"),
    ("agentobs_fixture", {"agentobs_fixture": -1}, "a fixture of version -1"),
    (
        "agentobs_fixture",
        {"arguments": [1]},
        "`arguments` of the first line is [1], and not an object",
    ),
    (
        "agentobs_fixture",
        {"ambient": {"seed": 5}},
        "`ambient` of the first line is {'seed': 5}, and not",
    ),
    (
        "agentobs_fixture",
        {"until_turn": -5},
        "`until_turn` of the first line is -5, and not an integer of 1 or more",
    ),
    ("agentobs_fixture", {"name": 5}, "`name` of the first line is 5, and not a text"),
    (
        "agentobs_fixture",
        {"interaction_results": {"main": 5}},
        "`interaction_results` of the first line is {'main': 5}",
    ),
    ("request", {"lane": 5}, "`lane` of request 1 is 5, and not a text"),
    ("request", {"turn": "x"}, "`turn` of request 1 is 'x', and not a number"),
    ("request", {"body": 5}, "`body` of request 1 is 5, and not an object"),
    ("request", {"add_messages": 5}, "`add_messages` of request 1 is 5, and not a list"),
    ("request", {"headers": [1]}, "`headers` of request 1 is [1], and not an object"),
    ("request", {"headers": {"x-a": "a\r\nb: c"}}, "`headers` of request 1 is"),
    (
        "request",
        {"starts_after": ["x"]},
        "`starts_after` of request 1 is ['x'], and not a list of numbers",
    ),
    ("response", {"chunks": "abc"}, "`chunks` of the answer of request 1 is 'abc', and not a list"),
    (
        "response",
        {"status": "abc"},
        "`status` of the answer of request 1 is 'abc', and not an HTTP status",
    ),
    (
        "response",
        {"status": 99},
        "`status` of the answer of request 1 is 99, and not an HTTP status",
    ),
    ("response", {"ending": "zzz"}, "`ending` of the answer of request 1 is 'zzz', and not one of"),
    ("response", {"failure": ["x"]}, "`failure` of the answer of request 1 is ['x']"),
    ("tool", {"name": None}, "`name` of tool call 1 is None, and not a text"),
    ("tool", {"attempts": True}, "`attempts` of tool call 1 is True, and not an integer"),
    ("world", {"lane": 5}, "`lane` of the result of an exchange is 5, and not a text"),
]


@pytest.mark.parametrize(
    ("line", "change", "told"), MISTYPED, ids=[f"{line}-{change}" for line, change, _ in MISTYPED]
)
def test_a_value_of_another_type_is_told(
    whole: bytes, tmp_path: Path, line: str, change: dict[str, object], told: str
) -> None:
    """Made by hand and signed, a fixture is refused by the key, the line and what should stand there: in one line."""
    lines = [json.loads(each) for each in whole.splitlines()]
    next(each for each in lines if next(iter(each)) == line).update(change)
    body = b"".join(json.dumps(each).encode() + b"\n" for each in lines[:-1])
    path = tmp_path / "mistyped.jsonl"
    path.write_bytes(body + json.dumps({**lines[-1], "digest": digest(body)}).encode() + b"\n")
    with pytest.raises((DamagedError, ForeignError)) as caught:
        load(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value.found)
