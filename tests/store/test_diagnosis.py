"""Failure signatures: each signature is found in a session just above its threshold, and not in a session just below
it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from agentobs.agent.context import context_windows
from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import (
    ModelExchange,
    Place,
    SessionCall,
    ToolAnswer,
    ToolExchange,
    ToolOutcome,
)
from agentobs.records.facts import Event, InteractionEnd, InteractionStart, SpanStart, WorldAnswer
from agentobs.records.labels import Label
from agentobs.sink import Record
from agentobs.store.analysis.diagnosis import SIGNATURES, Verdict, diagnose, diagnose_all
from agentobs.store.backend import open_store
from agentobs.store.duckdb.connection import connect, named
from agentobs.store.duckdb.store import DuckStore
from agentobs.store.named_queries import query_names, query_text
from tests.browser.store_builders import recording
from tests.browser.synthetic_sessions import SyntheticSession
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    conversation,
    permission,
    record,
    session_id,
    start,
    tool,
    write_facts,
)
from tests.store.wire_conversations import WireConversation

pytestmark = pytest.mark.xdist_group("diagnosis")
Evidence = Callable[[int, str], list[dict[str, Any]]]
NAMES = [signature.name for signature in SIGNATURES]
INTERACTION = "1" * 32
PATH = "/home/user/work/project/cmd/entire/cli/strategy/manual_commit_hooks.go"


STORIES: list[tuple[list[Record], list[Any]]] = []
"""The records and facts of all sessions of the tests below; all sessions are in one home."""


def story(records: Iterable[Record], facts: Iterable[Any] = ()) -> int:
    """Add a session to the common home, and return its number."""
    STORIES.append((list(records), list(facts)))
    return len(STORIES)


def numbered(number: int, each: Any) -> Any:
    """Return a copy of a record of session 1 for another session."""
    session = session_id(number)
    if isinstance(each, SessionCall):
        return replace(each, start=replace(each.start, session_id=session))
    if isinstance(each, ModelExchange):
        attempt_id = f"{number:08x}{each.attempt_id[8:]}"
        return replace(each, place=replace(each.place, session_id=session), attempt_id=attempt_id)
    if isinstance(each, ToolExchange):
        return replace(each, place=replace(each.place, session_id=session))
    return replace(each, session_id=session)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    home = a_home(tmp_path_factory.mktemp("stories"))
    record(
        home, [numbered(at, each) for at, (records, _) in enumerate(STORIES, 1) for each in records]
    )
    write_facts(
        home, [numbered(at, each) for at, (_, facts) in enumerate(STORIES, 1) for each in facts]
    )
    with connect(home) as connection:
        yield connection


def port_of(connection: duckdb.DuckDBPyConnection) -> DuckStore:
    """Return a store that wraps a connection; its home is not read."""
    return DuckStore(connection, Home(Path()))


@pytest.fixture(scope="module")
def evidence(store: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All findings, by session and signature."""
    answered = named(store, "diagnoses")
    columns = [column[0] for column in answered.description]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in (dict(zip(columns, values, strict=True)) for values in answered.fetchall()):
        found.setdefault((row["session_id"], row["signature"]), []).append(row)
    return found


@pytest.fixture
def evidence_of(evidence: dict[tuple[str, str], list[dict[str, Any]]]) -> Evidence:
    """Return a function that returns the findings of one signature in a session."""
    return lambda number, signature: evidence.get((session_id(number), signature), [])


@pytest.fixture
def verdicts(store: duckdb.DuckDBPyConnection) -> Callable[[int], dict[str, Verdict]]:
    """Return a function that returns all verdicts for a session."""
    return lambda number: {v.signature: v for v in diagnose(port_of(store), session_id(number))}


def fired(found: dict[str, Verdict]) -> list[str]:
    return [name for name, verdict in found.items() if verdict.is_found]


def test_each_signature_has_a_view_a_query_and_texts() -> None:
    """Each signature is a view that `diagnoses` includes, with a named query that starts with a question, and with
    advice.
    """
    assert set(NAMES) <= set(query_names())
    for signature in SIGNATURES:
        assert f"FROM {signature.name}\n" in query_text(signature.name)
        assert len(signature.todo) > 40
        assert not signature.todo.endswith(".")


