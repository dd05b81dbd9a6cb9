r"""Fixtures: recordings made to be committed; the format, and its reader (its writer is `replay.writing`).

A fixture is a text file, one JSON value a line:

    {"agentobs_fixture": 3, "name": ..., "entry": ..., "arguments": ..., "outcome": ...}
    {"ask": 1, "lane": "main", "turn": 1, "method": "POST", "path": "/v1/messages", "body": {...}}
    {"answer": 1, "status": 200, "headers": {...}, "ending": "complete", "chunks": [[bytes, ms], ...]}
    {"event": "event: message_start\ndata: ..."}            one line a stream event, or one "body" or "text"
    {"world": "consent", "key": "toolu_...", "lane": "main", "turn": 1, "asked": ..., "answer": ...}
    {"tool": "toolu_...", "lane": "main", "turn": 1, "name": ..., "input": ..., "result": ...}
    {"ask": 2, "lane": "main", "like": 1, "add": [...]}      the history stands once
    {"end": {"asks": 2, "tools": 1, "world": 1}, "digest": "b2:..."}     over all the lines before

The first line says why the entry cannot be called, if it cannot (`obstacle`), and names the `normalisers` that are
applied whenever it is replayed, if it was frozen with some.

Only the first line names the `session` that it was frozen from, by its id: a fork reads the original answers there.
No other line tells an absolute time or an id of ours, so that recording one turn anew changes only its lines. Where a
session asked for its clock, ids or chance the first line alone has `given`: when it began, and what chance was drawn
from; its asks say when they were asked and answered, in `ms` after that.
Request bodies are rebuilt byte for byte. What was redacted stays redacted.

Version 2 (November 2026) has the lines of the world: what the loop asked beside model and tools. Each
stands behind the last request of its lane that was asked before it. It also has `tries` of a tool, and
the outcomes of calls that the loop answers itself or that were stopped. All else is as in version 1,
which was written when the loop asked nobody: there a call that ran was permitted by that alone.

Since then its first line may have `results`: how the interactions of our own loop ended, by lane, in the order
in which they began; null for one without an end. A fixture without them is judged by its `outcome` alone.

It may have `result`, too: what the session's function returned, in the forms of `agentobs.recording.values`. What could
not be kept is `{"$py": "not kept", "type": ...}` there, and is not compared. It may have `raised`: the class of the
exception that left a session which had declared another reason for its failure.

Version 3 (November 2026) says more of how agents ran that are not ours. Every key of it may be missing. Of requests of
one lane that were in flight together a line says `by` whom it was asked and `since` which ask of the same task, where
others asked the same; and the asks that its answer comes `behind`, or ends behind (`ends_behind`), and up to which one
all had been asked by then (`amid`). It says which `job` made the request, as the names and numbers of the tasks, work
items and threads that were started on the way to it, and which asks' jobs were `over` when its answer ended. Of one
that its client gave up it says when (`stopped_ms`). A call of a function that goes by no id of the model's says `after`
how many requests of its lane it came, and stands there, unless that was chance: where requests of its lane were in
flight together, or one beside it.
"""

from __future__ import annotations

import base64
import functools
import json
from collections import Counter, OrderedDict
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, get_args

from agentobs.errors import DamagedError, ForeignError, UsageError
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
    Returned,
    ToolAnswer,
    ToolQuestion,
    WorldQuestion,
    recorded_outcome,
)
from agentobs.records.messages import (
    assemble,
    tool_uses,
)
from replay.aligning import safe
from replay.checking import ANSWER, ASK, HEADER, TOOL, WORLD, check
from replay.pieces import Pieces, built, compact, take_apart

