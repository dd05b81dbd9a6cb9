"""What `agentobs show SESSION --turn N` prints: the facts of one turn, and the messages sent to and from the model."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.inspection.session_summary import token_counts
from agentobs.cli.terminal.instants import local_instant, zone_name
from agentobs.cli.terminal.query_output import agent_names, as_dicts, print_rows, rows_of
from agentobs.cli.terminal.tables import print_facts
from agentobs.errors import UsageError
from agentobs.records.display import COST_MARKS, certain_money, listed, printable, seconds, text
from agentobs.records.request_failures import outcome_words
from agentobs.records.words import ESTIMATED_TIMES, message_counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentobs.cli.terminal.transcript import Entry
    from agentobs.provider.dialect import Dialect
    from agentobs.records.exchanges import ModelExchange, Recording
    from agentobs.store.port import Store

    Row = Mapping[str, Any]

MOST_NAMES = 10
"""The maximum number of agents that an error names. Our choice: about two lines."""
SYSTEM_LINES = 12
SYSTEM_CHARACTERS = 800
"""The maximum numbers of lines and characters of a system prompt that are shown. Our choice: the start is enough to
recognize it.
"""
_COLUMNS = (
    "after_ns", "what", "duration_ns", "outcome", "error", "input_bytes", "result_bytes", "output_tokens", "cost_usd",
)  # fmt: skip
_MARKS = ("cost_status", "estimated_ns")
"""The columns from which signs in the table are made."""
_STEP_KINDS = {"attempt": "request", "tool_call": "tool_call", "permission": "decision"}
"""The kinds of `session_timeline`, with those of `session_steps`."""
TEXTS_HINT = "texts are not shown; add --content"
"""The last line of a turn without its content."""
_EARLIER = "; --turn with an earlier turn shows the others"
"""What follows the number of messages if only the new ones are shown."""
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def lane_of(store: Store, session_id: str, steps: Sequence[Row], name: str | None) -> str:
    """Return the lane of an agent of a session.

    Args:
        store: the store.
        session_id: the session.
        steps: the rows of `session_steps`.
        name: the name of the agent, as tables and pages show it, or its complete lane; None for the main agent, or for
            the only agent.

    Raises:
        UsageError: the session has no such agent.
    """
    from agentobs.store.analysis.lane_names import name_of_lane

    names = agent_names(store, session_id)
    agents = {
        str(row["lane"]): name_of_lane(str(row["lane"]), names)
        for row in steps
        if row["turn"] is not None
    }
    if name is None:
        name = next(iter(agents)) if len(agents) == 1 else "main"
    for lane, agent in agents.items():
        if name in (lane, agent):
            return lane
    shown = [printable(each) for each in agents.values()]
    rest = len(shown) - MOST_NAMES
    if rest > 1:
        shown = [*shown[:MOST_NAMES], f"{rest:,} others"]
    raise UsageError(
        f"the session has no turn of an agent named {printable(name)!r}",
        where="--lane",
        todo=f"Its agents are {listed(shown)}" if shown else "No turn of this session was recorded",
    )


def print_turn(store: Store, session_id: str, turn: int, lane_name: str | None) -> list[str]:
    """Print the facts of one turn, and return the IDs of its attempts in order.

    Args:
        store: the store.
        session_id: the session.
        turn: the number of the turn in its lane.
        lane_name: the name of the agent, or its lane, as in `lane_of`.

    Raises:
        UsageError: the session has no such turn.
    """
    from agentobs.store.analysis.shown_steps import shown_steps

    steps = as_dicts(rows_of(store, "session_steps", session_id=session_id))
    lane = lane_of(store, session_id, steps, lane_name)
    names = agent_names(store, session_id)
    agent = printable(names.get(lane, lane))
    requested = [row for row in steps if row["kind"] == "request" and row["lane"] == lane]
    turns = sorted({row["turn"] for row in requested if row["turn"] is not None})
    if turn not in turns:
        known = (
            f"turns are {turns[0]:,} to {turns[-1]:,}"
            if len(turns) > 1
            else f"only turn is {turns[0]:,}"
        )
        has_others = len({row["lane"] for row in steps}) > 1
        raise UsageError(
            f"{agent} has no turn {turn:,}",
            where="--turn",
            todo=f"Its {known}{'; --lane chooses another agent' if has_others else ''}",
        )
    chosen = [row for row in steps if row["lane"] == lane and row["turn"] == turn]
    [about] = as_dicts(rows_of(store, "internal/session", session_id=session_id))
    timeline = as_dicts(rows_of(store, "session_timeline", session_id=session_id))
    errors = as_dicts(rows_of(store, "session_errors", session_id=session_id))
    here = [row for row in errors if (row["lane"], row["turn"]) == (lane, turn)]
    print_facts(_facts(about, agent, turn, turns[-1], chosen, here))
    click.echo()
    shown = [each for each in shown_steps(timeline) if (each["lane"], each["turn"]) == (lane, turn)]
    first = min(row["started_ns"] for row in chosen)
    table = [_row(each, first, chosen, errors, names) for each in shown]
    columns = (*_COLUMNS, *_MARKS)
    print_rows(
        (list(columns), [tuple(row[name] for name in columns) for row in table]), _COLUMNS, "table"
    )
    if any(row["duration_ns"] is None and row["estimated_ns"] is not None for row in table):
        click.echo(f"≈: {ESTIMATED_TIMES}")
    return [str(row["id"]) for row in chosen if row["kind"] == "request"]


def _facts(
    about: Row, agent: str, turn: int, last: int, steps: Sequence[Row], errors: Sequence[Row]
) -> list[tuple[str, str]]:
    """Return names and values of the facts of a turn.

    Args:
        about: the row of the session.
        agent: the display name of the agent.
        turn: the number of the turn.
        last: the number of the last turn of the agent.
        steps: the rows of `session_steps` of the turn.
        errors: the rows of `session_errors` of the turn.
    """
    requests = [row for row in steps if row["kind"] == "request"]
    calls = [row for row in steps if row["kind"] == "tool_call"]
    waits = [row for row in steps if row["kind"] == "decision"]
    started = requests[0]["started_ns"]
    after = seconds(started - about["started_ns"])
    models = dict.fromkeys(printable(str(row["model"])) for row in requests if row["model"])
    times = [
        f"{name} {seconds(spent)}"
        for name, rows in (("model", requests), ("tools", calls), ("waiting for the user", waits))
        if (spent := sum(row["duration_ns"] or 0 for row in rows))
    ]
    guesses = [row["estimated_ns"] for row in calls if row["estimated_ns"] is not None]
    if guesses and all(row["duration_ns"] is None for row in calls):
        times.append(f"tools ≈ {seconds(max(guesses))}")
    return [
        ("session", printable(" ".join(filter(None, (about["name"], about["session_id"]))))),
        ("turn", f"{turn:,} of {last:,} of {agent}"),
        ("started", f"{local_instant(started)} ({zone_name()}), {after} after the session started"),
        ("model", ", ".join(models) or "unknown"),
        ("totals", ", ".join((_cost(requests), *_counts(requests, calls, errors)))),
        ("time", ", ".join(times)),
        ("tokens", token_counts(*_usage(requests))),
    ]


def _cost(requests: Sequence[Row]) -> str:
    known = [row["cost_usd"] for row in requests if row["cost_usd"] is not None]
    if not known:
        return "unknown cost"
    return certain_money(sum(known, Decimal(0)), _cost_status(requests)) or ""


def _cost_status(requests: Sequence[Row]) -> str:
    """Return the certainty of the sum of the costs."""
    found = {str(row["cost_status"]) for row in requests}
    return next((each for each in COST_MARKS if each in found), "exact")


def _counts(requests: Sequence[Row], calls: Sequence[Row], errors: Sequence[Row]) -> Iterator[str]:
    """Yield the numbers of requests and of tool calls, with those that failed or were denied."""
    from agentobs.store.analysis.failed_steps import (
        call_notes,
        group_failed_steps,
        number_denied,
        number_failed,
    )

    groups = group_failed_steps(errors, ())
    for name, rows, notes in (
        ("request", requests, call_notes(number_failed(groups, "attempt"), 0)),
        (
            "tool call",
            calls,
            call_notes(number_failed(groups, "tool_call"), number_denied(groups)),
        ),
    ):
        count = f"{len(rows):,} {name}{'s' * (len(rows) != 1)}"
        yield f"{count} ({notes})" if notes else count


def _usage(requests: Sequence[Row]) -> tuple[dict[str, int], dict[str, str]]:
    """Return the tokens of the requests, and their certainty."""
    usage = {name: sum(row[name] or 0 for row in requests) for name in _TOKENS}
    return usage, {"cost_status": _cost_status(requests)}


def _row(
    step: Row, first: int, steps: Sequence[Row], errors: Sequence[Row], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return a step of the turn as a row of the table.

    Args:
        step: the row of the timeline, from `shown_steps`.
        first: when the turn started.
        steps: the rows of `session_steps` of the turn.
        errors: the rows of `session_errors`.
        names: the display names of the lanes of the session.
    """
    from agentobs.store.analysis.lane_names import agent_of_call

    kind = _STEP_KINDS.get(step["kind"])
    facts: Row = next((r for r in steps if (r["kind"], r["id"]) == (kind, step["id"])), {})
    row = {**dict.fromkeys((*_COLUMNS, *_MARKS)), **facts}
    is_call = step["kind"] == "tool_call"
    started = agent_of_call(str(step["lane"]), str(step["id"]), names) if is_call else None
    outcome = step["outcome"]
    if kind == "request":
        outcome = outcome_words(str(facts.get("outcome", outcome)))
    elif kind == "decision" and step["label"]:
        outcome = f"{outcome} ({step['label']})"
    return {
        **row,
        "after_ns": step["started_ns"] - first,
        "what": f"{step['what']}: sub-agent {started}" if started else step["what"],
        "duration_ns": step["duration_ns"],
        "outcome": outcome,
        "error": _error(step, errors, str(outcome)),
    }


