"""Translation of facts to OpenTelemetry's spans, log records and sums, with the names of a profile.

A `Translator` receives the facts of one process, or of one recorded session, and passes complete items to `put`. It
uses OpenTelemetry's SDK with its own providers. It neither sets nor reads global providers, and takes no limits from
the environment. Items have the IDs and times of the recording; an interaction is a trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

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
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricsData,
)
from opentelemetry.sdk.metrics.view import DropAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from agentobs.recording.facts.low_limits import headroom
from agentobs.records.backend import WrittenFact
from agentobs.records.event_catalog import LogEvent, event_of
from agentobs.records.facts import Attempt, UsageRow
from agentobs.records.labels import Label
from exporters.conventions import agentobs_attributes, semconv
from exporters.conventions.agentobs_attributes import Attributes
from exporters.conventions.identities import identity
from exporters.conventions.interval import Interval
from exporters.conventions.intervals import Follower, cost_of, tokens_of
from exporters.conventions.profile import Measure, Metrics, Profile, with_error
from exporters.conventions.span_content import error_message
from exporters.otlp.outbox import Signal

SPAN_ATTRIBUTES_MAX = 512
"""The maximum number of attributes of a span. Our choice: with `openinference`, each part of a message is an attribute.
"""
METRIC_SERIES = 500
"""The maximum number of attribute sets per metric; further sets are counted as one. Our choice. The number of model and
tool names is not bounded otherwise.
"""

SCOPE = "agentobs"
"""The name of the instrumentation scope."""

_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)

Put = Callable[[Signal, Any, int], object]
"""Receives an ended span or a log record, with its approximate size in memory."""


def encoded(signal: Signal, payloads: Sequence[Any]) -> Any:
    """Encode spans, log records, or the metrics of resources as one OTLP message."""
    match signal:
        case "traces":
            return encode_spans(payloads)
        case "logs":
            return encode_logs(payloads)
        case "metrics":
            message = encode_metrics(MetricsData(resource_metrics=[]))
            for each in payloads:
                # Encode them one by one: the encoder would keep only the last of several with the same resource.
                message.MergeFrom(encode_metrics(MetricsData(resource_metrics=[each])))
            return message


class Translator:
    """Converts facts to telemetry; must be used by one thread at a time."""

    def __init__(
        self,
        profile: Profile,
        resource: Mapping[str, str],
        put: Put,
        instruments: Instruments,
        now: Callable[[], int] | None = None,
    ) -> None:
        """Use one profile, with its own providers.

        Args:
            profile: the semantic-convention profile.
            resource: the attributes of the resource that emits this telemetry.
            put: receives complete items.
            instruments: the metrics of calls, tools and tokens.
            now: the clock for observed times. Default: the time of the recording.
        """
        self._profile, self._instruments = profile, instruments
        described = Resource(dict(resource))
        self._spans = _Spans(described, put)
        self._events = _Events(described, put, now)
        self.follower = Follower(hidden=profile.hidden)
        """Assembles the intervals."""
        self._started: dict[str, trace.Span] = {}
        self.is_logging = True
        """Whether events are emitted."""
        self.is_sent_before = False
        """Whether spans that open now were sent before, complete or as abandoned."""
        self._sent_before: set[str] = set()
        self.late_ends = 0
        """The number of spans that ended after they had been sent as abandoned: no backend accepts a second end."""

    def receive(self, written: WrittenFact) -> None:
        """Receive one fact."""
        fact = written.fact
        for change, interval in self.follower.follow(written):
            self._apply(change, interval)
        if isinstance(fact, UsageRow) and fact.billed:
            self._instruments.count_usage(fact, self.follower.call_of(fact.attempt_id))
        if isinstance(fact, Attempt) and fact.rate_limits and fact.origin == "live":
            self._instruments.note_limits(fact, fact.rate_limits)
        if self.is_logging and (event := event_of(fact)) is not None:
            span_id = getattr(fact, "span_id", None)
            trace_id = self.follower.trace_of(span_id) or event.interaction_id or fact.session_id
            conversation = self.follower.conversation_of(fact.session_id)
            attributes = semconv.event_attributes(self._profile, event, conversation)
            self._events.emit(event, trace_id, span_id, attributes)

    def abandon(self) -> None:
        """End open spans as abandoned, because no more facts will come."""
        for change, interval in self.follower.abandon():
            self._apply(change, interval)

    def _apply(self, change: str, interval: Interval) -> None:
        if change == "opens":
            self._started[interval.span_id] = self._spans.start(self._profile, interval)
            if self.is_sent_before:
                self._sent_before.add(interval.span_id)
            return
        started = self._started.pop(interval.span_id, None)
        if started is None:
            return
        if interval.span_id in self._sent_before:
            self._sent_before.discard(interval.span_id)
            if not self.is_sent_before:
                self.late_ends += interval.status != "orphaned"
                self._instruments.count_interval(interval)
                return
        started.set_attributes(self._profile.end_attributes(interval))
        if interval.content is not None:
            started.set_attributes(self._content(interval))
        ended_ns = max(interval.ended_ns, interval.started_ns)
        if (exception := _exception(interval)) is not None:
            started.add_event("exception", exception, timestamp=ended_ns)
        if (outer_span := _outer_span(interval)) is not None:
            started.add_link(outer_span)
        if (status := _status(interval)) is not None:
            started.set_status(status)
        self._instruments.count_interval(interval)
        started.end(ended_ns)

    def _content(self, interval: Interval) -> Attributes:
        try:
            return self._profile.content_attributes(interval)
        except Exception:
            # Content can have any form. If it cannot be converted, the span is sent without it.
            return {"agentobs.content.unreadable": True}


class _Ids(IdGenerator):
    """ID generator that returns the IDs that were set for the next span."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Spans(SpanProcessor):
    """A tracer that starts spans with the IDs of the recording, and passes each span to `put` when it ends."""

    def __init__(self, resource: Resource, put: Put) -> None:
        self._put, self._ids = put, _Ids()
        # All limits are set, because the SDK takes missing ones from the environment.
        limits = SpanLimits(
            max_attributes=SPAN_ATTRIBUTES_MAX,
            max_events=1,
            max_links=8,
            max_span_attributes=SPAN_ATTRIBUTES_MAX,
            max_event_attributes=8,
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
        self._tracer = provider.get_tracer(SCOPE, package_version())

    def start(self, profile: Profile, interval: Interval) -> trace.Span:
        """Start the span of an interval."""
        self._ids.trace_id = _number(interval.trace_id, 32)
        self._ids.span_id = _number(interval.span_id, 16)
        is_client = interval.name in ("llm_request", "attempt")
        kind = trace.SpanKind.CLIENT if is_client else trace.SpanKind.INTERNAL
        return self._tracer.start_span(
            profile.span_name(interval),
            context=_context(interval.trace_id, interval.parent_span_id),
            kind=kind,
            attributes=profile.start_attributes(interval),
            links=list(_links(interval)),
            start_time=interval.started_ns,
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Pass an ended span to `put`."""
        self._put("traces", span, _size(span.attributes or {}) + len(span.name))


class _Events(LogRecordProcessor):
    """A logger for exported events. It is independent of the logger of the recording."""

    def __init__(self, resource: Resource, put: Put, now: Callable[[], int] | None) -> None:
        self._put, self._now = put, now
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
        self._logger = provider.get_logger(SCOPE, package_version())

    def emit(
        self, event: LogEvent, trace_id: str, span_id: str | None, attributes: Attributes
    ) -> None:
        """Emit one event as a log record."""
        number = (
            SeverityNumber.ERROR if agentobs_attributes.is_error(event) else SeverityNumber.INFO
        )
        self._logger.emit(
            LogRecord(
                timestamp=event.at_ns,
                observed_timestamp=self._now() if self._now else event.at_ns,
                context=_context(trace_id, span_id),
                severity_text=number.name,
                severity_number=number,
                # An event needs no body, but lists of logs show only the body.
                body=semconv.event_name(event.kind),
                attributes=dict(attributes),
                event_name=semconv.event_name(event.kind),
            )
        )

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Pass a log record to `put`."""
        size = _size(log_record.log_record.attributes or {})
        self._put("logs", log_record, size)

    def shutdown(self) -> None:
        """Do nothing, because the backend is closed as a whole."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Do nothing, because nothing is queued here."""
        return True


class Instruments:
    """The metrics of one process or of one backfill."""

    def __init__(
        self, metrics: Metrics, resource: Mapping[str, str], *, is_delta: bool = False
    ) -> None:
        """Create the metrics of a profile. They count since the start, or with `is_delta` since they were last read."""
        kinds: Any = dict.fromkeys((Counter, Histogram), METRIC_SERIES)
        delta: Any = dict.fromkeys((Counter, Histogram), AggregationTemporality.DELTA)
        self._reader = InMemoryMetricReader(
            preferred_temporality=delta if is_delta else None, cardinality_limits=kinds
        )
        provider = MeterProvider(
            metric_readers=[self._reader],
            # An environment variable could enable metrics about the SDK itself.
            views=[View(instrument_name="otel.*", aggregation=DropAggregation())],
            resource=Resource(dict(resource)),
            exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        self._meter, self._metrics = provider.get_meter(SCOPE, package_version()), metrics
        self._tokens = self._histogram(metrics.token_usage)
        self._durations = self._histogram(metrics.operation_duration)
        self._first_chunks = self._histogram(metrics.first_chunk)
        self._tools = self._histogram(metrics.tool_duration)
        self._agents = self._histogram(metrics.agent_duration)
        cost = metrics.cost
        self._cost = self._meter.create_counter(cost.name, cost.unit, cost.description)
        limit = metrics.rate_limit
        self._headroom = self._meter.create_gauge(limit.name, limit.unit, limit.description)
        self._has_data = False
        self.is_counting = True
        """Whether items are counted; a backfill does not count items that were sent before."""

    def count_interval(self, interval: Interval) -> None:
        """Count an ended interval."""
        if interval.status == "orphaned" or not self.is_counting:
            return
        duration_s = agentobs_attributes.seconds(interval.ended_ns - interval.started_ns)
        if interval.name == "interaction":
            attributes = with_error(self._metrics.agent_attributes(interval), interval)
            self._agents.record(duration_s, attributes, context=_NO_SPAN)
        elif interval.name == "tool":
            if not interval.has_known_duration:
                return
            attributes = with_error(self._metrics.tool_attributes(interval), interval)
            self._tools.record(duration_s, attributes, context=_NO_SPAN)
        elif interval.is_chat:
            if agentobs_attributes.is_replayed(interval):
                return
            attributes = self._metrics.call_attributes(interval)
            self._durations.record(duration_s, with_error(attributes, interval), context=_NO_SPAN)
            attempt = interval.attempt
            if attempt is not None and attempt.streamed and attempt.first_chunk_ns is not None:
                first_chunk_s = agentobs_attributes.seconds(attempt.first_chunk_ns)
                self._first_chunks.record(first_chunk_s, attributes, context=_NO_SPAN)
        else:
            return
        self._has_data = True

    def count_usage(self, row: UsageRow, call: Interval | None) -> None:
        """Count the tokens of a call and their cost."""
        if not self.is_counting:
            return
        attributes = self._metrics.usage_attributes(
            row, agentobs_attributes.model_of(call) if call is not None else None
        )
        for kind, count in self._metrics.token_counts(tokens_of(row)):
            self._tokens.record(count, {**attributes, **kind}, context=_NO_SPAN)
        spent = cost_of(row)
        if spent.usd is not None:
            priced = {**attributes, "agentobs.cost.status": spent.status}
            self._cost.add(float(spent.usd), priced, context=_NO_SPAN)
        self._has_data = True

    def note_limits(self, attempt: Attempt, limits: Mapping[Label, float]) -> None:
        """Set the remaining share of each rate limit in the response of an attempt."""
        if not self.is_counting:
            return
        for name, ratio in headroom(limits).items():
            attributes = self._metrics.limit_attributes(attempt, name)
            self._headroom.set(ratio, attributes, context=_NO_SPAN)
            self._has_data = True

    def read(self) -> Any:
        """Return the current metrics, or None if nothing was counted yet."""
        return self._reader.get_metrics_data() if self._has_data else None

    def _histogram(self, measure: Measure) -> Any:
        return self._meter.create_histogram(
            measure.name,
            measure.unit,
            measure.description,
            explicit_bucket_boundaries_advisory=list(measure.buckets),
        )


_NO_SPAN = Context({"agentobs": True})
"""A context without an open span. It is not empty, because an empty context means the current one."""


def _context(trace_id: str, parent_span_id: str | None) -> Context:
    """Return a context with a parent span, or only with a trace ID if there is no parent."""
    parent = trace.SpanContext(
        _number(trace_id, 32),
        _number(parent_span_id, 16) if parent_span_id else 0,
        is_remote=False,
        trace_flags=_SAMPLED,
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), _NO_SPAN)


def _links(interval: Interval) -> Iterator[trace.Link]:
    for trace_id, span_id in interval.links:
        context = trace.SpanContext(
            _number(trace_id, 32), _number(span_id, 16), is_remote=False, trace_flags=_SAMPLED
        )
        yield trace.Link(context)


def _outer_span(interval: Interval) -> trace.SpanContext | None:
    """Return the span of the program's own telemetry in which a call was made, from its `traceparent`; else None."""
    adopted = interval.attempt.adopted_span if interval.attempt is not None else None
    if adopted is None or interval.name == "attempt":
        return None
    return trace.SpanContext(
        _number(adopted[3:35], 32),
        _number(adopted[36:52], 16),
        is_remote=False,
        trace_flags=_SAMPLED,
    )


def _status(interval: Interval) -> trace.Status | None:
    """Return the status of a span: OK, or ERROR with the error class; None if it was canceled."""
    if interval.status == "ok":
        return trace.Status(trace.StatusCode.OK)
    error_type = agentobs_attributes.error_of(interval)
    return None if error_type is None else trace.Status(trace.StatusCode.ERROR, error_type)


def _exception(interval: Interval) -> dict[str, str] | None:
    """Return the attributes of the event of a failed model call: its error class and, with content, its error message.

    None if the call did not fail.
    """
    if not interval.is_chat or interval.status != "error":
        return None
    found = {"exception.type": agentobs_attributes.error_of(interval) or "_OTHER"}
    if interval.content is not None and (message := error_message(interval.content)):
        found["exception.message"] = message
    return found


def _number(text: str, digits: int) -> int:
    return int(identity(text, digits), 16)


def _size(attributes: Mapping[str, Any]) -> int:
    """Return the approximate size in memory of an item with these attributes, including SDK objects."""
    return 1024 + sum(
        64 + len(name) + (4 * len(value) if isinstance(value, str) else 16)
        for name, value in attributes.items()
    )


def package_version() -> str:
    """Return the version of this package."""
    try:
        return version("agentobs-kit")
    except PackageNotFoundError:
        return "unknown"