FORMAT = 3
"""The version that is written; every older one is read for ever, a newer one is refused."""
FILE = "recording.jsonl"
"""The name of a fixture's file in its folder."""
BYTES_MAX = 256 * 2**20
"""How large a fixture may be: it is read whole. Our choice, some forty times a session of 1,000 turns."""


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
    by: tuple[str, ...] | None = None
    """Who asked, as digests, the nearest first, where others asked the same beside it; None where none did."""
    since: int | None = None
    """The ask that the same task made before, or the one that started it, in such a case."""
    behind: frozenset[int] = frozenset()
    """The asks in flight beside it that had ended before anything of its answer came."""
    ends_behind: frozenset[int] = frozenset()
    """Those that had ended before its answer ended."""
    job: str | None = None
    """Which task, work item or thread made it, in such a case: digests of names and numbers of those that were started
    on the way to it, below the one that all have in common."""
    over: frozenset[int] = frozenset()
    """The asks whose jobs made no other request and were over when its answer ended."""
    amid: int | None = None
    """The last ask of its lane that had been asked when it ended, where others were in flight then."""
    pieces: Sequence[Sequence[int]] = field(default=(), repr=False)
    """In which pieces the answer came off the wire: the bytes of each, and its milliseconds after the request."""
    ms: tuple[int, int] | None = None
    """When it was asked and when its answer ended, in milliseconds after the session began; None where the session did
    not ask for its clock."""
    stopped_ms: tuple[int, int] | None = None
    """When its client gave it up, in milliseconds after it was asked, and after the first request of the session; None
    where it did not, or nobody knows when."""


@dataclass(frozen=True, slots=True)
class RecordedTool:
    """One recorded tool call with its result."""

    lane: str
    turn: int | None
    question: ToolQuestion
    answer: ToolAnswer
    is_function: bool = False
    """Whether it is a call of a function of `agentobs.record_tool`; see `agentobs.records.exchanges.ToolExchange`."""
    after: int | None = None
    """How many requests of its lane were asked before it; None where its id tells, or where that was chance."""


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
        self._digests: dict[int, str] = {}

    @property
    def asks_the_world(self) -> bool:
        """Whether it was recorded with what was asked beside model and tools: from version 2 on."""
        return bool(self.header["agentobs_fixture"] >= 2)

    @property
    def name(self) -> str:
        """The recorded session's name."""
        return str(self.header["name"])

    @property
    def session_id(self) -> str | None:
        """The full id of the session that it was frozen from; None in fixtures from before that was kept."""
        found: str | None = self.header.get("session")
        return found

    @property
    def given(self) -> dict[str, Any] | None:
        """What it drew ids and chance from, and when it began; None where it asked for none of them."""
        found: dict[str, Any] | None = self.header.get("given")
        return found

    @property
    def results(self) -> dict[str, list[str | None]] | None:
        """How the interactions of the loop ended, by lane; None where it was recorded without."""
        found: dict[str, list[str | None]] | None = self.header.get("results")
        return found

    @property
    def result(self) -> Returned | None:
        """What the session returned, as JSON that `agentobs.recording.returned` wrote; None if that is not known."""
        return Returned(self.header["result"]) if "result" in self.header else None

    @property
    def until(self) -> int | None:
        """The turn of the main lane up to which the session was frozen; None where it is whole."""
        found: int | None = self.header.get("until")
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
                f"request {number} of the fixture does not read: {_told(error)}",
                where=str(self.path),
                todo=_AGAIN,
            ) from error

    def is_same(self, one: int, other: int) -> bool:
        """Return whether two asks have one method, path and body."""
        for number in {one, other} - self._digests.keys():
            ask = self.asks[number - 1]
            head = f"{ask.method} {ask.path} ".encode("utf-8", "surrogatepass")
            self._digests[number] = digest(head + self.body(number))
        return self._digests[one] == self._digests[other]

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
    _check_size(file)
    return parse(file, file.read_bytes())