def quiet() -> list[Record]:
    talk = WireConversation()
    for number in range(3):
        [call] = talk.calls(("read", {"path": f"{PATH}-{number}"}))
        talk.result(call)
    talk.says("Here is what I found.")
    return talk.whole()


QUIET = story(quiet())
OLDER = story([], [start(1).start])


@pytest.mark.slow
def test_a_session_without_problems(verdicts: Callable[[int], dict[str, Verdict]]) -> None:
    """A session without problems has no findings; signatures that cannot be checked for its client are reported as
    unknown.
    """
    found = verdicts(QUIET)
    assert fired(found) == []
    assert {
        name: verdict.unknown_reason for name, verdict in found.items() if verdict.unknown_reason
    } == {
        "long_waits": "this client does not record waits for the user",
        "silent_hook_cancels": "this client does not report its hooks",
        "failed_summaries": "this client does not report its compactions",
    }


@pytest.mark.slow
def test_a_recording_without_the_required_data(
    verdicts: Callable[[int], dict[str, Verdict]],
) -> None:
    """If the data that a signature needs was not recorded, its verdict states that it could not be checked, and why."""
    verdict = verdicts(OLDER)["contradictions"]
    assert (verdict.is_found, verdict.unknown_reason) == (
        False,
        "recorded by a version that did not detect claims",
    )


def repeating(
    *inputs: Any, names: tuple[str, ...] = ("read",) * 9, apart: bool = False
) -> list[Record]:
    talk = WireConversation()
    for name, value in zip(names, inputs, strict=False):
        [call] = talk.calls((name, value))
        talk.result(call)
        if apart:
            talk.says("Hm.")
            talk.prompt()
    talk.says("That is it.")
    return talk.whole()


SAME = {"path": PATH}


@pytest.mark.parametrize(
    ("number", "times"),
    [
        (story(repeating(SAME, SAME, SAME)), 1),
        (story(repeating(SAME, SAME, SAME, SAME)), 2),
        (story(repeating(SAME, {"path": PATH + "x"}, SAME, {"path": PATH + "x"})), 0),
        (story(repeating({}, {}, {})), 1),
        (story(repeating(SAME, SAME)), 0),
        (story(repeating(SAME, SAME, {"path": "/etc/hosts"})), 0),
        (story(repeating(SAME, SAME, SAME, names=("read", "read", "write"))), 0),
        (story(repeating(SAME, SAME, SAME, apart=True)), 0),
        (
            story(
                repeating(*({"path": PATH, "offset": at, "limit": 80} for at in (1, 81, 161, 241)))
            ),
            0,
        ),
    ],
)
def test_repeated_calls(evidence_of: Evidence, number: int, times: int) -> None:
    """Three turns in a row with nearly the same call are a finding; two turns, or calls with another tool or page, are
    not.
    """
    found = evidence_of(number, "repeated_calls")
    assert len(found) == times
    if times:
        assert found[0]["about"] == "read"
        assert found[0]["detail"] == "the same arguments each time"
        assert found[0]["turn"] == 3


def concurrent(*turns: list[tuple[str, Any]]) -> list[Record]:
    talk = WireConversation()
    for turn in turns:
        for call in talk.calls(*turn):
            talk.result(call)
    talk.says("Hm.")
    return talk.whole()


BESIDE = story(concurrent(*([("list", {"at": number}), ("read", SAME)] for number in range(3))))
AT_ONCE = story(concurrent([("read", SAME)] * 3))


def test_repeated_calls_among_concurrent_calls(evidence_of: Evidence) -> None:
    """A call that is repeated in several turns is a finding even if it is one of several concurrent calls in each turn.

    Concurrent calls do not count as repetitions of each other.
    """
    assert len(evidence_of(BESIDE, "repeated_calls")) == 1
    assert evidence_of(AT_ONCE, "repeated_calls") == []


def spending(*tokens: int, model: str = "claude-sonnet-5-5") -> list[Record]:
    talk = WireConversation(model=model)
    for count in tokens:
        [call] = talk.calls(("read", {"n": count}), input_tokens=count)
        talk.result(call)
    return talk.whole()


