"""Traces of OrcaReplay: a folder with `manifest.json`, `events.jsonl` and `blobs/` for each run.

    {"seq", "ts", "mono_us", "turn", "type", "actor", "causes", "attrs", "payload"}

The payloads of `model.request` and `model.response` are the bodies as the tool's proxy saw them. Large payloads are
files. Headers are not stored. Source: Orca Trace Format v0 (schema 0.1.0), github.com/Continuum-AI-Corp/OrcaReplay,
`spec/orca-trace-v0.md`, November 2026.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentobs.errors import ForeignError
from agentobs.importers.exchange_sessions import recorded_time
from agentobs.importers.line_files import FAR_NS, LINE_BYTES_MAX, file_bytes
from agentobs.importers.recordings.json_arrays import parsed_json
from agentobs.importers.recordings.stored_exchanges import StoredExchange
from agentobs.provider.registry import ANTHROPIC

EVENTS, MANIFEST = "events.jsonl", "manifest.json"
"""The files of a trace."""
MANIFEST_BYTES = 16 * 1024 * 1024

_BLOB = re.compile(r"sha256:(?P<name>[0-9a-f]{64})")


@dataclass(slots=True)
class _Request:
    event: dict[str, Any]
    body: bytes | None


def orca_exchanges(data: bytes, folder: Path) -> Iterator[StoredExchange | None]:
    """Yield the exchanges of a trace in the order of their ends; None for each other request in the trace.

    Args:
        data: the file of the events.
        folder: the folder of the trace.

    Raises:
        ForeignError: it is not a trace, is damaged, or has a newer format.
    """
    _check_manifest(data, folder)
    waiting: dict[int, _Request] = {}
    lines = data.split(b"\n")
    if lines[-1].strip():
        raise ForeignError(
            f"line {len(lines)} is cut: the recorder was probably killed while it wrote the line"
        )
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        event = parsed_json(line, f"line {number}")
        if not isinstance(event, dict) or not isinstance(event.get("seq"), int):
            raise ForeignError(f"line {number} is not an event of OrcaReplay")
        try:
            match event.get("type"):
                case "model.request":
                    waiting[event["seq"]] = _Request(event, _payload(event, folder))
                case "model.response":
                    if (request := _take(waiting, event)) is None:
                        raise ForeignError("a response without a request")
                    yield _exchange(request, event, folder)
                case "net.request":
                    yield None
        except ForeignError as error:
            raise ForeignError(f"line {number}: {error.found}") from error
        except (ValueError, RecursionError) as error:
            raise ForeignError(f"line {number} has a payload that is not JSON") from error
    for request in waiting.values():
        yield _exchange(request, None, folder)


def _check_manifest(data: bytes, folder: Path) -> None:
    """Raise an error if the manifest has a newer version, or describes other events."""
    try:
        manifest = parsed_json(file_bytes(folder / MANIFEST, MANIFEST_BYTES), MANIFEST)
    except OSError as error:
        raise ForeignError(f"not a trace of OrcaReplay: its folder has no {MANIFEST}") from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if not isinstance(version, str):
        raise ForeignError(f"not a trace of OrcaReplay: its {MANIFEST} has no `schema_version`")
    if not version.startswith("0."):
        raise ForeignError("unsupported format of OrcaReplay: only version 0 can be read")
    integrity = manifest.get("integrity")
    digest = integrity.get("events_sha256") if isinstance(integrity, dict) else None
    if manifest.get("ended_at") and digest and digest != hashlib.sha256(data).hexdigest():
        raise ForeignError(
            f"{EVENTS} has changed since the end of the run: its digest differs from that in {MANIFEST}"
        )


def _take(waiting: dict[int, _Request], response: Mapping[str, Any]) -> _Request | None:
    """Return the request of a response, and remove it: the request that the response names, or that of its turn."""
    causes = response.get("causes")
    named = (
        [seq for seq in causes if isinstance(seq, int) and seq in waiting]
        if isinstance(causes, list)
        else []
    )
    same_turn = [
        seq for seq, each in waiting.items() if each.event.get("turn") == response.get("turn")
    ]
    found = next(iter((*named, *same_turn, *waiting)), None)
    return None if found is None else waiting.pop(found)


def _exchange(
    request: _Request, response: Mapping[str, Any] | None, folder: Path
) -> StoredExchange | None:
    """Return an exchange; None if it is with another provider."""
    attributes = _dict(request.event.get("attrs"))
    if attributes.get("dialect") not in (None, ANTHROPIC.name):
        return None
    answered = _dict((response or {}).get("attrs"))
    sent_ns = recorded_time(request.event.get("ts"))
    ended_ns = recorded_time((response or {}).get("ts"))
    duration_ns = _ns(answered.get("duration_ms"))
    if duration_ns and ended_ns is not None:
        # The tool writes both events when the response has ended.
        sent_ns = max(ended_ns - duration_ns, 0)
    elif sent_ns is not None and ended_ns is not None:
        duration_ns = max(ended_ns - sent_ns, 0)
    path = attributes.get("path")
    status = answered.get("status", 200)
    return StoredExchange(
        method="POST",
        url=path if isinstance(path, str) and path.startswith("/") else ANTHROPIC.turn_path,
        request_body=request.body,
        status=status if isinstance(status, int) and response is not None else None,
        response_body=None if response is None else _payload(response, folder),
        started_ns=sent_ns,
        duration_ns=duration_ns,
        is_provider=True,
    )


def _payload(event: Mapping[str, Any], folder: Path) -> bytes | None:
    """Return the payload of an event as bytes; None if it is missing."""
    value = event.get("payload")
    if isinstance(value, dict) and "$blob" in value:
        found = _BLOB.fullmatch(str(value["$blob"]))
        if found is None:
            raise ForeignError("a payload in a file without a valid digest")
        name = found["name"]
        try:
            data = file_bytes(folder / "blobs" / name[:2] / name, LINE_BYTES_MAX)
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != name:
            raise ForeignError(
                f"the payload in blobs/{name[:2]}/{name} has changed: its digest differs from its name"
            )
        if value.get("media_type") != "application/json":
            return data
        value = parsed_json(data, f"the payload in blobs/{name[:2]}/{name}")
    if value is None:
        return None
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    )
    return text.encode("utf-8", "surrogatepass")


def _ns(milliseconds: Any) -> int:
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return 0
    return int(milliseconds * 1e6) if 0 < milliseconds < FAR_NS / 1e7 else 0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