def parse(file: Path, data: bytes) -> Fixture:
    """Return the fixture that `data` holds; `file` is the path that it has, or will have.

    Raises:
        ForeignError: the data is not a fixture, or is of a newer version.
        DamagedError: it is cut off, or was changed by hand.
    """
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
        whole = end["end"] == counts(asks, tools, world) and header.keys() >= _HEADER
        check(header, HEADER, "the first line")
        date.fromisoformat(header.get("day", "2026-01-01"))
    except _UNREADABLE as error:
        raise DamagedError(
            f"the fixture does not read: {_told(error)}", where=str(file), todo=_AGAIN
        ) from error
    if not whole:
        raise DamagedError("the fixture is not whole", where=str(file), todo=_AGAIN)
    for ask in asks:
        if not ask.shape and ask.method == "POST" and ask.path.partition("?")[0] == "/v1/messages":
            raise DamagedError(
                f"the body of request {ask.number} was taken out", where=str(file), todo=_AGAIN
            )
    return Fixture(file, header, asks, tools, world)


def _check_size(file: Path) -> None:
    size = file.stat().st_size
    if size > BYTES_MAX:
        raise DamagedError(
            f"a fixture of {size // 2**20:,} MB; at most {BYTES_MAX // 2**20} MB are read",
            where=str(file),
            todo="Freeze less of the session: agentobs freeze SESSION --until-turn N",
        )


_HEADER = {"name", "entry", "arguments", "outcome", "reason", "signature"}
"""What a first line has besides the version."""
_UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What reading raises where a line is not what it should be."""
_KINDS = get_args(AskKind)
_AGAIN = "Restore it from version control, or freeze the session again"


def _told(error: Exception) -> str:
    """Return what is wrong; a `KeyError` tells only the key."""
    return safe(str(error) if type(error) is ValueError else repr(error))


def _header(file: Path, data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data.partition(b"\n")[0])
        version = header["agentobs_fixture"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForeignError(
            "not a fixture", where=str(file), todo="agentobs freeze SESSION makes one"
        ) from error
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise ForeignError(
            f"a fixture of version {safe(str(version)[:40])}; this version of agentobs reads up to {FORMAT}",
            where=str(file),
            todo="Install the version that wrote it, or a newer one",
        )
    parsed: dict[str, Any] = header
    return parsed


def counts(asks: Sized, tools: Sized, world: Sized) -> dict[str, int]:
    """Return what the last line counts."""
    counts = {"asks": len(asks), "tools": len(tools)}
    return {**counts, "world": len(world)} if len(world) else counts


def _parse(data: bytes) -> tuple[list[Ask], list[RecordedTool], list[RecordedAnswer]]:
    asks: list[Ask] = []
    tools: list[RecordedTool] = []
    world: list[RecordedAnswer] = []
    asked: Counter[str] = Counter()
    lines = _read(data.partition(b"\n")[2].strip().split(b"\n"))
    at = 0
    while at < len(lines):
        value = lines[at]
        at += 1
        if "tool" in value:
            check(value, TOOL, f"tool call {len(tools) + 1}")
            tools.append(_tool(value))
            continue
        if "world" in value:
            check(value, WORLD, "an answer of the world")
            world.append(_world(value, asked[value["lane"]]))
            continue
        body: list[Any] = []
        check(value, ASK, f"request {len(asks) + 1}")
        answer = lines[at]
        check(answer, ANSWER, f"the answer of request {len(asks) + 1}")
        at += 1
        while at < len(lines) and _is_of_answer(lines[at]):
            body.append(lines[at])
            at += 1
        asks.append(_ask(value, _answer(answer, body), answer.get("chunks", []), asks))
        asked[asks[-1].lane] += 1
    return asks, tools, world


_EVENT = b'{"event": '
"""How the line of an event begins as it is written."""


def _read(lines: list[bytes]) -> list[Any]:
    """Return the values of lines; the events of an answer are one list of texts, for most lines are events."""
    parts: list[bytes] = []
    events: list[bytes] = []
    for line in lines:
        if line.startswith(_EVENT):
            events.append(line[len(_EVENT) : -1])
            continue
        if events:
            parts.append(b"[" + b",".join(events) + b"]")
            events = []
        parts.append(line)
    if events:
        parts.append(b"[" + b",".join(events) + b"]")
    read: list[Any] = json.loads(b"[" + b",".join(filter(None, parts)) + b"]")
    return read


def _is_of_answer(value: Any) -> bool:
    return isinstance(value, list) or not {"ask", "tool", "world"} & value.keys()


def _ask(value: dict[str, Any], answer: Answer, pieces: list[list[int]], before: list[Ask]) -> Ask:
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
        by=tuple(value["by"]) if "by" in value else None,
        since=value.get("since"),
        behind=frozenset(value.get("behind", ())),
        ends_behind=frozenset(value.get("ends_behind", ())),
        job=value.get("job"),
        over=frozenset(value.get("over", ())),
        amid=value.get("amid"),
        pieces=pieces,
        ms=(int(value["ms"][0]), int(value["ms"][1])) if "ms" in value else None,
        stopped_ms=(int(value["stopped_ms"][0]), int(value["stopped_ms"][1]))
        if "stopped_ms" in value
        else None,
    )


def _answer(value: dict[str, Any], lines: list[Any]) -> Answer:
    data = b"".join(map(_bytes_of, lines))
    failure = Failure(*value["failure"]) if value.get("failure") else None
    chunks = (Chunk(data, 0),) if data else ()
    return Answer(value["status"], value["headers"], chunks, value["ending"], failure)


def _bytes_of(line: Any) -> bytes:
    """Return the part of an answer's body that a line tells, or the lines of some events."""
    if isinstance(line, list):
        return "".join(line).encode("utf-8", "surrogatepass")
    if "body" in line:
        return compact(line["body"])
    if "base64" in line:
        return base64.b64decode(line["base64"])
    told = line["event"] if "event" in line else line["text"]
    return str(told).encode("utf-8", "surrogatepass")


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
        is_function=bool(value.get("function", False)),
        after=value.get("after"),
    )