@pytest.mark.parametrize(
    ("number", "rises"),
    [
        (story(spending(10, 20, 30, 40, 50, 60)), 5),
        (story(spending(10, 20, 30, 40, 50, 60, 70)), 6),
        (story(spending(90, 10, 20, 30, 40, 50, 60, 5)), 5),
        (story(spending(10, 20, 30, 40, 50)), 0),
        (story(spending(10, 20, 30, 30, 40, 50, 60)), 0),
        (story(spending(10, 20, 30, 40, 50, 50)), 0),
    ],
)
def test_rising_costs(evidence_of: Evidence, number: int, rises: int) -> None:
    """Five increases of the cost in a row, from turn to turn, are a finding; four increases, or an equal cost in
    between, are not.
    """
    found = evidence_of(number, "rising_costs")
    assert [(row["value"], row["strength"]) for row in found] == (
        [(rises, rises / 5)] if rises else []
    )


def compacted() -> list[Record]:
    talk = WireConversation(model="claude-sonnet-5-5")
    for count in (10, 20, 30, 40, 50):
        [call] = talk.calls(
            ("read", {"n": count}), input_tokens=10, cache_read_input_tokens=count * 1000
        )
        talk.result(call)
    [call] = talk.calls(("read", {"n": 0}), input_tokens=10, cache_creation_input_tokens=20_000)
    talk.result(call)
    return talk.whole()


def growing(kind: str) -> list[Record]:
    talk = WireConversation(model="claude-sonnet-5-5")
    for count in (1, 2, 3, 4, 5, 6):
        used = {"input_tokens": 10, kind: count * 1000}
        [call] = talk.calls(("read", {"n": count}), **used)
        talk.result(call)
    return talk.whole()


COMPACTED = story(compacted())


def test_a_turn_after_a_compaction_is_not_a_rise(evidence_of: Evidence) -> None:
    """A turn whose prompt is shorter than the previous one ends a rise, although it costs more."""
    assert evidence_of(COMPACTED, "rising_costs") == []


def missing_the_cache_once() -> list[Record]:
    """Return a session whose cost rises six times; the last request reads nothing from the cache."""
    talk = WireConversation(model="claude-sonnet-5-5")
    for count in (1, 2, 3, 4, 5, 6):
        used = {"cache_read_input_tokens": count * 1000, "cache_creation_input_tokens": 1000}
        [call] = talk.calls(("read", {"n": count}), input_tokens=10, **used)
        talk.result(call)
    talk.says("Done.", input_tokens=10, cache_creation_input_tokens=8000)
    return talk.whole()


MISSED = story(missing_the_cache_once())


def test_a_cache_miss_is_not_a_rise(evidence_of: Evidence) -> None:
    """A turn that read less from the cache than the previous turn ends a rise, because a miss is another finding."""
    [found] = evidence_of(MISSED, "rising_costs")
    assert (found["turn"], found["about"], found["value"]) == (6, "cache reads", 5)
    assert found["detail"] == "from $0.0029 to $0.0039 a turn, 5 times in a row"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "about", "advice"),
    [
        (story(growing("input_tokens")), "uncached input", "Add cache breakpoints"),
        (story(growing("cache_read_input_tokens")), "cache reads", "already read from the cache"),
        (story(growing("cache_creation_input_tokens")), "cache writes", "writes more to the cache"),
        (story(growing("output_tokens")), "output", "The responses get longer"),
    ],
)
def test_the_advice_about_rising_costs_follows_from_what_rose(
    verdicts: Callable[[int], dict[str, Verdict]], number: int, about: str, advice: str
) -> None:
    """Cache breakpoints are the advice only if the uncached input rose."""
    verdict = verdicts(number)["rising_costs"]
    assert [row["about"] for row in verdict.evidence] == [about]
    assert advice in verdict.todo
    assert ("breakpoints" in verdict.todo) == (about == "uncached input")


UNPRICED = story(spending(10, 20, 30, 40, 50, 60, model="in-house-1"))


def test_rising_costs_without_a_price(verdicts: Callable[[int], dict[str, Verdict]]) -> None:
    """Costs without a price do not count as rising, and the verdict states that the signature could not be checked."""
    verdict = verdicts(UNPRICED)["rising_costs"]
    assert (verdict.is_found, verdict.unknown_reason) == (False, "some calls have no price")


