"""The vault: reads the content of segments by content ID, and rebuilds complete sessions from it.

A fact contains the content ID of its content. A request body is rebuilt byte for byte (as redacted) from its chain of
differences.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import itertools
import json
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from agentobs.errors import DamagedError, ForeignError, RecordingError
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.line_lookup import Lookup
from agentobs.recording.journal.segments import (
    Damage,
    Line,
    content_path,
    facts_path,
    is_alive,
    read,
)
from agentobs.recording.journal.segments import segment_ids as segment_ids_of
from agentobs.recording.journal.unfinished_attempts import ATTEMPT_KINDS, crashed_attempts
from agentobs.recording.vault.body_deltas import rebuild
from agentobs.recording.vault.encryption import decrypted_line
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    Ending,
    Exchange,
    Failure,
    ModelExchange,
    Place,
    Question,
    RecordedJob,
    Recording,
    ReturnValue,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
    WorldExchange,
    WorldQuestion,
)
from agentobs.records.facts import DECLARED

KEPT_BODIES = 32
KEPT_BYTES = 64 * 1024 * 1024
"""The maximum number and the maximum total size of cached rebuilt bodies: the next request is nearly always a
difference from one of the last few. Our choice.
"""


_PARTS = "partial:"
_KILLED = Failure("ReadError", "the process ended before the response was complete")
"""The failure of a response whose end was not recorded."""


class Vault:
    """The content of one segment, indexed by content ID."""

    def __init__(self, home: Home, segment_id: str, session_id: str = "") -> None:
        """Index the segment's content file; a segment without content has none.

        Args:
            home: the home of the segment.
            segment_id: the segment.
            session_id: the session to read, so that an error can state whether its content was pruned.
        """
        self._path = content_path(home, segment_id)
        self._session_id = session_id
        self._contents = Lookup(self._path)
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._ended: dict[int, int] | None = None

    def __contains__(self, content_id: str) -> bool:
        """Return whether this segment contains the content with an ID."""
        return content_id in self._contents

    def value(self, content_id: str) -> dict[str, Any]:
        """Return a content line, decrypted.

        Raises:
            RecordingError: the line is missing (pruned, never written, or damaged), or cannot be decrypted.
        """
        payload = self._contents.payload(content_id)
        if payload is None:
            raise self._missing_error(content_id)
        value: dict[str, Any] = json.loads(payload.decode("utf-8", "surrogatepass"))
        return decrypted_line(value, self._path.stem, str(self._path))

    def _missing_error(self, content_id: str) -> RecordingError:
        pruned_ns = self._contents.pruned_ns(self._session_id)
        if pruned_ns is not None:
            return RecordingError(
                f"the content of session {self._session_id} was pruned on {day_of(pruned_ns)}",
                where=str(self._path),
                todo="agentobs show still lists its facts. To replay, freeze or resume, choose a session with content",
            )
        why = "is missing" if len(self._contents) else "was pruned completely"
        return RecordingError(
            f"content {content_id} {why}",
            where=str(self._path),
            todo="agentobs verify shows whether it was damaged; without its content a session can neither be "
            "replayed nor resumed",
        )

    def question(self, content_id: str) -> Question:
        """Return a recorded request with its rebuilt body.

        Raises:
            RecordingError: a link of its chain is missing.
        """
        value = self.value(content_id)
        return Question(value["method"], value["path"], value["headers"], self.body(content_id))

    def body(self, content_id: str) -> bytes:
        """Return a request body, rebuilt without recursion, because the chain of differences may be long.

        Raises:
            RecordingError: a link of its chain is missing.
            DamagedError: the chain is circular.
        """
        chain: list[str] = []
        link: str | None = content_id
        while link is not None and link not in self._bodies:
            if len(chain) > len(self._contents):
                raise DamagedError(
                    "a request body refers to itself as its base", where=str(self._path)
                )
            chain.append(link)
            link = self.value(link)["base"]
        body = self._bodies[link] if link is not None else b""
        for each in reversed(chain):
            value = self.value(each)
            body = rebuild(body, value["prefix"], value["suffix"], text_bytes(value))
            self._keep(each, body)
        return body

    def answer(self, content_id: str) -> Answer:
        """Return a recorded response with its chunks.

        Raises:
            RecordingError: the response is missing.
        """
        if content_id.startswith(_PARTS):
            return self._partial(content_id)
        value = self.value(content_id)
        parts = [
            self.value(part_id(value["pieces_of"], n + 1)) for n in range(value.get("pieces", 0))
        ]
        chunks = _chunks(b"".join(map(text_bytes, [*parts, value])), value["chunks"])
        failure = Failure(*value["failure"]) if value["failure"] else None
        return Answer(value["status"], value["headers"], tuple(chunks), value["ending"], failure)

    def origin(self, content_id: str) -> tuple[tuple[str, ...], str | None, RecordedJob | None]:
        """Return the caller of the request of a recorded response: digests, the previous attempt of its task, and its
        job.

        Raises:
            RecordingError: the response is missing.
        """
        if content_id.startswith(_PARTS):
            return (), None, None
        value = self.value(content_id)
        return tuple(value.get("caller", ())), value.get("task_previous"), self._job(value)

    def _job(self, value: dict[str, Any]) -> RecordedJob | None:
        if not value.get("job"):
            return None
        path = tuple((str(name), int(at), int(number)) for name, at, number in value["job"])
        ended = self._ended_jobs(value["session_id"]).get(path[-1][2])
        return RecordedJob(path, bool(value.get("is_worker")), ended)

    def _ended_jobs(self, session_id: str) -> dict[int, int]:
        """Return when the jobs of a session ended, by job number."""
        if self._ended is None:
            line = jobs_id(session_id)
            self._ended = dict(self.value(line)["ended"]) if line in self else {}
        return self._ended

    def _partial(self, content_id: str) -> Answer:
        """Return the written parts of a response whose end was not recorded."""
        numbers = takewhile(lambda n: part_id(content_id, n) in self, itertools.count(1))
        parts = [self.value(part_id(content_id, number)) for number in numbers]
        chunks = [chunk for each in parts for chunk in _chunks(text_bytes(each), each["chunks"])]
        last = parts[-1] if parts else {"status": None, "headers": {}}
        return Answer(last["status"], last["headers"], tuple(chunks), "cut", _KILLED)

    def _keep(self, content_id: str, body: bytes) -> None:
        self._bytes += len(body) - len(self._bodies.pop(content_id, b""))
        self._bodies[content_id] = body
        while len(self._bodies) > KEPT_BODIES or (
            self._bytes > KEPT_BYTES and len(self._bodies) > 1
        ):
            _, old = self._bodies.popitem(last=False)
            self._bytes -= len(old)


def jobs_id(session_id: str) -> str:
    """Return the content ID of the line of the jobs of a session."""
    return f"jobs:{session_id}"


def parts_id(attempt_id: str) -> str:
    """Return the content ID for all parts of a response that were written before it ended."""
    return f"{_PARTS}{attempt_id}"


def part_id(parts: str, number: int) -> str:
    """Return the content ID of one part, counted from 1; `parts` is the content ID for all parts."""
    return f"{parts}:{number}"


def _chunks(data: bytes, sizes: Sequence[Sequence[int]]) -> Iterator[Chunk]:
    at = 0
    for size, after_ns in sizes:
        yield Chunk(data[at : at + size], after_ns)
        at += size


def day_of(at_ns: int) -> str:
    """Return the day of a timestamp in UTC, as YYYY-MM-DD."""
    return f"{datetime.datetime.fromtimestamp(at_ns // 10**9, datetime.UTC):%Y-%m-%d}"


def text_bytes(value: dict[str, Any]) -> bytes:
    """Return the bytes in the field `text` or `base64` of a content line."""
    if "base64" in value:
        return base64.b64decode(value["base64"])
    text: str = value["text"]
    return text.encode("utf-8", "surrogatepass")


def read_session(
    home: Home,
    session_id: str,
    segment_ids: Sequence[str],
    *,
    bodies: Container[str] | None = None,
) -> Recording:
    """Read a session from its segments.

    Args:
        home: where the session was recorded.
        session_id: the full ID of the session.
        segment_ids: the segments of the session; additional ones are ignored.
        bodies: the attempts whose request bodies are needed; other attempts get empty bodies, because bodies can be
            large. Default all.

    Raises:
        RecordingError: the session is not in these segments, or its content is missing.
        DamagedError: a record has another form than those that agentobs writes.
    """
    try:
        return _session(home, session_id, segment_ids, bodies)
    except _OTHER_FORM as error:
        raise DamagedError(
            f"session {session_id} has a record that agentobs did not write ({type(error).__name__})",
            where=str(home.segments),
            todo="Run: agentobs verify",
        ) from error


_OTHER_FORM = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""The errors that values of another type, or missing values, cause."""


