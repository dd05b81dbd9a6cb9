"""Session results: recorded as content, frozen, and compared at the end of a replay."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import functools
import gc
import json
import weakref
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pydantic
import pytest
from anthropic import Anthropic, AsyncAnthropic

import agentobs
from agentobs.determinism.return_values import RETURNED_BYTES, returned
from agentobs.determinism.values import NOT_KEPT, not_kept_in
from agentobs.records.exchanges import Recording
from replay import DivergenceError, Fixture, Replayer, ReplayOptions, load
from replay.freeze.conversion import freeze
from tests import queries
from tests.marks import mark_all_but_first
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, MODEL, frozen, recorded
from tests.replay.wire_recordings import NOWHERE

UUIDS = (
    "0b9c2f3e-5a77-4d0b-9f3b-0e6d9a1c2b3d",
    "7f1d4c2a-93be-4e55-8a10-c0ffee123456",
)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Refund:
    order: str
    amount: Decimal
    color: Color = Color.RED
    asked_at: float = dataclasses.field(default=0.0, compare=False)


class Answer(pydantic.BaseModel):
    status: str
    refunds: list[Refund] = []
    note: str = pydantic.Field(default="", exclude=True)


class Handle:
    """An object without a JSON representation."""


def ask(url: str) -> str:
    """Call the model once, and return the text of its response."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url))
    messages: Any = [{"role": "user", "content": "Refund order 7."}]
    with client.messages.stream(model=MODEL, max_tokens=9, messages=messages) as stream:
        return stream.get_final_text()


def agent(make: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return an agent that creates its result from the model's text."""

    @agentobs.session("refunds")
    def run(url: str) -> Any:
        return make(ask(url))

    return run


def recording_of(tmp_path: Path, run: Callable[[str], Any]) -> Recording:
    return recorded(tmp_path, run, [streamed(text("Refunded."))])


def fixture_of(tmp_path: Path, run: Callable[[str], Any]) -> Fixture:
    return frozen(tmp_path, recording_of(tmp_path, run))


def replayed(fixture: Fixture, run: Callable[[str], Any], **options: Any) -> Any:
    with Replayer(load(fixture.path), ReplayOptions(**options)) as replay:
        return replay.run(run, NOWHERE)


def diverged(fixture: Fixture, run: Callable[[str], Any], **options: Any) -> Any:
    with pytest.raises(DivergenceError) as caught:
        replayed(fixture, run, **options)
    found = caught.value.divergence
    assert found.kind == "result"
    return found


VALUES: dict[str, tuple[Any, Any, str]] = {
    "nothing": (None, "WRONG", "$.result"),
    "text": ("Refunded.", "WRONG", "$.result"),
    "number": (41.9, 41.91, "$.result"),
    "truth": (True, 1, "$.result"),
    "object": ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "$.result.a.b[1]"),
    "dataclass": (
        Refund("7", Decimal("41.90")),
        Refund("7", Decimal("41.91")),
        "$.result.fields.amount.text",
    ),
    "enum in a dataclass": (
        Refund("7", Decimal(1)),
        Refund("7", Decimal(1), Color.BLUE),
        "$.result.fields.color.name",
    ),
    "model": (
        Answer(status="ok", refunds=[Refund("7", Decimal(1))]),
        Answer(status="ok", refunds=[Refund("8", Decimal(1))]),
        "$.result.fields.refunds[0].fields.order",
    ),
    "class": (Refund("7", Decimal(1)), {"order": "7"}, "$.result"),
    "named tuple": (Point(1, 2), Point(1, 3), "$.result.fields.y"),
    "tuple": ((1, 2), [1, 2], "$.result"),
    "bytes": (b"\xff\x00", b"\xff\x01", "$.result.base64"),
    "set": ({1, 2}, {1, 3}, "$.result.items[1]"),
    "day": (datetime.date(2026, 11, 23), datetime.date(2026, 11, 24), "$.result.text"),
    "time in a zone": (
        datetime.datetime(2026, 11, 23, 9, tzinfo=ZoneInfo("Europe/Zurich")),
        datetime.datetime(2026, 11, 23, 9, tzinfo=ZoneInfo("UTC")),
        "$.result.text",
    ),
    "keys that are numbers": ({1: "a"}, {1: "b"}, "$.result.items[0][1]"),
}


