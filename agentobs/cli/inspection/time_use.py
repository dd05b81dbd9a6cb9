"""Commands that show where the time went: `time`, `tools`, `waits`, `models`, `lines`, `limits`, `orphans`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from agentobs.cli.terminal.instants import WHEN
from agentobs.cli.terminal.progress_line import Spinner
from agentobs.cli.terminal.query_output import (
    Form,
    Rows,
    as_dicts,
    form_options,
    open_store,
    print_rows,
    rows_of,
    session_of,
    with_lane_names,
)
from agentobs.cli.terminal.tables import print_line
from agentobs.errors import UsageError
from agentobs.records.display import printable, seconds, share
from agentobs.records.words import INCLUDING_WAITS, PARTS_OF_TIME, UNSEEN_WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from agentobs.store.analysis.wall_time import Split


def _selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared parameters: SESSION and `--since`."""
    command = click.option(
        "--since",
        type=WHEN,
        metavar="WHEN",
        help=(
            "Only data recorded at or after this time, given as a duration before now (30m, 12h, 7d, "
            "2w) or as a local day or time."
        ),
    )(command)
    return click.argument("session", required=False)(command)


@click.command()
@click.argument("session")
@click.option("--path", "path", is_flag=True, help="Show the critical path, segment by segment.")
@form_options
@click.pass_context
def time(context: click.Context, session: str, path: bool, form: Form) -> None:
    """Split the wall time of each interaction of a session into parts that do not overlap.

    The parts are the model, tools, waits, hooks, retry backoff and the code of the agent. They add up to the wall time.
    A part that the client does not record is shown as -; the time of tools then includes any wait for approval.
    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name.
    """
    from agentobs.store.analysis.wall_time import interaction_times

    with open_store(context) as store:
        session_id = session_of(store, session)
        with Spinner("reading the store"):
            splits = interaction_times(store, session_id)
            [about] = as_dicts(rows_of(store, "internal/session", session_id=session_id))
            rows = _paths(splits) if path else _splits(splits)
            if form == "table":
                rows = with_lane_names(rows, store, session_id)
    print_rows(rows, _PATH if path else _SPLIT, form)
    if form == "table" and not path:
        _print_shares(splits, about)


@click.command()
@_selection
@form_options
@click.pass_context
def tools(context: click.Context, session: str | None, since: int | None, form: Form) -> None:
    """Show the slowest tools: p50, p95 and p99, excluding recorded approval waits.

    Only the agentobs loop records approval waits. The times of calls of other clients include any wait for approval.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. Default: all
    sessions.
    """
    rows = _rows_of(context, "slowest_tools", session, since)
    print_rows(rows, _TOOLS, form)
    unseen = sum(row["unseen_waits"] for row in as_dicts(rows))
    if form == "table" and unseen:
        click.echo(f"the times of {unseen:,} call{'s' * (unseen != 1)} {INCLUDING_WAITS}")


@click.command()
@_selection
@click.option("--hooks", is_flag=True, help="Show only hooks.")
@click.option(
    "--person",
    is_flag=True,
    help="Show how long a person was active in each session instead of the waits.",
)
@form_options
@click.pass_context
def waits(
    context: click.Context,
    session: str | None,
    since: int | None,
    hooks: bool,
    person: bool,
    form: Form,
) -> None:
    """Show approval waits, and the outcomes of hooks.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. Default: all
    sessions.
    """
    if hooks and person:
        raise UsageError("--hooks and --person exclude each other", todo="Pass one of them")
    if person:
        print_rows(_rows_of(context, "person_time", session, since), _PERSON, form)
        return
    if not hooks:
        print_rows(_rows_of(context, "waits_for_people", session, since), _WAITS, form)
    if hooks or form == "table":
        print_rows(_rows_of(context, "hook_outcomes", session, since), _HOOKS, form)


@click.command()
@_selection
@form_options
@click.pass_context
def lines(context: click.Context, session: str | None, since: int | None, form: Form) -> None:
    """Show the lines that edit tools added and removed, by session and tool.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. Default: all
    sessions.
    """
    print_rows(_rows_of(context, "lines_changed", session, since), _LINES, form)


@click.command()
@_selection
@form_options
@click.pass_context
def models(context: click.Context, session: str | None, since: int | None, form: Form) -> None:
    """Show the time to the first chunk and the first token of each model.

    Only streamed responses have these times. SESSION is the ID of a session, the start or end of the ID (4 characters
    or more), or its name. Default: all sessions.
    """
    print_rows(_rows_of(context, "first_token_by_model", session, since), _MODELS, form)


@click.command()
@_selection
@form_options
@click.pass_context
def limits(context: click.Context, session: str | None, since: int | None, form: Form) -> None:
    """Show how close each model came to its rate limits, by hour.

    Shows the lowest headroom of each limit, and the requests that it rejected. SESSION is the ID of a session, the
    start or end of the ID (4 characters or more), or its name. Default: all sessions.
    """
    print_rows(_rows_of(context, "rate_limit_headroom", session, since), _LIMITS, form)


@click.command()
@_selection
@form_options
@click.pass_context
def orphans(context: click.Context, session: str | None, since: int | None, form: Form) -> None:
    """Show the operations that were still running when a process died.

    These are spans that never ended, and calls without a result. SESSION is the ID of a session, the start or end of
    the ID (4 characters or more), or its name. Default: all sessions.
    """
    print_rows(_rows_of(context, "open_at_death", session, since), _OPEN, form)