def _error(step: Row, errors: Sequence[Row], outcome: str) -> str | None:
    """Return the class and the place of the error of a step, without a class that the outcome of a request names."""
    key = (step["kind"], step["id"], step["lane"], step["turn"])
    for row in errors:
        if (row["kind"], row["id"], row["lane"], row["turn"]) == key:
            line = f":{row['error_line']}" if row["error_line"] is not None else ""
            place = f"at {text(row['error_file'])}{line}" if row["error_file"] else None
            known = row["error_class"]
            if known is not None and step["kind"] == "attempt" and str(known) in outcome.split():
                known = None
            return " ".join(filter(None, (known, place))) or None
    return None


def turn_content(recording: Recording, attempt_ids: Sequence[str]) -> Iterator[str]:
    """Yield the lines with the content of a turn: the start of the system prompt, the new messages, the response, and
    the results of its tool calls, which the next request of its lane contains.

    Args:
        recording: the recording of the session.
        attempt_ids: the IDs of the attempts of the turn.
    """
    from agentobs.records.exchanges import ModelExchange

    previous: dict[str, ModelExchange] = {}
    is_imported = recording.source != "recorded"
    number, last = 0, attempt_ids[-1]
    for each in recording.exchanges:
        if not isinstance(each, ModelExchange):
            continue
        if each.attempt_id in attempt_ids:
            number += 1
            yield ""
            if len(attempt_ids) > 1:
                yield f"request {number:,} of {len(attempt_ids):,}"
            yield from _request_content(each, previous.get(each.place.lane), is_imported)
        elif (before := previous.get(each.place.lane)) and before.attempt_id == last:
            yield from _results(each, before)
        previous[each.place.lane] = each


