"""The page of a session: its outcome, cost and time, and its steps with links to their requests."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from agentobs.records.display import listed, seconds
from agentobs.records.whole_numbers import whole_number
from agentobs.records.words import ESTIMATED_TIMES, INCLUDING_WAITS
from agentobs.store.analysis.failed_steps import (
    group_failed_steps,
    nothing_failed,
    number_denied,
    number_failed,
)
from agentobs.store.analysis.lane_names import name_of_lane, with_agents
from agentobs.store.analysis.session_search import SessionTexts
from agentobs.store.analysis.wall_time import (
    LEAST_SHARE,
    Pause,
    Split,
    Stretch,
    interaction_times,
    longest_own_stretch,
    named_pauses,
    outside_words,
)
from agentobs.store.analysis.waste import NOTHING, session_waste, waste_total, without_usage
from dashboards.app.causes_page import file_values, why_values
from dashboards.app.commands.command_pages import command_values, diverged_steps, refused
from dashboards.app.comparison.pair_page import previous_session
from dashboards.app.content_reader import CONTENT_SLOTS, have_equal_errors
from dashboards.app.opened_session import OpenedSession, open_session
from dashboards.app.paging import page_of
from dashboards.app.site import first_of, page_response, session_named, site_of
from dashboards.app.store_view import Row, View
from dashboards.app.trace import (
    MOST_CHARACTERS,
    ShownNode,
    earlier_failures,
    matching_nodes,
    selected_number,
    shown_nodes,
    shown_step,
    step_of_turn,
    turns_by_lane,
)
from dashboards.figures.phrases import count, uncertain_total
from dashboards.panels.cost_rises import MOST_RISES, RATIO, SHARE, CostRise, cost_rises, slow_rises
from dashboards.panels.failure_groups import (
    FailureGroup,
    SessionFailures,
    failures_of_failed_agent,
    session_failures,
)
from dashboards.panels.failure_words import failure_reason, unfinished_turns
from dashboards.panels.panels import rows_of, session_panels
from dashboards.panels.session_outcomes import (
    content_state,
    failed_word,
    scores_of,
    shown_failure,
    steps_of,
    verdicts_of,
    with_texts,
)
from dashboards.panels.templates import page, segment
from dashboards.panels.trace_tree import TraceTree

PAGE_SIZE = 50
"""Steps per page. Our choice: one or two screens."""
MOST_ROWS = 20
"""The maximum number of rows of small tables, such as the evidence of a failure signature. Our choice."""
MOST_LONGEST = 5
"""The number of longest steps that the tab Time lists. Our choice."""
TRACE = "trace"
"""The tab that is shown first."""
TABS: dict[str, tuple[str, tuple[str, ...]]] = {
    TRACE: ("Trace", ("waterfall",)),
    "overview": ("Overview", ("tool-errors",)),
    "transcript": ("Transcript", ()),
    "cost": ("Cost", ("turns", "cost-by-agent", "cache-waste")),
    "time": ("Time", ("time", "tools", "waits")),
    "context": ("Context", ("context",)),
    "steps": ("Steps", ()),
    "files": ("Files", ()),
    "why": ("Causes of changes", ()),
    "commands": ("Replay", ()),
}
"""The tabs by their name in the URL: their titles and figures."""
Listed = tuple[int, ShownNode | None, str]
"""A row of the longest steps: its time in nanoseconds, its step, and the words before the step, such as `agent code
after`; without words, it is the time of the step itself."""
WINDOW_TURNS = 25
"""The number of turns per part of the waterfall. If a session is longer, its page links to the parts."""


def session(request: Request) -> Response:
    """Show one session."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        if session_id != request.path_params["id"]:
            path = f"/sessions/{segment(session_id)}?{request.url.query}".rstrip("?")
            return RedirectResponse(path, 303)
        opened = open_session(request, view, session_id)
        query = request.query_params
        kept = content_state(view.store, session_id)
        shown = shown_failure(opened.failure, opened.restored)
        reason = failure_reason(shown.row) if shown else None
        times = cache(lambda: interaction_times(view.store, session_id))
        tab = query.get("tab", "") if query.get("tab") in TABS else TRACE
        if tab == TRACE and query.get("turn") and "step" not in query:
            step_id = step_of_turn(opened.tree, query["turn"], query.get("agent") or "main")
            path = f"/sessions/{segment(session_id)}?{urlencode({'step': step_id})}"
            return RedirectResponse(path, 303)
        return page_response(
            request,
            "session.html",
            nav_item="sessions",
            figures=bool(TABS[tab][1]),
            revision=view.revision,
            tab=tab,
            tabs=_tabs(opened, tab),
            about=opened.about,
            agents=opened.agents,
            failure=shown,
            failing=None
            if opened.tree.failing is None
            else opened.tree.node(opened.tree.failing).step_id,
            last_failed=_last_failed(opened),
            earlier=earlier_failures(view, opened.tree, opened.agents),
            **_failure_values(opened, is_compared=tab == TRACE and kept["content"] != "off"),
            nothing_failed=_nothing_failed(opened, kept),
            failure_words=reason.words if reason else "",
            failure_note=reason.note if reason else "",
            reason=reason.text if reason and opened.about["reason"] else opened.about["reason"],
            failed_steps=_failed_counts(opened),
            failed_word=failed_word(
                opened.cache.get("steps", lambda: steps_of(view.store, session_id))
            ),
            own_turns=_own_turns(opened),
            unfinished_turns=unfinished_turns(opened.tree),
            session_title=SessionTexts(view.store, view.texts).titles([session_id]).get(session_id),
            git=first_of(opened.cached_rows("internal/session_git")),
            spent=first_of(opened.cached_rows("cost_by_session")),
            active=_time_in_interactions(opened, times),
            content_state=kept,
            imported_from=kept["source"] if kept["source"] not in (None, "recorded") else None,
            losses=_losses(view, session_id),
            **previous_session(view, session_id),
            link=_link,
            most=MOST_ROWS,
            **(_TAB_VALUES[tab](opened, query) if tab in _TAB_VALUES else {}),
            **_panel_values(opened, TABS[tab][1], query, times),
        )


