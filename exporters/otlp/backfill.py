"""Backfill: sends recorded sessions to a collector, with the IDs and times of the recording.

    report = send_recorded(store, sender, profile_named("both"), since_ns=...)

The code for live sessions processes a recorded session from its first fact, and all items after the send position of
the destination are sent. Therefore, spans that were open at the end of an earlier export are sent complete, and each
record is sent once. A position is written when a message was accepted. If the process is killed between the two, this
message is sent again, with the same IDs. A span that was sent as abandoned stays abandoned if its end is found later.
At most one message per signal is pending, and nothing is dropped.

Metrics are deltas over the times of the recording, with a separate resource for each session. The sums of the live
exporter are not continued, because the process that they describe has ended.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.resources import Resource

from agentobs.ledger import load_prices
from agentobs.records.backend import WrittenFact
from agentobs.records.facts import Attempt, Fact, SessionStart
from agentobs.records.labels import Label
from agentobs.store.port import Store
from exporters.conventions.profile import Profile
from exporters.otlp.delivery import Delivery
from exporters.otlp.outbox import SIGNALS, Limits, Send, Signal
from exporters.otlp.send_positions import PositionWriter, SendPosition, export_lock, read_positions
from exporters.otlp.translation import Instruments, Translator
from exporters.stored_facts import (
    PAGE,
    RecordedContent,
    RecordedSession,
    Row,
    conversations,
    facts_of,
    recorded_sessions,
)

_NOUNS = {"traces": "spans", "logs": "log records", "metrics": "data points"}


@dataclass(slots=True)
class Report:
    """The result of a backfill."""

    sessions: int = 0
    """The number of sessions with sent items."""
    already_sent: int = 0
    """The number of sessions without new items."""
    live: int = 0
    """The number of sessions that were skipped because they were exported live to this destination."""
    accepted: Counter[str] = field(default_factory=Counter)
    """The number of accepted items by signal: spans, log records, data points."""
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of lost items, which are not sent again, by signal and reason."""
    stopped: dict[Signal, str] = field(default_factory=dict)
    """Why the remaining items of a signal were not sent, by signal."""
    without_content: int = 0
    """The number of exchanges that were sent without their content, because it could not be read."""
    unreadable: int = 0
    """The number of facts that could not be converted."""
    late_ends: int = 0
    """The number of spans that were sent as abandoned and ended later."""

    @property
    def is_complete(self) -> bool:
        """Whether all items were accepted."""
        return not self.lost and not self.stopped and not self.unreadable

    def lines(self) -> list[str]:
        """Return the report as lines: accepted items first, then other items with the reason."""
        accepted = ", ".join(f"{self.accepted[s]} {_NOUNS[s]}" for s in SIGNALS if self.accepted[s])
        lines = [f"{self.sessions} sessions sent: {accepted or 'nothing'}"]
        if self.already_sent:
            lines.append(f"{self.already_sent} sessions were already sent")
        if self.live:
            lines.append(
                f"{self.live} sessions are skipped, because they were exported live to this collector; "
                "pass --again to send them too"
            )
        if self.without_content:
            lines.append(
                f"{self.without_content} exchanges were sent without their content, because it could not be read"
            )
        if self.late_ends:
            lines.append(
                f"{self.late_ends} spans were exported as abandoned and ended later; only the recording contains "
                "their end"
            )
        if self.unreadable:
            lines.append(
                f"not sent: {self.unreadable} records, because required fields are missing"
            )
        lines += [
            f"rejected: {count} {_NOUNS[signal]}, {reason}; they are not sent again"
            for (signal, reason), count in sorted(self.lost.items())
        ]
        lines += [
            f"{signal} not sent completely: {why}; the same command continues from this point"
            for signal, why in self.stopped.items()
        ]
        if self.accepted["traces"] and self.stopped and "traces" not in self.stopped:
            lines.append("if the collector accepts only traces, pass --signal traces")
        return lines


