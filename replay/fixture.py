r"""Fixtures: recordings made to be committed; writer and reader of the format together.

A fixture is a text file, one JSON value a line:

    {"agentobs_fixture": 1, "name": ..., "entry": ..., "arguments": ..., "outcome": ...}
    {"ask": 1, "lane": "main", "turn": 1, "method": "POST", "path": "/v1/messages", "body": {...}}
    {"answer": 1, "status": 200, "headers": {...}, "ending": "complete", "chunks": [[bytes, ms], ...]}
    {"event": "event: message_start\ndata: ..."}            one line a stream event, or one "body" or "text"
    {"tool": "toolu_...", "lane": "main", "turn": 1, "name": ..., "input": ..., "result": ...}
    {"ask": 2, "lane": "main", "like": 1, "add": [...]}      the history stands once
    {"end": {"asks": 2, "tools": 1}, "digest": "b2:..."}     over all the lines before

No line tells an absolute time or an id of ours, so that recording one turn anew changes only its lines.
Request bodies are rebuilt byte for byte. What was redacted stays redacted.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs.errors import DamagedError, ForeignError, RecordingError, UsageError
from agentobs.recording.streams import find_in_stream
from agentobs.records.canonical import canonical, digest
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    Failure,
    ModelExchange,
    Place,
    Question,
    Recording,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
)
from agentobs.records.messages import (
    assemble,
    blocks,
    is_stream,
    split_events,
    tool_results,
    tool_uses,
)
from agentobs.redaction import find

FORMAT = 1
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


@dataclass(slots=True)
class _Pieces:
    """A JSON body taken apart around its messages, so that the next one is built by appending."""

    keys: dict[str, bytes]
    """Each top-level key with the JSON of its value; `messages` is empty."""
    messages: list[bytes]

    def body(self) -> bytes:
        parts = [b"{"]
        for key, value in self.keys.items():
            parts += (b"," if len(parts) > 1 else b"", _compact(key), b":")
            parts += (b"[", b",".join(self.messages), b"]") if key == "messages" else (value,)
        return b"".join((*parts, b"}"))


class Fixture:
    """A fixture that was read: its header, asks and tools, and the bodies on demand."""

    def __init__(
        self, path: Path, header: dict[str, Any], asks: list[Ask], tools: list[RecordedTool]
    ) -> None:
        """Hold what `load` read."""
        self.path = path
        self.header = header
        self.asks = asks
        self.tools = tools
        self._pieces: OrderedDict[int, _Pieces] = OrderedDict()

    @property
    def name(self) -> str:
        """The recorded session's name."""
        return str(self.header["name"])

    def tool_use(self, tool_use_id: str) -> dict[str, Any] | None:
        """Return the tool call of that id in the recorded answers, or None."""
        for ask in self.asks:
            for call in tool_uses(assemble(ask.answer.headers, ask.answer.body)):
                if call.get("id") == tool_use_id:
                    return call
        return None

    @property
    def lanes(self) -> list[str]:
        """The names of the lanes, in the order of their first request."""
        return list(dict.fromkeys(ask.lane for ask in self.asks))

    def body(self, number: int) -> bytes:
        """Return the exact request body of an ask; its chain is walked without recursion."""
        shape = self.asks[number - 1].shape
        if "text" in shape:
            return str(shape["text"]).encode("utf-8", "surrogatepass")
        if "base64" in shape:
            return base64.b64decode(shape["base64"])
        if "body" not in shape and "like" not in shape:
            return b""
        return self._built(number).body()

    def _built(self, number: int) -> _Pieces:
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

    def _build(self, number: int) -> _Pieces:
        shape = self.asks[number - 1].shape
        if "body" in shape:
            return _take_apart(shape["body"])
        base = self._pieces[shape["like"]]
        kept = base.messages[: len(base.messages) - shape.get("drop", 0)]
        for back in shape.get("unmark", []):
            kept[-back] = _unmarked(kept[-back])
        added = [_compact(message) for message in shape.get("add", [])]
        changed = {key: _compact(value) for key, value in shape.get("set", {}).items()}
        return _Pieces({**base.keys, **changed}, kept + added)


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
        asks, tools = _parse(data[:last])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise DamagedError(
            f"the fixture does not read: {error!r}", where=str(file), todo=_AGAIN
        ) from error
    return Fixture(file, header, asks, tools)


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