def _request_content(
    exchange: ModelExchange, previous: ModelExchange | None, is_imported: bool
) -> Iterator[str]:
    """Yield the content of one request and its response.

    Args:
        exchange: the request and its response.
        previous: those before in the same lane; None if there are none.
        is_imported: whether the session was imported from a log.
    """
    from agentobs.cli.terminal.transcript import history_of, new_entries, parsed_body
    from agentobs.provider.new_messages import new_messages
    from agentobs.provider.registry import dialect_of, message_of

    dialect = dialect_of(exchange.question.path)
    body = parsed_body(exchange.question.body)
    before = parsed_body(previous.question.body) if previous else None
    if isinstance(body, dict):
        yield from _prompt(dialect, body, before if isinstance(before, dict) else None, is_imported)
    history = history_of(exchange)
    old = history_of(previous) if previous else ()
    response = message_of(previous.question.path, previous.answer).raw if previous else None
    first, removed = new_messages(
        [each.raw for each in old], response, [each.raw for each in history], dialect
    )
    if previous is None:
        yield f"messages: {len(history):,}"
    elif previous.question.body == exchange.question.body:
        yield f"messages: {len(history):,}, the same as in the previous attempt"
    else:
        yield _messages(len(history), first, removed)
    for entry in new_entries(exchange, history, first):
        yield from _entry_lines(entry)