def filled(model: str, *prompts: int) -> list[Record]:
    talk = WireConversation(model=model)
    for number, tokens in enumerate(prompts):
        [call] = talk.calls(
            ("read", {"n": number}),
            input_tokens=10,
            cache_read_input_tokens=tokens - 10 - 5_000,
            cache_creation_input_tokens=5_000,
        )
        talk.result(call)
    return talk.whole()


@pytest.mark.parametrize(
    ("number", "share"),
    [
        (story(filled("claude-haiku-4-5", 160_001)), 160_001 / 200_000),
        (story(filled("claude-haiku-4-5", 160_000)), None),
        (story(filled("claude-sonnet-5-5", 190_000)), None),
        (story(filled("claude-sonnet-5-5", 700_000, 800_001, 750_000)), 800_001 / 1_000_000),
        (story(filled("claude-sonnet-4-5", 170_000)), 0.85),
        (story(filled("claude-sonnet-4-5", 170_000, 210_000)), None),
    ],
)
def test_full_contexts(evidence_of: Evidence, number: int, share: float | None) -> None:
    """A prompt that fills more than 80% of the window of its model, including cached input, is a finding with the
    longest prompt of its lane.
    """
    assert [row["value"] for row in evidence_of(number, "full_contexts")] == (
        [share] if share else []
    )


WINDOW = {"window": 100_000.0}
TOLD = story(
    filled("claude-sonnet-5-5", 80_001),
    [Event(session_id(1), None, Label("main"), 1, T0, Label("context"), None, WINDOW)],
)


def test_the_recorded_window_takes_precedence(evidence_of: Evidence) -> None:
    """If the agent loop recorded the size of the context window, that size takes precedence over the table."""
    [row] = evidence_of(TOLD, "full_contexts")
    assert row["detail"] == "80,001 of 100,000 tokens"


FELL_BACK = story(
    filled("claude-sonnet-5-5", 70_001, 1_000),
    [
        Event(session_id(1), None, Label("main"), 1, T0, Label("context"), None, WINDOW),
        Event(
            session_id(1), None, Label("main"), 2, T0 + SECOND + SECOND // 2, Label("context"), None,
            {"window": 50_000.0},
        ),
    ],
)  # fmt: skip


def test_a_smaller_window_later(evidence_of: Evidence) -> None:
    """If a later model has a smaller window, each prompt is compared with the last window that was recorded before
    it.
    """
    assert evidence_of(FELL_BACK, "full_contexts") == []


def test_the_store_and_the_loop_use_the_same_windows(store: duckdb.DuckDBPyConnection) -> None:
    """The store and the agent loop use the same table of context windows."""
    rows = store.execute("SELECT model, window_tokens FROM model_windows").fetchall()
    assert dict(rows) == dict.fromkeys(context_windows.LARGE, context_windows.LARGE_TOKENS)


IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "A" * 20_000},
}


def long_conversation(messages: int, result: Any) -> list[Record]:
    """A conversation with the given number of messages, including the result of its last call."""
    talk = WireConversation()
    while len(talk.messages) + 2 < messages - 1:
        talk.says(f"Line {len(talk.messages)}.")
        talk.prompt()
    [call] = talk.calls(("read", {}))
    talk.result(call, result)
    talk.says("Hm.")
    return talk.whole()


@pytest.mark.parametrize(
    ("number", "is_found"),
    [
        (story(long_conversation(31, "x" * 10_001)), True),
        (story(long_conversation(31, "x" * 10_000)), False),
        (story(long_conversation(29, "x" * 10_001)), False),
        (story(long_conversation(31, "é" * 9_000)), False),
        (story(long_conversation(31, [{"type": "text", "text": "x" * 10_001}])), True),
        (story(long_conversation(31, [IMAGE])), False),
    ],
)
def test_large_results(evidence_of: Evidence, number: int, is_found: bool) -> None:
    """A result of more than 10,000 characters in a conversation of 30 or more messages is a finding; bytes and images
    do not count.
    """
    assert bool(evidence_of(number, "large_results")) is is_found


