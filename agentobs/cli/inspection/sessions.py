"""Commands that show sessions from the store: `sessions`, `show`."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.inspection.effect_content import effect_lines
from agentobs.cli.inspection.failure_output import (
    FAILED_STYLE,
    failed_steps_of,
    failure_line,
    failure_of,
    print_outcome,
)
from agentobs.cli.inspection.notable_steps import longest_steps, notable_turns, pauses_of
from agentobs.cli.inspection.session_summary import summary_facts
from agentobs.cli.inspection.time_use import shares_line
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.progress_line import Progress, Spinner
from agentobs.cli.terminal.query_output import (
    Form,
    Rows,
    agent_names,
    as_dicts,
    form_options,
    heading,
    open_store,
    print_rows,
    readable,
    rows_of,
    session_of,
    with_lane_names,
)
from agentobs.cli.terminal.session_choice import WHERE_HELP
from agentobs.cli.terminal.tables import print_facts, print_line
from agentobs.errors import UsageError
from agentobs.records.display import (
    COST_MARKS,
    certain_money,
    has_partial_counts,
    printable,
    score_value,
    scored_part,
    text,
)
from agentobs.records.words import ATTENTION_ORDER, ESTIMATED_TIMES, INCLUDING_WAITS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agentobs.store.analysis.failed_steps import FailedSteps
    from agentobs.store.analysis.session_search import SessionTexts
    from agentobs.store.port import Store


@click.command()
@click.option(
    "--failed", is_flag=True, help="Only sessions that failed, crashed, or have no recorded end."
)
@click.option(
    "--cause",
    metavar="TEXT",
    help="Only failed sessions whose column `cause` contains this text, such as ValueError or a tool, ignoring case. "
    "--error also finds sessions that completed.",
)
@click.option(
    "--error",
    metavar="TYPE",
    help="Only sessions in which any tool call or request failed, or that ended, with an error whose type contains "
    "this text, such as TimeoutError, ignoring case.",
)
@click.option(
    "--attention",
    is_flag=True,
    help=f"List {ATTENTION_ORDER}. Also shows the signatures, whose computation takes longer.",
)
@click.option(
    "--telemetry",
    is_flag=True,
    help="Also list the sessions that only contain received telemetry.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of rows.",
)
@click.option("--where", metavar="CONDITIONS", help=WHERE_HELP)
@click.option(
    "--search",
    metavar="TEXT",
    help="Only sessions whose title contains this text, ignoring case; see --all-text.",
)
@click.option(
    "--all-text",
    is_flag=True,
    help="With --search: also search prompts, responses, and inputs and results of tools. The first search reads all "
    "content, and keeps its texts in the file texts.sqlite in the home.",
)
@form_options
@click.pass_context
def sessions(
    context: click.Context,
    failed: bool,
    cause: str | None,
    error: str | None,
    attention: bool,
    telemetry: bool,
    limit: int,
    where: str | None,
    search: str | None,
    all_text: bool,
    form: Form,
) -> None:
    """List recorded sessions, newest first, with what failed in them."""
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.analysis.session_search import SessionTexts
    from agentobs.store.disk_usage import warning
    from agentobs.store.session_filter import matching_sessions, parse_filter

    if all_text and search is None:
        raise UsageError("--all-text needs --search", todo="Pass the text with --search TEXT")
    conditions = parse_filter(where) if where is not None else ()
    with open_store(context) as store:
        texts = SessionTexts(store)
        selections: list[Collection[str]] = []
        if conditions:
            selections.append(matching_sessions(store, conditions))
        if search is not None:
            selections.append(_search(texts, search, all_text))
        if cause is not None:
            selections.append(_with_cause(store, cause))
        if error is not None:
            found = rows_of(store, "internal/sessions_with_error", text=error.lower())
            selections.append([row[0] for row in found[1]])
        chosen = list(set.intersection(*map(set, selections))) if selections else None
        selection = {"failed": failed or None, "telemetry": telemetry or None}
        signatures = None
        if attention:
            chosen, signatures = _by_attention(
                store, limit + 1, selection | {"session_ids": chosen}
            )
        rows = rows_of(
            store, "sessions", **selection, session_ids=chosen, limit=limit + 1, causes=True
        )
        if attention:
            place = {session_id: at for at, session_id in enumerate(chosen or ())}
            at = rows[0].index("session_id")
            rows = rows[0], sorted(rows[1], key=lambda row: place[row[at]])
        has_more, rows = len(rows[1]) > limit, (rows[0], rows[1][:limit])
        rows = _with_titles(rows, texts, TITLE_WIDTH if form == "table" else None)
        columns: Sequence[str] = _FAILED_SESSIONS if failed or cause is not None else _SESSIONS
        is_unsearched = False
        if form == "table":
            rows = _with_status_notes(_with_what_failed(rows, store, signatures or {}, error))
            if signatures is None:
                rows, columns, is_unsearched = _without_unknown_causes(rows, columns)
        is_ordered = attention or failed or cause is not None
        hint = _failed_hint(store, chosen, telemetry) if form == "table" and not is_ordered else ""
        print_rows(rows, columns, form)
    if not rows[1] and (selections or failed):
        todo = "; --error finds types of errors, and --all-text searches all content"
        has_todo = search is not None and not all_text
        click.echo(f"no session matches{todo if has_todo else ''}", err=True)
    if hint:
        click.echo(hint, err=True)
    if is_unsearched:
        click.echo(UNSEARCHED, err=True)
    if has_more:
        shown = f"{limit:,} session{'s are' if limit > 1 else ' is'} shown"
        click.echo(f"only the first {shown}; --limit N shows more", err=True)
    if advice := warning(existing_home(home_option(context))):
        click.echo(advice, err=True)


@click.command()
@click.argument("session")
@click.option(
    "--content",
    is_flag=True,
    help="Also show responses, tool calls and tool results. May show user input. `--turn N --content` and `agentobs "
    "tui SESSION --content` also show the prompts.",
)
@click.option(
    "--turn",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show only this turn: requests, tool calls, results, errors, tokens and cost. With --content, also the start "
    "of the system prompt, the messages that are new since the previous request, and the response.",
)
@click.option(
    "--lane",
    metavar="NAME",
    help="The agent of the turn: its name as in the column `lane`, such as 'Explore 2', or its complete lane. "
    "Default: main, or the only agent.",
)
@click.option("--facts", is_flag=True, help="Also show all facts about the session, one per line.")
@click.option(
    "--all", "shows_all", is_flag=True, help="Show all turns and steps of a long session."
)
@click.pass_context
def show(
    context: click.Context,
    session: str,
    content: bool,
    turn: int | None,
    lane: str | None,
    facts: bool,
    shows_all: bool,
) -> None:
    """Show one session: what failed, cost and time, turns, and steps.

    Of a long session, it shows the failed, slowest and most expensive turns, and the longest steps and pauses. With
    --turn, it shows one turn.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name.
    """
    from agentobs.store.analysis.session_search import SessionTexts

    if turn is not None:
        if facts or shows_all:
            raise UsageError(
                "--turn excludes --facts and --all", where="show", todo="Leave out one of them"
            )
        _show_turn(context, session, turn, lane, content)
        return
    if lane is not None:
        raise UsageError("--lane needs --turn", where="show", todo="Pass the turn with --turn N")
    with open_store(context) as store:
        session_id = session_of(store, session)
        failure = failure_of(store, session_id)
        about = rows_of(store, "internal/session", session_id=session_id)
        git = rows_of(store, "internal/session_git", session_id=session_id)
        costs = as_dicts(rows_of(store, "cost_by_session", session_id=session_id))
        titles = SessionTexts(store).titles([session_id])
        [shown] = as_dicts(_with_status_notes(about))
        turns = rows_of(store, "session_turns", session_id=session_id)
        unfinished = rows_of(store, "internal/unfinished_turns", session_id=session_id)
        groups = failed_steps_of(store, session_id, as_dicts(turns))
        if print_outcome(store, session_id, failure, str(shown["status"]), groups):
            click.echo()
        title = titles.get(session_id)
        cut = as_dicts(unfinished)
        [kept] = store.rows("internal/content_state", session_id=session_id).dicts()
        source = kept["source"]
        print_facts(summary_facts(shown, title, as_dicts(git), costs, groups, cut, source))
        _print_time_and_waste(store, session_id, shown)
        _print_agents(store, session_id)
        if facts:
            _print_facts(_with_git(about, git), costs[:1])
        _print_conversation(rows_of(store, "conversation_sessions", session_id=session_id))
        timeline = rows_of(store, "session_timeline", session_id=session_id)
        listed = _all_turns(turns, unfinished)
        printed = _print_steps(store, session_id, listed, timeline, None if shows_all else groups)
        if failure is not None and printed > SCREEN_ROWS:
            # The first lines have left the screen.
            click.echo()
            print_line(failure_line(failure), FAILED_STYLE)
        _print_scores(rows_of(store, "session_scores", session_id=session_id))
        effects = as_dicts(rows_of(store, "internal/effect_contents", session_id=session_id))
        home = store.home
    if content:
        _show_content(context, session_id)
        for line in effect_lines(home, session_id, effects):
            click.echo(line)


def _show_turn(
    context: click.Context, session: str, turn: int, lane: str | None, content: bool
) -> None:
    """Print one turn of a session, on request with its content."""
    from agentobs.cli.inspection.turn_output import TEXTS_HINT, print_turn, turn_content

    with open_store(context) as store:
        session_id = session_of(store, session)
        attempt_ids = print_turn(store, session_id, turn, lane)
        if content:
            with Spinner("reading the content"):
                recording = store.content(session_id)
            for line in turn_content(recording, attempt_ids):
                click.echo(line)
        else:
            [kept] = store.rows("internal/content_state", session_id=session_id).dicts()
            if kept["content"] != "off" and kept["pruned_ns"] is None:
                click.echo(f"\n{TEXTS_HINT}")


def _print_time_and_waste(store: Store, session_id: str, about: Mapping[str, Any]) -> None:
    """Print where the time went in one line, and each kind of waste in one line."""
    from agentobs.store.analysis.wall_time import interaction_times
    from agentobs.store.analysis.waste import (
        session_waste,
        stored_rows,
        waste_facts,
        waste_total,
        without_usage,
    )

    rows = stored_rows(store, session_id)
    shares = shares_line(interaction_times(store, session_id), about)
    waste = session_waste(rows)
    unknown = without_usage(rows("internal/failed_request_costs"))
    facts = [("time", shares)] if shares else []
    facts += waste_facts(waste, waste_total(waste, rows("cost_by_session")))
    facts += [("not counted", unknown)] if unknown else []
    print_facts(facts)
    click.echo()


def _print_agents(store: Store, session_id: str) -> None:
    """Print what each agent cost, if there are sub-agents."""
    rows = rows_of(store, "cost_by_agent", session_id=session_id)
    if len(rows[1]) > 1:
        print_line("agents, most expensive first:")
        print_rows(with_lane_names(rows, store, session_id), _AGENTS, "table")
        click.echo()


SCREEN_ROWS = 30
"""The number of rows after which the failure is printed again. Our choice: a small terminal."""
LONG_ROWS = 100
"""The number of turns and steps above which a session is long. Our choice: about three screens."""
UNSEARCHED = "failure signatures were not searched; --attention shows them"
"""The hint below a list in which sessions have no known cause."""
TITLE_WIDTH = 50
"""The maximum length of a title in a table, in characters. Our choice."""

_SESSIONS = (
    "session_id", "name", "title", "status", "cause", "started_ns", "duration_ns", "turns", "tool_calls",
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd",
)  # fmt: skip
_FAILED_SESSIONS = (
    "session_id", "name", "title", "status", "cause", "started_ns", "duration_ns", "turns", "tool_calls",
    "cost_usd",
)  # fmt: skip
_TURNS = (
    "lane", "turn", "attempt", "duration_ns", "first_chunk_ns", "stop_reason", "tool_use_count",
    "tool_errors", "denied_calls", "tools_ns", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "cost_usd",
)  # fmt: skip
_AGENTS = (
    "lane", "calls", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd",
)  # fmt: skip
"""The columns shown for the agents of a session."""
_CONVERSATION = (
    "session_id",
    "name",
    "status",
    "started_ns",
    "turns",
    "calls",
    "cost_usd",
    "cost_status",
)
"""The columns shown for the sessions of a conversation."""
_TIMELINE = ("after_ns", "what", "label", "duration_ns", "outcome", "error_type")
_LONGEST = ("duration_ns", "after_ns", "what", "lane", "turn", "outcome", "error_type")
"""The columns that each command shows; its query may return more."""


def _search(texts: SessionTexts, text: str, all_text: bool) -> list[str]:
    """Return the sessions in which a text occurs, and print the progress and what could not be searched."""
    with Progress("sessions read") as progress:
        found = texts.search(text, all_text=all_text, progress=progress)
    if found.unreadable:
        click.echo(
            f"the content of {found.unreadable:,} sessions cannot be read, so it was not searched",
            err=True,
        )
    return list(found.session_ids)


def _with_cause(store: Store, cause: str) -> list[str]:
    """Return the failed sessions whose cause, as it is shown, contains a text, ignoring case."""
    needle = cause.casefold()
    causes = as_dicts(rows_of(store, "internal/causes"))
    return [row["session_id"] for row in causes if needle in str(row["summary"]).casefold()]


def _by_attention(
    store: Store, limit: int, selection: Mapping[str, Any]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the IDs of the sessions that need attention most, in order, and the failure signatures that were found.

    Args:
        store: the store.
        limit: the maximum number of IDs.
        selection: the parameters of the query `sessions` that select the sessions.
    """
    from agentobs.store.analysis.attention import by_attention, found_signatures
    from agentobs.store.analysis.diagnosis import diagnose_all

    with Spinner("reading the store"):
        sessions = store.rows("sessions", **selection, limit=None, causes=False).dicts()
        since_ns = min((row["started_ns"] for row in sessions), default=0)
        signatures = found_signatures(diagnose_all(store, since_ns).dicts())
        return by_attention(store, sessions, signatures)[:limit], signatures


