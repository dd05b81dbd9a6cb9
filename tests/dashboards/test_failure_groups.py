"""The groups of the failures of a session: what they name, how they are counted, and which is the most important."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from agentobs.records.request_failures import outcome_words, request_failure
from dashboards.app.content_reader import Content, have_equal_errors
from dashboards.app.session_page import _have_equal_texts
from dashboards.app.trace import earlier_failures
from dashboards.panels.failure_groups import (
    MOST_GROUPS,
    SessionFailures,
    add_reasons,
    failures_of_failed_agent,
    session_failures,
)
from dashboards.panels.failure_words import failure_note, failure_reason, failure_words
from dashboards.panels.trace_tree import trace_tree
from tests.dashboards.test_trace_tree import row, step

AGENT = "main/call1"


def call(
    number: int,
    name: str,
    at: int,
    *,
    lane: str = "main",
    failed: bool = True,
    similarity: int | None = None,
) -> Any:
    """Return the row and the step of a tool call, each in a separate turn. Its input has a similarity hash."""
    id = f"c{number}"
    shown = row(
        "tool", f"a{number} 1 {id}", at, lane=lane, turn=number, label=name,
        state="failed" if failed else "ok",
    )  # fmt: skip
    outcome = "failed" if failed else "executed"
    return shown, step(
        "tool_call", f"a{number}", id, lane=lane, turn=number, outcome=outcome, is_failed=failed,
        input_similarity=similarity, input_bytes=11,
    )  # fmt: skip


def error(number: int, error_class: str | None, *, lane: str = "main") -> dict[str, Any]:
    """Return the row of the error of a call."""
    return {
        "lane": lane, "turn": number, "id": f"c{number}", "error_class": error_class, "error_file": "fan.py",
        "error_line": 62, "outcome": "failed", "status": None,
    }  # fmt: skip


def failures(pairs: Sequence[Any], errors: Sequence[Any] = (), ends: Sequence[Any] = ()) -> Any:
    rows, steps = zip(*pairs, strict=True)
    return session_failures(trace_tree(rows, steps), errors, ends)


def fan_out(result: str | None = "error_max_turns") -> SessionFailures:
    """Return the failures of a sub-agent whose two calls failed."""
    agent = (
        row("agent", "m 1 call1", 1, turn=1, label="agent", state="failed"),
        step("tool_call", "m", "call1", outcome="failed", is_failed=True),
    )
    band = (row("sub_agent", "span", 1, lane=AGENT, label="tests"), step("decision", "x", "x"))
    calls = [call(number, "run_command", number, lane=AGENT) for number in (2, 3)]
    errors = [error(number, "RuntimeError", lane=AGENT) for number in (2, 3)]
    ends = [{"lane": AGENT, "result": result, "turns": 4}] if result else []
    found: SessionFailures = failures([agent, band, *calls], errors, ends)
    return found


def test_a_sub_agent_is_named_with_why_it_ended() -> None:
    """The failed sub-agent comes first, with its label and its limit, then the errors of its tools with their place."""
    found = fan_out()
    assert found.headline == "sub-agent tests failed"
    assert [each.text for each in found.groups] == [
        "Sub-agent tests failed: turn limit reached (4 turns)",
        "2 × RuntimeError in run_command at fan.py:62, in sub-agent tests",
    ]
    assert found.first == 0
    shown = found.restored(list, {AGENT: "tests 2"})
    assert shown.headline == "sub-agent tests 2 failed"
    assert "in sub-agent tests 2" in shown.groups[1].text
    assert fan_out(None).groups[0].text == "Sub-agent tests failed"


def test_the_failures_of_a_failed_sub_agent() -> None:
    """If the call of a sub-agent failed the session, its failures are known; those of other agents are left out."""
    agent = (
        row("agent", "m 1 call1", 1, turn=1, label="investigate", state="failed"),
        step("tool_call", "m", "call1", outcome="failed", is_failed=True),
    )
    inner = [call(number, "query", number, lane=AGENT) for number in (2, 3, 4)]
    retried = [
        call(5, "ping", 5, lane=AGENT, similarity=7),
        call(6, "ping", 6, lane=AGENT, similarity=7, failed=False),
    ]
    rows, steps = zip(agent, *inner, *retried, call(7, "query", 7), strict=True)
    errors = [error(number, "TimeoutError", lane=AGENT) for number in (2, 3, 4)]
    failed = {"step_id": "call1", "step_lane": "main", "step_turn": 1}
    found = failures_of_failed_agent(trace_tree(rows, steps, failed), errors, ())
    assert found is not None
    assert [(each.text, each.numbers) for each in found.groups] == [
        ("3 × TimeoutError in query at fan.py:62", [1, 2, 3])
    ]
    other = {"step_id": "c7", "step_lane": "main", "step_turn": 7}
    assert failures_of_failed_agent(trace_tree(rows, steps, other), errors, ()) is None
    assert failures_of_failed_agent(trace_tree(rows, steps), errors, ()) is None


def test_errors_are_grouped_by_tool_class_and_place() -> None:
    """Errors of different tools or classes are different groups, the most frequent first."""
    names = ("look", "send", "send", "send", "look", "look")
    pairs = [call(number, name, number) for number, name in enumerate(names, 1)]
    errors = [error(6, "KeyError"), *(error(number, "OSError") for number in (2, 3, 4))]
    found = failures(pairs, errors)
    assert [each.text for each in found.groups] == [
        "3 × OSError in send at fan.py:62",
        "look failed twice, no error class recorded",
        "1 × KeyError in look at fan.py:62",
    ]
    assert found.headline == "send failed in 3 of 3 calls and look in 3 of 3 calls"
    assert not found.repeats_headline


def test_failures_that_were_repaired_count_less() -> None:
    """A failure after which a call with the same input succeeded follows other failures, however frequent it is."""
    pairs = [
        call(1, "look", 1, similarity=7),
        call(2, "look", 2, similarity=7),
        call(3, "look", 3, failed=False, similarity=7),
        call(4, "send", 4),
    ]
    assert [each.text for each in failures(pairs).groups] == [
        "send failed once",
        "look failed twice, no error class recorded; a retry of each succeeded",
    ]
    last = call(5, "look", 5, similarity=7)
    assert [each.text for each in failures([*pairs, last]).groups] == [
        "send failed once",
        "look failed once",
        "look failed twice, no error class recorded; a retry of each succeeded",
    ]


def test_a_call_with_another_input_repairs_nothing() -> None:
    """A later call of the same tool is a retry only if its input is known to be the same. The headline counts all."""
    for similarity in (8, None):
        pairs = [
            *(call(number, "fetch", number, similarity=100 + number) for number in range(1, 27)),
            call(27, "store", 27, similarity=similarity and 7),
            call(28, "fetch", 28, failed=False, similarity=similarity),
            call(29, "store", 29, failed=False, similarity=similarity),
        ]
        found = failures(pairs, [error(number, "OSError") for number in range(1, 27)])
        assert found.headline == "fetch failed in 26 of 27 calls and store in 1 of 2 calls"
        assert [each.text for each in found.groups] == [
            "26 × OSError in fetch at fan.py:62",
            "store failed once",
        ]


def test_a_sub_agent_with_another_task_repairs_nothing() -> None:
    """A sub-agent that failed is repaired by a later run with the same input, not by one of the same type."""

    def agent(number: int, similarity: int, *, failed: bool) -> Any:
        shown, made = call(number, "investigate", number, failed=failed, similarity=similarity)
        return shown | {"kind": "agent"}, made

    first = agent(1, 5, failed=True)
    other, retry = agent(2, 6, failed=False), agent(2, 5, failed=False)
    assert [each.text for each in failures([first, other]).groups] == [
        "Sub-agent investigate failed"
    ]
    assert [each.text for each in failures([first, retry]).groups] == [
        "Sub-agent investigate failed; a retry succeeded"
    ]


def test_a_group_that_only_repeats_the_headline_is_not_a_sentence_of_its_own() -> None:
    """The headline states how many calls of the tool failed, of how many. A group with an error adds details."""
    pairs = [call(number, "refund", number, failed=number < 4) for number in range(1, 6)]
    found = failures(pairs)
    assert found.headline == "refund failed in 3 of 5 calls"
    assert not found.repeats_headline
    assert found.groups[0].text == "refund failed 3 times, no error class recorded"
    assert failures(pairs[2:]).repeats_headline
    assert not failures(pairs[2:], [error(3, "OSError")]).repeats_headline


@pytest.mark.parametrize(
    ("errors", "heading"),
    [
        ((), "Error of the first of 2; the other may differ:"),
        (("OSError",) * 2, "Both failed with OSError. Error of the first:"),
        (("OSError",) * 3, "All 3 failed with OSError. Error of the first:"),
        (("OSError",), ""),
    ],
)
def test_the_first_error_states_whether_the_others_have_its_class(
    errors: Sequence[str], heading: str
) -> None:
    """The text of one error of several is not that of the others; whether they have the same class is stated."""
    number = len(errors) or 2
    pairs = [call(each, "refund", each) for each in range(1, number + 1)]
    known = [error(each, error_class) for each, error_class in enumerate(errors, 1)]
    found = failures(pairs, known).groups[0]
    assert found.first_error_heading(have_equal_texts=False) == heading
    same = f"{number} times the same error:" if number > 1 else ""
    assert found.first_error_heading(have_equal_texts=True) == same


def test_a_headline_names_few_tools() -> None:
    """The headline names three tools, and counts the others."""
    pairs = [call(number, f"tool{number}", number) for number in range(1, 5)]
    assert failures(pairs[:3]).headline == "tool1 failed once, tool2 once and tool3 once"
    assert failures(pairs).headline == "tool1 failed once, tool2 once, tool3 once and 1 other tool"
    lost = failures([request(1, 1, failed=True), request(2, 2, failed=True)])
    assert lost.headline == "2 requests failed"


def request(number: int, turn: int, *, failed: bool) -> Any:
    """Return the row and the step of an attempt."""
    id = f"r{number}"
    outcome = "http_error 529 overloaded_error" if failed else "ok"
    state = "failed" if failed else "ok"
    return (
        row("request", id, number, turn=turn, label="model", state=state),
        step("request", id, id, turn=turn, outcome=outcome, is_failed=failed),
    )


def test_a_retry_repairs_a_request() -> None:
    """A failed attempt is repaired if a later attempt of the same turn succeeded, and only then."""
    pairs = [request(1, 1, failed=True), request(2, 1, failed=False), request(3, 2, failed=False)]
    errors = [
        {
            "lane": "main", "turn": 1, "id": "r1", "error_class": "overloaded_error", "error_file": None,
            "error_line": None, "outcome": "http_error", "status": 529,
        }
    ]  # fmt: skip
    found = failures(pairs, errors)
    assert found.is_repaired
    assert [each.text for each in found.groups] == [
        "1 × overloaded_error (HTTP 529) of model; a retry succeeded"
    ]
    last = failures([request(2, 1, failed=False), request(3, 2, failed=True)])
    assert not last.is_repaired
    assert last.headline == "1 request failed"


def test_a_denied_call_did_not_fail() -> None:
    """A call whose permission was denied is in a separate group, whose text is that it was denied."""
    shown, made = call(1, "send", 1, failed=False)
    made = made | {"outcome": "denied"}
    denied = step("decision", "a1", "c1", outcome="deny person", is_failed=True)
    tree = trace_tree([shown | {"state": "stopped"}], [made, denied])
    found = session_failures(tree, (), ())
    assert found is not None
    assert [each.text for each in found.groups] == ["send was denied once"]
    assert found.headline == "send was denied once"
    assert found.repeats_headline
    executed = trace_tree([shown], [made | {"outcome": "executed"}, denied])
    assert session_failures(executed, (), ()) is None


def test_a_tool_that_failed_and_was_denied_is_one_tool() -> None:
    """The headline names each tool once, with how often it failed and was denied, and counts the other tools."""
    pairs = [call(number, name, number) for number, name in enumerate("aabc", 1)]
    shown, made = call(5, "a", 5, failed=False)
    found = failures([*pairs, (shown, made | {"outcome": "denied"})])
    often = "a failed in 2 of 3 calls and was denied in 1 of 3 calls"
    assert found.headline == f"{often}, b failed once and c once"
    more = failures([*pairs, (shown, made | {"outcome": "denied"}), call(6, "d", 6)])
    assert more.headline == f"{often}, b failed once, c once and 1 other tool"


def _opened(*pairs: Any, stored_rows: Any = None) -> tuple[Any, Any]:
    """Return a session with the rows of its errors, and the first group of its failures."""
    rows, steps = zip(*pairs, strict=True)
    tree = trace_tree(rows, steps)
    found = session_failures(tree, (), ())
    assert found is not None
    return SimpleNamespace(tree=tree, stored_rows=stored_rows), found.groups[0]


def test_only_results_of_the_client_are_compared() -> None:
    """Errors of requests, and of calls that the provider ran, are not compared: no result of them is read."""
    requests = [request(number, number, failed=True) for number in (1, 2)]
    for _, made in requests:
        made["ordinal"] = None
    calls = [call(number, "search", number) for number in (1, 2)]
    for _, made in calls:
        made["runs_on"] = "provider"
    for pairs in (requests, calls):
        assert not _have_equal_texts(*_opened(*pairs))


def test_errors_without_a_size_or_with_another_id_are_not_equal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recorded results are equal only if their calls are found by ID, their sizes are known, and their texts agree."""
    monkeypatch.setattr(Content, "tool_execution", lambda _, row: {"result": row["text"]})
    home: Any = None
    calls = [("a1", 1, "c1"), ("a2", 1, "c2")]
    rows = [
        {"attempt_id": attempt, "ordinal": at, "tool_use_id": id, "result_bytes": 2, "text": "no"}
        for attempt, at, id in calls
    ]
    assert have_equal_errors(home, rows, calls)
    assert not have_equal_errors(home, [rows[0], {**rows[1], "text": "No"}], calls)
    assert not have_equal_errors(home, rows, [calls[0], ("a2", 1, "c3")])
    assert not have_equal_errors(home, [{**each, "result_bytes": None} for each in rows], calls)