def _session(
    home: Home, session_id: str, segment_ids: Sequence[str], bodies: Container[str] | None
) -> Recording:
    start: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    start_content: dict[str, Any] = {}
    exchanges: list[Exchange] = []
    end_content: dict[str, Any] = {}
    interactions, missing, uses_world = _Interactions(), 0, False
    called_in: dict[str, tuple[Exchange, str | None]] = {}
    for segment_id in segment_ids:
        vault = Vault(home, segment_id, session_id)
        for kind, fact in _facts(home, segment_id, session_id):
            if kind == "session_starts":
                start = fact
                if fact.get("content") == "off":
                    raise _never_written(session_id)
                with _part_named("the recorded start of the session"):
                    start_content = json.loads(text_bytes(vault.value(fact["arguments_content"])))
            elif kind == "session_ends":
                end = fact
                with _part_named("the recorded end of the session"):
                    end_content = _end_content(vault, fact)
                    start_content |= end_content.get("started", {})
            elif kind == "attempts" and fact.get("origin") == "managed":
                continue  # only the provider has its request and response
            elif kind == "attempts":
                with _part_named("a request or its response", fact):
                    wanted = bodies is None or fact["attempt_id"] in bodies
                    exchanges.append(_attempt(vault, fact, wanted))
            elif kind == "tool_results" and fact["source"] == "run":
                with _part_named("the result of a tool"):
                    exchanges.append(_tool(vault, fact))
                    called_in[fact["content"]] = exchanges[-1], fact.get("attempt_id")
            elif kind == "world_answers":
                with _part_named(f"the result of an exchange of kind {fact['kind']}", fact):
                    exchanges.append(_world(vault, fact))
            elif kind == "events" and fact["kind"] == "world_read":
                uses_world = True
            elif kind == "gaps":
                missing += fact["records"]
            elif kind == "events" and fact["kind"] == "drop":
                missing += int(fact["numbers"].get("exchanges", 0))
            else:
                interactions.add(kind, fact)
    if start is None:
        if pruned_ns := _pruned_ns(home, session_id):
            raise RecordingError(
                f"session {session_id} was pruned on {day_of(pruned_ns)}: no data is left",
                where=str(home.segments),
                todo="Fixtures frozen from it still replay",
            )
        raise RecordingError(
            f"session {session_id} is not in its segments", where=str(home.segments)
        )
    return Recording(
        session_id=session_id,
        name=start_content["name"],
        entry=start_content["entry"],
        arguments=start_content["arguments"],
        outcome=end["outcome"] if end else "crashed",
        reason=end_content.get("reason", end["reason"]) if end else None,
        signature=_signature(end, end_content) if end else None,
        dropped=max(end["dropped"] if end else 0, missing),
        exchanges=tuple(_in_turns(exchanges, called_in.values())),
        interaction_results=interactions.results(),
        source=start.get("source", "recorded"),
        ambient={**start_content.get("ambient", {}), "started_ns": start["started_ns"]}
        if uses_world
        else None,
        result=ReturnValue(end_content["result"], end_content.get("type", ""))
        if "result" in end_content
        else None,
        exception=end_content.get("exception"),
        entry_obstacle=start_content.get("entry_obstacle"),
    )