def _results(exchange: ModelExchange, previous: ModelExchange) -> Iterator[str]:
    """Yield the tool results that are new in a request."""
    from agentobs.cli.terminal.transcript import history_of, repeated_messages, request_entries

    history = history_of(exchange)
    repeated = repeated_messages(exchange, history_of(previous), history)
    for entry in request_entries(exchange, 1, history, repeated):
        if entry.kind in ("result", "error"):
            yield from _entry_lines(entry)


def _entry_lines(entry: Entry) -> Iterator[str]:
    yield ""
    yield f"{printable(entry.title)}:" if entry.text else printable(entry.title)
    yield from (f"  {line}" for line in entry.text.splitlines())


def _messages(count: int, first: int, removed: int) -> str:
    """Return the number of messages of a request, and what differs from the previous request."""
    changed = f"; {removed:,} of the previous request changed or removed" if removed else ""
    return f"messages: {message_counts(count, count - first)}{changed}{_EARLIER if first else ''}"


def _prompt(dialect: Dialect, body: Row, before: Row | None, is_imported: bool) -> Iterator[str]:
    """Yield the start of the system prompt, and the names of the tools, and whether they changed, or that the log of an
    imported session does not contain them.
    """
    key = dialect.prompt_keys.get("system")
    if key is not None and body.get(key):
        system = _system_text(body[key])
        yield f"system prompt: {len(system):,} characters{_change(dialect, key, body, before)}"
        start = system[:SYSTEM_CHARACTERS].splitlines()[:SYSTEM_LINES]
        yield from (f"  {printable(line.expandtabs(4))}" for line in start)
        if rest := len(system) - len("\n".join(start)):
            yield f"  … {rest:,} more characters"
    elif key is not None and is_imported:
        yield "system prompt: not in the log"
    if tools := dialect.tool_names(body):
        key = dialect.prompt_keys.get("tools")
        change = _change(dialect, key, body, before) if key is not None else ""
        yield f"tools: {printable(', '.join(tools))}{change}"
    elif is_imported:
        yield "tools: not in the log"


def _change(dialect: Dialect, key: str, body: Row, before: Row | None) -> str:
    """Return whether a part of the request differs from that of the previous request, if there is one."""
    if before is None:
        return ""
    without = dialect.without_breakpoints
    is_same = without(body[key]) == without(before.get(key))
    return " (as in the previous request)" if is_same else " (changed since the previous request)"


def _system_text(value: Any) -> str:
    """Return the text of a system prompt, which is a string or a list of blocks."""
    blocks = value if isinstance(value, list) else [{"text": value}]
    return "\n".join(
        str(each["text"]) for each in blocks if isinstance(each, dict) and "text" in each
    )
