r"""Fixtures: recordings made to be committed; writer and reader of the format together.

A fixture is a text file, one JSON value a line:

    {"agentobs_fixture": 2, "name": ..., "entry": ..., "arguments": ..., "outcome": ...}
    {"ask": 1, "lane": "main", "turn": 1, "method": "POST", "path": "/v1/messages", "body": {...}}
    {"answer": 1, "status": 200, "headers": {...}, "ending": "complete", "chunks": [[bytes, ms], ...]}
    {"event": "event: message_start\ndata: ..."}            one line a stream event, or one "body" or "text"
    {"world": "consent", "key": "toolu_...", "lane": "main", "turn": 1, "asked": ..., "answer": ...}
    {"tool": "toolu_...", "lane": "main", "turn": 1, "name": ..., "input": ..., "result": ...}
    {"ask": 2, "lane": "main", "like": 1, "add": [...]}      the history stands once
    {"end": {"asks": 2, "tools": 1, "world": 1}, "digest": "b2:..."}     over all the lines before

No line tells an absolute time or an id of ours, so that recording one turn anew changes only its lines.
Request bodies are rebuilt byte for byte. What was redacted stays redacted.

Version 2 (November 2026) has the lines of the world: what the loop asked beside model and tools. Each
stands behind the last request of its lane that was asked before it. It also has `tries` of a tool, and
the outcomes of calls that the loop answers itself or that were stopped. All else is as in version 1,
which was written when the loop asked nobody: there a call that ran was permitted by that alone.

Since then its first line may have `results`: how the interactions of our own loop ended, by lane, in the order
in which they began; null for one without an end. A fixture without them is judged by its `outcome` alone.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from agentobs.errors import DamagedError, ForeignError, RecordingError, UsageError
from agentobs.recording.streams import find_in_stream
from agentobs.records.canonical import digest
from agentobs.records.exchanges import (
    Answer,
    AskKind,
    Chunk,
    Failure,
    ModelExchange,
    Place,
    Question,
    Recording,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
    WorldExchange,
    WorldQuestion,
    recorded_outcome,
)
from agentobs.records.messages import (
    assemble,
    is_stream,
    split_events,
    tool_uses,
)
from replay.order import afters, by_calls
from replay.pieces import Pieces, built, change, compact, kept_of, pieces_of, take_apart
from replay.sharing import Redacted, left, shareable, tags_in, taken_out

FORMAT = 2
"""The version that is written; every older one is read for ever, a newer one is refused."""
FILE = "recording.jsonl"
"""The name of a fixture's file in its folder."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One recorded request, with its answer."""

    number: int
    """Its place in the fixture, from 1."""
    lane: str
    turn: int | None
    method: str
    path: str
    headers: dict[str, str]
    after: frozenset[int] | None
    """The asks of its lane that it must come after; None: all earlier ones."""
    shape: dict[str, Any] = field(repr=False)
    """How its body is written: `body`, `text` or `base64`, or `like` an earlier one with changes.

    The changes are to `drop` so many messages from its end, to `unmark` some of those that stay (each
    counted from the end: the mark of the cache moves on with each request), to `add` messages after them,
    and to `set` other keys.
    """
    answer: Answer = field(repr=False)


@dataclass(frozen=True, slots=True)
class RecordedTool:
    """One recorded tool call with its result."""

    lane: str
    turn: int | None
    question: ToolQuestion
    answer: ToolAnswer


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """What the world answered to a question that was neither the model's nor a tool's."""

    lane: str
    turn: int | None
    after: int
    """How many requests of its lane were asked before it."""
    question: WorldQuestion
    answer: Any = field(repr=False)


