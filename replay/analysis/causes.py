"""Causes of a difference: a tool call, a part of the prompt, a line of the agent's code, or the machine.

A cause that is only probable is worded as such. If nothing can be found, there is no cause.
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
from agentobs.records.differences import Difference, common_prefix
from agentobs.records.exchanges import ToolQuestion, child_lane
from replay.agent_code.call_sites import Site, site_of
from replay.comparison.difference_kinds import Nature, common_nature
from replay.divergence.divergence_facts import Cause, CauseKind, Link, VersionChange
from replay.fixture.body_parts import value_of
from replay.fixture.format import Fixture, RecordedRequest
from replay.matching.tool_calls import issuing_request
from replay.progress.replay_state import ReplayState

STEPS_BACK = 4
"""The maximum number of earlier responses in a trace. Our choice."""
TRACED_MIN = 4
"""The minimum number of characters that two texts must have in common before one is traced to the other. Our choice."""
ARGUMENTS_SHOWN = 60
"""The maximum number of characters of a call's arguments that are shown."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The origins of the differences of a request."""

    nature: Nature
    cause: Cause | None
    chain: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class DifferingRequest:
    """A live request that differs from the recorded request that was due."""

    lane: str
    due: RecordedRequest
    body: Any
    """The parsed body of the live request."""
    sent: Site | None
    """The place in the agent's code that sent the request; None if unknown."""


def trace(state: ReplayState, request: DifferingRequest, found: Sequence[Difference]) -> Trace:
    """Trace the differences of a request back to their origins."""
    if not found:
        return Trace("", None, ())
    nature = common_nature(found)
    changed = version_changes(state.setup.fixture)
    if changed and all(_is_sdk_change(request, each) for each in found):
        return Trace(
            "SDK version", _sdk_cause(changed, request), _chain(state, request, found[0], None)
        )
    if nature in ("", "number") and all(_is_in_tools(request, each) for each in found):
        nature = "schema"
    cause = _redaction_cause(state, request, found) if nature == "redaction" else None
    cause = cause or _cause_by_place(state, request, found)
    cause = cause and _traced_to_origin(state, request, found, cause)
    return Trace(nature, cause, _chain(state, request, found[0], cause))


def version_changes(fixture: Fixture) -> tuple[VersionChange, ...]:
    """Return the packages whose version has changed since the recording."""
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


def _is_in_tools(request: DifferingRequest, each: Difference) -> bool:
    place = _place(request, each)
    return place is not None and place.zone == "tools"


def _is_sdk_change(request: DifferingRequest, each: Difference) -> bool:
    """Return whether a difference is typical of a new SDK version: in a header, or an added or removed field."""
    match each.keys:
        case ("(request)", str(part)):
            return part in meaningful_headers() or part == "path"
        case (str(option),):
            return (
                each.change in ("added", "removed")
                and option not in dialect_of(request.due.path).options
            )
        case (*_, str(field)):
            is_field = each.change in ("added", "removed") and each.keys[0] != "(request)"
            return is_field and "properties" not in each.keys and field != "input"
        case _:
            return False


def _sdk_cause(changed: Sequence[VersionChange], request: DifferingRequest) -> Cause | None:
    sdk = next((each for each in changed if each.package == SDK), None)
    if sdk is None:
        return None
    text = f"the SDK version changed: {sdk.package} {sdk.recorded} (recorded), {sdk.now} (now)"
    return Cause("sdk_version", text, request.sent, place=sdk.package)


def _redaction_cause(
    state: ReplayState, request: DifferingRequest, found: Sequence[Difference]
) -> Cause:
    """Describe which side redacted a secret, or that the secrets differ."""
    old, new = (str(value).count("[redacted:") for value in (found[0].expected, found[0].actual))
    if old == new:
        text = "the secret at this place differs from the recorded secret"
    elif old > new:
        rules = "different redactors" if state.setup.options.redactors else "no custom redactors"
        text = f"a secret that was redacted in the recording is not redacted in this replay, which has {rules}"
    else:
        text = "a secret that is redacted in this replay was not redacted in the recording"
    return Cause("redaction", text, request.sent)


def _cause_by_place(
    state: ReplayState, request: DifferingRequest, found: Sequence[Difference]
) -> Cause | None:
    """Return a cause that names the part of the request that contains the first difference."""
    first = found[0]
    match _place(request, first):
        case BodyPlace("history", int(at), int(block)):
            return _block_cause(state, request, at, block)
        case BodyPlace("history", int(at)) if len(first.keys) == 2 and first.change in (
            "added",
            "removed",
        ):
            return _history_cause(state, request, found, at)
        case BodyPlace("history", int(at)):
            return _message_cause(state, request, first, at)
        case BodyPlace("history"):
            is_order = first.change == "reordered"
            text = "the messages are in a different order" if is_order else "the messages differ"
            return Cause("agent_message", text, request.sent)
        case BodyPlace("system"):
            return _prompt_cause(state, request, first)
        case BodyPlace("tools"):
            return _tools_cause(state, request, first)
        case _:
            return _option_cause(request, first)


