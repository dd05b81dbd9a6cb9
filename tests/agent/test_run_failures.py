"""`Result.raise_for_error`: each terminal reason has an exception, whose cause is the original exception."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import anthropic
import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel

from agentobs.agent import (
    Aborted,
    Budget,
    BudgetExceeded,
    ContextExceeded,
    Event,
    Hook,
    HookStopped,
    InternalError,
    OutputMissing,
    ProviderError,
    Refused,
    ResponseCut,
    Result,
    RunFailed,
    ToolDispatch,
    ToolsMissing,
    TurnLimit,
    complete,
    live_world,
    tool,
)
from agentobs.agent.run_result import FAILURES, TerminalReason
from agentobs.errors import UsageError

from .agent_objects import agent, asking, play, recorded_and_replayed
from .agent_runs import options, result_of
from .provider import Provider, call, error, message, streamed, text

DONE = streamed(message(text("Done.")))
LOOKS = streamed(message(call("t1", "look"), stop_reason="tool_use"))
PRICED = "claude-sonnet-4-6"
EXPENSIVE = message(
    call("t1", "look"), model=PRICED, usage={"input_tokens": 100_000, "output_tokens": 1}
)
TOO_LONG = error(400, "invalid_request_error", text="prompt is too long")


class Answer(BaseModel):
    """The structured output."""

    number: int


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "nothing"


@tool(read_only=True, available=lambda: False)
def missing() -> str:
    """Never available."""
    return "nothing"


def refuse(payload: dict[str, Any]) -> dict[str, str]:
    return {"outcome": "blocking", "reason": "not today"}


CASES: list[tuple[list[Any], dict[str, Any], type[RunFailed], str, type[Exception] | None]] = [
    (
        [error(404, "not_found_error", text="no such model")],
        {},
        ProviderError,
        "The run ended with model_error: not_found_error: no such model",
        anthropic.NotFoundError,
    ),
    (
        [error(400, "invalid_request_error", text="Could not process image")],
        {},
        ProviderError,
        "The run ended with image_error: invalid_request_error: Could not process image",
        anthropic.BadRequestError,
    ),
    (
        [TOO_LONG],
        {},
        ContextExceeded,
        "The run ended with prompt_too_long: invalid_request_error: prompt is too long",
        anthropic.BadRequestError,
    ),
    (
        [streamed(EXPENSIVE)],
        {"model": PRICED, "budget": Budget(interaction_usd=Decimal("0.1"))},
        BudgetExceeded,
        "The run ended with max_budget",
        None,
    ),
    ([LOOKS], {"max_turns": 1}, TurnLimit, "The run ended with max_turns", None),
    (
        [DONE],
        {"output": Answer, "max_output_retries": 0},
        OutputMissing,
        "The run ended with max_structured_output_retries",
        None,
    ),
    (
        [streamed(message(text("No."), stop_reason="refusal"))],
        {},
        Refused,
        "The run ended with refusal",
        None,
    ),
    (
        [streamed(message(text("One"), stop_reason="max_tokens"))] * 4,
        {"max_tokens_raised": None},
        ResponseCut,
        "The run ended with max_output_tokens",
        None,
    ),
    (
        [],
        {"hooks": (Hook("user_prompt_submit", refuse),)},
        HookStopped,
        "The run ended with hook_stopped: not today",
        None,
    ),
    (
        [],
        {"parts": {"tools": [missing]}},
        ToolsMissing,
        "The run ended with tool_set_error: UsageError: these tools are not available: missing.",
        UsageError,
    ),
]


@pytest.mark.parametrize(
    ("replies", "changes", "expected", "text", "cause"), CASES, ids=lambda each: str(each)[:20]
)
def test_each_failure_has_an_exception(
    replies: list[Any],
    changes: dict[str, Any],
    expected: type[RunFailed],
    text: str,
    cause: type[Exception] | None,
) -> None:
    """The exception belongs to the terminal reason, holds the result, and names the original exception."""
    with Provider(replies) as provider:
        result = result_of(play(provider, asking(**{"parts": {"tools": [look]}, **changes})))
    with pytest.raises(RunFailed) as raised:
        result.raise_for_error()
    assert (type(raised.value), str(raised.value)) == (expected, text)
    assert raised.value.result is result
    assert type(raised.value.__cause__) is (cause or type(None))
    assert raised.value.__cause__ is result.exception


def test_a_success_returns_the_result() -> None:
    """The result of a successful run is returned, so that calls can be chained."""
    with Provider([DONE]) as provider:
        result = result_of(play(provider, asking()))
    assert result.raise_for_error().text == "Done."


def test_an_internal_error_keeps_its_exception() -> None:
    """An exception of the program is the cause, with its traceback."""

    def broken() -> list[Any]:
        raise ZeroDivisionError("in the tools")

    async def go(provider: Provider) -> Result:
        async with provider.client() as client:
            return await complete("Go", world=live_world(client), options=options(), tools=broken)

    with Provider([]) as provider:
        result = asyncio.run(go(provider))
    with pytest.raises(
        InternalError, match="internal_error: ZeroDivisionError: in the tools"
    ) as raised:
        result.raise_for_error()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert raised.value.__cause__.__traceback__ is not None


def test_each_terminal_reason_has_one_exception() -> None:
    """Every terminal reason except `completed` has an exception with the common base."""
    assert set(FAILURES) == set(get_args(TerminalReason)) - {"completed"}
    assert all(issubclass(each, RunFailed) and each is not RunFailed for each in FAILURES.values())


def _aborting(client: AsyncAnthropic) -> Callable[[], Any]:
    async def ask() -> list[Event]:
        asked = agent(client, parts={"tools": [look]})
        events: list[Event] = []
        async for event in asked.stream("Go"):
            events.append(event)
            if isinstance(event, ToolDispatch):
                asked.abort()
        return events

    return ask


def test_the_exceptions_of_a_replay(tmp_path: Path) -> None:
    """A replay of a failed and of an aborted run raises the same exceptions as the recorded runs."""
    raised: list[list[tuple[str, str]]] = []

    async def ask(client: AsyncAnthropic) -> list[Event]:
        events = [*(await _aborting(client)()), *(await asking()(client))]
        found = []
        for result in events:
            if isinstance(result, Result):
                with pytest.raises(RunFailed) as failed:
                    result.raise_for_error()
                found.append((type(failed.value).__name__, str(failed.value)))
        raised.append(found)
        return events

    provider = Provider([LOOKS, error(404, "not_found_error", text="no such model")])
    recorded_and_replayed(tmp_path, provider, ask)
    recorded, replayed = raised
    assert recorded == replayed
    assert [name for name, _ in recorded] == [Aborted.__name__, ProviderError.__name__]


def test_the_documented_table() -> None:
    """The page lists the terminal reasons of each exception."""
    page = (Path(__file__).parents[2] / "docs" / "agent_object.md").read_text(encoding="utf-8")
    for kind in set(FAILURES.values()):
        reasons = [f"`{reason}`" for reason, each in FAILURES.items() if each is kind]
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{kind.__name__}` ")]
        assert sorted(row.split("|")[2].strip().split(", ")) == sorted(reasons)