class Fixture:
    """A fixture that was read: its header, asks, tools and other answers, and the bodies on demand."""

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        asks: list[Ask],
        tools: list[RecordedTool],
        world: Sequence[RecordedAnswer] = (),
    ) -> None:
        """Hold what `load` read."""
        self.path = path
        self.header = header
        self.asks = asks
        self.tools = tools
        self.world = list(world)
        self._pieces: OrderedDict[int, Pieces] = OrderedDict()

    @property
    def asks_the_world(self) -> bool:
        """Whether it was recorded with what was asked beside model and tools: from version 2 on."""
        return bool(self.header["agentobs_fixture"] >= 2)

    @property
    def name(self) -> str:
        """The recorded session's name."""
        return str(self.header["name"])

    @property
    def results(self) -> dict[str, list[str | None]] | None:
        """How the interactions of the loop ended, by lane; None where it was recorded without."""
        found: dict[str, list[str | None]] | None = self.header.get("results")
        return found

    def tool_use(self, tool_use_id: str) -> dict[str, Any] | None:
        """Return the tool call of that id in the recorded answers, or None."""
        for ask in self.asks:
            for call in tool_uses(assemble(ask.answer.headers, ask.answer.body)):
                if call.get("id") == tool_use_id:
                    return call
        return None

    @functools.cached_property
    def tool_names(self) -> frozenset[str]:
        """The names of the tools that requests declare."""
        shapes = [(ask.shape.get("body"), ask.shape.get("set")) for ask in self.asks]
        listed = [part.get("tools") for parts in shapes for part in parts if isinstance(part, dict)]
        tools = [tool for each in listed if isinstance(each, list) for tool in each]
        return frozenset(str(tool.get("name")) for tool in tools if isinstance(tool, dict))

    @property
    def lanes(self) -> list[str]:
        """The names of the lanes, in the order of their first request."""
        return list(dict.fromkeys(ask.lane for ask in self.asks))

    def body(self, number: int) -> bytes:
        """Return the exact request body of an ask; its chain is walked without recursion.

        Raises:
            DamagedError: it cannot be put together.
        """
        shape = self.asks[number - 1].shape
        try:
            if "text" in shape:
                return str(shape["text"]).encode("utf-8", "surrogatepass")
            if "base64" in shape:
                return base64.b64decode(shape["base64"])
            if "body" not in shape and "like" not in shape:
                return b""
            return self._built(number).body()
        except _UNREADABLE as error:
            raise DamagedError(
                f"request {number} of the fixture does not read: {error!r}",
                where=str(self.path),
                todo=_AGAIN,
            ) from error

    def _built(self, number: int) -> Pieces:
        chain: list[int] = []
        link = number
        while link not in self._pieces:
            chain.append(link)
            shape = self.asks[link - 1].shape
            if "body" in shape:
                break
            link = shape["like"]
        for each in reversed(chain):
            self._pieces[each] = self._build(each)
            if len(self._pieces) > 16:
                self._pieces.popitem(last=False)
        return self._pieces[number]

    def _build(self, number: int) -> Pieces:
        shape = self.asks[number - 1].shape
        if "body" in shape:
            return take_apart(shape["body"])
        base = self._pieces[shape["like"]]
        return built(base, shape)


def find_fixture(path: Path) -> Path:
    """Return the file of a fixture that is named by its folder or its file.

    Raises:
        UsageError: there is none.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UsageError(
            "no fixture here",
            where=str(path),
            todo=f"A fixture is a folder with {FILE} in it; agentobs freeze SESSION makes one",
        )
    return file


def load(path: str | Path) -> Fixture:
    """Read a fixture from its folder or file.

    Raises:
        UsageError: there is none at `path`.
        ForeignError: the file is no fixture, or of a newer version.
        DamagedError: it is cut off, or was changed by hand.
    """
    file = find_fixture(Path(path))
    data = file.read_bytes()
    header = _header(file, data)
    last = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        end = json.loads(data[last:])
        whole = isinstance(end, dict) and "end" in end
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise DamagedError(
            "the fixture is cut off: its last line is missing", where=str(file), todo=_AGAIN
        )
    if end.get("digest") != digest(data[:last]):
        raise DamagedError(
            "the fixture was changed: its digest does not match", where=str(file), todo=_AGAIN
        )
    try:
        asks, tools, world = _parse(data[:last])
        whole = end["end"] == _counts(asks, tools, world) and header.keys() >= _HEADER
        whole = whole and isinstance(header.get("results", {}), dict)
    except _UNREADABLE as error:
        raise DamagedError(
            f"the fixture does not read: {error!r}", where=str(file), todo=_AGAIN
        ) from error
    if not whole:
        raise DamagedError("the fixture is not whole", where=str(file), todo=_AGAIN)
    return Fixture(file, header, asks, tools, world)


_HEADER = {"name", "entry", "arguments", "outcome", "reason", "signature"}
"""What a first line has besides the version."""
_UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What reading raises where a line is not what it should be."""
_AGAIN = "Restore it from version control, or freeze the session again"