def _trace_values(opened: OpenedSession, query: Mapping[str, str]) -> dict[str, Any]:
    tree, view = opened.tree, opened.view
    number = selected_number(tree, query)
    if number is None and (failures := completed_failures(opened)) is not None:
        number = None if failures.is_repaired else failures.first
    words, only_failed = query.get("find", "")[:MOST_CHARACTERS], "failed" in query
    like = query.get("like") if only_failed else None
    alike = _failed_alike(opened, like) if like else None
    summary, is_filtered = "", bool(words.strip() or only_failed)
    if is_filtered:
        nodes, summary = matching_nodes(
            view,
            tree,
            words,
            opened.agents,
            only_failed=only_failed,
            errors=opened.stored_rows("session_errors"),
            among=alike,
        )
        matches = [each.node.number for each in nodes]
        if matches and number not in matches and not ("step" in query or "number" in query):
            number = matches[0]
    else:
        expanded = tree.expanded(number)
        nodes = shown_nodes(view, list(tree.visible(expanded)), expanded, opened.agents)
    parameters = {
        name: query[name] for name in ("from", "to", "find", "failed", "like") if name in query
    }
    if query.get("step"):
        parameters["step"] = query["step"]
    turns = turns_by_lane(tree)
    return {
        "nodes": nodes,
        "summary": summary,
        "step_counts": _step_counts(tree),
        "main_turns": turns.get("main"),
        "turn_agents": [
            (lane, "main agent" if lane == "main" else name_of_lane(lane, opened.agents), known)
            for lane, known in turns.items()
        ],
        "is_filtered": is_filtered,
        "find": words,
        "only_failed": only_failed,
        "like": like if alike else "",
        "selected": number,
        "shown": shown_step(
            view, tree, number, opened.agents, lambda: opened.stored_rows("session_errors")
        ),
        "diverged": diverged_steps(opened),
        "failures": tree.adjacent_failures(number),
        "parameters": parameters,
    }


def _failed_alike(opened: OpenedSession, step_id: str) -> frozenset[int] | None:
    """Return the numbers of the steps that the line of the banner with this first step counts; None without one."""
    listed = (completed_failures(opened), inner_failures(opened))
    for each in (group for found in listed if found for group in found.groups):
        if opened.tree.node(each.numbers[0]).step_id == step_id:
            return frozenset(each.numbers)
    return None


def _step_counts(tree: TraceTree) -> tuple[str, str]:
    """Return how many requests and tool calls the tree has, in words; and the same with its other steps."""
    kinds = [tree.node(number).kind for number in tree.order]
    calls = kinds.count("tool") + kinds.count("agent")
    requests = kinds.count("request")
    others = len(kinds) - kinds.count("group") - requests - calls
    parts = [count(requests, "request"), count(calls, "tool call")]
    complete = listed([*parts, *([count(others, "other step")] if others else [])])
    # The complete words do not fit next to the links to failures.
    return f"{count(requests, 'request')}, {count(calls, 'call')}", complete


