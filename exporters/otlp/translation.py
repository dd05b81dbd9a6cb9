"""Translation of facts to OpenTelemetry's spans, log records and sums, with the names of a profile.

A `Translator` receives the facts of one process, or of one recorded session, and passes complete items to `put`. It
uses OpenTelemetry's SDK with its own providers: no global one is set or read, and no limit is taken from the
environment. IDs and times are those of the recording: an interaction is a trace.
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

from agentobs.records.backend import Told
from agentobs.records.event_catalog import Logged, event_of
from agentobs.records.facts import UsageRow
from exporters.conventions import agentobs_attributes, semconv
from exporters.conventions.agentobs_attributes import Attributes
from exporters.conventions.intervals import Follower, Interval, cost_of, identity, tokens_of
from exporters.conventions.profile import Measure, Metrics, Profile, with_error
from exporters.otlp.outbox import Signal

METRIC_SERIES = 500
"""The maximum number of attribute sets per metric; above it they are counted as one. Our choice: names of models and
tools come from others, and may have unlimited variants.
"""

SCOPE = "agentobs"
"""The name of the instrumentation scope."""

_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)

Put = Callable[[Signal, Any, int], object]
"""Receives a span that ended or a log record, and its approximate size in memory."""


def encoded(signal: Signal, payloads: Sequence[Any]) -> Any:
    """Return one OTLP message with spans, or log records, or the metrics of resources."""
    match signal:
        case "traces":
            return encode_spans(payloads)
        case "logs":
            return encode_logs(payloads)
        case "metrics":
            message = encode_metrics(MetricsData(resource_metrics=[]))
            for each in payloads:
                # Of two with the same source, the encoder would keep the last.
                message.MergeFrom(encode_metrics(MetricsData(resource_metrics=[each])))
            return message


class Translator:
    """Receives facts, and converts them to telemetry; for one thread at a time."""

    def __init__(
        self,
        profile: Profile,
        resource: Mapping[str, str],
        put: Put,
        instruments: Instruments,
        now: Callable[[], int] | None = None,
    ) -> None:
        """Use one profile.

        Args:
            profile: the vocabulary.
            resource: the source of this telemetry.
            put: receives complete items.
            instruments: count calls, tools and tokens.
            now: the clock for observed times; None: the time of the recording.
        """
        self._profile, self._instruments = profile, instruments
        described = Resource(dict(resource))
        self._spans = _Spans(described, put)
        self._events = _Events(described, put, now)
        self.follower = Follower(hidden=profile.hidden)
        """The open intervals and what is known of them."""
        self._started: dict[str, trace.Span] = {}
        self.is_logging = True
        """Whether events are emitted."""
        self.is_told = False
        """Whether what opens now was sent before, complete or as abandoned."""
        self._told: set[str] = set()
        self.late_ends = 0
        """Ends of spans that had been sent as abandoned: no backend accepts a second end."""

    def hear(self, told: Told) -> None:
        """Receive one fact."""
        fact = told.fact
        for move in self.follower.follow(told):
            self._move(move.way, move.interval)
        if isinstance(fact, UsageRow) and fact.billed:
            self._instruments.used(fact, self.follower.call_of(fact.attempt_id))
        if self.is_logging and (event := event_of(fact)) is not None:
            span_id = getattr(fact, "span_id", None)
            trace_id = self.follower.trace_of(span_id) or event.interaction_id or fact.session_id
            conversation = self.follower.conversation_of(fact.session_id)
            told_of = semconv.on_event(self._profile, event, conversation)
            self._events.emit(event, trace_id, span_id, told_of)

    def abandon(self) -> None:
        """End open spans as abandoned: no more facts will come."""
        for move in self.follower.abandon():
            self._move(move.way, move.interval)

    def _move(self, way: str, interval: Interval) -> None:
        if way == "opens":
            self._started[interval.span_id] = self._spans.start(self._profile, interval)
            if self.is_told:
                self._told.add(interval.span_id)
            return
        started = self._started.pop(interval.span_id, None)
        if started is None:
            return
        if interval.span_id in self._told:
            self._told.discard(interval.span_id)
            if not self.is_told:
                self.late_ends += interval.status != "orphaned"
                self._instruments.ended(interval)
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
            # Content may have any form; if it cannot be converted, the span is sent without it.
            return {"agentobs.content.unreadable": True}


class _Ids(IdGenerator):
    """Gives the next span the IDs of the recording."""

    def __init__(self) -> None:
        self.trace_id = self.span_id = 0

    def generate_span_id(self) -> int:
        return self.span_id

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Spans(SpanProcessor):
    """Our tracer: starts spans with given IDs, and puts each into the outbox when it ends."""

    def __init__(self, resource: Resource, put: Put) -> None:
        self._put, self._ids = put, _Ids()
        # Each limit is explicit, because the SDK takes others from the environment. 128 is its own default.
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
        self._tracer = provider.get_tracer(SCOPE, package_version())

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
        """Pass on a span that ended."""
        self._put("traces", span, _size(span.attributes or {}) + len(span.name))


class _Events(LogRecordProcessor):
    """Our third-party logger: what the user opted into. The recording has its own logger, independent of this one."""

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
        self, event: Logged, trace_id: str, span_id: str | None, attributes: Attributes
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
                # An event needs no body, but a list of logs shows nothing else.
                body=agentobs_attributes.event_name(event.kind),
                attributes=dict(attributes),
                event_name=agentobs_attributes.event_name(event.kind),
            )
        )

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        """Pass on a log record."""
        size = _size(log_record.log_record.attributes or {})
        self._put("logs", log_record, size)

    def shutdown(self) -> None:
        """Do nothing: the backend is closed as a whole."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Do nothing: nothing is queued here."""
        return True


