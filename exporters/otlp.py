"""OTLP: spans, events and metrics to a collector.

    backend = otlp.standard(endpoint="http://localhost:4318")
    agentobs.start(options=agentobs.Options(backends=(backend,)))

`standard` and `beta` return a backend: it hears facts on the recorder's thread, makes spans, log records and sums of
them with OpenTelemetry's SDK, and hands these to an outbox that sends them. Its providers are its own: no global one is
set or read, and no variable of the environment is followed but `OTEL_SDK_DISABLED`, which is said. Ids and times are
those of the recording: an interaction is a trace.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from agentobs import world
from agentobs.errors import UsageError, say_once
from agentobs.ledger import warm
from agentobs.records.events import Logged, event_of
from agentobs.records.facts import UsageRow
from agentobs.records.told import Told

try:
    from opentelemetry import trace
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.metrics import NoOpMeterProvider
    from opentelemetry.sdk._logs import (
        LoggerProvider,
        LogRecordLimits,
        LogRecordProcessor,
        ReadWriteLogRecord,
    )
    from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, Counter, Histogram, MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.metrics.view import DropAggregation, View
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    from exporters.senders import GrpcSender, HttpSender, collector
except ImportError as error:
    raise UsageError(
        f"OpenTelemetry is not installed: {error.name or 'a part of it'} is missing",
        where="exporters.otlp",
        todo="Install it with: pip install 'agentobs-kit[otlp]'",
    ) from None

from exporters import semconv
from exporters.intervals import Follower, Interval, cost_of, identity
from exporters.outbox import DeliveryStatistics, Limits, Outbox, Sent, Signal
from exporters.semconv import Attributes, Measure, Profile

Protocol = Literal["http/protobuf", "http/json", "grpc"]
ENDPOINTS: Mapping[Protocol, str] = {
    "http/protobuf": "http://localhost:4318",
    "http/json": "http://localhost:4318",
    "grpc": "http://localhost:4317",
}
"""Where a collector of this machine listens (opentelemetry.io, OTLP exporter configuration)."""

METRIC_SERIES = 500
"""How many sets of attributes one metric may have; beyond it they are counted as one. Our choice: names of models and
tools are not ours, and somebody may make up new ones for ever."""

_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)


def standard(
    endpoint: str | None = None,
    *,
    protocol: Protocol = "http/protobuf",
    headers: Mapping[str, str] | None = None,
    service: str = "agentobs",
    resource: Mapping[str, str] | None = None,
    certificate: str | None = None,
    limits: Limits | None = None,
) -> Backend:
    """Return a backend that sends spans, events and metrics to a collector.

    Args:
        endpoint: `http(s)://host:port`, and a path where the collector has one; `/v1/traces` and the like are added.
            Default the usual port of this machine.
        protocol: how to say it.
        headers: what it takes to get in; never told anywhere.
        service: the name of the service, `service.name`.
        resource: what else is true of this process, such as `deployment.environment.name`.
        certificate: a file of certificates to trust; default the system's.
        limits: how much may wait, and how it is sent.

    Raises:
        UsageError: the endpoint, the protocol or a header cannot be used, or a file cannot be read.
    """
    return _backend(
        semconv.GENAI, endpoint, protocol, headers, service, resource, certificate, limits
    )


def beta(
    endpoint: str | None = None,
    *,
    protocol: Protocol = "http/protobuf",
    headers: Mapping[str, str] | None = None,
    service: str = "agentobs",
    resource: Mapping[str, str] | None = None,
    certificate: str | None = None,
    limits: Limits | None = None,
) -> Backend:
    """Return what `standard` returns, with more attributes and the spans of hooks; both may change at any time.

    Raises:
        UsageError: as for `standard`.
    """
    return _backend(
        semconv.GENAI_BETA, endpoint, protocol, headers, service, resource, certificate, limits
    )


class Backend:
    """Hears facts, and sends what they say; see `standard`."""

    def __init__(
        self,
        profile: Profile,
        sender: HttpSender | GrpcSender,
        resource: Mapping[str, str],
        limits: Limits,
        to: str,
    ) -> None:
        """Speak one language to one collector."""
        self._profile, self._sender = profile, sender
        self._resource = dict(resource)
        self._outbox = Outbox(self._send, self._gather, limits, to, sender.close)
        # The recorder's thread tells, another one may close.
        self._lock = threading.RLock()
        self._failed = 0
        self._begin()
        weak = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: _call(weak))

    def __repr__(self) -> str:
        """Show the language alone."""
        return f"Backend({self._profile.name})"

    def __call__(self, told: Told) -> None:
        """Hear one fact; never waits, never raises."""
        try:
            with self._lock:
                self._hear(told)
        except Exception:
            # A fact that cannot be told costs itself, and the ones after it are told.
            self._failed += 1

    def flush(self, seconds: float = 5.0) -> bool:
        """Send what waits; returns whether the collector took all of it in that time."""
        return self._outbox.flush(seconds)

    def close(self, seconds: float = 0.25) -> bool:
        """End what is open as abandoned and send what waits, within that time; returns whether all was taken."""
        with self._lock:
            for move in self._follower.abandon():
                self._move(move.way, move.interval)
        return self._outbox.close(seconds)

    def statistics(self) -> DeliveryStatistics:
        """Return what became of spans and events so far."""
        return self._outbox.statistics()

    @property
    def failed(self) -> int:
        """How many facts could not be told."""
        return self._failed

    @property
    def late_ends(self) -> int:
        """How many spans ended after they had been told as abandoned: that is in the recording alone."""
        return self._follower.late_ends

    @property
    def open_spans(self) -> int:
        """How many spans have begun and not ended."""
        return len(self._follower.open)

    def _begin(self) -> None:
        """Make the providers: a new process, or the child of one, whose sums start at nothing."""
        resource = Resource({**self._resource, "service.instance.id": world.new_id()})
        self._instruments = _Instruments(resource)
        self._spans = _Spans(resource, self._outbox)
        self._events = _Events(resource, self._outbox)
        self._follower = Follower(hidden=self._profile.hidden)
        self._started: dict[str, trace.Span] = {}

    def _forked(self) -> None:
        self._lock = threading.RLock()
        self._sender.forked()
        self._begin()

    def _hear(self, told: Told) -> None:
        fact = told.fact
        for move in self._follower.follow(told):
            self._move(move.way, move.interval)
        if isinstance(fact, UsageRow) and fact.billed:
            self._instruments.used(fact)
        if (event := event_of(fact)) is not None:
            span_id = getattr(fact, "span_id", None)
            trace_id = self._follower.trace_of(span_id) or event.interaction_id or fact.session_id
            conversation = self._follower.conversation_of(fact.session_id)
            self._events.emit(event, trace_id, span_id, conversation)

    def _move(self, way: str, interval: Interval) -> None:
        if way == "opens":
            span = self._spans.start(self._profile, interval)
            self._started[interval.span_id] = span
            return
        started = self._started.pop(interval.span_id, None)
        if started is None:
            return
        started.set_attributes(self._profile.ending(interval))
        if interval.said is not None:
            started.set_attributes(self._said(interval))
        if (around := _around(interval)) is not None:
            started.add_link(around)
        if interval.status in ("error", "orphaned"):
            started.set_status(trace.StatusCode.ERROR)
        self._instruments.ended(interval)
        started.end(max(interval.ended_ns, interval.started_ns))

    def _said(self, interval: Interval) -> Attributes:
        try:
            return self._profile.said(interval)
        except Exception:
            # What was said may have any form; that it cannot be told costs no span.
            return {"agentobs.content.unreadable": True}

    def _gather(self) -> Any:
        with self._lock:
            return self._instruments.read()

    def _send(self, signal: Signal, payloads: Sequence[Any]) -> Sent:
        """Send one message; runs on the outbox's thread, and never raises."""
        try:
            message: Any
            match signal:
                case "traces":
                    message = encode_spans(payloads)
                case "logs":
                    message = encode_logs(payloads)
                case "metrics":
                    message = encode_metrics(payloads[0])
        except Exception as error:
            return Sent("unreadable", why=f"a message could not be written: {type(error).__name__}")
        try:
            return self._sender(signal, message)
        except Exception as error:
            return Sent("later", why=type(error).__name__)