def waited(
    *seconds: float, wall: float = 100, concurrent: bool = False, **changes: Any
) -> list[Any]:
    """Return an interaction with approval waits, either one after the other or concurrent."""
    session, lane = session_id(1), Label("main")
    ends = T0 + int(wall * SECOND)
    return [
        InteractionStart(session, INTERACTION, lane, T0),
        SpanStart(session, INTERACTION, "a" * 16, None, lane, Label("interaction"), None, T0),
        *(
            permission(
                1,
                f"toolu_{at}",
                at=T0 + int((each if concurrent else sum(seconds[: at + 1])) * SECOND),
                approval_wait_ns=int(each * SECOND),
                **changes,
            )
            for at, each in enumerate(seconds)
        ),
        InteractionEnd(session, INTERACTION, ends, Label("success"), False),
    ]


@pytest.mark.parametrize(
    ("number", "values"),
    [
        (story(conversation(1), waited(10.001)), [10.001]),
        (story(conversation(1), waited(10)), []),
        (story(conversation(1), waited(10.001, resolver="classifier")), []),
        (story(conversation(1), waited(11, 12)), [11, 12, 0.23]),
        (story(conversation(1), waited(9, 9, wall=90)), []),
        (story(conversation(1), waited(9, 9.01, wall=90)), [18.01 / 90]),
        (story(conversation(1), waited(9, 9.01, 5, wall=90, concurrent=True)), []),
        (story(conversation(1), waited(9, 9.01, 5, wall=45, concurrent=True)), [9.01 / 45]),
        (story(conversation(1), waited(0.9, wall=1)), []),
        (story(conversation(1), waited(1, wall=4)), [0.25]),
        (story(conversation(1), waited(11, approval_requested=False)), []),
    ],
)
def test_long_waits(evidence_of: Evidence, number: int, values: list[float]) -> None:
    """A wait over 10 s is a finding, and so are waits that take over a second and over a fifth of an interaction.

    Waits for a classifier do not count.
    """
    found = sorted(row["value"] for row in evidence_of(number, "long_waits"))
    assert found == pytest.approx(sorted(values))


DENIED = "The user doesn't want to proceed with this tool use."


def failing(*results: tuple[str, str | None], call_id: str = "") -> list[Record]:
    """Return a session with one call per turn, given the tool and the error text of each call."""
    talk = WireConversation(call_id=call_id)
    for number, (name, words) in enumerate(results):
        [call] = talk.calls((name, {"n": number}))
        talk.result(call, words or "fine", is_error=words is not None)
    talk.says("Hm.")
    return talk.whole()


@pytest.mark.parametrize(
    ("number", "is_found"),
    [
        (story(failing(*[("bash", DENIED)] * 3)), True),
        (
            story(failing(("bash", DENIED), ("bash", None), ("bash", DENIED), ("bash", DENIED))),
            True,
        ),
        (story(failing(*[("bash", DENIED)] * 2)), False),
        (story(failing(("bash", DENIED), ("write", DENIED), ("bash", DENIED))), False),
        (story(failing(*[("bash", "Permission denied: /etc")] * 3)), False),
    ],
)
def test_repeated_denials_of_another_client(
    evidence_of: Evidence, number: int, is_found: bool
) -> None:
    """Three calls of one tool that a person denied are a finding; for other clients, the denial is detected by the
    error text.
    """
    assert bool(evidence_of(number, "repeated_denials")) is is_found


def refused(times: int) -> list[Record]:
    """Return a session of the agent loop, which records the outcome of each call."""
    talk = WireConversation()
    outcomes: list[ToolOutcome] = ["denied", "blocked", "denied"]
    for number in range(times):
        [call] = talk.calls(("bash", {"n": number}))
        denied = tool(1, call, "bash", at=T0 + number * SECOND, took=0)
        answer = ToolAnswer("no", is_error=True, outcome=outcomes[number])
        talk.records.append(replace(denied, answer=answer))
        talk.result(call, "no", is_error=True)
    talk.says("Hm.")
    return talk.whole()


THRICE, TWICE = story(refused(3)), story(refused(2))


def test_repeated_denials_of_the_agent_loop(evidence_of: Evidence) -> None:
    """Repeated calls that the agent loop recorded as denied, or as blocked by a hook, are a finding."""
    [row] = evidence_of(THRICE, "repeated_denials")
    assert row["detail"] == "3 calls were denied, 1 of them by hooks"
    assert evidence_of(TWICE, "repeated_denials") == []