def send_recorded(
    store: Store,
    send: Send,
    profile: Profile,
    destination: Label,
    *,
    since_ns: int | None = None,
    session_ids: Sequence[str] = (),
    signals: Sequence[Signal] = SIGNALS,
    service: str = "agentobs",
    limits: Limits | None = None,
    resend: bool = False,
    report_wait: Callable[[str], None] = lambda text: None,
) -> Report:
    """Send recorded data that was not sent to a destination yet.

    Args:
        store: the store of the home that contains the recordings.
        send: sends one message.
        profile: the semantic-convention profile.
        destination: the name of the collector in send positions.
        since_ns: only sessions that started at or after this time.
        session_ids: only these sessions; empty for all.
        signals: the signals to send.
        service: the name of the service.
        limits: the size of messages, and the number of retries.
        resend: also send data that was already sent, live or by a backfill.
        report_wait: receives messages about waits.

    Raises:
        UsageError: another process is sending.
        OSError: a position cannot be written.
    """
    load_prices()
    with export_lock(store.home):
        positions = {} if resend else read_positions(store, destination)
        writer = PositionWriter(store.home, destination, Label(profile.name))
        report, selected = Report(), []
        for session in recorded_sessions(store, since_ns=since_ns, session_ids=session_ids):
            if not resend and destination in session.live:
                report.live += 1
            elif all(
                positions.get((s, session.session_id), _NOT_SENT).has_all(session) for s in signals
            ):
                report.already_sent += 1
            else:
                selected.append(session)
        delivery = Delivery(send, limits or Limits(), report_wait)
        run = _Run(
            profile, service, delivery, limits or Limits(), signals, positions, writer, report
        )
        try:
            run.send(store, selected)
        finally:
            writer.close()
        return report


_NOT_SENT = SendPosition()


@dataclass(frozen=True, slots=True)
class _Item:
    """A span, a log record, or the metrics of a session for a period."""

    session: RecordedSession
    at: tuple[str, int]
    """Segment ID and number of the record that completed the item; for an orphaned span, `_END`."""
    payload: Any
    size: int
    count: int = 1
    """The number of items in the payload, as the collector counts them."""
    ordinal: int = 1
    """The number of the item, from 1, among the items that one record completed, or among the orphaned spans."""


@dataclass(frozen=True, slots=True)
class _SessionEnd:
    """A queue entry that marks the end of a session."""

    session: RecordedSession