def _overview_values(opened: OpenedSession, query: Mapping[str, str]) -> dict[str, Any]:
    del query
    view, session_id, about = opened.view, opened.session_id, opened.about
    verdicts = opened.cache.get("verdicts", lambda: verdicts_of(view.store, session_id, MOST_ROWS))
    return {
        "refusal": refused(view, about),
        "verdicts": with_texts(verdicts, opened.restored),
        "evidence_steps": {
            each.verdict.signature: [opened.tree.step_of_evidence(row) for row in each.evidence]
            for each in verdicts.found_signatures
        },
        "conversation": view.named(
            "listing/conversation", conversation_id=about["conversation_id"]
        ),
        "unfinished": with_agents(_unfinished_operations(view, about), opened.agents),
        "hooks": view.named("hook_outcomes", session_id=session_id),
        "decisions": with_agents(
            view.named("internal/permission_decisions", session_id=session_id), opened.agents
        ),
        "scores": scores_of(view.named("session_scores", session_id=session_id)),
    }


def _step_values(opened: OpenedSession, query: Mapping[str, str]) -> dict[str, Any]:
    view, session_id = opened.view, opened.session_id
    parameters = {"tab": "steps"} | ({"failed": "1"} if "failed" in query else {})
    steps = opened.cache.get("steps", lambda: steps_of(view.store, session_id))
    wanted = [step for step in steps if step["is_failed"] or "failed" not in query]
    listed = page_of(wanted, query.get("page"), parameters, PAGE_SIZE)
    return {
        # Texts are read for each request, because they may be deleted while the steps are cached.
        "steps": replace(listed, rows=opened.restored(listed.rows)),
        "only_failed": "failed" in query,
        "parameters": parameters,
    }


def _panel_values(
    opened: OpenedSession,
    names: Sequence[str],
    query: Mapping[str, str],
    times: Callable[[], Sequence[Split]],
) -> dict[str, Any]:
    """Return the panels of a tab; the waterfall may show a part of the session."""
    view, window, turns = opened.view, None, []
    if "waterfall" in names and ("from" in query or "to" in query):
        turns = opened.cached_rows("session_turns")
        window = _window(turns, query.get("from"), query.get("to"))
    count = opened.about["turns"]
    time_range = _time_range(turns, window) if window else None
    panels = opened.cache.get(
        ("panels", names, time_range),
        lambda: session_panels(
            view.store,
            opened.session_id,
            window=time_range,
            restore_names=view.texts.replace_in_dicts,
            names=names,
            known={"session_waterfall": opened.cached_rows("session_waterfall")}
            if "waterfall" in names
            else {"internal/session": [opened.about]},
            agents=opened.agents,
            times=times,
        ),
    )
    return {
        "panels": panels,
        "turns": count,
        "window": window,
        "windows": _windows(count, window),
    }


def _cost_values(opened: OpenedSession, query: Mapping[str, str]) -> dict[str, Any]:
    del query
    spent = first_of(opened.cached_rows("cost_by_session"))
    notes = (
        uncertain_total(spent) if spent else "",
        without_usage(opened.cached_rows("internal/failed_request_costs")),
    )
    waste = session_waste(opened.cached_rows)
    return {
        "waste": [each for each in waste if each.is_counted],
        "compacted": [each for each in waste if not each.is_counted],
        "waste_total": waste_total(waste, opened.cached_rows("cost_by_session")),
        "no_waste": NOTHING,
        "cost_notes": [note for note in notes if note],
        "rises": _rises(opened),
        "slow_rises": slow_rises(opened.cached_rows("rising_costs")),
    }


def _rises(opened: OpenedSession) -> list[CostRise]:
    """Return the rises of cost with their causes."""
    limits = {"ratio": RATIO, "share": SHARE, "limit": MOST_RISES}
    rows = opened.cache.get(
        "cost rises",
        lambda: rows_of(
            opened.view.store, "internal/cost_rises", session_id=opened.session_id, **limits
        ),
    )
    return cost_rises(
        opened.restored(rows),
        opened.cached_rows("cache_misses"),
        opened.cached_rows("context_growth"),
    )


def _last_failed(opened: OpenedSession) -> ShownNode | None:
    """Return the step that failed last, if the session failed and no step is known to have caused it."""
    number = opened.tree.last_failed
    if number is None:
        return None
    return shown_nodes(opened.view, [opened.tree.node(number)], set(), opened.agents)[0]


