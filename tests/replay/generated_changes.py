"""Changes of agents at places drawn from a seed, and the places at which a replay must report a divergence.

The expected place is derived from the recording and from the meaning of the change, not from a replay.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from replay import Fixture
from replay.divergence.divergence import Divergence
from replay.fixture.format import RecordedRequest, RecordedTool
from tests.replay.generated_agents import Change, ChangeKind
from tests.replay.generated_scripts import Script, Step, requested_step

CONTENT = r"\$\.messages\[\d+\]\.content"
PATHS: dict[ChangeKind, str] = {
    "system": r"\$\.system",
    "schema": r"\$\.tools\[\d+\]",
    "model": r"\$\.model$",
    "header": r"request\.anthropic-beta$",
    "text": CONTENT + r"\[\d+\]\.text$",
    "result": CONTENT + r"\[\d+\]\.(content|is_error)",
    "denied": CONTENT + r"\[\d+\]\.(content|is_error)",
}
"""The path in a request body at which each kind of change is visible."""
ANYWHERE: tuple[ChangeKind, ...] = ("system", "schema", "option", "model", "header")
"""Kinds of changes that any request can show."""


@dataclass(frozen=True)
class Expected:
    """The place that a report must name."""

    places: frozenset[tuple[str, int]]
    """Lanes and request numbers; several, if chance decides which of them differs first."""
    path: str = ""
    """A pattern for the path of the first difference; empty if no body differs."""
    names: tuple[str, ...] = ()
    """The report must contain at least one of these names."""
    tools: tuple[str, ...] = ()
    """The tools that must run live for the change to be visible."""


@dataclass(frozen=True)
class ParsedRequest:
    """A recorded request with its parsed body."""

    recorded: RecordedRequest
    place: tuple[str, int]
    body: dict[str, Any]
    step: Step | str
    is_count: bool


def parsed_requests(fixture: Fixture) -> list[ParsedRequest]:
    """Return the requests of a fixture with their parsed bodies."""
    seen: dict[str, int] = {}
    found = []
    for recorded in fixture.requests:
        seen[recorded.lane] = seen.get(recorded.lane, 0) + 1
        body = json.loads(fixture.body(recorded.number))
        is_count = recorded.path.endswith("count_tokens")
        found.append(
            ParsedRequest(
                recorded, (recorded.lane, seen[recorded.lane]), body, requested_step(body), is_count
            )
        )
    return found


def changes(script: Script, fixture: Fixture, seed: int) -> Iterable[tuple[Change, Expected]]:
    """Yield possible changes to an agent, in an order drawn from a seed, with the places at which they must be
    reported.
    """
    chance = random.Random(seed)
    requests = parsed_requests(fixture)
    makers = [*(_LOOP if script.kind == "loop" else _PLAIN)]
    chance.shuffle(makers)
    for maker in makers:
        if (change := maker(script, fixture, requests, chance)) is not None:
            yield change


def points_at(divergence: Divergence, expected: Expected) -> bool:
    """Return whether a report names the place of the change."""
    report_text = divergence.text()
    first = divergence.differences[0].path if divergence.differences else ""
    return (
        (divergence.lane, divergence.number) in expected.places
        and re.match(expected.path, first) is not None
        and (not expected.names or any(name in report_text for name in expected.names))
    )


ExpectedChange = tuple[Change, Expected] | None
Maker = Callable[[Script, Fixture, list[ParsedRequest], random.Random], ExpectedChange]


def _at(*requests: ParsedRequest) -> frozenset[tuple[str, int]]:
    return frozenset(each.place for each in requests)


def _option(value: dict[str, Any] | None) -> str:
    """Return the key of the request body that an option changes."""
    [(name, report_text)] = (value or {"": ""}).items()
    return next(iter(report_text)) if name.startswith("extra") else name


def _results(request: ParsedRequest) -> list[dict[str, Any]]:
    last = request.body["messages"][-1]["content"]
    return [b for b in last if isinstance(b, dict) and b["type"] == "tool_result"]


# Agents that use only the SDK


def _steps(script: Script, requests: list[ParsedRequest]) -> list[ParsedRequest]:
    """Return the first request of each step, except steps whose first request cannot be distinguished from other
    requests.
    """
    found: dict[Step | str, ParsedRequest] = {}
    for each in requests:
        distinct = isinstance(each.step, Step) or len(script.tasks.get(each.step, [])) == 1
        if not each.is_count and distinct:
            found.setdefault(each.step, each)
    return list(found.values())


def _first(requests: list[ParsedRequest], step: Step | str) -> ParsedRequest:
    return next(each for each in requests if each.step == step)


def _in_request(kind: ChangeKind) -> Maker:
    def maker(
        script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
    ) -> ExpectedChange:
        at = chance.choice(_steps(script, requests))
        tool = chance.choice(at.body["tools"])["name"]
        options: list[dict[str, Any]] = [
            {"max_tokens": 401},
            {"stop_sequences": ["END"]},
            {"extra_body": {"top_k": 3}},
        ]
        value: dict[str, Any] | None = chance.choice(options) if kind == "option" else None
        path = PATHS.get(kind) or rf"\$\.{_option(value)}$"
        names = (tool,) if kind == "schema" else ()
        return Change(kind, at.step, tool=tool, value=value), Expected(_at(at), path, names)

    return maker


def _plain_text(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    with_history = [e for e in _steps(script, requests) if len(e.body["messages"]) > 1]
    if not with_history:
        return None
    at = chance.choice(with_history)
    return Change("text", at.step), Expected(_at(at), PATHS["text"])


def _plain_result(kind: ChangeKind) -> Maker:
    def maker(
        script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
    ) -> ExpectedChange:
        called = [
            (each, result["tool_use_id"])
            for each in _steps(script, requests)
            for result in _results(each)
        ]
        if not called:
            return None
        at, call = chance.choice(called)
        known = fixture.tool_use(call)
        name = known.name if known else "?"
        expected = Expected(_at(_first(requests, at.step)), PATHS[kind], (str(name),))
        return Change(kind, at.step, call=call, tool=str(name)), expected

    return maker


def _plain_dropped(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    distinct = {each.step for each in _steps(script, requests)}
    counted = [each for each in requests if each.is_count and each.step in distinct]
    if counted and chance.random() < 0.7:
        at = chance.choice(counted)
        return Change("dropped", at.step), Expected(_at(at))
    return Change("dropped"), Expected(_at(_first(requests, script.prompts[-1])))


def _plain_added(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    if chance.random() < 0.3:
        count = sum(each.recorded.lane == "main" for each in requests)
        return Change("added"), Expected(frozenset({("main", count + 1)}))
    counted = {each.step for each in requests if each.is_count}
    at = [each for each in _steps(script, requests) if each.step not in counted]
    if not at:
        return None
    one = chance.choice(at)
    return Change("added", one.step), Expected(_at(one))


def _plain_swapped(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    several = [each for each in _steps(script, requests) if len(_results(each)) > 1]
    if several and chance.random() < 0.7:
        at = chance.choice(several)
        return Change("swapped", at.step), Expected(_at(at), CONTENT)
    return _swapped_prompts(script, requests)


def _swapped_prompts(script: Script, requests: list[ParsedRequest]) -> ExpectedChange:
    if len(script.prompts) < 2:
        return None
    first = r"\$\.hook\.prompt" if script.hooked else r"\$\.messages\[0\]\.content"
    return Change("swapped"), Expected(frozenset({("main", 1)}), first)


_PLAIN: tuple[Maker, ...] = (
    *map(_in_request, ANYWHERE),
    _plain_text,
    _plain_result("result"),
    _plain_result("denied"),
    _plain_dropped,
    _plain_added,
    _plain_swapped,
)


# Agents of the agent loop


FIRST = frozenset({("main", 1)})


def _in_run(kind: ChangeKind) -> Maker:
    def maker(
        script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
    ) -> ExpectedChange:
        if ("main", 1) not in {each.place for each in requests}:
            return None
        # The lane of a compaction, `main/compaction:1`, does not belong to an agent.
        below = (
            each
            for each in reversed(requests)
            if "/" in each.recorded.lane and ":" not in each.recorded.lane
        )
        first_requests = {each.recorded.lane: each for each in below}
        if kind == "system" and first_requests and chance.random() < 0.6:
            return Change("system", "digger"), Expected(_at(*first_requests.values()), PATHS[kind])
        tool = chance.choice(("look", "write", "count", "fall", "wait"))
        options: list[dict[str, Any]] = [
            {"max_tokens": 401},
            {"extra": {"top_k": 3}},
            {"stream": not script.streams},
        ]
        value: dict[str, Any] | None = chance.choice(options) if kind == "option" else None
        path = PATHS.get(kind) or rf"\$\.{_option(value)}$"
        names = (tool,) if kind == "schema" else ()
        return Change(kind, tool=tool, value=value), Expected(FIRST, path, names)

    return maker


def _loop_result(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    ran = [
        (tool, result_request)
        for tool in fixture.tools
        if tool.answer.outcome == "executed" and tool.question.name != "agent"
        if (result_request := _request_with_result(requests, tool.lane, tool.question.tool_use_id))
    ]
    if not ran:
        return None
    tool, result_request = chance.choice(ran)
    name, tool_input = tool.question.name, tool.question.input
    value = tool_input["of"] if name == "count" else next(iter(tool_input.values()))
    change = Change("result", tool=name, value=value)
    places, path = _at(result_request), PATHS["result"]
    if script.hooked:
        # The result is passed to a hook before it is sent to the model.
        places |= _requests_of_turn(requests, tool)
        path = rf"{path}|\$\.hook\.tool_output"
    return change, Expected(places, path, (name, tool.question.tool_use_id), (name,))


def _request_with_result(
    requests: list[ParsedRequest], lane: str, tool_use_id: str
) -> ParsedRequest | None:
    """Return the first request of a lane that contains the result of a call."""
    return next(
        (
            each
            for each in requests
            if each.recorded.lane == lane
            if any(result["tool_use_id"] == tool_use_id for result in _results(each))
        ),
        None,
    )


def _loop_denied(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    ran = [tool for tool in fixture.tools if tool.answer.outcome == "executed"]
    # The structured output tool needs no permission.
    names = sorted({tool.question.name for tool in ran} - {"structured_output"})
    if not names:
        return None
    name = chance.choice(names)
    called = [tool for tool in fixture.tools if tool.question.name == name]
    result_requests = [
        _request_with_result(requests, tool.lane, tool.question.tool_use_id) for tool in called
    ]
    places = _at(*(each for each in result_requests if each))
    # If no request follows the call, the report names the call, at the request whose response contains it.
    calling_requests = frozenset().union(*(_requests_of_turn(requests, tool) for tool in called))
    later: frozenset[tuple[str, int]] = frozenset()
    if script.stop_at is not None:
        # A run that was stopped at this point in the recording may continue now.
        later = frozenset((lane, number + 1) for lane, number in calling_requests)
    return Change("denied", tool=name), Expected(places | calling_requests | later, "", (name,))


def _requests_of_turn(
    requests: list[ParsedRequest], tool: RecordedTool
) -> frozenset[tuple[str, int]]:
    """Return the requests of the turn whose response contains a call."""
    here = (tool.lane, tool.turn)
    return _at(*(each for each in requests if (each.recorded.lane, each.recorded.turn) == here))


def _loop_text(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    if len(script.prompts) < 2 or script.compacts:
        return None
    task = script.prompts[1]
    at = next((e for e in requests if e.step == task and e.recorded.lane == "main"), None)
    if at is None or len(at.body["messages"]) < 2:
        return None
    before = at.body["messages"][-2]
    if before["role"] != "assistant" or before["content"][0]["type"] != "text":
        return None
    return Change("text", task), Expected(_at(at), PATHS["text"])


def _loop_dropped(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    task = script.prompts[-1]
    at = next((e for e in requests if e.step == task and e.recorded.lane == "main"), None)
    return (Change("dropped"), Expected(_at(at))) if at else None


def _loop_added(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    if script.compacts:
        return None
    count = sum(each.recorded.lane == "main" for each in requests)
    # The hooks of the new prompt run before its request is sent.
    return Change("added"), Expected(frozenset({("main", count), ("main", count + 1)}))


def _loop_swapped(
    script: Script, fixture: Fixture, requests: list[ParsedRequest], chance: random.Random
) -> ExpectedChange:
    if len(script.prompts) > 1 and chance.random() < 0.5:
        return _swapped_prompts(script, requests)
    tool = chance.choice(("write", "count", "fall", "wait"))
    return Change("swapped", tool=tool), Expected(FIRST, r"\$\.tools")


_LOOP: tuple[Maker, ...] = (
    *map(_in_run, ANYWHERE),
    _loop_result,
    _loop_denied,
    _loop_text,
    _loop_dropped,
    _loop_added,
    _loop_swapped,
)
