"""Writing fixtures: a recording as the lines of the format that `replay.fixture` reads and describes.

What stands where does not depend on what came first by chance, so that a session which is recorded anew changes only
the lines of what changed.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

from agentobs.errors import RecordingError
from agentobs.recording.streams import find_in_stream
from agentobs.records.canonical import digest
from agentobs.records.exchanges import (
    Answer,
    AskKind,
    Exchange,
    ModelExchange,
    Recording,
    ToolExchange,
    WorldExchange,
)
from agentobs.records.messages import assemble, is_stream, split_events, tool_uses
from replay.fixture import FORMAT, counts
from replay.normalising import Rule, told_of
from replay.order import by_calls, together
from replay.pieces import Pieces, change, compact, kept_of, pieces_of
from replay.sharing import Redacted, left, shareable, tags_in, taken_out, without_secrets


def write(
    recording: Recording,
    versions: dict[str, str],
    normalisers: Sequence[Rule] = (),
    failing_turn: int | None = None,
    *,
    is_shared: bool = True,
) -> bytes:
    """Return a recording as the bytes of a fixture.

    Args:
        recording: the session.
        versions: what it was recorded with.
        normalisers: the rules that are applied whenever it is replayed.
        failing_turn: the turn where the session failed, if somebody chose it; None if the recording says it.
        is_shared: whether others may see it; only what never leaves this process is not searched for secrets that
            are left.

    Raises:
        UsageError: a normaliser cannot be kept in a file, or there is none of that name.
        RecordingError: the session is incomplete, asked nothing, or something that looks like a key is left.
    """
    if recording.source != "recorded":
        raise RecordingError(
            f"session {recording.session_id} was imported from a log of {recording.source}, which does not hold its "
            "requests whole",
            todo="Record the agent itself to replay it; an imported session can only be asked about",
        )
    if recording.dropped:
        raise RecordingError(
            f"session {recording.session_id} is incomplete: {recording.dropped} records were not written",
            todo="Record it again; an incomplete session cannot take the same path",
        )
    if not any(isinstance(each, ModelExchange) for each in recording.exchanges):
        raise RecordingError(
            f"session {recording.session_id} asked the model nothing: there is nothing to replay"
        )
    rules = told_of(normalisers)
    recording = without_secrets(recording)
    tags = tags_in(b"".join(map(_line, _lines(recording, versions, rules, failing_turn))))
    recording = shareable(recording, tags)
    lines = _lines(recording, versions, rules, failing_turn)
    if is_shared and (found := left(lines) + _left_in_pieces(recording)):
        raise RecordingError(
            f"something that looks like a secret is left: {'; '.join(each.text() for each in found)}",
            where=f"session {recording.session_id}",
            todo="Nothing was written. Give agentobs.Options(redactors=...) a rule that finds it, or take it out of "
            "what the agent reads, and record again",
        )
    data = b"".join(map(_line, lines))
    kinds = Counter(kind for line in lines for kind in ("ask", "tool", "world") if kind in line)
    counted = counts(range(kinds["ask"]), range(kinds["tool"]), range(kinds["world"]))
    return data + _line({"end": counted, "digest": digest(data)})


def with_rules(data: bytes, rules: Sequence[Rule]) -> bytes:
    """Return the bytes of a fixture with these rules, and no others, in its first line.

    Raises:
        UsageError: a rule cannot be kept in a file, or there is none of that name.
    """
    first, *rest = data.splitlines(keepends=True)
    header, end = json.loads(first), json.loads(rest[-1])
    header.pop("normalisers", None)
    named = {"normalisers": told_of(rules)} if rules else {}
    at = list(header).index("day") + 1 if "day" in header else len(header)
    parts = list(header.items())
    lines = b"".join([_line(dict([*parts[:at], *named.items(), *parts[at:]])), *rest[:-1]])
    return lines + _line({**end, "digest": digest(lines)})


def redacted_in(data: bytes) -> list[Redacted]:
    """Return what was taken out of the fixture that these bytes are, by kind."""
    return taken_out([json.loads(line) for line in data.splitlines()[:-1]])


def _left_in_pieces(recording: Recording) -> list[Redacted]:
    """Return what is left of secrets that answers tell in pieces."""
    answers = [each.answer.body for each in recording.exchanges if isinstance(each, ModelExchange)]
    kinds = Counter(found.kind for body in answers for found in find_in_stream(body))
    return [Redacted(kind, count, ("pieces of an answer",)) for kind, count in kinds.items()]


def _lines(
    recording: Recording, versions: dict[str, str], rules: list[Any], failing_turn: int | None
) -> list[dict[str, Any]]:
    """Return the lines of a fixture, all but the last one."""
    models = by_calls([e for e in recording.exchanges if isinstance(e, ModelExchange)])
    header = {
        "agentobs_fixture": FORMAT,
        "name": recording.name,
        "entry": recording.entry,
        "arguments": recording.arguments,
        **({"obstacle": dict(recording.obstacle)} if recording.obstacle else {}),
        "outcome": recording.outcome,
        "reason": recording.reason,
        "signature": recording.signature,
        **({"result": recording.result.value} if recording.result else {}),
        **({"raised": recording.raised} if recording.raised else {}),
        **({"results": _sorted_lanes(recording.results)} if recording.results else {}),
        **({"until": recording.until} if recording.until is not None else {}),
        **({"failing_turn": failing_turn} if failing_turn is not None else {}),
        "day": _day(models),
        **({"normalisers": rules} if rules else {}),
        **({"given": _given(recording.given)} if recording.given else {}),
        **({"session": recording.session_id} if _ID.fullmatch(recording.session_id) else {}),
        "recorded_with": versions,
    }
    return [header, *_exchange_lines(recording, models)]


def _given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a session drew from; the clock of a fork began before the fork did."""
    told = dict(given)
    told["started_ns"] = told.pop("clock_ns", told["started_ns"])
    return told


