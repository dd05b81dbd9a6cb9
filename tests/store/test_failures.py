"""Why sessions failed: the view `failures`, the commands, and the page of a session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import ErrorCause, Place, ToolAnswer, ToolExchange, ToolQuestion
from agentobs.records.facts import (
    InteractionEnd,
    InteractionStart,
    ProviderToolResult,
    ProviderToolUse,
)
from agentobs.records.labels import Label, unchecked
from agentobs.sink import Record
from agentobs.store.analysis.failure import STEPS_BEFORE, explain_failure
from agentobs.store.backend import open_store
from agentobs.store.session_lookup import find_session
from tests import queries
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import Client, serving
from tests.shared_stores import shared_store
from tests.store.recordings import SECOND, T0, a_home, attempt, end, record, session_id, start
from tests.store.wire_conversations import WireConversation

PATH = "secret folder/anna.py"
RAISED = ErrorCause("raised", Label("KeyError"), Label("shop/orders.py"), 12)
HIDDEN = ErrorCause("raised", Label("ValueError"), unchecked(PATH), 7)


def failing(number: int, tool_use_id: str, name: str, error: ErrorCause, at: int) -> ToolExchange:
    return ToolExchange(
        place=Place(session_id(number)),
        started_ns=at,
        duration_ns=SECOND // 4,
        question=ToolQuestion(tool_use_id, name, {}),
        answer=ToolAnswer("failed: what a person wrote", True, "failed", error=error),
    )


def talk(number: int, error: ErrorCause, *, goes_on: bool) -> list[Record]:
    """Return a session with a call of `look` that succeeds, and one of `send` that fails."""
    made = WireConversation(number)
    made.tools = [{"name": "look"}, {"name": "send"}]
    [first] = made.calls(("look", {}))
    made.result(first)
    [second] = made.calls(("send", {}))
    failed = failing(number, second, "send", error, T0 + SECOND * 26 // 10)
    if goes_on:
        made.result(second, "failed", is_error=True)
        made.says("It did not work.")
        return [*made.records[:-1], failed, made.records[-1]]
    return [*made.records, failed]


def ended(number: int, reason: str, signature: str, **error: Any) -> Any:
    fields: dict[str, Any] = {"reason": Label(reason), "signature": Label(signature)}
    return replace(end(number), outcome="failed", **fields, **error)


PLACE = {"error_class": Label("KeyError"), "error_file": Label("shop/orders.py"), "error_line": 12}
OWN = {"error_class": Label("TypeError"), "error_file": Label("shop/main.py"), "error_line": 3}


def named(records: list[Record], number: int, name: str) -> list[Record]:
    return [start(number, name), *records[1:]]


def search(number: int, code: str) -> list[Record]:
    """Return a session whose first response contains a web search that fails, and continues after it."""
    first = attempt(number, 1)
    place: dict[str, Any] = {
        "session_id": session_id(number),
        "interaction_id": None,
        "lane": Label("main"),
        "turn": 1,
        "attempt_id": first.attempt_id,
        "tool_use_id": Label("srvtoolu_1"),
        "ordinal": 1,
    }
    called = ProviderToolUse(
        **place,
        name=Label("web_search"),
        server=None,
        requested_ns=first.started_ns + 2,
        is_timed=True,
        input_bytes=9,
        use=1,
        max_uses=None,
        max_result_tokens=None,
        caller_id=None,
    )
    failed = ProviderToolResult(
        **place,
        result_attempt_id=first.attempt_id,
        type=Label("web_search_tool_result"),
        result_ns=first.started_ns + first.ended_ns - 1,
        duration_ns=9,
        outcome=Label("failed"),
        is_error=True,
        error_code=Label(code),
        result_bytes=9,
        items=None,
        return_code=None,
        stop_reason=None,
        iteration=None,
    )
    return [start(number), first, called, failed, failed]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with one session for each cause of a failure, and one that completed."""
    home = a_home(tmp_path_factory.mktemp("failed"))
    exception = ended(1, "KeyError", "exception:KeyError@shop.orders:find", **PLACE)
    record(home, [*named(talk(1, RAISED, goes_on=False), 1, "raised"), exception])
    own = ended(2, "TypeError", "exception:TypeError@shop.main:run", **OWN)
    record(home, [*named(talk(2, RAISED, goes_on=True), 2, "own_code"), own])
    declared = ended(3, "no_refund", "declared:no_refund")
    record(home, [*named(talk(3, HIDDEN, goes_on=True), 3, "declared"), declared])
    last = attempt(4, 2, status=529)
    record(
        home,
        [start(4, "provider"), attempt(4, 1), last, ended(4, "Overloaded", "exception:Overloaded")],
    )
    interaction: list[Record] = [
        InteractionStart(session_id(5), "5" * 32, Label("main"), T0),
        InteractionEnd(session_id(5), "5" * 32, T0 + 9, Label("error_max_turns"), True),
    ]
    record(home, [start(5, "result"), attempt(5, 1), *interaction, end(5)])
    crashed = WireConversation(6)
    crashed.calls(("look", {}))
    record(home, named(crashed.records, 6, "crashed"))
    record(home, [*named(talk(7, RAISED, goes_on=True), 7, "completed"), end(7)])
    reason = ended(8, "no_results", "declared:no_results")
    record(home, [*named(search(8, "unavailable"), 8, "searched"), reason])
    record(
        home,
        [
            *named(search(9, "max_uses_exceeded"), 9, "own_code_later"),
            replace(own, session_id=session_id(9)),
        ],
    )
    return home


