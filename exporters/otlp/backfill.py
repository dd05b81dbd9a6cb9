"""Backfill: recorded sessions are sent to a collector, with the IDs and times of the recording.

    report = send_recorded(store, sender, profile_named("both"), since_ns=...)

A session is followed from its first fact as if it ran again, by the code for live sessions, and everything after the
send positions of a destination is sent. So spans that were open when an earlier export ended are sent complete, and
each record once: a position is written when a message was accepted. Only if the process is killed between the two,
that one message is sent again, with the same IDs. A span that was sent as abandoned stays so when its end is found
later. At most one message per signal is pending; nothing waits for it, so nothing is dropped.

Metrics are deltas over the times of the recording, from a separate source for each session. The sums of the live
exporter belong to a process that is gone; continuing them in another process would make up numbers.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.sdk.resources import Resource

from agentobs.ledger import warm
from agentobs.records.backend import Told
from agentobs.records.facts import Attempt, Fact, SessionStart
from agentobs.records.labels import Label
from agentobs.store.port import Store
from exporters.conventions.profile import Profile
from exporters.otlp.delivery import Hands
from exporters.otlp.outbox import Limits, Send, Signal
from exporters.otlp.send_positions import Mark, Marker, read_marks, sending_alone
from exporters.otlp.translation import Instruments, Translator
from exporters.stored_facts import (
    PAGE,
    Recorded,
    Row,
    Spoken,
    conversations,
    facts_of,
    recorded_sessions,
)

SIGNALS: tuple[Signal, ...] = ("traces", "logs", "metrics")

_NOUNS = {"traces": "spans", "logs": "log records", "metrics": "data points"}


@dataclass(slots=True)
class Report:
    """The result of a backfill."""

    sessions: int = 0
    """Sessions of which something was sent."""
    done_before: int = 0
    """Sessions without anything new."""
    live: int = 0
    """Sessions that were skipped because they were sent to that destination while they ran."""
    taken: Counter[str] = field(default_factory=Counter)
    """Accepted items by signal: spans, log records, data points."""
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rejected items, which are not sent again, by signal and reason."""
    stopped: dict[Signal, str] = field(default_factory=dict)
    """Why the rest of a signal was not sent."""
    without_content: int = 0
    """Exchanges of sessions that opted in whose content could not be read."""
    unreadable: int = 0
    """Facts that could not be converted."""
    late_ends: int = 0
    """Spans that were sent as abandoned, and whose end was found since."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was accepted."""
        return not self.lost and not self.stopped and not self.unreadable

    def lines(self) -> list[str]:
        """Return the report as lines: what was accepted, then what was not and why."""
        taken = ", ".join(f"{self.taken[s]} {_NOUNS[s]}" for s in SIGNALS if self.taken[s])
        lines = [f"{self.sessions} sessions sent: {taken or 'nothing'}"]
        if self.done_before:
            lines.append(f"{self.done_before} sessions were sent before")
        if self.live:
            lines.append(
                f"{self.live} sessions were sent there while they ran, as far as possible, and are "
                "skipped: --again sends them as well"
            )
        if self.without_content:
            lines.append(
                f"{self.without_content} exchanges are sent without their content, because it cannot be read"
            )
        if self.late_ends:
            lines.append(
                f"{self.late_ends} spans ended after they were sent as abandoned: only the recording has their end"
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
            f"{signal} not sent completely: {why}; the same command continues from there"
            for signal, why in self.stopped.items()
        ]
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
    again: bool = False,
    told: Callable[[str], None] = lambda text: None,
) -> Report:
    """Send recorded data that was not sent to a destination yet.

    Args:
        store: the store of the home where it was recorded.
        send: sends one message.
        profile: the vocabulary.
        destination: its name in send positions.
        since_ns: only sessions that started then or later.
        session_ids: only these.
        signals: what is sent.
        service: the name of the service.
        limits: the size of messages, and the number of retries.
        again: send also what was sent before, live or by a backfill.
        told: receives messages about waits.

    Raises:
        UsageError: another process is sending.
        OSError: the position cannot be written.
    """
    warm()
    with sending_alone(store.home):
        marks = {} if again else read_marks(store, destination)
        marker = Marker(store.home, destination, Label(profile.name))
        report, chosen = Report(), []
        for session in recorded_sessions(store, since_ns=since_ns, session_ids=session_ids):
            if not again and destination in session.live:
                report.live += 1
            elif all(marks.get((s, session.session_id), _NEW).has_all(session) for s in signals):
                report.done_before += 1
            else:
                chosen.append(session)
        hands = Hands(send, limits or Limits(), told)
        run = _Run(profile, service, hands, limits or Limits(), signals, marks, marker, report)
        try:
            run.send(store, chosen)
        finally:
            marker.close()
        return report