def _tabs(opened: OpenedSession, shown_tab: str) -> dict[str, str]:
    """Return the titles of the tabs. Those about effects are left out if no effects were recorded."""
    causes = opened.causes
    empty = {
        name
        for name, nodes in (("files", causes.file_changes), ("why", causes.effect_nodes))
        if not nodes and name != shown_tab
    }
    return {name: title for name, (title, _) in TABS.items() if name not in empty}


def _failure_values(opened: OpenedSession, *, is_compared: bool) -> dict[str, Any]:
    """Return the failures of a session that completed, the first step of each listed group, and of these the one whose
    error has a text, with the heading of the text.

    Args:
        opened: the session.
        is_compared: whether to compare this text with those of the other errors of its group.
    """
    failures, inner = completed_failures(opened), inner_failures(opened)
    listed = failures.listed if failures else ()
    steps = [opened.tree.node(each.numbers[0]) for each in listed]
    with_text = [node for node in steps if node.step is not None and node.step["attempt_id"]]
    # The result of a sub-agent only repeats how it ended.
    errors = [node for node in with_text if node.kind != "agent"]
    error_step = next(iter([*errors, *with_text]), None)
    group, heading = None if error_step is None else listed[steps.index(error_step)], ""
    if group is not None:
        are_equal = is_compared and _have_equal_texts(opened, group)
        heading = group.first_error_heading(have_equal_texts=are_equal)
    every = [opened.tree.node(number) for number in opened.tree.failed]
    return {
        "completed_failures": failures,
        "failure_steps": [node.step_id for node in steps],
        "error_step": error_step,
        "first_error_heading": heading,
        "is_result_shown": group is not None and group.is_denied,
        "all_failed": sum(node.kind != "group" for node in every),
        "inner_failures": [
            (each, opened.tree.node(each.numbers[0]).step_id) for each in inner.listed
        ]
        if inner
        else [],
    }


def _have_equal_texts(opened: OpenedSession, group: FailureGroup) -> bool:
    """Return whether the recorded texts of the errors of a group are known to be equal.

    They are read each time, because content may be deleted while the session is cached.
    """
    if group.kind != "tool" or len(group.numbers) < 2:
        return False
    steps = [opened.tree.node(number).step for number in group.numbers]
    calls = {
        (step["attempt_id"], step["ordinal"], step["id"])
        for step in steps
        if step is not None and step["runs_on"] == "client"
    }
    if len(calls) < len(steps):
        return False
    rows = opened.stored_rows("internal/recorded_errors")
    with CONTENT_SLOTS:
        return have_equal_errors(site_of(opened.request).home, rows, calls)


def _nothing_failed(opened: OpenedSession, kept: Mapping[str, Any]) -> str:
    """Return in words that nothing failed in a session; empty if something failed, or if it did not complete."""
    if opened.tree.failed:
        return ""
    return nothing_failed(
        str(opened.about["status"]),
        opened.cache.get("steps", lambda: steps_of(opened.view.store, opened.session_id)),
        lambda: opened.stored_rows("internal/failed_operations"),
        is_imported=kept["source"] not in (None, "recorded"),
    )


def completed_failures(opened: OpenedSession) -> SessionFailures | None:
    """Return the failures of a session that completed; None if it has none, or did not complete."""
    if opened.about["status"] != "completed" or not opened.tree.failed:
        return None
    return _grouped_failures(opened, "failures", session_failures)


def inner_failures(opened: OpenedSession) -> SessionFailures | None:
    """Return what failed in the sub-agent whose call failed the session; None if there is no such call."""
    if opened.tree.failing is None:
        return None
    return _grouped_failures(opened, "inner failures", failures_of_failed_agent)


def _grouped_failures(
    opened: OpenedSession,
    name: str,
    group: Callable[..., SessionFailures | None],
) -> SessionFailures | None:
    """Return failures in groups with their original texts; the groups are cached under a name."""
    store, key = opened.view.store, {"session_id": opened.session_id}

    def compute() -> SessionFailures | None:
        errors = opened.cache.get("session_errors", lambda: rows_of(store, "session_errors", **key))
        ends = opened.cache.get(
            "internal/agent_ends", lambda: rows_of(store, "internal/agent_ends", **key)
        )
        return group(opened.tree, errors, ends)

    found = opened.cache.get(name, compute)
    # Texts are read each time, because they may be deleted while the groups are cached.
    return found and found.restored(opened.view.texts.replace_in_dicts, opened.agents)