class _Ids(IdGenerator):
    """Gives the next span the ids that it has in the recording."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Spans(SpanProcessor):
    """Our tracer: starts spans with given ids, and puts each into the outbox when it ends."""

    def __init__(self, resource: Resource, outbox: Outbox) -> None:
        self._outbox, self._ids = outbox, _Ids()
        # Each limit is said, for the SDK takes what is not said from the environment. 128 is its own default.
        limits = SpanLimits(
            max_attributes=128,
            max_events=0,
            max_links=8,
            max_span_attributes=128,
            max_event_attributes=0,
            max_link_attributes=8,
            max_attribute_length=SpanLimits.UNSET,
            max_span_attribute_length=SpanLimits.UNSET,
        )
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=resource,
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=limits,
            meter_provider=NoOpMeterProvider(),
        )
        provider.add_span_processor(self)
        self._tracer = provider.get_tracer("agentobs", _version())

    def start(self, profile: Profile, interval: Interval) -> trace.Span:
        """Start a span."""
        self._ids.trace_id = _number(interval.trace_id, 32)
        self._ids.span_id = _number(interval.span_id, 16)
        kind = trace.SpanKind.CLIENT if interval.name == "llm_request" else trace.SpanKind.INTERNAL
        return self._tracer.start_span(
            profile.span_name(interval),
            context=_context(interval.trace_id, interval.parent_span_id),
            kind=kind,
            attributes=profile.starting(interval),
            links=list(_links(interval)),
            start_time=interval.started_ns,
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Put a span that ended into the outbox."""
        self._outbox.put("traces", span, _size(span.attributes or {}) + len(span.name))


