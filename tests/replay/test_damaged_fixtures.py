"""Damaged fixtures: each is rejected with one error or has the same content; none causes a crash or a hang."""

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
from tests.replay.mailer import FAX, LOOK, SAVE, SEND, recorded_fixture

SAMPLES = 150
"""The number of samples for each kind of damage. Seeds start at 0, so a failure can be reproduced."""


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A fixture that uses all features of the format."""
    responses = [
        streamed(call(1, "look"), call(2, "send", to="ann"), call(3, "none"), number=1),
        streamed(call(4, "save", path="x"), number=2),
        streamed(text("Done."), number=3),
    ]
    fixture, _, _ = recorded_fixture(
        tmp_path_factory.mktemp("whole"), responses, tools=(SEND, LOOK, SAVE, FAX)
    )
    assert len(fixture.world) >= 4
    return fixture.path.read_bytes()


def read(path: Path, data: bytes) -> Fixture | None:
    """Read a complete fixture; None if agentobs rejects it with an error."""
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
    """Remove, duplicate or move a random line."""
    lines = data.splitlines(keepends=True)
    line = lines.pop(chance.randrange(len(lines)))
    for _ in range(chance.randrange(3)):
        lines.insert(chance.randrange(len(lines) + 1), line)
    return b"".join(lines)


def content(fixture: Fixture) -> object:
    bodies = [fixture.body(ask.number) for ask in fixture.requests]
    return fixture.header, fixture.requests, bodies, fixture.tools, fixture.world


@pytest.mark.parametrize("damage", [flipped, cut_off, spliced], ids=lambda d: str(d.__name__))
def test_damage_is_detected(complete: bytes, tmp_path: Path, damage: object) -> None:
    """A damaged fixture is either rejected or has the original content."""
    intact = read(tmp_path / "intact.jsonl", complete)
    assert intact is not None
    for seed in range(SAMPLES):
        data = damage(complete, random.Random(seed))  # type: ignore[operator]  # one of the functions above
        fixture = read(tmp_path / "damaged.jsonl", data)
        assert fixture is None or content(fixture) == content(intact), seed


@pytest.mark.parametrize("damage", [flipped, spliced], ids=lambda d: str(d.__name__))
def test_a_changed_fixture_with_a_correct_digest_is_read_or_rejected(
    complete: bytes, tmp_path: Path, damage: object
) -> None:
    """A changed fixture with a correct digest, for example from another person, is either read or rejected with an
    error that names the problem.
    """
    *lines, last = complete.splitlines(keepends=True)
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
def test_an_invalid_base_request_is_rejected(
    complete: bytes, tmp_path: Path, change: dict[str, object]
) -> None:
    """A fixture is rejected if a request is based on a missing request or on itself, or if its changes cannot be
    applied.
    """
    lines = [json.loads(line) for line in complete.splitlines()]
    second = next(line for line in lines if line.get("request") == 2)
    second.update(change)
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines[:-1])
    end = {**lines[-1], "digest": digest(body)}
    assert read(tmp_path / "odd.jsonl", body + json.dumps(end).encode() + b"\n") is None


MISTYPED: list[tuple[str, dict[str, object], str]] = [
    ("agentobs_fixture", {"agentobs_fixture": True}, "unsupported fixture version True"),
    ("agentobs_fixture", {"agentobs_fixture": -1}, "unsupported fixture version -1"),
    (
        "agentobs_fixture",
        {"arguments": [1]},
        "`arguments` of the first line: expected an object or null, got [1]",
    ),
    (
        "agentobs_fixture",
        {"ambient": {"seed": 5}},
        "`ambient` of the first line: expected an object with seed, utc_offset_s, patch and started_ns, got",
    ),
    (
        "agentobs_fixture",
        {"until_turn": -5},
        "`until_turn` of the first line: expected an integer of 1 or more, got -5",
    ),
    ("agentobs_fixture", {"name": 5}, "`name` of the first line: expected a string, got 5"),
    (
        "agentobs_fixture",
        {"interaction_results": {"main": 5}},
        "`interaction_results` of the first line: expected an object of lists of strings, got {'main': 5}",
    ),
    ("request", {"lane": 5}, "`lane` of request 1: expected a string, got 5"),
    ("request", {"turn": "x"}, "`turn` of request 1: expected a number or null, got 'x'"),
    ("request", {"body": 5}, "`body` of request 1: expected an object, got 5"),
    ("request", {"add_messages": 5}, "`add_messages` of request 1: expected a list, got 5"),
    (
        "request",
        {"headers": [1]},
        "`headers` of request 1: expected an object of one-line strings, got [1]",
    ),
    (
        "request",
        {"headers": {"x-a": "a\r\nb: c"}},
        "`headers` of request 1: expected an object of one-line strings, got",
    ),
    (
        "request",
        {"starts_after": ["x"]},
        "`starts_after` of request 1: expected a list of numbers, got ['x']",
    ),
    (
        "response",
        {"chunks": "abc"},
        "`chunks` of the response to request 1: expected a list of pairs of numbers, got 'abc'",
    ),
    (
        "response",
        {"status": "abc"},
        "`status` of the response to request 1: expected an HTTP status or null, got 'abc'",
    ),
    (
        "response",
        {"status": 99},
        "`status` of the response to request 1: expected an HTTP status or null, got 99",
    ),
    (
        "response",
        {"ending": "zzz"},
        "`ending` of the response to request 1: expected one of complete, cut, cancelled, error, got 'zzz'",
    ),
    (
        "response",
        {"failure": ["x"]},
        "`failure` of the response to request 1: expected a list of two strings or null, got ['x']",
    ),
    ("tool", {"name": None}, "`name` of tool call 1: expected a string, got None"),
    (
        "tool",
        {"attempts": True},
        "`attempts` of tool call 1: expected an integer of 0 or more, got True",
    ),
    ("world", {"lane": 5}, "`lane` of exchange 1: expected a string, got 5"),
]


@pytest.mark.parametrize(
    ("line", "change", "expected"),
    MISTYPED,
    ids=[f"{line}-{change}" for line, change, _ in MISTYPED],
)
def test_a_value_of_the_wrong_type_is_reported(
    complete: bytes, tmp_path: Path, line: str, change: dict[str, object], expected: str
) -> None:
    """A value of the wrong type is reported in one line with the key, the line of the fixture, and the expected
    type.
    """
    lines = [json.loads(each) for each in complete.splitlines()]
    next(each for each in lines if next(iter(each)) == line).update(change)
    body = b"".join(json.dumps(each).encode() + b"\n" for each in lines[:-1])
    path = tmp_path / "mistyped.jsonl"
    path.write_bytes(body + json.dumps({**lines[-1], "digest": digest(body)}).encode() + b"\n")
    with pytest.raises((DamagedError, ForeignError)) as caught:
        load(path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value.found)
