"""Reports about two paths: where a replay parts from its recording, and two sessions side by side.

Both come as the JSON that the command line prints, and the lines that tell what was said as text: this room knows
nothing of replays.
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

_TELLING = ("chain", "waiting", "suspicions", "proposals", "normalised")
"""What of a divergence is told in sentences, which may quote what was said."""
_KINDS = {
    "content": "a request whose body is another one",
    "missing": "a recorded request that never came",
    "extra": "a request more than were recorded",
    "order": "a request that came before its turn",
    "timing": "a request that came too late or too soon",
    "tool": "a tool call",
    "world": "another question of the loop",
    "outcome": "how the run ended",
    "result": "what the run returned",
    "network": "a connection that no recording answers",
}
"""What differs first, by kind."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What was said where paths differ, as lines of text; None in a report that holds nothing of it."""

    report: str
    """The whole report as a terminal shows it, the two lines below each other."""
    explanation: str
    """The way back to what it comes from."""


def divergence_report(
    told: Mapping[str, Any], texts: Texts | None, *, made_ns: int, light: bool = False
) -> str:
    """Return the report of a replay that parted from its recording.

    Args:
        told: the divergence, as `agentobs replay --json` prints it, parsed.
        texts: what was said where they differ; None for a report without.
        made_ns: when it is made, in nanoseconds since 1970.
        light: without a script.
    """
    if texts is None:
        told = without_content(told)
    progress = told["progress"]
    says = (
        f"{progress['requests_matched']:,} of {progress['requests']:,} requests and "
        f"{progress['tools_matched']:,} of {progress['tools']:,} tool calls were the recorded ones."
    )
    drawn = figures.divergence(told, content=texts is not None)
    columns = ("lane", "asked", "of")
    path = panel("path", "Where the paths part", says, drawn, columns, list(told["lanes"]))
    cause = told["cause"] or {}
    return panels_report(
        "report_divergence.html",
        "Report of a replay",
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
    """Return a divergence without what was said, as it is told by facts alone.

    Places are left whole: the figure shows of them what is no key that somebody made up.
    """
    bare = {**told, "summary": "", **dict.fromkeys(_TELLING, ())}
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
    """Return the report of two sessions side by side.

    Args:
        told: the comparison, as `agentobs diff --json` prints it, parsed.
        lines: of each step the lines that tell where its texts differ; empty ones where nothing was compared.
        made_ns: when it is made, in nanoseconds since 1970.
        light: without a script.
    """
    steps = told["steps"]
    drawn = figures.two_sessions(told)
    two = panel("two-sessions", "Side by side", changes(steps), drawn, (), (), is_wide=True)
    differing = [
        (step, line) for step, line in zip(steps, lines, strict=True) if step["change"] != "same"
    ]
    room = Room()
    return panels_report(
        "report_pair.html",
        "Report of two sessions",
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
    """Return what one of the two is: a session has an id, a fixture a place."""
    which = about.get("session_id") or about.get("fixture") or ""
    return {"name": about["name"], "outcome": about.get("outcome"), "which": which}


def _cause(cause: Mapping[str, Any]) -> list[str]:
    """Return what a divergence probably stems from, in words that hold nothing of what was said."""
    if not cause:
        return []
    found = [str(cause["kind"]).replace("_", " ")]
    for key, words in (("tool", "tool"), ("place", "place"), ("contains", "it holds")):
        value = cause.get(key)
        # What is no label may be what somebody wrote.
        if value and (is_label(str(value)) or key == "contains"):
            found.append(f"{words} {value}")
    for key, words in (("message", "message"), ("line", "line")):
        if cause.get(key) is not None:
            found.append(f"{words} {cause[key]:,}")
    return found


def _sites(told: Mapping[str, Any], cause: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of the agent's code that a divergence is about."""
    named = (("asked at", told.get("sent")), ("comes from", cause.get("site")))
    return [{"what": what, **site} for what, site in named if site]


def _fitted(lines: Sequence[str], room: Room) -> list[str]:
    """Return lines as far as there is room for them, and how many are left out."""
    kept = list(itertools.takewhile(room.holds, lines))
    left = len(lines) - len(kept)
    return [*kept, f"… and {left:,} more lines"] if left else kept