def test_more_earlier_steps_failed_or_were_denied() -> None:
    """After three tools, the sentence counts the other steps, and does not call a denied one failed."""
    pairs = [call(number, name, number) for number, name in enumerate("aabbccx", 1)]
    last = {"step_id": "c7", "step_lane": "main", "step_turn": 7}
    view: Any = SimpleNamespace(texts=SimpleNamespace(replace_in_dicts=list))

    def sentence(*more: Any) -> str:
        rows, steps = zip(*more, *pairs, strict=True)
        return earlier_failures(view, trace_tree(rows, steps, last), {})[0]

    shown, made = call(8, "d", 0, failed=False)
    denied = shown, made | {"outcome": "denied"}
    three = "Before it, a failed twice, b failed twice, c failed twice"
    assert sentence() == f"{three} in the main agent."
    assert sentence(denied) == f"{three}, and 1 more step was denied in the main agent."
    both = sentence(denied, call(9, "e", 0))
    assert both == f"{three}, and 2 more steps failed or were denied in the main agent."


def test_few_groups_are_listed() -> None:
    """The banner lists three groups, and counts the failures of the others."""
    pairs = [call(number, f"tool{number}", number) for number in range(1, 6)]
    found = failures(pairs)
    assert len(found.listed) == MOST_GROUPS
    assert found.more == 2
    assert session_failures(trace_tree([row("tool", "a", 1)], []), (), ()) is None