def _own_turns(opened: OpenedSession) -> int | None:
    """Return the number of turns of the main agent itself; None if no sub-agent has turns."""
    tree = opened.tree
    if all(tree.node(number).lane == "main" for number in tree.order):
        return None
    lanes = [row["lane"] for row in opened.cached_rows("session_turns")]
    own = lanes.count("main")
    return None if own == len(lanes) else own


def _time_in_interactions(opened: OpenedSession, times: Callable[[], Sequence[Split]]) -> str:
    """Return how much of the duration of a session was in interactions, and how much before, between and after them, in
    words; empty if nearly all of it was in interactions, or if none are known.
    """
    started, duration = opened.about["started_ns"], opened.about["duration_ns"]
    if duration is None:
        return ""

    def compute() -> tuple[int, str]:
        splits = times()
        return sum(split.wall_ns for split in splits), outside_words(splits, started, duration)

    wall, words = opened.cache.get("time in interactions", compute)
    outside = duration - wall
    # Interactions at the same time can take longer in total than the session.
    if not wall or outside < LEAST_SHARE * duration:
        return ""
    return f"{seconds(wall)} in interactions{f', {words}' if words else ''}"


def _failed_counts(opened: OpenedSession) -> dict[str, int]:
    """Return the numbers of failed request attempts and of failed and denied tool calls; `show` and `tui` have the same
    ones.
    """
    groups = group_failed_steps(opened.cached_rows("session_errors"), ())
    return {
        "attempts": number_failed(groups, "attempt"),
        "calls": number_failed(groups, "tool_call"),
        "denied": number_denied(groups),
    }


def tree_part(request: Request) -> Response:
    """Return a part of the tree: the children of a step, the matches of a filter, or what is visible at first."""
    with site_of(request).reader.view() as view:
        opened = open_session(request, view, session_named(request, view))
        tree, query = opened.tree, request.query_params
        if "under" in query:
            number = selected_number(tree, {"step": query["under"]})
            below = list(tree.below(number)) if number is not None else []
            nodes = shown_nodes(view, below, set(), opened.agents)
            values = {"nodes": nodes, "selected": None, "summary": ""}
        else:
            found = _trace_values(opened, query)
            values = {name: found[name] for name in ("nodes", "selected", "summary")}
        return HTMLResponse(page("tree.html", session_id=opened.session_id, **values))


def step_part(request: Request) -> Response:
    """Return the facts of one step, and the buttons that show its content."""
    with site_of(request).reader.view() as view:
        opened = open_session(request, view, session_named(request, view))
        number = selected_number(opened.tree, request.query_params)
        shown = shown_step(
            view, opened.tree, number, opened.agents, lambda: opened.stored_rows("session_errors")
        )
        kept = content_state(view.store, opened.session_id)
        values = {
            "shown": shown,
            "failures": opened.tree.adjacent_failures(number),
            "about": opened.about,
            "content_state": kept,
            "diverged": diverged_steps(opened),
        }
        return HTMLResponse(page("step.html", **values))


def _time_values(opened: OpenedSession, query: Mapping[str, str]) -> dict[str, Any]:
    del query
    kinds = (
        "request",
        "tool",
        "command",
        "mcp_call",
        "person",
        "queued",
        "retry_wait",
        "compaction",
    )
    nodes = [opened.tree.node(number) for number in opened.tree.order]
    timed = [(node.duration_ns, node) for node in nodes if node.duration_ns and node.kind in kinds]
    longest = heapq.nlargest(MOST_LONGEST, timed, key=lambda each: each[0])
    shown = shown_nodes(opened.view, [node for _, node in longest], set(), opened.agents)
    listed: list[Listed] = [
        (took, each, "") for (took, _), each in zip(longest, shown, strict=True)
    ]
    pauses, code = _times_without_steps(opened)
    listed = sorted([*listed, *code], key=lambda each: -each[0])[:MOST_LONGEST]
    return {
        "longest": sorted([*listed, *pauses], key=lambda each: -each[0]),
        "longest_note": _times_note(opened, shown),
    }


def _times_without_steps(opened: OpenedSession) -> tuple[list[Listed], list[Listed]]:
    """Return the longest times without an interaction, and the longest time of agent code, if there are any."""
    store, about = opened.view.store, opened.about
    started, duration = about["started_ns"], about["duration_ns"]

    def compute() -> tuple[list[Pause], Stretch | None]:
        splits = interaction_times(store, opened.session_id)
        return named_pauses(splits, started, duration), longest_own_stretch(splits)

    pauses, stretch = opened.cache.get("times without steps", compute)
    code: list[Listed] = []
    if stretch is not None and stretch.ended_ns > stretch.started_ns:
        code.append(_agent_code(opened, stretch))
    return [(each.duration_ns, None, each.words) for each in pauses], code