_NEW = Mark()


@dataclass(frozen=True, slots=True)
class _Item:
    """A span, a log record, or the sums of a period of a session."""

    session: Recorded
    at: tuple[str, int]
    """Segment and number of the record that completed it; for an orphaned span the end of the session."""
    payload: Any
    size: int
    count: int = 1
    """How many items the collector counts in it."""
    ordinal: int = 1
    """Its index among the items that one record completed, or among orphaned spans."""


@dataclass(frozen=True, slots=True)
class _Done:
    """A session was followed to the end of its recording."""

    session: Recorded


class _Run:
    """One running backfill."""

    def __init__(
        self,
        profile: Profile,
        service: str,
        hands: Hands,
        limits: Limits,
        signals: Sequence[Signal],
        marks: dict[tuple[Signal, str], Mark],
        marker: Marker,
        report: Report,
    ) -> None:
        self._profile, self._service, self._hands, self._limits = profile, service, hands, limits
        self._signals, self._marks, self._marker, self._report = signals, marks, marker, report
        self._queues: dict[Signal, deque[_Item | _Done]] = {each: deque() for each in signals}
        self._waiting: Counter[Signal] = Counter()
        self._sizes: Counter[Signal] = Counter()
        self._instruments = Instruments(profile.metrics, {}, is_delta=True)
        self._session: Recorded | None = None
        self._at = ("", 0)
        self._told: Counter[Signal] = Counter()
        """The items of the current record."""

    def send(self, store: Store, sessions: Sequence[Recorded]) -> None:
        """Send these sessions, one after the other."""
        roots, spoken = conversations(store), Spoken(store.home)
        following: _Following | None = None
        for row in facts_of(store, sessions):
            if following is None or following.session is not row.session:
                self._end(following)
                if not self._open():
                    return
                following = self._begin(row.session, roots)
            self._hear(following, row, spoken)
        self._end(following)
        for signal in self._signals:
            self._flush(signal)
        self._report.without_content = spoken.missing

    def _begin(self, session: Recorded, roots: Mapping[str, str]) -> _Following:
        resource = {
            "service.name": self._service,
            "service.version": session.version,
            # The original process is gone; a session's own telemetry has one source, however often parts of it are
            # sent.
            "service.instance.id": session.session_id,
            "agentobs.semconv": self._profile.version,
            "agentobs.after_the_fact": "true",
        }
        self._session = session
        self._report.sessions += 1
        translator = Translator(self._profile, resource, self._put, self._instruments)
        mark = self._marks.get(("traces", session.session_id), _NEW)
        is_traced = "traces" in self._queues and not mark.has_all(session)
        return _Following(session, translator, Resource(dict(resource)), roots, is_traced)

    def _hear(self, following: _Following, row: Row, spoken: Spoken) -> None:
        """Follow one fact; queue the items that it completes if they are after the send position."""
        self._go_to((row.segment_id, row.sequence))
        mark = self._marks.get(("traces", row.session.session_id), _NEW)
        following.translator.is_told = mark.has_ended(*self._at)
        following.translator.is_logging = self._is_new("logs")
        said = spoken.said(row) if following.is_traced else None
        try:
            following.hear(Told(row.fact, row.sequence, said))
            following.time(row.fact, is_sent=not self._instruments.is_counting)
        except Exception:
            # As in live export: a fact that cannot be converted is skipped, and later ones are not affected.
            self._report.unreadable += any(map(self._is_new, self._signals))
        following.heard += self._instruments.is_counting
        if following.heard >= PAGE:
            self._gather(following)
        for signal in self._signals:
            if self._is_full(signal):
                self._flush(signal)

    def _end(self, following: _Following | None) -> None:
        """End a session: open spans are sent as abandoned if no more records can come."""
        if following is None:
            return
        if following.session.is_over:
            self._go_to(_END)
            following.translator.is_told = False
            try:
                following.translator.abandon()
            except Exception:  # a failing session is skipped and reported
                self._report.unreadable += 1
        self._report.late_ends += following.translator.late_ends
        self._gather(following)
        for signal in self._signals:
            self._queues[signal].append(_Done(following.session))
            if self._is_full(signal):
                self._flush(signal)

    def _go_to(self, at: tuple[str, int]) -> None:
        self._at = at
        self._told.clear()
        self._instruments.is_counting = self._is_new("metrics")

    def _is_new(self, signal: Signal) -> bool:
        """Return whether the current item was not sent yet."""
        if signal not in self._queues or signal in self._report.stopped or self._session is None:
            return False
        mark = self._marks.get((signal, self._session.session_id), _NEW)
        return not (mark.has_all(self._session) if self._at == _END else mark.has(*self._at))

    def _put(self, signal: Signal, payload: Any, size: int) -> None:
        if self._session is None or not self._is_new(signal):
            return
        self._told[signal] += 1
        mark = self._marks.get((signal, self._session.session_id), _NEW)
        if self._told[signal] > mark.beyond.get(_record_before(self._session, self._at), 0):
            item = _Item(self._session, self._at, payload, size, ordinal=self._told[signal])
            self._queue(signal, item)

    def _gather(self, following: _Following) -> None:
        """Queue the sums since the last time."""
        following.heard = 0
        if "metrics" not in self._queues or (read := self._instruments.read()) is None:
            return
        begun_ns, ended_ns = following.stretch()
        for each in read.resource_metrics:
            told, points = _over(each, following.resource, begun_ns, ended_ns)
            if points:
                item = _Item(following.session, self._at, told, points * 512, points)
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

    def _open(self) -> bool:
        """Return whether some signal can still be sent."""
        return any(signal not in self._report.stopped for signal in self._signals)

    def _flush(self, signal: Signal) -> None:
        """Send all pending items of a signal, and write the new position."""
        queue = self._queues[signal]
        while queue:
            if signal in self._report.stopped:
                queue.clear()
                break
            batch = self._batch(queue)
            if batch:
                self._deliver(signal, batch, queue)
            while queue and isinstance(queue[0], _Done):
                done = queue.popleft()
                if signal not in self._report.stopped:
                    self._mark_whole(signal, done.session)
        self._waiting[signal] = self._sizes[signal] = 0

    def _batch(self, queue: deque[_Item | _Done]) -> list[_Item]:
        """Return the items of the next message; they stay in the queue."""
        batch: list[_Item] = []
        size = 0
        for each in queue:
            if isinstance(each, _Done):
                continue
            if batch and size + each.size > self._limits.batch_bytes:
                break
            batch.append(each)
            size += each.size
            if len(batch) == self._limits.batch_items:
                break
        return batch

    def _deliver(self, signal: Signal, batch: list[_Item], queue: deque[_Item | _Done]) -> None:
        handed = self._hands.hand(signal, batch)
        settled, lost = batch[: handed.settled], dict(handed.lost or {})
        for reason, count in lost.items():
            self._report.lost[signal, reason] += count
        taken = sum(item.count for item in settled) - sum(lost.values())
        if taken > 0:
            self._report.taken[signal] += taken
        passed: list[_Item] = []
        left = len(settled)
        while left:
            each = queue.popleft()
            if isinstance(each, _Done):
                self._mark_whole(signal, each.session, passed)
                passed = []
            else:
                passed.append(each)
                left -= 1
        rejected = sum(lost.values())
        if passed and queue and isinstance(done := queue[0], _Done):
            queue.popleft()
            self._mark_whole(signal, done.session, passed, rejected)
        elif passed:
            following = next((each for each in queue if isinstance(each, _Item)), None)
            self._note(signal, passed, following, rejected)
        if handed.failure is not None:
            self._report.stopped[signal] = handed.failure.why

    def _note(
        self, signal: Signal, passed: Sequence[_Item], following: _Item | None, lost: int
    ) -> None:
        """Write the position of the session of which these items were settled last."""
        last = passed[-1]
        session, (segment_id, sequence) = last.session, last.at
        through = _before(session, segment_id)
        is_split = following is not None and (following.session, following.at) == (session, last.at)
        if last.at != _END:
            through[segment_id] = sequence - is_split
        beyond = last.ordinal if is_split or last.at == _END else 0
        count = sum(item.count for item in passed)
        self._write(signal, session, through, items=count, rejected=lost, beyond=beyond)

    def _mark_whole(
        self, signal: Signal, session: Recorded, passed: Sequence[_Item] = (), rejected: int = 0
    ) -> None:
        """Write that the whole recording of a session was sent, these items last."""
        through = {part.segment_id: part.last for part in session.parts}
        count = sum(item.count for item in passed)
        self._write(
            signal, session, through, items=count, rejected=rejected, is_whole=session.is_over
        )

    def _write(
        self, signal: Signal, session: Recorded, through: Mapping[str, int], **more: Any
    ) -> None:
        mark = self._marks.setdefault((signal, session.session_id), Mark())
        news = {s: n for s, n in through.items() if n > mark.through.get(s, 0)}
        is_whole, beyond = bool(more.get("is_whole")), int(more.get("beyond", 0))
        if beyond or (is_whole and not mark.is_whole) or more.get("rejected"):
            # Items after a record count for that record, and the last one has the total.
            segment_id = list(through)[-1]
            news.pop(segment_id, None)
            news[segment_id] = through[segment_id]
        if news:
            self._marker.write(signal, session.session_id, news, **more)
            for number, (segment_id, sequence) in enumerate(news.items(), 1):
                is_last = number == len(news)
                whole = is_whole and is_last
                mark.go_on(segment_id, sequence, is_whole=whole, beyond=beyond * is_last)