def _place(request: DifferingRequest, each: Difference) -> BodyPlace | None:
    return dialect_of(request.due.path).place(each.keys)


def _tools_cause(state: ReplayState, request: DifferingRequest, first: Difference) -> Cause:
    match first.keys[1:]:
        case (int(at), *rest):
            return _schema_cause(state, request, first, at, rest)
        case _:
            return Cause("tool_set", "the set of tools changed", request.sent)


def _option_cause(request: DifferingRequest, first: Difference) -> Cause | None:
    match first.keys:
        case ("(request)", str(part)):
            return Cause("header", f"the request's {part} changed", request.sent, place=part)
        case (str(option), *_):
            text = f"the request option {option} changed"
            return Cause("option", text, request.sent, place=option)
        case _:
            return None


def _block_cause(state: ReplayState, request: DifferingRequest, at: int, block_at: int) -> Cause:
    block, role = _block(request.body, at, block_at), _role(request.body, at)
    if block is None or block.kind != "result":
        text = f"message {at} (role {role}) was written by the agent"
        if block is not None:
            text = f"message {at} (role {role}) contains a {block.type} block that the agent wrote"
        return Cause("agent_message", text, request.sent, message=at)
    tool_use_id = str(block.id)
    call = _call(request.body, at, tool_use_id) or state.setup.fixture.tool_use(tool_use_id)
    name = call.name if call else None
    shown = f"{name}({_arguments(call.value)})" if call else tool_use_id
    live = (request.lane, tool_use_id) in state.exchanges.calls.live
    return Cause(
        "tool_result",
        f"tool_result of {shown}: {_describe_result(state, request.lane, tool_use_id, str(name))}",
        _function(state, name) if live else request.sent,
        tool=name,
        tool_use_id=tool_use_id,
        input=call.value if call else None,
        message=at,
    )


def _describe_result(state: ReplayState, lane: str, tool_use_id: str, name: str) -> str:
    """Describe how the result of a call differed from the recording; name the fault if it was injected."""
    recorded = state.exchanges.calls.find(lane, tool_use_id)
    turns = (None, state.exchanges.calls.turn_of(recorded) if recorded is not None else None)
    injected = [
        fault
        for fault in state.exchanges.faults.tools
        if fault not in state.exchanges.faults.untouched
    ]
    texts = [f.text() for f in injected if f.tool == name and f.turn in turns]
    return state.exchanges.calls.describe_result(lane, tool_use_id, name, next(iter(texts), ""))


def _history_cause(
    state: ReplayState, request: DifferingRequest, found: Sequence[Difference], at: int
) -> Cause:
    """Describe how many consecutive messages were added or removed, and where."""
    change, last, first_key = found[0].change, at, found[0].keys[0]
    for each in found[1:]:
        if each.change != change or each.keys != (first_key, last + 1):
            break
        last += 1
    is_removed, many = change == "removed", last - at + 1
    body = value_of(state.setup.fixture.body(request.due.number)) if is_removed else request.body
    is_end = last + 1 == len(history(body))
    where = (
        "the start of the history"
        if at == 0
        else "the end of the history"
        if is_end
        else f"message {at} of the history"
    )
    verb = f"{'was' if many == 1 else 'were'} {'removed' if is_removed else 'added'}"
    role = f" (role {_role(body, at)})" if many == 1 else ""
    text = f"{many} message{'s' * (many != 1)}{role} {verb} at {where}"
    return Cause("agent_message", text, request.sent, message=at)


def _message_cause(
    state: ReplayState, request: DifferingRequest, first: Difference, at: int
) -> Cause:
    """Describe a message that the agent wrote; if it contained an argument of the agent, name the argument."""
    role = _role(request.body, at)
    arguments = state.setup.fixture.header.get("arguments")
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        if not isinstance(value, str) or len(value) < TRACED_MIN:
            continue
        if value in _string(first.expected) and value not in _string(first.actual):
            text = f"message {at} contained the agent's argument `{name}`, which has changed"
            return Cause("arguments", text, request.sent, place=name, message=at)
    text = f"message {at} (role {role}) was written by the agent"
    return Cause("agent_message", text, request.sent, message=at)