def _parse(data: bytes) -> tuple[list[Ask], list[RecordedTool]]:
    asks: list[Ask] = []
    tools: list[RecordedTool] = []
    lines = json.loads(b"[" + data.partition(b"\n")[2].strip().replace(b"\n", b",") + b"]")
    at = 0
    while at < len(lines):
        value = lines[at]
        at += 1
        if "tool" in value:
            tools.append(_tool(value))
            continue
        body: list[Any] = []
        answer = lines[at]
        at += 1
        while at < len(lines) and not {"ask", "tool"} & lines[at].keys():
            body.append(lines[at])
            at += 1
        asks.append(_ask(value, _answer(answer, body), asks))
    return asks, tools


def _ask(value: dict[str, Any], answer: Answer, before: list[Ask]) -> Ask:
    base = before[value["like"] - 1] if "like" in value else None
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
            data = _compact(line["body"])
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
            value["result"], value.get("is_error", False), value.get("outcome", "executed")
        ),
    )


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
    )


def write(recording: Recording, versions: dict[str, str]) -> bytes:
    """Return a recording as the bytes of a fixture; `versions` says what it was recorded with.

    Raises:
        RecordingError: the session is incomplete, asked nothing, or something that looks like a key is left.
    """
    if recording.dropped:
        raise RecordingError(
            f"session {recording.session_id} is incomplete: {recording.dropped} records were not written",
            todo="Record it again; an incomplete session cannot take the same path",
        )
    models = [e for e in recording.exchanges if isinstance(e, ModelExchange)]
    if not models:
        raise RecordingError(
            f"session {recording.session_id} asked the model nothing: there is nothing to replay"
        )
    header = {
        "agentobs_fixture": FORMAT,
        "name": recording.name,
        "entry": recording.entry,
        "arguments": recording.arguments,
        "outcome": recording.outcome,
        "reason": recording.reason,
        "signature": recording.signature,
        "recorded_with": versions,
    }
    lines = [header, *_exchange_lines(recording, models)]
    data = b"".join(_line(line) for line in lines)
    left = [*find(data), *(f for e in models for f in find_in_stream(e.answer.body))]
    if left:
        raise RecordingError(
            f"something that looks like a secret is left ({', '.join(sorted({f.kind for f in left}))})",
            todo="Nothing was written; take it out of the agent's input and record again",
        )
    tools = sum("tool" in line for line in lines)
    return data + _line({"end": {"asks": len(models), "tools": tools}, "digest": digest(data)})


def _exchange_lines(recording: Recording, models: list[ModelExchange]) -> Iterator[dict[str, Any]]:
    tools = {
        (e.place.lane, e.question.tool_use_id): e
        for e in recording.exchanges
        if isinstance(e, ToolExchange)
    }
    shaper = _Shaper()
    afters = _afters(models)
    for number, exchange in enumerate(models, 1):
        after = {"after": afters[number]} if number in afters else {}
        yield {"ask": number, **shaper.shape(number, exchange), **after}
        yield _answer_line(number, exchange)
        yield from _body_lines(exchange.answer)
        message = assemble(exchange.answer.headers, exchange.answer.body)
        for call in tool_uses(message):
            if tool := tools.pop((exchange.place.lane, str(call.get("id"))), None):
                yield _tool_line(tool)
    for tool in tools.values():
        yield _tool_line(tool)


class _Shaper:
    """Writes each request as a change of an earlier one of its lane."""

    def __init__(self) -> None:
        self._recent: OrderedDict[int, tuple[ModelExchange, _Pieces]] = OrderedDict()

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
        pieces = _pieces_of(question.body)
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
            **_change(old, pieces),
        }

    def _base(
        self, exchange: ModelExchange, pieces: _Pieces
    ) -> tuple[int, tuple[ModelExchange, _Pieces]] | None:
        best, most = None, 0
        for number, (before, old) in reversed(self._recent.items()):
            if before.place.lane != exchange.place.lane or list(old.keys) != list(pieces.keys):
                continue
            if len(old.messages) <= most:
                continue
            kept, _ = _kept(old.messages, pieces.messages)
            if kept > most:
                best, most = (number, (before, old)), kept
        return best