class _Events(LogRecordProcessor):
    """Our third-party logger: what the user opted into. The recording has a logger of its own, and knows of none."""

    def __init__(self, resource: Resource, outbox: Outbox) -> None:
        self._outbox = outbox
        limits = LogRecordLimits(
            max_attributes=128,
            max_attribute_length=LogRecordLimits.UNSET,
            max_log_record_attributes=128,
            max_log_record_attribute_length=LogRecordLimits.UNSET,
        )
        provider = LoggerProvider(
            resource=resource,
            shutdown_on_exit=False,
            meter_provider=NoOpMeterProvider(),
            log_record_limits=limits,
        )
        provider.add_log_record_processor(self)
        self._logger = provider.get_logger("agentobs", _version())

    def emit(self, event: Logged, trace_id: str, span_id: str | None, conversation_id: str) -> None:
        """Emit one event as a log record."""
        number = SeverityNumber.ERROR if semconv.is_error(event) else SeverityNumber.INFO
        self._logger.emit(
            LogRecord(
                timestamp=event.at_ns,
                observed_timestamp=world.now(),
                context=_context(trace_id, span_id),
                severity_text=number.name,
                severity_number=number,
                # An event needs no body, but a list of logs shows nothing else.
                body=semconv.event_name(event.kind),
                attributes=semconv.on_event(event, conversation_id),
                event_name=semconv.event_name(event.kind),
            )
        )

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Put a log record into the outbox."""
        size = _size(log_record.log_record.attributes or {})
        self._outbox.put("logs", log_record, size)

    def shutdown(self) -> None:
        """Do nothing: the backend is closed as a whole."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Do nothing: nothing waits here."""
        return True


