"""Telemetry for tests: what Claude Code 2.1.332 sends about one request, and ways to send it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

import agentobs
from agentobs.collector.telemetry_collector import Collector

CLIENT_SESSION = "2ae82282-bc28-429c-8dac-9320dd02b2d7"
TIME_NS = 1_795_692_307_956_000_000
JSON = {"content-type": "application/json"}


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes in OTLP's JSON encoding."""
    kinds = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}
    return [{"key": name, "value": {kinds[type(value)]: value}} for name, value in values.items()]


def log(name: str, **values: Any) -> dict[str, Any]:
    """Return a log record of Claude Code."""
    own = {"session.id": CLIENT_SESSION, "event.name": name, **_dotted(values)}
    return {
        "timeUnixNano": str(TIME_NS),
        "body": {"stringValue": f"claude_code.{name}"},
        "traceId": "56a04b1e3b507a3855d356243069d7da",
        "spanId": "5aed664b88d2f71c",
        "attributes": attributes(own),
    }


def api_request(request_id: str, cost_usd: float = 0.0001006, **values: Any) -> dict[str, Any]:
    """Return the log record about one request."""
    tokens = {
        "input_tokens": 10,
        "output_tokens": 8,
        "cache_read_tokens": 3,
        "cache_creation_tokens": 0,
    }
    counted = {**tokens, "duration_ms": 108, "ttft_ms": 32, **values}
    return log(
        "api_request", model="claude-sonnet-5", cost_usd=cost_usd, request_id=request_id, **counted
    )


def span(name: str, **values: Any) -> dict[str, Any]:
    """Return a span of Claude Code."""
    return {
        "traceId": "56a04b1e3b507a3855d356243069d7da",
        "spanId": "63fafbbb1d33ff24",
        "parentSpanId": "5aed664b88d2f71c",
        "name": f"claude_code.{name}",
        "startTimeUnixNano": str(TIME_NS),
        "endTimeUnixNano": str(TIME_NS + 118_000_000),
        "attributes": attributes({"session.id": CLIENT_SESSION, **_dotted(values)}),
    }


def logs(*records: dict[str, Any], service: str = "claude-code") -> dict[str, Any]:
    """Return an export request with log records."""
    return {"resourceLogs": [{**_resource(service), "scopeLogs": [{"logRecords": list(records)}]}]}


def spans(*records: dict[str, Any]) -> dict[str, Any]:
    """Return an export request with spans."""
    return {"resourceSpans": [{**_resource(), "scopeSpans": [{"spans": list(records)}]}]}


def counter(name: str, *values: float, temporality: int = 1, **labels: Any) -> dict[str, Any]:
    """Return an export request with the data points of a counter, of the temporality delta (1) or cumulative (2)."""
    points = [
        {
            "startTimeUnixNano": str(TIME_NS),
            "timeUnixNano": str(TIME_NS + number),
            "asDouble": value,
            "attributes": attributes({"session.id": CLIENT_SESSION, **labels}),
        }
        for number, value in enumerate(values, 1)
    ]
    total = {"aggregationTemporality": temporality, "dataPoints": points}
    metric = {"name": name, "sum": {**total, "isMonotonic": True}}
    return {"resourceMetrics": [{**_resource(), "scopeMetrics": [{"metrics": [metric]}]}]}


def _dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in values.items()}


def _resource(service: str = "claude-code") -> dict[str, Any]:
    values = {"service.name": service, "service.version": "2.1.332"}
    return {"resource": {"attributes": attributes(values)}}


def send(url: str, path: str, request: Any, *, is_compressed: bool = False) -> httpx2.Response:
    """Send an export request in the JSON encoding."""
    body = json.dumps(request).encode()
    if not is_compressed:
        return httpx2.post(f"{url}{path}", content=body, headers=JSON)
    headers = {**JSON, "content-encoding": "gzip"}
    return httpx2.post(f"{url}{path}", content=gzip.compress(body), headers=headers)


@contextmanager
def collecting(home: Path, *, grpc: bool = False) -> Iterator[Collector]:
    """Open a collector that records into a home."""
    agentobs.stop_recorder()
    agentobs.start(str(home))
    collector = Collector(grpc_port=0 if grpc else None)
    try:
        with collector:
            yield collector
        collector.sessions.close()
    finally:
        agentobs.stop_recorder()