@pytest.mark.parametrize(
    ("value", "other", "place"),
    mark_all_but_first(VALUES.values(), pytest.mark.slow),
    ids=list(VALUES),
)
def test_a_result_is_compared(tmp_path: Path, value: Any, other: Any, place: str) -> None:
    """An equal result matches; a different result diverges at the place of the difference."""
    fixture = fixture_of(tmp_path, agent(lambda model_text: value))
    assert "result" in fixture.header
    assert replayed(fixture, agent(lambda model_text: value)) == value
    found = diverged(fixture, agent(lambda model_text: other))
    assert found.differences[0].path.startswith(place)
    assert found.summary == "the session returned a different result"
    assert found.progress.requests_matched == found.progress.requests == 1


def test_a_different_result_is_reported_with_advice(tmp_path: Path) -> None:
    """The report of a different result shows both values, and explains how to disable the comparison."""
    fixture = fixture_of(tmp_path, agent(lambda model_text: f"Order 7: {model_text}"))
    found = diverged(fixture, agent(lambda model_text: "WRONG"))
    report = found.text()
    assert 'recorded  "Order 7: Refunded."' in report
    assert 'now       "WRONG"' in report
    assert "compare_result=False" in report
    assert replayed(fixture, agent(lambda model_text: "WRONG"), compare_result=False) == "WRONG"


def test_the_result_of_a_coroutine_function_is_compared(tmp_path: Path) -> None:
    """The result of a coroutine function is recorded and compared, also inside an event loop."""

    def agent_with_ending(ending: str) -> Callable[[str], Any]:
        @agentobs.session("refunds")
        async def run(url: str) -> dict[str, str]:
            client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url))
            messages: Any = [{"role": "user", "content": "Refund order 7."}]
            async with client.messages.stream(
                model=MODEL, max_tokens=9, messages=messages
            ) as stream:
                return {"said": await stream.get_final_text(), "ending": ending}

        return run

    fixture = fixture_of(tmp_path, lambda url: asyncio.run(agent_with_ending("done")(url)))

    async def replay_with(ending: str) -> Any:
        with Replayer(fixture) as replay:
            return await replay.arun(agent_with_ending(ending), NOWHERE)

    assert asyncio.run(replay_with("done"))["ending"] == "done"
    with pytest.raises(DivergenceError, match=r"\$\.result\.ending"):
        asyncio.run(replay_with("WRONG"))


def test_a_block_sets_its_result(tmp_path: Path) -> None:
    """`Session.result` and `agentobs.result` set the result of a `with` block; the last call wins."""

    def block(value: Any, by_name: bool) -> Callable[[str], None]:
        def run(url: str) -> None:
            with agentobs.session("refunds") as session:
                ask(url)
                session.result("a draft")
                (agentobs.result if by_name else session.result)(value)

        return run

    fixture = fixture_of(tmp_path, block({"paid": 1}, by_name=False))
    replayed(fixture, block({"paid": 1}, by_name=True))
    found = diverged(fixture, block({"paid": 2}, by_name=True))
    assert [each.path for each in found.differences] == ["$.result.paid"]
    agentobs.result("outside of every session nothing happens")


def test_an_explicit_result_has_precedence(tmp_path: Path) -> None:
    """A value that is passed to `agentobs.result` replaces the return value of the function."""

    def agent_that_returns(value: Any) -> Callable[[str], Any]:
        def make(model_text: str) -> Any:
            agentobs.result({"said": model_text})
            return value

        return agent(make)

    fixture = fixture_of(tmp_path, agent_that_returns("1 s"))
    assert fixture.header["result"] == {"said": "Refunded."}
    assert replayed(fixture, agent_that_returns("2 s")) == "2 s"