class _Run:
    """One backfill."""

    def __init__(
        self,
        profile: Profile,
        service: str,
        delivery: Delivery,
        limits: Limits,
        signals: Sequence[Signal],
        positions: dict[tuple[Signal, str], SendPosition],
        writer: PositionWriter,
        report: Report,
    ) -> None:
        self._profile, self._service, self._delivery, self._limits = (
            profile,
            service,
            delivery,
            limits,
        )
        self._signals, self._positions, self._writer, self._report = (
            signals,
            positions,
            writer,
            report,
        )
        self._queues: dict[Signal, deque[_Item | _SessionEnd]] = {each: deque() for each in signals}
        self._waiting: Counter[Signal] = Counter()
        self._sizes: Counter[Signal] = Counter()
        self._instruments = Instruments(profile.metrics, {}, is_delta=True)
        self._session: RecordedSession | None = None
        self._at = ("", 0)
        self._record_items: Counter[Signal] = Counter()
        """By signal: the number of items of the current record so far."""

    def send(self, store: Store, sessions: Sequence[RecordedSession]) -> None:
        """Send sessions one after the other."""
        roots, contents = conversations(store), RecordedContent(store.home)
        running: _RunningSession | None = None
        for row in facts_of(store, sessions):
            if running is None or running.session is not row.session:
                self._end_session(running)
                if not self._can_send():
                    return
                running = self._begin_session(row.session, roots)
            self._process(running, row, contents)
        self._end_session(running)
        for signal in self._signals:
            self._flush(signal)
        self._report.without_content = contents.missing

    def _begin_session(self, session: RecordedSession, roots: Mapping[str, str]) -> _RunningSession:
        resource = {
            "service.name": self._service,
            "service.version": session.version,
            # The original process has ended. One instance ID per session keeps all parts of its telemetry together.
            "service.instance.id": session.session_id,
            "agentobs.semconv": self._profile.version,
            "agentobs.after_the_fact": "true",
        }
        self._session = session
        self._report.sessions += 1
        translator = Translator(self._profile, resource, self._put, self._instruments)
        position = self._positions.get(("traces", session.session_id), _NOT_SENT)
        is_traced = "traces" in self._queues and not position.has_all(session)
        return _RunningSession(session, translator, Resource(dict(resource)), roots, is_traced)

    def _process(self, running: _RunningSession, row: Row, contents: RecordedContent) -> None:
        """Process one fact; queue the items that it completes if they are after the send position."""
        self._move_to((row.segment_id, row.sequence))
        position = self._positions.get(("traces", row.session.session_id), _NOT_SENT)
        running.translator.is_sent_before = position.has_opened_spans(*self._at)
        running.translator.is_logging = self._is_new("logs")
        content = contents.content_of(row) if running.is_traced else None
        try:
            running.receive(WrittenFact(row.fact, row.sequence, content))
            running.note_time(row.fact, was_sent=not self._instruments.is_counting)
        except Exception:
            # As in a live export, a fact that cannot be converted is skipped, and later facts are not affected.
            self._report.unreadable += any(map(self._is_new, self._signals))
        running.unread_facts += self._instruments.is_counting
        if running.unread_facts >= PAGE:
            self._queue_metrics(running)
        for signal in self._signals:
            if self._is_full(signal):
                self._flush(signal)

    def _end_session(self, running: _RunningSession | None) -> None:
        """End a session. If no more records can come, open spans are sent as abandoned."""
        if running is None:
            return
        if running.session.is_over:
            self._move_to(_END)
            running.translator.is_sent_before = False
            try:
                running.translator.abandon()
            except Exception:  # the failure is counted and reported
                self._report.unreadable += 1
        self._report.late_ends += running.translator.late_ends
        self._queue_metrics(running)
        for signal in self._signals:
            self._queues[signal].append(_SessionEnd(running.session))
            if self._is_full(signal):
                self._flush(signal)

    def _move_to(self, at: tuple[str, int]) -> None:
        self._at = at
        self._record_items.clear()
        self._instruments.is_counting = self._is_new("metrics")

    def _is_new(self, signal: Signal) -> bool:
        """Return whether the items of the current record were not sent yet."""
        if signal not in self._queues or signal in self._report.stopped or self._session is None:
            return False
        position = self._positions.get((signal, self._session.session_id), _NOT_SENT)
        return not (
            position.has_all(self._session) if self._at == _END else position.has(*self._at)
        )

    def _put(self, signal: Signal, payload: Any, size: int) -> None:
        if self._session is None or not self._is_new(signal):
            return
        self._record_items[signal] += 1
        position = self._positions.get((signal, self._session.session_id), _NOT_SENT)
        if self._record_items[signal] > position.partial_items.get(
            _record_before(self._session, self._at), 0
        ):
            item = _Item(self._session, self._at, payload, size, ordinal=self._record_items[signal])
            self._queue(signal, item)

    def _queue_metrics(self, running: _RunningSession) -> None:
        """Queue the changes of the metrics since they were last read."""
        running.unread_facts = 0
        if "metrics" not in self._queues or (read := self._instruments.read()) is None:
            return
        start_ns, end_ns = running.next_period()
        for each in read.resource_metrics:
            metrics, points = _with_resource_and_period(each, running.resource, start_ns, end_ns)
            if points:
                item = _Item(running.session, self._at, metrics, points * 512, points)
                self._queue("metrics", item)

    def _queue(self, signal: Signal, item: _Item) -> None:
        self._queues[signal].append(item)
        self._waiting[signal] += 1
        self._sizes[signal] += item.size

    def _is_full(self, signal: Signal) -> bool:
        limits = self._limits
        return (
            self._waiting[signal] >= limits.batch_items
            or self._sizes[signal] >= limits.batch_bytes
            or len(self._queues[signal]) >= 4 * limits.batch_items
        )

    def _can_send(self) -> bool:
        """Return whether at least one signal can still be sent."""
        return any(signal not in self._report.stopped for signal in self._signals)

    def _flush(self, signal: Signal) -> None:
        """Send all pending items of a signal, and write the new positions."""
        queue = self._queues[signal]
        while queue:
            if signal in self._report.stopped:
                queue.clear()
                break
            batch = self._batch(queue)
            if batch:
                self._deliver(signal, batch, queue)
            while queue and isinstance(queue[0], _SessionEnd):
                done = queue.popleft()
                if signal not in self._report.stopped:
                    self._write_complete(signal, done.session)
        self._waiting[signal] = self._sizes[signal] = 0

    def _batch(self, queue: deque[_Item | _SessionEnd]) -> list[_Item]:
        """Return the items of the next message; they stay in the queue."""
        batch: list[_Item] = []
        size = 0
        for each in queue:
            if isinstance(each, _SessionEnd):
                continue
            if batch and size + each.size > self._limits.batch_bytes:
                break
            batch.append(each)
            size += each.size
            if len(batch) == self._limits.batch_items:
                break
        return batch

    def _deliver(
        self, signal: Signal, batch: list[_Item], queue: deque[_Item | _SessionEnd]
    ) -> None:
        result = self._delivery.deliver(signal, batch)
        settled, lost = batch[: result.settled], dict(result.lost or {})
        for reason, count in lost.items():
            self._report.lost[signal, reason] += count
        accepted = sum(item.count for item in settled) - sum(lost.values())
        if accepted > 0:
            self._report.accepted[signal] += accepted
        settled_items: list[_Item] = []
        remaining = len(settled)
        while remaining:
            each = queue.popleft()
            if isinstance(each, _SessionEnd):
                self._write_complete(signal, each.session, settled_items)
                settled_items = []
            else:
                settled_items.append(each)
                remaining -= 1
        rejected = sum(lost.values())
        if settled_items and queue and isinstance(done := queue[0], _SessionEnd):
            queue.popleft()
            self._write_complete(signal, done.session, settled_items, rejected)
        elif settled_items:
            next_item = next((each for each in queue if isinstance(each, _Item)), None)
            self._write_partial(signal, settled_items, next_item, rejected)
        if result.failure is not None:
            self._report.stopped[signal] = result.failure.why

    def _write_partial(
        self, signal: Signal, settled_items: Sequence[_Item], next_item: _Item | None, lost: int
    ) -> None:
        """Write the position of the session that the last settled items belong to."""
        last = settled_items[-1]
        session, (segment_id, sequence) = last.session, last.at
        through = _through_before(session, segment_id)
        is_split = next_item is not None and (next_item.session, next_item.at) == (session, last.at)
        if last.at != _END:
            through[segment_id] = sequence - is_split
        partial_items = last.ordinal if is_split or last.at == _END else 0
        count = sum(item.count for item in settled_items)
        self._write(
            signal, session, through, items=count, rejected=lost, partial_items=partial_items
        )

    def _write_complete(
        self,
        signal: Signal,
        session: RecordedSession,
        settled_items: Sequence[_Item] = (),
        rejected: int = 0,
    ) -> None:
        """Write that the complete recording of a session was sent; these items were settled last."""
        through = {part.segment_id: part.last for part in session.parts}
        count = sum(item.count for item in settled_items)
        self._write(
            signal, session, through, items=count, rejected=rejected, is_complete=session.is_over
        )

    def _write(
        self, signal: Signal, session: RecordedSession, through: Mapping[str, int], **details: Any
    ) -> None:
        position = self._positions.setdefault((signal, session.session_id), SendPosition())
        changes = {s: n for s, n in through.items() if n > position.through.get(s, 0)}
        is_complete, partial_items = (
            bool(details.get("is_complete")),
            int(details.get("partial_items", 0)),
        )
        if partial_items or (is_complete and not position.is_complete) or details.get("rejected"):
            # The position with the item counts must be written last, even if it did not change.
            segment_id = list(through)[-1]
            changes.pop(segment_id, None)
            changes[segment_id] = through[segment_id]
        if changes:
            self._writer.write(signal, session.session_id, changes, **details)
            for number, (segment_id, sequence) in enumerate(changes.items(), 1):
                is_last = number == len(changes)
                completes = is_complete and is_last
                position.advance(
                    segment_id,
                    sequence,
                    is_complete=completes,
                    partial_items=partial_items * is_last,
                )