def test_failed_steps_say_why() -> None:
    """The reason replaces an unspecific outcome such as `failed`; a digest of a class does not."""
    rows = [
        row("agent", "m 1 call1", 1, turn=1, label="agent", state="failed"),
        row("sub_agent", "span", 1, lane=AGENT, label="tests"),
        row("request", "r1", 2, turn=2, label="model", state="failed"),
    ]
    steps = [
        step("tool_call", "m", "call1", outcome="failed", is_failed=True),
        step("request", "r1", "r1", turn=2, outcome="cut 200 ReadError", is_failed=True),
    ]
    hidden, hidden_step = call(3, "look", 3)
    tree = trace_tree([*rows, hidden], [*steps, hidden_step])
    cut = {
        "lane": "main", "turn": 2, "id": "r1", "error_class": "ReadError", "outcome": "cut", "status": 200,
    }  # fmt: skip
    ends = [{"lane": AGENT, "result": "error_max_turns", "turns": 4}]
    add_reasons(tree, [cut, error(3, "digest:26115c581372118c6125893a")], ends)
    outcomes = [node.step and node.step["outcome"] for node in map(tree.node, tree.failed)]
    assert outcomes == [
        "turn limit reached (4 turns)",
        "the response was cut: the connection was closed",
        "failed",
    ]
    assert tree.node(0).agent == "tests"