def _prompt_cause(state: ReplayState, request: DifferingRequest, first: Difference) -> Cause:
    """Describe the section of the system prompt that differs: by its name if it has one, or by its line and heading."""
    old, new = _string(first.expected), _string(first.actual)
    at = common_prefix(old, new)
    text = new if first.change != "removed" else old
    sections = state.observations.sections.get(request.lane, ())
    if name := _section(sections, text, at):
        description = f"the section {name} of the system prompt differs"
        return Cause("prompt_section", description, request.sent, place=name)
    if first.change in ("added", "removed"):
        description = f"the system prompt was {first.change}"
        return Cause("system_prompt", description, request.sent)
    line = text.count("\n", 0, at) + 1
    has_lines = "\n" in text
    heading = _heading(text[:at]) if has_lines else None
    where = f" in line {line}" if has_lines else ""
    under = f', under "{heading}"' if heading else ""
    description = f"the system prompt differs{where}{under}"
    line_or_none = line if has_lines else None
    return Cause("system_prompt", description, request.sent, place=heading, line=line_or_none)


def _section(sections: Sequence[tuple[str, str]], text: str, at: int) -> str | None:
    """Return the name of the section at a position of a prompt, or of the section before a removed part."""
    start, previous = 0, None
    for name, section in sections:
        found = text.find(section, start)
        if found < 0:
            continue
        if at < found:
            break
        if at <= found + len(section):
            return name
        start, previous = found + len(section), name
    return previous


_HEADING = re.compile(r"#{1,6} .+|<[A-Za-z][\w -]*>|[^\n]{1,60}:")


def _heading(text: str) -> str | None:
    """Return the last heading above the last line of a text; None if there is none."""
    for line in reversed(text.split("\n")[-400:-1]):
        if _HEADING.fullmatch(line.strip()):
            return line.strip()[:60]
    return None


def _schema_cause(
    state: ReplayState, request: DifferingRequest, first: Difference, at: int, rest: list[Any]
) -> Cause:
    values = (first.actual, first.expected)
    named = next((v["name"] for v in values if isinstance(v, dict) and "name" in v), None)
    name = str(named or next(iter(_tool_names(request)[at:]), at))
    place = next((str(b) for a, b in itertools.pairwise(rest) if a == "properties"), None)
    if not rest and first.change in ("added", "removed"):
        text = f"the tool {name} was {first.change}"
    elif place:
        text = f"the declaration of tool {name} changed in the property {place}"
    else:
        text = f"the declaration of tool {name} changed"
    site = _function(state, name) or request.sent
    return Cause("tool_schema", text, site, tool=name, place=place)


def _traced_to_origin(
    state: ReplayState, request: DifferingRequest, found: Sequence[Difference], cause: Cause
) -> Cause:
    """Trace a text that the agent wrote to a tool whose result has changed, or to a fact about this run."""
    first = found[0]
    if cause.kind not in (
        "agent_message",
        "system_prompt",
        "prompt_section",
        "option",
        "arguments",
    ):
        return _with_contained_fact(first, cause)
    new = _new_words(_string(first.expected), _string(first.actual))
    for call, content in _changed_results(state, request, found):
        if any(word in content for word in new):
            shown = f"{call.name}({_arguments(call.input)})"
            description = _describe_result(state, request.lane, call.tool_use_id, call.name)
            where = cause.text
            if cause.kind == "arguments":
                where = f"message {cause.message} was written by the agent"
            text = f"{where}, and contains text from the result of {shown}: {description}"
            return replace(
                cause,
                kind="tool_result",
                text=text,
                site=_function(state, call.name) or cause.site,
                tool=call.name,
                tool_use_id=call.tool_use_id,
                input=call.input,
            )
    return _with_contained_fact(first, cause)


def _changed_results(
    state: ReplayState, request: DifferingRequest, found: Sequence[Difference]
) -> Iterator[tuple[ToolQuestion, str]]:
    """Yield the calls whose results have changed, with the new results: live calls, and calls in this request."""
    for tool, now in state.exchanges.calls.changed_results():
        yield tool.question, state.setup.renaming.clean_text(text_of(now.content))
    for each in found:
        match _place(request, each):
            case BodyPlace("history", int(at), int(block)):
                result = _block(request.body, at, block)
                if result is not None and result.kind == "result":
                    call = _call(request.body, at, str(result.id))
                    name = str(call and call.name)
                    yield ToolQuestion(str(result.id), name, call and call.value), result.text
            case _:
                pass


def _new_words(old: str, new: str) -> list[str]:
    """Return the new part of a text, from the first to the last difference, and the longest words in it."""
    start = common_prefix(old, new)
    end = common_prefix(old[start:][::-1], new[start:][::-1])
    part = new[start : len(new) - end]
    while start and not new[start - 1].isspace():
        start, part = start - 1, new[start - 1] + part
    tail = re.match(r"\S*", new[len(new) - end :])
    part = (part + (tail[0] if tail and end else "")).strip("\"'.,;:()[]")
    words = [part, *sorted(set(re.findall(r"[\w.,:/-]+", part[:20_000])), key=len, reverse=True)]
    return [word for word in words[:20] if len(word) >= TRACED_MIN and word not in old]