def _failed_hint(store: Store, chosen: Collection[str] | None, telemetry: bool) -> str:
    """Return a line with the number of sessions that `--failed` would list, and how to list them first; empty without
    any, and if the list does not go to a terminal.

    Args:
        store: the store.
        chosen: the IDs of the sessions that the options select, or None for all.
        telemetry: whether sessions that only contain telemetry are listed.
    """
    if not sys.stdout.isatty():
        return ""
    selection = {"session_ids": chosen, "telemetry": telemetry or None}
    [[number]] = rows_of(store, "internal/count_failed_sessions", **selection)[1]
    if not number:
        return ""
    if number == 1:
        return "1 session failed, crashed or has no end; --attention lists it first"
    return f"{number:,} sessions failed, crashed or have no end; --attention lists them first"


def _with_what_failed(
    rows: Rows, store: Store, signatures: Mapping[str, Sequence[str]], error: str | None
) -> Rows:
    """Return the rows of a list of sessions; the cause of a session that did not fail is what failed in it: calls, and
    failure signatures. If an error class was searched, the cause names the classes that were found.
    """
    from agentobs.store.analysis.attention import found_classes, what_failed
    from agentobs.store.analysis.failed_steps import failed_calls
    from agentobs.store.label_texts import LabelTexts

    listed = as_dicts(rows)
    ids = [row["session_id"] for row in listed]
    failed = failed_calls(store, ids, LabelTexts(store).replace_in_dicts)
    classes: Mapping[str, Sequence[str]] = {}
    if error is not None:
        found = rows_of(store, "internal/error_classes", session_ids=ids)
        classes = found_classes(as_dicts(found), [error])
    causes = (
        what_failed(
            row["cause"],
            failed.get(row["session_id"]),
            signatures.get(row["session_id"], ()),
            classes.get(row["session_id"], ()),
        )
        for row in listed
    )
    return rows[0], [
        tuple({**row, "cause": cause}.values()) for row, cause in zip(listed, causes, strict=True)
    ]