@pytest.fixture
def shell(home: Home, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(home.path, capsys)


@pytest.fixture
def reader(home: Home, shell: Shell) -> Iterator[Shell]:
    """A shell for commands that only read the home."""
    with shared_store(home.path):
        yield shell


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home) as made:
        yield made


SUMMARIES = {
    "raised": ("exception", "KeyError in send at shop/orders.py:12"),
    "own_code": ("exception", "TypeError at shop/main.py:3"),
    "declared": ("declared", f"ValueError in send at {PATH}:7; declared by the agent: no_refund"),
    "searched": ("declared", "unavailable in web_search; declared by the agent: no_results"),
    "own_code_later": ("exception", "TypeError at shop/main.py:3"),
    "provider": ("exception", "Overloaded; overloaded_error (529) from claude-sonnet-5-5"),
    "result": ("result", "ended with error_max_turns"),
    "crashed": (
        "crash",
        "the process ended without an end of the session; call look unfinished",
    ),
}
"""The cause and the summary of each session that did not complete, as local commands show them."""
ONE_PER_CAUSE = ("raised", "declared", "result", "crashed")
"""One session for each cause, for the commands that show one session; the commands for many sessions show all."""


@pytest.mark.slow
def test_each_failed_session_has_a_cause(home: Home) -> None:
    """The view has one row for each session that did not complete, with its cause and the failed step; a path that a
    person chose is a digest.
    """
    rows = queries.query(
        "SELECT name, cause, summary FROM failures JOIN sessions USING (session_id)", home=home.path
    )
    found = {name: (cause, summary) for name, cause, summary in rows}
    hidden = found.pop("declared")
    assert found == {name: row for name, row in SUMMARIES.items() if name != "declared"}
    assert hidden[0] == "declared"
    assert hidden[1].startswith("ValueError in send at digest:")
    assert hidden[1].endswith(":7; declared by the agent: no_refund")


