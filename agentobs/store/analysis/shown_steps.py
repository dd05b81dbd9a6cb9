"""The steps of a session that its timeline and its tree show, in the words of the pages.

Each request is one step: the attempt. The span of a request is shown only as long as it has no attempt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentobs.records.words import SPANS

Row = Mapping[str, Any]

_EXCHANGES = ("steering", "follow_up", "abort")
"""The kinds of exchange that are shown. Approvals are shown as decisions; checks and paths are internal to the loop."""
_SAME_AS_CALL = ("tool", "execution")
"""The spans of a tool call, which has more details itself."""
_PREFIXES = {
    "tool_call": "call ",
    "permission": "permission ",
    "command": "command ",
    "mcp_call": "MCP ",
    "file_change": "file ",
}


def shown_steps(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows of `session_timeline` that are shown, each with its name in words as `what`.

    An attempt takes the place of the span of its request. Its model is part of `what`, and its `label` is None. A
    decision with its approval wait takes the place of the span of this wait. A retry backoff lasts from the end of an
    attempt to the start of the next one, as in `session_waterfall`.
    """
    listed = list(rows)
    requests = {
        row["id"] for row in listed if row["kind"] == "span" and row["name"] == "llm_request"
    }
    attempts = [row for row in listed if row["kind"] == "attempt"]
    attempted = {row["parent_id"] for row in attempts} & requests
    # The span that the recorder adds for a client without spans: its ID is the end of the attempt's ID.
    replaced = attempted | {str(row["id"])[-16:] for row in attempts} & requests
    decided = _decision_times(listed)
    tries: dict[str, list[Row]] = {}
    for row in attempts:
        tries.setdefault(row["parent_id"], []).append(row)
    shown = []
    for row in listed:
        if not _is_shown(row) or (row["kind"] == "span" and row["id"] in replaced):
            continue
        if _is_wait(row) and _is_within(row, decided):
            continue
        step = {**row, "what": _words(row)}
        if row["kind"] == "span" and row["name"] == "retry_wait":
            step |= _between(row, tries.get(row["parent_id"], ()))
        if row["kind"] == "attempt":
            step["label"] = None
            if row["parent_id"] in attempted:
                step["depth"] = row["depth"] - 1
        elif row["kind"] == "tool_call":
            step["label"] = None
        shown.append(step)
    return shown


def _is_shown(row: Row) -> bool:
    match row["kind"]:
        case "span":
            return row["name"] not in _SAME_AS_CALL
        case "permission":
            return bool(row["outcome"] != "allow" or row["duration_ns"] is not None)
        case "world":
            return row["name"] in _EXCHANGES
        case _:
            return True


def _between(wait: Row, attempts: Sequence[Row]) -> dict[str, int]:
    """Return the start and the duration of a retry backoff; empty if there is no attempt before or after it."""
    at = bisect_left(attempts, wait["started_ns"], key=lambda row: row["started_ns"])
    if not 0 < at < len(attempts) or attempts[at - 1]["duration_ns"] is None:
        return {}
    ended = attempts[at - 1]["started_ns"] + attempts[at - 1]["duration_ns"]
    waited = attempts[at]["started_ns"] - ended
    return {"started_ns": ended, "duration_ns": waited} if waited > 0 else {}


def _is_wait(row: Row) -> bool:
    return bool(row["kind"] == "span" and row["name"] == "blocked_on_user" and row["duration_ns"])


def _decision_times(rows: Iterable[Row]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return when permission decisions started, and the last end until then, by lane and tool, in nanoseconds."""
    times: dict[tuple[str, str], list[tuple[int, int]]] = {}
    timed = (row for row in rows if row["kind"] == "permission" and row["duration_ns"])
    for row in sorted(timed, key=lambda row: row["started_ns"]):
        known = times.setdefault((row["lane"], row["name"]), [])
        ended = row["started_ns"] + row["duration_ns"]
        known.append((row["started_ns"], max(ended, known[-1][1]) if known else ended))
    return times


def _is_within(wait: Row, decided: Mapping[tuple[str, str], Sequence[tuple[int, int]]]) -> bool:
    """Return whether a span is the approval wait of a decision: of the same tool and agent, at the same time."""
    known = decided.get((wait["lane"], wait["label"]), ())
    before = bisect_left(known, (wait["started_ns"] + wait["duration_ns"],))
    return before > 0 and known[before - 1][1] > wait["started_ns"]


def _words(row: Row) -> str:
    kind, name = row["kind"], str(row["name"])
    if kind == "attempt":
        return f"request {row['label'] or name}"
    if kind == "span":
        return SPANS.get(name, name)
    return f"{_PREFIXES.get(kind, '')}{name}"
