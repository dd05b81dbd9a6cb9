"""An independent decoder of OTLP: it reads protobuf's wire format and OTLP's JSON, with its own table of names.

It shares no code with the senders or with the libraries that encode messages, so that it finds their errors.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ANY = {
    1: ("stringValue", "text"),
    2: ("boolValue", "int"),
    3: ("intValue", "int"),
    4: ("doubleValue", "double"),
}
ARRAY = {1: ("values", ANY)}
ANY[5] = ("arrayValue", ARRAY)  # type: ignore[assignment]
PAIR = {1: ("key", "text"), 2: ("value", ANY)}
RESOURCE = {1: ("attributes", PAIR)}
SCOPE = {1: ("name", "text"), 2: ("version", "text")}
LINK = {1: ("traceId", "id"), 2: ("spanId", "id")}
EVENT = {1: ("timeUnixNano", "fixed"), 2: ("name", "text"), 3: ("attributes", PAIR)}
SPAN = {
    1: ("traceId", "id"), 2: ("spanId", "id"), 4: ("parentSpanId", "id"), 5: ("name", "text"), 6: ("kind", "int"),
    7: ("startTimeUnixNano", "fixed"), 8: ("endTimeUnixNano", "fixed"), 9: ("attributes", PAIR), 11: ("events", EVENT),
    13: ("links", LINK), 15: ("status", {2: ("message", "text"), 3: ("code", "int")}),
}  # fmt: skip
LOG = {
    1: ("timeUnixNano", "fixed"), 2: ("severityNumber", "int"), 3: ("severityText", "text"), 5: ("body", ANY),
    6: ("attributes", PAIR), 9: ("traceId", "id"), 10: ("spanId", "id"), 11: ("observedTimeUnixNano", "fixed"),
    12: ("eventName", "text"),
}  # fmt: skip
NUMBER = {
    2: ("startTimeUnixNano", "fixed"),
    3: ("timeUnixNano", "fixed"),
    4: ("asDouble", "double"),
    7: ("attributes", PAIR),
}
HISTOGRAM = {
    2: ("startTimeUnixNano", "fixed"), 3: ("timeUnixNano", "fixed"), 4: ("count", "fixed"), 5: ("sum", "double"),
    6: ("bucketCounts", "fixed"), 7: ("explicitBounds", "double"), 9: ("attributes", PAIR),
}  # fmt: skip
METRIC = {
    1: ("name", "text"), 3: ("unit", "text"),
    7: ("sum", {1: ("dataPoints", NUMBER), 2: ("aggregationTemporality", "int")}),
    9: ("histogram", {1: ("dataPoints", HISTOGRAM), 2: ("aggregationTemporality", "int")}),
}  # fmt: skip
MANY = {"attributes", "events", "links", "values", "dataPoints", "bucketCounts", "explicitBounds"}
INNER = {
    "traces": ("Spans", "spans", SPAN),
    "logs": ("Logs", "logRecords", LOG),
    "metrics": ("Metrics", "metrics", METRIC),
}


@dataclass(frozen=True)
class TelemetryItem:
    """One span, log record or metric. `fields` has the names of OTLP's JSON."""

    signal: str
    resource: dict[str, Any]
    fields: dict[str, Any]
    attributes: dict[str, Any]


def read(signal: str, body: bytes, *, is_json: bool) -> Iterator[TelemetryItem]:
    """Yield the items of one message."""
    outer, inner, schema = INNER[signal]
    scopes, resources = f"scope{outer}", f"resource{outer}"
    message = {
        1: (
            resources,
            {1: ("resource", RESOURCE), 2: (scopes, {1: ("scope", SCOPE), 2: (inner, schema)})},
        )
    }
    many = {resources, scopes, inner}
    found = json.loads(body) if is_json else _message(body, message, many)
    for resource in found.get(resources, ()):
        about = _pairs(resource["resource"].get("attributes", ()))
        for scope in resource[scopes]:
            for each in scope[inner]:
                yield TelemetryItem(signal, about, each, _pairs(each.get("attributes", ())))


def _pairs(pairs: Any) -> dict[str, Any]:
    found = {pair["key"]: _plain(pair["value"]) for pair in pairs}
    assert len(found) == len(pairs), "a name that stands there twice"
    return found


def plain_pairs(pairs: Any) -> dict[str, Any]:
    """Return the attributes of a data point."""
    return _pairs(pairs)


def _plain(value: dict[str, Any]) -> Any:
    [(kind, held)] = value.items()
    if kind == "arrayValue":
        return [_plain(each) for each in held.get("values", ())]
    if kind == "intValue":
        return int(held)
    return bool(held) if kind == "boolValue" else held


def _message(data: bytes, schema: Any, many: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 1:
            value, at = data[at : at + 8], at + 8  # type: ignore[assignment]
        elif wire == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size  # type: ignore[assignment]
        else:
            value, at = data[at : at + 4], at + 4  # type: ignore[assignment]
        if number in schema:
            name, kind = schema[number]
            read = _values(value, kind, many)
            if name in many or name in MANY:
                found.setdefault(name, []).extend(read)
            else:
                found[name] = read[0]
    return found


def _values(value: Any, kind: Any, many: set[str]) -> list[Any]:
    if isinstance(kind, dict):
        return [_message(value, kind, many)]
    if kind == "text":
        return [value.decode()]
    if kind == "id":
        return [value.hex()]
    if kind == "int":
        return [value - 2**64 if value >= 2**63 else value]
    # Several values are packed.
    return [n for (n,) in struct.iter_unpack("<Q" if kind == "fixed" else "<d", value)]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
        shift += 7