def test_failures_of_requests_in_words() -> None:
    """The words say what happened to the response, and keep the class of an unknown error."""
    assert request_failure("http_error", "overloaded_error", 529) == "HTTP 529: overloaded_error"
    assert request_failure("cut", "ReadTimeout", 200) == (
        "the response was cut: no data arrived in time"
    )
    assert request_failure("no_response", "ConnectError", None) == "no response: ConnectError"
    assert request_failure("cut", None, 200) == "the response was cut"
    assert outcome_words("cut 200 RemoteProtocolError") == (
        "the response was cut: the connection was closed"
    )
    assert outcome_words("http_error 529 overloaded_error") == "HTTP 529: overloaded_error"
    assert outcome_words("cut short by hand") == "cut short by hand"
    assert request_failure("stream_error", "api_error", 200) == "error in the response: api_error"


def test_the_words_of_a_failure_do_not_repeat_the_step() -> None:
    """A failed request is named by what happened to it. The note is what the headline does not contain."""
    row = {
        "step_kind": "attempt", "step_outcome": "cut", "step_class": "RemoteProtocolError", "step_status": 200,
        "cause": "exception", "summary": "RemoteProtocolError (200) from model at fan.py:77",
    }  # fmt: skip
    assert failure_words(row) == "the response was cut: the connection was closed"
    assert failure_note(row) == ""
    other = row | {"summary": "KeyError at a.py:3; RemoteProtocolError (200) from model"}
    assert failure_note(other) == "KeyError at a.py:3"
    named = {
        "step_kind": "tool_call", "step_class": None, "error_class": "KeyError", "cause": "exception",
        "summary": "KeyError; call send_mail failed",
    }  # fmt: skip
    assert failure_note(named) == ""
    assert failure_note(named | {"step_class": "ValueError"}) == "KeyError"
    call = {
        "step_kind": "tool_call",
        "cause": "declared",
        "summary": "ValueError in refund; declared by the agent: none",
    }
    assert failure_words(call | {"step_outcome": "failed"}) == ""
    assert failure_note(call) == "declared by the agent: none"
    alone = {"step_kind": None, "cause": "crash", "summary": "the process ended"}
    assert failure_note(alone) == "the process ended"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            {"cause": "declared", "step_kind": "attempt", "step_outcome": "cut", "step_class": "ReadError",
             "reason": "exit:1", "summary": "the response was cut: ReadError from model; exit code 1"},
            "the response was cut: the connection was closed; exit code 1",
        ),
        (
            {"cause": "declared", "step_kind": None, "reason": "exit:1", "summary": "exit code 1"},
            "exit code 1",
        ),
        (
            {"cause": "result", "step_kind": "tool_call", "reason": "max_turns",
             "summary": "ended with max_turns; last error: call look failed"},
            "max_turns",
        ),
        (
            {"cause": "declared", "step_kind": "tool_call", "step_outcome": "failed", "reason": "no-refund",
             "step_class": "ValueError", "summary": "ValueError in refund; declared by the agent: no-refund"},
            "ValueError in refund; declared by the agent: no-refund",
        ),
    ],
)  # fmt: skip
def test_the_header_has_the_reason_of_the_banner(row: dict[str, Any], text: str) -> None:
    """The reason of the failed step comes first, then what the program declared; a limit is the reason itself."""
    whole = {"step_outcome": None, "step_class": None, "step_status": None, **row}
    found = failure_reason(whole)
    assert found.text == text
    assert (found.words, found.note) == (failure_words(whole), failure_note(whole))
