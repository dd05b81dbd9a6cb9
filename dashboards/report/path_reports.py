"""Reports about two paths: the divergence of a replay, and the comparison of two sessions.

Both use the JSON that the command line prints, and lines of text with content, so that this package does not depend on
`replay`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.records.labels import is_label
from agentobs.records.setup_difference import setup_changes, setup_unknown
from agentobs.records.words import NO_IDENTICAL_STEP
from dashboards import figures
from dashboards.content.session_content import Budget
from dashboards.figures.session_pair import lane_names
from dashboards.panels.pair_summary import changes, row, totals
from dashboards.panels.panels import panel
from dashboards.report.html_report import MOST, panels_report

_SENTENCES = ("chain", "waiting", "suspicions", "proposals", "normalized")
"""The fields of a divergence that contain sentences, which may quote content."""
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
    "files": "the files at the end",
}
"""Descriptions of the first difference, by kind."""


@dataclass(frozen=True, slots=True)
class Texts:
    """The content at the divergence, as text."""

    report: str
    """The full report as printed in a terminal, with the recorded and the current text aligned."""
    explanation: str
    """The causal chain."""


def divergence_report(
    report: Mapping[str, Any], texts: Texts | None, *, made_ns: int, light: bool = False
) -> str:
    """Return the report about a replay that diverged from its recording.

    Args:
        report: the divergence: the parsed output of `agentobs replay --json`.
        texts: the content at the divergence; None for a report without content.
        made_ns: the time of the report, in nanoseconds since 1970.
        light: whether to leave out scripts.
    """
    if texts is None:
        report = without_content(report)
    progress = report["progress"]
    summary = (
        f"{progress['requests_matched']:,} of {progress['requests']:,} requests and "
        f"{progress['tools_matched']:,} of {progress['tools']:,} tool calls matched the recording."
    )
    figure = figures.divergence(report, content=texts is not None)
    columns = ("lane", "asked", "of")
    path = panel("path", "Replay path", summary, figure, columns, list(report["lanes"]))
    cause = report["cause"] or {}
    return panels_report(
        "report_divergence.html",
        "Replay report",
        [path],
        made_ns=made_ns,
        light=light,
        command="agentobs replay --json",
        report=report,
        kind=_KINDS.get(str(report["kind"]), str(report["kind"])),
        cause=_cause(cause),
        sites=_sites(report, cause),
        texts=texts,
    )


def without_content(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a divergence without content.

    Paths of differences are kept, because the figure shows only keys that the Messages API defines.
    """
    stripped = {**report, "summary": "", **dict.fromkeys(_SENTENCES, ())}
    stripped["differences"] = [
        {**each, "expected": None, "actual": None} for each in report["differences"]
    ]
    if report["cause"]:
        kept = ("kind", "site", "tool", "place", "line", "message", "contains")
        stripped["cause"] = {
            **dict.fromkeys(report["cause"]),
            **{k: report["cause"][k] for k in kept},
        }
        for key in ("tool", "place"):
            if not is_label(str(stripped["cause"][key] or "-")):
                stripped["cause"][key] = None
    return stripped


def divergence_facts(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page shows of a divergence, without content.

    Args:
        report: the divergence: the parsed output of `agentobs replay --json`.
    """
    bare = without_content(report)
    progress, cause = bare["progress"], bare["cause"] or {}
    return {
        "kind": _KINDS.get(str(bare["kind"]), str(bare["kind"])),
        "lane": bare["lane"],
        "turn": bare["turn"],
        "number": bare["number"],
        "of": bare["of"],
        "requests": (progress["requests_matched"], progress["requests"]),
        "tools": (progress["tools_matched"], progress["tools"]),
        "cause": _cause(cause),
        "sites": _sites(bare, cause),
    }


def comparison_report(
    comparison: Mapping[str, Any],
    lines: Sequence[Sequence[str]],
    *,
    made_ns: int,
    light: bool = False,
) -> str:
    """Return the report that compares two sessions.

    Args:
        comparison: the parsed output of `agentobs diff --json`.
        lines: for each step, the lines that show differences of its content; empty if content was not compared.
        made_ns: the time of the report, in nanoseconds since 1970.
        light: whether to leave out scripts.
    """
    steps = comparison["steps"]
    figure = figures.two_sessions(comparison)
    comparison_panel = panel(
        "two-sessions", "Comparison", changes(steps), figure, (), (), is_wide=True
    )
    differing = [
        (step, line) for step, line in zip(steps, lines, strict=True) if step["change"] != "same"
    ]
    budget = Budget()
    return panels_report(
        "report_pair.html",
        "Comparison report",
        [comparison_panel],
        made_ns=made_ns,
        light=light,
        command="agentobs diff --json",
        a=_side(comparison["a"]),
        b=_side(comparison["b"]),
        setup=setup_changes(
            comparison["a"], comparison["b"], has_values=bool(comparison["content"])
        ),
        setup_unknown=setup_unknown(comparison["a"], comparison["b"]),
        totals=totals(comparison["a"], comparison["b"]),
        changes=len(differing),
        first_note=NO_IDENTICAL_STEP if steps and len(differing) == len(steps) else "",
        names=lane_names(steps),
        all_steps=len(steps),
        steps=[{**row(step), "lines": fit_lines(line, budget)} for step, line in differing[:MOST]],
        more=max(len(differing) - MOST, 0),
        has_content=bool(comparison["content"]),
    )


def _side(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of one side: a session with its ID and why it failed, or a fixture with its path."""
    which = about.get("session_id") or about.get("fixture") or ""
    cause = about.get("cause") or ""
    return {"name": about["name"], "outcome": about.get("outcome"), "cause": cause, "which": which}


def _cause(cause: Mapping[str, Any]) -> list[str]:
    """Return the likely cause of a divergence, in words without content."""
    if not cause:
        return []
    parts = [str(cause["kind"]).replace("_", " ")]
    for key, words in (("tool", "tool"), ("place", "in"), ("contains", "contains")):
        value = cause.get(key)
        # If a value is not a label, it may be content.
        if value and (is_label(str(value)) or key == "contains"):
            parts.append(f"{words} {value}")
    for key, words in (("message", "message"), ("line", "line")):
        if cause.get(key) is not None:
            parts.append(f"{words} {cause[key]:,}")
    return parts


def _sites(report: Mapping[str, Any], cause: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of the agent's code that are involved in a divergence."""
    named = (("sent from", report.get("sent")), ("caused by", cause.get("site")))
    return [{"what": what, **site} for what, site in named if site]


def fit_lines(lines: Sequence[str], budget: Budget) -> list[str]:
    """Return as many lines as fit, and a note with the number of omitted lines."""
    kept = list(itertools.takewhile(budget.reserve, lines))
    omitted = len(lines) - len(kept)
    return [*kept, f"… and {omitted:,} more lines"] if omitted else kept