def _end_content(vault: Vault, end: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the end of a session: its reason and its result, if recorded."""
    if end.get("end_content") is None:
        return {}
    content: dict[str, Any] = json.loads(text_bytes(vault.value(end["end_content"])))
    return content


def _signature(end: Mapping[str, Any], content: Mapping[str, Any]) -> str | None:
    """Return the failure signature of a session, with the text of the declared reason instead of its digest."""
    signature: str | None = end["signature"]
    if signature is None or "reason" not in content or not signature.startswith(DECLARED):
        return signature
    return f"{DECLARED}{content['reason']}"


def _in_turns(
    exchanges: list[Exchange], calls: Iterable[tuple[Exchange, str | None]]
) -> Iterator[Exchange]:
    """Yield exchanges in the order of their starts; calls of recorded functions get the turn that requested them.

    `calls` are the tool calls, each with the attempt that requested it, if that is known.
    """
    attempt_of = {id(each): attempt_id for each, attempt_id in calls}
    turns: dict[str | None, int | None] = {}
    last: dict[str, int | None] = {}
    for exchange in sorted(exchanges, key=lambda exchange: exchange.started_ns):
        place = exchange.place
        if isinstance(exchange, ModelExchange):
            turns[exchange.attempt_id] = place.turn
            last[place.lane] = place.turn or last.get(place.lane)
        elif isinstance(exchange, ToolExchange) and exchange.is_function:
            turn = turns.get(attempt_of[id(exchange)]) or last.get(place.lane)
            exchange = dataclasses.replace(exchange, place=dataclasses.replace(place, turn=turn))
        yield exchange


class _Interactions:
    """The interactions of a session, from their facts.

    Interactions that the agent loop of agentobs emitted have their own span. Interactions that were derived from the
    requests of other clients have none, and are not emitted in a replay.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, str] = {}
        self._emitted: set[str] = set()
        self._results: dict[str, str] = {}

    def add(self, kind: str, fact: dict[str, Any]) -> None:
        if kind == "interaction_starts":
            self._lanes[fact["interaction_id"]] = fact["lane"]
        elif kind == "interaction_ends":
            self._results[fact["interaction_id"]] = fact["result"]
        elif kind == "span_starts" and fact["name"] == "interaction":
            self._emitted.add(fact.get("interaction_id") or fact["trace_id"])

    def results(self) -> dict[str, list[str | None]]:
        by_lane: dict[str, list[str | None]] = {}
        for interaction_id, lane in self._lanes.items():
            if interaction_id in self._emitted:
                by_lane.setdefault(lane, []).append(self._results.get(interaction_id))
        return by_lane


