"""The recorder: the consumer of records that writes them down.

The caller's thread only puts a reference on a queue that is bounded in bytes. One worker thread
redacts, takes exchanges apart into facts and content, and appends them to this process's segment.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import dataclasses
import json
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentobs import world
from agentobs.errors import say_once
from agentobs.ledger import Meter
from agentobs.recording import wire
from agentobs.recording.bodies import Bodies, Body
from agentobs.recording.derive import SessionView
from agentobs.recording.encodings import decoded
from agentobs.recording.home import Home
from agentobs.recording.journal import Segment
from agentobs.recording.prefixes import Prefixes
from agentobs.recording.streams import find_in_stream
from agentobs.records.canonical import canonical, digest
from agentobs.records.exchanges import (
    Answer,
    ModelExchange,
    SessionCall,
    ToolExchange,
    WorldExchange,
    is_beside,
    weight,
)
from agentobs.records.facts import (
    TABLES,
    Fact,
    InteractionEnd,
    InteractionStart,
    Permission,
    SessionEnd,
    SessionStart,
    UsageRow,
    columns,
    settled,
)
from agentobs.records.labels import Label, label
from agentobs.redaction import Finding, apply, disjoint, find, redact, redact_named
from agentobs.sink import Record

QUEUE_BYTES = 64 * 1024 * 1024
"""What may wait to be written; beyond it exchanges are dropped and their session is incomplete."""
SEGMENT_BYTES = 64 * 1024 * 1024
"""A segment is closed and the next one opened beyond this size."""
KNOWN_LABELS = 4096
"""How many names are remembered as labels; beyond it each is checked anew."""
SYNC_SECONDS = 0.2
"""How often what was written is made to survive a power loss."""


@dataclass(frozen=True, slots=True)
class RecorderStatistics:
    """What became of the records that the recorder was given."""

    written: int
    """Records that are in the journal."""
    dropped: int
    """Records that were not written: the queue was full, or the disk refused."""
    waiting: int
    """Records in the queue."""


class _Stop:
    """Ends the worker."""


class Recorder:
    """Writes the records of one process into segments of one home."""

    def __init__(self, home: Home) -> None:
        """Write into `home`; the first segment is created with the first record."""
        self.home = home
        self._key = home.key()
        self._meters: dict[str, Meter] = {}
        self._seen_results: set[tuple[str, int]] = set()
        self._begin()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forked)

    def _begin(self) -> None:
        """Start with nothing written: a new process, or the child of one."""
        self._queue: queue.SimpleQueue[tuple[Record | _Stop, int]] = queue.SimpleQueue()
        # Reentrant: the garbage collector may end an exchange, and so hand it in, while one is handed in.
        self._lock = threading.RLock()
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None
        self._segment: Segment | None = None
        self._views: dict[str, SessionView] = {}
        self._bodies: dict[str, Bodies] = {}
        self._lost: dict[str, int] = {}
        self._labels: dict[str, Label] = {}
        self._results: dict[str, InteractionEnd] = {}
        self._beside: set[str] = set()
        """Interactions of agents in the background: how they end does not say how their session does."""
        self._going_on: set[str | None] = set()
        """Those that have not ended, and may outlive their session."""
        self._waiting_bytes = self._given = self._handled = 0
        self._written = self._dropped = 0
        self._closed = False

    def __call__(self, record: Record) -> None:
        """Take one record; never waits, never raises.

        With the end of a session come its exchanges that have not ended: nothing of it follows its end, but for
        what its agents in the background go on to do.
        """
        if isinstance(record, InteractionStart) and is_beside(record.lane):
            self._going_on.add(record.interaction_id)
        elif isinstance(record, InteractionEnd):
            self._going_on.discard(record.interaction_id)
        elif isinstance(record, SessionEnd):
            for exchange in wire.take_open(record.session_id, but=self._going_on):
                self(exchange)
        size = weight(record)
        if self._waiting_bytes + size > QUEUE_BYTES or self._closed:
            self._drop(_session_of(record))
            return
        with self._lock:
            self._waiting_bytes += size
            self._given += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="agentobs-recorder", daemon=True
                )
                self._thread.start()
        self._queue.put((record, size))

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until everything given so far is written, at most so long; returns whether it is."""
        target = self._given
        with self._progress:
            return self._progress.wait_for(lambda: self._handled >= target, timeout=seconds)

    def close(self, seconds: float = 5.0) -> bool:
        """Write what waits and seal the segment; returns whether everything was written in time.

        Exchanges that have not ended are written as they stand, cancelled.
        """
        if self._closed:
            return True
        for exchange in wire.take_open():
            self(exchange)
        done = self.flush(seconds)
        self._closed = True
        if self._thread is not None:
            self._queue.put((_Stop(), 0))
            self._thread.join(seconds)
        return done

    def meter(self, session_id: str) -> Meter:
        """Return what adds up a session's costs while it is recorded."""
        if session_id not in self._meters:
            meter = self._meters.setdefault(session_id, Meter(seen=self._seen_results))
            if lost := self._lost.get(session_id, 0):
                meter.lose(lost)
        return self._meters[session_id]

    def statistics(self) -> RecorderStatistics:
        """Return the counts so far."""
        return RecorderStatistics(self._written, self._dropped, self._given - self._handled)

    def _forked(self) -> None:
        """In a child process: leave the parent's segment alone and start with an own one."""
        segment = self._segment
        wire.forget_open()
        for meter in self._meters.values():
            meter.forked()
        self._begin()
        if segment is not None:
            segment.abandon()

    def _work(self) -> None:
        dirty = False
        while True:
            try:
                record, size = self._queue.get(timeout=SYNC_SECONDS if dirty else None)
            except queue.Empty:
                dirty = self._sync()
                continue
            if isinstance(record, _Stop):
                self._seal()
                return
            self._handle(record)
            dirty = True
            with self._progress:
                self._waiting_bytes -= size
                self._handled += 1
                self._progress.notify_all()

    def _handle(self, record: Record) -> None:
        """Write a record or count it as dropped; nothing that is raised here may end the worker."""
        try:
            self._write(record)
            self._written += 1
        except BaseException as error:
            self._drop(_session_of(record), error)

    def _write(self, record: Record) -> None:
        segment = self._open_segment()
        if isinstance(record, ModelExchange):
            self._write_attempt(segment, record)
        elif isinstance(record, ToolExchange):
            content = tool_content(record)
            segment.content.append("tool", content)
            for fact in self._view(record.place.session_id).tool(record, content["content_id"]):
                self._append(segment, fact)
        elif isinstance(record, WorldExchange):
            content = world_content(record)
            segment.content.append("world", content)
            answered = self._view(record.place.session_id).world(record, content["content_id"])
            self._append(segment, answered)
        elif isinstance(record, SessionCall):
            self._write_start(segment, record)
        elif isinstance(record, SessionEnd):
            for fact in self._view(record.session_id).ended(record.ended_ns):
                self._append(segment, fact)
            self._append(segment, self._ended(record))
        else:
            if isinstance(record, InteractionStart) and is_beside(record.lane):
                self._beside.add(record.interaction_id)
            elif isinstance(record, InteractionEnd) and record.interaction_id in self._beside:
                self._beside.discard(record.interaction_id)
            elif isinstance(record, InteractionEnd):
                self._results[record.session_id] = record
            if isinstance(record, Permission):
                record = self._decided(record)
            self._append(segment, record)

    def _write_attempt(self, segment: Segment, exchange: ModelExchange) -> None:
        exchange = decoded(exchange)
        session_id = exchange.place.session_id
        if exchange.lost_bytes:
            self._lose(session_id)
        bodies = self._bodies.setdefault(session_id, Bodies())
        head = canonical(request_head(exchange)).encode("utf-8", "surrogatepass")
        body = bodies.add(exchange.question.body, exchange.secrets, head)
        segment.content.append("request", request_content(exchange, body))
        answered = response_content(exchange)
        segment.content.append("response", answered)
        contents = (body.content_id, str(answered["content_id"]))
        for fact in self._view(session_id).attempt(exchange, body, contents):
            self._append(segment, fact)

    def _append(self, segment: Segment, fact: Fact) -> None:
        segment.facts.append(TABLES[type(fact)], columns(fact))
        if isinstance(fact, UsageRow) and fact.session_id in self._meters:
            self._meters[fact.session_id].add_facts((fact,))

    def _write_start(self, segment: Segment, call: SessionCall) -> None:
        content = start_content(call)
        segment.content.append("start", content)
        self._append(segment, self._labelled(call.start, content["content_id"]))

    def _labelled(self, start: SessionStart, content_id: str) -> SessionStart:
        return dataclasses.replace(
            start,
            name=self._label(start.name),
            entry=self._label(start.entry) if start.entry else None,
            tags={self._label(key): self._label(value) for key, value in start.tags.items()},
            arguments_content=content_id,
            continues_session_id=self._label(start.continues_session_id)
            if start.continues_session_id
            else None,
        )

    def _ended(self, end: SessionEnd) -> SessionEnd:
        """Complete a session's end: what was lost, and whether its last interaction failed."""
        session_id = end.session_id
        self._views.pop(session_id, None)
        self._bodies.pop(session_id, None)
        self._meters.pop(session_id, None)
        end = settled(end, self._results.pop(session_id, None))
        reason = self._label(end.reason) if end.reason else None
        signature = self._label(end.signature) if end.signature else None
        return dataclasses.replace(
            end, reason=reason, signature=signature, dropped=self._lost.pop(session_id, 0)
        )

    def _decided(self, permission: Permission) -> Permission:
        """Make labels of the names in a decision: rules are written by people, tools are called by models."""
        return dataclasses.replace(
            permission,
            lane=self._label(permission.lane),
            tool_use_id=self._label(permission.tool_use_id),
            tool=self._label(permission.tool),
            source=self._label(permission.source) if permission.source else None,
            rule=self._label(permission.rule) if permission.rule else None,
        )

    def _view(self, session_id: str) -> SessionView:
        if session_id not in self._views:
            self._views[session_id] = SessionView(
                session_id, self._label, world.new_id, Prefixes(self._key)
            )
        return self._views[session_id]

    def _label(self, text: str) -> Label:
        """Return a label of a name; what looks like a secret becomes a digest, as what is no label does."""
        known = self._labels.get(text)
        if known is None:
            safe = redact(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
            known = label(safe, self._key)
            if len(self._labels) < KNOWN_LABELS:
                self._labels[text] = known
        return known

    def _open_segment(self) -> Segment:
        if self._segment is not None and self._segment.size > SEGMENT_BYTES:
            self._seal()
        if self._segment is None:
            self._segment = Segment(self.home)
            for bodies in self._bodies.values():
                bodies.forget()
        return self._segment

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            try:
                segment.close()
            except Exception as error:
                self._warn(error)

    def _sync(self) -> bool:
        try:
            if self._segment is not None:
                self._segment.sync()
        except Exception as error:
            self._warn(error)
        return False

    def _drop(self, session_id: str, error: BaseException | None = None) -> None:
        self._dropped += 1
        self._lose(session_id)
        self._warn(error)

    def _lose(self, session_id: str) -> None:
        """Remember that something of a session is not in the journal, nor in what it is known to have spent."""
        self._lost[session_id] = self._lost.get(session_id, 0) + 1
        if meter := self._meters.get(session_id):
            meter.lose()

    def _warn(self, error: BaseException | None) -> None:
        with contextlib.suppress(Exception):  # even the text of an error may fail
            why = repr(error) if error else "more was recorded than the disk could take"
            say_once(
                f"a record was not written to {self.home.path}: {why}. The agent goes on; the session "
                "is marked incomplete and cannot be frozen.",
                about=f"not written to {self.home.path}",
            )


def request_head(exchange: ModelExchange) -> dict[str, Any]:
    """Return what a request says besides its body, redacted."""
    return {
        "method": exchange.question.method,
        "path": redact(exchange.question.path.encode(), exchange.secrets).decode(),
        "headers": exchange.question.headers,
    }


def request_content(exchange: ModelExchange, body: Body) -> dict[str, Any]:
    """Return the content line of a request: its difference from an earlier one, and what was redacted."""
    return {
        "content_id": body.content_id,
        "session_id": exchange.place.session_id,
        **request_head(exchange),
        "base": body.base,
        "prefix": body.prefix,
        "suffix": body.suffix,
        **_text(body.insert),
        "redactions": _notes(body.redactions),
    }


def response_content(exchange: ModelExchange) -> dict[str, Any]:
    """Return the content line of a response: its bytes, redacted, and how they arrived."""
    answer = exchange.answer
    raw = answer.body
    # What is found in pieces goes first: of two findings in one place it knows better what to write.
    pieces = find_in_stream(raw, exchange.secrets)
    findings = disjoint(pieces + find(raw, known=exchange.secrets))
    written = apply(raw, findings)
    failure = answer.failure
    return {
        "content_id": digest(exchange.attempt_id.encode() + written),
        "session_id": exchange.place.session_id,
        "status": answer.status,
        "headers": answer.headers,
        **_text(written),
        "chunks": _chunks(answer, findings),
        "ending": answer.ending,
        "failure": [failure.name, redact(failure.message.encode(), exchange.secrets).decode()]
        if failure
        else None,
        "redactions": _notes(findings),
    }


def start_content(call: SessionCall) -> dict[str, Any]:
    """Return the content line of a session's start: name, entry, tags and arguments as given, redacted."""
    start = call.start
    given = {
        "name": start.name,
        "entry": start.entry,
        "tags": dict(start.tags),
        "arguments": redact_named(call.arguments),
    }
    text = json.dumps(given, ensure_ascii=False).encode("utf-8", "surrogatepass")
    findings = find(text)
    written = apply(text, findings)
    return {
        "content_id": digest(start.session_id.encode() + written),
        "session_id": start.session_id,
        **_text(written),
        "redactions": _notes(findings),
    }


def tool_content(exchange: ToolExchange) -> dict[str, Any]:
    """Return the content line of a tool call: input and result as one JSON text, redacted."""
    text = json.dumps(
        {"input": exchange.question.input, "result": exchange.answer.content},
        ensure_ascii=False,
        default=repr,
    ).encode("utf-8", "surrogatepass")
    findings = find(text)
    written = apply(text, findings)
    # Agents beside each other may have calls of one id and with one result.
    call = f"{exchange.place.lane} {exchange.place.turn} {exchange.question.tool_use_id}"
    return {
        "content_id": digest(call.encode("utf-8", "surrogatepass") + written),
        "session_id": exchange.place.session_id,
        "tool_use_id": exchange.question.tool_use_id,
        "name": exchange.question.name,
        **_text(written),
        "is_error": exchange.answer.is_error,
        "outcome": exchange.answer.outcome,
        "lane": exchange.place.lane,
        "turn": exchange.place.turn,
        **({"followed_by": list(exchange.followed_by)} if exchange.followed_by else {}),
        "redactions": _notes(findings),
    }


def world_content(exchange: WorldExchange) -> dict[str, Any]:
    """Return the content line of a question to the world: question and answer as one JSON text, redacted."""
    question = exchange.question
    text = json.dumps(
        {"asked": question.asked, "answer": exchange.answer}, ensure_ascii=False, default=repr
    ).encode("utf-8", "surrogatepass")
    findings = find(text)
    written = apply(text, findings)
    named = f"{exchange.place.lane} {question.kind} {question.key} {exchange.started_ns} "
    return {
        "content_id": digest(named.encode("utf-8", "surrogatepass") + written),
        "session_id": exchange.place.session_id,
        "kind": question.kind,
        "key": redact(question.key.encode("utf-8", "surrogatepass")).decode(
            "utf-8", "surrogatepass"
        ),
        **_text(written),
        "redactions": _notes(findings),
    }


def _chunks(answer: Answer, findings: Sequence[Finding]) -> list[list[int]]:
    """Return [bytes, nanoseconds after the request] of each chunk, as they stand after redaction.

    What takes the place of a secret belongs to the chunk in which the secret begins.
    """
    sizes: list[list[int]] = []
    waiting = list(reversed(findings))
    at = gone = 0
    for chunk in answer.chunks:
        end = at + len(chunk.data)
        size = end - max(at, min(gone, end))
        while waiting and waiting[-1].start < end:
            finding = waiting.pop()
            gone = finding.end
            size += len(finding.written) - (min(gone, end) - finding.start)
        sizes.append([size, chunk.after_ns])
        at = end
    return sizes


def _notes(findings: Sequence[Finding]) -> list[list[Any]]:
    return [[f.kind, f.start, f.end - f.start] for f in findings]


def _text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _session_of(record: Record) -> str:
    if isinstance(record, ModelExchange | ToolExchange | WorldExchange):
        return record.place.session_id
    return record.start.session_id if isinstance(record, SessionCall) else record.session_id