_ID = re.compile(r"[0-9a-f]{32}")
"""A session of a home; what other tools have recorded has none."""


def _day(models: Sequence[ModelExchange]) -> str:
    """Return the day of the first request (UTC)."""
    first_ns = min(exchange.started_ns for exchange in models)
    return f"{datetime.fromtimestamp(first_ns // 10**9, UTC):%Y-%m-%d}"


def _sorted_lanes(results: Mapping[str, Sequence[str | None]]) -> dict[str, Sequence[str | None]]:
    """Return results with the agent's own first: which of those beside it began first was chance."""
    return {
        lane: results[lane] for lane in sorted(results, key=lambda lane: (lane != "main", lane))
    }


def _moments(recording: Recording, exchange: ModelExchange) -> dict[str, list[int]]:
    """Return when a request was asked and answered, where the session asked for its clock."""
    if recording.given is None:
        return {}
    asked_ns = exchange.started_ns - int(recording.given["started_ns"])
    return {"ms": [at // 1_000_000 for at in (asked_ns, asked_ns + exchange.ended_ns)]}


def _stopped(first: ModelExchange, exchange: ModelExchange) -> dict[str, list[int]]:
    """Return when a client gave a request up."""
    if exchange.answer.ending != "cancelled":
        return {}
    since_ns = max(exchange.started_ns - first.started_ns, 0)
    stops = (exchange.ended_ns, since_ns + exchange.ended_ns)
    return {"stopped_ms": [at // 1_000_000 for at in stops]}


_OF_A_CALL = ("check", "path", "consent")
"""Kinds of questions that come before the call runs whose id is their key."""


def _exchange_lines(recording: Recording, models: list[ModelExchange]) -> Iterator[dict[str, Any]]:
    beside = together(models)
    between = _between(recording, models, beside)
    placed = {id(call): after for calls in between.values() for call, after in calls}
    tools: dict[tuple[str, str], list[ToolExchange]] = {}
    for exchange in recording.exchanges:
        if isinstance(exchange, ToolExchange) and id(exchange) not in placed:
            tools.setdefault((exchange.place.lane, exchange.question.tool_use_id), []).append(
                exchange
            )
    first, world = _world_lines(recording, models)
    shaper = _Shaper()
    for number, exchange in enumerate(models, 1):
        yield from map(_world_line, _sorted(first.get(number, []), []))
        yield from (_tool_line(call, after) for call, after in between.get(-number, []))
        moved = {**_moments(recording, exchange), **_stopped(models[0], exchange)}
        yield {"ask": number, **shaper.shape(number, exchange), **beside.get(number, {}), **moved}
        yield _answer_line(number, exchange)
        yield from _body_lines(exchange.answer)
        calls = tool_uses(assemble(exchange.answer.headers, exchange.answer.body))
        told = _sorted(world.get(number, []), [str(call.get("id")) for call in calls])
        yield from (_world_line(e) for e in told if e.question.kind in _OF_A_CALL)
        for call in calls:
            if ran := tools.get((exchange.place.lane, str(call.get("id")))):
                yield _tool_line(ran.pop(0))
        yield from (_world_line(e) for e in told if e.question.kind not in _OF_A_CALL)
        yield from (_tool_line(call, after) for call, after in between.get(number, []))
    for ran in tools.values():
        yield from map(_tool_line, ran)


def _between(
    recording: Recording, models: list[ModelExchange], beside: Mapping[int, Mapping[str, Any]]
) -> dict[int, list[tuple[ToolExchange, int]]]:
    """Return the calls that are known by no id of the model's, by the ask of their lane that they come after, or, less
    than 0, before, each with how many requests of its lane came before it.

    Not those whose place was chance: where requests of their lane were in flight together, or one beside the call.
    """
    lanes: dict[str, list[int]] = {}
    for number, model in enumerate(models, 1):
        lanes.setdefault(model.place.lane, []).append(number)
    chance = {models[n - 1].place.lane for n, told in beside.items() if "after" in told}
    starts = {lane: [models[n - 1].started_ns for n in own] for lane, own in lanes.items()}
    found: dict[int, list[tuple[ToolExchange, int]]] = {}
    for call in filter(_is_counted, recording.exchanges):
        assert isinstance(call, ToolExchange)
        if (lane := call.place.lane) not in lanes or lane in chance:
            continue
        own, after = lanes[lane], bisect_right(starts[lane], call.started_ns)
        last = models[own[after - 1] - 1] if after else None
        if last is not None and last.started_ns + last.ended_ns > call.started_ns:
            continue
        if after < len(own) and starts[lane][after] < call.started_ns + call.duration_ns:
            continue
        found.setdefault(own[after - 1] if after else -own[0], []).append((call, after))
    for calls in found.values():
        calls.sort(key=lambda told: _counted(told[0]))
    return found


def _is_counted(exchange: Exchange) -> bool:
    if not (isinstance(exchange, ToolExchange) and exchange.is_function):
        return False
    return exchange.question.tool_use_id.startswith(f"{exchange.question.name}@")


def _counted(call: ToolExchange) -> tuple[str, int, str]:
    """Return the name and number of a counted call, to sort by."""
    number = call.question.tool_use_id.rpartition("@")[2]
    return call.question.name, int(number) if number.isdecimal() else 0, number


def _world_lines(
    recording: Recording, models: list[ModelExchange]
) -> tuple[dict[int, list[WorldExchange]], dict[int, list[WorldExchange]]]:
    """Return the questions to the world by the ask of their lane that they come before, or after.

    Before stand only those that came before every request of their lane; of a lane without any, before
    the first request of all.
    """
    before: dict[int, list[WorldExchange]] = {}
    after: dict[int, list[WorldExchange]] = {}
    for exchange in recording.exchanges:
        if isinstance(exchange, WorldExchange):
            own = [n for n, m in enumerate(models, 1) if m.place.lane == exchange.place.lane]
            started = [n for n in own if models[n - 1].started_ns <= exchange.started_ns]
            if started:
                after.setdefault(started[-1], []).append(exchange)
            else:
                before.setdefault(own[0] if own else 1, []).append(exchange)
    return before, after


def _sorted(exchanges: Iterable[WorldExchange], calls: list[str]) -> list[WorldExchange]:
    """Return questions to the world in an order that does not depend on which came first.

    Those of one answer's calls come in the order of the calls, all others by kind and key, in which
    numbers count as numbers.
    """

    def place(exchange: WorldExchange) -> tuple[Any, ...]:
        key, kind = exchange.question.key, exchange.question.kind
        named = [(-len(call), at) for at, call in enumerate(calls) if call in key]
        parts = re.split(r"(\d{1,18})", key)
        numbered = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
        return min(named, default=(0, len(calls)))[1], get_args(AskKind).index(kind), numbered

    return sorted(exchanges, key=place)


def _world_line(exchange: WorldExchange) -> dict[str, Any]:
    return {
        "world": exchange.question.kind,
        "key": exchange.question.key,
        "lane": exchange.place.lane,
        "turn": exchange.place.turn,
        "asked": exchange.question.asked,
        "answer": exchange.answer,
    }


class _Shaper:
    """Writes each request as a change of an earlier one of its lane."""

    def __init__(self) -> None:
        self._recent: OrderedDict[int, tuple[ModelExchange, Pieces]] = OrderedDict()

    def shape(self, number: int, exchange: ModelExchange) -> dict[str, Any]:
        question = exchange.question
        place = {"lane": exchange.place.lane, "turn": exchange.place.turn}
        asked = {
            "method": question.method,
            "path": question.path,
            "headers": _meant(question.headers),
        }
        if not question.body:
            return {**place, **asked}
        known = (
            pieces
            for before, pieces in reversed(self._recent.values())
            if before.place.lane == exchange.place.lane
        )
        pieces = pieces_of(question.body, next(known, None))
        if pieces is None:
            return {**place, **asked, **_raw(question.body)}
        base = self._base(exchange, pieces)
        self._recent[number] = (exchange, pieces)
        while len(self._recent) > 16:
            self._recent.popitem(last=False)
        if base is None:
            return {**place, **asked, "body": json.loads(question.body)}
        like, (before, old) = base
        same = {k for k in asked if asked[k] == _asked(before)[k]}
        return {
            **place,
            "like": like,
            **{k: v for k, v in asked.items() if k not in same},
            **change(old, pieces),
        }

    def _base(
        self, exchange: ModelExchange, pieces: Pieces
    ) -> tuple[int, tuple[ModelExchange, Pieces]] | None:
        best, most = None, 0
        for number, (before, old) in reversed(self._recent.items()):
            if before.place.lane != exchange.place.lane or list(old.keys) != list(pieces.keys):
                continue
            if best is None and _shared_bytes(old, pieces) >= SHARED_MIN:
                best = (number, (before, old))  # such as after a compaction: nothing else is kept
            if len(old.messages) <= most:
                continue
            kept, _ = kept_of(old.messages, pieces.messages)
            if kept > most:
                best, most = (number, (before, old)), kept
        return best


SHARED_MIN = 200
"""How many bytes besides its messages a request must share with an earlier one to be its change. Our choice."""


def _shared_bytes(old: Pieces, new: Pieces) -> int:
    return sum(len(text) for key, text in new.keys.items() if old.keys[key] == text)


def _asked(exchange: ModelExchange) -> dict[str, Any]:
    question = exchange.question
    return {"method": question.method, "path": question.path, "headers": _meant(question.headers)}


def _meant(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.startswith("x-stainless-")}


def _answer_line(number: int, exchange: ModelExchange) -> dict[str, Any]:
    answer = exchange.answer
    failure = answer.failure
    return {
        "answer": number,
        "status": answer.status,
        "headers": answer.headers,
        "ending": answer.ending,
        **({"failure": [failure.name, failure.message]} if failure else {}),
        "chunks": [[len(c.data), c.after_ns // 1_000_000] for c in answer.chunks],
    }


def _body_lines(answer: Answer) -> Iterator[dict[str, Any]]:
    body = answer.body
    if not body:
        return
    if is_stream(answer.headers):
        for piece in split_events(body):
            raw = _raw(piece)
            yield {"event": raw["text"]} if "text" in raw else raw
        return
    try:
        value = json.loads(body)
        exact = compact(value) == body
    except (ValueError, RecursionError):
        exact = False
    yield {"body": value} if exact else _raw(body)


def _tool_line(exchange: ToolExchange, after: int | None = None) -> dict[str, Any]:
    answer = exchange.answer
    return {
        "tool": exchange.question.tool_use_id,
        "lane": exchange.place.lane,
        "turn": exchange.place.turn,
        "name": exchange.question.name,
        "input": exchange.question.input,
        "result": answer.content,
        **({"function": True} if exchange.is_function else {}),
        **({"after": after} if after is not None else {}),
        **({"is_error": True} if answer.is_error else {}),
        **({"outcome": answer.outcome} if answer.outcome != "executed" else {}),
        **({"tries": answer.tries} if answer.tries != 1 else {}),
    }


def _raw(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