_END = ("", 0)
"""The position of orphaned spans."""


class _Following:
    """A session that is being followed."""

    def __init__(
        self,
        session: Recorded,
        translator: Translator,
        resource: Resource,
        roots: Mapping[str, str],
        is_traced: bool,
    ) -> None:
        self.is_traced = is_traced
        """Whether spans of it will still be sent, which have content."""
        self.session, self.translator, self.resource = session, translator, resource
        self._roots = roots
        self.heard = 0
        """Facts since the sums were read last."""
        self._begun_ns = self._last_ns = 0

    def hear(self, told: Told) -> None:
        """Receive one fact."""
        if isinstance(told.fact, SessionStart) and told.fact.continues_session_id is not None:
            earlier = str(told.fact.continues_session_id)
            self.translator.follower.goes_on(earlier, self._roots.get(earlier, earlier))
        self.translator.hear(told)

    def time(self, fact: Fact, *, is_sent: bool) -> None:
        """Note the time of a fact; sums begin after what was sent before."""
        instants = _instants(fact)
        if not instants:
            return
        self._begun_ns = self._begun_ns or min(instants)
        self._last_ns = max(self._last_ns, *instants)
        if is_sent:
            self._begun_ns = self._last_ns

    def stretch(self) -> tuple[int, int]:
        """Return start and end of the sums that are read now; the next ones begin there."""
        begun, ended = self._begun_ns, max(self._last_ns, self._begun_ns + 1)
        self._begun_ns = ended
        return begun, ended