@pytest.mark.slow
def test_the_failed_step_has_its_facts(home: Home) -> None:
    """The step has its lane, turn, class and place; a failed attempt has its status. The steps before
    it are in order.
    """
    with open_store(home) as store:
        failures = {
            name: explain_failure(store, find_session(store, name, key=home.key()))
            for name in (*SUMMARIES, "completed")
        }
        assert failures["completed"] is None
        found = {name: failure for name, failure in failures.items() if failure is not None}
    assert found.keys() == SUMMARIES.keys()
    assert found["raised"].facts == {
        "kind": "tool_call", "name": "send", "lane": "main", "turn": 2, "outcome": "failed",
        "origin": "raised", "class": "KeyError", "file": "shop/orders.py", "line": 12,
        "id": "toolu_1_2",
    }  # fmt: skip
    assert [step["name"] for step in found["raised"].before] == [
        "/v1/messages", "look", "/v1/messages",
    ]  # fmt: skip
    provider = found["provider"].facts
    assert (provider["kind"], provider["status"], provider["class"], provider["origin"]) == (
        "attempt", 529, "overloaded_error", "returned",
    )  # fmt: skip
    assert found["own_code"].facts == {}
    searched = found["searched"].facts
    assert (searched["name"], searched["origin"], searched["id"]) == (
        "web_search", "returned", "srvtoolu_1",
    )  # fmt: skip
    assert [step["kind"] for step in found["searched"].before] == ["request"]
    count = "SELECT count(*) FROM errors WHERE session_id = $1 AND runs_on = 'provider'"
    assert queries.query(count, [session_id(8)], home=home.path) == [(1,)]
    assert len(found["own_code"].before) == STEPS_BEFORE
    assert found["crashed"].facts["outcome"] == "unfinished"