def _without_unknown_causes(rows: Rows, columns: Sequence[str]) -> tuple[Rows, Sequence[str], bool]:
    """Return the rows of a list of sessions whose failure signatures were not searched, the columns to show, and
    whether sessions have no known cause.

    The cell of such a session is empty, because `-` would mean that nothing was found. A column without any cause is
    left out.
    """
    causes = [row["cause"] for row in as_dicts(rows)]
    if rows[1] and not any(causes):
        columns = [name for name in columns if name != "cause"]
    shown = [tuple({**row, "cause": row["cause"] or ""}.values()) for row in as_dicts(rows)]
    return (rows[0], shown), columns, not all(causes)


def _with_titles(rows: Rows, texts: SessionTexts, width: int | None) -> Rows:
    """Return the rows of a list of sessions with their titles, shortened to `width` characters."""
    columns, values = rows
    at = columns.index("session_id")
    titles = texts.titles([str(row[at]) for row in values])
    place = columns.index("name") + 1

    def shown(session_id: str) -> str | None:
        title = titles.get(session_id)
        if title is None or width is None or len(title) <= width:
            return title
        return title[: width - 1] + "\u2026"

    return (
        [*columns[:place], "title", *columns[place:]],
        [(*row[:place], shown(str(row[at])), *row[place:]) for row in values],
    )