def _facts(home: Home, segment_id: str, session_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the facts of a session, including those of its background agents after its end.

    Raises:
        RecordingError: there is damage between the start and the end of the session, and the damaged bytes may have
            been its facts.
    """
    needle = session_id.encode()
    path = facts_path(home, segment_id)
    lost: Damage | None = None
    inside = has_ended = False
    # Checked first, so that everything that a process wrote before it exited is read below.
    alive, attempt_lines = is_alive(path), []
    for line in read(path):
        if isinstance(line, Damage):
            lost = lost or (line if _may_hold(line, session_id) else None)
        elif line.kind == "lost":
            lost = lost or Damage(line.start, line.end, "records that a repair could not read")
        elif needle in line.payload and (fact := line.value()).get("session_id") == session_id:
            lost = None if line.kind == "session_starts" else lost
            if line.kind in ATTEMPT_KINDS:
                attempt_lines.append(line)
            if lost is None:
                yield line.kind, fact
            has_ended = has_ended or line.kind == "session_ends"
            inside = not has_ended
        if inside and lost is not None:
            raise _damaged(path, lost)
    for each in crashed_attempts(attempt_lines) if not alive else ():
        yield each.kind, each.value()


def _may_hold(damage: Damage, session_id: str) -> bool:
    """Return whether damaged records may have belonged to a session, according to the index if it can be read."""
    return damage.summary is None or session_id in damage.summary.sessions


def _pruned_ns(home: Home, session_id: str) -> int | None:
    """Return when a session was pruned completely, according to the segments; None if it was not."""
    needle, found = session_id.encode(), 0
    for each in segment_ids_of(home):
        with contextlib.suppress(OSError, ForeignError):
            for line in read(facts_path(home, each)):
                if isinstance(line, Line) and line.kind == "prunings" and needle in line.payload:
                    fact = line.value()
                    if (fact["session_id"], fact["scope"]) == (session_id, "all"):
                        found = max(found, int(fact["pruned_ns"]))
    return found or None


def _never_written(session_id: str) -> RecordingError:
    return RecordingError(
        f"session {session_id} was recorded without content: prompts and responses were not written",
        todo="Its costs, spans and events are available; to replay, freeze or continue a session, record "
        'with content="vault"',
    )


def _damaged(path: Path, damage: Damage) -> RecordingError:
    return RecordingError(
        f"the session is damaged at byte {damage.start}: {damage.reason}",
        where=str(path),
        todo="agentobs verify shows what is lost; an incomplete session cannot be replayed",
    )


@contextlib.contextmanager
def _part_named(part: str, fact: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Name the unreadable part of a session in an error."""
    try:
        yield
    except RecordingError as error:
        turn = f" in turn {fact['turn']} of {fact['lane']}" if fact and fact["turn"] else ""
        raise RecordingError(
            f"{part}{turn} cannot be read: {error.found}", where=error.where, todo=error.todo
        ) from error


def _attempt(vault: Vault, fact: dict[str, Any], with_body: bool) -> ModelExchange:
    without_body = Question(fact["method"], fact["endpoint"], {}, b"")
    caller, task_previous, job = vault.origin(fact["response_content"])
    # A replay knows only the lanes that the client reports. A derived lane counts its own turns.
    reported_lane = fact.get("reported_lane")
    return ModelExchange(
        place=Place(
            fact["session_id"],
            fact["interaction_id"],
            reported_lane or fact["lane"],
            None if reported_lane else fact["turn"],
            fact["span_id"],
            fact.get("query_source", "main"),
        ),
        attempt_id=fact["attempt_id"],
        started_ns=fact["started_ns"],
        headers_ns=fact["headers_ns"],
        ended_ns=fact["duration_ns"],
        question=vault.question(fact["request_content"]) if with_body else without_body,
        answer=_answer(vault, fact),
        caller=caller,
        task_previous=task_previous,
        job=job,
    )


def _answer(vault: Vault, fact: dict[str, Any]) -> Answer:
    answer = vault.answer(fact["response_content"])
    if fact["outcome"] != "crashed" or answer.chunks:
        return answer
    ending: Ending = "error" if fact["status"] is None else "cut"
    return dataclasses.replace(answer, status=fact["status"], ending=ending)


def _tool(vault: Vault, fact: dict[str, Any]) -> ToolExchange:
    value = vault.value(fact["content"])
    content = json.loads(text_bytes(value))
    return ToolExchange(
        place=Place(fact["session_id"], None, value["lane"], value["turn"]),
        started_ns=fact["started_ns"],
        duration_ns=fact["duration_ns"],
        question=ToolQuestion(value["tool_use_id"], value["name"], content["input"]),
        answer=ToolAnswer(
            content["result"],
            value["is_error"],
            value["outcome"],
            fact["attempts"],
        ),
        inspected_by=tuple(value.get("inspected_by", ())),
        requested_input=content.get("requested_input"),
        is_function=value.get("is_function", False),
    )


def _world(vault: Vault, fact: dict[str, Any]) -> WorldExchange:
    value = vault.value(fact["content"])
    content = json.loads(text_bytes(value))
    return WorldExchange(
        place=Place(fact["session_id"], fact["interaction_id"], fact["lane"], fact["turn"]),
        started_ns=fact["started_ns"],
        duration_ns=fact["duration_ns"],
        question=WorldQuestion(value["kind"], value["key"], content["question"]),
        answer=content["answer"],
    )