def _world(value: dict[str, Any], after: int) -> RecordedAnswer:
    if value["world"] not in _KINDS:
        raise ValueError(f"a question of kind {value['world']!r}")
    question = WorldQuestion(value["world"], str(value["key"]), value["asked"])
    return RecordedAnswer(value["lane"], value.get("turn"), after, question, value["answer"])


def as_recording(fixture: Fixture) -> Recording:
    """Return a fixture as a recording, to be served: answers in the pieces of the wire; requests at no time."""
    exchanges = tuple(
        ModelExchange(
            place=Place(fixture.name, None, ask.lane, ask.turn),
            attempt_id=f"{ask.number:032x}",
            started_ns=ask.number,
            headers_ns=None,
            ended_ns=0,
            question=Question(ask.method, ask.path, ask.headers, fixture.body(ask.number)),
            answer=_as_it_came(ask),
        )
        for ask in fixture.asks
    )
    header = fixture.header
    return Recording(
        session_id=fixture.name,
        name=fixture.name,
        entry=header["entry"],
        arguments=header["arguments"],
        obstacle=header.get("obstacle"),
        outcome=header["outcome"],
        reason=header["reason"],
        signature=header["signature"],
        dropped=0,
        exchanges=exchanges,
        results=fixture.results or {},
        result=fixture.result,
        raised=header.get("raised"),
    )


def _as_it_came(ask: Ask) -> Answer:
    """Return an answer in the pieces in which it came off the wire, with what is in none of them at the end."""
    body, at, chunks = ask.answer.body, 0, list[Chunk]()
    after_ns = 0
    for size, after_ms in ask.pieces:
        after_ns = after_ms * 1_000_000
        chunks.append(Chunk(body[at : at + size], after_ns))
        at += size
    rest = [Chunk(body[at:], after_ns)] if at < len(body) else []
    return replace(ask.answer, chunks=(*chunks, *rest))