def hooked(outcome: str, result: str, rate: float = 1.0) -> list[Any]:
    session, lane = session_id(1), Label("main")
    numbers = {"duration_ns": 5.0 * SECOND}
    return [
        InteractionStart(session, INTERACTION, lane, T0),
        SpanStart(session, INTERACTION, "a" * 16, None, lane, Label("interaction"), None, T0),
        Event(session, INTERACTION, lane, 1, T0, Label("hook"), Label(outcome), numbers, rate=rate),
        InteractionEnd(session, INTERACTION, T0 + SECOND, Label(result), False),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "is_found"),
    [
        (story(conversation(1), hooked("cancelled", "success")), True),
        (story(conversation(1), hooked("cancelled", "cancelled")), False),
        (story(conversation(1), hooked("blocking", "success")), False),
        (story(conversation(1), hooked("success", "success")), False),
    ],
)
def test_silent_hook_cancels(
    evidence_of: Evidence,
    verdicts: Callable[[int], dict[str, Verdict]],
    number: int,
    is_found: bool,
) -> None:
    """A hook that was cancelled while its interaction continued is a finding; if the interaction was also cancelled, it
    is not.
    """
    assert bool(evidence_of(number, "silent_hook_cancels")) is is_found
    assert verdicts(number)["silent_hook_cancels"].unknown_reason is None


SAMPLED = story(conversation(1), hooked("success", "success", 0.25))
UNKEPT = story(
    conversation(1),
    [
        *(fact for fact in hooked("success", "success") if not isinstance(fact, Event)),
        WorldAnswer(
            session_id(1),
            INTERACTION,
            Label("main"),
            1,
            Label("hook"),
            Label("one"),
            T0,
            1,
            2,
            None,
        ),
    ],
)


@pytest.mark.slow
@pytest.mark.parametrize("number", [SAMPLED, UNKEPT])
def test_sampled_hooks(verdicts: Callable[[int], dict[str, Verdict]], number: int) -> None:
    """If only some or none of the hook events were recorded, the verdict states that the signature could not be
    checked.
    """
    verdict = verdicts(number)["silent_hook_cancels"]
    assert not verdict.is_found
    assert verdict.unknown_reason == "only a sample of the hook events was kept"


def test_outcomes_of_sampled_hooks(store: duckdb.DuckDBPyConnection) -> None:
    """A hook event with a sampling rate of 1/4 counts as four."""
    found = named(store, "hook_outcomes", session_id=session_id(SAMPLED), since_ns=None)
    assert [row[:3] for row in found.fetchall()] == [("hook", "success", 4)]


def cached(
    missed: int, change: str | None, *, compacted: bool = False, uncached: int = 0
) -> tuple[list[Record], list[Any]]:
    """Return two turns with a cached prompt; before the second turn, a part of the request changes, so that tokens are
    paid for again.
    """
    talk = WireConversation(system="Be brief.")
    talk.tools = [{"name": "read", "input_schema": {"type": "object"}}]
    [call] = talk.calls(("read", {}), cache_creation_input_tokens=missed)
    talk.result(call)
    if change == "tools":
        talk.tools = [*talk.tools, {"name": "write", "input_schema": {"type": "object"}}]
    elif change == "system":
        talk.system = "Be very brief."
    talk.says("Hm.", cache_creation_input_tokens=missed, input_tokens=uncached)
    at = T0 + SECOND + SECOND // 2
    event = Event(session_id(1), None, Label("main"), 1, at, Label("compaction"), None, {})
    return talk.whole(), [event] if compacted else []