def _with_status_notes(rows: Rows) -> Rows:
    """Return the rows of a list of sessions; the status also shows forks and incomplete sessions."""
    columns, values = rows

    def status(row: dict[str, Any]) -> str:
        text = str(row["status"])
        if row["incomplete"] and text != "incomplete":
            text += ", incomplete"
        if row["forked_turn"] is not None:
            parent = str(row["continues_session_id"] or "a fixture")[-8:]
            text += f", fork of {parent} at turn {row['forked_turn']}"
        return text

    listed = [dict(zip(columns, row, strict=True)) for row in values]
    return columns, [tuple({**row, "status": status(row)}.values()) for row in listed]


def _all_turns(turns: Rows, unfinished: Rows) -> Rows:
    """Return the turns of a session including those without a complete response, in order."""
    at = turns[0].index("started_ns")
    return turns[0], sorted([*turns[1], *unfinished[1]], key=lambda row: row[at])


def _print_steps(
    store: Store,
    session_id: str,
    turns: Rows,
    timeline: Rows,
    groups: Sequence[FailedSteps] | None,
) -> int:
    """Print the turns and the timeline; of a long session, the notable turns and the longest steps.

    Return the number of printed rows. If the failed steps are None, a long session is printed in full.
    """
    from agentobs.store.analysis.shown_steps import shown_steps

    listed = as_dicts(timeline)
    first = min((row["started_ns"] for row in listed), default=0)
    steps = shown_steps(listed)
    lanes = agent_names(store, session_id)
    has_denied = any(row["denied_calls"] for row in as_dicts(turns))
    turn_columns = tuple(each for each in _TURNS if each != "denied_calls" or has_denied)
    if groups is None or len(turns[1]) + len(steps) <= LONG_ROWS:
        print_rows(with_lane_names(turns, store, session_id), turn_columns, "table")
        click.echo()
        print_rows(_timeline(steps, first), _TIMELINE, "table")
        _print_certainty(store, session_id, steps)
        return len(turns[1]) + len(steps)
    chosen, words = notable_turns(turns, groups)
    counted = f"{len(chosen[1]):,} of {len(turns[1]):,} turns: {words}" if words else "no turns"
    print_line(f"{counted}; --all shows all turns and steps")
    if words:
        columns = (*turn_columns[:2], "notable", *turn_columns[2:])
        print_rows(with_lane_names(chosen, store, session_id), columns, "table")
    pauses = pauses_of(store, session_id)
    longest = longest_steps(steps, lanes, pauses)
    click.echo()
    requests, calls = (
        sum(row["kind"] == kind for row in steps) for kind in ("attempt", "tool_call")
    )
    print_line(
        f"the longest {len(longest) - len(pauses):,} of {requests:,} requests, {calls:,} tool calls, waits and other "
        f"steps{', and the longest pauses' if pauses else ''}:"
    )
    print_rows(with_lane_names(_longest(longest, first), store, session_id), _LONGEST, "table")
    _print_certainty(store, session_id, longest)
    return len(chosen[1]) + len(longest)


