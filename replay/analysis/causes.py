"""What a difference stems from: followed back to a tool call, a part of the prompt, a line of the agent or the machine.

Nothing is guessed in silence: what is only probable is worded so, and where nothing leads back nothing is said.
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
from agentobs.provider.messages import assemble, text_of, tool_uses
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
"""How many requests a way back goes through. Our choice."""
TRACED_MIN = 4
"""How many characters must be the same for one text to have come from another. Our choice."""
ARGUMENTS = 60
"""Characters of a call's arguments that are shown."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What is known about where differences come from."""

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
    """Where in the agent it was asked."""


def traced(state: State, asked: Asked, found: Sequence[Difference]) -> Traced:
    """Follow the differences of a request back to what put them there."""
    if not found:
        return Traced("", None, ())
    nature = nature_of(found)
    changed = version_changes(state.fixture)
    if changed and all(map(_is_sdks, found)):
        return Traced("SDK version", _of_sdk(changed, asked), _chain(state, asked, found[0], None))
    if nature in ("", "number") and all(each.keys[:1] == ("tools",) for each in found):
        nature = "schema"
    cause = _of_redaction(state, asked, found) if nature == "redaction" else None
    cause = cause or _by_place(state, asked, found)
    cause = cause and _further(state, asked, found, cause)
    return Traced(nature, cause, _chain(state, asked, found[0], cause))


def version_changes(fixture: Fixture) -> tuple[VersionChange, ...]:
    """Return which packages are of another version than when a fixture was recorded."""
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
_AGENTS = {
    "max_tokens", "messages", "metadata", "model", "stop_sequences", "stream", "system", "temperature",
    "thinking", "tool_choice", "tools", "top_k", "top_p",
}  # fmt: skip
"""Options of a request that an agent says itself, whatever the SDK (docs.anthropic.com, Messages API, 2026-11)."""
SDK = "anthropic"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except (PackageNotFoundError, ValueError):
        return None


def _is_sdks(each: Difference) -> bool:
    """Return whether a difference is one that another version of the SDK makes: a header, or a field more or less."""
    match each.keys:
        case ("(request)", str(part)):
            return part.startswith("anthropic-") or part == "path"
        case (str(option),):
            return each.change in ("added", "removed") and option not in _AGENTS
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
    """Say which side took a secret out, or that it is another one."""
    old, new = (str(value).count("[redacted:") for value in (found[0].expected, found[0].actual))
    if old == new:
        text = "another secret stands here than the one that stood here when it was recorded"
    elif old > new:
        rules = "no rules of your own" if not state.options.redactors else "other rules"
        text = f"a secret was taken out when it was recorded; for this replay, which has {rules}, it is none"
    else:
        text = "what counts as a secret now did not when it was recorded"
    return Cause("redaction", text, asked.sent)


def _by_place(state: State, asked: Asked, found: Sequence[Difference]) -> Cause | None:
    """Say what the first difference is a part of."""
    first = found[0]
    match first.keys:
        case ("messages", int(at), "content", int(block), *_):
            return _of_block(state, asked, at, block)
        case ("messages", int(at)) if first.change in ("added", "removed"):
            return _of_history(state, asked, found, at)
        case ("messages", int(at), *_):
            return _of_message(state, asked, first, at)
        case ("messages",):
            order = " in another order" if first.change == "reordered" else ""
            return Cause("agent_message", f"the messages are others{order}", asked.sent)
        case ("system", *_):
            return _of_prompt(state, asked, first)
        case ("tools", int(at), *rest):
            return _of_schema(state, asked, first, at, rest)
        case ("tools", *_):
            return Cause("tool_set", "the set of tools changed", asked.sent)
        case ("(request)", str(part)):
            return Cause("header", f"the request's {part} changed", asked.sent, place=part)
        case (str(option), *_):
            text = f"the request option {option} changed"
            return Cause("option", text, asked.sent, place=option)
        case _:
            return None