def _header(file: Path, data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data.partition(b"\n")[0])
        version = header["agentobs_fixture"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForeignError(
            "not a fixture", where=str(file), todo="agentobs freeze SESSION makes one"
        ) from error
    if not isinstance(version, int) or version > FORMAT:
        raise ForeignError(
            f"a fixture of version {version}; this version of agentobs reads up to {FORMAT}",
            where=str(file),
            todo="Install the version that wrote it, or a newer one",
        )
    parsed: dict[str, Any] = header
    return parsed


def _counts(asks: Sized, tools: Sized, world: Sized) -> dict[str, int]:
    """Return what the last line counts."""
    counts = {"asks": len(asks), "tools": len(tools)}
    return {**counts, "world": len(world)} if len(world) else counts


def _parse(data: bytes) -> tuple[list[Ask], list[RecordedTool], list[RecordedAnswer]]:
    asks: list[Ask] = []
    tools: list[RecordedTool] = []
    world: list[RecordedAnswer] = []
    asked: Counter[str] = Counter()
    lines = json.loads(b"[" + data.partition(b"\n")[2].strip().replace(b"\n", b",") + b"]")
    at = 0
    while at < len(lines):
        value = lines[at]
        at += 1
        if "tool" in value:
            tools.append(_tool(value))
            continue
        if "world" in value:
            world.append(_world(value, asked[value["lane"]]))
            continue
        body: list[Any] = []
        answer = lines[at]
        at += 1
        while at < len(lines) and not {"ask", "tool", "world"} & lines[at].keys():
            body.append(lines[at])
            at += 1
        asks.append(_ask(value, _answer(answer, body), asks))
        asked[asks[-1].lane] += 1
    return asks, tools, world


def _ask(value: dict[str, Any], answer: Answer, before: list[Ask]) -> Ask:
    if value["ask"] != len(before) + 1:
        raise ValueError(f"request {value['ask']} stands in place {len(before) + 1}")
    base = None
    if "like" in value:
        if not 1 <= value["like"] <= len(before):
            raise ValueError(f"a request like {value['like']}, which is no earlier one")
        base = before[value["like"] - 1]
    return Ask(
        number=value["ask"],
        lane=value["lane"],
        turn=value.get("turn"),
        method=value.get("method") or (base.method if base else ""),
        path=value.get("path") or (base.path if base else ""),
        headers=value.get("headers", base.headers if base else {}),
        after=frozenset(value["after"]) if "after" in value else None,
        shape={
            k: value[k]
            for k in ("body", "text", "base64", "like", "drop", "unmark", "add", "set")
            if k in value
        },
        answer=answer,
    )


def _answer(value: dict[str, Any], lines: list[dict[str, Any]]) -> Answer:
    chunks: list[Chunk] = []
    for line in lines:
        if "event" in line:
            data = line["event"].encode("utf-8", "surrogatepass")
        elif "body" in line:
            data = compact(line["body"])
        elif "base64" in line:
            data = base64.b64decode(line["base64"])
        else:
            data = line["text"].encode("utf-8", "surrogatepass")
        chunks.append(Chunk(data, 0))
    failure = Failure(*value["failure"]) if value.get("failure") else None
    return Answer(value["status"], value["headers"], tuple(chunks), value["ending"], failure)


def _tool(value: dict[str, Any]) -> RecordedTool:
    return RecordedTool(
        lane=value["lane"],
        turn=value.get("turn"),
        question=ToolQuestion(value["tool"], value["name"], value["input"]),
        answer=ToolAnswer(
            value["result"],
            value.get("is_error", False),
            recorded_outcome(value.get("outcome", "executed")),
            value.get("tries", 1),
        ),
    )


def _world(value: dict[str, Any], after: int) -> RecordedAnswer:
    if value["world"] not in _KINDS:
        raise ValueError(f"a question of kind {value['world']!r}")
    question = WorldQuestion(value["world"], str(value["key"]), value["asked"])
    return RecordedAnswer(value["lane"], value.get("turn"), after, question, value["answer"])


def as_recording(fixture: Fixture) -> Recording:
    """Return a fixture as a recording, to be served; times are those of nothing."""
    exchanges = tuple(
        ModelExchange(
            place=Place(fixture.name, None, ask.lane, ask.turn),
            attempt_id=f"{ask.number:032x}",
            started_ns=ask.number,
            headers_ns=None,
            ended_ns=0,
            question=Question(ask.method, ask.path, ask.headers, fixture.body(ask.number)),
            answer=ask.answer,
        )
        for ask in fixture.asks
    )
    header = fixture.header
    return Recording(
        session_id=fixture.name,
        name=fixture.name,
        entry=header["entry"],
        arguments=header["arguments"],
        outcome=header["outcome"],
        reason=header["reason"],
        signature=header["signature"],
        dropped=0,
        exchanges=exchanges,
        results=fixture.results or {},
    )


def write(recording: Recording, versions: dict[str, str]) -> bytes:
    """Return a recording as the bytes of a fixture; `versions` says what it was recorded with.

    Raises:
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
    tags = tags_in(b"".join(map(_line, _lines(recording, versions))))
    recording = shareable(recording, tags)
    lines = _lines(recording, versions)
    if found := left(lines) + _left_in_pieces(recording):
        raise RecordingError(
            f"something that looks like a secret is left: {'; '.join(each.text() for each in found)}",
            where=f"session {recording.session_id}",
            todo="Nothing was written. Give agentobs.Options(redactors=...) a rule that finds it, or take it out of "
            "what the agent reads, and record again",
        )
    data = b"".join(map(_line, lines))
    kinds = Counter(kind for line in lines for kind in ("ask", "tool", "world") if kind in line)
    counts = _counts(range(kinds["ask"]), range(kinds["tool"]), range(kinds["world"]))
    return data + _line({"end": counts, "digest": digest(data)})


def redacted_in(data: bytes) -> list[Redacted]:
    """Return what was taken out of the fixture that these bytes are, by kind."""
    return taken_out([json.loads(line) for line in data.splitlines()[:-1]])


def _left_in_pieces(recording: Recording) -> list[Redacted]:
    """Return what is left of secrets that answers tell in pieces."""
    answers = [each.answer.body for each in recording.exchanges if isinstance(each, ModelExchange)]
    kinds = Counter(found.kind for body in answers for found in find_in_stream(body))
    return [Redacted(kind, count, ("pieces of an answer",)) for kind, count in kinds.items()]


def _lines(recording: Recording, versions: dict[str, str]) -> list[dict[str, Any]]:
    """Return the lines of a fixture, all but the last one."""
    models = by_calls([e for e in recording.exchanges if isinstance(e, ModelExchange)])
    header = {
        "agentobs_fixture": FORMAT,
        "name": recording.name,
        "entry": recording.entry,
        "arguments": recording.arguments,
        "outcome": recording.outcome,
        "reason": recording.reason,
        "signature": recording.signature,
        **({"results": _sorted_lanes(recording.results)} if recording.results else {}),
        "recorded_with": versions,
    }
    return [header, *_exchange_lines(recording, models)]


def _sorted_lanes(results: Mapping[str, Sequence[str | None]]) -> dict[str, Sequence[str | None]]:
    """Return results with the agent's own first: which of those beside it began first was chance."""
    return {
        lane: results[lane] for lane in sorted(results, key=lambda lane: (lane != "main", lane))
    }


_KINDS = get_args(AskKind)
_OF_A_CALL = ("check", "path", "consent")
"""Kinds of questions that come before the call runs whose id is their key."""


def _exchange_lines(recording: Recording, models: list[ModelExchange]) -> Iterator[dict[str, Any]]:
    tools: dict[tuple[str, str], list[ToolExchange]] = {}
    for exchange in recording.exchanges:
        if isinstance(exchange, ToolExchange):
            tools.setdefault((exchange.place.lane, exchange.question.tool_use_id), []).append(
                exchange
            )
    first, world = _world_lines(recording, models)
    shaper = _Shaper()
    ordered = afters(models)
    for number, exchange in enumerate(models, 1):
        after = {"after": ordered[number]} if number in ordered else {}
        yield from map(_world_line, _sorted(first.get(number, []), []))
        yield {"ask": number, **shaper.shape(number, exchange), **after}
        yield _answer_line(number, exchange)
        yield from _body_lines(exchange.answer)
        calls = tool_uses(assemble(exchange.answer.headers, exchange.answer.body))
        told = _sorted(world.get(number, []), [str(call.get("id")) for call in calls])
        yield from (_world_line(e) for e in told if e.question.kind in _OF_A_CALL)
        for call in calls:
            if ran := tools.get((exchange.place.lane, str(call.get("id")))):
                yield _tool_line(ran.pop(0))
        yield from (_world_line(e) for e in told if e.question.kind not in _OF_A_CALL)
    for ran in tools.values():
        yield from map(_tool_line, ran)


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
        return min(named, default=(0, len(calls)))[1], _KINDS.index(kind), numbered

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
        pieces = pieces_of(question.body)
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
            if len(old.messages) <= most:
                continue
            kept, _ = kept_of(old.messages, pieces.messages)
            if kept > most:
                best, most = (number, (before, old)), kept
        return best


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


def _tool_line(exchange: ToolExchange) -> dict[str, Any]:
    answer = exchange.answer
    return {
        "tool": exchange.question.tool_use_id,
        "lane": exchange.place.lane,
        "turn": exchange.place.turn,
        "name": exchange.question.name,
        "input": exchange.question.input,
        "result": answer.content,
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