_END = ("", 0)
"""The position after the last record, at which orphaned spans are sent."""


class _RunningSession:
    """The session that is being processed."""

    def __init__(
        self,
        session: RecordedSession,
        translator: Translator,
        resource: Resource,
        roots: Mapping[str, str],
        is_traced: bool,
    ) -> None:
        self.is_traced = is_traced
        """Whether spans of the session will be sent, so that content is needed."""
        self.session, self.translator, self.resource = session, translator, resource
        self._roots = roots
        self.unread_facts = 0
        """The number of facts since the metrics were last read."""
        self._start_ns = self._last_ns = 0

    def receive(self, written: WrittenFact) -> None:
        """Receive one fact."""
        if isinstance(written.fact, SessionStart) and written.fact.continues_session_id is not None:
            earlier = str(written.fact.continues_session_id)
            self.translator.follower.set_conversation(earlier, self._roots.get(earlier, earlier))
        self.translator.receive(written)

    def note_time(self, fact: Fact, *, was_sent: bool) -> None:
        """Note the time of a fact; the period of the metrics begins after the facts that were sent before."""
        instants = _times_of(fact)
        if not instants:
            return
        self._start_ns = self._start_ns or min(instants)
        self._last_ns = max(self._last_ns, *instants)
        if was_sent:
            self._start_ns = self._last_ns

    def next_period(self) -> tuple[int, int]:
        """Return the start and the end of the metrics that are read now. The next period begins at this end."""
        start_ns, end_ns = self._start_ns, max(self._last_ns, self._start_ns + 1)
        self._start_ns = end_ns
        return start_ns, end_ns