class Instruments:
    """Our meter."""

    def __init__(
        self, metrics: Metrics, resource: Mapping[str, str], *, is_delta: bool = False
    ) -> None:
        """Count in the metrics of a profile: since the start, or since they were last read."""
        kinds: Any = dict.fromkeys((Counter, Histogram), METRIC_SERIES)
        delta: Any = dict.fromkeys((Counter, Histogram), AggregationTemporality.DELTA)
        self._reader = InMemoryMetricReader(
            preferred_temporality=delta if is_delta else None, cardinality_limits=kinds
        )
        provider = MeterProvider(
            metric_readers=[self._reader],
            # An environment variable would add metrics about the SDK itself.
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
        self._cost = self._meter.create_counter(cost.name, cost.unit, cost.about)
        self._has_any = False
        self.is_counting = True
        """Whether the current item counts."""

    def ended(self, interval: Interval) -> None:
        """Count an interval that ended."""
        if interval.status == "orphaned" or not self.is_counting:
            return
        took = agentobs_attributes.seconds(interval.ended_ns - interval.started_ns)
        if interval.name == "interaction":
            about = with_error(self._metrics.on_agent(interval), interval)
            self._agents.record(took, about, context=_NOWHERE)
        elif interval.name == "tool":
            about = with_error(self._metrics.on_tool(interval), interval)
            self._tools.record(took, about, context=_NOWHERE)
        elif interval.is_chat:
            if agentobs_attributes.is_replayed(interval):
                return
            on_call = self._metrics.on_call(interval)
            self._durations.record(took, with_error(on_call, interval), context=_NOWHERE)
            attempt = interval.attempt
            if attempt is not None and attempt.streamed and attempt.first_chunk_ns is not None:
                first = agentobs_attributes.seconds(attempt.first_chunk_ns)
                self._first_chunks.record(first, on_call, context=_NOWHERE)
        else:
            return
        self._has_any = True

    def used(self, row: UsageRow, call: Interval | None) -> None:
        """Count the tokens of a call and their cost."""
        if not self.is_counting:
            return
        about = self._metrics.on_usage(
            row, agentobs_attributes.model_of(call) if call is not None else None
        )
        for kind, count in self._metrics.on_tokens(tokens_of(row)):
            self._tokens.record(count, {**about, **kind}, context=_NOWHERE)
        spent = cost_of(row)
        if spent.usd is not None:
            priced = {**about, "agentobs.cost.status": spent.status}
            self._cost.add(float(spent.usd), priced, context=_NOWHERE)
        self._has_any = True

    def read(self) -> Any:
        """Return the current metrics, or None if there are none yet."""
        return self._reader.get_metrics_data() if self._has_any else None

    def _histogram(self, measure: Measure) -> Any:
        return self._meter.create_histogram(
            measure.name,
            measure.unit,
            measure.about,
            explicit_bucket_boundaries_advisory=list(measure.buckets),
        )


_NOWHERE = Context({"agentobs": True})
"""A context without an open span: an empty one would mean the current one."""


def _context(trace_id: str, parent_span_id: str | None) -> Context:
    """Return a context with a parent span; without one it has only the trace, which is not a parent."""
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
    """Return the span of the program's own telemetry that a call was made in: a `traceparent`, if there was one."""
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
    """Return the approximate size in memory of an item with these attributes: SDK objects are not small."""
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