def _of_block(state: State, asked: Asked, at: int, block_at: int) -> Cause:
    block = get(asked.body, "messages", at, "content", block_at)
    role = get(asked.body, "messages", at, "role")
    if not isinstance(block, dict) or block.get("type") != "tool_result":
        kind = f"a {block.get('type', 'text')} block of " if isinstance(block, dict) else ""
        text = f"{kind}message {at} was written by the agent (role {role})"
        return Cause("agent_message", text, asked.sent, message=at)
    tool_use_id = str(block.get("tool_use_id"))
    call = _call(asked.body, at, tool_use_id) or state.fixture.tool_use(tool_use_id)
    name = str(call.get("name")) if call else None
    shown = f"{name}({_arguments(call.get('input'))})" if call else tool_use_id
    live = (asked.lane, tool_use_id) in state.calls.live
    return Cause(
        "tool_result",
        f"tool_result of {shown}: {_went(state, asked.lane, tool_use_id, str(name))}",
        _function(state, name) if live else asked.sent,
        tool=name,
        tool_use_id=tool_use_id,
        input=call.get("input") if call else None,
        message=at,
    )


def _went(state: State, lane: str, tool_use_id: str, name: str) -> str:
    """Return how a call went otherwise than recorded; of one that was made to fail, by which fault."""
    recorded = state.calls.of(lane, tool_use_id)
    turns = (None, state.calls.turn_of(recorded) if recorded is not None else None)
    happened = [fault for fault in state.faults.tools if fault not in state.faults.untouched]
    made = [f.text() for f in happened if f.tool == name and f.turn in turns]
    return state.calls.went(lane, tool_use_id, name, next(iter(made), ""))


def _of_history(state: State, asked: Asked, found: Sequence[Difference], at: int) -> Cause:
    """Say how many messages in a row there are more or fewer than recorded, and where."""
    change, last = found[0].change, at
    for each in found[1:]:
        if each.change != change or each.keys != ("messages", last + 1):
            break
        last += 1
    is_gone, many = change == "removed", last - at + 1
    body = value_of(state.fixture.body(asked.due.number)) if is_gone else asked.body
    ends = last + 1 == len(get(body, "messages") or ())
    where = (
        "at the beginning of the history"
        if at == 0
        else "at the end of the history"
        if ends
        else f"of the history, from message {at} on,"
    )
    verb = f"{'was' if many == 1 else 'were'} {'left out' if is_gone else 'added'}"
    role = f" (role {get(body, 'messages', at, 'role')})" if many == 1 else ""
    text = f"{many} message{'s' * (many != 1)}{role} {where} {verb}"
    return Cause("agent_message", text, asked.sent, message=at)


def _of_message(state: State, asked: Asked, first: Difference, at: int) -> Cause:
    """Say who wrote a message: the agent, with an argument that it was started with where that is what it holds."""
    role = get(asked.body, "messages", at, "role")
    arguments = state.fixture.header.get("arguments")
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        if not isinstance(value, str) or len(value) < TRACED_MIN:
            continue
        if value in _string(first.expected) and value not in _string(first.actual):
            text = f"message {at} held the argument {name} of the agent, which is another now"
            return Cause("arguments", text, asked.sent, place=name, message=at)
    text = f"message {at} was written by the agent (role {role})"
    return Cause("agent_message", text, asked.sent, message=at)


def _of_prompt(state: State, asked: Asked, first: Difference) -> Cause:
    """Say which section of the system prompt differs: by its name, else by its line and the heading above it."""
    old, new = _string(first.expected), _string(first.actual)
    at = common(old, new)
    text = new if first.change != "removed" else old
    sections = state.sections.get(asked.lane, ())
    if name := _section(sections, text, at):
        told = f"the section {name} of the system prompt says something else"
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
    """Return the name of the section that a place of a prompt lies in, or after which something is gone."""
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
    """Return the last line of a text that heads what follows it; not the line that the text ends in."""
    for line in reversed(text.split("\n")[-400:-1]):
        if _HEADING.fullmatch(line.strip()):
            return line.strip()[:60]
    return None