class OneSession:
    """A store with one failed session, whose failed step is a call of the main agent."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        place = {"step_lane": "main", "step_turn": 1, "step_id": "call2", "step_kind": "tool_call"}
        self._rows = {"internal/failure": [place], "session_steps": steps}

    def rows(self, name: str, **_: Any) -> Any:
        return SimpleNamespace(dicts=lambda: self._rows[name])


def test_the_steps_before_the_failure_of_a_sub_agent_are_its_own() -> None:
    """If a sub-agent failed, the steps before the failure are its last steps, not the calls of other sub-agents."""

    def step(id: str, lane: str = "main", turn: int = 1) -> dict[str, Any]:
        return {"kind": "tool_call", "id": id, "lane": lane, "turn": turn}

    calls = [step(f"call{number}") for number in range(1, 4)]
    store: Any = OneSession(calls)
    failure = explain_failure(store, "s")
    assert failure is not None
    assert [each["id"] for each in failure.before] == ["call1"]
    own = [step(f"query{number}", "main/call2", number) for number in range(1, 8)]
    inner, other = step("inner", "main/call2/query7"), step("other", "main/call22")
    store = OneSession([*calls, *own, inner, other])
    failure = explain_failure(store, "s")
    assert failure is not None
    found = [each["id"] for each in failure.before]
    assert found == ["query4", "query5", "query6", "query7", "inner"]


@pytest.mark.slow
def test_failed_sessions_are_listed_with_their_cause(home: Home, reader: Shell) -> None:
    """`sessions --failed` shows the cause of each session, and `--cause` selects sessions by it."""
    rows = [json.loads(line) for line in reader("sessions", "--failed", "--json").out.splitlines()]
    assert {row["name"]: row["cause"] for row in rows} == {
        name: summary for name, (_, summary) in SUMMARIES.items()
    }
    table = reader("sessions", "--failed").out
    assert "KeyError in send at shop/orders.py:12" in table
    assert "cause" in table.splitlines()[0]
    chosen = reader("sessions", "--cause", "keyerror", "--json").out.splitlines()
    assert [json.loads(line)["name"] for line in chosen] == ["raised"]
    # The facts contain only a digest of this path.
    hidden = reader("sessions", "--failed", "--cause", "in send at SECRET FOLDER/", "--json").out
    assert [json.loads(line)["name"] for line in hidden.splitlines()] == ["declared"]
    assert reader("sessions", "--cause", "nothing like it", "--json").out == ""
    everything = [json.loads(line) for line in reader("sessions", "--json").out.splitlines()]
    assert [row["cause"] for row in everything if row["name"] == "completed"] == [None]
    with open_store(home) as store:
        assert {row["cause"] for row in store.rows("sessions", causes=False).dicts()} == {None}


@pytest.mark.slow
def test_a_search_for_an_error_finds_all_sessions_with_it(home: Home, reader: Shell) -> None:
    """`sessions --error` and the search of the list find an error of any step, even if the session failed for another
    cause, and as many sessions as the view `errors`.
    """
    with open_store(home) as store:
        store.prepare_listing()
        store.complete_findings()
        counts: dict[str, int] = dict(
            store.sql(
                "SELECT lower(error_class), count(DISTINCT session_id) FROM errors"
                " WHERE error_class IS NOT NULL GROUP BY 1"
            ).rows
        )
        listed = {
            text: [
                row["session_id"]
                for row in store.rows(
                    "listing/page", text=text, sort="name", limit=99, offset=0
                ).dicts()
            ]
            for text in counts
        }
    assert {text: len(ids) for text, ids in listed.items()} == counts
    assert set(listed["keyerror"]) == {session_id(1), session_id(2), session_id(7)}
    for text, ids in listed.items():
        found = reader("sessions", "--error", text, "--json").out.splitlines()
        assert sorted(json.loads(line)["session_id"] for line in found) == sorted(ids)
    # A row shows the class that was found, even if the session failed for another cause.
    rows = reader("sessions", "--error", "keyerr").out.splitlines()[1:]
    assert len(rows) == 3
    assert all("KeyError" in row for row in rows)
    both = reader("sessions", "--error", "KeyError", "--cause", "TypeError", "--json").out
    assert [json.loads(line)["name"] for line in both.splitlines()] == ["own_code"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["show", "diagnose"])
def test_commands_begin_with_the_cause(reader: Shell, command: str) -> None:
    """`show` and `diagnose` begin with the cause, the failed step and the steps before it, without content."""
    assert {SUMMARIES[name][0] for name in ONE_PER_CAUSE} == {
        each for each, _ in SUMMARIES.values()
    }
    shown = {name: reader(command, name).out for name in ONE_PER_CAUSE}
    for name, out in shown.items():
        summary = SUMMARIES[name][1]
        status = "crashed" if name == "crashed" else "failed"
        assert f"{status}: {summary}" in "\n".join(out.splitlines()[:3])
        assert "what a person wrote" not in out
    raised = shown["raised"]
    step = "failed step: tool call send in turn 2 of main: failed KeyError, at shop/orders.py:12"
    assert step in " ".join(raised.split())
    assert "just before:" in raised
    completed = reader(command, "completed").out
    assert "failed step:" not in completed
    assert not completed.startswith("failed")


@pytest.mark.slow
def test_diagnose_explains_every_failed_session(reader: Shell) -> None:
    """Each failed session has a finding `failure`, even with `--all`; `--fail` reacts to signatures only."""
    [first, *_] = reader("diagnose", "declared", "--json").out.splitlines()
    finding = json.loads(first)
    assert (finding["signature"], finding["is_found"]) == ("failure", True)
    assert finding["evidence"][0]["summary"] == SUMMARIES["declared"][1]
    rows = [json.loads(line) for line in reader("diagnose", "--all", "--json").out.splitlines()]
    assert {row["name"]: row["detail"] for row in rows if row["signature"] == "failure"} == {
        name: summary for name, (_, summary) in SUMMARIES.items()
    }
    assert reader("diagnose", "result", "--fail").code == 0


@pytest.mark.slow
def test_the_page_begins_with_the_cause(client: Client) -> None:
    """The page of a failed session shows the cause before the totals. A session that completed names what failed."""
    page = client.get(f"/sessions/{session_id(1)}")
    assert "Failed: tool call send with KeyError at shop/orders.py:12" in page.words
    assert page.html.index('id="failure"') < page.html.index('id="totals"')
    other = client.get(f"/sessions/{session_id(3)}").words
    assert f"Failed: tool call send with ValueError at {PATH}:7" in other
    completed = client.get(f"/sessions/{session_id(7)}").words
    assert "Completed, but send failed once 1 × KeyError in send at shop/orders.py:12" in completed


@pytest.mark.slow
def test_calls_that_the_provider_ran_have_scores_and_are_no_errors_of_the_client(
    home: Home, shell: Shell
) -> None:
    """A score of such a call is accepted; the columns of a turn about tools count the calls of the client."""
    assert shell("score", "searched", "useful", "false", "--tool-call", "srvtoolu_1").code == 0
    assert "srvtoolu_1" in shell("show", "searched").out
    with open_store(home) as store:
        [turn] = store.rows("session_turns", session_id=session_id(8)).dicts()
        assert (turn["tool_use_count"], turn["tool_errors"], turn["tools_ns"]) == (0, 0, None)
