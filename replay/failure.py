"""The failing turn of a recorded session, the evidence for it, and the turn from which tools run live.

The evidence is read from the fixture alone, so that it is the same for every client: tool results marked `is_error` in
recorded requests, tool calls that agentobs recorded, repeated calls, requests that the provider refused, and how the
session ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentobs.errors import UsageError
from agentobs.records.canonical import canonical
from agentobs.records.messages import assemble, tool_results, tool_uses
from replay.fixture import Ask, Fixture

REPEATS_MIN = 3
"""How many identical tool calls in consecutive turns count as a loop. Our choice."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Tool names as the provider accepts them; no other name enters a sentence or a generated test."""

CHOSEN = "the turn was chosen with --turn"
"""The reason of a turn that the user chose."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a session failed."""

    turn: int
    """The failing turn of the main lane, from 1. It is 1 if no request of the session was answered."""
    live_from: int
    """The first turn whose tools a test of the fix runs live: the failing turn, or an earlier one if the failure only
    shows at the end of the session, because then any tool may have caused it."""
    reason: str
    """How the turn was found, as a clause such as `tool issue_refund returned an error`. It holds no content."""
    tools: tuple[str, ...] = ()
    """The tools of that turn if functions of `record_tool` are among them, because those run live only by name; else
    empty."""
    tool: str | None = None
    """The tool that failed, if one is known to have."""

    @property
    def text(self) -> str:
        """The reason with its turn, for reports."""
        if self.reason == CHOSEN:
            return f"turn {self.turn} was chosen with --turn"
        return f"{self.reason} in turn {self.turn}"


@dataclass(frozen=True, slots=True)
class _Call:
    """One tool call of the main lane."""

    turn: int
    name: str
    key: str
    """Name and input, to find repeated calls."""


def failure_of(fixture: Fixture) -> Failure | None:
    """Return where the session of a fixture failed.

    Returns:
        None if the session did not fail, or was cut off before its failure shows.

    Raises:
        UsageError: the turn that was chosen when the fixture was frozen does not exist.
    """
    chosen = fixture.header.get("failing_turn")
    if chosen is not None:
        return _chosen(fixture, chosen)
    header = fixture.header
    if header.get("outcome") in ("completed", "running") or header.get("reason") == "GeneratorExit":
        return None
    calls = _calls(fixture)
    return (
        failed_call(fixture)
        or _loop(calls)
        or _refused_request(fixture)
        or _at_the_end(fixture, calls)
    )


def tool_call_count(fixture: Fixture) -> int:
    """Return how many tool calls a session made: those in the model's answers, and functions called by the agent."""
    seen = {(lane, str(call.get("id"))) for lane, _, call in _tool_uses(fixture)}
    functions = {(tool.lane, tool.question.tool_use_id) for tool in fixture.tools}
    return len(seen | functions)


def _chosen(fixture: Fixture, turn: int) -> Failure:
    turns = _turns(fixture)
    found = failed_call(fixture)
    if found is not None and found.turn == turn:
        return found
    if turn not in turns:
        raise UsageError(
            f"the session has no turn {turn}",
            where="--turn",
            todo=f"Choose one from 1 to {max(turns)}" if turns else "It has no answered turn",
        )
    return Failure(turn, turn, CHOSEN, _functions_in(fixture, turn))


def _turns(fixture: Fixture) -> set[int]:
    """Return the turns of the main lane that were answered."""
    return {
        ask.turn
        for ask in fixture.asks
        if ask.lane == "main"
        and ask.turn
        and ask.answer.status == 200
        and (fixture.until is None or ask.turn <= fixture.until)
    }


def _tool_uses(fixture: Fixture) -> Iterator[tuple[str, Ask, dict[str, Any]]]:
    for ask in fixture.asks:
        if ask.answer.status == 200:
            for call in tool_uses(assemble(ask.answer.headers, ask.answer.body)):
                yield ask.lane, ask, call


def _calls(fixture: Fixture) -> dict[str, _Call]:
    """Return the tool calls of the main lane by id, in recorded order."""
    found = {}
    for lane, ask, call in _tool_uses(fixture):
        if lane == "main" and ask.turn:
            name = str(call.get("name"))
            found[str(call.get("id"))] = _Call(
                ask.turn, name, f"{name} {canonical(call.get('input'))}"
            )
    return found