def test_a_missing_result_is_a_difference(tmp_path: Path) -> None:
    """A replay diverges if the session no longer has a result."""

    def run(url: str) -> None:
        with agentobs.session("refunds"):
            ask(url)

    fixture = fixture_of(tmp_path, agent(lambda model_text: model_text))
    assert diverged(fixture, run).differences[0].change == "removed"


def test_fixtures_without_a_result_compare_no_result(tmp_path: Path) -> None:
    """If a fixture contains no result, any result matches."""

    def run(url: str) -> str:
        with agentobs.session("refunds"):
            return ask(url)

    fixture = fixture_of(tmp_path, run)
    assert "result" not in fixture.header
    assert fixture.result is None
    assert replayed(fixture, agent(lambda model_text: "WRONG")) == "WRONG"


@pytest.mark.slow
def test_values_without_json_are_recorded_by_type(tmp_path: Path) -> None:
    """A value that JSON cannot represent is recorded by its type and not compared, even inside a value that is
    compared.
    """
    fixture = fixture_of(tmp_path, agent(lambda model_text: Handle()))
    assert fixture.header["result"]["$py"] == NOT_KEPT
    assert fixture.header["result"]["type"].endswith(":Handle")
    assert replayed(fixture, agent(lambda model_text: "WRONG")) == "WRONG"
    readme = fixture.path.with_name("README.md").read_text()
    assert "The result was not recorded" in readme

    inner = fixture_of(tmp_path / "inner", agent(lambda model_text: {"h": Handle(), "n": 1}))
    replayed(inner, agent(lambda model_text: {"h": Handle(), "n": 1}))
    assert (
        diverged(inner, agent(lambda model_text: {"h": 5, "n": 2})).differences[0].path
        == "$.result.n"
    )


@pytest.mark.slow
def test_normalizers_apply_to_results(tmp_path: Path) -> None:
    """The fixture's normalizers apply to the result, and each recorded value must match a single current value."""

    def drawing(*uuids: str) -> Callable[[str], Any]:
        return agent(lambda model_text: {"ids": list(uuids), "said": model_text})

    session = recording_of(tmp_path, drawing(UUIDS[0], UUIDS[0]))
    strict = load(freeze(session, tmp_path / "strict", {"anthropic": "test"}).fixture)
    found = diverged(strict, drawing(UUIDS[1], UUIDS[1]))
    assert [each.rule for each in found.proposals] == ["uuid"]
    lenient = load(
        freeze(session, tmp_path / "lenient", {"anthropic": "t"}, None, ["uuid"]).fixture
    )
    replayed(lenient, drawing(UUIDS[1], UUIDS[1]))
    diverged(lenient, drawing(UUIDS[0], UUIDS[1]))


TOKENS = ("ghp_" + "aB3dE6gH9j" * 3 + "kLm1Qx", "ghp_" + "Zy8xW5vU2t" * 3 + "sRq4Pn")


def test_secrets_in_results_are_neither_written_nor_compared(tmp_path: Path) -> None:
    """A secret in a result is in no file, and a different secret in its place matches."""

    def leaking(*tokens: str) -> Callable[[str], Any]:
        return agent(lambda model_text: {"used": list(tokens)})

    fixture = fixture_of(tmp_path, leaking(TOKENS[0]))
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert TOKENS[0].encode() not in path.read_bytes(), path
    assert "[redacted:" in json.dumps(fixture.header["result"])
    replayed(fixture, leaking(TOKENS[1]))
    diverged(fixture, leaking(TOKENS[1], TOKENS[1]))


