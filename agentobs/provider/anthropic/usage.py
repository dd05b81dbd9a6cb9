"""Usage objects of the Messages API as usage rows.

Anthropic's `input_tokens` excludes cached tokens, so the buckets add up without overlap. A response
may list `iterations` (server-side compaction, advisor, fallback). In this case only the iterations are
billed, each with its own model, and the top-level counts are kept for comparison.

No count of the provider is dropped: unknown kinds of server requests and unknown counts are kept under
their names. An invalid count (negative, null, fractional, above `COUNT_MAX`) becomes zero; the row is
then an estimate, and its note contains the name of the count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from agentobs.records.labels import is_label
from agentobs.records.usage import COUNT_MAX, Certainty, Usage


def usage_rows(
    model: str, usage: Mapping[str, Any], certainty: Certainty, batch_result_id: str | None = None
) -> list[Usage]:
    """Return the usage rows of one response: the row of the top-level counts, followed by the rows of the iterations.

    Args:
        model: the model of the response, and of iterations that contain no model.
        usage: the provider's usage object.
        certainty: the certainty of the counts if all of them can be read.
        batch_result_id: see `Usage`.
    """
    listed = usage.get("iterations")
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    rows = [_row(0, "message", not entries, model, usage, usage, certainty, batch_result_id)]
    for number, entry in enumerate(entries, 1):
        kind, own_model = entry.get("type"), entry.get("model")
        rows.append(
            _row(
                number,
                kind if isinstance(kind, str) else "unknown",
                True,
                own_model if isinstance(own_model, str) else model,
                entry,
                usage,
                certainty,
                batch_result_id,
            )
        )
    return rows


def platform_of(path: str, model: str) -> str | None:
    """Return the cloud platform of a request, based on its path and its model name; None for the provider itself."""
    if path.startswith("/model/") or re.search(r"(?:^|[./:])anthropic\.|bedrock", model):
        return "bedrock"
    if "rawPredict" in path or "RawPredict" in path or re.search(r"@20\d{6}|vertex", model):
        return "vertex"
    return None


def on_platform(row: Usage, platform: str | None) -> Usage:
    """Return the row as an estimate if a platform bills it, because the platform may have different prices."""
    if platform is None:
        return row
    certainty = "estimated" if row.certainty == "exact" else row.certainty
    return replace(row, certainty=certainty, note=_join_notes([row.note, f"platform:{platform}"]))


def batch_results(body: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield `(custom_id, message)` for each successful result of a batch; other results have no usage."""
    for line in body.splitlines():
        value = _parsed(line)
        result = value.get("result") if isinstance(value, dict) else None
        message = result.get("message") if isinstance(result, dict) else None
        if isinstance(message, dict) and isinstance(message.get("usage"), dict):
            yield str(value.get("custom_id")), message


def sums_of_session(usage: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a snapshot of the usage of a managed agent's session, without invalid numbers."""
    found: dict[str, Any] = {name: usage.get(name) for name in (*_TOKENS[:3], "active_seconds")}
    for name in ("server_tool_use", "cache_creation"):
        if isinstance(inner := usage.get(name), dict):
            found |= {key: inner[key] for key in (*_SERVER, *_LIFETIMES) if key in inner}
    cost = usage.get("list_cost")
    if isinstance(cost, dict) and cost.get("currency") == "USD":
        cents = str(cost.get("amount"))
        found["list_cost_cents"] = int(cents) if cents.isascii() and cents.isdecimal() else None
    for name, number in found.items():
        if type(number) in (int, float) and 0 <= number <= COUNT_MAX:
            yield name, number


_TOKENS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)
_LIFETIMES = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
_SERVER = ("web_search_requests", "web_fetch_requests", "code_execution_requests")
_KNOWN = frozenset((*_TOKENS, "cache_creation", "output_tokens_details", "server_tool_use"))