def _timeline(steps: Sequence[Mapping[str, Any]], first: int) -> Rows:
    """Return steps for a table: times relative to the start of the session, names indented by depth."""
    shown = [
        (
            row["started_ns"] - first,
            f"{'  ' * row['depth']}{row['what']}",
            row["label"],
            row["duration_ns"],
            row["outcome"],
            row["error_type"],
            row["estimated_ns"],
        )
        for row in steps
    ]
    return [*_TIMELINE, "estimated_ns"], shown


def _longest(steps: Sequence[Mapping[str, Any]], first: int) -> Rows:
    """Return the longest steps for a table, with their turns; a time before the first step has no `after`."""
    names = ("what", "lane", "turn", "outcome", "error_type", "estimated_ns")
    shown = []
    for row in steps:
        after = row["started_ns"] - first
        known = after if after >= 0 else None
        shown.append((row["duration_ns"], known, *(row[name] for name in names)))
    return [*_LONGEST, "estimated_ns"], shown


def _print_certainty(store: Store, session_id: str, steps: Sequence[Mapping[str, Any]]) -> None:
    """Print what the listed times of tools include, and that they are estimated."""
    calls = [row for row in steps if row["kind"] == "tool_call"]
    if any(row["duration_ns"] is None and row["estimated_ns"] is not None for row in calls):
        click.echo(f"≈: {ESTIMATED_TIMES}")
    [about] = store.rows("internal/content_state", session_id=session_id).dicts()
    is_imported = about["source"] not in (None, "recorded")
    if is_imported and any(row["duration_ns"] is not None for row in calls):
        click.echo(f"the times of calls {INCLUDING_WAITS}")