def _of_schema(state: State, asked: Asked, first: Difference, at: int, rest: list[Any]) -> Cause:
    values = (first.actual, first.expected)
    named = next((v["name"] for v in values if isinstance(v, dict) and "name" in v), None)
    name = str(named or get(asked.body, "tools", at, "name") or at)
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
    """Follow a text of the agent's own on: to a tool that answered otherwise, or to the machine it runs on."""
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
    """Yield calls that were answered otherwise, with what they were answered: live ones, and those of this request."""
    for tool, now in state.calls.differed():
        yield tool.question, state.renaming.clean_text(text_of(now.content))
    for each in found:
        match each.keys:
            case ("messages", int(at), "content", int(block), *_):
                result = get(asked.body, "messages", at, "content", block)
                if isinstance(result, dict) and result.get("type") == "tool_result":
                    tool_use_id = str(result.get("tool_use_id"))
                    call = _call(asked.body, at, tool_use_id) or {}
                    question = ToolQuestion(tool_use_id, str(call.get("name")), call.get("input"))
                    yield question, text_of(result.get("content", ""))
            case _:
                pass


def _new_words(old: str, new: str) -> list[str]:
    """Return what is new in a text: from where it parts to where it meets again, and its longer words."""
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
    """Return a cause with what of the machine, the process or the moment the new value holds and the old does not."""
    old, new = _string(first.expected), _string(first.actual)
    for name, value in _of_this_run():
        if value in new and value not in old and _stands_alone(value, new):
            return replace(cause, contains=name)
    return cause


def _of_this_run() -> Iterator[tuple[str, str]]:
    """Yield what is of this machine, process or moment, by a name that tells nothing of it."""
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
    """Return whether a value is in a text as a word of its own, not as a part of a longer one."""
    return re.search(rf"(?<![\w]){re.escape(value)}(?![\w])", text) is not None


def _chain(state: State, asked: Asked, first: Difference, cause: Cause | None) -> tuple[Link, ...]:
    """Return the way back: request, difference, the call that gave it, the answer that made the call, and so on."""
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
    "reordered": "comes in another order",
}


def _issued(state: State, ask: Ask) -> Link:
    calls = tool_uses(assemble(ask.answer.headers, ask.answer.body))
    named = [f"{c.get('name')}({_arguments(c.get('input'))})" for c in calls]
    number = state.lane(ask.lane).place_of(ask)
    says = f", which called {' and '.join(named)}" if named else ""
    return Link(f"the answer of request {number} of {ask.lane}{says}", None, ask.number)


def _before(state: State, ask: Ask) -> Ask | None:
    """Return the request whose answer the results of this one answer: the one before it in its lane that made calls."""
    lane = state.lane(ask.lane).asks
    earlier = [each for each in lane if each.number < ask.number]
    made = (each for each in reversed(earlier) if each.answer.status == 200)
    return next((e for e in made if tool_uses(assemble(e.answer.headers, e.answer.body))), None)


def _issuer(fixture: Fixture, asked: Asked, tool_use_id: str) -> Ask | None:
    for ask in reversed(fixture.asks[: asked.due.number]):
        calls = tool_uses(assemble(ask.answer.headers, ask.answer.body))
        if ask.lane == asked.lane and any(call.get("id") == tool_use_id for call in calls):
            return ask
    return None


def _function(state: State, name: str | None) -> Site | None:
    """Return where the function of a tool is written, where our own loop runs it."""
    for known in state.functions if name else ():
        function = known(name or "")
        if function is not None:
            return site_of(function)
    return None


def _call(body: Any, before: int, tool_use_id: str) -> dict[str, Any] | None:
    for message in reversed((body.get("messages") or [])[:before]):
        content = message.get("content") if isinstance(message, dict) else None
        for block in content if isinstance(content, list) else []:
            if isinstance(block, dict) and block.get("id") == tool_use_id:
                return block
    return None


def _arguments(value: Any) -> str:
    if not isinstance(value, dict):
        return "..."
    parts = (f"{key}={json.dumps(inner, ensure_ascii=False)}" for key, inner in value.items())
    text = ", ".join(parts)
    return text if len(text) <= ARGUMENTS else text[: ARGUMENTS - 1] + "…"


def _string(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def get(value: Any, *keys: str | int) -> Any:
    """Return what lies at a path in a JSON value, or None."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def plain(kind: CauseKind, text: str, site: Site | None = None) -> Cause | None:
    """Return a cause that is a sentence; None for an empty one."""
    return Cause(kind, text, site) if text else None