@pytest.mark.parametrize(
    ("number", "by"),
    [
        (story(*cached(1_024, "tools")), "tools_changed"),
        (story(*cached(5_000, "system")), "system_changed"),
        (story(*cached(1_023, "tools")), None),
        (story(*cached(5_000, None)), None),
        (story(*cached(5_000, "system", compacted=True)), None),
    ],
)
def test_broken_caches(evidence_of: Evidence, number: int, by: str | None) -> None:
    """If cached tokens were paid for again because the request changed, the finding names the cause; a miss after a
    compaction is not a finding.
    """
    found = evidence_of(number, "broken_caches")
    assert [row["about"] for row in found] == ([by] if by else [])
    if by:
        assert found[0]["detail"].startswith(f"changed: {by.removesuffix('_changed')}")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (story(*cached(1_024, "tools")), "tools_changed"),
        (story(*cached(5_000, None)), "unknown"),
        (story(*cached(1_023, None)), None),
        (story(*cached(1_024, None, uncached=20_000)), None),
        (story(*cached(5_000, None, compacted=True)), None),
    ],
)
def test_cache_rewrites(evidence_of: Evidence, number: int, reason: str | None) -> None:
    """A session that spent at least a tenth of its cost on tokens that had been in the cache has one finding, with the
    reason for the most expensive request.
    """
    found = evidence_of(number, "cache_rewrites")
    assert [row["about"] for row in found] == ([reason] if reason else [])
    if reason:
        assert found[0]["detail"].endswith(" in 1 request")


def missed_for_two_reasons() -> list[Record]:
    """Return three turns with a cached prompt; the second turn changes the tools, and the third turn nothing."""
    talk = WireConversation(system="Be brief.")
    for turn in range(3):
        names = ("read", "write") if turn else ("read",)
        talk.tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
        [call] = talk.calls(("read", {"n": turn}), cache_creation_input_tokens=5_000)
        talk.result(call)
    return talk.whole()


TWO_REASONS = story(missed_for_two_reasons())


def test_the_detail_of_cache_rewrites_names_each_reason(evidence_of: Evidence) -> None:
    """If the requests have several reasons, the detail has the cost and the number of requests of each."""
    [found] = evidence_of(TWO_REASONS, "cache_rewrites")
    costs = re.findall(r"(tools_changed|unknown) \$([0-9.]+) in (\d+)", found["detail"])
    assert sorted((reason, calls) for reason, _, calls in costs) == [
        ("tools_changed", "1"),
        ("unknown", "1"),
    ]
    [total] = re.findall(r"^about \$([0-9.]+) of .* in 2 requests \(", found["detail"])
    assert sum(float(usd) for _, usd, _ in costs) == pytest.approx(float(total), abs=0.0002)


SCHEMA = "InputValidationError: the parameter `path` is missing"
EXIT: list[tuple[str, str | None]] = [("bash", "Exit code 1")]
FINE: list[tuple[str, str | None]] = [("bash", None)]


@pytest.mark.parametrize(
    ("number", "kinds"),
    [
        (story(failing(*[("bash", SCHEMA)] * 3)), ["schema: 3 of 3 calls"]),
        (story(failing(*EXIT * 3, *FINE * 12)), ["semantic: 3 of 15 calls"]),
        (story(failing(*[("bash", DENIED)] * 3)), ["denied: 3 of 3 calls"]),
        (story(failing(*[("bash", "TimeoutError: no answer")] * 3)), ["timeout: 3 of 3 calls"]),
        (story(failing(*[("bash", "TimeoutError: no answer")] * 2, *EXIT)), []),
        (story(failing(*[("bash", "ReadTimeout: no answer")] * 3)), ["timeout: 3 of 3 calls"]),
        (story(failing(*[("bash", "The query timed out")] * 3)), ["timeout: 3 of 3 calls"]),
        (story(failing(*EXIT * 3, *FINE * 13)), []),
        (story(failing(*EXIT * 3, call_id="call_0")), ["semantic: 3 of 3 calls"]),
        (story(failing(*EXIT * 2, call_id="call_0")), []),
        (story(failing(*[("bash", SCHEMA)] * 2)), []),
        (story(failing(*[("bash", SCHEMA)] * 2, *EXIT * 2, ("bash", DENIED))), []),
    ],
)
def test_repeated_tool_errors(evidence_of: Evidence, number: int, kinds: list[str]) -> None:
    """Three errors of one kind by one tool are a finding if they are at least a fifth of the tool's calls."""
    assert [row["detail"] for row in evidence_of(number, "repeated_tool_errors")] == kinds


