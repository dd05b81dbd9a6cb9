"""OTLP requests: reads export requests for logs, spans and metrics, in the binary and in the JSON encoding.

Source: the OTLP specification 1.9, https://opentelemetry.io/docs/specs/otlp/.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf.json_format import Parse, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Signal = Literal["log", "span", "metric"]
"""The kind of a record."""

REQUESTS: Mapping[Signal, Any] = {
    "log": ExportLogsServiceRequest,
    "span": ExportTraceServiceRequest,
    "metric": ExportMetricsServiceRequest,
}
"""The message of an export request, by signal."""

CUMULATIVE = 2
"""`AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE` of OTLP's metrics."""
_NESTING_MAX = 60
"""The maximum nesting depth of values in a JSON request. Our choice: attributes are flat."""


RECORDS_MAX = 100_000
"""The maximum number of records in a request. Our choice: exporters send at most some thousand."""


class TooManyRecords(Exception):
    """A request has more than `RECORDS_MAX` records."""


class MalformedRequest(Exception):
    """A body that is not an export request; the message is readable and contains nothing of the body."""


@dataclass(frozen=True, slots=True)
class TelemetryRecord:
    """A log record, a span, or a data point of a metric."""

    record_id: str
    """A digest of the record and its resource, 32 hex digits. A record that is sent again has the same digest."""
    signal: Signal
    name: str
    at_ns: int
    """The time of a log record or of a data point, or the start of a span, nanoseconds since 1970; 0 if unknown."""
    attributes: Mapping[str, Any]
    """The attributes of the resource and of the record: strings, numbers and booleans; other values are left out."""
    trace_id: str = ""
    """32 hex digits, or empty."""
    span_id: str = ""
    """16 hex digits, or empty."""
    parent_span_id: str = ""
    numbers: Mapping[str, float] | None = None
    """The numbers that are not attributes: the duration of a span, or the value of a data point."""
    series_id: str = ""
    """A digest of a metric, its attributes and the start of its counting, 32 hex digits; points of a cumulative metric
    with the same digest replace each other.
    """


