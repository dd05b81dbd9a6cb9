"""Reports about two paths: the divergence of a replay, and the comparison of two sessions.

Both use the JSON that the command line prints, plus lines of text with content, so that this package does not depend
on replays.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.records.labels import is_label
from dashboards import figures
from dashboards.content.session_content import Room
from dashboards.panels.pair_summary import changes, row, totals
from dashboards.panels.panels import panel
from dashboards.report.html_report import MOST, panels_report

_SENTENCES = ("chain", "waiting", "suspicions", "proposals", "normalized")
"""The fields of a divergence with sentences, which may quote content."""
_KINDS = {
    "content": "the body of a request",
    "missing": "a recorded request that was not made",
    "extra": "an additional request that was not recorded",
    "order": "a request that was made too early",
    "timing": "a request out of order",
    "tool": "a tool call",
    "world": "an exchange of the agent loop",
    "outcome": "the end of the session",
    "result": "the result of the session",
    "network": "a connection that was not recorded",
}
"""The first difference, by kind."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The content at the divergence, as text."""

    report: str
    """The full report as shown in a terminal, with recorded and current text aligned."""
    explanation: str
    """The causal chain."""


def divergence_report(
    told: Mapping[str, Any], texts: Texts | None, *, made_ns: int, light: bool = False
) -> str:
    """Return the report about a replay that diverged from its recording.

    Args:
        told: the divergence, as `agentobs replay --json` prints it, parsed.
        texts: the content at the divergence; None for a report without content.
        made_ns: the time of the report, in nanoseconds since 1970.
        light: whether to leave out scripts.
    """
    if texts is None:
        told = without_content(told)
    progress = told["progress"]
    says = (
        f"{progress['requests_matched']:,} of {progress['requests']:,} requests and "
        f"{progress['tools_matched']:,} of {progress['tools']:,} tool calls matched the recording."
    )
    drawn = figures.divergence(told, content=texts is not None)
    columns = ("lane", "asked", "of")
    path = panel("path", "Replay path", says, drawn, columns, list(told["lanes"]))
    cause = told["cause"] or {}
    return panels_report(
        "report_divergence.html",
        "Replay report",
        [path],
        made_ns=made_ns,
        light=light,
        command="agentobs replay --json",
        told=told,
        kind=_KINDS.get(str(told["kind"]), str(told["kind"])),
        cause=_cause(cause),
        sites=_sites(told, cause),
        texts=texts,
    )


def without_content(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a divergence without content.

    Paths are kept, because the figure shows only the keys that the Messages API defines.
    """
    bare = {**told, "summary": "", **dict.fromkeys(_SENTENCES, ())}
    bare["differences"] = [
        {**each, "expected": None, "actual": None} for each in told["differences"]
    ]
    if told["cause"]:
        kept = ("kind", "site", "tool", "place", "line", "message", "contains")
        bare["cause"] = {**dict.fromkeys(told["cause"]), **{k: told["cause"][k] for k in kept}}
        for key in ("tool", "place"):
            if not is_label(str(bare["cause"][key] or "-")):
                bare["cause"][key] = None
    return bare


def comparison_report(
    told: Mapping[str, Any],
    lines: Sequence[Sequence[str]],
    *,
    made_ns: int,
    light: bool = False,
) -> str:
    """Return the report that compares two sessions.

    Args:
        told: the comparison, as `agentobs diff --json` prints it, parsed.
        lines: for each step the lines that show differences of its content; empty if content was not compared.
        made_ns: the time of the report, in nanoseconds since 1970.
        light: whether to leave out scripts.
    """
    steps = told["steps"]
    drawn = figures.two_sessions(told)
    two = panel("two-sessions", "Comparison", changes(steps), drawn, (), (), is_wide=True)
    differing = [
        (step, line) for step, line in zip(steps, lines, strict=True) if step["change"] != "same"
    ]
    room = Room()
    return panels_report(
        "report_pair.html",
        "Comparison report",
        [two],
        made_ns=made_ns,
        light=light,
        command="agentobs diff --json",
        a=_side(told["a"]),
        b=_side(told["b"]),
        totals=totals(told["a"], told["b"]),
        changes=len(differing),
        all_steps=len(steps),
        steps=[{**row(step), "lines": _fitted(line, room)} for step, line in differing[:MOST]],
        more=max(len(differing) - MOST, 0),
        holds=bool(told["content"]),
    )


def _side(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of one side: a session with its ID, or a fixture with its path."""
    which = about.get("session_id") or about.get("fixture") or ""
    return {"name": about["name"], "outcome": about.get("outcome"), "which": which}


def _cause(cause: Mapping[str, Any]) -> list[str]:
    """Return the likely cause of a divergence, in words without content."""
    if not cause:
        return []
    found = [str(cause["kind"]).replace("_", " ")]
    for key, words in (("tool", "tool"), ("place", "place"), ("contains", "contains")):
        value = cause.get(key)
        # A value that is not a label may be content.
        if value and (is_label(str(value)) or key == "contains"):
            found.append(f"{words} {value}")
    for key, words in (("message", "message"), ("line", "line")):
        if cause.get(key) is not None:
            found.append(f"{words} {cause[key]:,}")
    return found


def _sites(told: Mapping[str, Any], cause: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of the agent's code that are involved in a divergence."""
    named = (("sent from", told.get("sent")), ("caused by", cause.get("site")))
    return [{"what": what, **site} for what, site in named if site]


def _fitted(lines: Sequence[str], room: Room) -> list[str]:
    """Return as many lines as fit, and a note about the omitted ones."""
    kept = list(itertools.takewhile(room.holds, lines))
    left = len(lines) - len(kept)
    return [*kept, f"… and {left:,} more lines"] if left else kept