_SPLIT = (
    "started_ns", "lane", "wall_ns", "model_ns", "tool_ns", "queued_ns", "person_ns", "hook_ns",
    "retry_wait_ns", "own_ns", "has_ended", "timing_source",
)  # fmt: skip
_PATH = ("after_ns", "duration_ns", "part", "name", "label", "lane")
_TOOLS = (
    "name", "calls", "timed_calls", "errors", "denied", "p50_ns", "p95_ns", "p99_ns", "max_ns", "total_ns",
    "approval_wait_ns",
)  # fmt: skip
_WAITS = (
    "about", "resolver", "answered", "unanswered", "denied", "p50_ns", "p90_ns", "p99_ns", "max_ns",
    "total_ns", "under_1s", "under_10s", "under_1min", "under_10min", "longer",
)  # fmt: skip
_HOOKS = (
    "hook",
    "outcome",
    "times",
    "rewrites",
    "overridden",
    "model_requests",
    "p50_ns",
    "p95_ns",
    "max_ns",
)
_MODELS = (
    "model", "calls", "p50_ns", "p95_ns", "p99_ns", "max_ns", "token_calls", "token_p50_ns",
    "token_p95_ns",
)  # fmt: skip
_LINES = (
    "session_id", "name", "tool", "calls", "lines_added", "lines_removed", "added_unknown",
    "removed_unknown",
)  # fmt: skip
_PERSON = (
    "session_id", "name", "prompts", "approvals", "wait_ns", "prompt_active_ns",
    "approval_active_ns", "active_ns",
)  # fmt: skip
_LIMITS = (
    "hour", "model", "limit_name", "responses", "limit_value", "lowest_remaining", "lowest_ratio",
    "rejected",
)  # fmt: skip
LEAST_OWN = 0.1
"""The part of the wall time from which on the longest time of agent code is named. Our choice."""
_OPEN = ("session_id", "lane", "kind", "name", "label", "started_ns", "open_ns")
"""The columns that each command shows; its query may return more."""


def _rows_of(context: click.Context, query: str, session: str | None, since: int | None) -> Rows:
    with open_store(context) as store:
        session_id = session_of(store, session) if session else None
        return rows_of(store, query, session_id=session_id, since_ns=since)


def _splits(splits: list[Split]) -> Rows:
    from agentobs.store.analysis.wall_time import Split as SplitType

    columns = [field.name for field in dataclasses.fields(SplitType) if field.name != "path"]
    return columns, [tuple(getattr(split, name) for name in columns) for split in splits]


def _paths(splits: list[Split]) -> Rows:
    columns = ["interaction_id", "after_ns", "duration_ns", *_PATH[2:]]
    return columns, [
        (
            split.interaction_id,
            segment.started_ns - splits[0].started_ns,
            segment.ended_ns - segment.started_ns,
            segment.part,
            segment.name,
            segment.label,
            segment.lane,
        )
        for split in splits
        for segment in split.path
    ]


def shares_line(splits: list[Split], about: Mapping[str, Any]) -> str:
    """Return the time in interactions, the share of each part, and the times outside of them, in one line; empty if
    there is none.

    Args:
        splits: the times of the interactions.
        about: the row of the session.
    """
    from agentobs.store.analysis.wall_time import has_unseen_waits, outside_words, total_by_part

    wall = sum(split.wall_ns for split in splits)
    if not wall:
        return ""
    notes = {"tool": f", {UNSEEN_WAITS}"} if has_unseen_waits(splits) else {}
    listed = ", ".join(
        f"{PARTS_OF_TIME[part]} {share(ns, wall)}{notes.get(part, '')}"
        for part, ns in total_by_part(splits).items()
        if ns
    )
    outside = outside_words(splits, about["started_ns"], about["duration_ns"])
    return f"{seconds(wall)} in interactions: {listed}{f'; {outside}' if outside else ''}"


def _longest_own(splits: list[Split]) -> str:
    """Return the longest time of agent code and what was before it; empty if agent code took little time."""
    from agentobs.store.analysis.lane_names import name_of_lane
    from agentobs.store.analysis.wall_time import longest_own_stretch

    stretch = longest_own_stretch(splits)
    took = 0 if stretch is None else stretch.ended_ns - stretch.started_ns
    if stretch is None or took < LEAST_OWN * sum(split.wall_ns for split in splits):
        return ""
    before = stretch.before
    if before is None:
        where = "at the start of an interaction"
    else:
        words = {"model": "request", "tool": "call"}.get(before.part, PARTS_OF_TIME[before.part])
        where = f"after {words} {before.label or ''}".rstrip() + f" of {name_of_lane(before.lane)}"
    return f"longest time of agent code: {seconds(took)}, {printable(where)}"


def _print_shares(splits: list[Split], about: Mapping[str, Any]) -> None:
    """Print the total of all interactions, and a note if tool time was estimated from wire timing."""
    if line := shares_line(splits, about):
        print_line(line)
    if line := _longest_own(splits):
        print_line(line)
    if any(split.timing_source == "wire" for split in splits):
        click.echo(
            "estimated from wire timing: time from a response with tool calls until the next "
            "request counts as tool time, unless a sub-agent was active"
        )