class _Counts:
    """Reads counts, and collects notes about invalid counts."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def read(self, values: Mapping[str, Any], name: str, *, required: bool = False) -> int:
        """Return a count; zero if it is invalid, or if it is not required and missing or null."""
        value = values.get(name)
        if value is None and not required:
            return 0
        reason = _invalid_reason(value, name in values)
        if reason is not None:
            self.notes.append(f"{name}:{reason}" if is_label(name) else f"unnamed:{reason}")
            return 0
        assert isinstance(value, int)
        return value

    def note(self) -> str | None:
        """Return the notes about invalid counts as one label; None if there are none."""
        return _join_notes(self.notes) or ("counts:unreadable" if self.notes else None)


def _join_notes(notes: Iterable[str | None]) -> str | None:
    """Join as many notes as fit in one label; None if there are none."""
    joined = ""
    for text in dict.fromkeys(note for note in notes if note):
        longer = f"{joined}/{text}" if joined else text
        if not is_label(longer):
            break
        joined = longer
    return joined or None


def _invalid_reason(value: object, is_present: bool) -> str | None:
    """Return why `value` is not a valid count; None if it is valid."""
    if value is None:
        return "null" if is_present else "missing"
    if isinstance(value, bool):
        return "bool"
    if not isinstance(value, int):
        return "no_integer"
    if value < 0:
        return "negative"
    return "huge" if value > COUNT_MAX else None


def _row(
    iteration: int,
    kind: str,
    billed: bool,
    model: str,
    counts: Mapping[str, Any],
    usage: Mapping[str, Any],
    certainty: Certainty,
    batch_result_id: str | None,
) -> Usage:
    reader = _Counts()
    input_tokens = reader.read(counts, "input_tokens", required=True)
    output_tokens = reader.read(counts, "output_tokens", required=True)
    cache_read = reader.read(counts, "cache_read_input_tokens")
    written_5m, written_1h = _cache_writes(counts, reader, is_sum=not billed)
    details = _dict(counts, "output_tokens_details", reader)
    reasoning = reader.read(details, "thinking_tokens") if "thinking_tokens" in details else None
    # The provider counts the requests of its tools once for all iterations: they are assigned to the first row.
    server = _dict(usage, "server_tool_use", reader) if iteration in (0, 1) else {}
    known = {name: reader.read(server, name) for name in _SERVER}
    others = {name: reader.read(server, name) for name in server if name not in _SERVER}
    if _is_redeemed(usage):
        reader.notes.append("fallback_credit:redeemed")
    reader.notes += [
        f"{name}:no_text"
        for name in ("service_tier", "inference_geo", "speed")
        if usage.get(name) is not None and not isinstance(usage[name], str)
    ]
    note = reader.note()
    certainty = "estimated" if note else certainty
    unpriced = _unpriced(counts, others)
    if unpriced and certainty == "exact":
        certainty, note = "lower_bound", f"{unpriced}:unpriced"
    return Usage(
        iteration=iteration,
        kind=kind,
        billed=billed,
        model=model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        reasoning_tokens=reasoning,
        cache_read_tokens=cache_read,
        cache_write_5m_tokens=written_5m,
        cache_write_1h_tokens=written_1h,
        web_search_requests=known["web_search_requests"],
        service_tier=_text(usage.get("service_tier")),
        inference_geo=_text(usage.get("inference_geo")),
        speed=_text(usage.get("speed")),
        certainty=certainty,
        web_fetch_requests=known["web_fetch_requests"],
        code_execution_requests=known["code_execution_requests"],
        server_requests={name: count for name, count in others.items() if count and is_label(name)},
        other_counts=dict(_others(counts)),
        note=note,
        batch_result_id=batch_result_id,
    )


def _cache_writes(
    counts: Mapping[str, Any], reader: _Counts, *, is_sum: bool = False
) -> tuple[int, int]:
    """Return the tokens that were written to the cache for 5 minutes and for 1 hour.

    If the usage is not split by lifetime, all tokens were written for 5 minutes, the default lifetime. If the split
    counts are less than the total (for example because the last counts of a stream only contain the total), the rest
    gets the lifetime in the split, and the row is an estimate. The row is also an estimate if the split counts are more
    than the total, or if a lifetime is unknown.

    An unbilled sum of iterations is not an estimate: in a stream, its split is that of the first iteration, because the
    last counts contain only the total. Each iteration has its own split, which is billed.
    """
    split = _dict(counts, "cache_creation", reader)
    written_5m, written_1h = (reader.read(split, name) for name in _LIFETIMES)
    total = reader.read(counts, "cache_creation_input_tokens")
    unknown_lifetimes = [name for name in split if name not in _LIFETIMES and split[name]]
    reader.notes += [f"{name}:unknown" for name in unknown_lifetimes if is_label(name)]
    rest = total - written_5m - written_1h
    if rest and split and not unknown_lifetimes and not is_sum:
        reader.notes.append(f"cache_creation:{'less' if rest > 0 else 'more'}_than_total")
    if written_1h and not written_5m:
        return 0, written_1h + max(rest, 0)
    return written_5m + max(rest, 0), written_1h


def _unpriced(counts: Mapping[str, Any], requests: Mapping[str, int]) -> str | None:
    """Return the name of a count for which no price is known; None if there is none.

    The details of a known count are ignored, because they are part of that count.
    """
    if any(count and not is_label(name) for name, count in requests.items()):
        return "unnamed"
    for name, value in counts.items():
        is_count = _invalid_reason(value, True) is None and value > 0
        if is_count and name not in _KNOWN and name.endswith(("_tokens", "_requests")):
            return name if is_label(f"{name}:unpriced") else "unnamed"
    return None


def _others(counts: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the names and values of counts that have no column."""
    for name, value in counts.items():
        inner = value.items() if isinstance(value, dict) else ()
        found = [(name, value), *((f"{name}.{key}", inner_count) for key, inner_count in inner)]
        for full, count in found:
            if not _is_known(full) and is_label(full) and _invalid_reason(count, True) is None:
                yield full, count


def _is_known(name: str) -> bool:
    outer, _, inner = name.partition(".")
    if not inner:
        return outer in _KNOWN
    return outer == "server_tool_use" or inner in (*_LIFETIMES, "thinking_tokens")


def _is_redeemed(usage: Mapping[str, Any]) -> bool:
    """Return whether a credit was redeemed, so that the same tokens are billed with a different split."""
    credit = usage.get("fallback_credit")
    status = credit.get("status") if isinstance(credit, dict) else None
    return isinstance(status, dict) and status.get("type") == "redeemed"


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _dict(counts: Mapping[str, Any], name: str, reader: _Counts) -> Mapping[str, Any]:
    value = counts.get(name)
    if value is not None and not isinstance(value, dict):
        reader.notes.append(f"{name}:no_object")
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
