"""Failed steps in words: how many tool calls and request attempts failed, in which ways, and which requests failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentobs.records.labels import DIGEST
from agentobs.store.analysis.failed_steps import (
    NO_CLASS,
    FailedCalls,
    counted_failures,
    failed_calls,
    failures_by_way,
    group_failed_steps,
    nothing_failed,
)
from agentobs.store.backend import open_store
from tests.store.recordings import T0, a_home, attempt, end, record, session_id, start

OVERLOADED = ("attempt", "opus", "http_error", "overloaded_error", 529)


def errors(*found: tuple[str, str, str, str | None, int | None]) -> list[dict[str, Any]]:
    """Return rows of `session_errors`, each in a separate turn."""
    fields = ("kind", "name", "outcome", "error_class", "status")
    return [
        {
            **dict(zip(fields, each, strict=True)),
            "error_file": None, "error_line": None, "lane": "main", "turn": turn, "id": f"step {turn}",
        }
        for turn, each in enumerate(found, 1)
    ]  # fmt: skip


def failed(name: str, error_class: str | None = None) -> tuple[str, str, str, str | None, None]:
    return ("tool_call", name, "failed", error_class, None)


@pytest.mark.parametrize(
    ("found", "counted", "by_way"),
    [
        ((), "", ""),
        (
            (failed("look", "KeyError"),),
            "1 tool call failed",
            "1 failed tool call: look (KeyError)",
        ),
        (
            (*[failed("look", "invalid")] * 20, *[failed("fetch", "timeout")] * 6),
            "26 tool calls failed",
            "26 failed tool calls: 20 look (invalid), 6 fetch (timeout)",
        ),
        (
            (*[failed("look")] * 2, OVERLOADED),
            "2 tool calls and 1 request attempt failed",
            f"2 failed tool calls: all look ({NO_CLASS}); "
            "1 failed request attempt: opus (HTTP 529 overloaded_error)",
        ),
        (
            tuple(failed(f"tool{number}", "KeyError") for number in range(5)),
            "5 tool calls failed",
            "5 failed tool calls: 1 tool0 (KeyError), 1 tool1 (KeyError), 1 tool2 (KeyError), 2 in other ways",
        ),
        (
            (("tool_call", "send", "denied", None, None), failed(f"{DIGEST}ab", f"{DIGEST}cd")),
            "1 tool call failed, and 1 tool call was denied",
            f"1 failed tool call: without a name ({NO_CLASS}); 1 denied tool call: send",
        ),
        (
            (
                *[("tool_call", "send", "denied", None, None)] * 2,
                ("tool_call", "ask", "blocked", None, None),
            ),
            "3 tool calls were denied",
            "3 denied tool calls: 2 send, 1 ask",
        ),
    ],
)
def test_failures_are_counted_by_tool_and_class(
    found: tuple[Any, ...], counted: str, by_way: str
) -> None:
    """Tool calls and requests are counted separately. If all failed in one way, this is stated."""
    groups = group_failed_steps(errors(*found), ())
    assert counted_failures(groups) == counted
    assert failures_by_way(groups) == by_way


def test_retried_attempts_are_named() -> None:
    """An attempt after which another attempt of its turn succeeded is named as retried."""
    rows = errors(OVERLOADED, OVERLOADED)
    turns = [{"lane": "main", "turn": turn} for turn in (1, 2)]
    assert counted_failures(group_failed_steps(rows, turns)) == (
        "2 request attempts (all retried) failed"
    )
    assert counted_failures(group_failed_steps(rows, turns[:1])) == (
        "2 request attempts (1 retried) failed"
    )
    assert failures_by_way(group_failed_steps(rows[:1], turns)) == (
        "1 failed request attempt (retried): opus (HTTP 529 overloaded_error)"
    )


@pytest.mark.parametrize(
    ("kinds", "sentence"),
    [
        (
            ("tool_call", "request", "request"),
            "No failure is recorded: 1 tool call succeeded; the HTTP statuses of 2 requests were not recorded",
        ),
        (
            ("request",),
            "No failure is recorded: the HTTP status of 1 request was not recorded",
        ),
        (("tool_call",), "Nothing failed: 1 tool call succeeded"),
        ((), ""),
    ],
)
def test_no_success_is_claimed_of_requests_in_a_log(kinds: tuple[str, ...], sentence: str) -> None:
    """An imported log has no HTTP statuses, so the sentence does not claim that its requests succeeded."""
    steps = [
        {"kind": kind, "outcome": "executed" if kind == "tool_call" else "ok"} for kind in kinds
    ]
    assert nothing_failed("completed", steps, _operations(0), is_imported=True) == sentence
    assert nothing_failed("completed", steps, _operations(1), is_imported=True) == ""


def _operations(failures: int) -> Callable[[], list[dict[str, int]]]:
    return lambda: [{"failures": failures}]


def test_failed_operations_are_not_read_without_need() -> None:
    """If the session did not complete, or if a step failed, its failed operations are not read."""

    def read() -> list[dict[str, int]]:
        raise AssertionError

    succeeded = {"kind": "tool_call", "outcome": "executed"}
    failed = {"kind": "tool_call", "outcome": "failed"}
    assert nothing_failed("running", [succeeded], read, is_imported=False) == ""
    assert nothing_failed("completed", [succeeded, failed], read, is_imported=False) == ""


@pytest.mark.parametrize(
    ("kind", "outcome", "sentence"),
    [
        ("tool_call", "executed", "Nothing failed: 1 tool call succeeded"),
        ("tool_call", "failed", ""),
        ("request", "http_error", ""),
        ("decision", "deny", ""),
    ],
)
def test_success_is_claimed_only_if_no_step_failed(kind: str, outcome: str, sentence: str) -> None:
    """The sentence is empty if a tool call, a request or a decision has failed."""
    steps = [{"kind": kind, "outcome": outcome}]
    assert nothing_failed("completed", steps, list, is_imported=False) == sentence


@pytest.mark.slow
def test_requests_that_failed_are_counted_in_the_list(tmp_path: Path) -> None:
    """A request of which all attempts failed is a failed request; one with a retry that succeeded is none."""
    home = a_home(tmp_path)
    rejected = attempt(1, 1, status=529)
    record(home, [start(1), rejected, attempt(1, 1, at=T0 + 1_000_000_000), end(1)])
    lost = [attempt(2, 2, at=T0 + each, status=529) for each in (2_000_000_000, 3_000_000_000)]
    record(home, [start(2), attempt(2, 1), *lost, end(2)])
    with open_store(home) as store:
        ids = [session_id(1), session_id(2)]
        assert failed_calls(store, ids) == {session_id(2): FailedCalls(requests=1)}
