"""Causes of a difference: traced back to a tool call, a part of the prompt, a line of the agent or the machine.

A cause that is only probable is worded so; if nothing leads back, no cause is given.
"""

from __future__ import annotations

import itertools
import json
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.provider.dialect import Block, BodyPlace, Turn, text_of
from agentobs.provider.registry import (
    calls_of,
    dialect_of,
    dialect_of_body,
    history,
    meaningful_headers,
)
from agentobs.records.differences import Difference, common
from agentobs.records.exchanges import ToolQuestion, lane_under
from replay.agent_code.call_sites import Site, site_of
from replay.comparison.difference_kinds import Nature, nature_of
from replay.divergence.divergence_facts import Cause, CauseKind, Link, VersionChange
from replay.fixture.body_parts import value_of
from replay.fixture.format import Ask, Fixture
from replay.matching.tool_calls import ask_of
from replay.progress.replay_state import State

STEPS_BACK = 4
"""The maximum number of requests in a trace. Our choice."""
TRACED_MIN = 4
"""How many characters two texts must share for one to have come from the other. Our choice."""
ARGUMENTS = 60
"""Characters of a call's arguments that are shown."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What is known about the origins of differences."""

    nature: Nature
    cause: Cause | None
    chain: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that differs from the one that was due."""

    lane: str
    due: Ask
    body: Any
    """What came, parsed."""
    sent: Site | None
    """Where in the agent it was sent."""


def traced(state: State, asked: Asked, found: Sequence[Difference]) -> Traced:
    """Trace the differences of a request back to their origins."""
    if not found:
        return Traced("", None, ())
    nature = nature_of(found)
    changed = version_changes(state.fixture)
    if changed and all(_is_sdks(asked, each) for each in found):
        return Traced("SDK version", _of_sdk(changed, asked), _chain(state, asked, found[0], None))
    if nature in ("", "number") and all(_is_of_tools(asked, each) for each in found):
        nature = "schema"
    cause = _of_redaction(state, asked, found) if nature == "redaction" else None
    cause = cause or _by_place(state, asked, found)
    cause = cause and _further(state, asked, found, cause)
    return Traced(nature, cause, _chain(state, asked, found[0], cause))


def version_changes(fixture: Fixture) -> tuple[VersionChange, ...]:
    """Return which packages have other versions than in the recording."""
    recorded = fixture.header.get("recorded_with")
    if not isinstance(recorded, dict):
        return ()
    found = []
    for package, old in recorded.items():
        now = _installed(str(package))
        if now is not None and _VERSION.match(str(old)) and now != old:
            found.append(VersionChange(str(package), str(old), now))
    return tuple(found)


_VERSION = re.compile(r"\d+\.\d+")
SDK = "anthropic"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except (PackageNotFoundError, ValueError):
        return None


def _is_of_tools(asked: Asked, each: Difference) -> bool:
    place = _place(asked, each)
    return place is not None and place.zone == "tools"


def _is_sdks(asked: Asked, each: Difference) -> bool:
    """Return whether a difference is typical for another version of the SDK: a header, or an added or missing field."""
    match each.keys:
        case ("(request)", str(part)):
            return part in meaningful_headers() or part == "path"
        case (str(option),):
            return (
                each.change in ("added", "removed")
                and option not in dialect_of(asked.due.path).options
            )
        case (*_, str(field)):
            inside = each.change in ("added", "removed") and each.keys[0] != "(request)"
            return inside and "properties" not in each.keys and field != "input"
        case _:
            return False


def _of_sdk(changed: Sequence[VersionChange], asked: Asked) -> Cause | None:
    sdk = next((each for each in changed if each.package == SDK), None)
    if sdk is None:
        return None
    text = (
        f"the SDK version changed: {sdk.package} {sdk.recorded} when it was recorded, {sdk.now} now"
    )
    return Cause("sdk_version", text, asked.sent, place=sdk.package)


def _of_redaction(state: State, asked: Asked, found: Sequence[Difference]) -> Cause:
    """Describe which side redacted a secret, or that it is another one."""
    old, new = (str(value).count("[redacted:") for value in (found[0].expected, found[0].actual))
    if old == new:
        text = "the secret at this place differs from the recorded one"
    elif old > new:
        rules = "no rules of your own" if not state.options.redactors else "other rules"
        text = f"a secret was redacted in the recording; this replay, which has {rules}, does not redact it"
    else:
        text = "a value is redacted now that was not redacted in the recording"
    return Cause("redaction", text, asked.sent)


def _by_place(state: State, asked: Asked, found: Sequence[Difference]) -> Cause | None:
    """Describe what the first difference is a part of."""
    first = found[0]
    match _place(asked, first):
        case BodyPlace("history", int(at), int(block)):
            return _of_block(state, asked, at, block)
        case BodyPlace("history", int(at)) if len(first.keys) == 2 and first.change in (
            "added",
            "removed",
        ):
            return _of_history(state, asked, found, at)
        case BodyPlace("history", int(at)):
            return _of_message(state, asked, first, at)
        case BodyPlace("history"):
            order = " in a different order" if first.change == "reordered" else ""
            return Cause("agent_message", f"the messages differ{order}", asked.sent)
        case BodyPlace("system"):
            return _of_prompt(state, asked, first)
        case BodyPlace("tools"):
            return _of_tools(state, asked, first)
        case _:
            return _of_option(asked, first)


def _place(asked: Asked, each: Difference) -> BodyPlace | None:
    return dialect_of(asked.due.path).place(each.keys)


def _of_tools(state: State, asked: Asked, first: Difference) -> Cause:
    match first.keys[1:]:
        case (int(at), *rest):
            return _of_schema(state, asked, first, at, rest)
        case _:
            return Cause("tool_set", "the set of tools changed", asked.sent)


def _of_option(asked: Asked, first: Difference) -> Cause | None:
    match first.keys:
        case ("(request)", str(part)):
            return Cause("header", f"the request's {part} changed", asked.sent, place=part)
        case (str(option), *_):
            text = f"the request option {option} changed"
            return Cause("option", text, asked.sent, place=option)
        case _:
            return None


def _of_block(state: State, asked: Asked, at: int, block_at: int) -> Cause:
    block, role = _block(asked.body, at, block_at), _role(asked.body, at)
    if block is None or block.kind != "result":
        kind = f"a {block.type} block of " if block is not None else ""
        text = f"{kind}message {at} was written by the agent (role {role})"
        return Cause("agent_message", text, asked.sent, message=at)
    tool_use_id = str(block.id)
    call = _call(asked.body, at, tool_use_id) or state.fixture.tool_use(tool_use_id)
    name = call.name if call else None
    shown = f"{name}({_arguments(call.value)})" if call else tool_use_id
    live = (asked.lane, tool_use_id) in state.calls.live
    return Cause(
        "tool_result",
        f"tool_result of {shown}: {_went(state, asked.lane, tool_use_id, str(name))}",
        _function(state, name) if live else asked.sent,
        tool=name,
        tool_use_id=tool_use_id,
        input=call.value if call else None,
        message=at,
    )


def _went(state: State, lane: str, tool_use_id: str, name: str) -> str:
    """Describe how a call differed from the recording; for an injected failure, name the fault."""
    recorded = state.calls.of(lane, tool_use_id)
    turns = (None, state.calls.turn_of(recorded) if recorded is not None else None)
    happened = [fault for fault in state.faults.tools if fault not in state.faults.untouched]
    made = [f.text() for f in happened if f.tool == name and f.turn in turns]
    return state.calls.went(lane, tool_use_id, name, next(iter(made), ""))


def _of_history(state: State, asked: Asked, found: Sequence[Difference], at: int) -> Cause:
    """Describe how many consecutive messages were added or are missing, and where."""
    change, last, first_key = found[0].change, at, found[0].keys[0]
    for each in found[1:]:
        if each.change != change or each.keys != (first_key, last + 1):
            break
        last += 1
    is_gone, many = change == "removed", last - at + 1
    body = value_of(state.fixture.body(asked.due.number)) if is_gone else asked.body
    ends = last + 1 == len(history(body))
    where = (
        "at the beginning of the history"
        if at == 0
        else "at the end of the history"
        if ends
        else f"of the history, from message {at} on,"
    )
    verb = f"{'was' if many == 1 else 'were'} {'left out' if is_gone else 'added'}"
    role = f" (role {_role(body, at)})" if many == 1 else ""
    text = f"{many} message{'s' * (many != 1)}{role} {where} {verb}"
    return Cause("agent_message", text, asked.sent, message=at)


def _of_message(state: State, asked: Asked, first: Difference, at: int) -> Cause:
    """Describe who wrote a message: the agent, with the argument in which it is contained, if any."""
    role = _role(asked.body, at)
    arguments = state.fixture.header.get("arguments")
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        if not isinstance(value, str) or len(value) < TRACED_MIN:
            continue
        if value in _string(first.expected) and value not in _string(first.actual):
            text = f"message {at} held the argument {name} of the agent, which has changed"
            return Cause("arguments", text, asked.sent, place=name, message=at)
    text = f"message {at} was written by the agent (role {role})"
    return Cause("agent_message", text, asked.sent, message=at)


def _of_prompt(state: State, asked: Asked, first: Difference) -> Cause:
    """Describe which section of the system prompt differs: by its name, otherwise by line and heading."""
    old, new = _string(first.expected), _string(first.actual)
    at = common(old, new)
    text = new if first.change != "removed" else old
    sections = state.sections.get(asked.lane, ())
    if name := _section(sections, text, at):
        told = f"the section {name} of the system prompt differs"
        return Cause("prompt_section", told, asked.sent, place=name)
    if first.change in ("added", "removed"):
        told = f"the system prompt was {first.change}"
        return Cause("system_prompt", told, asked.sent)
    line = text.count("\n", 0, at) + 1
    many = "\n" in text
    heading = _heading(text[:at]) if many else None
    where = f", in line {line}" if many else ""
    under = f' under "{heading}"' if heading else ""
    told = f"the system prompt was built differently{where}{under}"
    return Cause("system_prompt", told, asked.sent, place=heading, line=line if many else None)


def _section(sections: Sequence[tuple[str, str]], text: str, at: int) -> str | None:
    """Return the name of the section at a position of a prompt, or of the section before a removed part."""
    begin, before = 0, None
    for name, said in sections:
        found = text.find(said, begin)
        if found < 0:
            continue
        if at < found:
            break
        if at <= found + len(said):
            return name
        begin, before = found + len(said), name
    return before


_HEADING = re.compile(r"#{1,6} .+|<[A-Za-z][\w -]*>|[^\n]{1,60}:")


def _heading(text: str) -> str | None:
    """Return the last heading in a text, except its last line."""
    for line in reversed(text.split("\n")[-400:-1]):
        if _HEADING.fullmatch(line.strip()):
            return line.strip()[:60]
    return None


def _of_schema(state: State, asked: Asked, first: Difference, at: int, rest: list[Any]) -> Cause:
    values = (first.actual, first.expected)
    named = next((v["name"] for v in values if isinstance(v, dict) and "name" in v), None)
    name = str(named or next(iter(_tool_names(asked)[at:]), at))
    place = next((str(b) for a, b in itertools.pairwise(rest) if a == "properties"), None)
    if not rest and first.change in ("added", "removed"):
        text = f"the tool {name} was {first.change}"
    elif place:
        text = f"the declaration of tool {name} changed, in its property {place}"
    else:
        text = f"the declaration of tool {name} changed"
    site = _function(state, name) or asked.sent
    return Cause("tool_schema", text, site, tool=name, place=place)


def _further(state: State, asked: Asked, found: Sequence[Difference], cause: Cause) -> Cause:
    """Trace a text of the agent further: to a tool with another result, or to the machine."""
    first = found[0]
    if cause.kind not in (
        "agent_message",
        "system_prompt",
        "prompt_section",
        "option",
        "arguments",
    ):
        return _holding(first, cause)
    new = _new_words(_string(first.expected), _string(first.actual))
    for call, content in _otherwise(state, asked, found):
        if any(word in content for word in new):
            shown = f"{call.name}({_arguments(call.input)})"
            went = _went(state, asked.lane, call.tool_use_id, call.name)
            where = cause.text
            if cause.kind == "arguments":
                where = f"message {cause.message} was written by the agent"
            text = f"{where}, with words of the tool_result of {shown}: {went}"
            return replace(
                cause,
                kind="tool_result",
                text=text,
                site=_function(state, call.name) or cause.site,
                tool=call.name,
                tool_use_id=call.tool_use_id,
                input=call.input,
            )
    return _holding(first, cause)


def _otherwise(
    state: State, asked: Asked, found: Sequence[Difference]
) -> Iterator[tuple[ToolQuestion, str]]:
    """Yield calls that were answered differently, with their answers: live ones, and those in this request."""
    for tool, now in state.calls.differed():
        yield tool.question, state.renaming.clean_text(text_of(now.content))
    for each in found:
        match _place(asked, each):
            case BodyPlace("history", int(at), int(block)):
                result = _block(asked.body, at, block)
                if result is not None and result.kind == "result":
                    call = _call(asked.body, at, str(result.id))
                    name = str(call and call.name)
                    yield ToolQuestion(str(result.id), name, call and call.value), result.text
            case _:
                pass


def _new_words(old: str, new: str) -> list[str]:
    """Return the new part of a text: from the first to the last difference, and its longer words."""
    start = common(old, new)
    end = common(old[start:][::-1], new[start:][::-1])
    part = new[start : len(new) - end]
    while start and not new[start - 1].isspace():
        start, part = start - 1, new[start - 1] + part
    tail = re.match(r"\S*", new[len(new) - end :])
    part = (part + (tail[0] if tail and end else "")).strip("\"'.,;:()[]")
    words = [part, *sorted(set(re.findall(r"[\w.,:/-]+", part[:20_000])), key=len, reverse=True)]
    return [word for word in words[:20] if len(word) >= TRACED_MIN and word not in old]


def _holding(first: Difference, cause: Cause) -> Cause:
    """Return a cause if the new value contains a fact about the machine, the process or the moment, and the old one
    does not.
    """
    old, new = _string(first.expected), _string(first.actual)
    for name, value in _of_this_run():
        if value in new and value not in old and _stands_alone(value, new):
            return replace(cause, contains=name)
    return cause


def _of_this_run() -> Iterator[tuple[str, str]]:
    """Yield facts about this machine, process or moment, by a name that does not reveal them."""
    today = datetime.fromtimestamp(world.now() / 1e9, UTC).date()
    environment = world.environment()
    home = environment.get("HOME") or environment.get("USERPROFILE") or ""
    user = (
        environment.get("USER") or environment.get("LOGNAME") or environment.get("USERNAME") or ""
    )
    named = [
        ("the current directory", str(Path.cwd())),
        ("the home directory", home),
        ("the name of this machine", platform.node()),
        ("the name of the user", user),
        ("the id of this process", str(world.process_id())),
        ("today's date", today.isoformat()),
        ("today's date", today.strftime("%d.%m.%Y")),
        ("today's date", today.strftime("%B %d, %Y")),
    ]
    yield from ((name, value) for name, value in named if len(value) >= 3)
    for name, value in sorted(environment.items()):
        if len(value) >= 6:
            yield f"the environment variable {name}", value


def _stands_alone(value: str, text: str) -> bool:
    """Return whether a text contains a value as a separate word, not as a part of a longer one."""
    return re.search(rf"(?<![\w]){re.escape(value)}(?![\w])", text) is not None


def _chain(state: State, asked: Asked, first: Difference, cause: Cause | None) -> tuple[Link, ...]:
    """Return the trace: request, difference, the call that produced it, the response that made the call, and so on."""
    number = state.lane(asked.lane).place_of(asked.due)
    place = f"request {number} of {asked.lane}: {first.path} {_VERBS[first.change]}"
    links = [Link(place, asked.sent, asked.due.number)]
    if cause is None:
        return tuple(links)
    if cause.tool_use_id is None:
        links.append(Link(cause.text, cause.site))
        return tuple(links)
    tool = next(
        (t for t in state.fixture.tools if t.question.tool_use_id == cause.tool_use_id), None
    )
    made = ask_of(state.fixture, tool) if tool else _issuer(state.fixture, asked, cause.tool_use_id)
    if cause.kind == "tool_result":
        links.append(Link(cause.text, cause.site, asked.due.number))
    under = lane_under(asked.lane, cause.tool_use_id)
    if under in state.lanes:
        links.append(Link(f"the agent that this call started ran in the lane {under}"))
    for _ in range(STEPS_BACK):
        if made is None:
            break
        links.append(_issued(state, made))
        made = _before(state, made)
    return tuple(links)


_VERBS = {
    "changed": "differs",
    "added": "was added",
    "removed": "is gone",
    "reordered": "comes in a different order",
}


def _issued(state: State, ask: Ask) -> Link:
    calls = calls_of(ask.path, ask.answer)
    named = [f"{call.name}({_arguments(call.value)})" for call in calls]
    number = state.lane(ask.lane).place_of(ask)
    says = f", which called {' and '.join(named)}" if named else ""
    return Link(f"the answer of request {number} of {ask.lane}{says}", None, ask.number)


def _before(state: State, ask: Ask) -> Ask | None:
    """Return the request whose response contains the calls that this one answers: the previous one of its lane with
    calls.
    """
    lane = state.lane(ask.lane).asks
    earlier = [each for each in lane if each.number < ask.number]
    made = (each for each in reversed(earlier) if each.answer.status == 200)
    return next((e for e in made if calls_of(e.path, e.answer)), None)


def _issuer(fixture: Fixture, asked: Asked, tool_use_id: str) -> Ask | None:
    for ask in reversed(fixture.asks[: asked.due.number]):
        calls = calls_of(ask.path, ask.answer)
        if ask.lane == asked.lane and any(call.id == tool_use_id for call in calls):
            return ask
    return None


def _function(state: State, name: str | None) -> Site | None:
    """Return where the function of a tool is defined, if the agent loop runs it."""
    for known in state.functions if name else ():
        function = known(name or "")
        if function is not None:
            return site_of(function)
    return None


def _call(body: Any, before: int, tool_use_id: str) -> Block | None:
    dialect = dialect_of_body(body)
    for entry in reversed(history(body)[:before]):
        for block in dialect.turn(entry).blocks:
            if block.id == tool_use_id and block.kind != "result":
                return block
    return None


def _turn(body: Any, at: int) -> Turn | None:
    entries = history(body)
    return dialect_of_body(body).turn(entries[at]) if at < len(entries) else None


def _block(body: Any, at: int, block_at: int) -> Block | None:
    turn = _turn(body, at)
    return turn.blocks[block_at] if turn is not None and block_at < len(turn.blocks) else None


def _role(body: Any, at: int) -> str | None:
    turn = _turn(body, at)
    return turn.role if turn is not None else None


def _tool_names(asked: Asked) -> list[str]:
    return dialect_of(asked.due.path).tool_names(asked.body or {})


def _arguments(value: Any) -> str:
    if not isinstance(value, dict):
        return "..."
    parts = (f"{key}={json.dumps(inner, ensure_ascii=False)}" for key, inner in value.items())
    text = ", ".join(parts)
    return text if len(text) <= ARGUMENTS else text[: ARGUMENTS - 1] + "…"


def _string(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def get(value: Any, *keys: str | int) -> Any:
    """Return the value at a path in a JSON value, or None."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def plain(kind: CauseKind, text: str, site: Site | None = None) -> Cause | None:
    """Return a cause for a sentence; None for an empty one."""
    return Cause(kind, text, site) if text else None