class _Instruments:
    """Our meter."""

    def __init__(self, resource: Resource) -> None:
        kinds: Any = dict.fromkeys((Counter, Histogram), METRIC_SERIES)
        self._reader = InMemoryMetricReader(cardinality_limits=kinds)
        provider = MeterProvider(
            metric_readers=[self._reader],
            # A variable of the environment would add metrics about the SDK itself.
            views=[View(instrument_name="otel.*", aggregation=DropAggregation())],
            resource=resource,
            exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        self._meter = provider.get_meter("agentobs", _version())
        self._tokens = self._histogram(semconv.TOKEN_USAGE)
        self._durations = self._histogram(semconv.OPERATION_DURATION)
        self._first_chunks = self._histogram(semconv.FIRST_CHUNK)
        self._tools = self._histogram(semconv.TOOL_DURATION)
        self._agents = self._histogram(semconv.AGENT_DURATION)
        cost = semconv.COST
        self._cost = self._meter.create_counter(cost.name, cost.unit, cost.about)
        self._has_any = False

    def ended(self, interval: Interval) -> None:
        """Count an interval that ended."""
        if interval.status == "orphaned":
            return
        took = semconv.seconds(interval.ended_ns - interval.started_ns)
        if interval.name == "interaction":
            self._agents.record(took, semconv.on_agent(interval), context=_NOWHERE)
        elif interval.name == "tool":
            self._tools.record(took, semconv.on_tool(interval), context=_NOWHERE)
        elif interval.is_chat:
            about = semconv.on_call_that_ended(interval)
            self._durations.record(took, about, context=_NOWHERE)
            attempt = interval.attempt
            if attempt is not None and attempt.streamed and attempt.first_chunk_ns is not None:
                first = semconv.seconds(attempt.first_chunk_ns)
                self._first_chunks.record(first, semconv.on_call(interval), context=_NOWHERE)
        else:
            return
        self._has_any = True

    def used(self, row: UsageRow) -> None:
        """Count tokens and what they cost."""
        about = semconv.on_usage(row)
        for kind, count in semconv.on_tokens(semconv.tokens_of(row)):
            self._tokens.record(count, {**about, **kind}, context=_NOWHERE)
        spent = cost_of(row)
        if spent.usd is not None:
            priced = {**about, "agentobs.cost.status": spent.status}
            self._cost.add(float(spent.usd), priced, context=_NOWHERE)
        self._has_any = True

    def read(self) -> Any:
        """Return the metrics as they are now, or None where there are none yet."""
        return self._reader.get_metrics_data() if self._has_any else None

    def _histogram(self, measure: Measure) -> Any:
        return self._meter.create_histogram(
            measure.name,
            measure.unit,
            measure.about,
            explicit_bucket_boundaries_advisory=list(measure.buckets),
        )


def _backend(
    profile: Profile,
    endpoint: str | None,
    protocol: Protocol,
    headers: Mapping[str, str] | None,
    service: str,
    resource: Mapping[str, str] | None,
    certificate: str | None,
    limits: Limits | None,
) -> Backend:
    if protocol not in ENDPOINTS:
        raise UsageError(
            f"protocol cannot be {str(protocol)[:40]!r}",
            where="protocol",
            todo=f"Say {', '.join(ENDPOINTS)}",
        )
    limits = limits or Limits()
    to = collector(
        endpoint or ENDPOINTS[protocol], headers or {}, limits.timeout_seconds, certificate
    )
    try:
        _ = to.tls
    except OSError as error:
        raise UsageError(
            f"the certificates cannot be read: {type(error).__name__}",
            where=str(certificate),
            todo="Name a file of certificates in PEM",
        ) from None
    if (world.environ("OTEL_SDK_DISABLED") or "").strip().lower() == "true":
        say_once("OTEL_SDK_DISABLED is set: OpenTelemetry's SDK makes nothing to send")
    sender = GrpcSender(to) if protocol == "grpc" else HttpSender(to, is_json="json" in protocol)
    # Half a second, here and not while the agent runs.
    warm()
    described = {"service.name": service, "service.version": _version(), **(resource or {})}
    described |= {"agentobs.semconv": profile.version}
    return Backend(profile, sender, described, limits, to.to)


_NOWHERE = Context({"agentobs": True})
"""A context in which no span is open: an empty one would stand for the one that is current."""


def _context(trace_id: str, parent_span_id: str | None) -> Context:
    """Return a context under a span; under none it holds the trace alone, which makes no parent."""
    parent = trace.SpanContext(
        _number(trace_id, 32),
        _number(parent_span_id, 16) if parent_span_id else 0,
        is_remote=False,
        trace_flags=_SAMPLED,
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), _NOWHERE)


def _links(interval: Interval) -> Iterator[trace.Link]:
    for trace_id, span_id in interval.links:
        context = trace.SpanContext(
            _number(trace_id, 32), _number(span_id, 16), is_remote=False, trace_flags=_SAMPLED
        )
        yield trace.Link(context)


def _around(interval: Interval) -> trace.SpanContext | None:
    """Return the span of the program's own telemetry that a call was made in: a `traceparent`, where there was one."""
    adopted = interval.attempt.adopted_span if interval.attempt is not None else None
    if adopted is None:
        return None
    return trace.SpanContext(
        _number(adopted[3:35], 32),
        _number(adopted[36:52], 16),
        is_remote=False,
        trace_flags=_SAMPLED,
    )


def _number(text: str, digits: int) -> int:
    return int(identity(text, digits), 16)


def _size(attributes: Mapping[str, Any]) -> int:
    """Return about how many bytes something with these attributes takes while it waits: SDK objects are not small."""
    return 1024 + sum(
        64 + len(name) + (4 * len(value) if isinstance(value, str) else 16)
        for name, value in attributes.items()
    )


def _version() -> str:
    try:
        return version("agentobs-kit")
    except PackageNotFoundError:
        return "unknown"


def _call(weak: weakref.WeakMethod[Any]) -> None:
    if (method := weak()) is not None:
        method()