def parse_request(signal: Signal, body: bytes, *, is_json: bool) -> Any:
    """Return the export request in a body.

    Args:
        signal: the kind of the records.
        body: the body, not compressed.
        is_json: whether it is in the JSON encoding.

    Raises:
        MalformedRequest: it is not an export request.
    """
    request = REQUESTS[signal]()
    try:
        if not is_json:
            request.ParseFromString(body)
            return request
        Parse(body, request, ignore_unknown_fields=True, max_recursion_depth=_NESTING_MAX)
    except (DecodeError, ParseError, ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is not an OTLP request for {signal}s") from error
    _restore_ids(request)
    return request


def records_in(signal: Signal, request: Any) -> Iterator[TelemetryRecord]:
    """Return the records of an export request.

    Raises:
        TooManyRecords: there are more than `RECORDS_MAX`.
    """
    if _count(signal, request) > RECORDS_MAX:
        raise TooManyRecords
    return _records(signal, request)


def _count(signal: Signal, request: Any) -> int:
    match signal:
        case "log":
            return sum(
                len(scope.log_records)
                for each in request.resource_logs
                for scope in each.scope_logs
            )
        case "span":
            return sum(
                len(scope.spans) for each in request.resource_spans for scope in each.scope_spans
            )
        case "metric":
            metrics = _each(request.resource_metrics, "scope_metrics", "metrics")
            return sum(
                len(getattr(metric, kind).data_points)
                for _, metric in metrics
                if (kind := metric.WhichOneof("data")) is not None
            )


def _records(signal: Signal, request: Any) -> Iterator[TelemetryRecord]:
    match signal:
        case "log":
            for resource, record in _each(request.resource_logs, "scope_logs", "log_records"):
                yield _log(resource, record)
        case "span":
            for resource, record in _each(request.resource_spans, "scope_spans", "spans"):
                yield _span(resource, record)
        case "metric":
            for resource, record in _each(request.resource_metrics, "scope_metrics", "metrics"):
                yield from _data_points(resource, record)


def _each(resources: Iterable[Any], scopes: str, records: str) -> Iterator[tuple[Any, Any]]:
    for each in resources:
        for scope in getattr(each, scopes):
            for record in getattr(scope, records):
                yield each.resource, record


def _log(resource: Any, record: Any) -> TelemetryRecord:
    body = record.body
    name = record.event_name or (
        body.string_value if body.WhichOneof("value") == "string_value" else ""
    )
    return TelemetryRecord(
        _digest("log", resource, record),
        "log",
        name,
        record.time_unix_nano or record.observed_time_unix_nano,
        _attributes(resource, record),
        record.trace_id.hex(),
        record.span_id.hex(),
    )


def _span(resource: Any, record: Any) -> TelemetryRecord:
    duration = max(record.end_time_unix_nano - record.start_time_unix_nano, 0)
    return TelemetryRecord(
        _digest("span", resource, record),
        "span",
        record.name,
        record.start_time_unix_nano,
        _attributes(resource, record),
        record.trace_id.hex(),
        record.span_id.hex(),
        record.parent_span_id.hex(),
        {"span_duration_ns": float(duration)},
    )


def _data_points(resource: Any, metric: Any) -> Iterator[TelemetryRecord]:
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    data = getattr(metric, kind)
    # A gauge and a summary have no temporality; each of their points replaces the previous one.
    is_cumulative = getattr(data, "aggregation_temporality", CUMULATIVE) == CUMULATIVE
    for point in data.data_points:
        yield TelemetryRecord(
            _digest("metric", resource, point, metric.name),
            "metric",
            metric.name,
            point.time_unix_nano,
            _attributes(resource, point),
            numbers={**_values(point), "is_cumulative": float(is_cumulative)},
            series_id=_series(resource, point, metric.name),
        )


def _values(point: Any) -> dict[str, float]:
    """Return the value of a data point, or the count and the sum of a distribution."""
    kinds = {field.name for field in point.DESCRIPTOR.fields}
    if "as_double" in kinds:
        set_value = point.WhichOneof("value")
        return {} if set_value is None else {"value": float(getattr(point, set_value))}
    return {"count": float(point.count), "value": float(point.sum)}


def _attributes(resource: Any, record: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in (*resource.attributes, *record.attributes):
        kind = attribute.value.WhichOneof("value")
        if kind in ("string_value", "int_value", "double_value", "bool_value"):
            found[attribute.key] = getattr(attribute.value, kind)
    return found


def _digest(signal: Signal, resource: Any, record: Any, name: str = "") -> str:
    hashed = hashlib.blake2b(f"{signal} {name}\0".encode(), digest_size=16)
    for message in (resource, record):
        hashed.update(message.SerializeToString(deterministic=True))
    return hashed.hexdigest()


def _series(resource: Any, point: Any, name: str) -> str:
    hashed = hashlib.blake2b(f"{name}\0{point.start_time_unix_nano}\0".encode(), digest_size=16)
    hashed.update(resource.SerializeToString(deterministic=True))
    for attribute in sorted(point.attributes, key=lambda each: each.key):
        hashed.update(attribute.SerializeToString(deterministic=True))
    return hashed.hexdigest()


def _restore_ids(request: Any) -> None:
    """Correct the IDs in a request that was parsed as JSON.

    OTLP writes IDs in hex, and protobuf reads them in base64.
    """
    for signal, record in _identified(request):
        fields = ("trace_id", "span_id", *(("parent_span_id",) if signal == "span" else ()))
        for field in fields:
            if value := getattr(record, field):
                setattr(record, field, _from_hex(value))


def _identified(request: Any) -> Iterator[tuple[Signal, Any]]:
    if isinstance(request, ExportLogsServiceRequest):
        for _, record in _each(request.resource_logs, "scope_logs", "log_records"):
            yield "log", record
    elif isinstance(request, ExportTraceServiceRequest):
        for _, record in _each(request.resource_spans, "scope_spans", "spans"):
            yield "span", record


def _from_hex(value: bytes) -> bytes:
    try:
        return bytes.fromhex(base64.b64encode(value).decode())
    except ValueError:
        return b""