def test_the_value_is_content_and_its_digest_is_a_fact(tmp_path: Path) -> None:
    """The content contains the result, and the facts contain only its type and a keyed digest, equal for equal
    results.
    """
    session = recording_of(tmp_path, agent(lambda model_text: {"secret plan": model_text}))
    assert session.result is not None
    assert session.result.value == {"secret plan": "Refunded."}
    recording_of(tmp_path, agent(lambda model_text: {"secret plan": model_text}))
    recording_of(tmp_path, agent(lambda model_text: {"secret plan": "other"}))
    home = tmp_path / "home"
    sql = "SELECT result_digest, result_type FROM session_ends ORDER BY ended_ns"
    rows = list(queries.query(sql, home=home))
    assert [row[1] for row in rows] == ["builtins:dict"] * 3
    assert rows[0][0] == rows[1][0] != rows[2][0]
    assert rows[0][0].startswith("b2:")
    facts = [p for p in home.rglob("*") if p.is_file() and ".content" not in p.name]
    assert any(path.suffix == ".facts" or ".facts" in path.name for path in facts)
    assert not any(b"secret plan" in path.read_bytes() for path in facts)


def test_with_content_off_only_the_digest_is_recorded(tmp_path: Path) -> None:
    """With `content="off"`, the digest of the result is recorded, and no file contains the result itself."""

    @agentobs.session("silent", content="off")
    def run(url: str) -> str:
        ask(url)
        return "a very secret result"

    with pytest.raises(agentobs.errors.RecordingError):
        recording_of(tmp_path, run)
    home = tmp_path / "home"
    sql = "SELECT result_digest, end_content FROM session_ends"
    [(digest, content)] = queries.query(sql, home=home)
    assert digest.startswith("b2:")
    assert content is None
    for path in (path for path in home.rglob("*") if path.is_file()):
        assert b"very secret" not in path.read_bytes()


class Hostile:
    """An object whose methods all fail."""

    def __getattribute__(self, name: str) -> Any:
        if (
            name == "__class__"
        ):  # the standard library reads `__class__` before the value is recorded
            return object
        raise RuntimeError("do not touch")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare")

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise RuntimeError("do not show")