def _times_of(fact: Fact) -> list[int]:
    """Return the first and the last time of a fact."""
    found = [at for name in _TIME_FIELDS if (at := getattr(fact, name, None))]
    if isinstance(fact, Attempt):
        found.append(fact.started_ns + fact.duration_ns)
    return found


_TIME_FIELDS = ("started_ns", "ended_ns", "requested_ns", "result_ns", "at_ns")


def _through_before(session: RecordedSession, segment_id: str) -> dict[str, int]:
    """Return the last record of each segment before the given segment, or of all segments if it is not among them."""
    found: dict[str, int] = {}
    for part in session.parts:
        if part.segment_id == segment_id:
            break
        found[part.segment_id] = part.last
    return found


def _record_before(session: RecordedSession, at: tuple[str, int]) -> tuple[str, int]:
    """Return segment and number of the record before a position; orphaned spans follow the last record."""
    if at == _END:
        return session.parts[-1].segment_id, session.parts[-1].last
    return at[0], at[1] - 1


def _with_resource_and_period(
    metrics: Any, resource: Resource, start_ns: int, end_ns: int
) -> tuple[Any, int]:
    """Return a copy of some metrics with the given resource and time range, and the number of data points."""
    points = 0

    def with_period(metric: Any) -> Any:
        nonlocal points
        data_points = [
            dataclasses.replace(p, start_time_unix_nano=start_ns, time_unix_nano=end_ns)
            for p in metric.data.data_points
        ]
        points += len(data_points)
        return dataclasses.replace(
            metric, data=dataclasses.replace(metric.data, data_points=data_points)
        )

    scopes = [
        dataclasses.replace(scope, metrics=[with_period(each) for each in scope.metrics])
        for scope in metrics.scope_metrics
    ]
    return dataclasses.replace(metrics, resource=resource, scope_metrics=scopes), points