def _change(old: _Pieces, new: _Pieces) -> dict[str, Any]:
    kept, unmarked = _kept(old.messages, new.messages)
    drop = len(old.messages) - kept
    changed = {key: json.loads(text) for key, text in new.keys.items() if old.keys[key] != text}
    return {
        **({"drop": drop} if drop else {}),
        **({"unmark": [kept - place for place in unmarked]} if unmarked else {}),
        "add": [json.loads(message) for message in new.messages[kept:]],
        **({"set": changed} if changed else {}),
    }


def _kept(old: list[bytes], new: list[bytes]) -> tuple[int, list[int]]:
    """Return how many messages of `old` begin `new`, and the places of those that lost their marks."""
    count, unmarked = 0, []
    for a, b in zip(old, new, strict=False):
        if a != b:
            if _unmarked(a) != b:
                break
            unmarked.append(count)
        count += 1
    return count, unmarked


def _unmarked(message: bytes) -> bytes:
    """Return a message without the marks of the cache on its blocks."""
    if b'"cache_control"' not in message:
        return message
    value = json.loads(message)
    for block in blocks(value) if isinstance(value, dict) else ():
        block.pop("cache_control", None)
    return _compact(value)


def _asked(exchange: ModelExchange) -> dict[str, Any]:
    question = exchange.question
    return {"method": question.method, "path": question.path, "headers": _meant(question.headers)}


def _meant(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.startswith("x-stainless-")}


def _pieces_of(body: bytes) -> _Pieces | None:
    """Take a JSON body apart, or return None where writing it again would not give the same bytes."""
    try:
        pieces = _take_apart(json.loads(body))
        return pieces if pieces.body() == body else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _take_apart(value: Any) -> _Pieces:
    messages = value.get("messages")
    if not isinstance(messages, list):
        return _Pieces({key: _compact(inner) for key, inner in value.items()}, [])
    keys = {key: b"" if key == "messages" else _compact(inner) for key, inner in value.items()}
    return _Pieces(keys, [_compact(message) for message in messages])


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _compact(value: Any) -> bytes:
    return _encode(value).encode("utf-8", "surrogatepass")


def _afters(models: list[ModelExchange]) -> dict[int, list[int]]:
    """Return, for lanes whose requests overlapped, the asks that each ask must come after.

    When nothing overlapped, every request of a lane comes after all earlier ones, and nothing is said.
    Where some were in flight together, their order was chance: an ask then comes only after those whose
    answers its body goes on from.
    """
    lanes: dict[str, list[tuple[int, ModelExchange]]] = {}
    for number, exchange in enumerate(models, 1):
        lanes.setdefault(exchange.place.lane, []).append((number, exchange))
    found: dict[int, list[int]] = {}
    for lane in lanes.values():
        if any(_overlap(a, b) for (_, a), (_, b) in itertools.pairwise(lane)):
            found |= _continued(lane)
    return found


def _overlap(earlier: ModelExchange, later: ModelExchange) -> bool:
    return later.started_ns < earlier.started_ns + earlier.ended_ns


def _continued(lane: list[tuple[int, ModelExchange]]) -> dict[int, list[int]]:
    issued: dict[str, int] = {}
    asked: dict[str, int] = {}
    found: dict[int, list[int]] = {}
    for number, exchange in lane:
        body = value_of(exchange.question.body)
        listed = body.get("messages") if isinstance(body, dict) else None
        messages = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
        found[number] = sorted({*_answers_heard(messages, issued), *_histories(messages, asked)})
        message = assemble(exchange.answer.headers, exchange.answer.body)
        issued |= {str(call.get("id")): number for call in tool_uses(message)}
        asked[canonical(messages)] = number
    return found


def _answers_heard(messages: list[dict[str, Any]], issued: dict[str, int]) -> Iterator[int]:
    """Yield the asks whose tool calls a body answers."""
    for message in messages:
        for result in tool_results(message):
            if number := issued.get(str(result.get("tool_use_id"))):
                yield number


def _histories(messages: list[dict[str, Any]], asked: dict[str, int]) -> Iterator[int]:
    """Yield the asks whose messages a body repeats before an answer of the model."""
    for at, message in enumerate(messages):
        if message.get("role") == "assistant" and (number := asked.get(canonical(messages[:at]))):
            yield number


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
        exact = _compact(value) == body
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
    }


def value_of(body: bytes) -> Any:
    """Return the parsed JSON of a body, or None where it is none."""
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _raw(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