def _instants(fact: Fact) -> list[int]:
    """Return the first and the last time of a fact."""
    found = [at for name in _INSTANTS if (at := getattr(fact, name, None))]
    if isinstance(fact, Attempt):
        found.append(fact.started_ns + fact.duration_ns)
    return found


_INSTANTS = ("started_ns", "ended_ns", "requested_ns", "result_ns", "at_ns")


def _before(session: Recorded, segment_id: str) -> dict[str, int]:
    """Return the ends of the segments of a session before one; of all if it is none of them."""
    found: dict[str, int] = {}
    for part in session.parts:
        if part.segment_id == segment_id:
            break
        found[part.segment_id] = part.last
    return found


def _record_before(session: Recorded, at: tuple[str, int]) -> tuple[str, int]:
    """Return segment and number of the record before one; orphaned spans follow the last one."""
    if at == _END:
        return session.parts[-1].segment_id, session.parts[-1].last
    return at[0], at[1] - 1


def _over(metrics: Any, resource: Resource, begun_ns: int, ended_ns: int) -> tuple[Any, int]:
    """Return the metrics of a resource with another source and period, and the number of their points."""
    points = 0

    def timed(metric: Any) -> Any:
        nonlocal points
        told = [
            dataclasses.replace(p, start_time_unix_nano=begun_ns, time_unix_nano=ended_ns)
            for p in metric.data.data_points
        ]
        points += len(told)
        return dataclasses.replace(metric, data=dataclasses.replace(metric.data, data_points=told))

    scopes = [
        dataclasses.replace(scope, metrics=[timed(each) for each in scope.metrics])
        for scope in metrics.scope_metrics
    ]
    return dataclasses.replace(metrics, resource=resource, scope_metrics=scopes), points