class HostileModel(pydantic.BaseModel):
    status: str = "ok"

    def model_dump(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("do not dump")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare")


class HostileDict(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("do not iterate")


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


HOSTILE: dict[str, Callable[[], Any]] = {
    "object": Hostile,
    "model": HostileModel,
    "dict": lambda: HostileDict(a=1),
    "key": lambda: {Hostile(): 1},
    "endless": endless,
    "generator": lambda: (each for each in range(3)),
    "long": lambda: "x" * (RETURNED_BYTES + 1),
    "many": lambda: [[0] * 100] * 10_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_no_value_breaks_the_agent(tmp_path: Path, name: str) -> None:
    """Exceptions that a result raises while it is recorded are caught, and the caller receives the result unchanged."""
    value = HOSTILE[name]()
    came: list[Any] = []
    run = agent(lambda model_text: value)
    fixture = fixture_of(tmp_path, lambda url: came.append(run(url)))
    assert came[0] is value
    with Replayer(fixture) as replay:
        assert replay.run(run, NOWHERE) is value


def test_large_values_are_read_only_up_to_the_limit() -> None:
    """A result that is too large or too deep is recorded by its type."""
    assert not_kept_in(returned("x" * (RETURNED_BYTES + 1)).value) == "builtins:str, too large"
    assert not_kept_in(returned([[0] * 100] * 10_000).value) == "builtins:int, too large"
    assert not_kept_in(returned(endless()).value) == "builtins:list, too deep"
    assert returned(HostileDict(a=1)).value == {"a": 1}
    assert returned(HostileModel()).value["fields"] == {"status": "ok"}


@pytest.mark.slow
def test_no_value_is_kept_alive(tmp_path: Path) -> None:
    """A result lives only as long as the caller holds a reference to it."""
    seen: list[weakref.ref[Any]] = []

    def make(model_text: str) -> Any:
        found = Answer(status=model_text)
        seen.append(weakref.ref(found))
        return found

    fixture_of(tmp_path, agent(make))
    gc.collect()
    assert seen[0]() is None


def test_objects_of_libraries_are_recorded_by_type(tmp_path: Path) -> None:
    """Objects of libraries are recorded only by their type, except objects of the provider's SDK, which are data."""
    from pydantic_ai.usage import RunUsage

    assert not_kept_in(returned(RunUsage()).value) == "pydantic_ai.usage:RunUsage"
    fixture = fixture_of(
        tmp_path,
        agent(
            lambda model_text: __import__("anthropic").types.TextBlock(type="text", text=model_text)
        ),
    )
    assert fixture.header["result"]["fields"]["text"] == "Refunded."


def test_a_part_of_a_session_has_no_result(tmp_path: Path) -> None:
    """A fixture that was frozen up to a turn has no result."""
    from tests.replay.agents import answers

    def run(url: str) -> Any:
        from tests.replay.agents import Agent

        with agentobs.session("outer"):
            value = Agent(url).answer("How is it?")
            agentobs.result(value)

    session = recorded(tmp_path, run, answers())
    part = freeze(session, tmp_path / "part", {"anthropic": "test"}, until=1)
    assert "result" not in load(part.fixture).header


@pytest.mark.parametrize("reason", ["not-refunded", "the customer was not refunded"])
def test_a_declared_failure_that_also_raises_replays(tmp_path: Path, reason: str) -> None:
    """If an agent declares a failure reason and raises an error, both are compared with the recorded end."""

    def make(model_text: str) -> Any:
        agentobs.fail(reason)
        raise LookupError("no such order")

    def run(url: str) -> None:
        with pytest.raises(LookupError):
            agent(make)(url)

    fixture = fixture_of(tmp_path, run)
    assert (fixture.header["outcome"], fixture.header["reason"]) == ("failed", reason)
    assert replayed(fixture, agent(make)) is None

    def other(model_text: str) -> Any:
        agentobs.fail(reason)
        raise KeyError("no such key")

    with pytest.raises(KeyError):
        replayed(fixture, agent(other))


def test_a_new_result_can_be_accepted(tmp_path: Path) -> None:
    """With `accept_from`, a new result is shown, redacted and written into the fixture, which then matches."""
    fixture = fixture_of(tmp_path, agent(lambda model_text: {"said": model_text}))
    new = agent(lambda model_text: {"said": model_text, "token": TOKENS[0]})
    with Replayer(load(fixture.path), ReplayOptions(accept_from=1)) as replay:
        replay.run(new, NOWHERE)
    [accepted] = replay.accepted
    assert accepted.request is None
    assert "$.result.token" in accepted.text()
    replay.accept()
    assert TOKENS[0].encode() not in fixture.path.read_bytes()
    assert json.dumps(load(fixture.path).header["result"]).startswith('{"said": "Refunded."')
    replayed(fixture, new)
    diverged(fixture, agent(lambda model_text: {"said": model_text}))


def with_priority(priority: int, model_text: str) -> dict[str, int]:
    return {"priority": priority}


def test_a_fix_of_the_result_alone_is_a_difference(tmp_path: Path) -> None:
    """If a fix changes only the returned value, the step of `until_change` differs."""
    session = recording_of(tmp_path, agent(lambda model_text: {"priority": 3}))
    written = freeze(session, tmp_path / "f", {"anthropic": "test"}, failing_turn=1)
    steps = []
    for priority in (3, 1):
        fixed = agent(functools.partial(with_priority, priority))
        with Replayer(load(written.fixture)) as replay:
            steps.append(replay.until_change(fixed, NOWHERE, turn=1))
    assert [step.differs for step in steps] == [False, True]
    assert 'it returned {"priority": 1}' in steps[1].describe()