def _agent_code(opened: OpenedSession, stretch: Stretch) -> Listed:
    """Return a time of agent code, and the step after which it was."""
    took = stretch.ended_ns - stretch.started_ns
    ended = [
        (node.started_ns + node.duration_ns, node)
        for node in map(opened.tree.node, opened.tree.order)
        if node.step is not None and node.started_ns is not None and node.duration_ns is not None
    ]
    before = [each for each in ended if each[0] <= stretch.started_ns]
    last = max(before, key=lambda each: each[0], default=None)
    if last is None:
        return took, None, "agent code before the first step"
    [after] = shown_nodes(opened.view, [last[1]], set(), opened.agents)
    return took, after, "agent code after"


def _times_note(opened: OpenedSession, shown: Sequence[ShownNode]) -> str:
    """Return what the times of listed tool calls include; empty if they are complete and exact."""
    calls = [each.node for each in shown if each.node.kind == "tool"]
    if any(node.is_estimated for node in calls):
        return f"≈: {ESTIMATED_TIMES}."
    kept = content_state(opened.view.store, opened.session_id)
    if calls and kept["source"] not in (None, "recorded"):
        return f"The times of calls {INCLUDING_WAITS}."
    return ""


def _transcript_values(opened: OpenedSession, query: Mapping[str, str]) -> dict[str, Any]:
    del opened
    return {
        "fields": {
            name: query[name][:MOST_CHARACTERS] for name in ("lane", "turn") if name in query
        }
    }


_TAB_VALUES = {
    "transcript": _transcript_values,
    "cost": _cost_values,
    "time": _time_values,
    "trace": _trace_values,
    "overview": _overview_values,
    "steps": _step_values,
    "files": file_values,
    "why": why_values,
    "commands": command_values,
}


def _link(parameters: Mapping[str, str], **changes: Any) -> str:
    """Return the query string with some parameters replaced; the value None removes a parameter."""
    values = {**parameters, **changes}
    return f"?{urlencode({name: value for name, value in values.items() if value is not None})}"


def _unfinished_operations(view: View, about: Row) -> Sequence[Row]:
    """Return the unfinished operations. The query is slow, so it runs only if there may be unfinished operations."""
    key = {"session_id": about["session_id"]}
    if about["status"] == "crashed" or view.named("internal/orphaned_span", **key):
        return view.named("open_at_death", **key)
    return ()


def _losses(view: View, session_id: str) -> Sequence[Row]:
    return view.named("losses", session_id=session_id)


def _window(turns: Sequence[Row], first: str | None, last: str | None) -> tuple[int, int] | None:
    """Return the requested range of turns of the waterfall, counted from 1; None for all turns."""
    start, end = whole_number(first), whole_number(last)
    if not turns or (start is None and end is None):
        return None
    start = min(max(start or 1, 1), len(turns))
    return start, min(max(end or len(turns), start), len(turns))


def _time_range(turns: Sequence[Row], window: tuple[int, int]) -> tuple[int, int]:
    """Return the start and the end of a range of turns, including the tool calls of its last turn."""
    shown_turns = turns[window[0] - 1 : window[1]]
    start = min(row["started_ns"] for row in shown_turns)
    end = max(row["started_ns"] + row["duration_ns"] for row in shown_turns)
    if window[1] < len(turns):
        end = max(end, turns[window[1]]["started_ns"])
    return start, end


def _windows(count: int, window: tuple[int, int] | None) -> dict[str, tuple[int, int]]:
    """Return the ranges of turns to link to, by label."""
    if count <= WINDOW_TURNS and window is None:
        return {}
    if window is None:
        return {"First turns": (1, WINDOW_TURNS), "Last turns": (count - WINDOW_TURNS + 1, count)}
    first, last = window
    size = last - first + 1
    ranges = {}
    if first > 1:
        ranges["Earlier"] = (max(first - size, 1), first - 1)
    if last < count:
        ranges["Later"] = (last + 1, min(last + size, count))
    return ranges


routes = [
    Route("/sessions/{id:path}/tree", tree_part),
    Route("/sessions/{id:path}/step", step_part),
    Route("/sessions/{id:path}", session),
]
