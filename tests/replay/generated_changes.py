"""One change of an agent each, at a place drawn from a seed, and where a replay has to say that the path parts.

What is expected is read from the recording and from what the change means, not from what a replay says.
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
from replay.fixture.format import Ask, RecordedTool
from tests.replay.generated import Script, Step, step_asked
from tests.replay.generated_agents import Change, ChangeKind

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
"""Where in a body each kind of change shows."""
ANYWHERE: tuple[ChangeKind, ...] = ("system", "schema", "option", "model", "header")
"""Kinds of changes that any request can show."""


@dataclass(frozen=True)
class Expected:
    """Where a report has to point."""

    places: frozenset[tuple[str, int]]
    """Lanes, and which requests of them; more than one where it is chance which of them comes first."""
    path: str = ""
    """A pattern that the path of the first difference fits; empty where nothing inside of a body differs."""
    names: tuple[str, ...] = ()
    """What the report has to name, one of them."""
    tools: tuple[str, ...] = ()
    """The tools that have to run live for the change to show."""


@dataclass(frozen=True)
class Asked:
    """A recorded request, read."""

    ask: Ask
    place: tuple[str, int]
    body: dict[str, Any]
    step: Step | str
    is_count: bool


def asked_in(fixture: Fixture) -> list[Asked]:
    """Return the requests of a fixture, each read."""
    seen: dict[str, int] = {}
    found = []
    for ask in fixture.asks:
        seen[ask.lane] = seen.get(ask.lane, 0) + 1
        body = json.loads(fixture.body(ask.number))
        is_count = ask.path.endswith("count_tokens")
        found.append(Asked(ask, (ask.lane, seen[ask.lane]), body, step_asked(body), is_count))
    return found


def changes(script: Script, fixture: Fixture, seed: int) -> Iterable[tuple[Change, Expected]]:
    """Yield changes that can be made to an agent, in an order drawn from a seed, with where they have to show."""
    chance = random.Random(seed)
    asked = asked_in(fixture)
    makers = [*(_LOOP if script.kind == "loop" else _PLAIN)]
    chance.shuffle(makers)
    for maker in makers:
        if (made := maker(script, fixture, asked, chance)) is not None:
            yield made


def points_at(divergence: Divergence, expected: Expected) -> bool:
    """Return whether a report points at what was changed."""
    told = divergence.text()
    first = divergence.differences[0].path if divergence.differences else ""
    return (
        (divergence.lane, divergence.number) in expected.places
        and re.match(expected.path, first) is not None
        and (not expected.names or any(name in told for name in expected.names))
    )


Made = tuple[Change, Expected] | None
Maker = Callable[[Script, Fixture, list[Asked], random.Random], Made]


def _at(*asked: Asked) -> frozenset[tuple[str, int]]:
    return frozenset(each.place for each in asked)


def _option(value: dict[str, Any] | None) -> str:
    """Return the key of a body that an option changes."""
    [(name, told)] = (value or {"": ""}).items()
    return next(iter(told)) if name.startswith("extra") else name


def _results(asked: Asked) -> list[dict[str, Any]]:
    last = asked.body["messages"][-1]["content"]
    return [b for b in last if isinstance(b, dict) and b["type"] == "tool_result"]


# Of an agent over the SDK


def _steps(script: Script, asked: list[Asked]) -> list[Asked]:
    """Return the first request of each step that can be told from all others when it is made."""
    found: dict[Step | str, Asked] = {}
    for each in asked:
        alone = isinstance(each.step, Step) or len(script.tasks.get(each.step, [])) == 1
        if not each.is_count and alone:
            found.setdefault(each.step, each)
    return list(found.values())


def _first(asked: list[Asked], step: Step | str) -> Asked:
    return next(each for each in asked if each.step == step)


def _in_request(kind: ChangeKind) -> Maker:
    def maker(script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random) -> Made:
        at = chance.choice(_steps(script, asked))
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
    script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random
) -> Made:
    said = [e for e in _steps(script, asked) if len(e.body["messages"]) > 1]
    if not said:
        return None
    at = chance.choice(said)
    return Change("text", at.step), Expected(_at(at), PATHS["text"])


def _plain_result(kind: ChangeKind) -> Maker:
    def maker(script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random) -> Made:
        called = [
            (each, result["tool_use_id"])
            for each in _steps(script, asked)
            for result in _results(each)
        ]
        if not called:
            return None
        at, call = chance.choice(called)
        known = fixture.tool_use(call)
        name = known.name if known else "?"
        expected = Expected(_at(_first(asked, at.step)), PATHS[kind], (str(name),))
        return Change(kind, at.step, call=call, tool=str(name)), expected

    return maker


def _plain_dropped(
    script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random
) -> Made:
    alone = {each.step for each in _steps(script, asked)}
    counted = [each for each in asked if each.is_count and each.step in alone]
    if counted and chance.random() < 0.7:
        at = chance.choice(counted)
        return Change("dropped", at.step), Expected(_at(at))
    return Change("dropped"), Expected(_at(_first(asked, script.prompts[-1])))


def _plain_added(
    script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random
) -> Made:
    if chance.random() < 0.3:
        count = sum(each.ask.lane == "main" for each in asked)
        return Change("added"), Expected(frozenset({("main", count + 1)}))
    counted = {each.step for each in asked if each.is_count}
    at = [each for each in _steps(script, asked) if each.step not in counted]
    if not at:
        return None
    one = chance.choice(at)
    return Change("added", one.step), Expected(_at(one))


def _plain_swapped(
    script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random
) -> Made:
    several = [each for each in _steps(script, asked) if len(_results(each)) > 1]
    if several and chance.random() < 0.7:
        at = chance.choice(several)
        return Change("swapped", at.step), Expected(_at(at), CONTENT)
    return _swapped_prompts(script, asked)


def _swapped_prompts(script: Script, asked: list[Asked]) -> Made:
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


# Of an agent of our loop


FIRST = frozenset({("main", 1)})


def _of_run(kind: ChangeKind) -> Maker:
    def maker(script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random) -> Made:
        if ("main", 1) not in {each.place for each in asked}:
            return None
        # The lane of a compaction, `main/compaction:1`, is no agent's.
        below = (
            each for each in reversed(asked) if "/" in each.ask.lane and ":" not in each.ask.lane
        )
        begun = {each.ask.lane: each for each in below}
        if kind == "system" and begun and chance.random() < 0.6:
            return Change("system", "digger"), Expected(_at(*begun.values()), PATHS[kind])
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
    script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random
) -> Made:
    ran = [
        (tool, heard)
        for tool in fixture.tools
        if tool.answer.outcome == "executed" and tool.question.name != "agent"
        if (heard := _heard(asked, tool.lane, tool.question.tool_use_id))
    ]
    if not ran:
        return None
    tool, heard = chance.choice(ran)
    name, given = tool.question.name, tool.question.input
    told = given["of"] if name == "count" else next(iter(given.values()))
    change = Change("result", tool=name, value=told)
    places, path = _at(heard), PATHS["result"]
    if script.hooked:
        # A hook is asked about the result before the model is.
        places |= _made(asked, tool)
        path = rf"{path}|\$\.hook\.tool_output"
    return change, Expected(places, path, (name, tool.question.tool_use_id), (name,))


def _heard(asked: list[Asked], lane: str, tool_use_id: str) -> Asked | None:
    """Return the first request of a lane that holds the result of a call."""
    return next(
        (
            each
            for each in asked
            if each.ask.lane == lane
            if any(result["tool_use_id"] == tool_use_id for result in _results(each))
        ),
        None,
    )


def _loop_denied(
    script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random
) -> Made:
    ran = [tool for tool in fixture.tools if tool.answer.outcome == "executed"]
    # What takes the output needs no permission.
    names = sorted({tool.question.name for tool in ran} - {"structured_output"})
    if not names:
        return None
    name = chance.choice(names)
    called = [tool for tool in fixture.tools if tool.question.name == name]
    heard = [_heard(asked, tool.lane, tool.question.tool_use_id) for tool in called]
    places = _at(*(each for each in heard if each))
    # Where nothing was asked after it, the call itself is named, at the request that made it.
    made = frozenset().union(*(_made(asked, tool) for tool in called))
    beyond: frozenset[tuple[str, int]] = frozenset()
    if script.stop_at is not None:
        # A run that was stopped there may go on now.
        beyond = frozenset((lane, number + 1) for lane, number in made)
    return Change("denied", tool=name), Expected(places | made | beyond, "", (name,))


def _made(asked: list[Asked], tool: RecordedTool) -> frozenset[tuple[str, int]]:
    """Return the requests of the turn whose answer made a call."""
    here = (tool.lane, tool.turn)
    return _at(*(each for each in asked if (each.ask.lane, each.ask.turn) == here))


def _loop_text(script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random) -> Made:
    if len(script.prompts) < 2 or script.compacts:
        return None
    task = script.prompts[1]
    at = next((e for e in asked if e.step == task and e.ask.lane == "main"), None)
    if at is None or len(at.body["messages"]) < 2:
        return None
    before = at.body["messages"][-2]
    if before["role"] != "assistant" or before["content"][0]["type"] != "text":
        return None
    return Change("text", task), Expected(_at(at), PATHS["text"])


def _loop_dropped(
    script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random
) -> Made:
    task = script.prompts[-1]
    at = next((e for e in asked if e.step == task and e.ask.lane == "main"), None)
    return (Change("dropped"), Expected(_at(at))) if at else None


def _loop_added(
    script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random
) -> Made:
    if script.compacts:
        return None
    count = sum(each.ask.lane == "main" for each in asked)
    # Its hooks are asked before the request is made.
    return Change("added"), Expected(frozenset({("main", count), ("main", count + 1)}))


def _loop_swapped(
    script: Script, fixture: Fixture, asked: list[Asked], chance: random.Random
) -> Made:
    if len(script.prompts) > 1 and chance.random() < 0.5:
        return _swapped_prompts(script, asked)
    tool = chance.choice(("write", "count", "fall", "wait"))
    return Change("swapped", tool=tool), Expected(FIRST, r"\$\.tools")


_LOOP: tuple[Maker, ...] = (
    *map(_of_run, ANYWHERE),
    _loop_result,
    _loop_denied,
    _loop_text,
    _loop_dropped,
    _loop_added,
    _loop_swapped,
)