def _with_contained_fact(first: Difference, cause: Cause) -> Cause:
    """Add to a cause the fact about this run that only the new value contains, if there is one."""
    old, new = _string(first.expected), _string(first.actual)
    for name, value in _facts_of_this_run():
        if value in new and value not in old and _contains_word(value, new):
            return replace(cause, contains=name)
    return cause


def _facts_of_this_run() -> Iterator[tuple[str, str]]:
    """Yield facts about this machine, this process and today: a name that does not reveal the fact, and its value."""
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
        ("the user name", user),
        ("the ID of this process", str(world.process_id())),
        ("today's date", today.isoformat()),
        ("today's date", today.strftime("%d.%m.%Y")),
        ("today's date", today.strftime("%B %d, %Y")),
    ]
    yield from ((name, value) for name, value in named if len(value) >= 3)
    for name, value in sorted(environment.items()):
        if len(value) >= 6:
            yield f"the environment variable {name}", value


def _contains_word(value: str, text: str) -> bool:
    """Return whether a text contains a value as a separate word, not as a part of a longer word."""
    return re.search(rf"(?<![\w]){re.escape(value)}(?![\w])", text) is not None


def _chain(
    state: ReplayState, request: DifferingRequest, first: Difference, cause: Cause | None
) -> tuple[Link, ...]:
    """Return the causal chain: the difference, the call that produced it, the response with the call, and so on."""
    number = state.exchanges.lane(request.lane).position_of(request.due)
    place = f"request {number} of {request.lane}: {first.path} {_VERBS[first.change]}"
    links = [Link(place, request.sent, request.due.number)]
    if cause is None:
        return tuple(links)
    if cause.tool_use_id is None:
        links.append(Link(cause.text, cause.site))
        return tuple(links)
    tool = next(
        (t for t in state.setup.fixture.tools if t.question.tool_use_id == cause.tool_use_id), None
    )
    issuer = (
        issuing_request(state.setup.fixture, tool)
        if tool
        else _request_with_call(state.setup.fixture, request, cause.tool_use_id)
    )
    if cause.kind == "tool_result":
        links.append(Link(cause.text, cause.site, request.due.number))
    started_lane = child_lane(request.lane, cause.tool_use_id)
    if started_lane in state.exchanges.lanes:
        links.append(Link(f"this call started a sub-agent in the lane {started_lane}"))
    for _ in range(STEPS_BACK):
        if issuer is None:
            break
        links.append(_response_link(state, issuer))
        issuer = _previous_with_calls(state, issuer)
    return tuple(links)


_VERBS = {
    "changed": "differs",
    "added": "was added",
    "removed": "was removed",
    "reordered": "is in a different order",
}


def _response_link(state: ReplayState, request: RecordedRequest) -> Link:
    calls = calls_of(request.path, request.answer)
    named = [f"{call.name}({_arguments(call.value)})" for call in calls]
    number = state.exchanges.lane(request.lane).position_of(request)
    called = f", which called {' and '.join(named)}" if named else ""
    return Link(f"the response to request {number} of {request.lane}{called}", None, request.number)


def _previous_with_calls(state: ReplayState, request: RecordedRequest) -> RecordedRequest | None:
    """Return the previous request of a lane whose response contains calls; None if there is none."""
    lane = state.exchanges.lane(request.lane).requests
    earlier = [each for each in lane if each.number < request.number]
    answered = (each for each in reversed(earlier) if each.answer.status == 200)
    return next((each for each in answered if calls_of(each.path, each.answer)), None)


def _request_with_call(
    fixture: Fixture, request: DifferingRequest, tool_use_id: str
) -> RecordedRequest | None:
    for each in reversed(fixture.requests[: request.due.number]):
        calls = calls_of(each.path, each.answer)
        if each.lane == request.lane and any(call.id == tool_use_id for call in calls):
            return each
    return None


def _function(state: ReplayState, name: str | None) -> Site | None:
    """Return where the function of a tool is defined; None if the agent loop does not run the tool."""
    for known in state.observations.function_finders if name else ():
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


def _tool_names(request: DifferingRequest) -> list[str]:
    return dialect_of(request.due.path).tool_names(request.body or {})


def _arguments(value: Any) -> str:
    if not isinstance(value, dict):
        return "..."
    parts = (f"{key}={json.dumps(inner, ensure_ascii=False)}" for key, inner in value.items())
    text = ", ".join(parts)
    return text if len(text) <= ARGUMENTS_SHOWN else text[: ARGUMENTS_SHOWN - 1] + "…"


def _string(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def cause_of(kind: CauseKind, text: str, site: Site | None = None) -> Cause | None:
    """Return a cause with a text; None if the text is empty."""
    return Cause(kind, text, site) if text else None