def _print_facts(rows: Rows, costs: Sequence[Mapping[str, Any]]) -> None:
    """Print one row, one fact per line. On a terminal, long values are wrapped.

    The certainty in `costs` precedes the cost and the output tokens.
    """
    columns, [values] = rows
    status = costs[0]["cost_status"] if costs else None
    is_low = any(has_partial_counts(row) for row in costs)

    def shown(column: str, value: Any) -> str:
        if column == "cost_usd":
            return certain_money(value, status) or ""
        mark = COST_MARKS["lower_bound"] if column == "output_tokens" and is_low else ""
        return f"{mark}{text(readable(column, value))}"

    facts = [
        (heading(column), shown(column, value))
        for column, value in zip(columns, values, strict=True)
        if value is not None and not column.endswith("_at")
    ]
    print_facts(facts)
    click.echo()


def _with_git(about: Rows, git: Rows) -> Rows:
    """Return the row about a session, followed by what is known about its git repository."""
    if not git[1]:
        return about
    return [*about[0], *git[0]], [(*about[1][0], *git[1][0])]


def _print_conversation(rows: Rows) -> None:
    """Print the sessions of a resumed conversation, and their total cost."""
    parts = as_dicts(rows)
    if len(parts) < 2:
        return
    print_rows(rows, _CONVERSATION, "table")
    known = [part["cost_usd"] for part in parts if part["cost_usd"] is not None]
    is_lower_bound = any(part["calls"] and part["cost_status"] != "exact" for part in parts)
    status = "lower_bound" if is_lower_bound else "exact"
    cost = certain_money(sum(known, Decimal(0)), status) if known else "unknown"
    click.echo(f"{len(parts)} sessions cost {cost}\n")


_SCORES = ("score", "value", "of", "given", "last_given_ns", "comment")


def _print_scores(rows: Rows) -> None:
    """Print the last value of each score, if there are any."""
    scores = as_dicts(rows)
    if not scores:
        return
    click.echo()
    shown = [
        (
            row["name"],
            score_value(row["value_type"], row["value"], row["label"]),
            scored_part(row["lane"], row["turn"], row["tool_use_id"]),
            row["given"],
            row["at_ns"],
            row["comment"],
        )
        for row in scores
    ]
    print_rows((list(_SCORES), shown), _SCORES, "table")


def _show_content(context: click.Context, session_id: str) -> None:
    from agentobs.cli.terminal.recordings import load_recording
    from replay.fixture.trajectory import changed_inputs, trajectory

    with Spinner("reading the content"):
        recording = load_recording(home_option(context), session_id)
    click.echo()
    click.echo(trajectory(recording.exchanges, numbered=True), nl=False)
    click.echo(changed_inputs(recording.exchanges), nl=False)
    if recording.result is not None:
        result = json.dumps(recording.result.value, ensure_ascii=False)
        click.echo(f"returned {printable(result)}")
