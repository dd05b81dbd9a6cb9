"""Originals: the answers of a fixture as the provider sent them, read from the session that it was frozen from.

Freezing removes organization IDs from sealed values of the provider: signatures of thinking, redacted thinking and
encrypted results. A replay does not need them. A provider refuses a sealed value that has changed, so a fork, which
sends its history to the provider, gets the originals. Its requests are still matched against
the fixture: every live request goes through the same masking first.

An original is taken only if masking it gives exactly what the fixture holds. Secrets that were redacted when the
session was recorded were never stored, and stay placeholders.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agentobs.errors import RecordingError
from agentobs.records.exchanges import (
    Chunk,
    ModelExchange,
    Recording,
    ToolExchange,
    WorldExchange,
)
from agentobs.records.messages import assemble, blocks
from replay.fixture import Ask, Fixture, parse
from replay.renaming import PLACEHOLDER, bare_bytes, has_masked, without_organisations
from replay.writing import write

_PLACEHOLDER = re.compile(PLACEHOLDER.pattern.encode())
_Key = tuple[str, ...]
R = TypeVar("R")


def fixture_of(recording: Recording, versions: dict[str, str]) -> Fixture:
    """Return a session as a fixture in memory, with its original answers.

    Args:
        recording: the session.
        versions: what it was recorded with.

    Raises:
        RecordingError: the session is incomplete or made no request, so that it cannot be replayed.
    """
    data = write(recording, versions, is_shared=False)
    return with_originals(parse(Path(f"session {recording.session_id}"), data), recording)


def with_originals(fixture: Fixture, recording: Recording) -> Fixture:
    """Return a fixture that answers with the original values of the session that it was frozen from.

    Values that the session does not hold stay masked; `unsendable` finds them.
    """
    known = _Originals(recording)

    def ask(each: Ask) -> Ask:
        found = known.body("model", each.lane, text=each.answer.body)
        if found is None:
            return each
        return replace(each, answer=replace(each.answer, chunks=(Chunk(found, 0),)))

    tools = [
        replace(
            each,
            answer=replace(
                each.answer,
                content=known.value(
                    "tool", each.lane, each.question.tool_use_id, value=each.answer.content
                ),
            ),
        )
        for each in fixture.tools
    ]
    world = [
        replace(
            each,
            answer=known.value(each.question.kind, each.lane, each.question.key, value=each.answer),
        )
        for each in fixture.world
    ]
    arguments = known.value("arguments", value=fixture.header["arguments"])
    header = {**fixture.header, "arguments": arguments}
    return Fixture(fixture.path, header, [ask(each) for each in fixture.asks], tools, world)


class _Originals:
    """The original answers of a session that freezing would mask, by place and masked text."""

    def __init__(self, recording: Recording) -> None:
        self._known: defaultdict[tuple[_Key, bytes], deque[bytes]] = defaultdict(deque)
        self._keep(("arguments",), _json(recording.arguments))
        for each in recording.exchanges:
            lane = each.place.lane
            match each:
                case ModelExchange():
                    self._keep(("model", lane), each.answer.body)
                case ToolExchange(question=call):
                    self._keep(("tool", lane, call.tool_use_id), _json(each.answer.content))
                case WorldExchange(question=question):
                    self._keep((question.kind, lane, question.key), _json(each.answer))

    def _keep(self, key: _Key, original: bytes) -> None:
        # A session that was imported may hold masked values itself.
        if (masked := without_organisations(original)) != original and not has_masked(original):
            self._known[key, bare_bytes(masked)].append(original)

    def body(self, *key: str, text: bytes) -> bytes | None:
        """Return the original of a masked text at a place, with the placeholders of the fixture; None without one."""
        if not has_masked(text):
            return None
        found = self._known.get((key, bare_bytes(text)))
        return _with_placeholders(found.popleft(), text) if found else None

    def value(self, *key: str, value: Any) -> Any:
        """Return the original of a JSON value; the value itself if there is none."""
        found = self.body(*key, text=_json(value))
        return value if found is None else json.loads(found.decode("utf-8", "surrogatepass"))


def _with_placeholders(original: bytes, text: bytes) -> bytes:
    """Return an original with the placeholder numbers of the fixture; both have as many, in the same order."""
    numbered = (match[0] for match in _PLACEHOLDER.finditer(text))
    return _PLACEHOLDER.sub(lambda _: next(numbered), original)


def unsendable(fixture: Fixture, turn: int) -> list[str]:
    """Describe the places in the history up to a turn that a provider would refuse; empty if it accepts all."""
    return list(dict.fromkeys(_given(fixture, turn, _altered_ask, _altered_value)))


def check_sendable(fixture: Fixture, turn: int, why: str = "") -> None:
    """Refuse a fork whose history the provider would refuse.

    Args:
        fixture: what is replayed.
        turn: the turn of the main lane after which requests go to the provider.
        why: the reason why the session that the fixture was frozen from cannot be read; empty if there is none.

    Raises:
        RecordingError: the provider would refuse it; the message names the altered places and what to do.
    """
    places = unsendable(fixture, turn)
    if not places:
        return
    shown = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
    raise RecordingError(
        f"the provider would refuse the history up to turn {turn}: it verifies signed and encrypted values, and these "
        f"were altered: {shown}",
        where=str(fixture.path),
        todo=f"{_reason(fixture, why)}. Nothing was sent. {_REMEDY}",
    )


def placeholders(fixture: Fixture, turn: int) -> dict[str, int]:
    """Count the different secrets, by kind, that are placeholders in the answers of a fork up to a turn."""

    def found(text: bytes, place: str) -> Iterator[tuple[bytes, bytes]]:
        del place
        yield from _PLACEHOLDER.findall(text)

    secrets = set(_given(fixture, turn, lambda ask, place: found(ask.answer.body, place), found))
    return dict(Counter(kind.decode() for kind, _ in sorted(secrets)))


_REMEDY = (
    "Fork from the home that holds the session (agentobs --home DIR fork ...), or record the agent again and fork the "
    "new session: agentobs fork SESSION --at N"
)


def _reason(fixture: Fixture, why: str) -> str:
    if fixture.session_id is None:
        return "The fixture does not name the session that it was frozen from"
    if why:
        return f"The originals are in session {fixture.session_id}, which cannot be read: {why.rstrip('.')}"
    return f"Session {fixture.session_id}, from which it was frozen, was not read or does not hold them either"


def _given(
    fixture: Fixture,
    turn: int,
    of_ask: Callable[[Ask, str], Iterator[R]],
    of_value: Callable[[bytes, str], Iterator[R]],
) -> Iterator[R]:
    """Yield the results of the given functions for all answers that an agent gets up to a turn of the main lane.

    Other lanes count up to the next request of the main lane: which of them were answered by then is random.
    """
    later = [a.number for a in fixture.asks if a.lane == "main" and (a.turn or 0) > turn]
    end = min(later, default=len(fixture.asks) + 1)
    given = Counter(ask.lane for ask in fixture.asks if ask.number < end)
    yield from of_value(_json(fixture.header["arguments"]), "the arguments")
    for ask in fixture.asks:
        if ask.number < end:
            place = f"turn {ask.turn}" if ask.turn else f"request {ask.number}"
            yield from of_ask(ask, place if ask.lane == "main" else f"{place} of {ask.lane}")
    for tool in fixture.tools:
        if tool.turn is None or tool.lane != "main" or tool.turn < turn:
            text, name = _json(tool.answer.content), tool.question.name
            yield from of_value(text, f"the result of {name}")
    for answer in fixture.world:
        if answer.after <= given[answer.lane]:
            yield from of_value(_json(answer.answer), f"an answer of kind {answer.question.kind}")


def _altered_ask(ask: Ask, place: str) -> Iterator[str]:
    body = ask.answer.body
    if has_masked(body):
        yield f"{place} (organization ids were taken out)"
    elif b"[redacted:" in body and b"thinking" in body:
        message = assemble(ask.answer.headers, body)
        if any("[redacted:" in json.dumps(block) for block in blocks(message) if _is_signed(block)):
            yield f"{place} (a secret was taken out of signed thinking)"


def _is_signed(block: dict[str, Any]) -> bool:
    return block.get("type") in ("thinking", "redacted_thinking")


def _altered_value(text: bytes, place: str) -> Iterator[str]:
    if has_masked(text):
        yield f"{place} (organization ids were taken out)"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