@pytest.mark.parametrize(
    ("words", "detail"),
    [
        ("TimeoutError: the order service did not answer", "timeout: 3 of 3 calls"),
        ("the order service timed out", "timeout: 3 of 3 calls"),
        ("ValueError: no such order", "semantic: 3 of 3 calls"),
        ("no such order", "3 of 3 calls"),
    ],
)
def test_an_unknown_kind_of_error_is_not_called_semantic(
    tmp_path: Path, words: str, detail: str
) -> None:
    """An error of a tool of our agent loop is a timeout if its class or its text indicates one. If its class was not
    recorded, no kind is shown.
    """
    home = a_home(tmp_path)
    with recording(home) as emit:
        run = SyntheticSession(emit, "refunds", T0)
        with run.interaction("Refund my order."):
            for number in range(3):
                call = dict(type="tool_use", id=run.call_id(), name="refund", input={"n": number})
                run.turn(call)
                run.results(run.run_call(call, words, is_error=True))
        run.end()
    with open_store(home) as store:
        assert [row[0] for row in store.sql("SELECT detail FROM repeated_tool_errors").rows] == [
            detail
        ]


def claiming(words: str, *results: bool, then: str | None = None) -> list[Record]:
    """Return a session with calls, some of which failed, followed by a text of the model."""
    talk = WireConversation()
    for number, (call, is_error) in enumerate(
        zip(talk.calls(*[("book", {"n": n}) for n in range(len(results))]), results, strict=True)
    ):
        talk.result(call, f"result {number}", is_error=is_error)
    talk.says(words)
    if then:
        talk.prompt()
        talk.says(then)
    return talk.whole()


@pytest.mark.parametrize(
    ("number", "is_found"),
    [
        (story(claiming("The refund was successfully booked.", True)), True),
        (story(claiming("Done.", True, True)), True),
        (story(claiming("Done.", True, False)), False),
        (story(claiming("Done.", False)), False),
        (story(claiming("I could not book the refund.", True)), False),
        (story(claiming("Done, but one booking failed.", True)), False),
        (story(claiming("It failed.", True, then="Done.")), False),
    ],
)
def test_contradictions(evidence_of: Evidence, number: int, is_found: bool) -> None:
    """A response that claims success after all results before it failed is a finding; a response that mentions the
    failure is not.
    """
    assert bool(evidence_of(number, "contradictions")) is is_found


LOOP = story(repeating(SAME, SAME, SAME))


@pytest.mark.slow
def test_findings_by_session(
    store: duckdb.DuckDBPyConnection, verdicts: Callable[[int], dict[str, Verdict]]
) -> None:
    """A verdict only concerns its session.

    The table of all sessions has a row for each session with findings, of one day or of all time.
    """
    assert fired(verdicts(LOOP)) == ["repeated_calls"]
    verdict = verdicts(LOOP)["repeated_calls"]
    assert (verdict.strength, len(verdict.evidence), verdict.unknown_reason) == (1.0, 1, None)
    found = [row[:6] for row in diagnose_all(port_of(store)).rows]
    assert found == [row[:6] for row in named(store, "diagnoses_by_session").fetchall()]
    assert (session_id(LOOP), "story", T0, "repeated_calls", 1, 1.0) in found
    assert session_id(QUIET) not in {row[0] for row in found}
    assert diagnose_all(port_of(store), T0 + 1).rows == []
    for name in NAMES:
        rows = named(store, name, session_id=session_id(LOOP)).fetchall()
        assert len(rows) == (name == "repeated_calls")
    assert named(store, "repeated_calls", since_ns=T0 + 60 * SECOND).fetchall() == []
    chosen = {"session_id": session_id(LOOP), "signature": "repeated_calls"}
    assert len(named(store, "diagnoses", **chosen).fetchall()) == 1


def in_two_lanes() -> list[Record]:
    """Return a session with four denials, one of them of another agent's call."""
    records = failing(*[("bash", DENIED)] * 4)
    return [
        replace(each, place=Place(session_id(1), lane="main/toolu_9"))
        if isinstance(each, ModelExchange) and number >= 3
        else each
        for number, each in enumerate(records)
    ]


LANES = story(in_two_lanes())


def test_sub_agents_are_counted_separately(evidence_of: Evidence) -> None:
    """Calls of one agent do not count towards the findings of another agent."""
    assert evidence_of(LANES, "repeated_denials") == []