def _outcomes(fixture: Fixture, calls: dict[str, _Call]) -> dict[str, bool]:
    """Return whether the result was an error, for each answered call of the main lane."""
    outcomes: dict[str, bool] = {}
    for ask in fixture.asks:
        if ask.lane != "main":
            continue
        for message in _new_messages(ask):
            for block in tool_results(message):
                tool_use_id = str(block.get("tool_use_id"))
                if tool_use_id in calls:
                    outcomes.setdefault(tool_use_id, bool(block.get("is_error")))
    for tool in fixture.tools:
        if tool.lane == "main" and tool.question.tool_use_id in calls:
            outcomes[tool.question.tool_use_id] = tool.answer.is_error
    return outcomes


def _new_messages(ask: Ask) -> list[dict[str, Any]]:
    """Return the messages that a request adds to the one it builds on; all of them if it builds on none."""
    body = ask.shape.get("body")
    added = body.get("messages") if isinstance(body, dict) else ask.shape.get("add")
    return [each for each in added or () if isinstance(each, dict)]


def failed_call(fixture: Fixture) -> Failure | None:
    """Return the turn of the first tool call that failed and whose tool never succeeded afterwards."""
    calls = _calls(fixture)
    outcomes = _outcomes(fixture, calls)
    for tool_use_id, is_error in outcomes.items():
        call = calls[tool_use_id]
        recovered = any(
            not failed and calls[other].name == call.name and calls[other].turn > call.turn
            for other, failed in outcomes.items()
        )
        if is_error and not recovered:
            names = _functions_in(fixture, call.turn)
            reason = f"{_named(call.name)} returned an error"
            return Failure(call.turn, call.turn, reason, names, _known_name(call.name))
    return _failed_function(fixture)


def _failed_function(fixture: Fixture) -> Failure | None:
    """Return the first failed function of `record_tool` that belongs to no known tool call of the model."""
    for tool in fixture.tools:
        if tool.lane == "main" and tool.answer.is_error and tool.turn:
            reason = f"{_named(tool.question.name)} returned an error"
            names, name = _functions_in(fixture, tool.turn), _known_name(tool.question.name)
            return Failure(tool.turn, tool.turn, reason, names, name)
    return None


def _functions_in(fixture: Fixture, turn: int) -> tuple[str, ...]:
    """Return the names of the tools of a turn if functions of `record_tool` are among them."""
    calls = {key for key, call in _calls(fixture).items() if call.turn == turn}
    ran = [
        tool
        for tool in fixture.tools
        if tool.lane == "main" and (tool.turn == turn or tool.question.tool_use_id in calls)
    ]
    names = tuple(dict.fromkeys(tool.question.name for tool in ran))
    if not any(tool.is_function for tool in ran) or not all(map(_NAME.fullmatch, names)):
        return ()
    return names


def _loop(calls: dict[str, _Call]) -> Failure | None:
    """Return the turn of the first repetition if one call was repeated in the last consecutive turns."""
    last: list[_Call] = []
    for call in calls.values():
        if last and (call.key != last[-1].key or call.turn > last[-1].turn + 1):
            last = []
        last.append(call)
    if len({call.turn for call in last}) < REPEATS_MIN:
        return None
    turn = last[1].turn
    reason = f"{_named(last[0].name)} was called {len(last)} times with the same input"
    return Failure(turn, last[0].turn, reason, tool=_known_name(last[0].name))


def _refused_request(fixture: Fixture) -> Failure | None:
    """Return the last answered turn if the request after it got no answer, or an error."""
    asks = [ask for ask in fixture.asks if ask.lane == "main"]
    last = asks[-1] if asks else None
    if last is None or (last.answer.status == 200 and last.answer.failure is None):
        return None
    status = last.answer.status
    what = "no complete answer" if status in (None, 200) else f"status {status}"
    turn = max(_turns(fixture), default=1)
    return Failure(turn, turn, f"request {len(asks)} got {what}")


def _at_the_end(fixture: Fixture, calls: dict[str, _Call]) -> Failure:
    """Return the last turn, after which the session failed."""
    turn = max(_turns(fixture), default=1)
    with_tools = [call.turn for call in calls.values()]
    signature = str(fixture.header.get("signature") or "")
    is_in_tools = turn in with_tools and signature.startswith("exception:")
    live_from = turn if is_in_tools else min(with_tools, default=1)
    if signature.startswith("exception:"):
        where = re.sub(r"[^A-Za-z0-9._:@-]+", "-", signature.partition(":")[2])[:120]
        reason = f"the agent raised {where} after the answer"
    elif signature.startswith("declared:"):
        reason = "the agent declared the failure after the answer"
    else:
        reason = "the session ended there"
    return Failure(turn, live_from, reason)


def _known_name(name: str) -> str | None:
    return name if _NAME.fullmatch(name) else None


def _named(name: str) -> str:
    return f"tool {name}" if _known_name(name) else "a tool"
